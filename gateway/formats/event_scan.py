"""Scans a streamed answer event by event: the base class of formats with server-sent events.

Subclasses interpret events (`_event`, `_long_piece`). This class finds the boundaries of events, counts texts and keeps
the reports of usage. A regular expression over the bytes decides whether an event can matter; only then is it
parsed. JSON escapes every quote inside a string, so a quoted name in the bytes is a name, never a part of a text.

Most events differ from the one before only in their text, so this is checked first (`is_alike`): the check costs a
tenth of parsing the event, and runs for every token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from gateway.records import Usage

from . import reported_usage, sse, token_rule
from .format import AllowsReport, allow_any

_STRING = re.compile(rb'[^"\\\r\n]*+(?:\\[^\r\n][^"\\\r\n]*+)*+')
"""The text between the quotes of a JSON string on one line."""
_PADDING = re.compile(rb'"obfuscation"\s*:\s*"')
"""OpenAI pads its chat chunks with a string of random length."""
_END_OF_PADDING = re.compile(rb'[^"\\\r\n]*+"\}\n\n')
_HELD_TEXT = 4096
"""Bytes of text that are kept before they are counted. Most answers are shorter and have reported usage: their text is
never counted."""
_LEARN_EVERY = 4
"""Events with text that differ from the one before, between two attempts to learn a pattern: limits the cost for
streams without one."""


class EventScan:
    """Follows one streamed answer: a `Scan` without the meaning of its events.

    `error` is the error object of an in-band error; `is_done`: the event that ends the stream has come. After either,
    nothing more is passed on. `usage` is the highest report that `allows` permits; `is_usage_final`: it came when all
    had finished; `excess` is the highest of the other reports. `has_reasoned`: some of the text was reasoning.
    """

    TEXTS = reported_usage.TEXT
    """Generated texts in an event: its one group."""

    def __init__(
        self,
        *,
        count_texts: token_rule.CountsTexts = token_rule.count,
        clean: Callable[[str], str] = str,
        allows: AllowsReport = allow_any,
    ) -> None:
        self._clean = clean
        self._allows = allows
        self._splitter = sse.EventSplitter()
        self.is_at_start = True
        """Whether the next byte certainly begins an event: the condition for calling `is_alike`."""
        self._shape: tuple[bytes, int, bytes, bool] | None = None
        """The learned pattern: bytes before an event's text, their length, bytes after it, whether padding follows."""
        self._unlike = 0
        """Events with text that had to be parsed."""
        self._cut_crlf: bytes | None = None
        """An event has ended with a CR that was the last byte so far. If an LF comes, it was a CRLF: what to pass."""
        self.usage: Usage | None = None
        self.excess: Usage | None = None
        self.is_usage_final = False
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self.model: str | None = None
        self.has_reasoned = False
        self.has_begun = False
        """Whether any data other than comments and an error arrived."""
        self._count = count_texts
        self._texts = bytearray()
        """Texts that are not counted yet: a quote follows the last of each event, a zero byte the others."""
        self._quarters = 0
        self._text_events = 0

    @property
    def last(self) -> bytes:
        """The bytes that end a complete answer, held back until now."""
        raise NotImplementedError

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete."""
        raise NotImplementedError

    def _event(self, event: bytes) -> bytes:
        """The part of this complete event that may go to the client now."""
        raise NotImplementedError

    def _long_piece(self, piece: bytes) -> bytes:
        """The part of this piece, of an event too long to buffer, that may go to the client now."""
        raise NotImplementedError

    def _forget_end(self) -> None:
        """Undo an end of the answer that was found in a long event, which was cut."""
        raise NotImplementedError

    def is_sign_of_life(self, passed: bytes) -> bool:
        """Whether these bytes are more than comments, which only keep a connection open."""
        return not (passed.startswith(b":") and sse.is_comment(passed))

    @property
    def is_over(self) -> bool:
        """Whether no further bytes of this stream may be passed on."""
        return self.is_done or self.error is not None

    @property
    def is_inside_event(self) -> bool:
        """Whether a part of a long event has been passed on: other bytes need a blank line before them."""
        return self._splitter.is_inside_long and not self.is_over

    @property
    def is_between_events(self) -> bool:
        """Whether the bytes so far end with a complete event."""
        return not (self._splitter.held or self._splitter.is_inside_long)

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Take bytes from the upstream; return what may go to the client now, and whether that was all (`is_over`)."""
        if not data:
            return b"", self.is_over
        passed = []
        if self._cut_crlf is not None:
            if data.startswith(b"\n"):
                passed.append(self._cut_crlf)
                data = data[1:]
            self._cut_crlf = None
        piece = kept = b""
        for piece, is_whole in self._splitter.split(data):
            if self.is_over:
                break
            kept = self._event(piece) if is_whole else self._long_piece(piece)
            passed.append(kept)
        is_over = self.is_over
        self.is_at_start = self.is_between_events and not is_over
        if self.is_at_start and piece.endswith(b"\r"):
            self._cut_crlf = b"\n" if kept is piece else b""
            self.is_at_start = False
        return b"".join(passed), is_over

    def finish(self) -> bytes:
        """Call at the end of the upstream's stream: returns the last bytes, with a missing last blank line added.

        A partial event is dropped: both SDKs would fail on its JSON before they read the error event after it.
        """
        is_long = self.is_inside_event
        if self.is_over or not (rest := self._splitter.rest()):
            return b""
        ended = rest.rstrip(b"\r\n") + b"\n\n"
        if is_long:
            piece = self._long_piece(ended)
            if not ended.endswith(b"}\n\n"):
                self._forget_end()
            return piece
        data = sse.data_of(ended)
        return self._event(ended) if data is None or is_whole(data) else b""

    @property
    def has_text(self) -> bool:
        """Whether any text arrived. Does not count tokens."""
        return bool(self._texts) or self._quarters > 0

    def text_events(self) -> int:
        """The number of events with text."""
        self._count_texts()
        return self._text_events

    def delivered_tokens(self) -> int:
        """The number of tokens of text, by `count_texts`."""
        self._count_texts()
        return token_rule.tokens_of(self._quarters)

    def _take_texts(self, texts: Iterable[bytes]) -> None:
        """Keep the texts of one event until they are counted."""
        self._texts += b"\0".join(texts) + b'"'
        if len(self._texts) > _HELD_TEXT:
            self._count_texts()

    def _passed_with_text(self, event: bytes) -> None:
        """Learn from an event with text that was passed on unchanged: the next may be like it."""
        self._unlike += 1
        if self._unlike % _LEARN_EVERY == 1:
            self._learn(event)

    def _cleaned(self, event: bytes) -> bytes:
        """An event that is no chunk of an answer, without the upstream's texts about the gateway."""
        text = event.decode("utf-8", "surrogateescape")
        cleaned = self._clean(text)
        return event if cleaned == text else cleaned.encode("utf-8", "surrogateescape")

    def is_alike(self, data: bytes) -> bool:
        """Whether these bytes are one event that differs from an earlier one only in its text; if so, count it.

        It may then be passed on unchanged, without `feed`: all other bytes are equal to those of an event that was
        parsed and passed on.
        """
        if self._shape is None or len(data) > sse.LONG_EVENT:
            return False
        before, start, behind, is_padded = self._shape
        if not data.startswith(before):
            return False
        end = data.find(behind, start)
        if end < 0 or _STRING.fullmatch(data, start, end) is None:
            return False
        rest = end + len(behind)
        if _END_OF_PADDING.fullmatch(data, rest) is None if is_padded else rest != len(data):
            return False
        if end > start:
            texts = self._texts
            texts += data[start : end + 1]  # with its quote
            if len(texts) > _HELD_TEXT:
                self._count_texts()
        return True

    def _count_texts(self) -> None:
        quarters, events = self._count(self._texts)
        self._texts.clear()
        self._quarters += quarters
        self._text_events += events

    def _learn(self, event: bytes) -> None:
        """Keep the bytes around the one text of an event that was passed on unchanged."""
        texts = [match.span(1) for match in self.TEXTS.finditer(event)]
        if len(texts) == 1 and event.endswith(b"\n"):
            start, end = texts[0]
            padding = _PADDING.search(event, end)
            behind = event[end : padding.end()] if padding else event[end:]
            self._shape = event[:start], start, behind, padding is not None

    def _take_report(self, report: Usage) -> None:
        """Keep the highest report: some upstreams send a lower one, or one of zeros, after a good one."""
        if not self._allows(report, self.delivered_tokens):
            self.excess = reported_usage.highest(self.excess, report)
            return
        is_highest = self.usage is None or report.completion_tokens >= self.usage.completion_tokens
        self.is_usage_final = (self.is_usage_final or is_highest) and self.is_complete
        self.usage = reported_usage.highest(self.usage, report)


def is_whole(data: bytes) -> bool:
    """Whether the data of an event without its blank line is complete."""
    if data.startswith(b"[DONE]"):
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
