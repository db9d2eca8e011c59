"""Served calls: the newest 100, and sums since the start or the last reset.

A call to a generating endpoint is entered once, when it ends: `done`, `error` (answered with an error), `cut` (cut by
request) or `aborted` (the client left; the counts are what was generated until then). It is entered before its last
byte is sent, so that a client with the whole answer finds it here. One process, one event loop.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

CALLS_KEPT = 100

Ended = Literal["done", "error", "cut", "aborted"]


@dataclass(slots=True)
class ServedCall:
    """One call, filled in while it is served. Counts are tokens."""

    id: str
    endpoint: str
    time: float = field(default_factory=time.time)
    """Unix time of its start."""
    model: str | None = None
    stream: bool = False
    status: int = 200
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    audio_ms: int = 0
    characters: int = 0
    images: int = 0
    tasks: int = 0
    ended: Ended | None = None


@dataclass(slots=True)
class Totals:
    """Sums of all ended calls; `calls` includes aborted ones and errors."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    audio_ms: int = 0
    characters: int = 0
    images: int = 0
    tasks: int = 0
    aborted: int = 0
    errors: int = 0


class CallHistory:
    """The ended calls, and the number of open ones."""

    def __init__(self) -> None:
        self._calls: deque[ServedCall] = deque(maxlen=CALLS_KEPT)
        self._totals = Totals()
        self._open = 0

    def __repr__(self) -> str:
        return f"<CallHistory: {self._open} open, {self._totals}>"

    def open(self, request_id: str, endpoint: str) -> ServedCall:
        """Begin a call; it is listed once it is closed."""
        self._open += 1
        return ServedCall(request_id, endpoint)

    def close(self, entry: ServedCall, ended: Ended) -> None:
        """Enter an ended call. Only the first time counts, so that several exits may close it."""
        if entry.ended is not None:
            return
        entry.ended = ended
        self._open -= 1
        self._calls.appendleft(entry)
        totals = self._totals
        totals.calls += 1
        totals.prompt_tokens += entry.prompt_tokens
        totals.completion_tokens += entry.completion_tokens
        totals.reasoning_tokens += entry.reasoning_tokens
        totals.audio_ms += entry.audio_ms
        totals.characters += entry.characters
        totals.images += entry.images
        totals.tasks += entry.tasks
        totals.aborted += ended == "aborted"
        totals.errors += ended == "error"

    def reset(self) -> None:
        """Forget the ended calls; open ones are entered when they end."""
        self._calls.clear()
        self._totals = Totals()

    def as_json(self) -> dict[str, Any]:
        """The body of GET /simulator/ledger, newest call first."""
        return {"calls": [asdict(entry) for entry in self._calls], "totals": asdict(self._totals), "open": self._open}
