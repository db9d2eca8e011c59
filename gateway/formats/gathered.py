"""Puts the events of a stream together as one plain answer, for upstreams that stream whether they are asked to or not
(new-api#6924, litellm#34095, kaito#1880).

Texts are joined once: a long answer costs no more per event than a short one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from . import sse
from .event_scan import parsed
from .openai.responses_reader import ENDS
from .reader import objects

_MESSAGE = {"role": "assistant", "content": None, "refusal": None}
"""The members that each message of a plain answer has (openai-openapi, `ChatCompletionResponseMessage`)."""
_NOT_IN_PIECES = ("id", "type", "role", "finish_reason")
"""Texts that are given whole each time."""


class Gathered:
    """The answer that the events make; the first error among them is the answer."""

    def __init__(self) -> None:
        self._error: dict[str, Any] | None = None
        self._is_unfit = False

    def whole(self, stream: bytes) -> bytes | None:
        """The answer of a stream; None: its events make none."""
        splitter = sse.EventSplitter(sys.maxsize)
        for event, _ in splitter.split(stream.removeprefix(sse.MARK)):
            self._take(event)
        self._take(splitter.rest())
        if self._is_unfit or self._error is not None:
            return None if self._is_unfit else json.dumps(self._error).encode()
        try:
            answer = self.answer()
            return None if answer is None else json.dumps(answer, separators=(",", ":"), default=_joined).encode()
        except Exception:  # whatever a value of another type leads to
            return None

    def _take(self, event: bytes) -> None:
        if self._error is not None or self._is_unfit:
            return
        try:
            data = sse.data_of(event)
            if data and (value := parsed(data)) is not None:
                if self.is_error(value):
                    self._error = value
                else:
                    self.add(value)
        except Exception:  # whatever a value of another type leads to
            self._is_unfit = True

    def is_error(self, event: dict[str, Any]) -> bool:
        return bool(event.get("error"))

    def add(self, event: dict[str, Any]) -> None:
        """Add one event, which may be changed. Raises any exception where a value has another type."""
        raise NotImplementedError

    def answer(self) -> dict[str, Any] | None:
        """The answer of all events; None: it is not whole."""
        raise NotImplementedError


class GatheredChat(Gathered):
    """Chunks of chat or completions: pieces of texts are joined, lists by the `index` of their items (openai-python,
    `lib/streaming/_deltas.py`)."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, event: dict[str, Any]) -> None:
        for given in objects(event.pop("choices", None)):
            index = given.get("index") or 0
            choice = self._choices.setdefault(index if isinstance(index, int) else 0, {})
            given["message"] = given.pop("delta", given.get("message", {}))
            _add(choice, {name: value for name, value in given.items() if name != "index"})
        self._answer |= {name: value for name, value in event.items() if value is not None or name not in self._answer}

    def answer(self) -> dict[str, Any] | None:
        choices = self._choices
        if not choices or not all(choice.get("finish_reason") for choice in choices.values()):
            return None
        for choice in choices.values():
            delta = choice.pop("message")
            if "text" not in choice:
                choice["message"] = _MESSAGE | delta
        self._answer["choices"] = [{"index": index, **choices[index]} for index in sorted(choices)]
        if self._answer.get("object") == "chat.completion.chunk":
            self._answer["object"] = "chat.completion"
        return self._answer


class GatheredResponse(Gathered):
    """The response of the event that ends it, with the items before it where it has none (litellm#32724)."""

    def __init__(self) -> None:
        super().__init__()
        self._whole: Any = None
        self._items: list[dict[str, Any]] = []

    def is_error(self, event: dict[str, Any]) -> bool:
        return False

    def add(self, event: dict[str, Any]) -> None:
        if event.get("type") == "response.output_item.done":
            self._items += objects([event.get("item")])
        if isinstance(event.get("response"), dict):
            self._whole = event["response"] if event.get("type") in ENDS else None

    def answer(self) -> dict[str, Any] | None:
        if self._whole is None or self._whole.get("output"):
            found: dict[str, Any] | None = self._whole
            return found
        return {**self._whole, "output": self._items}


class GatheredMessage(Gathered):
    """The message that its events make (anthropic-sdk, `accumulate_event`)."""

    def __init__(self) -> None:
        super().__init__()
        self._whole: dict[str, Any] = {}
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._inputs: dict[Any, list[str]] = {}

    def is_error(self, event: dict[str, Any]) -> bool:
        return event.get("type") == "error"

    def add(self, event: dict[str, Any]) -> None:
        index, delta = event.get("index"), event.get("delta")
        match event.get("type"):
            case "message_start" if isinstance(event.get("message"), dict):
                self._whole = event["message"]
            case "content_block_start" if isinstance(event.get("content_block"), dict):
                self._blocks[index] = event["content_block"]
            case "content_block_delta" if isinstance(delta, dict) and index in self._blocks:
                self._inputs.setdefault(index, []).append(str(delta.get("partial_json") or ""))
                for name in ("text", "thinking", "signature"):
                    if isinstance(delta.get(name), str):
                        _add_text(self._blocks[index], name, delta[name])
            case "message_delta":
                given = event.get("usage")
                self._whole |= delta if isinstance(delta, dict) else {}
                counts = {name: value for name, value in (given or {}).items() if value is not None}
                self._whole["usage"] = {**(self._whole.get("usage") or {}), **counts}

    def answer(self) -> dict[str, Any] | None:
        if not self._whole.get("stop_reason"):
            return None
        for index, pieces in self._inputs.items():
            if (text := "".join(pieces)) and (given := parsed(text.encode())) is not None:
                self._blocks[index]["input"] = given
        return {**self._whole, "content": list(self._blocks.values())}


class GatheredContent(Gathered):
    """Gemini's chunks: each is an answer whose parts follow those before it (google-genai, `types.py`,
    `GenerateContentResponse`)."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: dict[str, Any] = {}
        self._candidates: dict[Any, dict[str, Any]] = {}
        self._parts: dict[Any, list[dict[str, Any]]] = {}

    def add(self, event: dict[str, Any]) -> None:
        for given in objects(event.pop("candidates", None)):
            index = given.get("index", 0)
            candidate = self._candidates.setdefault(index, {})
            before, now = candidate.get("content"), given.get("content")
            if isinstance(now, dict):
                made = self._parts.setdefault(index, [])  # one list, not a copy with each chunk
                made += objects(now.get("parts"))
                before = before if isinstance(before, dict) else {}
                given["content"] = before | now | ({"parts": made} if made else {})
            candidate |= given
        self._answer |= event

    def answer(self) -> dict[str, Any] | None:
        candidates = self._candidates.values()
        if not candidates and not self._answer.get("promptFeedback"):
            return None
        if not all(candidate.get("finishReason") for candidate in candidates):
            return None
        return self._answer | {"candidates": list(candidates)}


def whole(kind: type[Gathered], stream: bytes) -> bytes | None:
    """The plain answer that the events of a whole stream make; None: they make none."""
    return kind().whole(stream)


class _Text:
    def __init__(self, first: str) -> None:
        self.pieces = [first]


class _Items(list[Any]):
    """A list whose items are found by their `index`."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__()
        self._places: dict[Any, dict[str, Any]] = {}
        for item in items:
            self.add(item)

    def add(self, item: Any) -> None:
        at = item.get("index") if isinstance(item, dict) else None
        if at is not None and at in self._places:
            _add(self._places[at], item)
            return
        self.append(item)
        if at is not None:
            self._places[at] = item


def _joined(value: Any) -> str:
    if isinstance(value, _Text):
        return "".join(value.pieces)
    raise TypeError


def _add_text(whole: dict[str, Any], name: str, piece: str) -> None:
    before = whole.get(name)
    if isinstance(before, _Text):
        before.pieces.append(piece)
    else:
        whole[name] = _Text(before if isinstance(before, str) else "")
        whole[name].pieces.append(piece)


def _add(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        before = whole.get(name)
        if isinstance(before, str | _Text) and isinstance(value, str) and name not in _NOT_IN_PIECES:
            _add_text(whole, name, value)
        elif isinstance(before, dict) and isinstance(value, dict):
            _add(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            if not isinstance(before, _Items):
                before = whole[name] = _Items(before)
            for item in value:
                before.add(item)
        elif value is not None or name not in whole:
            whole[name] = value
