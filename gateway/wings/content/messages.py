"""Requests and answers as the messages of OpenTelemetry's conventions for generative AI. Pure.

The schemas of `gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.system_instructions` are those of the
conventions that `observe/span_attributes.py` names (docs/gen-ai/*.json there): a message has a role and parts, and a
part has a type. Content without a part of its own there keeps its vendor's type and members, as the schemas allow.

A stream is read as one whole answer, which its format puts together (`formats/gathered.py`). Of one that broke off, the
texts count that its format's scan counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gateway.formats import sse
from gateway.formats.event_scan import EventScan, parsed
from gateway.formats.format import ScanInput
from gateway.formats.reader import objects
from gateway.formats.table import FORMATS
from gateway.records import Endpoint

Parts = list[dict[str, Any]]
Messages = list[dict[str, Any]]

CUT = "cut"
"""The finish reason of an answer of which a part is missing."""

MEDIA = re.compile(r"data:[\w.+/-]*;base64,|[A-Za-z0-9+/_=-]{2048,}\Z")
"""Matches the beginning of text that is a file: it is left out."""


class Instructed(NamedTuple):
    system: Parts
    messages: Messages


def of_request(endpoint: Endpoint, members: Mapping[str, Any]) -> Instructed:
    """The instructions and the messages of a request."""
    return _REQUESTS.get(endpoint, _of_other)(members)


def of_answer(endpoint: Endpoint, members: Mapping[str, Any]) -> Messages:
    """The messages of a whole answer; empty, where it has none that is known."""
    read = _ANSWERS.get(endpoint)
    return [] if read is None else [each for each in read(members) if each["parts"]]


def of_stream(endpoint: Endpoint, stream: bytes, *, is_cut: bool) -> Messages:
    """The messages of a streamed answer, as far as it came."""
    gather = FORMATS[endpoint].gather
    whole = None if is_cut or gather is None else parsed(gather(stream) or b"")
    found = [] if whole is None else of_answer(endpoint, whole)
    if found:
        return found
    text = "".join(_texts(endpoint, stream))
    return [_reply([_text(text)], CUT)] if text else []


def of_raw(text: str, role: str) -> Messages:
    """A body that is not read, or of which only the beginning is there."""
    message = {"role": role, "parts": [_text(text)]}
    return [message if role == "user" else message | {"finish_reason": CUT}]


def _texts(endpoint: Endpoint, stream: bytes) -> Iterator[str]:
    """The texts in the events of a stream, by the patterns of its format's scan."""
    make = FORMATS[endpoint].scan
    scan = None if make is None else make(ScanInput())
    if not isinstance(scan, EventScan):
        return
    splitter = sse.EventSplitter(len(stream) + 1)
    for event, _ in splitter.split(stream.removeprefix(sse.MARK)):
        data = sse.data_of(event) or b""
        if scan.HAS_TEXTS is None or scan.HAS_TEXTS.search(data) is not None:
            for text in scan.TEXTS.findall(data):
                try:
                    yield json.loads(b'"' + text + b'"')
                except ValueError:
                    continue


# --------------------------------------------------------------------------------------------------------------- parts


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def _called(name: Any, arguments: Any, call_id: Any = None) -> dict[str, Any]:
    """A tool call, whose arguments are an object where they are one in JSON."""
    if isinstance(arguments, str) and (read := parsed(arguments)) is not None:
        arguments = read
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def _response(given: Any, call_id: Any = None) -> dict[str, Any]:
    return {"type": "tool_call_response", "id": call_id, "response": given}


def _uri(modality: str, given: Any) -> dict[str, Any]:
    return {"type": "uri", "modality": modality, "uri": given}


def _reasoning(block: Mapping[str, Any]) -> dict[str, Any]:
    given = block.get("thinking", block.get("text")) or [*_lines(block.get("summary")), *_lines(block.get("content"))]
    return {"type": "reasoning", "content": given if isinstance(given, str) else "\n".join(given)}


def _lines(given: Any) -> Iterator[str]:
    for each in objects(given):
        if isinstance(each.get("text"), str):
            yield each["text"]


def _image_url(block: Mapping[str, Any]) -> dict[str, Any]:
    given = block.get("image_url")
    return _uri("image", given.get("url") if isinstance(given, dict) else given)


_TYPED: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    **dict.fromkeys(("text", "input_text", "output_text"), lambda block: _text(str(block.get("text") or ""))),
    "refusal": lambda block: _text(str(block.get("refusal") or "")),
    "image_url": _image_url,
    "input_image": _image_url,
    "tool_use": lambda block: _called(block.get("name"), block.get("input"), block.get("id")),
    "tool_result": lambda block: _response(block.get("content"), block.get("tool_use_id")),
    "function_call": lambda block: _called(block.get("name"), block.get("arguments"), block.get("call_id")),
    "custom_tool_call": lambda block: _called(block.get("name"), block.get("input"), block.get("call_id")),
    "function_call_output": lambda block: _response(block.get("output"), block.get("call_id")),
    "custom_tool_call_output": lambda block: _response(block.get("output"), block.get("call_id")),
    "thinking": _reasoning,
    "reasoning": _reasoning,
}
"""The parts that the conventions have for blocks of chat, Messages and Responses."""


def _parts(content: Any) -> Parts:
    """The parts of a content: a text, a block, or a list of them."""
    if isinstance(content, list):
        return [part for each in content for part in _parts(each)]
    if isinstance(content, str):
        return [_text(content)] if content else []
    if not isinstance(content, dict):
        return []
    kind = content.get("type")
    make = _TYPED.get(kind) if isinstance(kind, str) else None
    return [{**content, "type": str(kind or "unknown")} if make is None else make(content)]


def _reply(parts: Parts, reason: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "parts": parts,
        "finish_reason": str(reason or "stop").replace("tool_calls", "tool_call"),
    }


# ----------------------------------------------------------------------------------------------------------- requests


def _prompts(given: Any) -> Messages:
    """Prompts of completions and embeddings: a text, several, or tokens."""
    texts = given if isinstance(given, list) and not all(isinstance(each, int) for each in given) else [given]
    return [
        {"role": "user", "parts": [_text(each) if isinstance(each, str) else {"type": "tokens", "content": each}]}
        for each in texts
        if each is not None
    ]


def _chat_message(given: Mapping[str, Any]) -> dict[str, Any]:
    role = str(given.get("role") or "user")
    thought = given.get("reasoning_content") or given.get("reasoning")
    parts = [{"type": "reasoning", "content": thought}] if isinstance(thought, str) else []
    if role == "tool":
        parts.append(_response(given.get("content"), given.get("tool_call_id")))
    else:
        parts += _parts(given.get("content")) + _parts(given.get("refusal"))
    calls = [(each.get("function", each.get("custom")), each.get("id")) for each in objects(given.get("tool_calls"))]
    calls += [(each, None) for each in objects([given.get("function_call")])]
    parts += [_called(f.get("name"), f.get("arguments", f.get("input")), i) for f, i in calls if isinstance(f, dict)]
    return {"role": role, "parts": parts}


def _of_messages(members: Mapping[str, Any]) -> Instructed:
    found = [
        {"role": str(each.get("role") or "user"), "parts": _parts(each.get("content"))}
        for each in objects(members.get("messages"))
    ]
    return Instructed(_parts(members.get("system")), found)


def _item(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item of Responses: a message, or something that the model or a tool did."""
    if item.get("type", "message") == "message":
        return {"role": str(item.get("role") or "user"), "parts": _parts(item.get("content"))}
    role = "tool" if str(item["type"]).endswith("_output") else "assistant"
    return {"role": role, "parts": _parts(item)}


def _of_responses(members: Mapping[str, Any]) -> Instructed:
    given = members.get("input")
    found = _prompts(given) if isinstance(given, str) else [_item(each) for each in objects(given)]
    return Instructed(_parts(members.get("instructions")), found)


def _gemini_parts(given: Any) -> Parts:
    parts: Parts = []
    content = given if isinstance(given, dict) else {}
    for part in objects(content.get("parts")):
        if isinstance(part.get("text"), str):
            kind = "reasoning" if part.get("thought") else "text"
            parts.append({"type": kind, "content": part["text"]})
        elif isinstance(call := part.get("functionCall", part.get("function_call")), dict):
            parts.append(_called(call.get("name"), call.get("args"), call.get("id")))
        elif isinstance(result := part.get("functionResponse", part.get("function_response")), dict):
            parts.append(_response(result.get("response"), result.get("id") or result.get("name")))
        else:
            parts.append({"type": next(iter(part), "unknown"), **part})
    return parts


def _of_generate(members: Mapping[str, Any]) -> Instructed:
    system = members.get("systemInstruction", members.get("system_instruction"))
    found = [
        {"role": "assistant" if each.get("role") == "model" else "user", "parts": _gemini_parts(each)}
        for each in objects(members.get("contents"))
    ]
    return Instructed(_gemini_parts(system), found)


def _of_other(members: Mapping[str, Any]) -> Instructed:
    return Instructed([], of_raw(json.dumps(members, ensure_ascii=False), "user"))


_REQUESTS: Mapping[str, Callable[[Mapping[str, Any]], Instructed]] = {
    "chat": lambda members: Instructed([], [_chat_message(each) for each in objects(members.get("messages"))]),
    "completions": lambda members: Instructed([], _prompts(members.get("prompt"))),
    "embeddings": lambda members: Instructed([], _prompts(members.get("input"))),
    "messages": _of_messages,
    "responses": _of_responses,
    "generate_content": _of_generate,
}

# ------------------------------------------------------------------------------------------------------------ answers


def _choices(answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for choice in objects(answer.get("choices")):
        message = choice.get("message")
        parts = _chat_message(message)["parts"] if isinstance(message, dict) else _parts(choice.get("text"))
        yield _reply(parts, choice.get("finish_reason"))


def _message(answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    yield _reply(_parts(answer.get("content")), answer.get("stop_reason"))


def _output(answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The items of a response, which are one message of the model."""
    details = answer.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    yield _reply([part for each in objects(answer.get("output")) for part in _item(each)["parts"]], reason)


def _candidates(answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for each in objects(answer.get("candidates")):
        yield _reply(_gemini_parts(each.get("content")), each.get("finishReason"))


def _other_answer(answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    yield _reply([_text(json.dumps(answer, ensure_ascii=False))], None)


_ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]]] = {
    "chat": _choices, "completions": _choices, "messages": _message, "responses": _output,
    "generate_content": _candidates, "moderations": _other_answer, "rerank": _other_answer,
}  # fmt: skip
"""Answers with embeddings are numbers, and are not kept."""
