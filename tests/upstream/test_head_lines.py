"""Lines of heads: the same text kept or not, and kept only where a later call can have the same headers."""

from __future__ import annotations

import pytest

from gateway.upstream.pool import MAX_KEPT, HeadLines

PLAIN = (("Content-Type", "application/json"), ("User-Agent", "x/1"))
TEXT = "Content-Type: application/json\r\nUser-Agent: x/1\r\n"


def test_headers_that_come_again_are_kept() -> None:
    lines = HeadLines()
    assert lines[PLAIN] == TEXT
    assert list(lines) == [PLAIN]
    assert lines[tuple(PLAIN)] is lines[PLAIN]


@pytest.mark.parametrize(
    "header",
    [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("TraceState", "vendor=1"),
        ("x-codex-turn-state", "gAAAA"),
        ("Content-Type", "multipart/form-data; boundary=0123"),
    ],
    ids=lambda each: each[0],
)
def test_headers_of_one_call_are_not_kept(header: tuple[str, str]) -> None:
    lines = HeadLines()
    assert lines[*PLAIN, header] == f"{TEXT}{header[0]}: {header[1]}\r\n"
    assert not lines


def test_no_more_than_a_number_are_kept() -> None:
    lines = HeadLines()
    for number in range(3 * MAX_KEPT):
        assert lines[(("User-Agent", f"x/{number}"),)] == f"User-Agent: x/{number}\r\n"
        assert len(lines) <= MAX_KEPT
    assert (("User-Agent", f"x/{number}"),) in lines
