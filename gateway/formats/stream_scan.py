"""Scans a streamed answer: finds its usage, end and errors, and decides what the client gets.

Each event is read once. A regular expression over the bytes decides whether it can matter; only then is it parsed.
JSON escapes every quote inside a string, so a quoted name in the bytes is a name, never a part of a text.

Events leave as they came, except: the usage chunk is left out for a client that did not ask for it, `usage` on another
chunk becomes null for it; the usage chunk of a completion is no longer called a chat's; `id:` and `retry:` lines and
events without data are dropped (openai-python would decode an empty event); from everything that is not a chunk, such
as a comment, the gateway's own texts are removed. `[DONE]` and errors are not passed on here: the relay decides that.

Most events equal the one before but for their text, so this is checked first (`is_alike`): it costs a tenth of reading
the event, and it is done for every token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from gateway.api import json_document
from gateway.errors import InvalidRequest
from gateway.records import Usage

from . import reported_usage, sse, token_rule
from .format import AllowsReport, allow_any

_MATTERS = re.compile(rb'"finish_reason"\s*:\s*"(?!")|"usage"\s*:\s*(?!\s|null)|"error"\s*:\s*(?!\s|null)')
_NAMES_MODEL = re.compile(rb'"model"\s*:\s*"')
_FINISHES = re.compile(rb'"finish_reason"\s{0,9}:\s{0,9}"(?=[^"])')
"""In a long event, where its length has to be bounded by `_OVERLAP`."""
_OVERLAP = 64
"""Bytes of a long event's last piece that are looked at again with the next, in case a name was cut."""
_STRING = re.compile(rb'[^"\\\r\n]*+(?:\\[^\r\n][^"\\\r\n]*+)*+')
"""The text between the quotes of a JSON string on one line."""
_PADDING = re.compile(rb'"obfuscation"\s*:\s*"')
"""OpenAI pads its chat chunks with a string of random length."""
_END_OF_PADDING = re.compile(rb'[^"\\\r\n]*+"\}\n\n')
_CHAT_CHUNK = "chat.completion.chunk"
_HELD_TEXT = 4096
"""Bytes of text that are kept before they are counted. Most answers are shorter, and reported: those never are."""
_LEARN_EVERY = 4
"""Events with text, unlike the one before, between two attempts to learn their shape: a stream without one pays little
for them."""


class StreamScan:
    """Follows one streamed answer.

    `finished` are the indexes whose `finish_reason` has come (a negative number if the index is unknown); `error` is
    the error object of an in-band error; `is_done` that `[DONE]` has come. After either, nothing more is passed on.
    `usage` is the highest report of those that `allows`; `is_usage_final` that it came when all had finished; `excess`
    the highest of the other reports. `has_reasoned` says that some of the text was reasoning.
    """

    def __init__(
        self,
        *,
        choices: int,
        shows_usage: bool,
        count_texts: token_rule.CountsTexts = token_rule.count,
        is_chat: bool = True,
        clean: Callable[[str], str] = str,
        allows: AllowsReport = allow_any,
    ) -> None:
        self._choices = choices
        self._clean = clean
        self._allows = allows
        self._shows_usage = shows_usage
        self._is_chat = is_chat
        self._splitter = sse.EventSplitter()
        self.is_at_start = True
        """Whether the next byte begins an event, without doubt; only then `is_alike` may be asked."""
        self._shape: tuple[bytes, int, bytes, bool] | None = None
        """The bytes before the text of an event, their length, the bytes behind it, and whether padding follows."""
        self._unlike = 0
        """Events with text that had to be looked at."""
        self._cut_crlf: bytes | None = None
        """An event has ended with a CR that was the last byte so far. If an LF comes, it was a CRLF: what to pass."""
        self._tail = b""
        self.finished: set[int] = set()
        self.usage: Usage | None = None
        self.excess: Usage | None = None
        self.is_usage_final = False
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self.model: str | None = None
        self.has_reasoned = False
        self.has_begun = False
        """Whether anything but comments and an error came."""
        # Choices come by turns: only of a single one all texts are one.
        self._count = count_texts if choices == 1 else token_rule.count
        self._texts = bytearray()
        """Texts that are not counted yet: a quote follows the last of each event, a zero byte the others."""
        self._quarters = 0
        self._text_events = 0

    @property
    def last(self) -> bytes:
        """`[DONE]`, if it came. An answer without it ends without: both SDKs take that, and an invented one would be
        false."""
        return sse.DONE if self.is_done else b""

    def is_sign_of_life(self, passed: bytes) -> bool:
        """Comments keep a connection open; they show nothing of the answer."""
        return not (passed.startswith(b":") and sse.is_comment(passed))

    @property
    def is_over(self) -> bool:
        """Whether nothing of this stream may be passed on any more."""
        return self.is_done or self.error is not None

    @property
    def is_inside_event(self) -> bool:
        """Whether half of a long event has been passed on: what comes next needs a blank line first."""
        return self._splitter.is_inside_long and not self.is_over

    @property
    def is_between_events(self) -> bool:
        """Whether all that came was whole events."""
        return not (self._splitter.held or self._splitter.is_inside_long)

    @property
    def is_complete(self) -> bool:
        """Whether every choice that was asked for has had its `finish_reason`."""
        return len(self.finished) >= self._choices

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
        self.is_at_start = self.is_between_events and not self.is_over
        if self.is_at_start and piece.endswith(b"\r"):
            self._cut_crlf = b"\n" if kept is piece else b""
            self.is_at_start = False
        return b"".join(passed), self.is_over

    def finish(self) -> bytes:
        """The upstream's stream has ended: what may still go, its last event given the blank line it lacks.

        Half an event does not go: both SDKs would stumble over its JSON, and never see the error event behind it.
        """
        is_long = self.is_inside_event
        if self.is_over or not (rest := self._splitter.rest()):
            return b""
        ended = rest.rstrip(b"\r\n") + b"\n\n"
        if is_long:
            piece = self._long_piece(ended)
            if not ended.endswith(b"}\n\n"):
                self.finished.clear()  # it was cut, and so were the candidates that had finished in it
            return piece
        data = sse.data_of(ended)
        return self._event(ended) if data is None or _is_whole(data) else b""

    @property
    def has_text(self) -> bool:
        """Whether any text came. Counts nothing."""
        return bool(self._texts) or self._quarters > 0

    def text_events(self) -> int:
        """How many events brought text."""
        self._count_texts()
        return self._text_events

    def delivered_tokens(self) -> int:
        """How many tokens of text there were, as `count_texts` has it."""
        self._count_texts()
        return token_rule.tokens_of(self._quarters)

    def _event(self, event: bytes) -> bytes:
        if self.is_alike(event):
            return event
        if event.isspace():
            return b""
        as_it_came = event
        data = sse.data_of(event)
        if not data:
            return self._cleaned(event) if sse.is_comment(event) else b""
        if data.startswith(b"[DONE]"):
            self.is_done = True
            return b""
        if sse.has_fields(event):
            event = sse.without_fields(event)
        if not data.startswith(b"{"):
            event = self._cleaned(event)
        if texts := reported_usage.texts_of(data):
            self._texts += b"\0".join(texts) + b'"'
            if len(self._texts) > _HELD_TEXT:
                self._count_texts()
            self.has_reasoned = self.has_reasoned or reported_usage.has_reasoning(data)
        if _MATTERS.search(data) or (self.model is None and _NAMES_MODEL.search(data)):
            return self._matter(event, data)
        self.has_begun = True
        if texts and event is as_it_came:
            self._unlike += 1
            if self._unlike % _LEARN_EVERY == 1:
                self._learn(event)
        return event

    def _cleaned(self, event: bytes) -> bytes:
        """What is no chunk of an answer may be an upstream's words about us."""
        text = event.decode("utf-8", "surrogateescape")
        cleaned = self._clean(text)
        return event if cleaned == text else cleaned.encode("utf-8", "surrogateescape")

    def is_alike(self, data: bytes) -> bool:
        """Whether these bytes are one event that differs from an earlier one in nothing but its text; if so, count it.

        It may then be passed on as it is, without `feed`: all around its text is known to the last byte, and was found
        not to matter.
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
        texts = reported_usage.places_of_texts(event)
        if len(texts) == 1 and event.endswith(b"\n"):
            start, end = texts[0]
            padding = _PADDING.search(event, end)
            behind = event[end : padding.end()] if padding else event[end:]
            self._shape = event[:start], start, behind, padding is not None

    def _matter(self, event: bytes, data: bytes) -> bytes:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            return event
        if not isinstance(chunk, dict):
            return event
        if chunk.get("error"):
            error = chunk["error"]
            self.error = error if isinstance(error, dict) else {"message": str(error)}
            return b""
        self.has_begun = True
        if self.model is None and isinstance(chunk.get("model"), str):
            self.model = chunk["model"]
        choices = chunk.get("choices")
        choices = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        for choice in choices:
            index, reason = choice.get("index") or 0, choice.get("finish_reason")
            if reason and isinstance(reason, str) and isinstance(index, int) and not self.is_complete:
                self.finished.add(index)
        if chunk.get("usage") is None:
            return event
        if (report := reported_usage.reported(chunk["usage"])) is not None:
            self._take_report(report)
        says_something = any(_says_something(choice) for choice in choices)
        if self._shows_usage:
            if self._is_chat or says_something or chunk.get("object") != _CHAT_CHUNK:
                return event
            # new-api writes this chunk itself, always as for a chat (relay/helper). The chunks before it are from the
            # provider behind it, and have the right object name.
            return sse.write_event(_changed(data, chunk, {"object": "text_completion"}))
        if says_something:
            return sse.write_event(_changed(data, chunk, {"usage": None}))
        return b""

    def _take_report(self, report: Usage) -> None:
        """The highest report counts: some upstreams send a lower one, or one of nothing, behind a good one."""
        if not self._allows(report, self.delivered_tokens):
            self.excess = reported_usage.highest(self.excess, report)
            return
        is_highest = self.usage is None or report.completion_tokens >= self.usage.completion_tokens
        self.is_usage_final = (self.is_usage_final or is_highest) and self.is_complete
        self.usage = reported_usage.highest(self.usage, report)

    def _long_piece(self, piece: bytes) -> bytes:
        """A piece of an event too long to hold: only whether something finished in it is noted.

        All of it counts as text.
        """
        self.has_begun = True
        self._quarters += token_rule.count(piece).quarters
        looked_at = self._tail + piece
        end = 0
        for match in _FINISHES.finditer(looked_at):
            if not self.is_complete:
                self.finished.add(-1 - len(self.finished))
            end = match.end()
        self._tail = looked_at[max(end, len(looked_at) - _OVERLAP) :]
        return piece


def _is_whole(data: bytes) -> bool:
    """Whether the data of an event that ended without its blank line is all there."""
    if data.startswith(b"[DONE]"):
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _changed(data: bytes, chunk: dict[str, Any], values: dict[str, Any]) -> bytes:
    """The chunk with these values, all else as the upstream wrote it; `chunk` is the same, parsed."""
    try:
        changed = json_document.replace(json_document.parse(data), values)
    except InvalidRequest:  # odder than a request may be: written anew
        return json.dumps(chunk | values, separators=(",", ":")).encode()
    return changed.replace(b"\n", b" ")  # lines of data, which are only between the members


def as_event(answer: bytes, *, shows_usage: bool) -> bytes:
    """A whole answer, which is an object in JSON, as the one event of a stream: for a client that reads only events."""
    try:
        chunk = json.loads(answer)
    except ValueError:  # a number of thousands of digits
        return sse.write_event(b" ".join(answer.splitlines()))
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict) and isinstance(message := choice.pop("message", None), dict):
            calls = message.get("tool_calls")
            for index, call in enumerate(calls if isinstance(calls, list) else []):
                if isinstance(call, dict):
                    call.setdefault("index", index)
            choice["delta"] = message
    if chunk.get("object") == "chat.completion":
        chunk["object"] = _CHAT_CHUNK
    if not shows_usage:
        chunk.pop("usage", None)
    return sse.write_event(json.dumps(chunk, separators=(",", ":")).encode())


def _says_something(choice: dict[str, Any]) -> bool:
    """Whether a choice of a chunk holds more than its index (LiteLLM's usage chunk has `choices: [{"index": 0}]`)."""
    return any(value for name, value in choice.items() if name != "index")
