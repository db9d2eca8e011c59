"""Reads answers of Anthropic's Messages API: whole messages, and the events of their streams.

`message_start` brings the model and the first usage, `message_delta` the stop reason and the last usage. The pieces of
a block name it by `index`; a block may bring its whole content when it starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.formats import reported_usage
from gateway.formats.events import CallPiece, Ended, Event, KeptThought, Refusal, Text, Thought
from gateway.formats.reader import AnswerReader, text_of
from gateway.formats.tool_calls import CollectedCall, ToolCalls, as_arguments
from gateway.formats.unfit import Unfit
from gateway.records import Usage

from .usage import MessagesUsage

_REASONS: Mapping[str, str] = {
    "stop_sequence": "stop", "max_tokens": "length", "model_context_window_exceeded": "length",
    "tool_use": "tool_calls", "refusal": "content_filter",
}  # fmt: skip
"""stop_reason -> finish_reason (anthropic-sdk, `StopReason`); any other, `end_turn` among them, is `stop`."""
_THINKING = frozenset({"thinking", "redacted_thinking"})


class MessagesReader(AnswerReader):
    """Follows one answer. `has_stopped`: its stop reason has come."""

    WANTED = (
        ("type",), ("message", "model"), ("message", "usage"), ("model",), ("usage",), ("error",),
        ("delta", "stop_reason"), ("stop_reason",),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.has_stopped = False
        self._usage = MessagesUsage()
        self._output = 0
        """The most tokens of output that a report had."""
        self._calls = ToolCalls()
        self._blocks: dict[Any, dict[str, Any]] = {}
        """The blocks that have not ended, by their indexes."""
        self._open_calls: dict[Any, CollectedCall] = {}

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        kind, error = value.get("type"), value.get("error")
        if kind == "error" or (isinstance(error, str | dict) and error):
            self.take_error(error)
            return None
        message = value.get("message") if kind == "message_start" else value
        delta = value.get("delta") if kind == "message_delta" else message
        if isinstance(message, dict):
            self.take_model(message.get("model"))
        if isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
            self.has_stopped = True
        report = message.get("usage") if isinstance(message, dict) else None
        # The report at the start has a few tokens of output, and a last one below it does not count the output either.
        output = reported_usage.count(report.get("output_tokens")) if isinstance(report, dict) else None
        self.counts_output = kind != "message_start" and output is not None and output >= self._output
        self._output = max(self._output, output or 0)
        return self._usage.take(value)

    def events(self, value: Mapping[str, Any]) -> list[Event]:
        index = value.get("index")
        match value.get("type"):
            case "message":
                return self._message(value)
            case "message_start" if not isinstance(value.get("message"), dict):
                raise Unfit("a message_start without a message")
            case "content_block_start":
                return [*self._end_block(index), *self._begin_block(index, value.get("content_block"))]
            case "content_block_delta":
                return self._delta(index, value.get("delta"))
            case "content_block_stop":
                return self._end_block(index)
            case "message_delta":
                return [*self.rest(), *_ended(value.get("delta"))]
            case _:
                return []  # pings, and events of unknown types

    def rest(self) -> list[Event]:
        return [event for index in list(self._blocks) for event in self._end_block(index)]

    def _message(self, message: Mapping[str, Any]) -> list[Event]:
        content = message.get("content")
        if not isinstance(content, list):
            raise Unfit("an answer that is no message")
        found: list[Event] = []
        for index, block in enumerate(content):
            found += [*self._begin_block(index, block), *self._end_block(index)]
        return [*found, *_ended(message)]

    def _begin_block(self, index: Any, block: Any) -> list[Event]:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in ("text", "tool_use", *_THINKING):
            raise Unfit(f"a block of type {json.dumps(kind)}")
        self._blocks[index] = dict(block)
        if kind == "tool_use":
            call_id, name = block.get("id"), block.get("name")
            if not isinstance(call_id, str) or not isinstance(name, str):
                raise Unfit(f"a tool call without {'name' if isinstance(call_id, str) else 'id'}")
            call = self._open_calls[index] = self._calls.begin(call_id, name)
            return [CallPiece(call, "")]
        return _shown(kind, text_of(block.get(kind)))

    def _delta(self, index: Any, given: Any) -> list[Event]:
        delta = given if isinstance(given, dict) else {}
        block = self._blocks.get(index, {})
        match delta.get("type"):
            case "text_delta":
                return _shown("text", text_of(delta.get("text")))
            case "thinking_delta":
                thought = text_of(delta.get("thinking"))
                block["thinking"] = text_of(block.get("thinking")) + thought
                return _shown("thinking", thought)
            case "signature_delta":
                block["signature"] = delta.get("signature")
                return []
            case "input_json_delta" if (call := self._open_calls.get(index)) is not None:
                piece = call.take("", "", text_of(delta.get("partial_json")))
                return [CallPiece(call, piece)] if piece else []
            case _:
                return []  # citations, which were not asked for

    def _end_block(self, index: Any) -> list[Event]:
        block, call = self._blocks.pop(index, {}), self._open_calls.pop(index, None)
        if call is not None:
            given = "" if call.arguments else call.take("", "", as_arguments(block.get("input") or {})) or ""
            rest = given + call.rest()
            return [CallPiece(call, rest)] if rest else []
        return [KeptThought(block)] if block.get("type") in _THINKING else []


def _shown(kind: str, text: str) -> list[Event]:
    if not text or kind == "redacted_thinking":
        return []
    return [Text(text) if kind == "text" else Thought(text)]


def _ended(given: Any) -> list[Event]:
    """The end in a message or a delta, behind the explanation of a refusal (anthropic-sdk, RefusalStopDetails)."""
    if not isinstance(given, dict) or not isinstance(given.get("stop_reason"), str):
        return []
    reason, details = given["stop_reason"], given.get("stop_details")
    if reason == "pause_turn":
        raise Unfit("an answer that waits for a server tool, and none was offered")
    text = text_of(details.get("explanation")) if reason == "refusal" and isinstance(details, dict) else ""
    stop = given.get("stop_sequence")
    ended = Ended(_REASONS.get(reason, "stop"), stop if isinstance(stop, str) else None)
    return [Refusal(text), ended] if text else [ended]
