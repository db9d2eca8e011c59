"""Scans a streamed answer event by event: the base class of formats with server-sent events.

This class finds the boundaries of events, counts texts and keeps the reports of usage; the format's reader
(`reader.py`) reads facts. A regular expression over the bytes decides whether an event can have one; only then is it
parsed. JSON escapes every quote inside a string, so a quoted name in the bytes is a name, never a part of a text.

Most events differ from the one before only in their text, so this is checked first (`is_alike`): the check costs a
tenth of parsing the event, and runs for every token.

An event that is too long to be held is passed on in pieces, and the reader gets its wanted members at its end. Where
the answer is translated, every event is parsed, and the writer makes of its content what the client gets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from gateway.records import Usage

from . import reported_usage, sse, token_rule
from .events import Unfit
from .format import Scan, ScanInput
from .member_reader import MemberReader
from .reader import ERRORS, AnswerReader
from .reason_cleaner import ReasonCleaner

_STRING = re.compile(rb'[^"\\\r\n]*+(?:\\[^\r\n][^"\\\r\n]*+)*+')
"""The text between the quotes of a JSON string on one line."""
_PADDING = re.compile(rb'"obfuscation"\s*:\s*"')
"""OpenAI pads its chat chunks with a string of random length."""
_END_OF_PADDING = re.compile(rb'[^"\\\r\n]*+"\}\n\n')
_LONGEST_NUMBER = 16
_HELD_TEXT = 4096
"""Bytes of text that are kept before they are counted. Most answers are shorter and have reported usage: their text is
never counted."""
_LEARN_EVERY = 4
"""Events with text that differ from the one before, between two attempts to learn a pattern: limits the cost for
streams without one."""


class EventScan(Scan):
    READER: ClassVar[type[AnswerReader]]
    TEXTS = reported_usage.TEXT
    HAS_TEXTS: ClassVar[re.Pattern[bytes] | None] = None
    """Finds events with texts of the answer; None: all may have some."""
    THINKS: ClassVar[re.Pattern[bytes]] = re.compile(rb"(?!)")
    """Finds reasoning in an event."""
    MEDIA: ClassVar[re.Pattern[bytes]] = re.compile(rb"(?!)")
    """Finds sound and pictures in an event, where their tokens are output."""
    MATTERS: ClassVar[re.Pattern[bytes] | None] = None
    """Finds events that may have a fact; None: all may."""
    NAMES_MODEL: ClassVar[re.Pattern[bytes]] = re.compile(rb"(?!)")
    """Finds events that name the model, as long as it is not known."""
    NUMBER: ClassVar[re.Pattern[bytes] | None] = None
    """Finds the number of an event, its one group, where events have numbers before their text."""
    HAS_OBJECTS_ONLY = False
    """Whether data that is no object does not begin an answer."""
    KEEPS_HIGHEST = True
    """Whether reports count by the highest of each count; else the newest that can be true counts, all so far."""
    DROPS_FIELDS = True
    """Whether `id:` and `retry:` lines are left out, which make openai-python decode an empty event."""
    HAS_COMMENTS = True
    """Whether clients of the format understand comments."""

    def __init__(self, asked: ScanInput, reader: AnswerReader | None = None) -> None:
        self.reader = reader or self.READER()
        self._clean = asked.clean
        self._allows = asked.allows
        self.writer = asked.writer
        self._bytes_left = asked.max_translated
        most = sse.LONG_EVENT if asked.writer is None else min(asked.max_translated, sse.LONGEST_PARSED)
        self._splitter = sse.EventSplitter(most)
        self.is_at_start = True
        self._mark: bytes | None = b""
        """The beginning of what may be a byte order mark; None: the stream has begun."""
        self._shape: tuple[bytes, bytes, bytes, bool] | None = None
        """The learned pattern: bytes before an event's text, or before its number and from there to the text; bytes
        after the text; whether padding follows."""
        self._last_data = b""
        """The last event that was like the pattern, or the data of another; a format with numbers reads its number."""
        self._unlike = 0
        """Events with text that had to be parsed."""
        self._cut_crlf: bytes | None = None
        """An event has ended with a CR that was the last byte so far. If an LF comes, it was a CRLF: what to pass."""
        self._long: MemberReader | None = None
        """Reader of the long event in progress, if there is one."""
        self._cleaner: ReasonCleaner | None = None
        self._reported_at = -1
        """Bytes of text that had come with the report that is kept."""
        self._end = b""
        """The event that ends the answer, which is held back."""
        self._has_ended = False
        self._is_unfit = False
        self._is_written = False
        self._all_at = -1
        """Bytes of text that had come when all parts of the answer had ended for the first time."""
        self._count = asked.count_texts
        self._texts = bytearray()
        """Texts that are not counted yet: a quote follows the last of each event, a zero byte the others."""
        self._counted_bytes = 0
        self._quarters = 0
        self._text_events = 0

    # ---------------------------------------------------------------------------------------------------- the answer

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete. Text behind its end shows that this was none: then the stream's end counts
        (Gemini and its relays name a `finishReason` on each chunk: one-api#1477)."""
        if self._is_unfit or not self._has_all():
            return False
        return self.is_done or self._has_ended or self._seen == self._all_at

    @property
    def is_usage_final(self) -> bool:
        """Whether the report that is kept counts the whole answer: no text came behind it."""
        return self.usage is not None and self._reported_at == self._seen and self.is_complete

    def last(self, usage: Usage) -> bytes:
        if self.writer is not None:
            return self.writer.close(usage) if self._is_written else b""
        return self._last()

    def _has_all(self) -> bool:
        raise NotImplementedError

    def _ends_with_done(self) -> bool:
        """Whether `[DONE]`, which has come, ends the stream. It is never passed on here."""
        return False

    def _last(self) -> bytes:
        """Returns the bytes of `last` for a stream that is passed on: the event that ended it, if it came, because an
        invented one would be false."""
        return self._end

    # ---------------------------------------------------------------------------------------------------- the events

    def _event(self, event: bytes) -> bytes:
        """The part of this complete event that may go to the client now."""
        if self._shape is not None and self.is_alike(event):
            return event
        if len(event) > sse.LONG_EVENT and sse.has_many_parts(event):
            raise Unfit("an event of too many parts to be translated")
        data = sse.data_of(event)
        if not data:
            return self._without_data(event)
        if data.startswith(b"[DONE]"):
            self.is_done = self._ends_with_done()
            return b""
        as_it_came = event
        if self.DROPS_FIELDS and sse.has_fields(event):
            event = sse.without_fields(event)
        if not data.startswith(b"{"):
            event = self._cleaned(event)
            if self.HAS_OBJECTS_ONLY and not data.lstrip().startswith(b"{"):
                return event
        texts = self.TEXTS.findall(data) if self.HAS_TEXTS is None or self.HAS_TEXTS.search(data) is not None else ()
        if texts:
            self._take_texts(texts)
        self.has_reasoned = self.has_reasoned or self.THINKS.search(data) is not None
        self.has_media = self.has_media or self.MEDIA.search(data) is not None
        matters = self.MATTERS
        if (
            matters is None
            or matters.search(data) is not None
            or self.writer is not None
            or (self.model is None and self.NAMES_MODEL.search(data) is not None)
        ):
            if (value := parsed(data)) is not None:
                return self._object(event, data, value)
            return self._unread(event, data)
        self.has_begun = True
        if texts and event is as_it_came:
            self._passed_with_text(event)
        self._last_data = data
        return event

    def _without_data(self, event: bytes) -> bytes:
        """The client's part of an event that has no data: comments."""
        is_comment = self.HAS_COMMENTS and not event.isspace() and sse.is_comment(event)
        return self._cleaned(event) if is_comment else b""

    def _object(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        """Take an event that was parsed; return what of it may go to the client now."""
        if not self._note(value):
            return b""
        if self.writer is not None:
            return self.writer.feed(self.reader.events(value), self.reader.model)
        return self._shown(event, data, value)

    def _note(self, value: Mapping[str, Any]) -> bool:
        """Take the facts of an event. False: it is an error."""
        report = self.reader.facts(value)
        self.error, self.model = self.reader.error, self.reader.model
        self.has_compacted = self.reader.has_compacted
        if self.reader.texts and not self.has_text:
            self._take_texts(self.reader.texts)
        if report is not None:
            self._take_report(report)
        if self.error is not None:
            self.has_begun = self.has_begun or report is not None
            return False
        self.has_begun = True
        if self._all_at < 0 and self._has_all():
            self._all_at = self._counted_bytes + len(self._texts)
        return True

    def _shown(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        """The client's part of an event that was parsed, and is passed on."""
        return event

    def _unread(self, event: bytes, data: bytes) -> bytes:
        """The client's part of an event whose data is no JSON object."""
        if self.writer is None:
            return event
        if data.strip() == b"null":  # AgentRouter sends it between chunks (kilocode#3083)
            return b""
        raise Unfit("an event that cannot be read")

    def _passed_piece(self, piece: bytes) -> bytes:
        """Returns the bytes of `_long_piece` without the upstream's texts about the gateway in errors."""
        is_last, cleaner = sse.ends_event(piece), self._cleaner or ReasonCleaner(ERRORS, self._clean)
        self._cleaner = None if is_last else cleaner
        cleaned = cleaner.feed(piece, is_last=is_last)
        return self._long_piece(piece if cleaned == piece else cleaned)

    def _long_piece(self, piece: bytes) -> bytes:
        """A piece of an event too long to hold: the part that may go to the client now. All of it counts as text."""
        if self.writer is not None:
            raise Unfit("an event that is too long to be translated")
        if self._long is None:
            self._long = MemberReader(self.READER.WANTED)
        self._long.feed(piece)
        self.has_media = self.has_media or self.MEDIA.search(piece) is not None
        self._quarters += token_rule.count(piece).quarters
        self._counted_bytes += len(piece)
        self.has_begun = True
        if sse.ends_event(piece):
            reader, self._long = self._long, None
            if reader.is_whole:
                self._note(reader.value())
        return piece

    def is_sign_of_life(self, passed: bytes) -> bool:
        """Whether these bytes are more than comments, which only keep a connection open."""
        return not (passed.startswith(b":") and sse.is_comment(passed))

    @property
    def is_inside_event(self) -> bool:
        return self._splitter.is_inside_long and not self.is_over

    @property
    def is_between_events(self) -> bool:
        return not (self._splitter.held or self._splitter.is_inside_long)

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        if self._mark is not None:
            data = self._without_mark(data)
        if not data:
            return b"", self.is_over
        passed = []
        if self._cut_crlf is not None:
            if data.startswith(b"\n"):
                passed.append(self._cut_crlf)
                data = data[1:]
            self._cut_crlf = None
        piece = kept = b""
        try:
            if self.writer is not None:
                self._bytes_left -= len(data)
                if self._bytes_left < 0:
                    raise Unfit("a stream that is too long to be translated")
            for piece, is_whole in self._splitter.split(data):
                if self.is_over:
                    break
                kept = self._event(piece) if is_whole else self._passed_piece(piece)
                passed.append(kept)
                self.is_over = self.is_done or self.error is not None
            if self.is_over and self.writer is not None:
                passed.append(self._write_rest())
        except Unfit:
            self._is_unfit = True
            raise
        self.is_at_start = self.is_between_events and not self.is_over
        if self.is_at_start and piece.endswith(b"\r"):
            self._cut_crlf = b"\n" if kept.endswith(b"\r") else b""
            self.is_at_start = False
        return b"".join(passed), self.is_over

    def finish(self) -> bytes:
        """Returns the last bytes for the client, as `Scan.finish` does, and adds a missing last blank line. Raises
        `Unfit`. A partial event is dropped, because both SDKs would fail on its JSON before they read the error event
        after it."""
        try:
            passed = self._finished()
            self._has_ended = True
            if self.writer is not None:
                passed += self._write_rest()
        except Unfit:
            self._is_unfit = True
            raise
        self.is_over = self.is_done or self.error is not None
        return passed

    def _finished(self) -> bytes:
        is_long = self.is_inside_event
        if self.is_over or not (rest := self._splitter.rest()):
            return b""
        ended = rest.rstrip(b"\r\n") + b"\n\n"
        if is_long:
            return self._passed_piece(ended)
        data = sse.data_of(ended)
        return self._event(ended) if data is None or is_whole(data) else b""

    def _write_rest(self) -> bytes:
        """The rest of a translated answer that is complete now, but for its end."""
        if self.writer is None or self._is_written or self.error is not None or not self.is_complete:
            return b""
        written = self.writer.feed(self.reader.rest(), self.reader.model) + self.writer.end()
        self._is_written = True
        return written

    def _without_mark(self, data: bytes) -> bytes:
        """The stream's first bytes without a byte order mark (WHATWG HTML, "event stream interpretation")."""
        assert self._mark is not None
        data = self._mark + data
        if len(data) < len(sse.MARK) and sse.MARK.startswith(data):
            self._mark = data
            return b""
        self._mark = None
        return data.removeprefix(sse.MARK)

    # ------------------------------------------------------------------------------------------------------ the texts

    @property
    def _seen(self) -> int:
        return self._counted_bytes + len(self._texts)

    @property
    def has_text(self) -> bool:
        return bool(self._texts) or self._quarters > 0

    def text_events(self) -> int:
        self._count_texts()
        return self._text_events

    def named(self) -> Usage:
        return self.reader.named()

    def delivered_tokens(self) -> int:
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
        """Whether these bytes are one event that differs from an earlier one only in its text and number; if so, count
        it.

        It may then be passed on unchanged, without `feed`: all else is equal to an event that was passed on.
        """
        if self._shape is None or len(data) > sse.LONG_EVENT:
            return False
        before, between, behind, is_padded = self._shape
        if not data.startswith(before):
            return False
        start = len(before)
        if between:  # behind a number
            at = data.find(between, start, start + _LONGEST_NUMBER + len(between))
            if at < 0 or not data[start:at].isdigit():
                return False
            start = at + len(between)
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
        self._last_data = data
        return True

    def _count_texts(self) -> None:
        quarters, events = self._count(self._texts)
        self._counted_bytes += len(self._texts)
        self._texts.clear()
        self._quarters += quarters
        self._text_events += events

    def _learn(self, event: bytes) -> None:
        """Keep the bytes around the one text of an event that was passed on unchanged, and around its number."""
        texts = [match.span(1) for match in self.TEXTS.finditer(event)]
        if len(texts) != 1 or not event.endswith(b"\n"):
            return
        start, end = texts[0]
        before, between = event[:start], b""
        if self.NUMBER is not None:
            if (number := self.NUMBER.search(before)) is None:
                return
            before, between = before[: number.start(1)], before[number.end(1) :]
        padding = _PADDING.search(event, end)
        behind = event[end : padding.end()] if padding else event[end:]
        self._shape = before, between, behind, padding is not None

    def _take_report(self, report: Usage) -> None:
        """Keep the highest report: some upstreams send a lower one, or one of zeros, after a good one."""
        if not self._allows(report, self.delivered_tokens):
            self.excess = reported_usage.highest(self.excess, report)
            return
        if self.reader.counts_output and (
            self.usage is None or report.completion_tokens >= self.usage.completion_tokens
        ):
            self._reported_at = self._counted_bytes + len(self._texts)
        self.usage = reported_usage.highest(self.usage, report) if self.KEEPS_HIGHEST else report


def is_whole(data: bytes) -> bool:
    """Whether the data of an event without its blank line is complete."""
    if data.startswith(b"[DONE]"):
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def parsed(data: bytes | str) -> dict[str, Any] | None:
    """The JSON object that this is; None if it is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
