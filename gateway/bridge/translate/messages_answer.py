"""A chat answer, plain or streamed, as a Message or the events of one.

The order of events is that of the API (platform.claude.com/docs, "Streaming messages"): message_start, for each block
content_block_start, its deltas and content_block_stop, then message_delta with the stop reason and usage, message_stop.
Blocks come one after the other. A plain answer is a stream of one chunk, so the two cannot differ.

Reasoning becomes a thinking block for a client that asked for thinking. Its signature is empty, because the upstream
has none. The counts in message_start are an estimate of the gateway, because chat reports usage at the end; those in
message_delta are the upstream's, and replace it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.formats.format import Unfit

from . import events
from .answer_stream import AnswerStream
from .chat_delta import CallPiece, ChatDelta, Counts, as_chunk
from .messages_request import AskedMessage

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""finish_reason -> stop_reason; any other, `stop` among them, is `end_turn`."""


class MessageFrame(NamedTuple):
    """The parts of an answer that are not in the upstream's."""

    base: str
    """The end of every id in the answer: that of the call, without its prefix."""
    model: str
    """As the client asked for it: used only where the upstream does not name one."""
    prompt_tokens: int
    """The gateway's estimate, which message_start has; the end too, where the upstream reports nothing."""


class MessageStream(AnswerStream):
    """Makes the events of one message."""

    def __init__(self, asked: AskedMessage, frame: MessageFrame) -> None:
        super().__init__(frame.model)
        self._asked = asked
        self._frame = frame
        self._blocks: list[dict[str, Any]] = []
        self._is_open = False
        self._call: int | str | None = None
        """The key of the call whose block is open."""
        self._held: dict[int | str, CallPiece] = {}
        """Calls whose names have not come."""
        self._started: set[int | str] = set()
        self._arguments: list[str] = []
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._stop_sequence: str | None = None
        self._estimated_output = 0

    def finish(self, *, completion_tokens: int = 0) -> bytes:
        """The upstream's stream is complete: end the open block and the message.

        `completion_tokens` is the gateway's estimate, for an upstream that reports no usage.
        """
        self._finish_reason()
        if self._held:
            raise Unfit("a tool call without a name")
        written = self._begin() + self._end_block()
        self._estimated_output = completion_tokens
        delta = {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        written += events.named("message_delta", delta)
        return written + events.named("message_stop", {"type": "message_stop"})

    def fail(self, kind: str, message: str) -> bytes:
        """The answer has failed: an error event of this type, which is all that a client notices."""
        return events.named("error", {"type": "error", "error": {"type": kind, "message": message}})

    def message(self) -> dict[str, Any]:
        """The whole message, once it has finished."""
        return {
            **self._start(),
            "content": list(self._blocks),
            **self._stop(),
            "usage": self._usage(),
        }

    # ------------------------------------------------------------------------------------------------------ the pieces

    def _start(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._frame.base}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_object(None, self._frame.prompt_tokens, 0),
        }

    def _opening(self) -> bytes:
        return events.named("message_start", {"type": "message_start", "message": self._start()})

    def _pass_on(self, delta: ChatDelta) -> bytes:
        self._stop_sequence = delta.stop_sequence or self._stop_sequence
        written = self._thinking(delta) + self._text(delta)
        for piece in delta.calls:
            written += self._piece(piece)
        return written

    def _thinking(self, delta: ChatDelta) -> bytes:
        if not delta.reasoning:
            return b""
        if not self._asked.shows_thinking:
            return events.PING  # the model is at work, and the client would see nothing of it
        written = self._be_in("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._texts.append(delta.reasoning)
        return written + self._delta({"type": "thinking_delta", "thinking": delta.reasoning})

    def _text(self, delta: ChatDelta) -> bytes:
        """Text; a refusal is addressed to the user, and so it is part of it."""
        if delta.refusal:
            self._refusals.append(delta.refusal)
        text = delta.text + delta.refusal
        if not text:
            return b""
        written = self._be_in("text", {"type": "text", "text": ""})
        self._texts.append(text)
        return written + self._delta({"type": "text_delta", "text": text})

    def _piece(self, piece: CallPiece) -> bytes:
        """A piece of a call. Without an index it belongs to the call of its id, or to the last one."""
        key: int | str | None = piece.position if piece.position is not None else piece.id or self._call
        key = "" if key is None else key
        if key in self._started:
            if not piece.arguments:
                return b""
            if key != self._call or not self._is_open:
                raise Unfit("pieces of two tool calls by turns")
            return self._input(piece.arguments)
        held = self._held.pop(key, CallPiece(None, "", "", ""))
        whole = CallPiece(None, held.id or piece.id, held.name or piece.name, held.arguments + piece.arguments)
        if not whole.name:
            self._held[key] = whole
            return b""
        written = self._end_block()
        self._call = key
        self._started.add(key)
        call_id = self.call_id(whole.id, f"toolu_{self._frame.base}_{len(self._blocks)}")
        written += self._be_in("tool_use", {"type": "tool_use", "id": call_id, "name": whole.name, "input": {}})
        return written + (self._input(whole.arguments) if whole.arguments else b"")

    def _input(self, arguments: str) -> bytes:
        self._arguments.append(arguments)
        return self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _be_in(self, kind: str, block: dict[str, Any]) -> bytes:
        """Be in a block of this kind. A call is always a new one."""
        if self._is_open and self._blocks[-1]["type"] == kind and kind != "tool_use":
            return b""
        written = self._end_block()
        self._blocks.append(block)
        self._is_open = True
        start = {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}
        return written + events.named("content_block_start", start)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        data = {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}
        return events.named("content_block_delta", data)

    def _end_block(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        block = self._blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = self._whole_input()
            self._arguments.clear()
        else:
            block[block["type"]] = "".join(self._texts)
            self._texts.clear()
        return events.named("content_block_stop", {"type": "content_block_stop", "index": len(self._blocks) - 1})

    def _whole_input(self) -> dict[str, Any]:
        """The input of a call. A call that the output limit has cut has none."""
        try:
            given = json.loads("".join(self._arguments) or "{}")
        except (ValueError, RecursionError):
            given = None
        if isinstance(given, dict):
            return given
        if self._reason == "length":
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
        has_calls = bool(self._started)
        if self._reason in _STOP_REASONS and (self._reason != "tool_calls" or has_calls):
            return _STOP_REASONS[self._reason]
        if self._refusals:
            return "refusal"
        if has_calls:
            return "tool_use"
        return "end_turn" if self._matched_stop() is None else "stop_sequence"

    def _matched_stop(self) -> str | None:
        """The stop sequence that ended the answer, where the upstream reports it."""
        is_own = self._reason == "stop" and self._stop_sequence in self._asked.stop_sequences
        return self._stop_sequence if is_own else None

    def _usage(self) -> dict[str, Any]:
        return usage_object(self._counts, self._frame.prompt_tokens, self._estimated_output)


def answer(
    asked: AskedMessage, frame: MessageFrame, chat: Mapping[str, Any], *, completion_tokens: int = 0
) -> dict[str, Any]:
    """The Message for a plain chat answer. Raises `Unfit`.

    `completion_tokens` is the gateway's estimate, for an upstream that reports no usage.
    """
    stream = MessageStream(asked, frame)
    stream.feed(as_chunk(chat))
    stream.finish(completion_tokens=completion_tokens)
    return stream.message()


def usage_object(usage: Counts | None, prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Usage as Messages has it, where `input_tokens` is the prompt without its cached parts.

    The two numbers are estimates for an upstream that reports nothing.
    """
    if usage is None:
        usage = Counts(prompt_tokens, 0, 0, completion_tokens, 0)
    shown: dict[str, Any] = {
        "input_tokens": usage.uncached,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
    if usage.reasoning:
        shown["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return shown
