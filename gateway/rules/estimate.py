"""How many tokens a prompt has, as far as can be told without a tokeniser.

The rule: a token is four bytes of UTF-8, rounded up over the whole prompt. Token arrays are counted, and so exact. On
chat a message adds 4 tokens to the text of its content, name, refusal and tool calls (OpenAI's cookbook counts 3 to 4);
tool definitions and a response schema count with their JSON as it stands in the body; pictures, sound and files by the
table below, whatever their size. A call is settled at what the upstream reports, so an estimate has to be cheap and
near, not right. Nothing is serialised again to find it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.records import Document

from .document import spans

BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4

IMAGE_LOW_TOKENS = 85
IMAGE_TOKENS = 765
"""OpenAI's price of a 1024 x 1024 picture in high detail: 85 and four tiles of 170."""
AUDIO_TOKENS = 500
"""About 50 seconds at 10 tokens a second."""
FILE_TOKENS = 2000
"""A few pages of a PDF, as text and as pictures."""

_PART_TOKENS: Mapping[str, int] = {"input_audio": AUDIO_TOKENS, "file": FILE_TOKENS}
_DEFINITIONS = ("tools", "functions", "response_format")


@dataclass(frozen=True, slots=True)
class Estimate:
    prompts: int = 1
    tokens: int = 0
    is_exact: bool = False


def prompts(value: str | list[str] | list[int] | list[list[int]] | None, suffix: str | None = None) -> Estimate:
    """The checked `prompt` of completions or `input` of embeddings, in any of its forms."""
    extra = _tokens(_bytes(suffix)) if suffix else 0
    if value is None:
        return Estimate(tokens=1 + extra)  # the API takes <|endoftext|> for it
    if isinstance(value, str):
        return Estimate(tokens=_tokens(_bytes(value) + _bytes(suffix or "")))
    if isinstance(value[0], int):
        return Estimate(tokens=len(value) + extra, is_exact=not extra)
    if isinstance(value[0], list):
        tokens = sum(len(item) for item in value if isinstance(item, list))
        return Estimate(len(value), tokens + extra * len(value), is_exact=not extra)
    size = sum(_bytes(item) for item in value if isinstance(item, str))
    return Estimate(len(value), _tokens(size + _bytes(suffix or "") * len(value)))


def chat(document: Document) -> Estimate:
    """The checked body of a chat call."""
    size = 0
    messages = document.members["messages"]
    for message in messages:
        for name, value in message.items():
            count = _MESSAGE_FIELDS.get(name)
            if count is not None:
                size += count(value)
    if definitions := [name for name in _DEFINITIONS if document.members.get(name) is not None]:
        places = spans(document)
        size += sum(_bytes(document.text[slice(*places[name])]) for name in definitions)
    return Estimate(tokens=_tokens(size) + MESSAGE_TOKENS * len(messages))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


# From here on no schema was applied: an upstream may take what OpenAI does not. What we do not know counts nothing.


def _text(value: Any) -> int:
    return _bytes(value) if isinstance(value, str) else 0


def _content(value: Any) -> int:
    if isinstance(value, str):
        return _bytes(value)
    return sum(map(_part, value)) if isinstance(value, list) else 0


def _part(part: Any) -> int:
    """One piece of a content array, in bytes of text that would cost as much."""
    if not isinstance(part, dict):
        return 0
    kind = part.get("type")
    if kind == "image_url":
        image = part.get("image_url")
        is_low = isinstance(image, dict) and image.get("detail") == "low"
        return BYTES_PER_TOKEN * (IMAGE_LOW_TOKENS if is_low else IMAGE_TOKENS)
    if isinstance(kind, str) and kind in _PART_TOKENS:
        return BYTES_PER_TOKEN * _PART_TOKENS[kind]
    return _text(part.get("text")) + _text(part.get("refusal"))


def _call(value: Any) -> int:
    """A function call: its name and its arguments."""
    return sum(map(_text, value.values())) if isinstance(value, dict) else 0


def _calls(value: Any) -> int:
    if not isinstance(value, list):
        return 0
    return sum(_call(call.get("function")) + _call(call.get("custom")) for call in value if isinstance(call, dict))


_MESSAGE_FIELDS: Mapping[str, Callable[[Any], int]] = {
    "content": _content,
    "name": _text,
    "refusal": _text,
    "tool_calls": _calls,
    "function_call": _call,
}
