"""Clients that leave in the middle of a call, in every format: the record, the charge, the quota.

A plain answer is awaited for its usage after its client has left; a stream is stopped.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.faults import KINDS as ALL_KINDS
from tests.fakes.faults import Ask, Kind
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.scripted import CHUNKED, Wire, chunk

from .gateway_process import Gateway, eventually, key, model, secret, settings

ENDPOINTS = ["completions", "chat", "messages", "responses", "generate_content"]
KINDS = [kind for kind in ALL_KINDS if kind.endpoint in ENDPOINTS]


LONG_S = 1000.0
"""Of a recording (16 MB) that no buffers between the gateway and an upstream hold."""


@pytest.fixture(scope="module")
def deaf() -> Iterator[socket.socket]:
    """An upstream that reads the first bytes of a request alone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


@pytest.fixture(scope="module")
def gateway(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, deaf: socket.socket, store_url: str
) -> Gateway:
    keys = [key("uploader", quotas=[{"requests": 9, "per": "month"}, {"tokens": 1_000_000_000, "per": "month"}])]
    keys += [key(str(kind), quotas=[{"tokens": 1_000_000, "per": "month"}], max_parallel=9) for kind in KINDS]
    config = settings(
        shared_upstream.url,
        store={"url": store_url},
        keys=keys,
        upstreams={
            "main": {"capabilities": {"messages": True, "generate_content": True}},
            "deaf": {"base_url": f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"},
        },
    )
    return start_shared_gateway(
        config | {"models": {"m": model("chat") | {"endpoints": ENDPOINTS}, "deaf": model("transcriptions", "deaf")}}
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_client_that_leaves_is_charged_once_and_frees_its_quota(
    gateway: Gateway, upstream: ScriptedUpstream, kind: Kind
) -> None:
    ask, has_left = Ask(kind, "leaver"), threading.Event()

    async def half(wire: Wire) -> None:
        if kind.is_streamed:
            await wire.write(CHUNKED + b"".join(map(chunk, ask.unfinished)))
            await wire.until_gone()
        else:
            await asyncio.to_thread(has_left.wait, 30)
            await wire.write(ask.good)

    upstream.answer_with(half)
    with gateway.connect() as client:
        path, members = kind.form.request("m", ask.user, is_streamed=kind.is_streamed)
        client.post(path, json.dumps(members).encode(), secret(str(kind)))
        eventually(lambda: upstream.hits)
        if kind.is_streamed:
            client.read_head()
            while ask.user not in client.read_chunk().decode():
                pass
    has_left.set()
    [record] = eventually(lambda: gateway.calls(str(kind)))
    assert (record["endpoint"], record["ended"], record["status"]) == (kind.endpoint, "client_gone", 499)
    assert (record["usage_source"], record["attempts"]) == ("estimated" if kind.is_streamed else "reported", 1)
    assert record["prompt_tokens"] >= 1
    assert 3 <= record["completion_tokens"] <= 20
    used = record["prompt_tokens"] + record["completion_tokens"]
    quotas = gateway.get("/v1/key", key=str(kind)).json["quotas"]
    held = {quota["unit"]: (quota["used"], quota["reserved"]) for quota in quotas}
    assert held == {"tokens": (used, 0), "parallel": (0, 0)}
    assert upstream.hits == 1


def test_a_client_that_leaves_before_its_form_was_wholly_sent_is_charged_nothing(
    gateway: Gateway, deaf: socket.socket
) -> None:
    body = form(("model", "deaf"), ("file", wav(LONG_S)))
    head = (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('uploader')}\r\n"
        f"Content-Type: {TYPE['Content-Type']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with gateway.connect() as client:
        client.send(head.encode() + body)
        receiving, _ = deaf.accept()
        assert receiving.recv(4) == b"POST"
    with receiving:
        [record] = eventually(lambda: gateway.calls("uploader"))
    assert (record["ended"], record["status"], record["usage_source"]) == ("client_gone", 499, "none")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (0, 0)
    quotas = gateway.get("/v1/key", key="uploader").json["quotas"]
    assert {quota["unit"]: (quota["used"], quota["reserved"]) for quota in quotas} == {
        "requests": (1, 0), "tokens": (0, 0),
    }  # fmt: skip
