"""Scans a stream of typed events that ends with an event of a known type, such as `transcript.text.done`.

Events leave as they came. Exceptions: the event that ends the answer is held back until the call is settled, of a long
one the last piece; `[DONE]`, which not every upstream sends, and `id:` and `retry:` lines are dropped; errors do not
leave, because the relay decides what the client gets. Long events, such as an image in base64, are read on their way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any

from gateway.formats import sse
from gateway.formats.event_scan import EventScan
from gateway.formats.format import ScanInput
from gateway.formats.member_reader import MemberReader
from gateway.quota.pricing import total_usage
from gateway.records import Usage

_MATTERS = re.compile(rb'"(?:[a-z_.]+\.(?:done|completed)|error)"')
_WANTED = (("type",), ("usage",), ("error",), ("message",), ("code",))


class TypedScan(EventScan):
    """Follows one answer of `ScanInput.choices` parts, each with an event of one of the types `ends`.

    `read` gives the usage of such an event from its `usage`, or of one without.
    """

    TEXTS = re.compile(rb'"delta"\s*:\s*"((?:[^"\\]++|\\.)++)"')

    def __init__(self, asked: ScanInput, ends: Collection[str], read: Callable[[Any], Usage | None]) -> None:
        super().__init__(count_texts=asked.count_texts, clean=asked.clean, allows=asked.allows)
        self._ends = ends
        self._read = read
        self._left = asked.choices
        """Parts that have not ended."""
        self._last = b""
        """The newest event that ended a part, or the last piece of it."""
        self._reader: MemberReader | None = None
        """Of the long event that is going on."""
        self._has_ended = False
        """The upstream has ended the message behind a part that was whole."""

    @property
    def last(self) -> bytes:
        return self._last

    @property
    def is_complete(self) -> bool:
        """Whether all parts have come, or the upstream ended the message behind a whole part."""
        return self.is_done or self._has_ended

    def finish(self) -> bytes:
        rest = super().finish()
        if self._last and self.error is None:
            self._has_ended = self.is_usage_final = True
        return rest

    def _event(self, event: bytes) -> bytes:
        if self.is_alike(event):
            return event
        data = sse.data_of(event)
        if not data:
            return self._cleaned(event) if sse.is_comment(event) and not event.isspace() else b""
        if data.startswith(b"[DONE]"):
            return b""
        if sse.has_fields(event):
            event = sse.without_fields(event)
        if _MATTERS.search(data) is not None and (value := _parsed(data)) is not None:
            return self._matter(event, value.get("type"), value.get("usage"), value.get("error"), value)
        self.has_begun = True
        if texts := self.TEXTS.findall(data)[:1]:
            self._take_texts(texts)
            self._passed_with_text(event)
        return event

    def _matter(self, event: bytes, kind: Any, usage: Any, error: Any, value: dict[str, Any]) -> bytes:
        if kind == "error" or (error and kind not in self._ends):
            self.error = error if isinstance(error, dict) else {**value, "message": str(error or value.get("message"))}
            return b""
        self.has_begun = True
        if kind not in self._ends:
            return event
        before, self._last = self._last, event
        self._left -= 1
        self.is_done = self._left <= 0
        self._take_usage(usage)
        return before

    def _take_usage(self, report: Any) -> None:
        if (usage := self._read(report)) is None:
            return
        whole = total_usage([*([] if self.usage is None else [self.usage]), usage])._replace(parts=())
        if not self._allows(whole, self.delivered_tokens):
            self.excess = whole
            return
        self.usage = whole
        self.is_usage_final = self.is_done

    def _long_piece(self, piece: bytes) -> bytes:
        if self._reader is None:
            self._reader = MemberReader(_WANTED)
        reader = self._reader
        reader.feed(piece)
        if not sse.ends_event(piece):
            self.has_begun = True
            before, self._last = self._last, b""
            return before + piece
        self._reader = None
        members = {name: reader.get(name) for (name,) in _WANTED}
        if not reader.is_whole:
            return piece
        return self._matter(piece, members["type"], members["usage"], members["error"], members)

    def _forget_end(self) -> None:
        """Nothing to forget: a long event is an end only if all of its JSON came."""


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
