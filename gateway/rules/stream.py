"""What a streamed answer says, and what of it a client may see.

Each event is looked at once. A regular expression over the bytes tells whether it can matter; only then is it parsed.
JSON escapes every quote inside a string, so a quoted name in the bytes is a name, never a piece of somebody's text.

Events leave as they came, except: the usage chunk is left out for a client that did not ask for it, `usage` on another
chunk becomes null for it; `id:` and `retry:` lines and events without data are dropped (openai-python would decode an
empty event). `[DONE]` and an error are not passed on here: whether they may leave is for the relay to decide.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.records import Usage

from . import sse, usage

_MATTERS = re.compile(rb'"finish_reason"\s*:\s*"(?!")|"usage"\s*:\s*(?!\s|null)|"error"\s*:\s*(?!\s|null)')
_NAMES_MODEL = re.compile(rb'"model"\s*:\s*"')
_FINISHES = re.compile(rb'"finish_reason"\s*:\s*"(?=[^"])')
_OVERLAP = 64
"""Bytes of a long event's last piece that are looked at again with the next, in case a name was cut."""


class StreamScan:
    """Follows one streamed answer.

    `finished` are the indexes whose `finish_reason` has come (a negative number where nobody knows which); `error` is
    the error object of an in-band error; `is_done` that `[DONE]` has come. After either, nothing more is passed on.
    """

    def __init__(self, *, choices: int, shows_usage: bool) -> None:
        self._choices = choices
        self._shows_usage = shows_usage
        self._splitter = sse.EventSplitter()
        self._tail = b""
        self.finished: set[int] = set()
        self.usage: Usage | None = None
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self.model: str | None = None
        self.text_bytes = 0
        self.text_events = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing of this stream may be passed on any more."""
        return self.is_done or self.error is not None

    @property
    def is_inside_event(self) -> bool:
        """Whether half of a long event has been passed on: what comes next needs a blank line first."""
        return self._splitter.is_inside_long

    @property
    def is_complete(self) -> bool:
        """Whether every choice that was asked for has had its `finish_reason`."""
        return len(self.finished) >= self._choices

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Take bytes from the upstream; return what may go to the client now, and whether that was all (`is_over`)."""
        passed = []
        for piece, is_whole in self._splitter.split(data):
            if not self.is_over:
                passed.append(self._event(piece) if is_whole else self._long_piece(piece))
        return b"".join(passed), self.is_over

    def finish(self) -> bytes:
        """The upstream's stream has ended: what may still go, its last event given the blank line it lacks.

        Half an event does not go: both SDKs would stumble over its JSON, and never see the error event behind it.
        """
        if self.is_over or not (rest := self._splitter.rest()):
            return b""
        ended = rest.rstrip(b"\r\n") + b"\n\n"
        if self._splitter.is_inside_long:
            return self._long_piece(ended)
        data = sse.data_of(ended)
        return self._event(ended) if data is None or _is_whole(data) else b""

    def estimate(self, prompt_tokens: int) -> Usage:
        """What was delivered, where nobody reported it."""
        return usage.estimated(prompt_tokens, self.text_bytes, self.text_events)

    def _event(self, event: bytes) -> bytes:
        data = sse.data_of(event)
        if not data:
            return event if sse.is_comment(event) and event.strip() else b""
        if data.startswith(b"[DONE]"):
            self.is_done = True
            return b""
        if sse.has_fields(event):
            event = sse.without_fields(event)
        if (size := usage.text_bytes(data)) > 0:
            self.text_events += 1
            self.text_bytes += size
        if _MATTERS.search(data) or (self.model is None and _NAMES_MODEL.search(data)):
            return self._matter(event, data)
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
        if self.model is None and isinstance(chunk.get("model"), str):
            self.model = chunk["model"]
        choices = chunk.get("choices")
        choices = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        for choice in choices:
            index = choice.get("index") or 0
            if choice.get("finish_reason") and isinstance(index, int):
                self.finished.add(index)
        if chunk.get("usage") is None:
            return event
        self.usage = usage.reported(chunk["usage"]) or self.usage
        if self._shows_usage:
            return event
        if any(_says_something(choice) for choice in choices):
            chunk["usage"] = None
            return sse.write_event(json.dumps(chunk, separators=(",", ":")).encode())
        return b""

    def _long_piece(self, piece: bytes) -> bytes:
        """A piece of an event too long to hold: only whether something finished in it is noted."""
        self.text_bytes += len(piece)
        looked_at = self._tail + piece
        end = 0
        for match in _FINISHES.finditer(looked_at):
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


def _says_something(choice: dict[str, Any]) -> bool:
    """Whether a choice of a chunk holds more than its index (LiteLLM's usage chunk has `choices: [{"index": 0}]`)."""
    return any(value for name, value in choice.items() if name != "index")
