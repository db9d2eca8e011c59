"""The base of the writers, which make a client's answer of the events of an upstream's (`formats/events.py`).

A whole answer is written as a stream whose bytes are not used, so the two cannot differ. The usage that
the client gets is the usage that is charged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from gateway.formats.events import CallPiece, Ended, Event
from gateway.formats.unfit import Unfit
from gateway.records import Usage


class AnswerWriter(ABC):
    """Writes one answer; a `Writer` of formats/format.py. `model` is as the client asked for it: the upstream's name
    replaces it."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._has_begun = False
        self._reason: str | None = None
        """Why the answer ended, in the words of chat."""
        self._stop_sequence: str | None = None
        self._ids: dict[int, str] = {}

    def feed(self, events: Iterable[Event], model: str | None) -> bytes:
        """Take events, and the name of the model as far as it is known; return what the client may see now."""
        written = self._begin(model)
        for event in events:
            if isinstance(event, Ended):
                self._reason = event.reason or self._reason
                self._stop_sequence = event.stop_sequence or self._stop_sequence
            else:
                written += self._take(event)
        return written

    def end(self) -> bytes:
        """The upstream's answer is complete: the rest of the content. Raises `Unfit`."""
        if self._reason is None:
            raise Unfit("a choice without a finish_reason")
        return self._begin(None) + self._end_content()

    @abstractmethod
    def close(self, usage: Usage) -> bytes:
        """The events that end the answer; `usage` is what it is charged."""

    @abstractmethod
    def whole(self, usage: Usage) -> dict[str, Any]:
        """The whole answer."""

    def _begin(self, model: str | None) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        self._model = model or self._model
        return self._opening()

    def _call_id(self, piece: CallPiece, own: str) -> str:
        """The id of a call: the upstream's, or this one."""
        return self._ids.setdefault(piece.call.number, piece.call.id or own)

    @abstractmethod
    def _opening(self) -> bytes:
        """The events before all others."""

    @abstractmethod
    def _take(self, event: Event) -> bytes:
        """The client's events for one event, which is no end."""

    @abstractmethod
    def _end_content(self) -> bytes:
        """The client's events for content that is still open."""
