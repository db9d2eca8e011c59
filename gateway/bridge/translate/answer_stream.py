"""The common part of the streams of a Message and of a response: a chat stream is read chunk by chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from gateway.formats.format import Unfit

from .chat_delta import ChatDelta, Counts, counts, read


class AnswerStream(ABC):
    """Makes the events of one answer from the chunks of a chat stream.

    Every method returns bytes for the client. `feed` and `finish` raise `Unfit` for an answer that cannot be
    translated; the caller then uses `fail`. `model` is as the client asked for it: the upstream's name replaces it.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._has_begun = False
        self._reason: str | None = None
        """The finish_reason."""
        self._counts: Counts | None = None
        self._call_ids: set[str] = set()

    @property
    def has_begun(self) -> bool:
        """Whether an event was returned."""
        return self._has_begun

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """Take one chunk."""
        if not self._has_begun and isinstance(chunk.get("model"), str) and chunk["model"]:
            self._model = chunk["model"]
        self._counts = counts(chunk.get("usage")) or self._counts
        written = self._begin()
        delta = read(chunk)
        if delta is None:
            return written
        written += self._pass_on(delta)
        self._reason = delta.finish_reason or self._reason
        return written

    def call_id(self, given: str, own: str) -> str:
        """The id of a call: the upstream's, unless it has none or has used it before."""
        call_id = own if not given or given in self._call_ids else given
        self._call_ids.add(call_id)
        return call_id

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        return self._opening()

    def _finish_reason(self) -> str:
        """That of the whole stream. Raises `Unfit`."""
        if self._reason is None:
            raise Unfit("a choice without a finish_reason")
        return self._reason

    @abstractmethod
    def _opening(self) -> bytes:
        """The events before all others."""

    @abstractmethod
    def _pass_on(self, delta: ChatDelta) -> bytes:
        """The events of one piece of the answer."""
