"""Claude's events at Vertex AI without `vertex_event`, which Anthropic's own API does not have and its clients need not
know: the AI SDK ends an answer there (vercel/ai#11309)."""

from __future__ import annotations

import re

_END = re.compile(rb"\r?\n\r?\n")
_OWN = re.compile(rb"event: ?vertex_event\r?\n|data: ?\{\"type\": ?\"vertex_event\"")
_DECIDES = len(b'data: {"type": "vertex_event"')
"""The first bytes of an event that show which one it is."""
_LONGEST_END = 4


class VertexEvents:
    """Reads one answer. Every other byte stays as it came. Only the beginning of an event is held, and what may be its
    end: the work of a piece does not grow with the event that it belongs to."""

    def __init__(self) -> None:
        self._held = b""
        self._is_own: bool | None = None
        """Whether the present event is left out; None: it has not shown that yet."""

    def read(self, data: bytes) -> bytes:
        """The bytes that go on, of these and of those that were held."""
        text, at, kept = self._held + data, 0, []
        while at < len(text):
            end = _END.search(text, at)
            if self._is_own is None:
                if end is None and len(text) - at < _DECIDES:
                    break
                self._is_own = _OWN.match(text, at) is not None
            until = _beginning_of_end(text, at) if end is None else end.end()
            if not self._is_own:
                kept.append(text[at:until])
            at = until
            if end is None:
                break
            self._is_own = None
        self._held = text[at:]
        return b"".join(kept)

    def rest(self) -> bytes:
        """The bytes that are left at the end of the answer."""
        rest, self._held = self._held, b""
        is_own = self._is_own if self._is_own is not None else _OWN.match(rest) is not None
        return b"" if is_own else rest


def _beginning_of_end(text: bytes, at: int) -> int:
    """Where the line breaks begin with which a text ends that has no whole end of an event behind `at`."""
    tail = text[max(at, len(text) - _LONGEST_END + 1) :]
    return len(text) - len(tail) + len(tail.rstrip(b"\r\n"))
