"""Reads the typed events of OpenAI's Responses API, the last of which holds the response whole."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from gateway.formats.member_reader import EACH
from gateway.formats.reader import AnswerReader, objects
from gateway.records import Usage

from .responses_usage import ResponsesUsage

GOOD_ENDS = frozenset({"response.completed", "response.incomplete"})
BAD_ENDS = frozenset({"response.failed", "error"})
ENDS = GOOD_ENDS | BAD_ENDS
HEADS = frozenset({"response.created", "response.in_progress", "response.queued"})
"""Events that carry the whole response before any output."""

_REQUEST_FAULTS = re.compile(
    r"context_length_exceeded|(?:invalid|unsupported|empty)_.*|image_.*|.*_policy(?:_violation)?"
)
"""Codes of a failed response that blame the request (openai-openapi, ResponseErrorCode). They come without a type."""

MAX_ITEMS = 100
"""Items of one answer that are bound to its key, at most."""

_RESPONSE = (
    "id", "model", "created_at", "store", "background", "status", "service_tier", "error", "usage", "tool_usage",
)  # fmt: skip
_ITEM = (
    ("type",), ("id",), ("status",), ("action", "type"), ("container_id",), ("environment", "container_id"),
)  # fmt: skip


class ResponsesReader(AnswerReader):
    """Follows one response."""

    WANTED = (
        ("type",), ("sequence_number",), ("error",), ("code",), ("message",),
        *[("response", name) for name in _RESPONSE], *[("response", "output", EACH, *path) for path in _ITEM],
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.id: str | None = None
        self.created_at: Any = None
        self.is_stored = True
        """Whether the upstream keeps it under its id; True where the stream does not state it."""
        self.items: tuple[str, ...] = ()
        """The ids of the items of its output, when it has ended."""
        self.texts: list[bytes] = []
        """The texts of its output, when it has ended, as in JSON."""
        self.has_ended = False
        """Whether an event that ends a response has come, well or not."""
        self.is_good = False
        self._usage = ResponsesUsage()

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        kind, given = value.get("type"), value.get("response")
        response: dict[str, Any] = given if isinstance(given, dict) else {}
        if kind in HEADS or kind in ENDS:
            self._head(response)
        if kind not in ENDS:
            if kind is None and value.get("error"):
                self._fail(value["error"])
            return self._usage.take(response) if response.get("usage") else None
        self.has_ended = kind != "error"
        usage = None if kind == "error" else self._output(response)
        if kind in GOOD_ENDS and response.get("status") != "failed":
            self.is_good = True
        else:
            error = (value if kind == "error" else response).get("error")
            self._fail(error or (dict(value) if kind == "error" else {}))
        return usage

    def _head(self, response: Mapping[str, Any]) -> None:
        if isinstance(response.get("id"), str):
            self.id = response["id"]
        if isinstance(response.get("model"), str):
            self.model = response["model"]
        if response:
            is_stored = response.get("store") is not False or response.get("background") is True
            self.is_stored = self.is_stored and is_stored
        self.created_at = response.get("created_at", self.created_at)

    def _output(self, response: Mapping[str, Any]) -> Usage | None:
        items = objects(response.get("output"))
        self.items = ids_of(items)
        self.texts = [text for item in items for text in _texts_of(item)]
        return self._usage.take(response)

    def _fail(self, error: Any) -> None:
        self.error = error_of_failure(error if isinstance(error, dict) else {"message": error} if error else {})


def error_of_failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a failed response as an error object, with a type where its code blames the request."""
    found = {name: error[name] for name in ("message", "type", "param", "code") if error.get(name) is not None}
    if found.get("type") in (None, "error"):
        found.pop("type", None)
        if _REQUEST_FAULTS.fullmatch(str(found.get("code"))):
            found["type"] = "invalid_request_error"
    return found or {"message": "the response failed without an error"}


def ids_of(output: Collection[Mapping[str, Any]]) -> tuple[str, ...]:
    """The ids of items, at most `MAX_ITEMS`."""
    return tuple([item["id"] for item in output if isinstance(item.get("id"), str) and item["id"]][:MAX_ITEMS])


def _texts_of(item: Mapping[str, Any]) -> list[bytes]:
    """Generated texts of an item of the output, as in JSON."""
    content = item.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") or part.get("refusal") for part in parts]
    texts += [item.get(name) for name in ("arguments", "input", "code")]
    return [json.dumps(text).encode()[1:-1] for text in texts if isinstance(text, str) and text]
