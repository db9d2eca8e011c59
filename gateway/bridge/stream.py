"""Streamed answers to the calls that one completions call became, each chunk as one of the whole.

A call's stream is scanned first (`formats/openai/chat_scan.py`), which finds its end and the reason. Its events are
translated here to chunks of completions; chunks of all prompts are interleaved. Chunks with nothing in them for a
completions client (the role of a chat, thoughts, comments) are left out.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.formats import sse
from gateway.formats.unfit import Unfit
from gateway.records import Usage

from .answer import Frame, One, own_index, read
from .translate.usage_objects import as_completion

_ENDS = re.compile(rb"(?:\r\n|\n|\r)(?:\r\n|\n|\r)\Z")


class Stream:
    """Follows the stream of one call, from which only whole events are passed on."""

    def __init__(self, one: One, frame: Frame, *, shows_usage: bool, max_event_bytes: int) -> None:
        self._one = one
        self._frame = frame
        self._shows_usage = shows_usage
        self._max_event_bytes = max_event_bytes
        self._splitter = sse.EventSplitter()
        self._long = bytearray()
        self.first: dict[str, Any] | None = None
        """The first chunk."""
        self._choices = [one.choice() for _ in range(one.n)]

    def feed(self, data: bytes) -> bytes:
        """Take what the scan has passed; return what the client may see now. Raises `Unfit`."""
        events = []
        for piece, is_whole in self._splitter.split(data):
            if is_whole:
                events.append(self._event(piece))
                continue
            self._long += piece
            if len(self._long) > self._max_event_bytes:
                raise Unfit("an event that is too long")
            if _ENDS.search(self._long):
                events.append(self._event(bytes(self._long)))
                self._long.clear()
        return b"".join(events)

    def _event(self, event: bytes) -> bytes:
        data = sse.data_of(event)
        if not data:
            return b""
        chunk = read(data)
        if self.first is None:
            self.first = chunk
        given = chunk.get("choices")
        translated = [self._choice(choice) for choice in given] if isinstance(given, list) else []
        choices = [choice for choice in translated if choice is not None]
        return write_chunk(self._frame.around(chunk, choices), shows_usage=self._shows_usage) if choices else b""

    def _choice(self, choice: Any) -> dict[str, Any] | None:
        own = own_index(choice, self._one.n)
        index = self._one.index_of(own)
        if not self._one.is_chat:
            return {**choice, "index": index}
        return self._choices[own].completions_choice(
            choice.get("delta"), choice.get("logprobs"), choice.get("finish_reason"), index
        )


def write_chunk(chunk: dict[str, Any], *, shows_usage: bool) -> bytes:
    """One event with this chunk; if usage was requested, it is null on every chunk but the last."""
    if shows_usage:
        chunk["usage"] = None
    return sse.write_event(json.dumps(chunk, separators=(",", ":")).encode())


def usage_event(frame: Frame, first: dict[str, Any], usage: Usage) -> bytes:
    """The last event before `[DONE]`, for a client that asked for usage; `first` is a chunk that came before it."""
    chunk = {**frame.around(first, []), "usage": as_completion(usage)}
    return sse.write_event(json.dumps(chunk, separators=(",", ":")).encode())
