"""Scans a streamed answer of completions or chat, and decides what the client gets.

Events leave as they came, except: the usage chunk is left out for a client that did not ask for it, `usage` on another
chunk becomes null for it; the usage chunk of a completion is no longer called a chat's; `id:` and `retry:` lines and
events without data are dropped; from everything that is not a chunk, such as a comment, the gateway's own texts are
removed. `[DONE]` and errors are not passed on here: the relay decides that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.api import json_document
from gateway.errors import InvalidRequest
from gateway.formats import reported_usage, sse, token_rule
from gateway.formats.event_scan import EventScan
from gateway.formats.format import ScanInput
from gateway.formats.reader import objects

from .reader import ChatReader

_CHAT_CHUNK = "chat.completion.chunk"


class StreamScan(EventScan):
    """Follows one streamed answer. `is_done`: `[DONE]` has come."""

    READER = ChatReader
    THINKS = reported_usage.REASONING
    MATTERS = re.compile(
        rb'"finish_reason"\s*:\s*"(?!")|"usage"\s*:\s*(?!\s|null)|"error"\s*:\s*(?!\s|null)|"url_citation"'
        rb'|"(?:executed_tools|web_search)"\s*:\s*\['
    )
    NAMES_MODEL = re.compile(rb'"model"\s*:\s*"')

    reader: ChatReader

    def __init__(self, asked: ScanInput, *, is_chat: bool = True) -> None:
        # Choices come by turns: only of a single one all texts are one.
        super().__init__(asked if asked.choices == 1 else asked._replace(count_texts=token_rule.count))
        self._choices = asked.choices
        self._shows_usage = asked.shows_usage
        self._is_chat = is_chat

    def _has_all(self) -> bool:
        """Whether every choice that was asked for has had its `finish_reason`."""
        return len(self.reader.finished) >= self._choices

    def _ends_with_done(self) -> bool:
        return True

    def _last(self) -> bytes:
        """`[DONE]`, if it came. An answer without it ends without: both SDKs take that, and an invented one would be
        false."""
        return sse.DONE if self.is_done else b""

    def _shown(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        if value.get("usage") is None:
            return event
        has_content = any(_has_content(choice) for choice in objects(value.get("choices")))
        if self._shows_usage:
            if self._is_chat or has_content or value.get("object") != _CHAT_CHUNK:
                return event
            # new-api writes this chunk itself, always as for a chat (relay/helper). The chunks before it are from the
            # provider behind it, and have the right object name.
            return sse.write_event(_changed(data, value, {"object": "text_completion"}))
        if has_content:
            return sse.write_event(_changed(data, value, {"usage": None}))
        return b""


def _changed(data: bytes, chunk: Mapping[str, Any], values: dict[str, Any]) -> bytes:
    """The chunk with these values, all else as the upstream wrote it; `chunk` is the same, parsed."""
    try:
        changed = json_document.replace(json_document.parse(data), values)
    except InvalidRequest:  # odder than a request may be: written anew
        return json.dumps({**chunk, **values}, separators=(",", ":")).encode()
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
