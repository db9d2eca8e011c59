"""What the fault catalogue says in each format: a request, its good answer, plain and as events, and an error.

A streamed answer has pieces (its events before the last), the event with the finish reason, in OpenAI's older formats
an event with the usage, and the end. `Form` names them alike for all formats, so that one row of the catalogue is the
same fault in each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from .forms import TYPE, form, wav
from .scripted import event

Endpoint = Literal["completions", "chat", "messages", "responses", "generate_content", "images", "transcriptions"]
Event = dict[str, Any]

CREATED = 1700000000
MODEL = "scripted"
PROMPT_TOKENS, COMPLETION_TOKENS = 1, 3
DONE = b"data: [DONE]\n\n"
SNOW = " \u2603 "
"""The second piece of a text."""


@dataclass(frozen=True, slots=True)
class Form:
    """OpenAI's completions, and what the other formats have in common with them."""

    endpoint: Endpoint = "completions"
    path: str = "/v1/completions"
    user: tuple[str, ...] = ("user",)
    """Where a request names its user."""

    def request(self, model: str, user: str, *, is_streamed: bool) -> tuple[str, dict[str, Any]]:
        """Path and members of a request."""
        return self.path, {"model": model, "stream": is_streamed, **self.asked(user)}

    def written(self, model: str, user: str, *, is_streamed: bool) -> tuple[str, bytes, str]:
        """Path, body and content type of a request."""
        path, members = self.request(model, user, is_streamed=is_streamed)
        return path, json.dumps(members).encode(), "application/json"

    def asked(self, user: str) -> dict[str, Any]:
        """The members of a request, but for its model and whether it is streamed."""
        return {"user": user, "max_tokens": 20, "prompt": "Hello"}

    def document(self, text: str) -> dict[str, Any]:
        """The good answer to a plain call."""
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": "stop"}
        return {**self._named("text_completion"), "choices": [choice], "usage": _USAGE}

    def pieces(self, text: str) -> list[Event]:
        """The events of a stream before the one with the finish reason."""
        return [self.piece(text), self.piece(SNOW)]

    def piece(self, text: str, finish: str | None = None) -> Event:
        """One event with this text."""
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
        return {**self._named("text_completion"), "choices": [choice]}

    def finish(self, text: str) -> list[Event]:
        """The events with the finish reason and the usage, in this order."""
        return [self.piece("", "stop"), {**self._event_names(), "choices": [], "usage": _USAGE}]

    def end(self) -> bytes:
        """What ends a stream behind them."""
        return DONE

    def event(self, value: Any) -> bytes:
        """One event as it is written."""
        return event(value)

    def error(self, message: str, status: int, fields: dict[str, Any]) -> dict[str, Any]:
        """An error object of the format; `fields` are OpenAI's."""
        return {"error": {"message": message, "type": "server_error", "param": None, "code": None} | fields}

    def error_event(self, message: str, fields: dict[str, Any]) -> bytes:
        """An event with an error."""
        return event(self.error(message, 500, fields))

    def _named(self, kind: str) -> dict[str, Any]:
        return {"id": "cmpl-1", "object": kind, "created": CREATED, "model": MODEL}

    def _event_names(self) -> dict[str, Any]:
        return self._named("text_completion")


_USAGE = {
    "prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS,
    "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
}  # fmt: skip


class Chat(Form):
    """OpenAI's chat."""

    def asked(self, user: str) -> dict[str, Any]:
        return {"user": user, "max_tokens": 20, "messages": _MESSAGES}

    def document(self, text: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**self._named("chat.completion"), "choices": [choice], "usage": _USAGE}

    def piece(self, text: str, finish: str | None = None) -> Event:
        delta = {"role": "assistant", "content": text} if text else {}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._event_names(), "choices": [choice]}

    def _named(self, kind: str) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": kind, "created": CREATED, "model": MODEL}

    def _event_names(self) -> dict[str, Any]:
        return self._named("chat.completion.chunk")


_MESSAGES = [{"role": "user", "content": "Hello"}]


class _Typed(Form):
    """Formats whose events have a type, which is also their name."""

    def event(self, value: Any) -> bytes:
        if not isinstance(value, dict):
            return event(value)
        return f"event: {value['type']}\n".encode() + event(value)


class Messages(_Typed):
    """Anthropic's Messages."""

    def asked(self, user: str) -> dict[str, Any]:
        return {"metadata": {"user_id": user}, "max_tokens": 20, "messages": _MESSAGES}

    def document(self, text: str) -> dict[str, Any]:
        return self._message([{"type": "text", "text": text}], "end_turn", COMPLETION_TOKENS)

    def _message(self, content: list[dict[str, Any]], stop: str | None, output: int) -> dict[str, Any]:
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "stop_reason": stop,
            "stop_sequence": None, "content": content,
            "usage": {"input_tokens": PROMPT_TOKENS, "output_tokens": output},
        }  # fmt: skip

    def pieces(self, text: str) -> list[Event]:
        return [
            {"type": "message_start", "message": self._message([], None, 1)},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            self.piece(text),
            self.piece(SNOW),
            {"type": "content_block_stop", "index": 0},
        ]

    def piece(self, text: str, finish: str | None = None) -> Event:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}

    def finish(self, text: str) -> list[Event]:
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": COMPLETION_TOKENS}}]

    def end(self) -> bytes:
        return self.event({"type": "message_stop"})

    def error(self, message: str, status: int, fields: dict[str, Any]) -> dict[str, Any]:
        blamed = 400 if status == 500 and fields.get("type") == "invalid_request_error" else status
        kind = _ANTHROPIC_CODES.get(str(fields.get("code"))) or _ANTHROPIC_STATUSES.get(blamed, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_theirs"}

    def error_event(self, message: str, fields: dict[str, Any]) -> bytes:
        return self.event(self.error(message, 500, fields))


_ANTHROPIC_CODES = {
    "invalid_api_key": "authentication_error",
    "insufficient_quota": "billing_error",
    "insufficient_user_quota": "billing_error",
    "rate_limit_exceeded": "rate_limit_error",
    "invalid_request": "invalid_request_error",
}
_ANTHROPIC_STATUSES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip


class Responses(_Typed):
    """OpenAI's Responses."""

    def asked(self, user: str) -> dict[str, Any]:
        return {"user": user, "max_output_tokens": 20, "store": False, "input": "Hello"}

    def document(self, text: str) -> dict[str, Any]:
        item = {
            "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }  # fmt: skip
        return self._response("completed", [item], _RESPONSES_USAGE)

    def _response(self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": "resp_1", "object": "response", "created_at": CREATED, "status": status, "error": None,
            "incomplete_details": None, "model": MODEL, "output": output, "usage": usage,
        }  # fmt: skip

    def pieces(self, text: str) -> list[Event]:
        return [
            {"type": "response.created", "sequence_number": 0, "response": self._response("in_progress", [], None)},
            self.piece(text),
            self.piece(SNOW) | {"sequence_number": 2},
        ]

    def piece(self, text: str, finish: str | None = None) -> Event:
        return {
            "type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1", "output_index": 0,
            "content_index": 0, "delta": text,
        }  # fmt: skip

    def finish(self, text: str) -> list[Event]:
        return [{"type": "response.completed", "sequence_number": 3, "response": self.document(text + SNOW)}]

    def end(self) -> bytes:
        """The API has none; some upstreams send OpenAI's older one, which clients do not get."""
        return b""

    def error_event(self, message: str, fields: dict[str, Any]) -> bytes:
        response = self._response("failed", [], None)
        code = "invalid_prompt" if fields.get("type") == "invalid_request_error" else fields.get("code")
        response["error"] = {"code": code or "server_error", "message": message}
        return self.event({"type": "response.failed", "sequence_number": 9, "response": response})


_RESPONSES_USAGE = {
    "input_tokens": PROMPT_TOKENS, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": COMPLETION_TOKENS,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
}  # fmt: skip


class Gemini(Form):
    """Gemini's native API, with errors in OpenAI's members, as resellers have them."""

    def request(self, model: str, user: str, *, is_streamed: bool) -> tuple[str, dict[str, Any]]:
        method = "streamGenerateContent?alt=sse" if is_streamed else "generateContent"
        return f"{self.path}/{model}:{method}", self.asked(user)

    def asked(self, user: str) -> dict[str, Any]:
        contents = [{"role": "user", "parts": [{"text": "Hello"}]}]
        return {"labels": {"user": user}, "generationConfig": {"maxOutputTokens": 20}, "contents": contents}

    def document(self, text: str) -> dict[str, Any]:
        return self.piece(text, "STOP") | {"responseId": None, "usageMetadata": _GEMINI_USAGE}

    def piece(self, text: str, finish: str | None = None) -> Event:
        candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        return {"candidates": [candidate], "modelVersion": MODEL}

    def finish(self, text: str) -> list[Event]:
        return [self.piece("", "STOP") | {"usageMetadata": _GEMINI_USAGE}]

    def end(self) -> bytes:
        """The API has none; some upstreams send OpenAI's, which clients do not get."""
        return b""


_GEMINI_USAGE = {
    "promptTokenCount": PROMPT_TOKENS, "candidatesTokenCount": COMPLETION_TOKENS,
    "totalTokenCount": PROMPT_TOKENS + COMPLETION_TOKENS,
}  # fmt: skip


class Images(_Typed):
    """OpenAI's images."""

    def asked(self, user: str) -> dict[str, Any]:
        return {"user": user, "prompt": "Hello"}

    def document(self, text: str) -> dict[str, Any]:
        return {"created": CREATED, "background": None, "data": [{"b64_json": text}], "usage": _IMAGE_USAGE}

    def piece(self, text: str, finish: str | None = None) -> Event:
        return {"type": "image_generation.partial_image", "b64_json": text, "partial_image_index": 0}

    def finish(self, text: str) -> list[Event]:
        return [{"type": "image_generation.completed", "b64_json": text + SNOW, "usage": _IMAGE_USAGE}]

    def end(self) -> bytes:
        """The API has none; some upstreams send OpenAI's older one, which clients do not get."""
        return b""


_IMAGE_USAGE = {
    "input_tokens": PROMPT_TOKENS, "output_tokens": COMPLETION_TOKENS,
    "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
}  # fmt: skip


class Transcriptions(_Typed):
    """OpenAI's transcriptions, asked for by a form."""

    def written(self, model: str, user: str, *, is_streamed: bool) -> tuple[str, bytes, str]:
        stream = [("stream", "true")] if is_streamed else []
        return self.path, form(("model", model), ("user", user), *stream, ("file", wav(0.1))), TYPE["Content-Type"]

    def document(self, text: str) -> dict[str, Any]:
        return {"text": text, "logprobs": None, "usage": _IMAGE_USAGE | {"type": "tokens"}}

    def piece(self, text: str, finish: str | None = None) -> Event:
        return {"type": "transcript.text.delta", "delta": text}

    def finish(self, text: str) -> list[Event]:
        return [{"type": "transcript.text.done", **self.document(text + SNOW)}]

    def end(self) -> bytes:
        """The API has none; some upstreams send OpenAI's older one, which clients do not get."""
        return b""


FORMS: dict[str, Form] = {
    each.endpoint: each
    for each in (
        Form(),
        Chat("chat", "/v1/chat/completions"),
        Messages("messages", "/v1/messages", ("metadata", "user_id")),
        Responses("responses", "/v1/responses"),
        Gemini("generate_content", "/v1beta/models", ("labels", "user")),
        Images("images", "/v1/images/generations"),
        Transcriptions("transcriptions", "/v1/audio/transcriptions"),
    )
}


def user_of(form: Form, members: Any) -> str:
    """The user whom a request names; 'None' if none."""
    for name in form.user:
        members = members.get(name) if isinstance(members, dict) else None
    return str(members)


def written(value: Any) -> bytes:
    """A plain answer."""
    return json.dumps(value).encode()
