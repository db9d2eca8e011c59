"""One call as its client sees it: the request, the expected answer and charge, and the actual answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.flows.gateway_process import CHAT, COMPLETIONS, EMBEDDINGS

LIMIT = 50
"""max_tokens of calls that set it."""

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "embeddings": "/v1/embeddings"}
_MODELS = {"completions": COMPLETIONS, "chat": CHAT, "embeddings": EMBEDDINGS}


class Truth(NamedTuple):
    """The expected result of a call: text or vector, and the usage that its upstream reports."""

    heard: str | list[float]
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class ObservedCall:
    """One call and its answer at the client."""

    number: int
    kind: str
    who: str
    endpoint: str
    is_stream: bool
    truth: Truth
    port: int = 0
    began: float = 0.0
    """On the monotonic clock, like `ended`."""
    status: int = 0
    """HTTP status; 0: no answer."""
    code: str | None = None
    """The code of an error, also of one in a stream."""
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
        """The connection ended before the answer did, and the client did not close it."""
        return not (self.is_whole or self.has_left or self.code)

    def is_under_way(self, since: float, until: float) -> bool:
        """Whether the call, which has ended, was under way between these times."""
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
