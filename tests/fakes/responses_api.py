"""Answers of OpenAI's Responses API, written by hand: plain bodies, and streams event by event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 4},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 42,
}

Event = dict[str, Any]


def message(text: str, number: int = 1) -> Event:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": f"msg_{number}", "status": "completed", "role": "assistant", "content": [part]}


def function_call(name: str, arguments: str, number: int = 1) -> Event:
    return {
        "type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed",
        "name": name, "arguments": arguments,
    }  # fmt: skip


def response(output: Sequence[Event] = (), usage: Any = USAGE, status: str = "completed", **more: Any) -> Event:
    return {
        "id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status, "error": None,
        "incomplete_details": None, "instructions": None, "model": "gpt-4o-mini-2024", "output": list(output),
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage,
    } | more  # fmt: skip


def events(output: Sequence[Event], end: Event, kind: str = "response.completed", start: Any = None) -> list[Event]:
    """The events of a stream with these items and this last response."""
    begun = (start or end) | {"status": "in_progress", "output": [], "usage": None, "error": None}
    found: list[Event] = [{"type": f"response.{what}", "response": begun} for what in ("created", "in_progress")]
    for index, item in enumerate(output):
        place = {"output_index": index}
        found.append({"type": "response.output_item.added", **place, "item": item | {"status": "in_progress"}})
        found += [{**event, **place, "item_id": item["id"]} for event in _deltas(item)]
        found.append({"type": "response.output_item.done", **place, "item": item})
    found.append({"type": kind, "response": end})
    return [{"type": event["type"], "sequence_number": number} | event for number, event in enumerate(found)]


def _deltas(item: Event) -> Iterable[Event]:
    if item["type"] == "function_call":
        text, kind, more = item["arguments"], "response.function_call_arguments", {}
    else:
        text, kind, more = item["content"][0]["text"], "response.output_text", {"content_index": 0, "logprobs": []}
    for start in range(0, len(text), 7):
        yield {"type": f"{kind}.delta", **more, "delta": text[start : start + 7], "obfuscation": "x" * (start % 3)}
    yield {"type": f"{kind}.done", **more, "arguments" if kind.endswith("arguments") else "text": text}


def written(events: Iterable[Event], *, is_compact: bool = True) -> bytes:
    """As a stream."""
    return b"".join([one(event, is_compact=is_compact) for event in events])


def one(event: Event, *, is_compact: bool = True) -> bytes:
    data = json.dumps(event, separators=(",", ":") if is_compact else None)
    return f"event: {event['type']}\ndata: {data}\n\n".encode()


def stream(text: str = 'A "quoted" text, of\nsome length: \\ and é.', **more: Any) -> bytes:
    """A good stream of one message."""
    output = [message(text)]
    return written(events(output, response(output, **more)))
