"""One choice of a chat answer in the format of completions: text, finish reason and log probabilities.

Reasoning (`reasoning_content`, `reasoning`) is not part of the text. A refusal is addressed to the user, and so it is
part of it. A tool call was not requested and has no equivalent: such an answer is `Unfit`, as is one without the
requested log probabilities. No answer is better than a wrong one.

Log probabilities are a list of tokens on chat; on completions they are four lists side by side. `text_offset` counts
characters from the beginning of the prompt, so it goes on where the prompt ends. A token may be a part of a character:
then it has no text of its own, is written as its bytes (`bytes:\\xf0\\x9f`, as completions do), and begins where the
character begins. `top_logprobs` is a map, in which tokens with the same text are one, the likeliest; it always
has the chosen token.
"""

from __future__ import annotations

import codecs
from typing import Any

from gateway.formats.openai.reader import contents
from gateway.formats.unfit import Unfit

_CALLS = frozenset({"tool_calls", "function_call"})


class ChatChoice:
    """Follows one choice over all its pieces; a plain answer is one piece."""

    def __init__(self, prompt_characters: int, *, has_logprobs: bool) -> None:
        self._has_logprobs = has_logprobs
        self._characters = 0
        self._logprobs = _Logprobs(prompt_characters)

    def completions_choice(self, message: Any, logprobs: Any, finish_reason: Any, index: int) -> dict[str, Any] | None:
        """A piece as a choice of completions; None where there is nothing in it. `message` may be a delta.

        Raises `Unfit`.
        """
        if message is None:
            message = {}
        if not isinstance(message, dict):
            raise Unfit("the message of a choice is not a JSON object")
        if message.get("tool_calls") or message.get("function_call") or finish_reason in _CALLS:
            raise Unfit("a tool was called, and none was offered")
        if finish_reason is not None and not isinstance(finish_reason, str):
            raise Unfit("a finish_reason that is no text")
        text = contents(message.get("content"))[1] + contents(message.get("refusal"))[1]
        self._characters += len(text)
        shown = self._logprobs.shown(logprobs) if self._has_logprobs else None
        if finish_reason and self._has_logprobs and self._logprobs.characters < self._characters:
            raise Unfit("logprobs were asked for, and are not there for all of the text")
        if not text and not finish_reason and not (shown and shown["tokens"]):
            return None
        return {"text": text, "index": index, "logprobs": shown, "finish_reason": finish_reason or None}


class _Logprobs:
    def __init__(self, prompt_characters: int) -> None:
        self.characters = 0
        """Of the tokens so far."""
        self._prompt_characters = prompt_characters
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def shown(self, logprobs: Any) -> dict[str, list[Any]]:
        """The four lists for the tokens of one piece, which may be none."""
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in _entries(logprobs):
            text, probability = _token(entry), entry.get("logprob")
            lists["tokens"].append(text)
            lists["token_logprobs"].append(probability)
            lists["top_logprobs"].append(_top(entry, text, probability))
            lists["text_offset"].append(self._prompt_characters + self.characters)
            self.characters += len(self._decoder.decode(_bytes(entry)))
        return lists


def _entries(logprobs: Any) -> list[dict[str, Any]]:
    """The tokens of a piece, those of a refusal behind those of the content."""
    if logprobs is None:
        return []
    if not isinstance(logprobs, dict):
        raise Unfit("logprobs in a shape that chat does not have")
    return [*_objects(logprobs.get("content")), *_objects(logprobs.get("refusal"))]


def _objects(given: Any) -> list[dict[str, Any]]:
    """A list of objects, which may be left out."""
    listed = [] if given is None else given
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise Unfit("logprobs in a shape that chat does not have")
    return listed


def _top(entry: dict[str, Any], text: str, probability: Any) -> dict[str, Any]:
    top: dict[str, Any] = {}
    for other in _objects(entry.get("top_logprobs")):
        top.setdefault(_token(other), other.get("logprob"))  # they come with the likeliest first
    top.setdefault(text, probability)
    return top


def _bytes(entry: dict[str, Any]) -> bytes:
    given, token = entry.get("bytes"), entry.get("token")
    if not isinstance(token, str) or not isinstance(entry.get("logprob"), int | float):
        raise Unfit("a token without its text or its logprob")
    try:
        return bytes(given) if isinstance(given, list) else token.encode()
    except (ValueError, TypeError):  # a lone surrogate, or numbers that are no bytes
        raise Unfit("a token that is no text") from None


def _token(entry: dict[str, Any]) -> str:
    """A token in the form of completions."""
    data = _bytes(entry)
    try:
        data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
    token: str = entry["token"]
    return token
