"""The stream scanner against a slow and simple one, on unusual bytes split at any place.

The real scanner buffers incomplete events, searches with regular expressions and reuses the parse of similar events.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.formats import sse
from gateway.formats.format import ScanInput
from gateway.formats.openai.reader import StreamScan
from gateway.formats.sse import EventSplitter
from tests.amounts import amount

from .slow_scan import Slow, assert_passed

EXAMPLES = amount(250, 50)
pytestmark = pytest.mark.shortened

# ----------------------------------------------------------------------------------------------------------- texts

ENDS = [b"\n", b"\r\n", b"\r"]
WORDS = ["a", "", " world", 'say "x"', "back\\slash", "é☃", "two\nlines", "finish_reason", '"usage": 1', "{}[]:,"]


def chunk_of(word: str, finish: str | None, index: int, more: dict[str, Any]) -> bytes:
    choice = {"index": index, "delta": {"content": word}, "finish_reason": finish}
    return json.dumps({"id": "c", "model": "m", "choices": [choice], **more}).encode()


USAGES: list[Any] = [None, {"prompt_tokens": 3, "completion_tokens": 4}, {}, False, "x"]
CHUNKS = st.builds(
    chunk_of,
    st.sampled_from(WORDS),
    st.sampled_from([None, None, None, "", "stop"]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([{}, {}, {"obfuscation": "x"}, {"obfuscation": "yz1"}, *({"usage": usage} for usage in USAGES)]),
)
USAGE_CHUNKS = st.sampled_from(USAGES).map(lambda usage: json.dumps({"choices": [], "usage": usage}).encode())
ERRORS = st.sampled_from([b'{"error": {"message": "no"}}', b'{"error": "no"}', b'{"error": null}', b'{"error": {'])
DATA = CHUNKS | CHUNKS | CHUNKS | USAGE_CHUNKS | ERRORS | st.sampled_from([b"[DONE]", b"", b"{", b"[1]", b'{"x":\r1}'])
LINES = st.one_of(
    DATA.map(lambda data: b"data: " + data),
    DATA.map(lambda data: b"data:" + data),
    st.sampled_from([b": c", b":", b"id: 1", b"id", b"idle: 1", b"retry: 5", b"event: x", b"data", b"\0\xff", b""]),
)
MESS = st.lists(st.tuples(LINES, st.sampled_from(ENDS)).map(b"".join) | st.sampled_from(ENDS), max_size=24).map(
    b"".join
)


def tidy(end: bytes) -> st.SearchStrategy[bytes]:
    """Well-formed events with one kind of line end."""
    return st.lists(DATA.map(lambda data: b"data: " + data + end + end), max_size=12).map(b"".join)


TEXTS = MESS | tidy(b"\n") | tidy(b"\n") | st.sampled_from(ENDS[1:]).flatmap(tidy) | st.binary(max_size=200)
CUTS = st.lists(st.integers(0, 2000), max_size=12) | st.integers(1, 40).map(lambda step: list(range(0, 4000, step)))
LONG = st.sampled_from([20, 60, 150, 65536])


def pieces_of(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[a:b] for a, b in itertools.pairwise(places)]


NAMES = ("usage", "is_usage_final", "error", "is_done", "is_over", "model", "has_reasoned")


def assert_agree(scan: StreamScan, slow: Slow) -> None:
    """Both found the same facts in a stream."""
    assert scan.reader.finished == slow.finished
    assert {name: getattr(scan, name) for name in NAMES} == {name: getattr(slow, name) for name in NAMES}
    assert scan.text_events() == slow.text_events
    if not slow.is_uncountable:
        assert scan.delivered_tokens() == -(-slow.quarters // 4)


def scanned(pieces: list[bytes], choices: int, *, shows: bool) -> tuple[bytes, StreamScan]:
    """The bytes passed on of these packets, scanned like the relay does."""
    scan = StreamScan(ScanInput(choices=choices, shows_usage=shows))
    passed = [piece if scan.is_at_start and scan.is_alike(piece) else scan.feed(piece)[0] for piece in pieces]
    return b"".join([*passed, scan.finish()]), scan


# ------------------------------------------------------------------------------------------------------------ tests


@settings(max_examples=EXAMPLES)
@given(TEXTS, CUTS, LONG, st.booleans(), st.sampled_from([1, 2]))
@example(b"id: 1\r\n\r\ndata: x\r\n\r\n", [8, 9, 10], 20, True, 1)
@example(b'data: {"choices": [{"finish_reason": "stop"}], "x": "' + b"y" * 100, [], 20, True, 1)
@example(b'data: {"choices": [], "name": ""}\r\n\r\n: c\r\n\r\n', [26, 36], 20, True, 1)
def test_scan_agrees_with_the_slow_one(text: bytes, cuts: list[int], long: int, shows: bool, choices: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "LONG_EVENT", long)
        slow = Slow(choices, shows, long)
        slow.read(text)
        for pieces in ([text], pieces_of(text, cuts)):
            passed, scan = scanned(pieces, choices, shows=shows)
            if not slow.is_uncertain:
                assert_passed(passed, slow.out)
                assert_agree(scan, slow)
            assert not scan.is_inside_event


@settings(max_examples=EXAMPLES)
@given(TEXTS, CUTS, LONG)
def test_splitter_loses_nothing_and_holds_little(text: bytes, cuts: list[int], long: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "LONG_EVENT", long)
        splitter = EventSplitter()
        found = []
        for piece in pieces_of(text, cuts):
            found += splitter.split(piece)
            assert splitter.held <= long + 2
        assert b"".join(event for event, _ in found) + splitter.rest() == text
        assert (splitter.held, splitter.is_inside_long) == (0, False)


# Events that differ in their text only, and events that only look so: their text or padding contains the closing quote
# and further members.
TEXT_BITS = [
    b"a", b" world", b"\\n", b'\\"', b"\\\\", b"\\", b'"', b"\n", b"\r", b"\n\n",
    b'","finish_reason":"stop","x":"', b'"},"finish_reason":null}],"usage":{"prompt_tokens":1},"x":[{"y":{"content":"',
    b'"},"finish_reason":null},{"index":1,"delta":{"content":"',
]  # fmt: skip
PADDING_BITS = [
    b"x",
    b"yz1",
    b'","usage":{"completion_tokens":9},"x":"',
    b'"}\n\ndata: [DONE]\n\ndata: {"x":"',
    b"\\",
    b"\r",
]


def bits(some: list[bytes]) -> st.SearchStrategy[bytes]:
    usual = st.sampled_from(some[:2])
    return usual | usual | st.lists(st.sampled_from(some), max_size=3).map(b"".join)


def alike(text: bytes, padding: bytes | None) -> bytes:
    end = b"" if padding is None else b',"obfuscation":"' + padding + b'"'
    return b'data: {"choices":[{"index":0,"delta":{"content":"' + text + b'"},"finish_reason":null}]' + end + b"}\n\n"


TWO_TEXTS = bits(TEXT_BITS).map(lambda text: text + TEXT_BITS[-1] + b"and another")
ALIKE = st.builds(alike, bits(TEXT_BITS) | TWO_TEXTS, bits(PADDING_BITS) | st.none() | st.none())


@settings(max_examples=EXAMPLES)
@given(st.lists(ALIKE, min_size=2, max_size=12), CUTS, st.booleans())
def test_what_seems_to_be_like_the_one_before(events: list[bytes], cuts: list[int], shows: bool) -> None:
    slow = Slow(2, shows, sse.LONG_EVENT)
    slow.read(b"".join(events))
    for pieces in (events, pieces_of(b"".join(events), cuts)):
        passed, scan = scanned(pieces, 2, shows=shows)
        assert_passed(passed, slow.out)
        assert_agree(scan, slow)
