"""Scans a stream of typed events that ends with an event of a known type, such as `transcript.text.done`.

Events leave as they came. Exceptions: the event that ends the answer is held back until the call is settled, of a long
one the last piece; `[DONE]`, which not every upstream sends, and `id:` and `retry:` lines are dropped; errors do not
leave, because the relay decides what the client gets. Long events, such as an image in base64, are read on their way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gateway.formats import sse
from gateway.formats.event_scan import EventScan
from gateway.formats.format import ScanInput
from gateway.formats.member_reader import MemberReader
from gateway.formats.reader import AnswerReader
from gateway.quota.pricing import total_usage
from gateway.records import Usage

ReadsUsage = Callable[[Any], Usage | None]
"""The usage of an event that ends a part, by its `usage`, or of one without."""


class TypedReader(AnswerReader):
    """Follows an answer of `parts`, each of which ends with an event of one of the types `ends`."""

    WANTED = (("type",), ("usage",), ("error",), ("message",), ("code",))

    def __init__(self, parts: int, ends: Collection[str], read: ReadsUsage) -> None:
        self.left = parts
        self._ends = ends
        self._read = read

    def is_end(self, value: Mapping[str, Any]) -> bool:
        return value.get("type") in self._ends

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        """Returns the usage of the part that the event ends, not that of all parts."""
        error = value.get("error")
        if self.is_end(value):
            self.left -= 1
            return self._read(value.get("usage"))
        if value.get("type") == "error" or error:
            is_object = isinstance(error, dict)
            self.take_error(error if is_object else {**value, "message": str(error or value.get("message"))})
        return None


class TypedScan(EventScan):
    TEXTS = re.compile(rb'"delta"\s*:\s*"((?:[^"\\]++|\\.)++)"')
    MATTERS = re.compile(rb'"(?:[a-z_.]+\.(?:done|completed)|error)"')

    KEEPS_HIGHEST = False

    reader: TypedReader

    def __init__(self, asked: ScanInput, ends: Collection[str], read: ReadsUsage) -> None:
        super().__init__(asked, TypedReader(asked.choices, ends, read))

    def _has_all(self) -> bool:
        """Whether all parts have come, or the upstream ended the message behind a whole part."""
        return self.reader.left <= 0 or (self._has_ended and bool(self._end))

    def _object(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        if not self._note(value) or not self.reader.is_end(value):
            return b"" if self.error is not None else event
        before, self._end = self._end, event
        self.is_done = self.reader.left <= 0
        return before

    def _take_report(self, report: Usage) -> None:
        """Reports count one part each."""
        known = [] if self.usage is None else [self.usage]
        super()._take_report(total_usage([*known, report])._replace(parts=()))

    def _long_piece(self, piece: bytes) -> bytes:
        if self._long is None:
            self._long = MemberReader(TypedReader.WANTED)
        self._long.feed(piece)
        if not sse.ends_event(piece):
            self.has_begun = True
            before, self._end = self._end, b""
            return before + piece
        reader, self._long = self._long, None
        return self._object(piece, b"", reader.value()) if reader.is_whole else piece
