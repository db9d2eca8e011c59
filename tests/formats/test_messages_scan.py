"""The scan of Anthropic's streams: what passes, what is held back, and what is known at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.anthropic.reader import MessagesScan
from gateway.formats.format import ScanInput
from gateway.records import Usage
from tests.flows.test_messages import RECORDED

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def event(kind: str, **more: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()


def run(*pieces: bytes, asked: ScanInput | None = None) -> tuple[bytes, MessagesScan]:
    scan, passed = MessagesScan(asked or ScanInput()), b""
    for piece in pieces:
        if scan.is_at_start and scan.is_alike(piece):
            passed += piece
        else:
            passed += scan.feed(piece)[0]
    return passed + scan.finish(), scan


def facts(scan: MessagesScan) -> tuple[object, ...]:
    known = scan.usage, scan.is_usage_final, scan.error, scan.is_done, scan.is_complete, scan.model, scan.last(Usage())
    return *known, scan.has_reasoned, scan.text_events(), scan.delivered_tokens()


@pytest.mark.parametrize("name", sorted(RECORDED))
@given(data=st.data())
def test_no_cut_makes_a_difference(name: str, data: st.DataObject) -> None:
    text = RECORDED[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    passed, scan = run(*pieces)
    whole, other = run(text)
    assert (passed, facts(scan)) == (whole, facts(other))


def test_the_end_is_held_back_as_it_came() -> None:
    end = b'event: message_stop\ndata: {"type":"message_stop" }\n\n'
    passed, scan = run(RECORDED["text"].replace(event("message_stop"), end))
    assert scan.last(Usage()) == end
    assert end not in passed
    assert (scan.is_done, scan.is_complete, scan.usage) == (
        True, True, Usage(25, 17, source="reported", variant="standard"),
    )  # fmt: skip


def test_pings_and_comments_pass_and_are_no_sign_of_life() -> None:
    scan = MessagesScan(ScanInput())
    for waiting in (PING, b": wait\n\n", PING + b": wait\n\n" + PING, PING.replace(b"\n", b"\r\n")):
        passed, _ = scan.feed(waiting)
        assert passed == waiting
        assert not scan.is_sign_of_life(passed)
    assert not scan.has_begun
    begun = RECORDED["text"].partition(b"event: content_block_start")[0]
    assert scan.is_sign_of_life(scan.feed(PING + begun)[0])
    assert scan.has_begun


def test_a_text_that_names_an_event_is_a_text() -> None:
    words = 'event: error\ndata: {"type":"message_stop"} "type": "error" [DONE]'
    delta = event("content_block_delta", index=0, delta={"type": "text_delta", "text": words})
    passed, scan = run(delta)
    assert passed == delta
    assert (scan.error, scan.is_done, scan.text_events()) == (None, False, 1)


def test_a_long_event_passes_in_pieces() -> None:
    found = [{"type": "web_search_result", "encrypted_content": "x" * 200_000}]
    block = {"type": "web_search_tool_result", "tool_use_id": "s", "content": found}
    long = event("content_block_start", index=1, content_block=block)
    passed, scan = run(long[:70_000], long[70_000:], event("message_stop"))
    assert passed == long
    assert (scan.is_done, scan.last(Usage())) == (True, event("message_stop"))


def test_a_report_that_cannot_be_true_does_not_count() -> None:
    asked = ScanInput(allows=lambda report, count: report.completion_tokens < 100)
    first = event("message_start", message={"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}})
    last = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 10**9})
    _, scan = run(first, last, asked=asked)
    assert (scan.usage, scan.is_usage_final) == (Usage(5, 1, source="reported"), False)
    assert scan.excess == Usage(5, 10**9, source="reported")


@pytest.mark.parametrize("error", ["no such key", {"message": "no such key"}], ids=["text", "object"])
def test_an_error_object_of_another_api_is_an_error(error: Any) -> None:
    passed, scan = run(event("message_start", message={}), b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
    assert passed == event("message_start", message={})
    assert scan.error == {"message": "no such key"}


def test_what_is_no_event_is_dropped_and_begins_nothing() -> None:
    passed, scan = run(b"<html>\n\n<body>It works!</body>\n\n</html>\n\nid: 7\n\n")
    assert (passed, scan.has_begun) == (b"", False)
