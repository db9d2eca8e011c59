"""The scanner against a slow one that is obviously right, on bytes that nobody would send, cut anywhere.

The slow one sees the whole text at once, looks for line ends one after the other, and parses every event as JSON,
where the real one holds what is unfinished, searches with regular expressions and recognises what it has seen before.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.records import Usage
from gateway.rules import sse
from gateway.rules.sse import EventSplitter
from gateway.rules.stream import StreamScan

EXAMPLES = 250

# ---------------------------------------------------------------------------------------------------- the slow scanner


@dataclass
class Rewritten:
    """An event that leaves as one with this JSON."""

    value: Any


@dataclass
class Slow:
    """What a stream says, decided event by event when all of it is there."""

    choices: int
    shows_usage: bool
    long_event: int
    out: list[bytes | Rewritten] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    usage: Usage | None = None
    error: dict[str, Any] | None = None
    is_done: bool = False
    model: str | None = None
    text_bytes: int = 0
    text_events: int = 0

    def read(self, text: bytes) -> None:
        events, rest = split(text)
        for event, content_size in events:
            if not self.is_over:
                self.event(event) if content_size <= self.long_event else self.long(event)
        ended = rest.rstrip(b"\r\n") + b"\n\n"
        if self.is_over or not rest:
            pass
        elif len(rest) > self.long_event + 2:
            self.long(ended)
            if not ended.endswith(b"}\n\n"):
                self.finished = set()
        elif (data := data_of(ended)) is None or data.startswith(b"[DONE]") or parsed(data) is not Ellipsis:
            self.event(ended)

    @property
    def is_over(self) -> bool:
        return self.is_done or self.error is not None

    def finish(self, index: int) -> None:
        if len(self.finished) < self.choices:
            self.finished.add(index)

    def long(self, event: bytes) -> None:
        self.out.append(event)
        self.text_bytes += len(event.replace(b"\r", b"").replace(b"\n", b""))
        for _ in re.findall(rb'"finish_reason"\s{0,9}:\s{0,9}"[^"]', event):
            self.finish(-1 - len(self.finished))

    def event(self, event: bytes) -> None:
        lines = [line for line in lines_of(event) if line]
        data = data_of(event)
        if not data:
            if lines and all(line.startswith(b":") for line in lines):
                self.out.append(event)
            return
        if data.startswith(b"[DONE]"):
            self.is_done = True
            return
        kept = [line for line in lines if line.split(b":")[0] not in (b"id", b"retry")]
        passed = event if kept == lines else b"\n".join(kept) + b"\n\n"
        words = rb'"(?:content|text|arguments|reasoning_content|reasoning|refusal)"\s*:\s*"((?:[^"\\]|\\.)+)"'
        size = sum(len(text) for text in re.findall(words, data))
        self.text_bytes += size
        self.text_events += size > 0
        chunk = parsed(data)
        self.chunk(chunk, passed) if isinstance(chunk, dict) else self.out.append(passed)

    def chunk(self, chunk: dict[str, Any], passed: bytes) -> None:
        if error := chunk.get("error"):
            self.error = error if isinstance(error, dict) else {"message": str(error)}
            return
        if self.model is None and isinstance(chunk.get("model"), str):
            self.model = chunk["model"]
        listed = chunk.get("choices")
        choices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        for choice in choices:
            index, reason = choice.get("index") or 0, choice.get("finish_reason")
            if isinstance(reason, str) and reason and isinstance(index, int):
                self.finish(index)
        told = chunk.get("usage")
        if isinstance(told, dict) and ("prompt_tokens" in told or "completion_tokens" in told):
            self.usage = Usage(told.get("prompt_tokens", 0), told.get("completion_tokens", 0), source="reported")
        if told is None or self.shows_usage:
            self.out.append(passed)
        elif any(value for choice in choices for name, value in choice.items() if name != "index"):
            self.out.append(Rewritten(chunk | {"usage": None}))


def split(text: bytes) -> tuple[list[tuple[bytes, int]], bytes]:
    """Events, with the size of what stands before their blank line, and the rest. An event ends with two line ends."""
    events, start = [], 0
    before: tuple[int, int] | None = None
    for match in re.finditer(rb"\r\n|\n|\r", text):
        if before is not None and before[1] == match.start():
            events.append((text[start : match.end()], before[0] - start))
            start, before = match.end(), None
        else:
            before = match.span()
    return events, text[start:]


def lines_of(event: bytes) -> list[bytes]:
    return event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


def data_of(event: bytes) -> bytes | None:
    """As the WHATWG specification says: the values of all `data` fields, one space taken off, joined by LF."""
    values = []
    for line in lines_of(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return b"\n".join(values) if values else None


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return ...


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
    """Events as an upstream sends them, with one kind of line end."""
    return st.lists(DATA.map(lambda data: b"data: " + data + end + end), max_size=12).map(b"".join)


TEXTS = MESS | tidy(b"\n") | tidy(b"\n") | st.sampled_from(ENDS[1:]).flatmap(tidy) | st.binary(max_size=200)
CUTS = st.lists(st.integers(0, 2000), max_size=12) | st.integers(1, 40).map(lambda step: list(range(0, 4000, step)))
LONG = st.sampled_from([20, 60, 150, 65536])


def pieces_of(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def facts(scan: StreamScan | Slow) -> dict[str, Any]:
    names = ("finished", "usage", "error", "is_done", "is_over", "model", "text_bytes", "text_events")
    return {name: getattr(scan, name) for name in names}


def assert_passed(passed: bytes, expected: list[bytes | Rewritten]) -> None:
    """Whether these bytes are what should have left, to the byte but where an event had to be changed."""
    for item in expected:
        if isinstance(item, bytes):
            assert passed[: len(item)] == item
            passed = passed[len(item) :]
        else:
            event, blank, passed = passed.partition(b"\n\n")
            assert blank
            assert json.loads(event.removeprefix(b"data: ")) == item.value
    assert passed == b""


def scanned(pieces: list[bytes], choices: int, *, shows: bool) -> tuple[bytes, StreamScan]:
    scan = StreamScan(choices=choices, shows_usage=shows)
    passed = [scan.feed(piece)[0] for piece in pieces]
    return b"".join([*passed, scan.finish()]), scan


# ------------------------------------------------------------------------------------------------------------ tests


@settings(max_examples=EXAMPLES)
@given(TEXTS, CUTS, LONG, st.booleans(), st.sampled_from([1, 2]))
@example(b"id: 1\r\n\r\ndata: x\r\n\r\n", [8, 9, 10], 20, True, 1)
@example(b'data: {"choices": [{"finish_reason": "stop"}], "x": "' + b"y" * 100, [], 20, True, 1)
def test_scan_agrees_with_the_slow_one(text: bytes, cuts: list[int], long: int, shows: bool, choices: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "LONG_EVENT", long)
        slow = Slow(choices, shows, long)
        slow.read(text)
        for pieces in ([text], pieces_of(text, cuts)):
            passed, scan = scanned(pieces, choices, shows=shows)
            assert_passed(passed, slow.out)
            assert facts(scan) == facts(slow)
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


# Events that differ in their text alone, and events that only seem so: what stands between the quotes of a text or of
# the padding closes them, and says something of its own.
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
        assert facts(scan) == facts(slow)
