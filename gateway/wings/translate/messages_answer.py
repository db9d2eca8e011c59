"""Writes a Message, plain or as events, of the events of another format's answer.

The order of events is that of the API (platform.claude.com/docs, "Streaming messages"): message_start, for each block
content_block_start, its deltas and content_block_stop, then message_delta with the stop reason and usage, message_stop.
Blocks come one after the other, also where the pieces of several come by turns: those of a later block wait until the
call before them is whole, or until the end.

Thoughts become a thinking block for a client that asked for thinking. Its signature is empty, because the upstream
has none. The counts in message_start are an estimate of the gateway; those in message_delta replace it. Pictures become
blocks of requests, because the API has none for them (CliRelay#1039, antigravity-claude-proxy#102).
"""

from __future__ import annotations

from typing import Any

from gateway.formats import sse
from gateway.formats.event_scan import parsed
from gateway.formats.events import CallPiece, CollectedCall, Event, Picture, Refusal, Text, Thought, Unfit
from gateway.formats.openai.frame import Frame
from gateway.records import Usage

from . import accepted
from .fields import TranslatedRequest
from .media import answered_image
from .writer import AnswerWriter, as_message

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""finish_reason -> stop_reason; any other, `stop` among them, is `end_turn`."""
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
"""Type of the deltas and their member with the text, by the type of a block."""
_PING = sse.typed_event({"type": "ping"})


class _Block:
    def __init__(self, block: dict[str, Any], call: CollectedCall | None = None) -> None:
        self.block = block
        self.kind: str = block["type"]
        self.call = call
        self.is_open = False
        self.pieces: list[str] = []
        self.sent = 0

    @property
    def is_whole(self) -> bool:
        """Whether no further piece of it can come, once another block has begun."""
        return self.call is None or self.call.is_whole


def _shows_thinking(thinking: Any) -> bool:
    """Whether the client asked for thinking, and not to omit it."""
    is_asked = isinstance(thinking, dict) and thinking.get("type") != "disabled"
    return is_asked and thinking.get("display") != "omitted"


def _delta(block: _Block, index: int, piece: str) -> bytes:
    kind, member = _DELTAS.get(block.kind, ("input_json_delta", "partial_json"))
    return sse.typed_event({"type": "content_block_delta", "index": index, "delta": {"type": kind, member: piece}})


class MessageWriter(AnswerWriter):
    def __init__(self, asked: TranslatedRequest, frame: Frame) -> None:
        super().__init__(frame)
        self._asked = asked
        self._shows_thinking = _shows_thinking(asked.members.get("thinking"))
        self._ended: list[dict[str, Any]] = []
        self._waiting: list[_Block] = []
        """The block that is being sent, and those behind it."""
        self._calls: dict[int, _Block] = {}
        self._refusals: list[str] = []

    def close(self, usage: Usage) -> bytes:
        delta = {"type": "message_delta", "delta": self._stop(), "usage": as_message(usage)}
        return sse.typed_event(delta) + sse.typed_event({"type": "message_stop"})

    def whole(self, usage: Usage) -> dict[str, Any]:
        return {**self._start(), "content": list(self._ended), **self._stop(), "usage": as_message(usage)}

    def _start(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._frame.base}", "type": "message", "role": "assistant", "model": self._model,
            "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": as_message(Usage(self._frame.prompt_tokens)),
        }  # fmt: skip

    def _opening(self) -> bytes:
        return sse.typed_event({"type": "message_start", "message": self._start()})

    def _take(self, event: Event) -> bytes:
        match event:
            case Text(text) if text:
                self._say("text", text)
            case Refusal(text):  # it is addressed to the user, and so it is part of the text
                self._refusals.append(text)
                self._say("text", text)
            case Thought(text) if self._shows_thinking:
                self._say("thinking", text)
            case Thought():
                return _PING  # the model is at work, and the client would see nothing of it
            case CallPiece():
                self._call(event)
            case Picture(url):
                self._waiting.append(_Block(answered_image(url)))
            case _:
                return b""
        return self._sent(is_last=False) or _PING

    def _say(self, kind: str, text: str) -> None:
        if not self._waiting or self._waiting[-1].kind != kind:
            empty = {"type": kind, kind: ""}
            self._waiting.append(_Block(empty | {"signature": ""} if kind == "thinking" else empty))
        self._waiting[-1].pieces.append(text)

    def _call(self, piece: CallPiece) -> None:
        block = self._calls.get(piece.call.number)
        if block is None:
            own = f"toolu_{self._frame.base}_{len(self._ended) + len(self._waiting)}"
            name = self._asked.names.get(piece.call.name, piece.call.name)
            call_id = accepted.messages_id(self._call_id(piece, own))
            block = _Block({"type": "tool_use", "id": call_id, "name": name, "input": {}}, piece.call)
            self._calls[piece.call.number] = block
            self._waiting.append(block)
        if piece.arguments:
            if block not in self._waiting and piece.arguments.strip():
                raise Unfit("arguments behind those of a whole tool call")
            block.pieces.append(piece.arguments)

    def _sent(self, *, is_last: bool) -> bytes:
        """The client's events for the blocks that wait; `is_last`: for all of them."""
        written = b""
        while self._waiting:
            block, index = self._waiting[0], len(self._ended)
            if not block.is_open:
                block.is_open = True
                start = {"type": "content_block_start", "index": index, "content_block": dict(block.block)}
                written += sse.typed_event(start)
            for piece in block.pieces[block.sent :]:
                written += _delta(block, index, piece)
            block.sent = len(block.pieces)
            if not (is_last or (len(self._waiting) > 1 and block.is_whole)):
                break
            if block.call is not None and (rest := block.call.rest()):
                written += _delta(block, index, rest)
                block.pieces.append(rest)
            written += sse.typed_event({"type": "content_block_stop", "index": index})
            text = "".join(block.pieces)
            content = {} if block.call is None else {"input": self._input(text)}
            self._ended.append(block.block | ({block.kind: text} if block.kind in _DELTAS else content))
            del self._waiting[0]
        return written

    def _end_content(self) -> bytes:
        return self._sent(is_last=True)

    def _input(self, arguments: str) -> dict[str, Any]:
        """The input of a call. A call that the output limit has cut has none."""
        if (given := parsed(arguments or "{}")) is not None:
            return given
        if self._reason == "length" or arguments.strip() == "null":
            return {}
        raise Unfit("a tool call whose arguments are no JSON object")

    def _stop(self) -> dict[str, Any]:
        """Why the answer ended. A refusal has details (anthropic-sdk, RefusalStopDetails); chat knows no category."""
        reason = self._stop_reason()
        stop: dict[str, Any] = {"stop_reason": reason, "stop_sequence": self._matched_stop()}
        if reason == "refusal":
            explanation = "".join(self._refusals) or None
            stop["stop_details"] = {"type": "refusal", "category": None, "explanation": explanation}
        return stop

    def _stop_reason(self) -> str:
        if self._reason in _STOP_REASONS and (self._reason != "tool_calls" or self._calls):
            return _STOP_REASONS[self._reason]
        if self._refusals:
            return "refusal"
        if self._calls:
            return "tool_use"
        return "end_turn" if self._matched_stop() is None else "stop_sequence"

    def _matched_stop(self) -> str | None:
        """The stop sequence that ended the answer, where the upstream reports it."""
        is_own = self._reason == "stop" and self._stop_sequence in (self._asked.members.get("stop_sequences") or ())
        return self._stop_sequence if is_own else None
