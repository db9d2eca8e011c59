"""Lines of request heads, kept because a client sends the same headers with most of its calls."""

from __future__ import annotations

import re

MAX_KEPT = 256
"""For one upstream at most two megabytes, because a head of a client is at most 8 KB a line."""

_OF_ONE_CALL = frozenset({"traceparent", "tracestate", "x-codex-turn-state", "x-codex-turn-metadata"})
_UNSAFE = re.compile(r"[\r\n\0]+")

Headers = tuple[tuple[str, str], ...]


class HeadLines(dict[Headers, str]):
    """The lines of headers, one for each: `lines[headers]`.

    Keeps no headers of one call alone: those of a trace, and the boundary of a multipart form.
    """

    def __missing__(self, headers: Headers) -> str:
        text = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if not text.count("\n") == text.count("\r") == len(headers) or "\0" in text:
            text = "".join([f"{_UNSAFE.sub(' ', name)}: {_UNSAFE.sub(' ', value)}\r\n" for name, value in headers])
        if not any(name.lower() in _OF_ONE_CALL or value.startswith("multipart/") for name, value in headers):
            if len(self) >= MAX_KEPT:
                self.clear()
            self[headers] = text
        return text
