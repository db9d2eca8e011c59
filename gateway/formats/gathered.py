"""Puts the events of a stream together as one plain answer, for upstreams that stream whether they are asked to or not
(new-api#6924, litellm#34095, kaito#1880)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from . import sse
from .event_scan import parsed
from .openai.responses_reader import ENDS
from .reader import objects

_MESSAGE = {"role": "assistant", "content": None, "refusal": None}
"""The members that each message of a plain answer has (openai-openapi, `ChatCompletionResponseMessage`)."""


def whole(gather: Callable[[bytes], bytes | None], stream: bytes) -> bytes:
    """The plain answer that a format makes of a stream; the stream itself where it makes none."""
    try:
        return gather(stream) or stream
    except Exception:  # whatever a value of another type leads to
        return stream


def chat(stream: bytes) -> bytes | None:
    """Chunks of chat or completions as an answer: pieces of texts are joined, lists by the `index` of their items
    (openai-python, `lib/streaming/_deltas.py`)."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in _objects_of(stream):
        if chunk.get("error"):
            return json.dumps(chunk).encode()
        for given in objects(chunk.pop("choices", None)):
            index = given.get("index") or 0
            choice = choices.setdefault(index if isinstance(index, int) else 0, {})
            given["message"] = given.pop("delta", given.get("message", {}))
            _add(choice, {name: value for name, value in given.items() if name != "index"})
        answer |= {name: value for name, value in chunk.items() if value is not None or name not in answer}
    if not choices or not all(choice.get("finish_reason") for choice in choices.values()):
        return None
    for choice in choices.values():
        delta = choice.pop("message")
        if "text" not in choice:
            choice["message"] = _MESSAGE | delta
    answer["choices"] = [{"index": index, **choices[index]} for index in sorted(choices)]
    if answer.get("object") == "chat.completion.chunk":
        answer["object"] = "chat.completion"
    return json.dumps(answer, separators=(",", ":")).encode()


def response(stream: bytes) -> bytes | None:
    """The response of the event that ends it, with the items before it where it has none (litellm#32724)."""
    whole: Any = None
    items: list[dict[str, Any]] = []
    for event in _objects_of(stream):
        if event.get("type") == "response.output_item.done":
            items += objects([event.get("item")])
        if isinstance(event.get("response"), dict):
            whole = event["response"] if event.get("type") in ENDS else None
    if whole is None:
        return None
    return json.dumps(whole if whole.get("output") else {**whole, "output": items}, separators=(",", ":")).encode()


def message(stream: bytes) -> bytes | None:
    """The message that its events make (anthropic-sdk, `accumulate_event`)."""
    whole: dict[str, Any] = {}
    blocks: dict[Any, dict[str, Any]] = {}
    inputs: dict[Any, str] = {}
    for event in _objects_of(stream):
        index, delta = event.get("index"), event.get("delta")
        match event.get("type"):
            case "error":
                return json.dumps(event).encode()
            case "message_start" if isinstance(event.get("message"), dict):
                whole = event["message"]
            case "content_block_start" if isinstance(event.get("content_block"), dict):
                blocks[index] = event["content_block"]
            case "content_block_delta" if isinstance(delta, dict) and index in blocks:
                inputs[index] = inputs.get(index, "") + str(delta.get("partial_json") or "")
                for name in ("text", "thinking", "signature"):
                    if isinstance(delta.get(name), str):
                        blocks[index][name] = str(blocks[index].get(name) or "") + delta[name]
            case "message_delta":
                given = event.get("usage")
                whole |= delta if isinstance(delta, dict) else {}
                counts = {name: value for name, value in (given or {}).items() if value is not None}
                whole["usage"] = {**(whole.get("usage") or {}), **counts}
    if not whole.get("stop_reason"):
        return None
    for index, text in inputs.items():
        if text and (given := parsed(text.encode())) is not None:
            blocks[index]["input"] = given
    return json.dumps({**whole, "content": list(blocks.values())}, separators=(",", ":")).encode()


def content(stream: bytes) -> bytes | None:
    """Gemini's chunks as one answer: each is an answer whose parts follow those before it (google-genai, `types.py`,
    `GenerateContentResponse`)."""
    answer: dict[str, Any] = {}
    candidates: dict[Any, dict[str, Any]] = {}
    parts: dict[Any, list[dict[str, Any]]] = {}
    for chunk in _objects_of(stream):
        if chunk.get("error"):
            return json.dumps(chunk).encode()
        for given in objects(chunk.pop("candidates", None)):
            index = given.get("index", 0)
            candidate = candidates.setdefault(index, {})
            before, now = candidate.get("content"), given.get("content")
            if isinstance(now, dict):
                made = parts.setdefault(index, [])  # one list, not a copy with each chunk
                made += objects(now.get("parts"))
                before = before if isinstance(before, dict) else {}
                given["content"] = before | now | ({"parts": made} if made else {})
            candidate |= given
        answer |= chunk
    if not candidates and not answer.get("promptFeedback"):
        return None
    if not all(candidate.get("finishReason") for candidate in candidates.values()):
        return None
    return json.dumps(answer | {"candidates": list(candidates.values())}, separators=(",", ":")).encode()


def _objects_of(stream: bytes) -> Iterator[dict[str, Any]]:
    splitter = sse.EventSplitter(len(stream) + 1)
    events = [event for event, _ in splitter.split(stream.removeprefix(sse.MARK))]
    for event in [*events, splitter.rest()]:
        data = sse.data_of(event)
        if data and (value := parsed(data)) is not None:
            yield value


def _add(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        before = whole.get(name)
        if isinstance(before, str) and isinstance(value, str) and name not in ("id", "type", "role", "finish_reason"):
            whole[name] = before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            _add(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            for item in value:
                at = item.get("index") if isinstance(item, dict) else None
                known = next((each for each in before if isinstance(each, dict) and each.get("index") == at), None)
                if at is None or known is None:
                    before.append(item)
                else:
                    _add(known, item)
        elif value is not None or name not in whole:
            whole[name] = value
