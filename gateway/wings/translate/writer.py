"""The base of the writers, which make a client's answer of the events of an upstream's (`formats/events.py`).

A whole answer is written as a stream whose bytes are not used, so the two cannot differ. The usage that
the client gets is the usage that is charged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from gateway.formats.events import CallPiece, Ended, Event, Unfit
from gateway.formats.format import Writer
from gateway.formats.openai.frame import Frame, cache_writes
from gateway.records import Usage


class AnswerWriter(Writer):
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._model = frame.model
        self._has_begun = False
        self._reason: str | None = None
        self._stop_sequence: str | None = None
        self._ids: dict[int, str] = {}

    def feed(self, events: Iterable[Event], model: str | None) -> bytes:
        written = self._begin(model)
        for event in events:
            if isinstance(event, Ended):
                self._reason = event.reason or self._reason
                self._stop_sequence = event.stop_sequence or self._stop_sequence
            else:
                written += self._take(event)
        return written

    def end(self) -> bytes:
        if self._reason is None:
            raise Unfit("a choice without a finish_reason")
        return self._begin(None) + self._end_content()

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


def as_message(usage: Usage) -> dict[str, Any]:
    """Returns the usage in the format of Messages, where `input_tokens` is the prompt without its cached parts
    (anthropic-sdk, `Usage`)."""
    short, longer = cache_writes(usage)
    shown: dict[str, Any] = {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - short - longer),
        "cache_creation_input_tokens": short + longer,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
    if longer:
        shown["cache_creation"] = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": longer}
    if usage.reasoning_tokens:
        shown["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return shown


def as_response(usage: Usage) -> dict[str, Any]:
    """Returns the usage in the format of Responses (openai-python, `ResponseUsage`)."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": sum(cache_writes(usage))},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
