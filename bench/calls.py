"""The calls that every measurement makes, and the bytes that its upstreams answer."""

from __future__ import annotations

import json
from typing import Any

PATH = "/v1/chat/completions"
MODEL = "gpt-4o-mini"
SECRET = "sk-gw-bench-0123456789abcdef01234567"
HEADERS = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}

REQUEST_BYTES = 1024
ANSWER_BYTES = 549

STAMP = "@" * 20
"""Stands where the time goes, in nanoseconds."""


_WORDS = "the quick brown fox jumps over the lazy dog "


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _padded(text: str, size: int) -> bytes:
    """The text with its `~` grown to words, so that it is of this size."""
    words = _WORDS * (size // len(_WORDS) + 1)
    return text.replace("~", words[: size - len(text) + 1]).encode()


def request(size: int = REQUEST_BYTES, model: str = MODEL, *, is_streamed: bool = False) -> bytes:
    """A chat call of this size, without an output limit, as most clients send it."""
    received = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "~"}]
    members = {"model": model, "messages": received, "temperature": 0.7} | ({"stream": True} if is_streamed else {})
    return _padded(_json(members), size)


def completion_request(size: int = REQUEST_BYTES, model: str = MODEL) -> bytes:
    """A call for a completion."""
    return _padded(_json({"model": model, "prompt": "~", "temperature": 0.7, "max_tokens": 256}), size)


def answer(size: int = ANSWER_BYTES) -> bytes:
    """A whole answer."""
    message = {"role": "assistant", "content": "~", "refusal": None}
    return _answer("chat.completion", {"message": message}, size)


def completion_answer() -> bytes:
    """A whole answer to `completion_request`."""
    return _answer("text_completion", {"text": "~"}, ANSWER_BYTES)


def _answer(kind: str, says: Any, size: int) -> bytes:
    choice = {"index": 0, **says, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 210, "completion_tokens": 34, "total_tokens": 244}
    return _padded(_json(_head(kind) | {"choices": [choice], "usage": usage}), size)


def event() -> tuple[bytes, bytes]:
    """A chunk of a stream, of about 210 B: what stands before and after its stamp."""
    choice = {"index": 0, "delta": {"content": STAMP}, "finish_reason": None}
    before, _, after = _event(_head("chat.completion.chunk") | {"choices": [choice]}).partition(STAMP)
    return before.encode(), after.encode()


def ending() -> bytes:
    """The end of a stream: the reason, the usage, which the gateway has asked for, and the last line."""
    head = _head("chat.completion.chunk")
    usage = {"prompt_tokens": 210, "completion_tokens": 34, "total_tokens": 244}
    stop = _event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return f"{stop}{_event(head | {'choices': [], 'usage': usage})}data: [DONE]\n\n".encode()


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-bench", "object": kind, "created": 1760000000, "model": "gpt-4o-mini-2024-07-18"}


def _event(value: Any) -> str:
    return f"data: {_json(value)}\n\n"
