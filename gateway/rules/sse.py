"""Event boundaries in a stream of server-sent events, wherever the packets were cut.

An event ends with a blank line; lines end with LF, CRLF or a bare CR (WHATWG HTML, "event stream interpretation").
`EventSplitter` hands out whole events as the bytes they came in. An event that is longer than `LONG_EVENT` is handed
out in pieces as it comes, because nothing that has to be changed is that long, and holding it would cost memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONG_EVENT = 65536
"""Bytes of an unfinished event that are held back at most."""

# Atomic groups: without them, CRLF would also be read as two line ends, and so as a blank line.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LATER_FIELD = re.compile(rb"[\r\n](?:id|retry)[:\r\n]")
_FIELDS = (b"id", b"retry")


class EventSplitter:
    """Cuts bytes into events. `is_inside_long` says that the last piece belongs to an event that is still going on."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0
        self.is_inside_long = False

    @property
    def held(self) -> int:
        """Bytes of an unfinished event that wait for its end."""
        return len(self._held)

    def split(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield (bytes, whether they are one whole event). What is not whole is a piece of a long event."""
        held = self._held
        held += data
        start = 0
        while (match := _BLANK_LINE.search(held, max(start, self._searched))) is not None:
            end = match.end()
            event = bytes(held[start:end])
            start = self._searched = end
            yield event, not self.is_inside_long
            self.is_inside_long = False
        del held[:start]
        # A blank line may be cut in the middle: look again at the last line end.
        self._searched = max(0, len(held) - 3)
        if len(held) - 3 > LONG_EVENT:
            piece = bytes(held[: self._searched])
            del held[: self._searched]
            self._searched = 0
            self.is_inside_long = True
            yield piece, False

    def rest(self) -> bytes:
        """What is left when the stream has ended: an event without its blank line, or nothing."""
        rest = bytes(self._held)
        self._held.clear()
        self._searched = 0
        return rest


def data_of(event: bytes) -> bytes | None:
    """The event's data, its lines joined by LF; None where it has none (comments, `id:`, `retry:`, a lone `event:`)."""
    lines = [line for line in _LINE_END.split(event) if line.startswith(b"data") and line[4:5] in (b":", b"")]
    if not lines:
        return None
    return b"\n".join(line[6:] if line[5:6] == b" " else line[5:] for line in lines)


def is_comment(event: bytes) -> bool:
    """Whether the event is nothing but comment lines."""
    return all(line.startswith(b":") for line in _LINE_END.split(event) if line)


def without_fields(event: bytes) -> bytes:
    """The event without its `id:` and `retry:` lines, which make openai-python decode an empty event."""
    lines = [line for line in _LINE_END.split(event) if line and line.partition(b":")[0] not in _FIELDS]
    return b"\n".join(lines) + b"\n\n"


def has_fields(event: bytes) -> bool:
    """Whether the event may carry an `id:` or `retry:` line."""
    return event.startswith(_FIELDS) or _LATER_FIELD.search(event) is not None


def write_event(data: bytes) -> bytes:
    """One event with this data."""
    return b"data: " + data + b"\n\n"


DONE = write_event(b"[DONE]")
