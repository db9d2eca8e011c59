"""Where events end, however they arrive."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats import sse
from gateway.formats.sse import LONG_EVENT, EventSplitter


def split(*pieces: bytes) -> list[tuple[bytes, bool]]:
    splitter = EventSplitter()
    return [found for piece in pieces for found in splitter.split(piece)]


@pytest.mark.parametrize(
    ("text", "events", "rest"),
    [
        (b"", [], b""),
        (b"data: a", [], b"data: a"),
        (b"data: a\n", [], b"data: a\n"),
        (b"data: a\n\n", [b"data: a\n\n"], b""),
        (b"data: a\r\n\r\n", [b"data: a\r\n\r\n"], b""),
        (b"data: a\r\r", [b"data: a\r\r"], b""),
        (b"data: a\n\r\n", [b"data: a\n\r\n"], b""),
        (b"data: a\r\n\n", [b"data: a\r\n\n"], b""),
        (b"data: a\r\ndata: b\r\n", [], b"data: a\r\ndata: b\r\n"),  # CRLF is one line end, not a blank line
        (b"data: a\n\ndata: b\n\nda", [b"data: a\n\n", b"data: b\n\n"], b"da"),
        (b"\n\n\n\n", [b"\n\n", b"\n\n"], b""),
        (b": ping\n\n", [b": ping\n\n"], b""),
    ],
)
def test_split(text: bytes, events: list[bytes], rest: bytes) -> None:
    splitter = EventSplitter()
    assert list(splitter.split(text)) == [(event, True) for event in events]
    assert splitter.held == len(rest)
    assert splitter.rest() == rest
    assert (splitter.held, splitter.rest()) == (0, b"")


def lines_of(events: list[bytes]) -> list[bytes]:
    """What a reader sees: the lines, whatever ends them."""
    return b"".join(events).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


def data_in(events: list[bytes]) -> list[bytes]:
    return [data for event in events if (data := sse.data_of(event)) is not None]


BITS = st.lists(
    st.sampled_from([b"data: a", b"data:", b":", b"id: 1", b"\n", b"\r", b"\r\n", b"\n\n", b"x"]), max_size=30
)


@given(BITS.map(b"".join), st.lists(st.integers(0, 60), max_size=8))
def test_cuts_change_nothing(text: bytes, cuts: list[int]) -> None:
    """Not one byte is lost or moved, and the same events come out."""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    splitter = EventSplitter()
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    found = [event for piece in pieces for event, is_whole in splitter.split(piece) if is_whole]
    rest = splitter.rest()
    assert b"".join(found) + rest == text
    whole = EventSplitter()
    expected = [event for event, _ in whole.split(text)]
    # A CRLF that is cut in the middle may leave its LF to the next event; a reader sees the same lines.
    assert data_in(found) == data_in(expected)
    assert lines_of([*found, rest]) == lines_of([*expected, whole.rest()])


@pytest.mark.parametrize("size", [LONG_EVENT - 9, LONG_EVENT, LONG_EVENT + 10, 5 * LONG_EVENT])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("step", [1000, LONG_EVENT, LONG_EVENT + 7])
def test_long_events_are_not_held(size: int, end: bytes, step: int) -> None:
    text = b"data: " + b"x" * size + end + b"data: b" + end
    splitter = EventSplitter()
    found = []
    for start in range(0, len(text), step):
        found += list(splitter.split(text[start : start + step]))
        assert splitter.held <= LONG_EVENT + 3
    assert b"".join(event for event, _ in found) == text
    assert (found[-1][0].lstrip(b"\n"), found[-1][1]) == (b"data: b" + end, True)
    assert not splitter.is_inside_long
    pieces = [is_whole for _, is_whole in found[:-1]]
    assert not any(pieces) or pieces == [True]


def test_end_of_a_long_event_is_part_of_it() -> None:
    splitter = EventSplitter()
    assert list(splitter.split(b"data: " + b"x" * LONG_EVENT * 2)) == [(b"data: " + b"x" * (LONG_EVENT * 2 - 3), False)]
    assert splitter.is_inside_long
    assert list(splitter.split(b"\n\ndata: b\n\n")) == [(b"xxx\n\n", False), (b"data: b\n\n", True)]
    assert not splitter.is_inside_long


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data:  a\n\n", b" a"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"data: a\rdata\rdata:b\r\r", b"a\n\nb"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"event: x\nid: 1\ndata: a\nretry: 5\n\n", b"a"),
        (b": data: a\n\n", None),
        (b"database: a\n\n", None),
        (b"id: 1\n\n", None),
        (b"event: x\n\n", None),
        (b"\n\n", None),
    ],
)
def test_data_of(event: bytes, data: bytes | None) -> None:
    assert sse.data_of(event) == data


@pytest.mark.parametrize(
    ("event", "is_comment"),
    [(b": ping\n\n", True), (b":\r\n: b\r\n\r\n", True), (b": a\ndata: b\n\n", False), (b"id: 1\n\n", False)],
)
def test_is_comment(event: bytes, is_comment: bool) -> None:
    assert sse.is_comment(event) is is_comment


@pytest.mark.parametrize(
    ("event", "without"),
    [
        (b"id: 1\ndata: a\n\n", b"data: a\n\n"),
        (b"data: a\nid: 1\n\n", b"data: a\n\n"),
        (b"data: a\r\nretry: 1\r\n\r\n", b"data: a\n\n"),
        (b"data: a\rid\r\r", b"data: a\n\n"),
        (b"id\nevent: x\ndata: a\nretry\n\n", b"event: x\ndata: a\n\n"),
    ],
)
def test_fields_that_clients_stumble_over(event: bytes, without: bytes) -> None:
    assert sse.has_fields(event)
    assert sse.without_fields(event) == without


@pytest.mark.parametrize(
    "event", [b"data: id: 1\n\n", b'data: {"id":"x"}\n\n', b"event: x\ndata: retry\n\n", b"data: a\n: id: 1\n\n"]
)
def test_other_events_have_none(event: bytes) -> None:
    assert not sse.has_fields(event)


def test_names_that_only_begin_so_stay() -> None:
    assert sse.without_fields(b"idle: 1\nid: 2\ndata: a\n\n") == b"idle: 1\ndata: a\n\n"


def test_write_event() -> None:
    assert sse.write_event(b"{}") == b"data: {}\n\n"
    assert sse.DONE == b"data: [DONE]\n\n"
