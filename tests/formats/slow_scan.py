"""A scanner of streams that is slow and obviously right: the oracle of the real one.

It sees the whole text at once, looks for line ends one after the other, and parses every event as JSON. Of `gateway` it
knows nothing but the type `Usage`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from gateway.records import Usage


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
    reported_at: int = -1
    seen: int = 0
    """Bytes of text."""
    is_uncertain: bool = False
    """A long event is no single line of JSON: its facts are not defined."""
    text_events: int = 0
    has_reasoned: bool = False
    quarters: int = 0
    """Of tokens."""
    is_uncountable: bool = False
    """A long event is counted in the pieces in which it came, and what is no JSON with all that is counted with it."""

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
        elif (data := data_of(ended)) is None or data.startswith(b"[DONE]") or parsed(data) is not Ellipsis:
            self.event(ended)

    @property
    def is_over(self) -> bool:
        return self.is_done or self.error is not None

    @property
    def is_usage_final(self) -> bool:
        return self.usage is not None and self.reported_at == self.seen and len(self.finished) >= self.choices

    def long(self, event: bytes) -> None:
        self.out.append(event)
        self.is_uncountable = True
        self.seen += len(event)
        value = parsed(event.removeprefix(b"data:")) if re.fullmatch(rb"data: ?\{[^\r\n]*[\r\n]+", event) else ...
        if not isinstance(value, dict):
            self.is_uncertain = True
            return
        self.facts(value)

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
        found = re.findall(TEXT, data)
        for text in found:
            if (plain := parsed(b'"' + text + b'"')) is ...:
                self.is_uncountable = True
            else:
                self.quarters += quarters_of(plain)
        self.text_events += bool(found)
        self.seen += sum(len(text) + 1 for text in found)
        self.has_reasoned |= re.search(rb'"reasoning(_content)?"\s*:\s*"[^"]', data) is not None
        chunk = parsed(data)
        self.chunk(chunk, passed) if isinstance(chunk, dict) else self.out.append(passed)

    def facts(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """Take the facts of a chunk; return its choices."""
        if error := chunk.get("error"):
            self.error = error if isinstance(error, dict) else {"message": str(error)}
            return []
        if self.model is None and isinstance(chunk.get("model"), str) and chunk["model"]:
            self.model = chunk["model"]
        listed = chunk.get("choices")
        choices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        for choice in choices:
            index, reason = choice.get("index"), choice.get("finish_reason")
            if isinstance(reason, str) and reason and (index is None or isinstance(index, int)):
                unnamed = 0 if 0 not in self.finished else -1 - len(self.finished)
                self.finished.add(unnamed if index is None else index)
        received = chunk.get("usage")
        if isinstance(received, dict) and ("prompt_tokens" in received or "completion_tokens" in received):
            before, given = (
                self.usage or Usage(),
                (received.get("prompt_tokens", 0), received.get("completion_tokens", 0)),
            )
            if given[1] >= before.completion_tokens:
                self.reported_at = self.seen
            prompt, completion = max(given[0], before.prompt_tokens), max(given[1], before.completion_tokens)
            self.usage = Usage(prompt, completion, source="reported")
        return choices

    def chunk(self, chunk: dict[str, Any], passed: bytes) -> None:
        choices = self.facts(chunk)
        if self.error is not None:
            return
        received = chunk.get("usage")
        if received is None or self.shows_usage:
            self.out.append(passed)
        elif any(value for choice in choices for name, value in choice.items() if name != "index"):
            self.out.append(Rewritten(chunk | {"usage": None}))


TEXT = rb'"(?:content|text|arguments|reasoning_content|reasoning|refusal|name|input)"\s*:\s*"((?:[^"\\]|\\.)+)"'

# What a piece of text counts, in quarters of a token: the rule of gateway/formats/token_rule.py, piece by piece.
PIECES: list[tuple[str, int]] = [
    (r"[A-Za-z]{1,3}", 4), (r"(?<=[a-z])(?=[A-Z])", 4), (r"[0-9]{1,3}", 4), (r"(?<=[0-9])(?=[A-Za-z])", 4),
    (r" (?=[0-9\0]|\Z)", 4), (r"  +", 4), (r"[!-/:-@\[-`{-~]", 4), (r"[\x01-\x1f\x7f]{1,2}", 4),
    (r"[\x80-\u037f]", 5), (r"[\u0380-\u03ff]", 5), (r"[\u0400-\u04ff]", 3), (r"[\u0500-\u05bf]", 9),
    (r"[\u05c0-\u05ff]", 6), (r"[\u0600-\u07ff]", 4), (r"[\u0800-\u0fff]", 7), (r"[\u1000-\u1fff]", 9),
    (r"[\u2000-\u2fff]", 6), (r"[\u3000-\u3fff]", 5), (r"[\u4000-\u9fff]", 6), (r"[\ua000-\udfff]", 6),
    (r"[\ue000-\uffff]", 6), (r"[\U00010000-\U0010ffff]", 14),
]  # fmt: skip


def quarters_of(text: str) -> int:
    """Quarters of a token, each piece found by itself."""
    return sum(weight * len(re.findall(pattern, text)) for pattern, weight in PIECES)


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


def assert_passed(passed: bytes, expected: list[bytes | Rewritten]) -> None:
    """Whether these bytes are what should have left, to the byte but where an event had to be changed, and but for a
    last LF that was cut from its CR."""
    for place, item in enumerate(expected, 1):
        if isinstance(item, bytes):
            if place == len(expected) and item.endswith(b"\r\n") and passed == item[:-1]:
                return
            assert passed[: len(item)] == item
            passed = passed[len(item) :]
        else:
            event, blank, passed = passed.partition(b"\n\n")
            assert blank
            assert json.loads(event.removeprefix(b"data: ")) == item.value
    assert passed == b""
