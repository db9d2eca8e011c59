"""The number of prompt tokens before the upstream reports it: counted if the tokenizer is known, else estimated.

The rule: a token is four bytes of UTF-8, rounded up over the whole prompt. Token arrays are counted, and so exact. On
chat a message adds 4 tokens to the text of its content, name, refusal and tool calls: 3 around it and 1 for its role
(OpenAI's cookbook, "How to count tokens with tiktoken"). Tool definitions and a response schema count by the rule with
their JSON as received; pictures by a table, sound and files at a flat rate, independent of their size, also in tools.

With a counter text is counted instead, and on chat the cookbook's 3 for the start of the reply and 1 for each name are
added. The count is exact where the API adds nothing to the text: in completions without a suffix, in embeddings. Chat
is not: the cookbook calls its own sum an estimate, which a model may change. Nor is text that is not all ASCII, whose
letters depend on the Unicode version; nor text that looks like a special token, which some upstreams parse as one.

A call is settled at what the upstream reports, so an estimate has to be cheap and near, not right. Nothing is
serialised again to find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gateway.records import Document

from .json_document import spans

Counter = Callable[[str], int]
"""Counts the tokens of a text as one model's tokeniser does. Never raises."""
FindsCounter = Callable[[str], Counter | None]
"""The token counter of a model by its client-side name; None if its tokenizer is unknown."""

BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
REPLY_TOKENS = 3
NAME_TOKENS = 1

MAX_COUNTED = 65536
"""Characters of a prompt that are counted; a longer one goes by the rule, so that no client can keep a worker from its
other calls. This many of prose take half a millisecond, of the worst text that was found (dashes) 40 ms."""

AUDIO_TOKENS = 500
"""About 50 seconds at 10 tokens a second."""
FILE_TOKENS = 2000
"""A few pages of a PDF, as text and as pictures."""
_PART_TOKENS: Mapping[str, int] = {"input_audio": AUDIO_TOKENS, "file": FILE_TOKENS}

IMAGE_LOW_TOKENS, IMAGE_TOKENS = 85, 765
# OpenAI's prices of a picture in low detail, and of one of 1024 x 1024 in high detail ("Images and vision"): a base and
# four tiles of it, or 1024 patches times a factor, without a low detail. The first matching pattern decides.
_IMAGE_TOKENS: tuple[tuple[str, int, int], ...] = (
    ("gpt-4o-mini*", 2833, 25501),  # 2833 + 4 x 5667
    ("gpt-4.1-mini*", 1659, 1659),  # 1024 x 1.62
    ("gpt-5-mini*", 1659, 1659),
    ("gpt-4.1-nano*", 2520, 2520),  # 1024 x 2.46
    ("gpt-5-nano*", 2520, 2520),
    ("o4-mini*", 1762, 1762),  # 1024 x 1.72
    ("gpt-5*", 70, 630),  # 70 + 4 x 140
    ("o[13]*", 75, 675),  # 75 + 4 x 150
    ("*", IMAGE_LOW_TOKENS, IMAGE_TOKENS),  # 85 + 4 x 170: gpt-4o and gpt-4.1, and unknown models
)

_DEFINITIONS = frozenset({"tools", "functions", "response_format"})


class Estimate(NamedTuple):
    prompts: int = 1
    tokens: int = 0
    is_exact: bool = False


def no_counter(model: str) -> Counter | None:
    """Nothing is known of any model: a `FindsCounter` for where the extra `tokens` is not installed."""
    return None


def prompts(
    value: str | list[str] | list[int] | list[list[int]] | None, suffix: str | None = None, count: Counter | None = None
) -> Estimate:
    """The checked `prompt` of completions or `input` of embeddings, in any of its forms."""
    extra = _tokens(_bytes(suffix)) if suffix else 0
    if value is None:
        return Estimate(tokens=1 + extra)  # the API takes <|endoftext|> for it
    if isinstance(value, str):
        return _texts([value], suffix or "", count)
    if isinstance(value[0], int):
        return Estimate(tokens=len(value) + extra, is_exact=not extra)
    if isinstance(value[0], list):
        tokens = sum(len(item) for item in value if isinstance(item, list))
        return Estimate(len(value), tokens + extra * len(value), is_exact=not extra)
    return _texts([item for item in value if isinstance(item, str)], suffix or "", count)


def chat(document: Document, count: Counter | None = None) -> Estimate:
    messages = document.members["messages"]
    prompt = _PromptTexts(document.members.get("model"))
    prompt.messages(messages)
    size = _bytes_of(_DEFINITIONS, document)
    tokens = prompt.other_tokens + MESSAGE_TOKENS * len(messages)
    if count is not None and _is_short(prompt.texts):
        tokens += sum(map(count, prompt.texts)) + NAME_TOKENS * prompt.names + REPLY_TOKENS
    else:
        size += _bytes("".join(prompt.texts))
    return Estimate(tokens=tokens + _tokens(size))


def of_texts(texts: Sequence[str], definitions: str, count: Counter | None = None) -> int:
    """Tokens of these texts, and of definitions in JSON, which always count by the rule."""
    if count is not None and _is_short(texts):
        return sum(map(count, texts)) + _tokens(_bytes(definitions))
    return _tokens(_bytes("".join(texts)) + _bytes(definitions))


_RESPONSE_DEFINITIONS = frozenset({"tools", "text"})
_NO_TEXT = frozenset({"type", "id", "call_id", "status", "role", "phase", "detail", "image_url", "file_data"})
"""Members of an item that are no text for the model."""
_PICTURES = frozenset({"input_image", "computer_screenshot", "image_generation_call", "image"})
"""Parts and items that are a picture, whichever member holds it (openai-python, `types/responses/`)."""
_TOOL_MEDIA = frozenset({"image_url", "data"})
"""Members of hosted tools that hold a picture (the mask of an image) or an archive (a skill of a container)."""
_RESPONSE_PARTS: Mapping[str, int] = {"input_audio": AUDIO_TOKENS, "input_file": FILE_TOKENS}


def response(document: Document, count: Counter | None = None) -> Estimate:
    """The checked body of a call of the Responses API: each item of the input counts like a message of a chat."""
    members = document.members
    prompt = _PromptTexts(members.get("model"))
    given = [members.get("instructions"), members.get("input")]
    items = sum([len(value) if isinstance(value, list) else 1 for value in given if value is not None])
    for value in given:
        prompt.everything(value)
    size = _bytes_of(_RESPONSE_DEFINITIONS, document) - prompt.media(members.get("tools"))
    tokens = prompt.other_tokens + MESSAGE_TOKENS * items
    if count is not None and _is_short(prompt.texts):
        tokens += sum(map(count, prompt.texts)) + REPLY_TOKENS
    else:
        size += _bytes("".join(prompt.texts))
    return Estimate(tokens=tokens + _tokens(size))


def _texts(texts: list[str], suffix: str, count: Counter | None) -> Estimate:
    if count is not None and _is_short([*texts, suffix]):
        tokens = sum(map(count, texts)) + (len(texts) * count(suffix) if suffix else 0)
        return Estimate(len(texts), tokens, is_exact=not suffix and all(map(_is_plain, texts)))
    return Estimate(len(texts), _tokens(_bytes("".join(texts)) + len(texts) * _bytes(suffix)))


def _is_short(texts: Sequence[str]) -> bool:
    return sum(map(len, texts)) <= MAX_COUNTED


def _is_plain(text: str) -> bool:
    """Whether every tokeniser of this encoding has to cut this text in the same way."""
    return text.isascii() and "<|" not in text


def _bytes_of(names: frozenset[str], document: Document) -> int:
    """Returns the size in bytes of these members as the client wrote them; null counts as 0."""
    members = document.members
    if names.isdisjoint(members):
        return 0
    places = spans(document)
    return sum([_bytes(document.text[slice(*places[name])]) for name in names if members.get(name) is not None])


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


class _PromptTexts:
    """The texts in the messages of a chat, and the tokens of the parts that are not text.

    No schema was applied here: an upstream may accept more than OpenAI. Unknown parts count as zero.
    """

    __slots__ = ("_model", "names", "other_tokens", "texts")

    def __init__(self, model: Any) -> None:
        self.texts: list[str] = []
        self.names = 0
        self.other_tokens = 0
        self._model = model if isinstance(model, str) else ""

    def messages(self, messages: Iterable[Mapping[str, Any]]) -> None:
        for message in messages:
            for field, value in message.items():
                match field:
                    case "content" if isinstance(value, str):
                        self.texts.append(value)
                    case "content" if isinstance(value, list):
                        self._parts(value)
                    case "name":
                        self.names += isinstance(value, str)
                        self._text(value)
                    case "refusal":
                        self._text(value)
                    case "tool_calls":
                        self._calls(value)
                    case "audio" if value is not None:  # of an earlier answer, which the upstream keeps
                        self.other_tokens += AUDIO_TOKENS
                    case "function_call":
                        self._call(value)

    def everything(self, value: Any) -> None:
        """Every text at any depth, of items of any type."""
        if isinstance(value, str):
            self._text(value)
        elif isinstance(value, list):
            for each in value:
                self.everything(each)
        elif isinstance(value, dict):
            kind = value.get("type")
            if isinstance(kind, str) and kind in _PICTURES:
                self.other_tokens += self._image(value)
            elif isinstance(kind, str) and kind in _RESPONSE_PARTS:
                self.other_tokens += _RESPONSE_PARTS[kind]
            else:
                for name, each in value.items():
                    if name not in _NO_TEXT:
                        self.everything(each)

    def media(self, tools: Any) -> int:
        """The bytes of media in tools that are no functions; they count at their flat rates instead."""
        if isinstance(tools, list):
            return sum([self.media(each) for each in tools])
        if not isinstance(tools, dict) or tools.get("type") == "function":
            return 0
        size = 0
        for name, value in tools.items():
            if name in _TOOL_MEDIA and isinstance(value, str):
                self.other_tokens += self._image(tools) if name == "image_url" else FILE_TOKENS
                size += len(value)
            else:
                size += self.media(value)
        return size

    def _text(self, value: Any) -> None:
        if isinstance(value, str) and value:
            self.texts.append(value)

    def _parts(self, parts: list[Any]) -> None:
        for part in parts:
            if not isinstance(part, dict):
                continue
            kind = part.get("type")
            if kind == "image_url":
                self.other_tokens += self._image(part.get("image_url"))
            elif isinstance(kind, str) and kind in _PART_TOKENS:
                self.other_tokens += _PART_TOKENS[kind]
            else:
                self._text(part.get("text"))
                self._text(part.get("refusal"))

    def _image(self, image: Any) -> int:
        is_low = isinstance(image, dict) and image.get("detail") == "low"
        return next(low if is_low else high for name, low, high in _IMAGE_TOKENS if fnmatchcase(self._model, name))

    def _call(self, value: Any) -> None:
        """A function call: its name and its arguments."""
        if isinstance(value, dict):
            for text in value.values():
                self._text(text)

    def _calls(self, value: Any) -> None:
        for call in value if isinstance(value, list) else ():
            if isinstance(call, dict):
                self._call(call.get("function"))
                self._call(call.get("custom"))
