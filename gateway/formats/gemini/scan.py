"""Scans a streamed answer of Gemini's API.

The stream has no event that ends it, and upstreams name a `finishReason` on the last chunk, on each, or on one before
the last (one-api#1477): it is read to the end of its message, or to a relay's `[DONE]`. Where it breaks off, it is
complete if each candidate has a reason and no text came behind the last one. Every chunk has the usage so far, so each
is parsed. Nothing but chunks leaves: google-genai fails on a comment, on `event:` lines and on `[DONE]`
(`_api_client.py`, `HttpResponse`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.formats.event_scan import EventScan

from . import usage as gemini_usage
from .reader import GeminiReader


class GeminiScan(EventScan):
    """Follows one streamed answer."""

    READER = GeminiReader
    TEXTS = gemini_usage.TEXT
    THINKS = re.compile(rb'"thought"\s*:\s*true')
    HAS_COMMENTS = False

    reader: GeminiReader

    def _has_all(self) -> bool:
        reader = self.reader
        return reader.is_blocked or (bool(reader.finished) and reader.begun <= reader.finished)

    def _ends_with_done(self) -> bool:
        return self._has_all()

    def _last(self) -> bytes:
        """Nothing: the end of the message is the end."""
        return b""

    def is_alike(self, data: bytes) -> bool:
        """Never: each chunk has its own usage."""
        return False

    def _shown(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        return event if _is_plain(event) else _chunk(data)

    def _unread(self, event: bytes, data: bytes) -> bytes:
        return self._cleaned(_chunk(data))


def _is_plain(event: bytes) -> bool:
    """Whether the event is one line of data, as google-genai reads it."""
    return event.startswith(b"data: ") and len(event.splitlines()) == 2 and event.endswith(b"\n")


def _chunk(data: bytes) -> bytes:
    return b"data: " + b" ".join(data.splitlines()) + b"\r\n\r\n"
