"""Every recorded stream of the Messages API, cut in two, through a whole gateway.

What is expected is written by hand: the events before an error or the end, then the end that the upstream sent, or an
error event.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire
from tests.flows.cutting import ask_all, charged, record_of_each, telling_cuts, write_cut
from tests.flows.gateway_process import Gateway
from tests.flows.test_messages import CLAUDE, RECORDED, gateway_settings

pytestmark = pytest.mark.timeout(600)
BROKEN = frozenset({"error-in-stream", "ended-early"})
DONE = b"data: [DONE]\n\n"
ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}

Case = tuple[str, str, int]
"""The stream's name, its line ends, and where it is cut."""


def text_of(name: str, end: str) -> bytes:
    return RECORDED[name].replace(b"\n", ENDS[end])


def cases() -> list[Case]:
    return [(name, end, cut) for name in RECORDED for end in ENDS for cut in telling_cuts(text_of(name, end))]


async def cutter(wire: Wire) -> None:
    """The recorded stream that the request names, in two chunks."""
    name, end, cut = wire.request.json["metadata"]["user_id"].split(":")
    await write_cut(wire, text_of(name, end.strip()), int(cut))


def members_of(case: Case) -> dict[str, Any]:
    return {
        "model": CLAUDE, "stream": True, "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}],
        "metadata": {"user_id": "{}:{:>4}:{:0>5}".format(*case)},  # as long for each cut: bounds depend on the length
    }  # fmt: skip


def check(case: Case, passed: bytes) -> None:
    name, end, _ = case
    # A CR at the end of a chunk ends its event: the LF behind it may go with the next bytes, or be left out at the end.
    passed, text = passed.replace(ENDS[end], b"\n").replace(b"\r", b"\n"), RECORDED[name]
    if name in BROKEN:
        text = text.partition(b"event: error")[0]
        assert passed.startswith(text)
        event, data = passed.removeprefix(text).removesuffix(b"\n\n").split(b"\n")
        assert event == b"event: error"
        assert json.loads(data.removeprefix(b"data: "))["type"] == "error"
        return
    text = text.removesuffix(DONE)
    assert passed == text.rstrip(b"\n") + b"\n\n"


@pytest.fixture
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    config = gateway_settings(shared_upstream.url)
    config["server"]["access_log"] = "off"
    return start_shared_gateway(config)


async def test_cuts_of_every_recorded_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=cutter)
    await ask_all(gateway.port, "/v1/messages", cases(), members_of, check)
    assert len(cases()) == upstream.hits > 1000
    found = {(case[0], charged(record)) for case, record in record_of_each(gateway, cases()).items()}
    assert len(found) == len(RECORDED)  # a stream is charged the same wherever it is cut
