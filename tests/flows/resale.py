"""A call through a relay of a reseller whose client leaves: the gateway's record and the relay's bill."""

from __future__ import annotations

from typing import Any

from tests.fakes.one_api import OneAPI

from .gateway_process import Gateway, eventually


def left_stream(gateway: Gateway, reseller: OneAPI, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a slow stream of the simulated upstream, whose client left behind its first pieces."""
    known = {each["id"] for each in reseller.logs()}
    asked: Any = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 60,
        "simulate": {"tokens_per_s": 30},
    }
    with gateway.stream(path="/v1/chat/completions", model=name, prompt=None, **asked) as client:
        answer_id = client.read_head().id
        for _ in range(3):
            client.read_chunk()
    record = gateway.call(answer_id)
    assert record["ended"] == "client_gone"
    (bill,) = eventually(lambda: [each for each in reseller.logs() if each["id"] not in known])
    return record, bill
