"""Answers to the calls that one completions call became (`bridges.py`), plain or streamed, as the one answer to it.

Choices are numbered over the prompts: `index` is the prompt's number times `n` and the choice's own. All of them have
to be there. Usage is summed; where one answer has none, the whole has none, because half a sum is a wrong one.

A call's stream is scanned first (`formats/openai/reader.py`), which finds its end and the reason. Its events are
translated here to chunks of completions; chunks of all prompts are interleaved. Chunks with nothing in them for a
completions client (the role of a chat, thoughts, comments) are left out.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from gateway.formats import sse
from gateway.formats.event_scan import parsed
from gateway.formats.events import Unfit
from gateway.formats.openai.frame import Frame, as_completion
from gateway.formats.openai.reader import contents, pictures
from gateway.records import Usage

_ENDS = re.compile(rb"(?:\r\n|\n|\r)(?:\r\n|\n|\r)\Z")
_LONGEST_END = 4


class NamedBy(NamedTuple):
    """The model and fingerprint that an answer or a chunk of an upstream names."""

    model: str = ""
    fingerprint: str | None = None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> NamedBy:
        model, fingerprint = answer.get("model"), answer.get("system_fingerprint")
        return cls(model if isinstance(model, str) else "", fingerprint if isinstance(fingerprint, str) else None)


def around(frame: Frame, source: NamedBy, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """These choices, as those of an answer or a chunk that came from there. The id is the call's own, as OpenAI would
    begin it."""
    whole = frame.around("cmpl-", "text_completion", source.model or frame.model, choices)
    if source.fingerprint is not None:
        whole["system_fingerprint"] = source.fingerprint
    return whole


_CALLS = frozenset({"tool_calls", "function_call"})


class ChatChoice:
    """Follows one choice of a chat answer over all its pieces, as completions write it; a plain answer is one piece.

    Reasoning (`reasoning_content`, `reasoning`) is not part of the text. A refusal is addressed to the user, and so it
    is part of it. A tool call was not requested and has no equivalent: such an answer is `Unfit`, as is one without the
    requested log probabilities. No answer is better than a wrong one.

    Log probabilities are a list of tokens on chat; on completions they are four lists side by side. `text_offset`
    counts characters from the beginning of the prompt, so it goes on where the prompt ends. A token may be a part of a
    character: then it has no text of its own, is written as its bytes (`bytes:\\xf0\\x9f`, as completions do), and
    begins where the character begins. `top_logprobs` is a map, in which tokens with the same text are one, the
    likeliest; it always has the chosen token.
    """

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
        if finish_reason is not None and not isinstance(finish_reason, str):
            raise Unfit("a finish_reason that is no text")
        if message.get("tool_calls") or message.get("function_call") or finish_reason in _CALLS:
            raise Unfit("a tool was called, and none was offered")
        if pictures(message):
            raise Unfit("a picture, which a completion cannot hold")
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
        """Number of characters of the tokens so far."""
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
    data = _bytes(entry)
    try:
        data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
    return str(entry["token"])


class One(NamedTuple):
    prompt: int
    n: int
    is_chat: bool
    has_logprobs: bool
    prompt_characters: int

    def choice(self) -> ChatChoice:
        return ChatChoice(self.prompt_characters, has_logprobs=self.has_logprobs)

    def written(self, choice: dict[str, Any], own: int, message: str, so_far: ChatChoice) -> dict[str, Any] | None:
        """This choice or piece of one, numbered among all; `message` is its member with a chat's content."""
        index = self.prompt * self.n + own
        if not self.is_chat:
            return {**choice, "index": index}
        logprobs, reason = choice.get("logprobs"), choice.get("finish_reason")
        return so_far.completions_choice(choice.get(message), logprobs, reason, index)


def read(body: bytes) -> dict[str, Any]:
    """An answer or a chunk. Raises `Unfit`."""
    if (answer := parsed(body)) is None:
        raise Unfit("an answer that cannot be read")
    return answer


def own_index(choice: Any, n: int) -> int:
    """The index of a choice among those of its own answer. Raises `Unfit`."""
    index = choice.get("index", 0 if n == 1 else None) if isinstance(choice, dict) else None
    if type(index) is not int or not 0 <= index < n:
        raise Unfit("a choice that was not asked for")
    return index


class OneAnswer(NamedTuple):
    """A plain answer, as a part of the whole."""

    source: NamedBy
    choices: bytes
    """The members of the array of choices, as JSON."""


def answer_of(body: bytes, one: One) -> OneAnswer:
    """Reads a plain answer. Raises `Unfit`."""
    answer = read(body)
    written = [json.dumps(choice, separators=(",", ":")).encode() for choice in choices_of(one, answer)]
    return OneAnswer(NamedBy.of(answer), b",".join(written))


def choices_of(one: One, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of one plain answer as those of the whole, in the order of their indexes. Raises `Unfit`."""
    given = answer.get("choices")
    by_index = {own_index(choice, one.n): choice for choice in given} if isinstance(given, list) else {}
    if len(by_index) != one.n or not isinstance(given, list) or len(given) != one.n:
        raise Unfit(f"{len(given) if isinstance(given, list) else 'no'} choices, and {one.n} were asked for")
    return [_choice(one, by_index[own], own) for own in range(one.n)]


def _choice(one: One, choice: dict[str, Any], own: int) -> dict[str, Any]:
    made = one.written(choice, own, "message", one.choice())
    if made is None or (one.is_chat and made["finish_reason"] is None):
        raise Unfit("a choice without a finish_reason")
    return made


def write(frame: Frame, first: NamedBy, choices: Iterable[bytes], usage: Usage | None) -> bytes:
    """The whole answer of the choices of each `OneAnswer`; `first` is the source of the first one received."""
    beside = {} if usage is None else {"usage": as_completion(usage)}
    return _with_choices(around(frame, first, []) | beside, b",".join(choices))


def _with_choices(whole: dict[str, Any], choices: bytes) -> bytes:
    """An answer or a chunk with these choices, which are too long to be parsed again."""
    del whole["choices"]
    return json.dumps(whole, separators=(",", ":")).encode()[:-1] + b',"choices":[' + choices + b"]}"


class Stream:
    """Follows the stream of one call, from which only whole events are passed on."""

    def __init__(self, one: One, frame: Frame, *, shows_usage: bool, max_event_bytes: int) -> None:
        self._one = one
        self._frame = frame
        self._shows_usage = shows_usage
        self._max_event_bytes = max_event_bytes
        self._splitter = sse.EventSplitter()
        self._long = bytearray()
        self.first: NamedBy | None = None
        self._choices = [one.choice() for _ in range(one.n)]

    def feed(self, data: bytes) -> bytes:
        """Take what the scan has passed; return what the client may see now. Raises `Unfit`."""
        events = []
        for piece, is_whole in self._splitter.split(data):
            if is_whole:
                events.append(self._event(piece))
                continue
            self._long += piece
            if len(self._long) > min(self._max_event_bytes, sse.LONGEST_PARSED):
                raise Unfit("an event that is too long")
            if _ENDS.search(self._long[-_LONGEST_END:]):
                event = bytes(self._long)
                self._long.clear()
                if sse.has_many_parts(event):
                    raise Unfit("an event of too many parts to be translated")
                events.append(self._event(event))
        return b"".join(events)

    def _event(self, event: bytes) -> bytes:
        data = sse.data_of(event)
        if not data:
            return b""
        chunk = read(data)
        source = NamedBy.of(chunk)
        if self.first is None:
            self.first = source
        given = chunk.get("choices")
        translated = [self._choice(choice) for choice in given] if isinstance(given, list) else []
        choices = [choice for choice in translated if choice is not None]
        if not choices:
            return b""
        whole = around(self._frame, source, choices)
        return sse.json_event(whole | {"usage": None} if self._shows_usage else whole)

    def _choice(self, choice: Any) -> dict[str, Any] | None:
        own = own_index(choice, self._one.n)
        return self._one.written(choice, own, "delta", self._choices[own])


def plain_event(frame: Frame, answer: OneAnswer, *, shows_usage: bool) -> bytes:
    """A plain answer in place of a stream, as one event. Where usage was requested, it is null on all but the last."""
    whole = around(frame, answer.source, [])
    return sse.write_event(_with_choices(whole | {"usage": None} if shows_usage else whole, answer.choices))


def usage_event(frame: Frame, first: NamedBy, usage: Usage) -> bytes:
    """The last event before `[DONE]`, for a client that asked for usage; `first` is the source of the first chunk."""
    chunk = {**around(frame, first, []), "usage": as_completion(usage)}
    return sse.json_event(chunk)
