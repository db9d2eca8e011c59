"""The texts of an answer as its upstream sends it, whole or as far as it came. Pure.

They are without reasoning, calls of tools, pictures and sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.formats import sse
from gateway.formats.event_scan import parsed
from gateway.formats.reader import objects, text_of, value_at
from gateway.formats.table import FORMATS
from gateway.records import Endpoint

Texts = Iterator[tuple[int, str]]
"""The numbers of choices, each with a piece of its text."""


def texts_of(endpoint: Endpoint, data: bytes) -> list[str]:
    """The text of each choice of an answer in this format."""
    read, found = READS[endpoint], dict[int, list[str]]()
    for value in _objects(data):
        for number, text in read(value):
            found.setdefault(number, []).append(text)
    gather = FORMATS[endpoint].gather
    if not found and gather is not None and sse.begins_stream(data) and (whole := gather(data)):
        return texts_of(endpoint, whole)  # a stream that brings its text at its end alone
    return ["".join(found[number]) for number in sorted(found)]


def _objects(data: bytes) -> Iterator[dict[str, Any]]:
    """The objects in a stream, or the one that a plain answer is."""
    if not sse.begins_stream(data):
        yield from objects([parsed(data)])
        return
    splitter = sse.EventSplitter(len(data) + 1)
    for event, _ in [*splitter.split(data.removeprefix(sse.MARK)), (splitter.rest(), True)]:
        yield from objects([parsed(sse.data_of(event) or b"")])


def _text(content: Any) -> str:
    """The text in a content, which is a text or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join([text_of(each.get("text", each.get("refusal"))) for each in objects(content) if _is_text(each)])


def _is_text(part: Mapping[str, Any]) -> bool:
    return part.get("type") in ("text", "output_text", "refusal")


def _of_choices(value: Mapping[str, Any]) -> Texts:
    for place, choice in enumerate(objects(value.get("choices"))):
        index, message = choice.get("index"), choice.get("delta") or choice.get("message")
        text = _text(choice.get("text"))
        if isinstance(message, dict):
            text = _text(message.get("content")) + text_of(message.get("refusal"))
        if text:
            yield index if isinstance(index, int) else place, text


def _of_message(value: Mapping[str, Any]) -> Texts:
    """A message, or an event: a block may begin with text."""
    text = _text(value.get("content")) + _text([value.get("content_block")])
    if value_at(value, ("delta", "type")) == "text_delta":
        text += text_of(value["delta"].get("text"))
    if text:
        yield 0, text


_DELTAS = frozenset({"response.output_text.delta", "response.refusal.delta"})


def _of_response(value: Mapping[str, Any]) -> Texts:
    text = "".join([_text(each.get("content")) for each in objects(value.get("output")) if each.get("role")])
    if value.get("type") in _DELTAS:
        text += text_of(value.get("delta"))
    if text:
        yield 0, text


def _of_candidates(value: Mapping[str, Any]) -> Texts:
    for place, candidate in enumerate(objects(value.get("candidates"))):
        index, parts = candidate.get("index"), objects(value_at(candidate, ("content", "parts")))
        if text := "".join([text_of(part.get("text")) for part in parts if not part.get("thought")]):
            yield index if isinstance(index, int) else place, text


READS: Mapping[Endpoint, Callable[[Mapping[str, Any]], Texts]] = {
    "completions": _of_choices,
    "chat": _of_choices,
    "messages": _of_message,
    "responses": _of_response,
    "generate_content": _of_candidates,
}
"""The formats whose answers are text."""
