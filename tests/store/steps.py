"""What can happen between workers and a store, step by step; and what the calls of these steps draw and use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gateway.quota import ledger_entry
from gateway.quota import windows as limits
from gateway.records import Claim, Record, Settlement, Unit, Usage, Window
from gateway.store import RateDraw, Reserve, Settle, Void
from gateway.units import counts

from .changes import NOON, SECOND

TICK_US = 15_625
"""Clocks move in 64ths of a second, which a float of seconds holds exactly."""

BEGIN_US = NOON + (11 * 3600 + 59 * 60 + 30) * SECOND
"""A midnight is near."""

LIMITS: dict[str, tuple[int, int]] = {
    "day": (300, 120), "month": (700, 400), "usd": (3000, 1500), "requests": (12, 6), "minute": (6, 3),
    "odd": (70, 35), "parallel": (5, 2), "shadow": (5, 1),
}  # fmt: skip
"""Of each window, before and after `Change`."""

FLOWING = ("minute", "odd")


# ------------------------------------------------------------------------------------------------------------- steps


class Wish(NamedTuple):
    """A call that wants to draw."""

    key: int
    windows: tuple[str, ...]
    tokens: int
    estimate: int = 0
    """Of its record, how much more than it claims."""
    then: Literal["", "spent alone", "left"] = ""
    """`spent alone`: begun and ended while the store was away. `left`: its client went while it was being drawn."""


class RateWish(NamedTuple):
    """A request that is no call and draws on rates for good: requests for stored responses do."""

    key: int
    windows: tuple[str, ...]
    """Of `FLOWING`."""
    tokens: int


class End(NamedTuple):
    """A call that ends: which of those that are running, and what it used."""

    call: int
    tokens: int
    ended: Literal["done", "error", "client_gone"] = "done"
    is_priced: bool = True


class Turn(NamedTuple):
    """One worker sends a batch: what it has not delivered yet, some ends, some draws."""

    worker: int
    wishes: tuple[Wish, ...] = ()
    ends: tuple[End, ...] = ()
    fate: Literal["told", "lost", "never", "dies"] = "told"
    """`lost`: it is applied, and the worker does not hear of it. `never`: it is not, or much later (`Copy`). `dies`: it
    is applied, and the worker has no time left to hear of it."""
    rates: tuple[RateWish, ...] = ()
    """They are drawn after the windows."""


class Copy(NamedTuple):
    """A batch that was sent before arrives, perhaps once more."""

    which: int


class Wait(NamedTuple):
    """No message for this time."""

    ticks: int


class StepBack(NamedTuple):
    """The clock is set back."""

    ticks: int


class Die(NamedTuple):
    """A worker is gone, its journal is left, and another worker takes its place."""

    worker: int


class Adopt(NamedTuple):
    """Another process delivers at most this many portions of a dead worker's journal."""

    by: int
    portions: int = 99


class Change(NamedTuple):
    """Other limits, in the same windows."""


class Remember(NamedTuple):
    """A moment to which the store may fall back."""


class Forget(NamedTuple):
    """The store falls back to that moment."""


class Reopen(NamedTuple):
    """Another process opens the store, in the place of one that did."""

    store: int


Step = Turn | Copy | Wait | StepBack | Die | Adopt | Change | Remember | Forget | Reopen


# ----------------------------------------------------------------------------------------------------------- workers


@dataclass
class ModelWorker:
    """One worker: its journal, and what it knows."""

    name: str
    seq: int = 0
    acked: int = 0
    delivered: int = 0
    journal: list[Settle | Void] = field(default_factory=list)
    running: dict[str, Reserve] = field(default_factory=dict)
    to_assert: set[str] = field(default_factory=set)
    """Running calls that the store has perhaps never heard of."""

    def close(self, settlement: Settlement) -> Settle:
        item = Settle(len(self.journal) + 1, *settlement, ledger_entry.encode(*settlement))
        self.journal.append(item)
        return item

    def void(self, lease: str) -> Void:
        item = Void(len(self.journal) + 1, lease)
        self.journal.append(item)
        return item


# ------------------------------------------------------------------------------------------------- calls of the steps


def opening_of(wish: Wish, call: str, now: float, limit_of: Mapping[str, int]) -> Reserve:
    """The change that is sent to the store for this draw at this Unix time (seconds)."""
    key = f"key{wish.key}"
    claims = tuple(_claim(name, key, wish.tokens, now, limit_of[name]) for name in wish.windows)
    tokens = wish.tokens + wish.estimate
    usage = Usage(tokens // 3, tokens - tokens // 3, source="estimated")
    record = Record(
        call, now, key, "red" if wish.key else None, "chat", "gpt-x", "gpt-x", "gpt-y", None, "up", 0, False, usage,
        "lost", None, 0.0, 1, cost_nusd=tokens * 10,
    )  # fmt: skip
    return Reserve.of(record, claims, is_forced=wish.then == "spent alone")


def rate_draw_of(wish: RateWish, now: float, limit_of: Mapping[str, int]) -> RateDraw:
    """What such a request sends to the store at this Unix time."""
    return RateDraw(tuple(_claim(name, f"key{wish.key}", wish.tokens, now, limit_of[name]) for name in wish.windows))


def settlement_of(drawn: Reserve, end: End) -> Settlement:
    """How such a call ends."""
    record = drawn.record._replace(
        returned_model="gpt-y-2", status=500 if end.ended == "error" else 200, attempts=2, first_byte_s=0.25,
        usage=Usage(end.tokens // 2, end.tokens - end.tokens // 2, end.tokens // 4, end.tokens // 5, "reported",
                    counts({"cache_write": end.tokens // 6})),
        ended=end.ended, duration_s=1.5, cost_nusd=end.tokens * 10 if end.is_priced else None,
    )  # fmt: skip
    return Settlement(record, drawn.claims)


def _claim(name: str, key: str, tokens: int, now: float, limit: int) -> Claim:
    own, team = f"key:{key}", "team:red"
    if name == "day":
        return Claim(_calendar(own, "tokens", "day", limit, now), tokens)
    if name == "month":
        return Claim(_calendar(team, "tokens", "month", limit, now), tokens)
    if name == "usd":
        return Claim(_calendar(own, "usd", "month", limit, now), tokens * 10)
    if name == "requests":
        return Claim(_calendar("gateway", "requests", "day", limit, now), 1)
    if name == "shadow":
        return Claim(_calendar(own, "requests", "day", limit, now)._replace(is_enforced=False), 1)
    if name == "minute":
        return Claim(_window("gateway", "requests", "minute", limit, period_us=60 * SECOND), 1)
    if name == "odd":
        return Claim(_window(own, "tokens", "11", limit, period_us=11 * SECOND), tokens)
    return Claim(_window(own, "parallel", "", limit), 1)


def _calendar(scope: str, unit: Unit, per: str, limit: int, now: float) -> Window:
    starts, resets_us = limits.calendar_window(per, now)
    return _window(scope, unit, per, limit, starts=starts, resets_us=resets_us)


def _window(scope: str, unit: Unit, per: str, limit: int, **changes: Any) -> Window:
    name = "|".join((scope, unit, per, "", changes.get("starts", "")))
    return Window(name, scope, unit, per, None, limit, **changes)
