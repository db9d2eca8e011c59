"""Writes a chat answer, plain or as chunks, of the events of another format's answer.

Thoughts become `reasoning_content`. A block of thoughts with its signature also comes as a member of
`thinking_blocks`, which a client may send back in the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.formats import sse
from gateway.formats.events import CallPiece, Event, KeptThought, Refusal, Text, Thought
from gateway.formats.openai.frame import Frame, as_chat
from gateway.records import Usage

from .fields import TranslatedRequest
from .writer import AnswerWriter

_CHUNK = "chat.completion.chunk"
_MEMBERS = {Text: "content", Thought: "reasoning_content", Refusal: "refusal"}


class ChatWriter(AnswerWriter):
    def __init__(self, asked: TranslatedRequest, frame: Frame) -> None:
        super().__init__(frame)
        self._asked = asked
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
        """Texts of the deltas, by member of the message."""
        self._kept: list[Mapping[str, Any]] = []
        self._calls: dict[int, CallPiece] = {}

    def close(self, usage: Usage) -> bytes:
        if not self._frame.shows_usage:
            return sse.DONE
        chunk = self._frame.around("chatcmpl-", _CHUNK, self._model, [])
        return sse.json_event({**chunk, "usage": as_chat(usage)}) + sse.DONE

    def whole(self, usage: Usage) -> dict[str, Any]:
        calls = [self._called(piece, piece.call.arguments) for piece in self._calls.values()]
        text, thoughts, refusal = map("".join, self._texts.values())
        content = text if self._texts["content"] or not calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal or None}
        if self._texts["reasoning_content"]:
            message["reasoning_content"] = thoughts
        if self._kept:
            message["thinking_blocks"] = self._kept
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        return {**self._frame.around("chatcmpl-", "chat.completion", self._model, [choice]), "usage": as_chat(usage)}

    def _opening(self) -> bytes:
        return self._write({"role": "assistant", "content": ""})

    def _take(self, event: Event) -> bytes:
        match event:
            case Text(text) | Thought(text) | Refusal(text):
                member = _MEMBERS[type(event)]
                self._texts[member].append(text)
                return self._write({member: text}) if text else b""
            case KeptThought(block):
                self._kept.append(block)
                return self._write({"thinking_blocks": [block]})
            case CallPiece(call, arguments):
                deltas: list[dict[str, Any]] = [{"function": {"arguments": arguments}}] if arguments else []
                if call.number not in self._calls:
                    self._calls[call.number] = event
                    deltas.insert(0, self._called(event, ""))
                return b"".join([self._write({"tool_calls": [{"index": call.number, **each}]}) for each in deltas])
            case _:
                return b""

    def _called(self, piece: CallPiece, arguments: str) -> dict[str, Any]:
        call_id = self._call_id(piece, f"call_{self._frame.base}_{piece.call.number}")
        name = self._asked.names.get(piece.call.name, piece.call.name)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _end_content(self) -> bytes:
        return self._write({}, self._reason)

    def _write(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = self._frame.around("chatcmpl-", _CHUNK, self._model, [choice])
        if self._frame.shows_usage:
            chunk["usage"] = None
        return sse.json_event(chunk)
