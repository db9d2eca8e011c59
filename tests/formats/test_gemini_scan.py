"""The scan of Gemini's streams: what passes, and what is known at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.format import ScanInput
from gateway.formats.gemini.reader import GeminiScan
from gateway.records import Usage
from tests.flows.test_gemini import RECORDED


def event(**members: Any) -> bytes:
    return f"data: {json.dumps(members)}\r\n\r\n".encode()


def candidate(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"content": {"parts": [{"text": text}]}, "finishReason": reason, "index": 0}


def run(*pieces: bytes, asked: ScanInput | None = None) -> tuple[bytes, GeminiScan]:
    scan, passed = GeminiScan(asked or ScanInput()), b""
    for piece in pieces:
        passed += scan.feed(piece)[0]
    return passed + scan.finish(), scan


def facts(scan: GeminiScan) -> tuple[object, ...]:
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
    assert (passed.replace(b"\r", b""), facts(scan)) == (whole.replace(b"\r", b""), facts(other))


def test_a_candidate_that_has_begun_has_to_finish() -> None:
    _, scan = run(event(candidates=[candidate("a", "STOP"), candidate("b") | {"index": 1}]))
    assert not scan.is_complete
    _, scan = run(event(candidates=[candidate("a", "FINISH_REASON_UNSPECIFIED")]))
    assert not scan.is_complete
    _, scan = run(event(candidates=[candidate("a", "STOP")]), asked=ScanInput(choices=2))
    assert scan.is_complete  # the upstream made one only, and has ended its message
    _, scan = run(b"")
    assert not scan.is_complete


def test_a_finish_reason_is_no_end_where_more_follows() -> None:
    """Relays name a reason on each chunk (one-api#1477), or on one before the last (CLIProxyAPI#5651)."""
    end, more = event(candidates=[candidate("a", "STOP")]), event(candidates=[candidate("another")])
    usage = event(candidates=[], usageMetadata={"promptTokenCount": 5, "candidatesTokenCount": 2})
    passed, scan = run(end, more, usage)
    assert (passed, scan.usage, scan.is_usage_final) == (end + more + usage, Usage(5, 2, source="reported"), True)
    passed, scan = run(end, usage, more)
    assert (passed, scan.is_complete, scan.is_usage_final) == (end + usage + more, True, False)


def test_a_stream_that_was_cut_is_complete_if_no_text_came_behind_its_end() -> None:
    scan = GeminiScan(ScanInput())
    scan.feed(event(candidates=[candidate("a")]))
    assert not scan.is_complete
    scan.feed(event(candidates=[candidate("b", "STOP")]))
    assert scan.is_complete
    scan.feed(event(candidates=[candidate("c", "STOP")]))
    assert not scan.is_complete


def test_done_ends_a_complete_answer_only() -> None:
    done = b"data: [DONE]\n\n"
    start, end = event(candidates=[candidate("a")]), event(candidates=[candidate("b", "STOP")])
    passed, scan = run(start, done, end, done, event(candidates=[candidate("c")]))
    assert (passed, scan.is_done, scan.is_complete) == (start + end, True, True)


def test_what_is_no_chunk_does_not_leave() -> None:
    lines = b": wait\n\nevent: x\n\nid: 7\n\ndata: [DONE]\n\n"
    passed, scan = run(lines)
    assert (passed, scan.has_begun) == (b"", False)
    passed, _ = run(b'event: message\ndata: {"candidates":\ndata:  []}\n\n')
    assert passed == b'data: {"candidates":  []}\r\n\r\n'
    passed, _ = run(b"data: sorry\n\n")
    assert passed == b"data: sorry\r\n\r\n"


def test_a_text_that_names_an_error_is_a_text() -> None:
    text = event(candidates=[candidate('{"error": {"code": 500}} data: [DONE]', "STOP")])
    passed, scan = run(text)
    assert (passed, scan.error, scan.is_complete) == (text, None, True)


def test_a_report_that_cannot_be_true_does_not_count() -> None:
    asked = ScanInput(allows=lambda report, count: report.completion_tokens < 100)
    first = event(candidates=[candidate("a")], usageMetadata={"promptTokenCount": 5, "candidatesTokenCount": 1})
    last = event(
        candidates=[candidate("b", "STOP")], usageMetadata={"promptTokenCount": 5, "thoughtsTokenCount": 10**9}
    )
    _, scan = run(first, last, asked=asked)
    assert scan.usage == Usage(5, 1, source="reported")
    assert scan.excess == Usage(5, 10**9, 0, 10**9, source="reported")


@pytest.mark.parametrize("cut", [70_000, 199_990, 200_200, 200_300])
def test_a_long_chunk_passes_in_pieces(cut: int) -> None:
    parts = [{"inlineData": {"data": "x" * 200_000}}]
    found = {"content": {"parts": parts}, "finishReason": "STOP"}
    long = event(candidates=[found], usageMetadata={"promptTokenCount": 5, "candidatesTokenCount": 9}, modelVersion="m")
    passed, scan = run(long[:cut], long[cut:])
    assert passed == long
    assert (scan.usage, scan.is_usage_final, scan.model) == (Usage(5, 9, source="reported"), True, "m")
    _, scan = run(long[:-60])
    assert (scan.is_complete, scan.usage) == (False, None)
