"""A chat answer, plain or streamed, as a Responses object or the events of one.

The order of events is that of the API (openai-openapi, `ResponseStreamEvent`): created, in_progress; for each item
added, its parts and deltas, done; at the end completed, incomplete or failed, with the whole object.
`sequence_number` increases by one. A plain answer is treated as a stream of one chunk, of which only the last object is
used, so the two cannot differ.

Reasoning becomes the `content` of a reasoning item. Items of calls stay open to the end, because upstreams may
interleave their pieces; other items end when the next begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.errors import GatewayError
from gateway.formats.format import Unfit

from . import events
from .answer_stream import AnswerStream
from .chat_delta import CallPiece, ChatDelta, Counts, as_chunk
from .custom_input import CustomInput
from .responses_request import AskedResponse

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


class ResponseStream(AnswerStream):
    """Makes the events of one response."""

    def __init__(self, asked: AskedResponse, frame: ResponseFrame) -> None:
        super().__init__(frame.model)
        self._asked = asked
        self._frame = frame
        self._sequence = 0
        self._object = _new_object(asked, frame)
        self._items: list[_Item] = []
        self._open: _Reasoning | _Message | None = None
        self._calls: dict[int | str, _Call] = {}
        self._last_call: _Call | None = None
        self._made = 0

    @property
    def response(self) -> dict[str, Any]:
        """The current object, with all items that have begun."""
        return {**self._object, "model": self._model, "output": [item.object() for item in self._items]}

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """Take one chunk."""
        if isinstance(chunk.get("service_tier"), str):
            self._object["service_tier"] = chunk["service_tier"]
        return super().feed(chunk)

    def finish(self, *, completion_tokens: int = 0) -> bytes:
        """Call at the complete end of the upstream's stream: ends every item and the response.

        Without a report of the upstream `usage` is null, which the API allows; the estimate is not used.
        """
        reason = _INCOMPLETE.get(self._finish_reason())
        last = self._open or self._last_call
        if reason is not None and last is not None:
            last.ends_as = "incomplete"
        written = self._begin() + self._end_open()
        for call in self._calls.values():
            written += call.end(self)
        self._object["usage"] = None if self._counts is None else usage_object(self._counts)
        if reason is None:
            self._object["status"] = "completed"
            self._object["completed_at"] = self._frame.created
            return written + self._lifecycle("completed")
        self._object |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return written + self._lifecycle("incomplete")

    def fail(self, code: str | None, message: str) -> bytes:
        """Call when the answer has failed: `response.failed`, with the answer so far."""
        written = self._begin()
        for item in self._items:
            item.status = "incomplete" if item.status == "in_progress" else item.status
        code = code if code in _FAILED_CODES else "server_error"
        self._object |= {"status": "failed", "error": {"code": code, "message": message}}
        self._object["usage"] = None if self._counts is None else usage_object(self._counts)
        return written + self._lifecycle("failed")

    # ------------------------------------------------------------------------------------------------------ the pieces

    def _opening(self) -> bytes:
        return self._lifecycle("created") + self._lifecycle("in_progress")

    def _pass_on(self, delta: ChatDelta) -> bytes:
        written = self._reasoning(delta) + self._message(delta)
        for piece in delta.calls:
            written += self._call(piece)
        return written

    def _reasoning(self, delta: ChatDelta) -> bytes:
        if not delta.reasoning:
            return b""
        written = b""
        if not isinstance(self._open, _Reasoning):
            written = self._end_open()
            self._open = _Reasoning(self._next("rs"), len(self._items))
            self._items.append(self._open)
            written += self._open.begin(self)
        return written + self._open.add(self, delta.reasoning)

    def _message(self, delta: ChatDelta) -> bytes:
        if not (delta.text or delta.refusal or delta.annotations):
            return b""
        written = b""
        if not isinstance(self._open, _Message):
            written = self._end_open()
            self._open = _Message(self._next("msg"), len(self._items))
            self._items.append(self._open)
            written += self._open.begin(self)
        return written + self._open.add(self, delta)

    def _call(self, piece: CallPiece) -> bytes:
        """A piece of a call. Without an index it belongs to the call with its id, or to the last one."""
        key: int | str = piece.position if piece.position is not None else piece.id
        call = self._calls.get(key) if key != "" else self._last_call
        written = b""
        if call is None:
            written = self._end_open()
            call = _Call(self._next("call"), self._asked)
            self._calls[key] = call
        self._last_call = call
        return written + call.add(self, piece)

    def start_call(self, item: _Call) -> int:
        """The output index of a call whose name is known now."""
        self._items.append(item)
        return len(self._items) - 1

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


def answer(asked: AskedResponse, frame: ResponseFrame, chat: Mapping[str, Any]) -> dict[str, Any]:
    """The Responses object for a plain chat answer. Raises `Unfit`."""
    stream = ResponseStream(asked, frame)
    stream.feed(as_chunk(chat))
    stream.finish()
    return stream.response


def usage_object(usage: Counts) -> dict[str, Any]:
    """Usage in the form of Responses (openai-python, `ResponseUsage`)."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


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

    def begin(self, stream: ResponseStream) -> bytes:
        part = {"type": "reasoning_text", "text": ""}
        added = stream.event(
            "response.output_item.added", {"output_index": self._where["output_index"], "item": self.object()}
        )
        return added + stream.event("response.content_part.added", {**self._where, "content_index": 0, "part": part})

    def add(self, stream: ResponseStream, text: str) -> bytes:
        self._texts.append(text)
        return stream.event("response.reasoning_text.delta", {**self._where, "content_index": 0, "delta": text})

    def end(self, stream: ResponseStream) -> bytes:
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

    def begin(self, stream: ResponseStream) -> bytes:
        return stream.event(
            "response.output_item.added", {"output_index": self._where["output_index"], "item": self.object()}
        )

    def add(self, stream: ResponseStream, delta: ChatDelta) -> bytes:
        written = b""
        if delta.text or delta.annotations:
            written += self._to("output_text", stream)
            part = self._parts[-1]
            if delta.text:
                logprobs = [_logprob(each) for each in delta.logprobs]
                part.texts.append(delta.text)
                part.logprobs += logprobs
                written += stream.event(
                    "response.output_text.delta", {**part.where, "delta": delta.text, "logprobs": logprobs}
                )
            for each in delta.annotations:
                annotation = _annotation(each)
                if annotation is None:
                    continue
                where = {**part.where, "annotation_index": len(part.annotations), "annotation": annotation}
                part.annotations.append(annotation)
                written += stream.event("response.output_text.annotation.added", where)
        if delta.refusal:
            written += self._to("refusal", stream)
            part = self._parts[-1]
            part.texts.append(delta.refusal)
            written += stream.event("response.refusal.delta", {**part.where, "delta": delta.refusal})
        return written

    def _to(self, kind: str, stream: ResponseStream) -> bytes:
        """Be in a part of this kind."""
        if self._parts and self._parts[-1].kind == kind:
            return b""
        written = self._parts[-1].end(stream) if self._parts else b""
        part = _Part(kind, {**self._where, "content_index": len(self._parts)})
        self._parts.append(part)
        return written + stream.event("response.content_part.added", {**part.where, "part": part.object()})

    def end(self, stream: ResponseStream) -> bytes:
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

    def end(self, stream: ResponseStream) -> bytes:
        text = "".join(self.texts)
        if self.kind == "refusal":
            done = stream.event("response.refusal.done", {**self.where, "refusal": text})
        else:
            done = stream.event("response.output_text.done", {**self.where, "text": text, "logprobs": [*self.logprobs]})
        return done + stream.event("response.content_part.done", {**self.where, "part": self.object()})


class _Call:
    """An item for a call of a tool. It begins when its name is known."""

    def __init__(self, own_id: str, asked: AskedResponse) -> None:
        self._own_id = own_id
        self._asked = asked
        self._call_id = ""
        self._name = ""
        self._kind = ""
        self._index = -1
        self._held = ""
        """Arguments that came before the name."""
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

    def add(self, stream: ResponseStream, piece: CallPiece) -> bytes:
        self._call_id = self._call_id or piece.id
        if not self._kind:
            self._name += piece.name
            self._held += piece.arguments
            return self._begin(stream) if self._name and (piece.arguments or self._call_id) else b""
        return self._add(stream, piece.arguments)

    def _begin(self, stream: ResponseStream) -> bytes:
        self._kind = self._asked.tools.tool(self._name).kind
        self._call_id = stream.call_id(self._call_id, self._own_id)
        self._index = stream.start_call(self)
        held, self._held = self._held, ""
        added = stream.event("response.output_item.added", {"output_index": self._index, "item": self.object()})
        return added + self._add(stream, held)

    def _add(self, stream: ResponseStream, arguments: str) -> bytes:
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

    def _text(self, stream: ResponseStream, text: str) -> bytes:
        if not text:
            return b""
        self._texts.append(text)
        return self._delta(stream, "custom_tool_call_input", text)

    def _delta(self, stream: ResponseStream, what: str, text: str) -> bytes:
        where = {"item_id": self.object()["id"], "output_index": self._index}
        return stream.event(f"response.{what}.delta", {**where, "delta": text})

    def end(self, stream: ResponseStream) -> bytes:
        if not self._name:
            raise Unfit("a tool call without a name")
        written = b"" if self._kind else self._begin(stream)
        where: dict[str, Any] = {"item_id": self.object()["id"], "output_index": self._index}
        match self._kind:
            case "function":
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
