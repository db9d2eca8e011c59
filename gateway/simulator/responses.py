"""OpenAI's Responses API of the simulated upstream: a response is generated like the chat that it amounts to.

Output is a reasoning item (its tokens are not shown), then a message or a function call. No response is stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from pydantic import Field

from .answers import SimulatedEvent, encode
from .choices import Generated, GeneratedUsage, Output, compact
from .requests import ChatRequest, SimulatedCall


class ResponseRequest(SimulatedCall):
    """The body of POST /v1/responses."""

    input: str | list[dict[str, Any]] = ""
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=16)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    text: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.stream)

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation, which may be a member of an object."""
        given = self.conversation
        return str(given.get("id", "")) if isinstance(given, dict) else given

    @property
    def needs_a_store(self) -> bool:
        """Whether another response, a conversation or a later read belongs to it."""
        return bool(self.background) or self.previous_response_id is not None or self.conversation is not None

    @property
    def own_items(self) -> list[dict[str, Any]]:
        """Returns the items of `input`; a string becomes one message of the user."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else list(self.input)


def as_chat(asked: ResponseRequest) -> ChatRequest:
    """The chat that decides text, usage and tool call."""
    messages = [_message(item) for item in asked.own_items]
    if asked.instructions is not None:
        messages.insert(0, {"role": "system", "content": asked.instructions})
    tools = [
        {"type": "function", "function": {name: tool.get(name) for name in ("name", "parameters")}}
        for tool in asked.tools or []
        if tool.get("type") == "function"
    ]
    choice = asked.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    form = (asked.text or {}).get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    return ChatRequest(
        model=asked.model, messages=messages or [{"role": "user", "content": ""}], tools=tools or None,
        tool_choice=choice, response_format=form, max_completion_tokens=asked.max_output_tokens,
        simulate=asked.simulate,
    )  # fmt: skip


def _message(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": _text(item.get("output"))}
    if "role" in item:
        return {"role": item["role"], "content": item.get("content")}
    return {"role": "assistant", "content": compact(item)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else compact(value)


def response_events(made: SimulatedResponse, tokens_per_event: int) -> Iterator[SimulatedEvent]:
    """The stream of POST /v1/responses; it has no `[DONE]`."""
    for number, (event, step, tokens, reasoning) in enumerate(made.events(tokens_per_event)):
        data = encode({"type": event["type"], "sequence_number": number} | event)
        yield SimulatedEvent(f"event: {event['type']}\ndata: {data}\n\n".encode(), step, tokens, reasoning)


class SimulatedResponse:
    """One response in both of its forms."""

    def __init__(self, asked: ResponseRequest, generated: Generated) -> None:
        self._asked = asked
        self._output: Output = generated.choices[0].output
        self.usage, self.longest = generated.usage, generated.longest
        self._id, self._created = f"resp_{uuid4().hex}", int(time.time())
        self._items = list(self._make_items())

    def _make_items(self) -> Iterator[dict[str, Any]]:
        output = self._output
        if output.reasoning:
            yield {"type": "reasoning", "id": f"rs_{uuid4().hex}", "summary": []}
        if (call := output.tool_call) is not None:
            yield {
                "type": "function_call", "id": f"fc_{uuid4().hex}", "call_id": call.id, "status": "completed",
                "name": call.name, "arguments": "".join(call.arguments),
            }  # fmt: skip
        elif output.tokens:
            part = {"type": "output_text", "text": output.text, "annotations": [], "logprobs": []}
            yield {
                "type": "message", "id": f"msg_{uuid4().hex}", "status": "completed", "role": "assistant",
                "content": [part],
            }  # fmt: skip

    def whole(self) -> dict[str, Any]:
        """Returns the response object in its final state, completed or incomplete."""
        is_cut = self._output.finish_reason == "length"
        return self._stamped(
            status="incomplete" if is_cut else "completed",
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            output=self._items,
            usage=response_usage(self.usage),
        )

    def _stamped(self, **more: Any) -> dict[str, Any]:
        return {
            "id": self._id, "object": "response", "created_at": self._created, "error": None,
            "incomplete_details": None, "instructions": self._asked.instructions, "model": self._asked.model,
            "parallel_tool_calls": True, "tool_choice": self._asked.tool_choice or "auto",
            "tools": self._asked.tools or [], "metadata": {}, "background": bool(self._asked.background),
            "store": self._asked.store is not False, "previous_response_id": self._asked.previous_response_id,
            "conversation": {"id": name} if (name := self._asked.conversation_id) else None,
        } | more  # fmt: skip

    def events(self, tokens_per_event: int) -> Iterator[tuple[dict[str, Any], int, int, int]]:
        """Events, each with its step and the tokens and reasoning tokens that were generated for it."""
        started = self._stamped(status="in_progress", output=[], usage=None)
        yield {"type": "response.created", "response": started}, 0, 0, 0
        yield {"type": "response.in_progress", "response": started}, 0, 0, 0
        step = 0
        for index, item in enumerate(self._items):
            place = {"output_index": index}
            begun = item | _BEGUN.get(item["type"], {})
            yield {"type": "response.output_item.added", **place, "item": begun}, step, 0, 0
            for event, tokens in self._deltas(item, tokens_per_event):
                yield event | place | {"item_id": item["id"]}, step, tokens, 0
                step += tokens
            thought = len(self._output.reasoning) if item["type"] == "reasoning" else 0
            step += thought
            yield {"type": "response.output_item.done", **place, "item": item}, step, thought, thought
        whole = self.whole()
        yield {"type": f"response.{whole['status']}", "response": whole}, step, 0, 0

    def _deltas(self, item: dict[str, Any], tokens_per_event: int) -> Iterator[tuple[dict[str, Any], int]]:
        call = self._output.tool_call
        if item["type"] == "reasoning":
            return
        if call is not None:
            kind, tokens, extra = "response.function_call_arguments", call.arguments, call.tokens - len(call.arguments)
            more: dict[str, Any] = {}
        else:
            kind, tokens, extra = "response.output_text", self._output.tokens, 0
            more = {"content_index": 0, "logprobs": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield {"type": "response.content_part.added", "content_index": 0, "part": part}, 0
        for start in range(0, len(tokens), tokens_per_event):
            run = tokens[start : start + tokens_per_event]
            yield {"type": f"{kind}.delta", **more, "delta": "".join(run)}, len(run) + (0 if start else extra)
        done = {"text": "".join(tokens)} if call is None else {"arguments": "".join(tokens), "name": call.name}
        yield {"type": f"{kind}.done", **more, **done}, 0
        if call is None:
            yield {"type": "response.content_part.done", "content_index": 0, "part": item["content"][0]}, 0


_BEGUN: Mapping[str, dict[str, Any]] = {
    "message": {"status": "in_progress", "content": []},
    "function_call": {"status": "in_progress", "arguments": ""},
}
"""The members of an item when it begins."""


def response_usage(usage: GeneratedUsage) -> dict[str, Any]:
    """Usage in the shape of responses; no token is cached."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
