"""Why a bill differs from the records, day by day and model by model. Pure.

A difference is theirs minus ours, in billionths of a US dollar. It is divided into causes whose amounts add up to it
exactly; what no rule accounts for is `unexplained`. The rules are tried in the order of `CAUSES`, each on what the
rules before it have left. Two facts carry most of them: a bill has a price for each class of tokens (its money divided
by its tokens), and so a difference is a difference of prices at our tokens plus one of tokens at their prices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from fractions import Fraction
from math import isqrt
from types import MappingProxyType
from typing import NamedTuple

from .bill import Billed, Side
from .compare import RecordedUsage

CAUSES: Mapping[str, str] = {
    "other_users": "keys of the account that are not this gateway's, or a model that it never called",
    "services": "storage and sessions of the account, which are no calls",
    "generation": "single calls that cost another amount than is recorded, as their provider states each",
    "late": "a day that the provider has not billed wholly yet",
    "unpriced": "calls whose cost the gateway does not know",
    "tier": "tokens at another tier than the standard one, such as batch or flex",
    "rounding": "amounts that are rounded in the bill",
    "price": "another price for the same tokens",
    "estimated": "tokens that the gateway estimated, because the provider did not report them",
    "not_arrived": "answers that were made and billed, and did not arrive whole",
    "day_border": "usage that the two sides count on adjacent days",
    "repeated": "attempts that the provider billed, failed here, and were made again or elsewhere",
    "unexplained": "nothing of all this",
}
"""The causes, in the order of their rules."""

_NONE = RecordedUsage()

Amounts = dict[str, int]
"""Billionths of a US dollar by cause; a cause without an amount is absent."""


class Explained(NamedTuple):
    """The difference of one day and model, divided into causes."""

    day: str
    model: str
    ours: RecordedUsage | None
    billed: Billed | None
    causes: Amounts

    @property
    def bill_nusd(self) -> int:
        return sum(sum(side.nusd) for side in self.billed) if self.billed else 0

    @property
    def recorded_nusd(self) -> int:
        return self.ours.cost_nusd if self.ours else 0

    @property
    def difference_nusd(self) -> int:
        return self.bill_nusd - self.recorded_nusd


def explain(
    records: Mapping[tuple[str, str], RecordedUsage],
    bill: Mapping[tuple[str, str], Billed],
    *,
    open_from: str,
    knows_keys: bool,
    corrections: Mapping[tuple[str, str], RecordedUsage] = MappingProxyType({}),
    services: Collection[tuple[str, str]] = (),
) -> list[Explained]:
    """Every day and model of either side, in order. `open_from`: the first day that may lack usage in the bill.
    `knows_keys`: the gateway's own keys are named, so a model that it never called is no proof of another user.
    `corrections`: what the records would have more, were single calls recorded as the provider states them.
    `services`: the days and line items that are no model's, and whose usage the provider states."""
    called = {model for _, model in records}
    found = []
    for name in sorted({*records, *bill}):
        day, model = name
        ours, billed = records.get(name), bill.get(name)
        is_foreign = not knows_keys and model not in called
        correction = corrections.get(name, _NONE) if ours is not None else _NONE
        is_service = ours is None and name in services
        causes = _causes(ours or _NONE, billed or Billed(), day >= open_from, is_foreign, is_service, correction)
        found.append(Explained(day, model, ours, billed, causes))
    return _across_days(found)


def _causes(
    ours: RecordedUsage, billed: Billed, is_open: bool, is_foreign: bool, is_service: bool, correction: RecordedUsage
) -> Amounts:  # fmt: skip
    side, causes = billed.ours, Causes()
    bill = sum(side.nusd)
    left = causes.take("other_users", sum(billed.others.nusd), sum(billed.others.nusd) + bill - ours.cost_nusd)
    if is_service:
        left = causes.take("services", left, left)
    if is_foreign and ours == _NONE:
        left = causes.take("other_users", left, left)
    left = causes.take("generation", correction.cost_nusd, left)
    ours = _positive(ours.plus(correction))
    if is_open and left < 0:
        left = causes.take("late", left, left)
    if left > 0 and ours.unpriced:
        share = 1 if ours.unpriced >= ours.requests else Fraction(ours.unpriced, max(ours.requests, side.requests))
        left = causes.take("unpriced", min(left, round(bill * share)), left)
    if not left:
        return causes.amounts
    volume = _volume(ours, side, left)
    priced = left - volume
    within = side.rounding_nusd + ours.requests
    if priced:
        kind = "rounding" if abs(priced) <= within else "tier" if side.special_tokens else "price"
        left = causes.take(kind, priced, left)
    if left and abs(left) <= max(0, within - abs(priced)):
        left = causes.take("rounding", left, left)
    left = causes.take("estimated", _at_most(left, _worth(side, ours.estimated_tokens, ours)), left)
    if left > 0:
        left = causes.take("not_arrived", _at_most(left, _of_extra_calls(ours, side)), left)
    causes.take("unexplained", left, left)
    return causes.amounts


def _positive(usage: RecordedUsage) -> RecordedUsage:
    """The same, without negative numbers: of some calls the record may be gone."""
    return RecordedUsage(*[max(0, number) for number in usage])


class Causes:
    """Takes amounts out of what is left of a difference."""

    def __init__(self) -> None:
        self.amounts: Amounts = {}

    def take(self, cause: str, amount: int, left: int) -> int:
        """Note an amount of a cause, and return what is left then."""
        if amount:
            self.amounts[cause] = self.amounts.get(cause, 0) + amount
        return left - amount


def _tokens(ours: RecordedUsage) -> tuple[int, int, int]:
    """Our tokens in the classes of a bill."""
    return max(0, ours.prompt_tokens - ours.cached_tokens), ours.cached_tokens, ours.completion_tokens


def prices(side: Side) -> tuple[Fraction | None, ...]:
    """Their price of one token of each class; None: the bill does not state it. A bill with money in one number has one
    price for every class."""
    tokens, nusd = side.tokens[:3], side.nusd[:3]
    whole = sum(tokens)
    if not any(nusd):
        price = Fraction(sum(side.nusd), whole) if whole and side.nusd[3] else None
        return (price,) * 3
    return tuple([Fraction(money, number) if number else None for money, number in zip(nusd, tokens, strict=True)])


def _volume(ours: RecordedUsage, side: Side, left: int) -> int:
    """The part of a difference that is one of tokens, at their prices. Without tokens in the bill, all of it is
    where one side has nothing, and none of it otherwise."""
    if not sum(side.tokens) or not ours.requests:
        return left if not sum(side.nusd) or not ours.requests else 0
    found = prices(side)
    if found[0] is not None and found[0] == found[1] == found[2]:
        return round((sum(side.tokens) - sum(_tokens(ours))) * found[0])
    known = [price for price in found if price is not None]
    if not known:
        return 0
    pairs = zip(side.tokens[:3], _tokens(ours), found, strict=True)
    return round(sum((theirs - own) * (mean(side) if price is None else price) for theirs, own, price in pairs))


def mean(side: Side) -> Fraction:
    """Their price of one token of any class."""
    whole = sum(side.tokens[:3])
    return Fraction(sum(side.nusd), whole) if whole else Fraction(0)


def _worth(side: Side, tokens: int, ours: RecordedUsage) -> int:
    """Returns the most that these tokens may have cost: at the dearest known price."""
    known = [price for price in prices(side) if price is not None]
    if not known and (whole := ours.prompt_tokens + ours.completion_tokens):
        known = [Fraction(ours.cost_nusd, whole)]
    return round(tokens * max(known)) if known else 0


def _of_extra_calls(ours: RecordedUsage, side: Side) -> int:
    """Returns the most that the calls may have cost which the bill has and the gateway counts as failed: as much as the
    mean of as many and of two roots more, for some are longer than others."""
    if not ours.errors:
        return 0
    answered = ours.requests - ours.errors
    extra = min(ours.errors, side.requests - answered) if side.requests else ours.errors
    calls = side.requests or ours.requests
    return round(Fraction(sum(side.nusd), calls) * (extra + 2 * isqrt(extra))) if extra > 0 and calls else 0


def _at_most(amount: int, bound: int) -> int:
    return max(-bound, min(amount, bound))


def _across_days(rows: Sequence[Explained]) -> list[Explained]:
    """The same with `day_border`: what is unexplained on one day and back on the next one, for the same model."""
    by_name = {(row.day, row.model): row for row in rows}
    for row in rows:
        after = by_name.get((_next(row.day), row.model))
        one = row.causes.get("unexplained", 0)
        other = after.causes.get("unexplained", 0) if after else 0
        if after is not None and one * other < 0:
            moved = min(abs(one), abs(other)) * (1 if one > 0 else -1)
            move(row.causes, "day_border", moved)
            move(after.causes, "day_border", -moved)
    return list(rows)


def move(causes: Amounts, to: str, amount: int) -> None:
    """Move an amount from what is unexplained to another cause."""
    for cause, change in ((to, amount), ("unexplained", -amount)):
        causes[cause] = causes.get(cause, 0) + change
        if not causes[cause]:
            del causes[cause]


def _next(day: str) -> str:
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()


def total(rows: Iterable[Explained]) -> Amounts:
    """The amounts of all rows by cause, in the order of `CAUSES`."""
    sums: Amounts = {}
    for row in rows:
        for cause, amount in row.causes.items():
            sums[cause] = sums.get(cause, 0) + amount
    return {cause: sums[cause] for cause in CAUSES if sums.get(cause)}


def proposals(rows: Iterable[Explained], least_days: int = 3) -> dict[str, tuple[Fraction | None, ...]]:
    """The prices of one token that a bill has for a model, where it contradicts ours on `least_days` days at the same
    prices."""
    by_model: dict[str, list[tuple[Fraction | None, ...]]] = {}
    for row in rows:
        if "price" in row.causes and row.billed is not None and any(row.billed.ours.nusd[:3]):
            by_model.setdefault(row.model, []).append(prices(row.billed.ours))
    found = {}
    for model, some in by_model.items():
        newest = some[-least_days:]
        if len(newest) == least_days and all(map(_is_same, newest, [newest[0]] * least_days)):
            found[model] = newest[-1]
    return found


def _is_same(one: Sequence[Fraction | None], other: Sequence[Fraction | None]) -> bool:
    """Whether two prices are equal but for rounding, by a part in a thousand."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return bool(pairs) and all(abs(a - b) <= max(a, b) / 1000 for a, b in pairs)
