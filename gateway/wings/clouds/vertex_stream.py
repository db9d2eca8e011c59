"""Claude's events at Vertex AI without `vertex_event`, which Anthropic's own API does not have and its clients need not
know: the AI SDK ends an answer there (vercel/ai#11309)."""

from __future__ import annotations

import re

_END = re.compile(rb"\r?\n\r?\n")
_OWN = re.compile(rb"event: ?vertex_event\r?\n|data: ?\{\"type\": ?\"vertex_event\"")


class VertexEvents:
    """Reads one answer. Every other byte stays as it came; what has no end yet is held."""

    def __init__(self) -> None:
        self._held = b""

    def read(self, data: bytes) -> bytes:
        """The events that these bytes complete."""
        text, at, kept = self._held + data, 0, []
        for end in _END.finditer(text):
            if _OWN.match(text, at) is None:
                kept.append(text[at : end.end()])
            at = end.end()
        self._held = text[at:]
        return b"".join(kept)

    def rest(self) -> bytes:
        """The bytes that are left at the end of the answer."""
        rest, self._held = self._held, b""
        return rest
