"""A Message, plain or as events, as a chat answer or the chunks of one.

Text blocks become the content, thinking becomes `reasoning_content`. A thinking block with its signature also comes as
a member of `thinking_blocks`, which a client may send back in the next call. Other blocks were not asked for: such an
answer is `Unfit`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.formats.format import Unfit

from . import events
from .custom_input import compact

_FINISH_REASONS = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "model_context_window_exceeded": "length",
    "tool_use": "tool_calls", "refusal": "content_filter",
}  # fmt: skip
"""stop_reason -> finish_reason. `pause_turn` belongs to server tools, which were not offered."""
_THINKING = frozenset({"thinking", "redacted_thinking"})


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


def answer(frame: ChatFrame, message: Mapping[str, Any]) -> dict[str, Any]:
    """The chat answer for a plain Message. Raises `Unfit`."""
    content = message.get("content")
    if message.get("type") != "message" or not isinstance(content, list):
        raise Unfit("an answer that is no message")
    answer: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    texts, thoughts, kept, calls = [], [], [], []
    for block in content:
        match _kind(block):
            case "text":
                texts.append(str(block.get("text") or ""))
            case "thinking" | "redacted_thinking":
                thoughts.append(str(block.get("thinking") or ""))
                kept.append(block)
            case _:
                function = {"name": _string(block, "name"), "arguments": compact(block.get("input") or {})}
                calls.append({"id": _string(block, "id"), "type": "function", "function": function})
    if texts or not calls:
        answer["content"] = "".join(texts)
    if any(thoughts):
        answer["reasoning_content"] = "".join(thoughts)
    if kept:
        answer["thinking_blocks"] = kept
    if calls:
        answer["tool_calls"] = calls
    answer["refusal"] = _refusal(message)
    choice = {
        "index": 0,
        "message": answer,
        "logprobs": None,
        "finish_reason": _finish_reason(message.get("stop_reason")),
    }
    return {
        "id": f"chatcmpl-{frame.base}",
        "object": "chat.completion",
        "created": frame.created,
        "model": message["model"] if isinstance(message.get("model"), str) else frame.model,
        "choices": [choice],
        "usage": usage_object(message.get("usage")),
    }


class ChatStream:
    """Makes the chunks of a chat stream from the events of a Message.

    Every method returns bytes for the client. `feed` and `finish` raise `Unfit` for an answer that cannot be
    translated.
    """

    def __init__(self, frame: ChatFrame) -> None:
        self._frame = frame
        self._model = frame.model
        self._usage: dict[str, Any] = {}
        self._calls = 0
        self._block: dict[str, Any] = {}
        self._has_input = False
        self._has_finished = False

    def feed(self, event: Mapping[str, Any]) -> bytes:
        """Take one event, parsed. Pings and events of unknown types have no meaning for a chat client."""
        match event.get("type"):
            case "message_start":
                return self._start(event.get("message"))
            case "content_block_start":
                return self._begin_block(event.get("content_block"))
            case "content_block_delta":
                return self._delta(event.get("delta"))
            case "content_block_stop":
                return self._end_block()
            case "message_delta":
                return self._end(event)
            case _:
                return b""

    def finish(self, *, completion_tokens: int = 0) -> bytes:
        """The upstream's stream is complete: the usage chunk, if the client asked for it, and `[DONE]`."""
        if not self._has_finished:
            raise Unfit("a message without a stop_reason")
        usage = usage_object(self._usage)
        if not self._frame.shows_usage or usage is None:
            return events.DONE
        return events.unnamed({**self._around([]), "usage": usage}) + events.DONE

    def _start(self, message: Any) -> bytes:
        if not isinstance(message, dict):
            raise Unfit("a message_start without a message")
        if isinstance(message.get("model"), str):
            self._model = message["model"]
        self._note(message.get("usage"))
        return self._write({"role": "assistant", "content": ""})

    def _begin_block(self, block: Any) -> bytes:
        kind = _kind(block)
        self._block = dict(block)
        self._has_input = False
        if kind == "tool_use":
            function = {"name": _string(block, "name"), "arguments": ""}
            self._calls += 1
            return self._call({"id": _string(block, "id"), "type": "function", "function": function})
        first = block.get(kind) if kind in ("text", "thinking") else None
        return self._say(kind, first) if isinstance(first, str) else b""

    def _delta(self, delta: Any) -> bytes:
        given = delta if isinstance(delta, dict) else {}
        match given.get("type"):
            case "text_delta":
                return self._say("text", given.get("text"))
            case "thinking_delta":
                thought = given.get("thinking")
                if isinstance(thought, str):
                    self._block["thinking"] = str(self._block.get("thinking") or "") + thought
                return self._say("thinking", thought)
            case "signature_delta":
                self._block["signature"] = given.get("signature")
                return b""
            case "input_json_delta":
                piece = given.get("partial_json")
                if not isinstance(piece, str) or not piece:
                    return b""
                self._has_input = True
                return self._call({"function": {"arguments": piece}})
            case _:
                return b""  # citations, which were not asked for

    def _end_block(self) -> bytes:
        block, self._block = self._block, {}
        if block.get("type") in _THINKING:
            return self._write({"thinking_blocks": [block]})
        if block.get("type") == "tool_use" and not self._has_input:
            return self._call({"function": {"arguments": compact(block.get("input") or {})}})
        return b""

    def _end(self, event: Mapping[str, Any]) -> bytes:
        self._note(event.get("usage"))
        delta = event.get("delta")
        reason = delta.get("stop_reason") if isinstance(delta, dict) else None
        if reason is None:
            return b""
        self._has_finished = True
        refusal = _refusal(delta) if isinstance(delta, dict) else None
        written = b"" if refusal is None else self._write({"refusal": refusal})
        return written + self._write({}, _finish_reason(reason))

    def _note(self, usage: Any) -> None:
        """Usage is cumulative, and null means as before. The input side is one set: an event that reports
        `input_tokens` replaces all of it (clones count the cache in one event and not in the other)."""
        given = {name: value for name, value in usage.items() if value is not None} if isinstance(usage, dict) else {}
        if "input_tokens" in given:
            for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):
                self._usage.pop(name, None)
        self._usage |= given

    def _say(self, kind: str, text: Any) -> bytes:
        if not isinstance(text, str) or not text:
            return b""
        return self._write({"content" if kind == "text" else "reasoning_content": text})

    def _call(self, piece: dict[str, Any]) -> bytes:
        return self._write({"tool_calls": [{"index": self._calls - 1, **piece}]})

    def _write(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = self._around([choice])
        if self._frame.shows_usage:
            chunk["usage"] = None
        return events.unnamed(chunk)

    def _around(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._frame.base}",
            "object": "chat.completion.chunk",
            "created": self._frame.created,
            "model": self._model,
            "choices": choices,
        }


def usage_object(usage: Any) -> dict[str, Any] | None:
    """Usage as chat has it, where the prompt includes its cached parts; None where there is none."""
    if not isinstance(usage, dict) or not isinstance(usage.get("output_tokens"), int):
        return None
    cached, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    prompt = _count(usage, "input_tokens") + cached + written
    completion = usage["output_tokens"]
    shown: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
    }
    details = usage.get("output_tokens_details")
    if isinstance(details, dict) and _count(details, "thinking_tokens"):
        shown["completion_tokens_details"] = {"reasoning_tokens": details["thinking_tokens"]}
    return shown


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int and value > 0 else 0


def _kind(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in ("text", "thinking", "redacted_thinking", "tool_use"):
        raise Unfit(f"a block of type {json.dumps(kind)}")
    return str(kind)


def _string(block: Mapping[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise Unfit(f"a tool call without {name}")
    return value


def _finish_reason(reason: Any) -> str:
    if reason not in _FINISH_REASONS:
        raise Unfit(f"the stop_reason {json.dumps(reason)}")
    return _FINISH_REASONS[reason]


def _refusal(ended: Mapping[str, Any]) -> str | None:
    """The explanation of a refusal, where there is one."""
    details = ended.get("stop_details")
    text = details.get("explanation") if isinstance(details, dict) and ended.get("stop_reason") == "refusal" else None
    return text if isinstance(text, str) and text else None
