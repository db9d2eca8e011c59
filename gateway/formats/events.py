"""The events that a reader makes of an answer, whole or streamed, in the order in which it was generated.

Translations are made of these events and of nothing else; usage, errors and ends are facts of the reader itself
(`reader.AnswerReader`). Pieces of tool calls are collected here, however an upstream numbers them. They
belong together by `index` (openai-openapi, ChatCompletionMessageToolCallChunk), by `id` where there is no index,
else by their order. Upstreams break each of these rules:

1. Ollama and Gemini's chat endpoint give every call the index 0 (vercel/ai#14277, litellm#37792). The arguments of a
   call are one JSON value, so a new id, or a name once more, behind a whole value begins a new call.
2. Some repeat the id or the name in each piece (vLLM, Azure), or send the id later than the name, or the name in pieces
   (NVIDIA-NeMo/Switchyard#785): a call begins with its arguments, or when a further call begins.
3. Some give each piece an index of its own (dirac#215): a piece without id and name belongs to the call before it.
4. Some send all arguments so far in each piece (hermes-agent#35718), or all once more at the end (opencode#17339),
   vLLM with other blanks (vllm#42167), or several times in one piece (codex-lb#284). `{": 1}` behind `{"` may be the
   rest or all: both readings are kept, and what comes is held back, until one of them can no longer become JSON. Both
   are never whole, because one of them has an odd number of quotes or an open brace.
5. Some send `{}` first, and then the arguments (litellm's translation of Anthropic's `input: {}`): it is held back
   until it is known to be all.
6. Some write the arguments as an object (older Ollama, Mistral), or as the JSON of a text (OpenManus#989), which is
   held back until it is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MOST_READINGS = 4
"""Readings of the pieces of one call that are kept. By the first each piece has all so far, by the longest none has."""


class Unfit(Exception):
    """The upstream's answer does not fit the request and cannot be passed on; the text is the reason, for the log."""


class CollectedCall:
    """One call of a tool. When its first piece is handed out, its name is known; its `id` is empty if it has none."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Its place among the calls of the answer, from 0."""
        self.id = ""
        self.name = ""
        self.has_begun = False
        """Whether a piece of it was handed out."""
        self._pieces: list[str] = []
        """The arguments that were handed out."""
        self._held = [""]
        """The rest so far, by each reading of the pieces that came."""

    @property
    def is_held(self) -> bool:
        return any(self._held) or not self.has_begun

    @property
    def _is_empty(self) -> bool:
        """Whether the arguments so far are `{}`, which may be none."""
        return not self._pieces and self._held[0].strip() == "{}"

    @property
    def _is_certain(self) -> bool:
        return len(self._held) == 1 and not (self._is_empty or (not self._pieces and self._held[0].startswith('"')))

    @property
    def _readings(self) -> list[str]:
        given = "".join(self._pieces)
        return [given + held for held in self._held]

    @property
    def arguments(self) -> str:
        readings = self._readings
        found = next(filter(_is_whole, readings), readings[0]) if len(readings) > 1 else readings[0]
        return _unwrapped(found) if found.startswith('"') else found

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are one whole JSON value, by each reading."""
        return all(map(_is_whole, self._readings))

    @property
    def may_be_whole(self) -> bool:
        return any(map(_is_whole, self._readings))

    def take(self, call_id: str, name: str, arguments: str) -> str | None:
        """Add a piece; return the arguments that may be handed out now, None if the call cannot begin yet."""
        if not self.has_begun:
            self.id = self.id or call_id
            if name != self.name:
                self.name += name
        if self._is_empty and arguments.strip():
            self._held = [""]
        self._add(arguments)
        return self.begin() if self.name and (self.has_begun or any(self._held)) else None

    def begin(self) -> str:
        """Hand out what is certain of the arguments so far."""
        self.has_begun = True
        return self.rest() if self._is_certain else ""

    def rest(self) -> str:
        self.has_begun = True
        rest = self._held[0] if self._is_certain else self.arguments[len("".join(self._pieces)) :]
        self._held = [""]
        if rest:
            self._pieces.append(rest)
        return rest

    def _add(self, piece: str) -> None:
        if not (self._pieces or self._held[0]):
            piece = _once(piece.lstrip())
        added = [held + piece for held in self._held]
        if piece.startswith("{") or len(added) > 1:
            given = "".join(self._pieces)
            again = [held + _behind(given + held, piece) for held in self._held if (given + held).startswith("{")]
            readings = [*dict.fromkeys([*again, *added])]
            if len(readings) > 1:
                readings = [held for held in readings if _may_become_json(given + held)] or readings[:1]
            if len(readings) > MOST_READINGS:
                is_certain = len(readings[0]) > len(self._held[0])  # once more all so far, and more
                readings = readings[:1] if is_certain else [readings[0], max(readings, key=len)]
            added = readings
        self._held = added


def _once(text: str) -> str:
    """A text that is one object several times, as that object."""
    if "}{" not in text:
        return text
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return text
    return text[:end] if text == text[:end] * (len(text) // end) else text


def _unwrapped(text: str) -> str:
    """The object whose JSON is in this JSON of a text, or the text as it is."""
    inner = json.loads(text) if _is_whole(text) else None
    return inner if isinstance(inner, str) and inner.startswith("{") and _is_whole(inner) else text


def _is_whole(text: str) -> bool:
    if not text.rstrip().endswith(("}", "]", '"')):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _may_become_json(text: str) -> bool:
    """Whether JSON may begin with this text: only its end is missing, which may be a part of a word or of an escape."""
    try:
        json.loads(text, strict=False)
    except json.JSONDecodeError as fault:
        return fault.msg.startswith("Unterminated") or _CUT.fullmatch(text, fault.pos) is not None
    except (ValueError, RecursionError):  # too many digits, or nested too deeply
        pass
    return True


_CUT = re.compile(r"\s*|t(r(ue?)?)?|f(a(lse?)?)?|n(u(ll?)?)?|-|\.|[eE][+-]?|\\?u?[0-9a-fA-F]{0,3}")


def _behind(so_far: str, again: str) -> str:
    """Arguments without those so far, if they begin with these once more, also with other blanks between them.
    Blanks within a text are its own."""
    if again.startswith(so_far):
        return again[len(so_far) :]
    place, is_text, is_escaped = 0, False, False
    for char in so_far:
        if not is_text:
            if char.isspace():
                continue
            while again[place : place + 1].isspace():
                place += 1
        if again[place : place + 1] != char:
            return again
        place += 1
        is_text ^= char == '"' and not is_escaped
        is_escaped = char == "\\" and not is_escaped
    return again[place:].lstrip() if so_far[-1].isspace() and not is_text else again[place:]


class ToolCalls:
    def __init__(self) -> None:
        self._all: list[CollectedCall] = []
        self._by_index: dict[int, CollectedCall] = {}
        self._by_id: dict[str, CollectedCall] = {}

    def take(self, index: int | None, call_id: str, name: str, arguments: str) -> Iterator[tuple[CollectedCall, str]]:
        """Add a piece; yield the calls that begin or go on now, each with what of its arguments may be handed out."""
        call = self._call_of(index, call_id, name, arguments)
        piece = call.take(self._own(call, call_id), name, arguments)
        for each in self._all[: call.number]:
            if each.name and not each.has_begun:
                yield each, each.begin()
        if piece is not None:
            yield call, piece

    def begin(self, call_id: str, name: str) -> CollectedCall:
        """A call whose pieces its caller knows."""
        call = self._new(None)
        call.id, call.name, call.has_begun = self._own(call, call_id), name, True
        return call

    def rests(self) -> list[tuple[CollectedCall, str]]:
        """Returns the calls whose arguments were held back until the end of the answer, each with these arguments.
        Raises `Unfit` if a call has no name."""
        if any(not call.name for call in self._all):
            raise Unfit("a tool call without a name")
        return [(call, call.rest()) for call in self._all if call.is_held]

    def _new(self, index: int | None) -> CollectedCall:
        call = CollectedCall(len(self._all))
        self._all.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _own(self, call: CollectedCall, call_id: str) -> str:
        """The id, if it is this call's; empty if an earlier call has it."""
        return call_id if call_id and self._by_id.setdefault(call_id, call) is call else ""

    def _call_of(self, index: int | None, call_id: str, name: str, arguments: str) -> CollectedCall:
        named = self._by_id.get(call_id)
        if index is None:
            known = named if call_id else self._all[-1] if self._all else None
        else:
            known = self._by_index.get(index)
            if named is not None and named is not known and not name:
                return named
            if known is None and not name and not call_id and self._all:
                return self._all[-1]
        if known is None or _is_another(known, call_id, name, arguments):
            return self._new(index)
        return known


def _is_another(known: CollectedCall, call_id: str, name: str, arguments: str) -> bool:
    """Whether this piece, which by its index or order would belong to a known call, begins another one."""
    if not name or (call_id and call_id == known.id):
        return False
    if call_id and known.id:
        return known.may_be_whole or not known.arguments
    return bool(known.name) and (name != known.name or bool(arguments.strip())) and known.may_be_whole


class Text(NamedTuple):
    text: str
    logprobs: Sequence[Mapping[str, Any]] = ()
    """Log probabilities of its tokens, in the form of chat."""
    annotations: Sequence[Mapping[str, Any]] = ()
    """Citations, as chat writes them; they may come without text."""


class Thought(NamedTuple):
    text: str


class KeptThought(NamedTuple):
    """A whole block of reasoning with its signature, which a client may send back (Anthropic, "Extended thinking")."""

    block: Mapping[str, Any]


class Refusal(NamedTuple):
    """A piece of the text with which the model refuses."""

    text: str


class Picture(NamedTuple):
    """A whole picture that the model has made."""

    url: str
    """Its data URL, or its address."""


class CallPiece(NamedTuple):
    """A piece of the arguments of a tool call; the first one of a call may be empty."""

    call: CollectedCall
    arguments: str


class ServedTier(NamedTuple):
    name: str


class Ended(NamedTuple):
    """The model has stopped. Further events may follow: the end of the stream is the end."""

    reason: str
    """Finish reason in the terms of chat: `stop`, `length`, `tool_calls`, `content_filter`."""
    stop_sequence: str | None = None
    """The stop sequence that ended it, where the upstream names it."""


Event = Text | Thought | KeptThought | Refusal | Picture | CallPiece | ServedTier | Ended
