"""Writes a Responses object, or the events of one, of the events of another format's answer.

The order of events is that of the API (openai-openapi, `ResponseStreamEvent`): created, in_progress; for each item
added, its parts and deltas, done; at the end completed, incomplete or failed, with the whole object.
`sequence_number` increases by one.

Reasoning becomes the `content` of a reasoning item. Items of calls stay open to the end, because upstreams may
interleave their pieces; other items end when the next begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import GatewayError
from gateway.formats import sse
from gateway.formats.event_scan import parsed
from gateway.formats.events import CallPiece, Event, Picture, Refusal, ServedTier, Text, Thought, Unfit
from gateway.formats.openai.frame import Frame
from gateway.formats.reader import objects
from gateway.records import Usage

from .media import of_data_url
from .responses_request import AskedResponse
from .tool_names import CalledTool, CustomInput
from .writer import AnswerWriter, as_response

_FAILED_CODES = frozenset({"rate_limit_exceeded", "insufficient_quota", "context_length_exceeded", "server_error"})
"""Codes of a failed response that clients know; Codex ends its turn, waits or retries depending on them."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""finish_reason -> reason of an incomplete response."""
_ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "prompt_cache_key", "safety_identifier",
    "service_tier", "temperature", "top_logprobs", "top_p", "user",
)  # fmt: skip


class ResponseWriter(AnswerWriter):
    def __init__(self, asked: AskedResponse, frame: Frame) -> None:
        super().__init__(frame)
        self._asked = asked
        self._sequence = 0
        self._object = _new_object(asked, frame)
        self._items: list[_Item] = []
        self._open: _Content | None = None
        self._calls: dict[int, _Call] = {}
        self._last_call: _Call | None = None
        self._made = 0

    @property
    def response(self) -> dict[str, Any]:
        return {**self._object, "model": self._model, "output": [item.object() for item in self._items]}

    def close(self, usage: Usage) -> bytes:
        return self._lifecycle(self._settle(usage))

    def whole(self, usage: Usage) -> dict[str, Any]:
        self._settle(usage)
        return self.response

    def _settle(self, usage: Usage) -> str:
        self._object["usage"] = as_response(usage)
        reason = _INCOMPLETE.get(self._reason or "")
        if reason is None:
            self._object |= {"status": "completed", "completed_at": self._frame.created}
            return "completed"
        self._object |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return "incomplete"

    def fail(self, error: GatewayError) -> bytes:
        """Call when the answer has failed: `response.failed`, with the answer so far."""
        written = self._begin(None)
        for item in self._items:
            item.status = "incomplete" if item.status == "in_progress" else item.status
        code = error.code if error.code in _FAILED_CODES else "server_error"
        self._object |= {"status": "failed", "error": {"code": code, "message": error.message}}
        return written + self._lifecycle("failed")

    def _opening(self) -> bytes:
        return self._lifecycle("created") + self._lifecycle("in_progress")

    def _take(self, event: Event) -> bytes:
        match event:
            case Thought() | Text() | Refusal():
                kind = "reasoning" if isinstance(event, Thought) else "message"
                written = b""
                if self._open is None or self._open.kind != kind:
                    written = self._end_open()
                    self._open = _Content(self, kind, self._next(_PREFIXES[kind]))
                    written += self._begin_item(self._open)
                return written + self._open.add(event)
            case CallPiece():
                return self._call(event)
            case Picture(url) if (data := of_data_url(url)) is not None:
                made = _Picture(self, self._next("ig"), data[1])
                return self._end_open() + self._begin_item(made) + made.end()
            case Picture(url):  # such an item has data only
                return self._take(Text(f"![image]({url})"))
            case ServedTier(name):
                self._object["service_tier"] = name
        return b""

    def _call(self, piece: CallPiece) -> bytes:
        call, written = self._calls.get(piece.call.number), b""
        if call is None:
            written = self._end_open()
            own = self._next("call")
            tool = self._asked.tools.tool(piece.call.name)
            call = self._calls[piece.call.number] = _Call(self, own, self._call_id(piece, own), tool)
            written += self._begin_item(call)
        self._last_call = call
        return written + call.add(piece.arguments)

    def _begin_item(self, item: _Item) -> bytes:
        item.index = len(self._items)
        self._items.append(item)
        return item.event("added")

    def _end_content(self) -> bytes:
        last = self._open or self._last_call
        if self._reason in _INCOMPLETE and last is not None:
            last.ends_as = "incomplete"
        return self._end_open() + b"".join([call.end() for call in self._calls.values()])

    def _end_open(self) -> bytes:
        if self._open is None:
            return b""
        ended, self._open = self._open, None
        return ended.end()

    def _next(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}_{self._frame.base}_{self._made}"

    def _lifecycle(self, name: str) -> bytes:
        return self.event(f"response.{name}", {"response": self.response})

    def event(self, kind: str, members: Mapping[str, Any]) -> bytes:
        """One event, with the next sequence number."""
        data = {"type": kind, "sequence_number": self._sequence, **members}
        self._sequence += 1
        return sse.typed_event(data)


def _new_object(asked: AskedResponse, frame: Frame) -> dict[str, Any]:
    """A response without its answer, with what the request asked for."""
    given = asked.members
    text = given.get("text") or {}
    reasoning = given.get("reasoning") or {}
    parallel = given.get("parallel_tool_calls")
    new: dict[str, Any] = {
        "id": f"resp_{frame.base}", "object": "response", "created_at": frame.created, "status": "in_progress",
        "background": False, "completed_at": None, "error": None, "incomplete_details": None, "model": frame.model,
        "output": [], "parallel_tool_calls": True if parallel is None else parallel, "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")}, "store": False,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity")},
        "tool_choice": given.get("tool_choice") or "auto", "tools": list(asked.tools.offered),
        "truncation": "disabled", "usage": None,
    }  # fmt: skip
    new |= {name: given.get(name) for name in _ECHOED}
    new["metadata"] = given.get("metadata") or {}
    if asked.transformations:
        new["input_transformations"] = list(asked.transformations)
    return new


# ----------------------------------------------------------------------------------------------------------- the items


class _Item:
    def __init__(self, stream: ResponseWriter, item_id: str) -> None:
        self.stream = stream
        self.id = item_id
        self.index = 0
        self.status = "in_progress"
        self.ends_as = "completed"

    @property
    def where(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}

    def event(self, what: str) -> bytes:
        return self.stream.event(f"response.output_item.{what}", {"output_index": self.index, "item": self.object()})

    def object(self) -> dict[str, Any]:
        raise NotImplementedError

    def end(self) -> bytes:
        written = self._end_content()
        self.status = self.ends_as
        return written + self.event("done")

    def _end_content(self) -> bytes:
        raise NotImplementedError


_PREFIXES = {"reasoning": "rs", "message": "msg"}
"""Beginnings of the ids of items with text."""


class _Content(_Item):
    """A message, or a reasoning item. A refusal is a part of its own."""

    def __init__(self, stream: ResponseWriter, kind: str, item_id: str) -> None:
        super().__init__(stream, item_id)
        self.kind = kind
        self._parts: list[_Part] = []

    def object(self) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self.id, "type": self.kind}
        content = [part.object() for part in self._parts]
        if self.kind == "reasoning":
            return item | {"summary": [], "content": content, "encrypted_content": None, "status": self.status}
        return item | {"role": "assistant", "status": self.status, "content": content}

    def add(self, piece: Thought | Text | Refusal) -> bytes:
        """Add a piece to the part of its kind, which is the last one."""
        kind = _PARTS[type(piece)]
        written = b""
        if not self._parts or self._parts[-1].kind != kind:
            written = self._end_content()
            part = _Part(self.stream, kind, {**self.where, "content_index": len(self._parts)})
            self._parts.append(part)
            written += self.stream.event("response.content_part.added", {**part.where, "part": part.object()})
        return written + self._parts[-1].add(piece)

    def _end_content(self) -> bytes:
        return self._parts[-1].end() if self._parts else b""


_PARTS = {Thought: "reasoning_text", Text: "output_text", Refusal: "refusal"}


class _Part:
    def __init__(self, stream: ResponseWriter, kind: str, where: dict[str, Any]) -> None:
        self._stream = stream
        self.kind = kind
        self.where = where
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def object(self) -> dict[str, Any]:
        """The part so far, with copies of its lists: it must not change with the next piece."""
        text = "refusal" if self.kind == "refusal" else "text"
        part: dict[str, Any] = {"type": self.kind, text: "".join(self._texts)}
        if self.kind == "output_text":
            part |= {"annotations": [*self._annotations], "logprobs": [*self._logprobs]}
        return part

    def add(self, piece: Thought | Text | Refusal) -> bytes:
        if not isinstance(piece, Text):
            return self._delta(piece.text, {})
        written = b""
        if piece.text:
            logprobs = [_logprob(each) for each in piece.logprobs]
            self._logprobs += logprobs
            written = self._delta(piece.text, {"logprobs": logprobs})
        for annotation in [_annotation(each) for each in piece.annotations]:
            if annotation is not None:
                place = {"annotation_index": len(self._annotations), "annotation": annotation}
                self._annotations.append(annotation)
                written += self._stream.event("response.output_text.annotation.added", {**self.where, **place})
        return written

    def _delta(self, text: str, more: dict[str, Any]) -> bytes:
        self._texts.append(text)
        return self._stream.event(f"response.{self.kind}.delta", {**self.where, "delta": text, **more})

    def end(self) -> bytes:
        part = self.object()
        done = {name: value for name, value in part.items() if name not in ("type", "annotations")}
        written = self._stream.event(f"response.{self.kind}.done", {**self.where, **done})
        return written + self._stream.event("response.content_part.done", {**self.where, "part": part})


class _Picture(_Item):
    """A picture as the item of the tool that makes pictures, as LiteLLM and others write it (litellm#16586)."""

    def __init__(self, stream: ResponseWriter, item_id: str, data: str) -> None:
        super().__init__(stream, item_id)
        self._data = data

    def object(self) -> dict[str, Any]:
        result = None if self.status == "in_progress" else self._data
        return {"id": self.id, "type": "image_generation_call", "status": self.status, "result": result}

    def _end_content(self) -> bytes:
        return self.stream.event("response.image_generation_call.completed", self.where)


class _Call(_Item):
    def __init__(self, stream: ResponseWriter, own_id: str, call_id: str, tool: CalledTool) -> None:
        prefix = {"custom": "ctc_", "local_shell": "lsh_"}.get(tool.kind, "fc_")
        super().__init__(stream, own_id.replace("call_", prefix, 1))
        self._call_id = call_id
        self._tool = tool
        self._arguments: list[str] = []
        self._input = CustomInput()
        self._texts: list[str] = []

    def object(self) -> dict[str, Any]:
        tool = self._tool
        kind = "custom_tool_call" if tool.kind == "custom" else f"{tool.kind}_call"
        called: dict[str, Any] = {"id": self.id, "type": kind, "call_id": self._call_id, "status": self.status}
        if tool.kind == "local_shell":
            return {**called, "action": self._action()}
        called["name"] = tool.name
        if tool.namespace is not None:
            called["namespace"] = tool.namespace
        if tool.kind == "custom":
            return {**called, "input": "".join(self._texts)}
        return {**called, "arguments": "".join(self._arguments)}

    def add(self, arguments: str) -> bytes:
        if not arguments:
            return b""
        self._arguments.append(arguments)
        match self._tool.kind:
            case "function":
                return self._event("function_call_arguments.delta", {"delta": arguments})
            case "custom":
                return self._text(self._input.feed(arguments))
            case _:
                return b""  # the API has no deltas for it

    def _text(self, text: str) -> bytes:
        if not text:
            return b""
        self._texts.append(text)
        return self._event("custom_tool_call_input.delta", {"delta": text})

    def _event(self, what: str, members: dict[str, Any]) -> bytes:
        return self.stream.event(f"response.{what}", {**self.where, **members})

    def _end_content(self) -> bytes:
        match self._tool.kind:
            case "function":
                written = b"" if self._arguments else self.add("{}")
                done = {"name": self._tool.name, "arguments": "".join(self._arguments)}
                return written + self._event("function_call_arguments.done", done)
            case "custom":
                written = self._text(self._input.finish())
                return written + self._event("custom_tool_call_input.done", {"input": "".join(self._texts)})
            case _ if not self._action()["command"] and self.ends_as == "completed":
                raise Unfit("a call of local_shell without a command")
        return b""

    def _action(self) -> dict[str, Any]:
        given = parsed("".join(self._arguments)) or {}
        command = given["command"] if isinstance(given.get("command"), list) else []
        more = {name: given.get(name) for name in ("timeout_ms", "user", "working_directory")}
        return {"type": "exec", "command": command, "env": given.get("env") or {}, **more}


def _logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A token's log probability; `bytes` is a list in Responses, and null for some tokens of chat."""
    top = [_logprob(each) for each in objects(entry.get("top_logprobs"))]
    shown = {name: entry.get(name) for name in ("token", "logprob")}
    return {**shown, "bytes": entry.get("bytes") or [], "top_logprobs": top}


def _annotation(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """A citation of chat; its members are one level deeper there."""
    inner = given.get("url_citation")
    return {"type": "url_citation", **inner} if isinstance(inner, dict) else None
