"""Scans a streamed answer of completions or chat: finds its usage, end and errors, and decides what the client gets.

Each event is read once. A regular expression over the bytes decides whether it can matter; only then is it parsed.
JSON escapes every quote inside a string, so a quoted name in the bytes is a name, never a part of a text.

Events leave as they came, except: the usage chunk is left out for a client that did not ask for it, `usage` on another
chunk becomes null for it; the usage chunk of a completion is no longer called a chat's; `id:` and `retry:` lines and
events without data are dropped (openai-python would decode an empty event); from everything that is not a chunk, such
as a comment, the gateway's own texts are removed. `[DONE]` and errors are not passed on here: the relay decides that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from gateway.api import json_document
from gateway.errors import InvalidRequest
from gateway.formats import reported_usage, sse, token_rule
from gateway.formats.event_scan import EventScan
from gateway.formats.format import AllowsReport, ScanInput, allow_any

_MATTERS = re.compile(rb'"finish_reason"\s*:\s*"(?!")|"usage"\s*:\s*(?!\s|null)|"error"\s*:\s*(?!\s|null)')
_NAMES_MODEL = re.compile(rb'"model"\s*:\s*"')
_FINISHES = re.compile(rb'"finish_reason"\s{0,9}:\s{0,9}"(?=[^"])')
"""In a long event, where its length has to be bounded by `_OVERLAP`."""
_OVERLAP = 64
"""Bytes of a long event's last piece that are looked at again with the next, in case a name was cut."""
_CHAT_CHUNK = "chat.completion.chunk"


class StreamScan(EventScan):
    """Follows one streamed answer. `finished` are the indexes whose `finish_reason` has come (a negative number if the
    index is unknown); `is_done`: `[DONE]` has come."""

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
        # Choices come by turns: only of a single one all texts are one.
        super().__init__(count_texts=count_texts if choices == 1 else token_rule.count, clean=clean, allows=allows)
        self._choices = choices
        self._shows_usage = shows_usage
        self._is_chat = is_chat
        self._tail = b""
        self.finished: set[int] = set()

    @classmethod
    def of(cls, asked: ScanInput, *, is_chat: bool) -> StreamScan:
        """Of the answer to this request."""
        return cls(
            choices=asked.choices, shows_usage=asked.shows_usage, count_texts=asked.count_texts, is_chat=is_chat,
            clean=asked.clean, allows=asked.allows,
        )  # fmt: skip

    @property
    def last(self) -> bytes:
        """`[DONE]`, if it came. An answer without it ends without: both SDKs take that, and an invented one would be
        false."""
        return sse.DONE if self.is_done else b""

    @property
    def is_complete(self) -> bool:
        """Whether every choice that was asked for has had its `finish_reason`."""
        return len(self.finished) >= self._choices

    def _forget_end(self) -> None:
        self.finished.clear()

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
            self._take_texts(texts)
            self.has_reasoned = self.has_reasoned or reported_usage.has_reasoning(data)
        if _MATTERS.search(data) or (self.model is None and _NAMES_MODEL.search(data)):
            return self._matter(event, data)
        self.has_begun = True
        if texts and event is as_it_came:
            self._passed_with_text(event)
        return event

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
        if (report := reported_usage.reported(chunk["usage"], chunk.get("service_tier"))) is not None:
            self._take_report(report)
        has_content = any(_has_content(choice) for choice in choices)
        if self._shows_usage:
            if self._is_chat or has_content or chunk.get("object") != _CHAT_CHUNK:
                return event
            # new-api writes this chunk itself, always as for a chat (relay/helper). The chunks before it are from the
            # provider behind it, and have the right object name.
            return sse.write_event(_changed(data, chunk, {"object": "text_completion"}))
        if has_content:
            return sse.write_event(_changed(data, chunk, {"usage": None}))
        return b""

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


def _has_content(choice: dict[str, Any]) -> bool:
    """Whether a choice of a chunk holds more than its index (LiteLLM's usage chunk has `choices: [{"index": 0}]`)."""
    return any(value for name, value in choice.items() if name != "index")
