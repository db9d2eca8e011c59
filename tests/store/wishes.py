"""What the tests of the store draw and settle, and the clock they set."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gateway.records import Claim, Draw, Record, Settlement, Usage

SECOND = 1_000_000
NOON = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()) * SECOND
NUMBERS = itertools.count(1)


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_us = NOON

    def __call__(self) -> int:
        return self.now_us

    @property
    def now(self) -> float:
        return self.now_us / SECOND

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND)


def record(call: str | None = None, tokens: int = 0, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "id": call or f"call-{next(NUMBERS)}", "time": NOON / SECOND, "key": "k", "team": "red", "endpoint": "chat",
        "model": "gpt-x", "label_model": "gpt-x", "routed_model": "gpt-y", "returned_model": None, "upstream": "up",
        "status": 200, "stream": False, "usage": Usage(tokens, 0, source="reported"), "ended": "done",
        "first_byte_s": 0.1, "duration_s": 0.2, "attempts": 1,
    }  # fmt: skip
    return Record(**{**values, **changes})


def lost(call: str, tokens: int) -> Record:
    """What stands in a draw: the call at its estimate."""
    return record(call, usage=Usage(0, tokens, source="estimated"), ended="lost", status=0)


def daily(limit: int = 100, amount: int = 1, **changes: Any) -> Claim:
    return replace(
        Claim("key:k", "requests", "day", None, limit, amount, starts="2026-11-20", resets_us=NOON + 43_200 * SECOND),
        **changes,
    )


def tokens(limit: int = 100, amount: int = 1, **changes: Any) -> Claim:
    return daily(limit, amount, unit="tokens", **changes)


def rate(limit: int = 60, amount: int = 1, period_s: int = 60, **changes: Any) -> Claim:
    return replace(Claim("key:k", "tokens", "minute", None, limit, amount, period_us=period_s * SECOND), **changes)


def parallel(limit: int = 2) -> Claim:
    return Claim("key:k", "parallel", "", None, limit, 1)


def draw(*claims: Claim, call: str | None = None, **changes: Any) -> Draw:
    """A wish to draw; what it will be charged if it is lost is what it claims of tokens."""
    name = call or f"call-{next(NUMBERS)}"
    estimate = max((claim.amount for claim in claims if claim.unit == "tokens"), default=0)
    return Draw(replace(lost(name, estimate), **changes), claims)


def settlement(drawn: Draw, used: int = 0, **changes: Any) -> Settlement:
    return Settlement(record(drawn.record.id, used, **changes), drawn.claims)
