"""Writes a Responses object, or the events of one, of the events of another format's answer.

The order of events is that of the API (openai-openapi, `ResponseStreamEvent`): created, in_progress; for each item
added, its parts and deltas, done; at the end completed, incomplete or failed, with the whole object.
`sequence_number` increases by one.

Reasoning becomes the `content` of a reasoning item. Items of calls stay open to the end, because upstreams may
interleave their pieces; other items end when the next begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.errors import GatewayError
from gateway.formats.events import CallPiece, Event, Refusal, ServedTier, Text, Thought
from gateway.formats.unfit import Unfit
from gateway.records import Usage

from . import events
from .custom_input import CustomInput
from .responses_request import AskedResponse
from .usage_objects import as_response
from .writer import AnswerWriter

_FAILED_CODES = frozenset({"rate_limit_exceeded", "insufficient_quota", "context_length_exceeded", "server_error"})
"""Codes of a failed response that clients know; Codex ends its turn, waits or retries depending on them."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""finish_reason -> reason of an incomplete response."""
_ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "prompt_cache_key", "safety_identifier",
    "service_tier", "temperature", "top_logprobs", "top_p", "user",
)  # fmt: skip
"""Members of the request that the object repeats."""


class ResponseFrame(NamedTuple):
    """Values for an answer that the upstream's answer does not contain."""

    base: str
    """The end of every id in the answer: that of the call, without its prefix."""
    created: int
    """Unix time in seconds."""
    model: str
    """The model as requested; used only if the upstream names none."""


class ResponseWriter(AnswerWriter):
    """Writes one response."""

    def __init__(self, asked: AskedResponse, frame: ResponseFrame) -> None:
        super().__init__(frame.model)
        self._asked = asked
        self._frame = frame
        self._sequence = 0
        self._object = _new_object(asked, frame)
        self._items: list[_Item] = []
        self._open: _Reasoning | _Message | None = None
        self._calls: dict[int, _Call] = {}
        self._last_call: _Call | None = None
        self._made = 0

    @property
    def response(self) -> dict[str, Any]:
        """The current object, with all items that have begun."""
        return {**self._object, "model": self._model, "output": [item.object() for item in self._items]}

    def close(self, usage: Usage) -> bytes:
        return self._lifecycle(self._settle(usage))

    def whole(self, usage: Usage) -> dict[str, Any]:
        self._settle(usage)
        return self.response

    def _settle(self, usage: Usage) -> str:
        """Note how the response ended; return that."""
        self._object["usage"] = as_response(usage)
        reason = _INCOMPLETE.get(self._reason or "")
        if reason is None:
            self._object |= {"status": "completed", "completed_at": self._frame.created}
            return "completed"
        self._object |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return "incomplete"

    def fail(self, code: str | None, message: str) -> bytes:
        """Call when the answer has failed: `response.failed`, with the answer so far."""
        written = self._begin(None)
        for item in self._items:
            item.status = "incomplete" if item.status == "in_progress" else item.status
        code = code if code in _FAILED_CODES else "server_error"
        self._object |= {"status": "failed", "error": {"code": code, "message": message}}
        return written + self._lifecycle("failed")

    # ------------------------------------------------------------------------------------------------------ the pieces

    def _opening(self) -> bytes:
        return self._lifecycle("created") + self._lifecycle("in_progress")

    def _take(self, event: Event) -> bytes:
        match event:
            case Thought(text):
                written = self._be_in(_Reasoning, "rs")
                assert isinstance(self._open, _Reasoning)
                return written + self._open.add(self, text)
            case Text() | Refusal():
                written = self._be_in(_Message, "msg")
                assert isinstance(self._open, _Message)
                return written + self._open.add(self, event)
            case CallPiece():
                return self._call(event)
            case ServedTier(name):
                self._object["service_tier"] = name
        return b""

    def _be_in(self, kind: type[_Reasoning | _Message], prefix: str) -> bytes:
        """Be in an item of this kind."""
        if isinstance(self._open, kind):
            return b""
        written = self._end_open()
        self._open = kind(self._next(prefix), len(self._items))
        self._items.append(self._open)
        return written + self._open.begin(self)

    def _call(self, piece: CallPiece) -> bytes:
        call, written = self._calls.get(piece.call.number), b""
        if call is None:
            written = self._end_open()
            own = self._next("call")
            call = self._calls[piece.call.number] = _Call(
                own, self._call_id(piece, own), piece.call.name, len(self._items), self._asked
            )
            self._items.append(call)
            written += call.begin(self)
        self._last_call = call
        return written + call.add(self, piece.arguments)

    def _end_content(self) -> bytes:
        last = self._open or self._last_call
        if self._reason in _INCOMPLETE and last is not None:
            last.ends_as = "incomplete"
        return self._end_open() + b"".join([call.end(self) for call in self._calls.values()])

    def _end_open(self) -> bytes:
        if self._open is None:
            return b""
        ended, self._open = self._open, None
        return ended.end(self)

    def _next(self, prefix: str) -> str:
        """An id for the next item."""
        self._made += 1
        return f"{prefix}_{self._frame.base}_{self._made}"

    def _lifecycle(self, name: str) -> bytes:
        return self.event(f"response.{name}", {"response": self.response})

    def event(self, kind: str, members: Mapping[str, Any]) -> bytes:
        """One event, with the next sequence number."""
        data = {"type": kind, "sequence_number": self._sequence, **members}
        self._sequence += 1
        return events.named(kind, data)


def failure(error: GatewayError) -> tuple[str, str]:
    """The code and the message of `response.failed` for this error."""
    return (error.code if error.code in _FAILED_CODES else "server_error") or "server_error", error.message


def _new_object(asked: AskedResponse, frame: ResponseFrame) -> dict[str, Any]:
    """A response without its answer, with what the request asked for."""
    given = asked.members
    text = given.get("text") or {}
    reasoning = given.get("reasoning") or {}
    parallel = given.get("parallel_tool_calls")
    new: dict[str, Any] = {
        "id": f"resp_{frame.base}",
        "object": "response",
        "created_at": frame.created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": frame.model,
        "output": [],
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": False,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity")},
        "tool_choice": given.get("tool_choice") or "auto",
        "tools": list(asked.tools.offered),
        "truncation": "disabled",
        "usage": None,
    }
    new |= {name: given.get(name) for name in _ECHOED}
    new["metadata"] = given.get("metadata") or {}
    if asked.transformations:
        new["input_transformations"] = list(asked.transformations)
    return new


# ----------------------------------------------------------------------------------------------------------- the items


class _Reasoning:
    """A reasoning item, with one part of text."""

    def __init__(self, item_id: str, index: int) -> None:
        self._where = {"item_id": item_id, "output_index": index}
        self._texts: list[str] = []
        self.status = "in_progress"
        self.ends_as = "completed"

    def object(self) -> dict[str, Any]:
        content = [{"type": "reasoning_text", "text": "".join(self._texts)}] if self._texts else []
        return {
            "id": self._where["item_id"],
            "type": "reasoning",
            "summary": [],
            "content": content,
            "encrypted_content": None,
            "status": self.status,
        }

    def begin(self, stream: ResponseWriter) -> bytes:
        part = {"type": "reasoning_text", "text": ""}
        added = stream.event(
            "response.output_item.added", {"output_index": self._where["output_index"], "item": self.object()}
        )
        return added + stream.event("response.content_part.added", {**self._where, "content_index": 0, "part": part})

    def add(self, stream: ResponseWriter, text: str) -> bytes:
        self._texts.append(text)
        return stream.event("response.reasoning_text.delta", {**self._where, "content_index": 0, "delta": text})

    def end(self, stream: ResponseWriter) -> bytes:
        text = "".join(self._texts)
        self.status = self.ends_as
        at = {**self._where, "content_index": 0}
        return (
            stream.event("response.reasoning_text.done", {**at, "text": text})
            + stream.event("response.content_part.done", {**at, "part": {"type": "reasoning_text", "text": text}})
            + stream.event("response.output_item.done", {"output_index": at["output_index"], "item": self.object()})
        )


class _Message:
    """A message item. A refusal is a part of its own."""

    def __init__(self, item_id: str, index: int) -> None:
        self._where = {"item_id": item_id, "output_index": index}
        self._parts: list[_Part] = []
        self.status = "in_progress"
        self.ends_as = "completed"

    def object(self) -> dict[str, Any]:
        content = [part.object() for part in self._parts]
        return {
            "id": self._where["item_id"],
            "type": "message",
            "role": "assistant",
            "status": self.status,
            "content": content,
        }

    def begin(self, stream: ResponseWriter) -> bytes:
        return stream.event(
            "response.output_item.added", {"output_index": self._where["output_index"], "item": self.object()}
        )

    def add(self, stream: ResponseWriter, piece: Text | Refusal) -> bytes:
        written = self._to("refusal" if isinstance(piece, Refusal) else "output_text", stream)
        part = self._parts[-1]
        if isinstance(piece, Refusal):
            part.texts.append(piece.text)
            return written + stream.event("response.refusal.delta", {**part.where, "delta": piece.text})
        if piece.text:
            logprobs = [_logprob(each) for each in piece.logprobs]
            part.texts.append(piece.text)
            part.logprobs += logprobs
            written += stream.event(
                "response.output_text.delta", {**part.where, "delta": piece.text, "logprobs": logprobs}
            )
        for each in piece.annotations:
            annotation = _annotation(each)
            if annotation is None:
                continue
            where = {**part.where, "annotation_index": len(part.annotations), "annotation": annotation}
            part.annotations.append(annotation)
            written += stream.event("response.output_text.annotation.added", where)
        return written

    def _to(self, kind: str, stream: ResponseWriter) -> bytes:
        """Be in a part of this kind."""
        if self._parts and self._parts[-1].kind == kind:
            return b""
        written = self._parts[-1].end(stream) if self._parts else b""
        part = _Part(kind, {**self._where, "content_index": len(self._parts)})
        self._parts.append(part)
        return written + stream.event("response.content_part.added", {**part.where, "part": part.object()})

    def end(self, stream: ResponseWriter) -> bytes:
        written = self._parts[-1].end(stream) if self._parts else b""
        self.status = self.ends_as
        index = self._where["output_index"]
        return written + stream.event("response.output_item.done", {"output_index": index, "item": self.object()})


class _Part:
    """A part of a message: text or a refusal."""

    def __init__(self, kind: str, where: dict[str, Any]) -> None:
        self.kind = kind
        self.where = where
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []

    def object(self) -> dict[str, Any]:
        text = "".join(self.texts)
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        # Copies: returned objects must not change with the next piece.
        return {"type": "output_text", "text": text, "annotations": [*self.annotations], "logprobs": [*self.logprobs]}

    def end(self, stream: ResponseWriter) -> bytes:
        text = "".join(self.texts)
        if self.kind == "refusal":
            done = stream.event("response.refusal.done", {**self.where, "refusal": text})
        else:
            done = stream.event("response.output_text.done", {**self.where, "text": text, "logprobs": [*self.logprobs]})
        return done + stream.event("response.content_part.done", {**self.where, "part": self.object()})


class _Call:
    """An item for a call of a tool."""

    def __init__(self, own_id: str, call_id: str, name: str, index: int, asked: AskedResponse) -> None:
        self._own_id = own_id
        self._call_id = call_id
        self._name = name
        self._index = index
        self._asked = asked
        self._kind = asked.tools.tool(name).kind
        self._arguments: list[str] = []
        self._input = CustomInput()
        self._texts: list[str] = []
        """The input of a custom tool."""
        self.status = "in_progress"
        self.ends_as = "completed"

    def object(self) -> dict[str, Any]:
        tool = self._asked.tools.tool(self._name)
        item_id = self._own_id.replace("call_", {"custom": "ctc_", "local_shell": "lsh_"}.get(tool.kind, "fc_"), 1)
        called: dict[str, Any] = {
            "id": item_id,
            "type": f"{tool.kind}_call",
            "call_id": self._call_id,
            "status": self.status,
        }
        if tool.kind == "local_shell":
            return {**called, "action": self._action()}
        called["name"] = tool.name
        if tool.namespace is not None:
            called["namespace"] = tool.namespace
        if tool.kind == "custom":
            return {**called, "type": "custom_tool_call", "input": "".join(self._texts)}
        return {**called, "arguments": "".join(self._arguments)}

    def begin(self, stream: ResponseWriter) -> bytes:
        return stream.event("response.output_item.added", {"output_index": self._index, "item": self.object()})

    def add(self, stream: ResponseWriter, arguments: str) -> bytes:
        if not arguments:
            return b""
        self._arguments.append(arguments)
        match self._kind:
            case "function":
                return self._delta(stream, "function_call_arguments", arguments)
            case "custom":
                return self._text(stream, self._input.feed(arguments))
            case _:
                return b""  # the API has no deltas for it

    def _text(self, stream: ResponseWriter, text: str) -> bytes:
        if not text:
            return b""
        self._texts.append(text)
        return self._delta(stream, "custom_tool_call_input", text)

    def _delta(self, stream: ResponseWriter, what: str, text: str) -> bytes:
        where = {"item_id": self.object()["id"], "output_index": self._index}
        return stream.event(f"response.{what}.delta", {**where, "delta": text})

    def end(self, stream: ResponseWriter) -> bytes:
        written = b""
        where: dict[str, Any] = {"item_id": self.object()["id"], "output_index": self._index}
        match self._kind:
            case "function":
                written += b"" if self._arguments else self.add(stream, "{}")
                done = {**where, "name": self.object()["name"], "arguments": "".join(self._arguments)}
                written += stream.event("response.function_call_arguments.done", done)
            case "custom":
                written += self._text(stream, self._input.finish())
                done = {**where, "input": "".join(self._texts)}
                written += stream.event("response.custom_tool_call_input.done", done)
            case _:
                if not self._action()["command"] and self.ends_as == "completed":
                    raise Unfit("a call of local_shell without a command")
        self.status = self.ends_as
        return written + stream.event("response.output_item.done", {"output_index": self._index, "item": self.object()})

    def _action(self) -> dict[str, Any]:
        """The action of a local shell call, from its arguments so far."""
        try:
            given = json.loads("".join(self._arguments))
        except (ValueError, RecursionError):
            given = None
        given = given if isinstance(given, dict) else {}
        command = given.get("command")
        return {
            "type": "exec",
            "command": command if isinstance(command, list) else [],
            "env": given.get("env") or {},
            "timeout_ms": given.get("timeout_ms"),
            "user": given.get("user"),
            "working_directory": given.get("working_directory"),
        }


_Item = _Reasoning | _Message | _Call


def _logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A token's log probability; `bytes` is a list in Responses, and null for some tokens of chat."""
    top = entry.get("top_logprobs")
    return {
        "token": entry.get("token"),
        "logprob": entry.get("logprob"),
        "bytes": entry.get("bytes") or [],
        "top_logprobs": [_logprob(each) for each in top if isinstance(each, dict)] if isinstance(top, list) else [],
    }


def _annotation(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """A citation of chat; its members are one level deeper there."""
    inner = given.get("url_citation")
    return {"type": "url_citation", **inner} if isinstance(inner, dict) else None
