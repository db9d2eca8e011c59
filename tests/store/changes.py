"""What the tests of the store draw and settle, and the clock they set."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

from gateway.records import Claim, Record, Settlement, Usage, Window
from gateway.store import Reserve

SECOND = 1_000_000
HOUR_S = 3600
HOUR = HOUR_S * SECOND
NOON = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()) * SECOND
NUMBERS = itertools.count(1)


class Clock:
    """The store's clock, which a test reads with `now` and moves with `advance`.

    This one does not run by itself. A server's clock does; so tests of every store use times of hours.
    """

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


def claim(amount: int, **window: Any) -> Claim:
    """A claim on a window of the key `k`, named as `quota/windows` would."""
    values = {"scope": "key:k", "unit": "requests", "per": "day", "model": None, "starts": "", **window}
    parts = (values["scope"], values["unit"], values["per"], values["model"] or "", values["starts"])
    return Claim(Window("|".join(parts), **values), amount)


def daily(limit: int = 100, amount: int = 1, **changes: Any) -> Claim:
    return claim(amount, limit=limit, **{"starts": "2026-11-20", "resets_us": NOON + 43_200 * SECOND, **changes})


def tokens(limit: int = 100, amount: int = 1, **changes: Any) -> Claim:
    return daily(limit, amount, unit="tokens", **changes)


def rate(limit: int = 60, amount: int = 1, period_s: int = 60, **changes: Any) -> Claim:
    window = {"unit": "tokens", "per": "minute", "period_us": period_s * SECOND, **changes}
    return claim(amount, limit=limit, **window)


def slow(limit: int = 60, amount: int = 1, **changes: Any) -> Claim:
    """A rate of one unit an hour, if the limit is 60: what a test lasts itself does not matter."""
    return rate(limit, amount, period_s=60 * HOUR_S, **{"per": str(60 * HOUR_S), **changes})


def money(limit_nusd: int = 100, amount_nusd: int = 1, **changes: Any) -> Claim:
    return daily(limit_nusd, amount_nusd, unit="usd", **changes)


def parallel(limit: int = 2, **changes: Any) -> Claim:
    return claim(1, unit="parallel", per="", limit=limit, **changes)


def draw(*claims: Claim, call: str | None = None, **changes: Any) -> Reserve:
    """A reservation. If its end is lost, it is charged with the tokens and the cost that it claims."""
    name = call or f"call-{next(NUMBERS)}"
    estimates = {claim.window.unit: claim.amount for claim in claims}
    record = lost(name, estimates.get("tokens", 0))._replace(cost_nusd=estimates.get("usd"))
    return Reserve.of(record._replace(**changes), claims)


def settlement(drawn: Reserve, used: int = 0, **changes: Any) -> Settlement:
    return Settlement(record(drawn.record.id, used, **changes), drawn.claims)
