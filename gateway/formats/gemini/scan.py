"""Scans a streamed answer of Gemini's API: chunks of one shape, each an answer of its own.

The stream has no event that ends it. It is complete when each candidate has its `finishReason`, or when the prompt was
blocked; a chunk behind that leaves only if it has no text. Every chunk has the usage so far, so each is parsed. One
that is too long to be held, with a picture or a signature, is read on its way (`MemberReader`). Nothing but chunks
leaves: google-genai fails on a comment, on `event:` lines and on `[DONE]` (`_api_client.py`, `HttpResponse`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.formats import sse, token_rule
from gateway.formats.event_scan import EventScan
from gateway.formats.format import ScanInput
from gateway.formats.member_reader import EACH, MemberReader

from . import usage as gemini_usage

_FINISHED = ("candidates", EACH, "finishReason")
_WANTED = (("usageMetadata",), ("promptFeedback",), ("modelVersion",), ("error",), _FINISHED)


class GeminiScan(EventScan):
    """Follows one streamed answer. `is_done` stays false: only the message's end ends it."""

    TEXTS = gemini_usage.TEXT

    def __init__(self, asked: ScanInput) -> None:
        super().__init__(count_texts=asked.count_texts, clean=asked.clean, allows=asked.allows)
        self._choices = asked.choices
        self._begun: set[int] = set()
        """Indexes of candidates."""
        self._finished: set[int] = set()
        self._is_blocked = False
        self._has_ended = False
        """The upstream has ended its message."""
        self._searches: dict[int, int] = {}
        self._reader: MemberReader | None = None
        """Of the long event that is going on."""

    @property
    def last(self) -> bytes:
        """Nothing: the end of the message is the end."""
        return b""

    @property
    def is_complete(self) -> bool:
        """Whether every candidate has finished; before the end of the message, as many as were asked for."""
        if self._is_blocked:
            return True
        is_enough = self._has_ended or len(self._finished) >= self._choices
        return bool(self._finished) and is_enough and self._begun <= self._finished

    def finish(self) -> bytes:
        rest = super().finish()
        self._has_ended = True
        if self.is_complete and self.usage is not None:
            self.is_usage_final = True
        return rest

    def _forget_end(self) -> None:
        """Nothing to forget: a long event counts only if all of its JSON came."""

    def is_alike(self, data: bytes) -> bool:
        """Never: each chunk has its own usage."""
        return False

    def _event(self, event: bytes) -> bytes:
        data = sse.data_of(event)
        if not data or data.startswith(b"[DONE]"):
            return b""
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        texts = self.TEXTS.findall(data)
        if self.is_complete and (texts or not isinstance(chunk, dict)):
            return b""  # behind the end there may be usage, and nothing else of this call
        if not isinstance(chunk, dict):
            return self._cleaned(_chunk(data))
        if texts:
            self._take_texts(texts)
            self.has_reasoned = self.has_reasoned or gemini_usage.THOUGHT.search(data) is not None
        if chunk.get("error"):
            error = chunk["error"]
            self.error = error if isinstance(error, dict) else {"message": str(error)}
            return b""
        for place, candidate in enumerate(gemini_usage.candidates(chunk)):
            self._take_candidate(place, candidate)
        self._take(chunk)
        return event if _is_plain(event) else _chunk(data)

    def _take_candidate(self, place: int, candidate: Mapping[str, Any]) -> None:
        index = candidate.get("index", place)
        index = index if isinstance(index, int) else place
        self._begun.add(index)
        if _is_reason(candidate.get("finishReason")):
            self._finished.add(index)
        if found := gemini_usage.searches(candidate):
            self._searches[index] = max(found, self._searches.get(index, 0))

    def _take(self, chunk: Mapping[str, Any]) -> None:
        """Read the members beside the candidates."""
        self.has_begun = True
        self._is_blocked = self._is_blocked or gemini_usage.is_blocked(chunk)
        if self.model is None and isinstance(chunk.get("modelVersion"), str):
            self.model = chunk["modelVersion"]
        usage = gemini_usage.reported(chunk.get("usageMetadata"), sum(self._searches.values()))
        if usage is not None:
            self._take_report(usage)

    def _long_piece(self, piece: bytes) -> bytes:
        """A piece of an event too long to hold. All of it counts as text."""
        if self._reader is None:
            self._reader = MemberReader(_WANTED)
        reader = self._reader
        reader.feed(piece)
        self.has_begun = True
        self._quarters += token_rule.count(piece).quarters
        if sse.ends_event(piece):
            self._reader = None
            if reader.is_whole:
                self._take_long(reader)
        return piece

    def _take_long(self, reader: MemberReader) -> None:
        for place, reason in enumerate(reader.counted[_FINISHED].elements()):
            if reason.startswith(b'"'):
                self._begun.add(place)
                self._finished.add(place)
        self._take({name: reader.get(name) for name in ("usageMetadata", "promptFeedback", "modelVersion")})
        if isinstance(error := reader.get("error"), dict):
            self.error = error


def _is_reason(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", "FINISH_REASON_UNSPECIFIED")


def _is_plain(event: bytes) -> bool:
    """Whether the event is one line of data, as google-genai reads it."""
    return event.startswith(b"data: ") and len(event.splitlines()) == 2 and event.endswith(b"\n")


def _chunk(data: bytes) -> bytes:
    return b"data: " + b" ".join(data.splitlines()) + b"\r\n\r\n"
