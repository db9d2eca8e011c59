"""Anthropic's Messages API in the simulator: a message is generated as a chat would be, and billed with its cache.

1. A `cache_control` marks the end of a prefix of the prompt (tools, system, messages). The longest marked prefix that
   an earlier call has marked is read from the cache; what is marked beyond it is written. Anthropic's smallest prefix
   and the cache's end in time are not simulated.
2. A prompt costs the text of its blocks and one token for each message; blocks that are not text cost their compact
   JSON, pictures and files `PART_TOKENS`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import uuid4

from pydantic import Field

from .choices import PART_TOKENS, Output, chat, compact
from .requests import ChatRequest, GenerationRequest
from .text import count_tokens, key_of

PREFIXES_KEPT = 1000
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}


class MessageRequest(GenerationRequest):
    """The body of POST /v1/messages."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int = Field(ge=0)
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        choice: Any = None
        if self.tool_choice is not None and self.tool_choice.get("type") in ("tool", "none"):
            name = self.tool_choice.get("name")
            choice = "none" if name is None else {"function": {"name": name}}
        tools = [
            {"function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
            for tool in self.tools or []
        ]
        return ChatRequest(
            model=self.model, simulate=self.simulate, messages=[_as_chat(message) for message in self.messages],
            max_tokens=self.max_tokens, stop=self.stop_sequences or None, tools=tools or None, tool_choice=choice,
        )  # fmt: skip


def _as_chat(message: dict[str, Any]) -> dict[str, Any]:
    blocks = _blocks(message.get("content"))
    has_result = any(block.get("type") == "tool_result" for block in blocks)
    return {"role": "tool" if has_result else message.get("role"), "content": compact(blocks)}


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


class PromptUsage(NamedTuple):
    """Tokens of a prompt by how they are billed."""

    fresh: int = 0
    written: int = 0
    written_1h: int = 0
    read: int = 0

    @property
    def total(self) -> int:
        return self.fresh + self.written + self.written_1h + self.read


class PromptCache:
    """The prefixes that earlier calls have marked."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def bill(self, request: MessageRequest) -> PromptUsage:
        """How the prompt is billed; its marked prefixes are in the cache from now on."""
        key = key_of(request.model)
        total = read = marked = 0
        longest = "5m"
        for block, extra in _prompt(request):
            mark = block.get("cache_control")
            plain = {name: value for name, value in block.items() if name != "cache_control"}
            total += extra + _tokens(plain)
            key = key_of(key, compact(plain))
            if isinstance(mark, dict):
                marked, longest = total, str(mark.get("ttl", "5m"))
                if key in self._known:
                    read = total
                self._known[key] = None
                self._known.move_to_end(key)
        while len(self._known) > PREFIXES_KEPT:
            self._known.popitem(last=False)
        written, is_long = max(0, marked - read), longest == "1h"
        return PromptUsage(total - max(marked, read), 0 if is_long else written, written if is_long else 0, read)


def _prompt(request: MessageRequest) -> Iterator[tuple[dict[str, Any], int]]:
    """The blocks of a prompt in their order, each with the number of tokens before it."""
    for tool in request.tools or []:
        yield tool, 0
    for block in _blocks(request.system):
        yield block, 0
    for message in request.messages:
        for number, block in enumerate(_blocks(message.get("content"))):
            yield block, int(number == 0)


def _tokens(block: dict[str, Any]) -> int:
    if block.get("type") in ("image", "document"):
        return PART_TOKENS
    text = block.get("text")
    return count_tokens(text if isinstance(text, str) else compact(block))


class SimulatedMessage:
    """A generated message: its usage, its body and its events."""

    def __init__(self, request: MessageRequest, prompt: PromptUsage) -> None:
        self.output: Output = chat(request.as_chat()).choices[0].output
        self.prompt = prompt
        self._model = request.model

    @property
    def usage(self) -> dict[str, Any]:
        split = {
            "ephemeral_5m_input_tokens": self.prompt.written, "ephemeral_1h_input_tokens": self.prompt.written_1h,
        }  # fmt: skip
        return {
            "input_tokens": self.prompt.fresh,
            "cache_creation_input_tokens": self.prompt.written + self.prompt.written_1h,
            "cache_read_input_tokens": self.prompt.read,
            "cache_creation": split,
            "output_tokens": self.output.cost,
            "service_tier": "standard",
        }

    def body(self) -> bytes:
        return json.dumps(self._message(self._content(), _REASONS[self.output.finish_reason])).encode()

    def _message(self, content: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
        return {
            "id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": self._model,
            "content": content, "stop_reason": reason, "stop_sequence": None, "usage": self.usage,
        }  # fmt: skip

    def _content(self) -> list[dict[str, Any]]:
        call = self.output.tool_call
        if call is None:
            return [{"type": "text", "text": self.output.text}]
        try:
            given = json.loads("".join(call.arguments))
        except ValueError:  # cut by the limit
            given = {}
        return [{"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.name, "input": given}]

    def events(self, tokens_per_event: int) -> Iterator[tuple[bytes, int, int]]:
        """The stream without its end: bytes, the tokens before them, and the tokens in them."""
        begun = self._message([], None)
        begun["usage"] = self.usage | {"output_tokens": 0}
        yield event("message_start", message=begun) + PING, 0, 0
        block = self._content()[0]
        call, tokens, name = self.output.tool_call, self.output.tokens, 0
        if call is not None:
            tokens, name = call.arguments, call.tokens - len(call.arguments)
        empty: dict[str, Any] = {"text": ""} if call is None else {"input": {}}
        yield event("content_block_start", index=0, content_block=block | empty), 0, name
        for at in range(0, len(tokens), tokens_per_event):
            some = tokens[at : at + tokens_per_event]
            kind, member = ("input_json_delta", "partial_json") if call is not None else ("text_delta", "text")
            delta = {"type": kind, member: "".join(some)}
            yield event("content_block_delta", index=0, delta=delta), name + at, len(some)
        usage = {name: value for name, value in self.usage.items() if name not in ("cache_creation", "service_tier")}
        reason = {"stop_reason": _REASONS[self.output.finish_reason], "stop_sequence": None}
        end = event("content_block_stop", index=0)
        yield end + event("message_delta", delta=reason, usage=usage), self.output.cost, 0


END = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def event(kind: str, **members: Any) -> bytes:
    """Encodes an SSE event, whose data has the event's name as `type`."""
    return f"event: {kind}\ndata: {compact({'type': kind, **members})}\n\n".encode()


def error_body(status: int, message: str, request_id: str) -> bytes:
    """Encodes Anthropic's error object, with the error type of the HTTP status."""
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}).encode()
