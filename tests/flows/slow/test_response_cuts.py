"""Streams of the Responses API, cut in two, through a whole gateway."""

from __future__ import annotations

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.scripted import Wire
from tests.flows.cutting import ask_all, charged, record_of_each, telling_cuts, write_cut
from tests.flows.gateway_process import Gateway, model, settings
from tests.flows.test_responses import GOOD, MODEL, OUTPUT, data_of

pytestmark = pytest.mark.timeout(600)
RECORDED = {
    "completed": GOOD,
    "incomplete": api.written(
        api.events(OUTPUT, api.response(OUTPUT, status="incomplete"), "response.incomplete", api.response())
    ),
    "failed": api.written(
        api.events(
            OUTPUT,
            api.response(status="failed", error={"code": "server_error", "message": "x"}),
            "response.failed",
            api.response(),
        )
    ),
}
THOUGHT = {
    "type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Thinking of it."}],
    "encrypted_content": "gAAAAABo" * 20, "status": "completed",
}  # fmt: skip
CALL = api.function_call("shell", '{"cmd": "printf \\"one\\" > \\u00e9.txt"}', 2)


def _with_tool() -> bytes:
    """As Codex gets them: reasoning, a message, a tool call."""
    items = [api.message("I will.", 1), CALL]
    end = api.response([THOUGHT, *items], instructions="Be kind.", tools=[{"type": "function", "name": "shell"}])
    events = api.events(items, end)
    summary = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    thinking = [
        {"type": "response.output_item.added", "output_index": 0, "item": THOUGHT | {"encrypted_content": ""}},
        {"type": "response.reasoning_summary_text.delta", **summary, "delta": "Thinking of it."},
        {"type": "response.output_item.done", "output_index": 0, "item": THOUGHT},
    ]
    found = [*events[:2], *thinking, *events[2:]]
    return api.written([each | {"sequence_number": number} for number, each in enumerate(found)])


RECORDED["tool"] = _with_tool()
RECORDED |= {f"{name} CRLF": text.replace(b"\n", b"\r\n") for name, text in RECORDED.items()}
TWINS = frozenset(name for name in RECORDED if name.endswith("CRLF"))
Case = tuple[str, int]
"""The stream's name, and where it is cut."""


async def cutter(wire: Wire) -> None:
    """The stream that the request names, in two chunks."""
    name, cut = wire.request.json["user"].split(":")
    await write_cut(wire, RECORDED[name], int(cut))


def check_cut(case: Case, passed: bytes) -> None:
    text = RECORDED[case[0].removesuffix(" CRLF")]
    # A CR at the end of a chunk ends its event: the LF behind it may go with the next bytes, or be left out at the end.
    passed = passed.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if case[0] in TWINS else passed
    if not case[0].startswith("failed"):
        assert passed == text
        return
    same = text.index(b"event: response.failed")
    assert passed[:same] == text[:same]
    assert data_of(passed[same:])["response"]["error"]["code"] == "upstream_error"


@pytest.fixture
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(
        settings(shared_upstream.url, models={MODEL: model("responses")}, server={"access_log": "off"})
    )


async def test_cuts_of_every_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=cutter)
    cases = [(name, cut) for name, text in RECORDED.items() for cut in telling_cuts(text)]
    await ask_all(
        gateway.port, "/v1/responses", cases,
        lambda case: {"model": MODEL, "stream": True, "input": "Hi", "user": f"{case[0]}:{case[1]}"}, check_cut,
    )  # fmt: skip
    assert upstream.hits == len(cases)
    found = {(case[0], charged(record)) for case, record in record_of_each(gateway, cases).items()}
    assert len(found) == len(RECORDED)  # a stream is charged the same wherever it is cut
