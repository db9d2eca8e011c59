"""One gateway in front of a scripted upstream, with a model for each format and each translation: what the reports of
this folder are played on. Answers are this project's own, and small."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.fakes.scripted import Behaviour, answer, ok_json, stream
from tests.flows.client import Answer
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, key, model, settings

ENDPOINTS = {
    "chat": "chat", "completions": "completions", "embeddings": "embeddings", "responses": "responses",
    "messages": "messages", "gemini": "generate_content",
}  # fmt: skip
ENDPOINTS_OVER = {"messages-over-chat": "messages", "responses-over-chat": "responses", "chat-over-messages": "chat"}
MESSAGES = [{"role": "user", "content": "Hello"}]
USAGE = {"prompt_tokens": 30, "completion_tokens": 25, "total_tokens": 55}
COUNTS = (30, 25)
"""Tokens of the prompt and of the output that `USAGE` reports."""


def configuration(url: str, **changes: Any) -> dict[str, Any]:
    able = {"messages": True, "generate_content": True, "responses": True}
    upstreams = {
        "main": {"capabilities": able},
        "over_chat": {
            "base_url": url, "api_key": UPSTREAM_KEY,
            "capabilities": {"messages": "via_chat", "responses": "via_chat"},
        },
        "over_messages": {
            "base_url": url, "api_key": UPSTREAM_KEY, "capabilities": {"chat": "via_messages", "messages": True},
        },
    }  # fmt: skip
    models = {name: model(endpoint) for name, endpoint in ENDPOINTS.items()}
    models |= {
        name: model(endpoint, "over_messages" if name.endswith("messages") else "over_chat")
        for name, endpoint in ENDPOINTS_OVER.items()
    }
    return settings(url, upstreams=upstreams, models=models, keys=[key("alice")], **changes)


def chat_chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk with one choice; `choices` among `more` replaces it."""
    plain = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "up"}
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {**plain, "choices": [choice], **more}


def usage_chunk() -> dict[str, Any]:
    return chat_chunk(choices=[], usage=USAGE)


def chat_answer(text: str | None = "Hi", finish: str = "stop", **message: Any) -> Behaviour:
    """A plain answer; `message` adds members to its message."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "up"}
    return ok_json({**head, "choices": [choice], "usage": USAGE})


def chat_stream(*chunks: Any, done: bool = True) -> Behaviour:
    return stream(chunks, done=done)


def named(*events: dict[str, Any]) -> bytes:
    """Events with `event:` lines, as Messages and Responses have them."""
    return b"".join([f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events])


def message_events(text: str = "Hi") -> tuple[dict[str, Any], ...]:
    """Those of a small message."""
    usage = {"input_tokens": 30, "output_tokens": 1}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": [], "stop_reason": None}
    return (
        {"type": "message_start", "message": {**head, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
         "usage": {"output_tokens": 25}},
        {"type": "message_stop"},
    )  # fmt: skip


def response_events(text: str = "Hi") -> tuple[dict[str, Any], ...]:
    """Those of a small response."""
    usage = {"input_tokens": 30, "output_tokens": 25, "total_tokens": 55}
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}]}  # fmt: skip
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "up"}
    begun = {**head, "status": "in_progress", "output": [], "usage": None}
    ended = {**head, "status": "completed", "output": [said], "usage": usage}
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0}
    return (
        {"type": "response.created", "sequence_number": 0, "response": begun},
        {**delta, "sequence_number": 1, "delta": text},
        {"type": "response.completed", "sequence_number": 2, "response": ended},
    )


def gemini_chunk(text: str = "Hi", **candidate: Any) -> dict[str, Any]:
    usage = {"promptTokenCount": 30, "candidatesTokenCount": 25, "totalTokenCount": 55}
    said = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [{**said, **candidate}], "usageMetadata": usage, "modelVersion": "up"}


def as_stream(body: bytes, content_type: str = "text/event-stream", **headers: str) -> Behaviour:
    """A whole body of events at once, under this type; none at all where it is empty."""
    lines = [("Content-Type", content_type), *((name.replace("_", "-"), value) for name, value in headers.items())]
    return answer(body, headers=lines, reason="OK")


def sse(events: Iterable[Any], done: bool = True) -> bytes:
    """Events without names, each on one line of data."""
    return b"".join([b"data: " + json.dumps(each).encode() + b"\n\n" for each in events]) + (
        b"data: [DONE]\n\n" if done else b""
    )


def ask(gateway: Gateway, name: str, *, is_stream: bool = False, who: str = "alice", **members: Any) -> Answer:
    """A small call of a model of `configuration`."""
    match (ENDPOINTS | ENDPOINTS_OVER)[name]:
        case "chat":
            path, body = "/v1/chat/completions", {"messages": MESSAGES}
        case "responses":
            path, body = "/v1/responses", {"input": "Hello"}
        case "messages":
            path, body = "/v1/messages", {"messages": MESSAGES, "max_tokens": 1000}
        case "completions":
            path, body = "/v1/completions", {"prompt": "Hello"}
        case "embeddings":
            path, body = "/v1/embeddings", {"input": "Hello"}
        case _:
            verb = "streamGenerateContent?alt=sse" if is_stream else "generateContent"
            contents = [{"role": "user", "parts": [{"text": "Hello"}]}]
            return gateway.post(f"/v1beta/models/{name}:{verb}", {"contents": contents, **members}, key=who)
    asked = {"model": name, **body, **({"stream": True} if is_stream else {}), **members}
    return gateway.post(path, asked, key=who)


def counted(gateway: Gateway, answer: Answer) -> tuple[int, int, str]:
    """What is recorded of a call: both counts, and where they are from."""
    record = gateway.call(answer.id)
    return record["prompt_tokens"], record["completion_tokens"], record["usage_source"]
