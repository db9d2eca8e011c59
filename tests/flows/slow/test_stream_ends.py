"""Streams of Messages and Responses whose connection is lost, through a whole gateway: the client gets whole events and
one end, and what is charged agrees with that end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire
from tests.flows.cutting import ask_all, charged, record_of_each, telling_cuts, write_beginning
from tests.flows.gateway_process import Gateway, model, settings
from tests.flows.slow import test_message_cuts, test_response_cuts
from tests.flows.test_messages import RECORDED as MESSAGES

pytestmark = pytest.mark.timeout(600)
MODEL = "m"
RESPONSES = {name: test_response_cuts.RECORDED[name] for name in ("completed", "incomplete", "tool")}
STREAMS = {"messages": {name: text for name, text in MESSAGES.items() if name not in test_message_cuts.BROKEN},
           "responses": RESPONSES}  # fmt: skip
FAILURES = {"messages": b"event: error\n", "responses": b"event: response.failed\n"}
GOOD_ENDS = {
    "messages": (b"event: message_delta\n",),  # with the stop reason and the usage; some clones send nothing behind it
    "responses": (b"event: response.completed\n", b"event: response.incomplete\n"),
}
PLAIN_ERROR = b"{"

Case = tuple[str, str, int]
"""The format, the stream's name, and how many of its bytes come."""
CASES = [
    (kind, name, end) for kind, streams in STREAMS.items() for name, text in streams.items()
    for end in telling_cuts(text)
]  # fmt: skip


async def ender(wire: Wire) -> None:
    """The beginning that the request names."""
    kind, name, end = wire.request.json["metadata"]["user_id"].split(":")
    await write_beginning(wire, STREAMS[kind][name], int(end))


def members_of(case: Case) -> dict[str, Any]:
    members = {"model": MODEL, "stream": True, "metadata": {"user_id": ":".join(map(str, case))}}
    if case[0] == "responses":
        return members | {"input": "Hi", "max_output_tokens": 64}
    return members | {"max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    config = settings(shared_upstream.url, upstreams={"main": {"capabilities": {"messages": True}}})
    price = {
        "input": 2, "output": 8, "cached_input": 1, "cache_write": 3, "cache_write_1h": 4, "web_searches_per_1000": 10,
    }  # fmt: skip
    config["models"] = {MODEL: model("responses", price=price) | {"endpoints": ["responses", "messages"]}}
    config["server"]["access_log"] = "off"
    return start_shared_gateway(config)


async def test_a_connection_that_is_lost(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ender)
    passed: dict[Case, bytes] = {}
    await ask_all(
        gateway.port, lambda case: f"/v1/{case[0]}", CASES, members_of, lambda case, body: passed.update({case: body}),
        may_fail=True,
    )  # fmt: skip
    records = record_of_each(gateway, CASES)
    whole = {case[:2]: charged(records[case]) for case in CASES}  # of its last byte
    for case in CASES:
        check(case, passed[case], records[case], whole[case[:2]])


def check(case: Case, passed: bytes, record: dict[str, Any], whole: tuple[Any, ...]) -> None:
    kind, name, end = case
    shown, failure, _ = passed.partition(FAILURES[kind])
    is_good = any(last in shown for last in GOOD_ENDS[kind])
    assert is_good != bool(failure or passed.startswith(PLAIN_ERROR)), case  # one end
    if not passed.startswith(PLAIN_ERROR):
        assert passed.endswith(b"\n\n"), case  # whole events
        assert STREAMS[kind][name].startswith(shown.rstrip(b"\n")), case
        assert len(shown) <= end + 2, case
    if is_good:
        assert charged(record) == whole, case
        return
    assert record["ended"] == "error", case
    assert record["prompt_tokens"] > 0, case
    assert record["cost_usd"] > 0, case
