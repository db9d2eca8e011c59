"""A streamed answer of an upstream in another format than the client's, scanned and translated.

The scan of the upstream's format follows the stream, and finds usage, end and errors as in an answer that is not
translated, so it is charged by the same rules. The events that it passes on are translated one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from gateway.formats import sse
from gateway.formats.format import Scan, Unfit

_ENDS = re.compile(rb"(?:\r\n|\n|\r)(?:\r\n|\n|\r)\Z")


class Translator(Protocol):
    """Makes the client's events from the upstream's, parsed. Raises `Unfit` for what cannot be translated."""

    def feed(self, event: Mapping[str, Any], /) -> bytes:
        """Take one event."""

    def finish(self, *, completion_tokens: int) -> bytes:
        """Call at the end of a complete answer; the number is an estimate, for an upstream that reports no usage."""


class TranslatedScan:
    """A `Scan` for the client's side. `feed` and `finish` raise `Unfit`."""

    def __init__(self, inner: Scan, translator: Translator, max_bytes: int) -> None:
        self.inner = inner
        self.translator = translator
        self._max_bytes = max_bytes
        self._bytes = 0
        self._splitter = sse.EventSplitter()
        self._long = bytearray()
        self._last: bytes | None = None
        self._is_alive = False
        self._is_unfit = False
        self.is_at_start = False
        self._take_facts()

    def _take_facts(self) -> None:
        inner = self.inner
        self.usage, self.excess, self.is_usage_final = inner.usage, inner.excess, inner.is_usage_final
        self.error, self.is_done, self.model = inner.error, inner.is_done, inner.model
        self.has_reasoned, self.has_begun = inner.has_reasoned, inner.has_begun

    @property
    def is_over(self) -> bool:
        """Whether no further bytes of this stream may be passed on."""
        return self.inner.is_over

    @property
    def is_inside_event(self) -> bool:
        """Only whole events are passed on."""
        return False

    @property
    def is_between_events(self) -> bool:
        """Whether the bytes so far end with a complete event."""
        return self.inner.is_between_events

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete, and could be translated."""
        return self.inner.is_complete and not self._is_unfit

    @property
    def has_text(self) -> bool:
        """Whether any text arrived. Does not count tokens."""
        return self.inner.has_text

    @property
    def last(self) -> bytes:
        """The events that end the answer."""
        self._end()
        return self._last or b""

    def is_alike(self, data: bytes) -> bool:
        """Never: every event is translated."""
        return False

    def is_sign_of_life(self, passed: bytes) -> bool:
        """Whether the last bytes of the upstream show that an answer is being generated."""
        return self._is_alive

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Take bytes from the upstream; return what may go to the client now, and `is_over`."""
        passed, is_over = self.inner.feed(data)
        shown = self._translate(passed)
        if is_over and self.inner.is_complete and self.inner.error is None:
            self._end()
        return shown, is_over

    def finish(self) -> bytes:
        """Call at the end of the upstream's stream: returns the last bytes for the client."""
        shown = self._translate(self.inner.finish())
        if self.inner.is_complete and self.inner.error is None:
            self._end()
        return shown

    def text_events(self) -> int:
        """The number of events with text."""
        return self.inner.text_events()

    def delivered_tokens(self) -> int:
        """The number of tokens of text."""
        return self.inner.delivered_tokens()

    def _translate(self, passed: bytes) -> bytes:
        self._take_facts()
        self._is_alive = bool(passed) and self.inner.is_sign_of_life(passed)
        self._bytes += len(passed)
        try:
            if self._bytes > self._max_bytes:
                raise Unfit("a stream that is too long to be translated")
            shown = [self._event(piece) for piece in self._whole_events(passed)]
        except Unfit:
            self._is_unfit = True
            raise
        return b"".join(shown)

    def _whole_events(self, data: bytes) -> list[bytes]:
        events: list[bytes] = []
        for piece, is_whole in self._splitter.split(data):
            if is_whole:
                events.append(piece)
                continue
            self._long += piece
            if _ENDS.search(self._long):
                events.append(bytes(self._long))
                self._long.clear()
        return events

    def _event(self, event: bytes) -> bytes:
        data = sse.data_of(event)
        if not data:
            return event if sse.is_comment(event) and not event.isspace() else b""
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise Unfit("an event that cannot be read")
        return self.translator.feed(parsed)

    def _end(self) -> None:
        if self._last is not None:
            return
        estimate = self.inner.delivered_tokens() if self.inner.usage is None else 0
        try:
            self._last = self.translator.finish(completion_tokens=estimate)
        except Unfit:
            self._is_unfit = True
            self._last = b""
            raise
