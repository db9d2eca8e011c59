"""Event boundaries in a stream of server-sent events, wherever the packets were cut.

An event ends with a blank line; lines end with LF, CRLF or a bare CR (WHATWG HTML, "event stream interpretation").
`EventSplitter` hands out whole events as the bytes they came in. An event that is longer than `LONG_EVENT` is handed
out in pieces as it comes, because nothing that has to be changed is that long, and holding it would cost memory.

The result never depends on how the bytes were cut, with one exception that has to be: an event that ends with a CR is
handed out at once, so the LF of a CRLF that was cut there is left to the next event. `EventScan` mends that.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any

LONG_EVENT = 65536
"""Bytes before its blank line that make an event a long one; no more of an unfinished event is held back."""

LONGEST_PARSED = 8_388_608
"""Bytes of an event that has to be parsed in one step, because it is translated: the largest pictures."""
MOST_PARTS = 100_000
"""Commas, objects, arrays and lines of such an event, which take a step of the parser each."""
_PARTS = (b",", b"{", b"[", b"\n", b"\r")

# A CRLF is one line end, never two. The first character is a set, which `re` looks for at full speed.
_BLANK_LINE = re.compile(rb"[\r\n](?:(?<=\r)\n)?+(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELD = re.compile(rb"(?:id|retry)[:\r\n]")
_LATER_FIELD = re.compile(rb"[\r\n](?:id|retry)[:\r\n]")
_FIELDS = (b"id", b"retry")
_KNOWN_FIELDS = (b"data:", b"event:", b"id:", b"retry:")
_LONGEST_FIELD = 6
_PARTS_OF_FIELDS = frozenset([field[:end] for field in _KNOWN_FIELDS for end in range(1, len(field))])
MARK = BOM_UTF8
"""The byte order mark, which may precede a stream."""
_LONGEST_END = 3
"""A blank line has at most four bytes: three may be there already before its last one comes."""


class EventSplitter:
    """Cuts bytes into events; one of more bytes than `longest` is a long one. `is_inside_long`: the last piece belongs
    to an event that has not ended."""

    def __init__(self, longest: int | None = None) -> None:
        self._longest = LONG_EVENT if longest is None else longest
        self._held = bytearray()
        self._searched = 0
        self._has_cr = False
        self.is_inside_long = False

    @property
    def held(self) -> int:
        """Bytes of an unfinished event that wait for its end."""
        return len(self._held)

    def split(self, data: bytes) -> list[tuple[bytes, bool]]:
        """Pairs of bytes and whether they are one whole event; if not, they are a piece of a long event."""
        text: bytes | bytearray = data
        if self._held:
            self._held += data
            text = self._held
        self._has_cr = self._has_cr or 0x0D in data
        found: list[tuple[bytes, bool]] = []
        start, at = 0, self._searched
        while (blank := self._blank_line(text, at)) is not None:
            content_end, at = blank
            is_long = self.is_inside_long or content_end - start > self._longest
            found.append((bytes(text[start:at]), not is_long))
            start = at
            self.is_inside_long = False
        self._hold(text, start)
        if self.is_inside_long or len(self._held) - _LONGEST_END >= self._longest:
            piece = bytes(self._held[:-_LONGEST_END])
            del self._held[:-_LONGEST_END]
            self._searched = 0
            self.is_inside_long = True
            if piece:
                found.append((piece, False))
        return found

    def rest(self) -> bytes:
        """The remaining bytes when the stream has ended: an event without its blank line, or nothing."""
        rest = bytes(self._held)
        self._held.clear()
        self._searched = 0
        self.is_inside_long = False
        return rest

    def _blank_line(self, text: bytes | bytearray, at: int) -> tuple[int, int] | None:
        if self._has_cr:
            match = _BLANK_LINE.search(text, at)
            return None if match is None else match.span()
        start = text.find(b"\n\n", at)
        return None if start < 0 else (start, start + 2)

    def _hold(self, text: bytes | bytearray, start: int) -> None:
        """Keep what no blank line has ended. A blank line may be cut: its beginning is looked at again."""
        if text is self._held:
            del self._held[:start]
        elif start < len(text):
            self._held += text[start:] if start else text
        self._searched = max(0, len(self._held) - _LONGEST_END)


def begins_stream(data: bytes) -> bool | None:
    """Whether an answer that begins with these bytes is a stream of events and not JSON; None: too few of them."""
    start = data.removeprefix(MARK).lstrip()[:_LONGEST_FIELD]
    if MARK.startswith(data) or not start or start in _PARTS_OF_FIELDS:
        return None
    return start.startswith((b":", *_KNOWN_FIELDS))


def without_space(data: bytes) -> bytes:
    """The beginning of an answer without the blank space in it, which upstreams send to keep a connection open."""
    mark = MARK if data.startswith(MARK) else b""
    return data if MARK.startswith(data) else mark + data.removeprefix(MARK).lstrip()


def without_mark(data: bytes) -> bytes:
    """The beginning of a plain answer, without a byte order mark before JSON, which parsers refuse (RFC 8259, 8.1)."""
    return data.removeprefix(MARK) if data[len(MARK) :].lstrip()[:1] in (b"{", b"[") else data


def ends_event(piece: bytes) -> bool:
    """Whether the blank line of its event is in this piece of a long event, which is then its last."""
    return _BLANK_LINE.search(piece, max(0, len(piece) - _LONGEST_END - 1)) is not None


def has_many_parts(event: bytes) -> bool:
    """Whether a long event would hold up other calls while it is parsed."""
    return sum(map(event.count, _PARTS)) > MOST_PARTS


def data_of(event: bytes) -> bytes | None:
    """The event's data, its lines joined by LF; None where it has none (comments, `id:`, `retry:`, a lone `event:`)."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and 0x0D not in event:
        return event[6:-2]  # as nearly all are
    lines = [line for line in _LINE_END.split(event) if line.startswith(b"data") and line[4:5] in (b":", b"")]
    if not lines:
        return None
    return b"\n".join(line[6:] if line[5:6] == b" " else line[5:] for line in lines)


def is_comment(event: bytes) -> bool:
    return all(line.startswith(b":") for line in _LINE_END.split(event) if line)


def without_fields(event: bytes) -> bytes:
    """The event without its `id:` and `retry:` lines, which make openai-python decode an empty event."""
    lines = [line for line in _LINE_END.split(event) if line and line.partition(b":")[0] not in _FIELDS]
    return b"\n".join(lines) + b"\n\n"


def has_fields(event: bytes) -> bool:
    return _FIELD.match(event) is not None or _LATER_FIELD.search(event) is not None


def write_event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def json_event(value: Mapping[str, Any]) -> bytes:
    """One event with this JSON, which is ASCII: halves of a surrogate pair in two pieces pass as they came."""
    return write_event(json.dumps(value, separators=(",", ":")).encode())


def typed_event(value: Mapping[str, Any]) -> bytes:
    """Formats a `json_event` with its type as the name of the event, as Responses and Messages require."""
    return b"event: %b\n%b" % (value["type"].encode(), json_event(value))


DONE = write_event(b"[DONE]")
KEEPALIVE = b": keepalive\n\n"


def queued(position: int) -> bytes:
    """A comment for a client whose call waits for room, at this position from 1."""
    return b": queued, position %d\n\n" % position
