"""One call as its client sees it: what it asks for, what it should hear and be charged, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.flows.house import CHAT, COMPLETIONS, EMBEDDINGS

LIMIT = 50
"""The max_tokens of every call that has one."""

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "embeddings": "/v1/embeddings"}
_MODELS = {"completions": COMPLETIONS, "chat": CHAT, "embeddings": EMBEDDINGS}


class Truth(NamedTuple):
    """What follows from a call: the text or the vector that it should hear, and what its upstream reports as used."""

    heard: str | list[float]
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class Told:
    """One call and what its client was told."""

    number: int
    kind: str
    who: str
    endpoint: str
    is_stream: bool
    truth: Truth
    port: int = 0
    began: float = 0.0
    """On the monotonic clock, as `ended`."""
    status: int = 0
    """0: no answer at all."""
    code: str | None = None
    """Of an error, also of one inside a stream."""
    is_whole: bool = False
    has_left: bool = False
    id: str = ""
    ended: float = 0.0
    fault: str = ""

    @property
    def is_served(self) -> bool:
        return self.status == 200 and self.is_whole and self.code is None

    @property
    def is_cut(self) -> bool:
        """The connection ended before the answer, and not by the client's will."""
        return not (self.is_whole or self.has_left or self.code)

    def is_under_way(self, since: float, until: float) -> bool:
        """At some time between these two, of one that has ended."""
        return self.began <= until and self.ended >= since

    @property
    def client_id(self) -> str:
        """Its X-Client-Request-Id."""
        return f"client-{self.number}"


def members(number: int, kind: str, endpoint: str, *, is_stream: bool, characters: int = 60) -> dict[str, Any]:
    """The body of a call, with its number at the beginning of its prompt."""
    text = f"call {number} {kind} ".ljust(characters, "x")
    if endpoint == "embeddings":
        return {"model": _MODELS[endpoint], "input": text}
    asked = {"messages": [{"role": "user", "content": text}]} if endpoint == "chat" else {"prompt": text}
    return {"model": _MODELS[endpoint], "stream": is_stream, "max_tokens": LIMIT, **asked}
