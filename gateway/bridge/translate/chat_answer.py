"""Writes a chat answer, plain or as chunks, of the events of another format's answer.

Thoughts become `reasoning_content`. A block of thoughts with its signature also comes as a member of
`thinking_blocks`, which a client may send back in the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.formats.events import CallPiece, Event, KeptThought, Refusal, Text, Thought
from gateway.records import Usage

from . import events
from .usage_objects import as_chat
from .writer import AnswerWriter


class ChatFrame(NamedTuple):
    """The parts of an answer that are not in the upstream's."""

    base: str
    """The end of the answer's id: that of the call, without its prefix."""
    created: int
    """Unix time in seconds."""
    model: str
    """As the client asked for it: used only where the upstream does not name one."""
    shows_usage: bool = False
    """Whether the client of a stream asked for usage."""


class ChatWriter(AnswerWriter):
    """Writes one chat answer of one choice."""

    def __init__(self, frame: ChatFrame, names: Mapping[str, str]) -> None:
        super().__init__(frame.model)
        self._frame = frame
        self._names = names
        """The client's names of tools, by the upstream's where they differ."""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._refusals: list[str] = []
        self._kept: list[Mapping[str, Any]] = []
        self._calls: dict[int, CallPiece] = {}
        """The first piece of each call, by its number."""

    def close(self, usage: Usage) -> bytes:
        if not self._frame.shows_usage:
            return events.DONE
        return events.unnamed({**self._around("chat.completion.chunk", []), "usage": as_chat(usage)}) + events.DONE

    def whole(self, usage: Usage) -> dict[str, Any]:
        calls = [self._called(piece, piece.call.arguments) for piece in self._calls.values()]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self._texts) if self._texts or not calls else None,
            "refusal": "".join(self._refusals) or None,
        }
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._kept:
            message["thinking_blocks"] = self._kept
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        return {**self._around("chat.completion", [choice]), "usage": as_chat(usage)}

    def _opening(self) -> bytes:
        return self._write({"role": "assistant", "content": ""})

    def _take(self, event: Event) -> bytes:
        match event:
            case Text(text):
                self._texts.append(text)
                return self._write({"content": text}) if text else b""
            case Thought(text):
                self._thoughts.append(text)
                return self._write({"reasoning_content": text})
            case KeptThought(block):
                self._kept.append(block)
                return self._write({"thinking_blocks": [block]})
            case Refusal(text):
                self._refusals.append(text)
                return self._write({"refusal": text})
            case CallPiece(call, arguments):
                written = b""
                if call.number not in self._calls:
                    self._calls[call.number] = event
                    written = self._write({"tool_calls": [{"index": call.number, **self._called(event, "")}]})
                if not arguments:
                    return written
                return written + self._write(
                    {"tool_calls": [{"index": call.number, "function": {"arguments": arguments}}]}
                )
            case _:
                return b""

    def _called(self, piece: CallPiece, arguments: str) -> dict[str, Any]:
        call_id = self._call_id(piece, f"call_{self._frame.base}_{piece.call.number}")
        name = self._names.get(piece.call.name, piece.call.name)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _end_content(self) -> bytes:
        return self._write({}, self._reason)

    def _write(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = self._around("chat.completion.chunk", [choice])
        if self._frame.shows_usage:
            chunk["usage"] = None
        return events.unnamed(chunk)

    def _around(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._frame.base}",
            "object": kind,
            "created": self._frame.created,
            "model": self._model,
            "choices": choices,
        }
