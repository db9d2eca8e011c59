"""Plain answers to the calls that one completions call became (`bridge/request`), as the one answer to it.

Choices are numbered over the prompts: `index` is the prompt's number times `n` and the choice's own. All of them have
to be there. Usage is summed; where one answer has none, the whole has none, because half a sum is a wrong one.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from gateway.formats.unfit import Unfit
from gateway.records import Call, Usage

from .choice import ChatChoice
from .translate.usage_objects import as_completion


class Frame(NamedTuple):
    """The members around the choices of an answer, and of every chunk of a stream."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    """As the client asked for it: used only where the upstream does not name one."""

    @classmethod
    def of(cls, call: Call) -> Frame:
        """That of the answer to this call. Its id is the call's own, as OpenAI would begin it."""
        return cls("cmpl-" + call.id.removeprefix("req_"), int(call.started), call.params.model)

    def around(self, answer: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
        """These choices, as those of an answer or a chunk that came with this."""
        model = answer.get("model")
        frame = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": model if isinstance(model, str) and model else self.model,
            "choices": choices,
        }
        if isinstance(answer.get("system_fingerprint"), str):
            frame["system_fingerprint"] = answer["system_fingerprint"]
        return frame


class One(NamedTuple):
    """The request of one of the calls."""

    prompt: int
    """The number of its prompt."""
    n: int
    is_chat: bool
    has_logprobs: bool
    prompt_characters: int

    def choice(self) -> ChatChoice:
        """To follow one of its choices, where it is a chat."""
        return ChatChoice(self.prompt_characters, has_logprobs=self.has_logprobs)

    def index_of(self, own: int) -> int:
        """The index of one of its choices among all."""
        return self.prompt * self.n + own


def read(body: bytes) -> dict[str, Any]:
    """An answer or a chunk. Raises `Unfit`."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Unfit("an answer that cannot be read")
    return answer


def own_index(choice: Any, n: int) -> int:
    """The index of a choice among those of its own answer. Raises `Unfit`."""
    index = choice.get("index", 0 if n == 1 else None) if isinstance(choice, dict) else None
    if type(index) is not int or not 0 <= index < n:
        raise Unfit("a choice that was not asked for")
    return index


def choices_of(one: One, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of one plain answer as those of the whole, in the order of their indexes. Raises `Unfit`."""
    given = answer.get("choices")
    by_index = {own_index(choice, one.n): choice for choice in given} if isinstance(given, list) else {}
    if len(by_index) != one.n or not isinstance(given, list) or len(given) != one.n:
        raise Unfit(f"{len(given) if isinstance(given, list) else 'no'} choices, and {one.n} were asked for")
    return [_choice(one, by_index[own], own) for own in range(one.n)]


def _choice(one: One, choice: dict[str, Any], own: int) -> dict[str, Any]:
    if not one.is_chat:
        return {**choice, "index": one.index_of(own)}
    made = one.choice().completions_choice(
        choice.get("message"), choice.get("logprobs"), choice.get("finish_reason"), one.index_of(own)
    )
    if made is None or made["finish_reason"] is None:
        raise Unfit("a choice without a finish_reason")
    return made


def write(frame: Frame, first: dict[str, Any], choices: list[dict[str, Any]], usage: Usage | None) -> bytes:
    """The whole answer; `first` is the first one received; its model name is used."""
    whole = frame.around(first, choices)
    if usage is not None:
        whole["usage"] = as_completion(usage)
    return json.dumps(whole, separators=(",", ":")).encode()
