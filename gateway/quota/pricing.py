"""The cost of calls. Money is whole billionths of a US dollar (nano-USD): no float ever holds a sum.

Prices are USD for a million tokens, a thousand searches or an hour of audio (`config/rates.py`). They are added up
exactly over the call, and the sum is rounded up, once. Cached prompt tokens are part of the prompt and have their own
price; reasoning tokens are part of the completion. An unknown price makes an unknown cost, never 0, and so does a unit
that was used, or a variant that was asked for or served, without a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from gateway import units
from gateway.config import NUSD, Price
from gateway.config.rates import DEFAULTS, ROWS, SCALE, TABLE_DEFAULTS, Rates, Tier, Tiers, rates_of, rows_of
from gateway.records import Usage

MAX_NUSD = 2**53 - 1
"""Nine million dollars: beyond, Redis scripts cannot count. No call costs that; a report of tokens may be nonsense."""

_NOTHING = Usage()

SOURCE = " from "
"""Separates the rows from the name of the price table in the text of a price."""


Prices = Mapping[str, Price | None]

_NO_PRICES: Prices = {}


def cost_nusd(price: Price | None, usage: Usage, time: float = 0, others: Prices = _NO_PRICES) -> int | None:
    """The cost of this usage at a Unix time in seconds; None if it is unknown. `others` are the prices of the further
    models that parts of the usage name; a part of a model that is not among them has `price`."""
    if price is None:
        return None
    plain = price.nusd_per_million
    if plain is None or usage.more or others or (price.output is None and usage.completion_tokens):
        return _cost_by_plan(price, usage, time, others)
    prompt, cached, output = plain
    cached_tokens = min(usage.cached_tokens, usage.prompt_tokens)
    total = (
        (usage.prompt_tokens - cached_tokens) * prompt + cached_tokens * cached + usage.completion_tokens * output
    )  # fmt: skip
    return min(MAX_NUSD, -(-total // 1_000_000))


def record_text(price: Price | None, usage: Usage, time: float = 0) -> str | None:
    """The price as a record keeps it: the rows that applied, and their source; None: there are none for this usage."""
    if price is None:
        return None
    if price.record_text is not None:
        return price.record_text
    last = ([part for part in usage.parts if not part.model] or [usage])[-1]
    tiers = price.plan.tiers(last.variant, time)
    if tiers is None:
        return None
    text = _tier(tiers, last.prompt_tokens).rates_text
    return text if price.source is None else f"{text}{SOURCE}{price.source}"


def _cost_by_plan(price: Price, usage: Usage, time: float, others: Prices) -> int | None:
    total = 0
    for part in usage.parts or (usage,):
        of_part = others.get(part.model, price) if part.model else price
        tiers = None if of_part is None else of_part.plan.tiers(part.variant, time)
        cost = None if tiers is None else _scaled(_tier(tiers, part.prompt_tokens).rates, part)
        if cost is None:
            return None
        total += cost
    return min(MAX_NUSD, -(-total // SCALE))


def _tier(tiers: Tiers, prompt_tokens: int) -> Tier:
    if len(tiers) == 1:
        return tiers[0]
    return next(tier for tier in reversed(tiers) if prompt_tokens > tier.above or not tier.above)


def _scaled(rates: Rates, usage: Usage) -> int | None:
    """The cost in nano-USD times `SCALE`; None if a unit that was used has no rate."""
    if not usage.more and rates.keys() >= _OF_PLAIN_TOKENS and "calls" not in rates:  # as below, in a third of the time
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        cached, reasoning = min(usage.cached_tokens, prompt), min(usage.reasoning_tokens, completion)
        return (
            (prompt - cached) * rates["prompt"] + cached * rates["cached"]
            + (completion - reasoning) * rates["completion"] + reasoning * rates["reasoning"]
        )  # fmt: skip
    total = 0
    for unit, amount in _amounts(rates, usage).items():
        if amount:
            if (rate := rates.get(unit)) is None:
                return None
            total += amount * rate
    return total


def _amounts(rates: Rates, usage: Usage) -> dict[str, int]:
    """The usage by unit, each token in one unit only."""
    amounts = dict(usage.more)
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    amounts["cached"] = max(0, cached - sum([amounts.get(part, 0) for part in _OF_CACHED]))
    amounts["reasoning"] = min(usage.reasoning_tokens, usage.completion_tokens)
    if "calls" in rates and "calls" not in amounts and usage != _NOTHING:
        amounts["calls"] = 1
    amounts["prompt"] = max(0, usage.prompt_tokens - sum([amounts.get(part, 0) for part in _OF_PROMPT]))
    amounts["completion"] = max(0, usage.completion_tokens - sum([amounts.get(part, 0) for part in _OF_COMPLETION]))
    return amounts


_OF_PLAIN_TOKENS = frozenset({"prompt", "cached", "completion", "reasoning"})
_OF_CACHED = tuple([name for name, unit in units.UNITS.items() if unit.part_of == "cached"])
_OF_FRESH = tuple([name for name, unit in units.UNITS.items() if unit.part_of == "prompt"])
_OF_PROMPT = ("cached", *_OF_CACHED, *_OF_FRESH)
_OF_COMPLETION = ("reasoning", *[name for name, unit in units.UNITS.items() if unit.part_of == "completion"])


def most_nusd(
    price: Price | None,
    prompt_tokens: int,
    output_tokens: int,
    time: float,
    variant: str = "",
    may_use: Callable[[str], bool] = lambda unit: True,
    known: units.Counts = (),
) -> int | None:
    """The highest possible cost of these tokens: each at the dearest rate that can apply to it. `variant` is the
    requested service; `may_use` returns whether the call can use a unit. Of other units only those that the request
    states (`known`) are in it, because nothing limits the rest before the call. None if the price is unknown, or that
    of the variant."""
    if price is None:
        return None
    if price.nusd_per_million is not None:
        return cost_nusd(price, Usage(prompt_tokens, output_tokens))
    tiers = price.plan.tiers(variant, time)
    if tiers is None:
        return None
    rates = _tier(tiers, prompt_tokens).rates
    total = (
        prompt_tokens * _dearest(rates, "prompt", _OF_PROMPT, may_use)[1]
        + output_tokens * _dearest(rates, "completion", _OF_COMPLETION, may_use)[1]
        + rates.get("calls", 0)
        + sum([rates.get(unit, 0) * count for unit, count in known])
    )
    return min(MAX_NUSD, -(-total // SCALE))


def dearest_units(
    price: Price, prompt_tokens: int, time: float, variant: str, may_use: Callable[[str], bool]
) -> list[str]:
    """The units in which tokens of the prompt, which no cache had, and of the completion cost most."""
    tiers = price.plan.tiers(variant, time)
    rates, parts = _tier(tiers, prompt_tokens).rates if tiers else {}, (_OF_FRESH, _OF_COMPLETION)
    return [_dearest(rates, whole, of, may_use)[0] for whole, of in zip(("prompt", "completion"), parts, strict=True)]


def _dearest(rates: Rates, whole: str, parts: Sequence[str], may_use: Callable[[str], bool]) -> tuple[str, int]:
    """The dearest of a whole and those of its parts that may be used, and its rate."""
    found, most = whole, rates.get(whole, 0)
    for unit in parts:
        if (rate := rates.get(unit, 0)) > most and may_use(unit):
            found, most = unit, rate
    return found, most


def total_usage(parts: Iterable[Usage]) -> Usage:
    """The sum; estimated if a part of it is."""
    parts = [part for part in parts if part != _NOTHING]
    if len(parts) <= 1:
        return parts[0] if parts else _NOTHING
    sources = {part.source for part in parts}
    return Usage(
        sum([part.prompt_tokens for part in parts]),
        sum([part.completion_tokens for part in parts]),
        sum([part.cached_tokens for part in parts]),
        sum([part.reasoning_tokens for part in parts]),
        "estimated" if "estimated" in sources else "reported" if "reported" in sources else "none",
        units.total([part.more for part in parts]),
        parts[-1].variant,
        tuple([each for part in parts for each in part.parts or (part,)]),
    )


class PaidPrice(NamedTuple):
    """The price that a record was charged at."""

    rows: Mapping[str, float]
    """Prices in USD, by their names in the configuration."""
    above: int | None = None
    """The tier: prompts of more tokens than this."""
    variant: str | None = None
    source: str = "configured"
    """`configured`, or the name of the table."""


def read_price(text: str) -> PaidPrice:
    """The price that `record_text` wrote. Raises `ValueError`."""
    if "=" not in text:
        return PaidPrice(dict(zip(("input", "cached_input", "output"), map(float, text.split()), strict=True)))
    rows, _, source = text.partition(SOURCE)
    named = rows_of(rows)
    above, variant = named.pop("above", None), named.pop("variant", None)
    return PaidPrice(
        {name: float(usd) for name, usd in named.items()},
        None if above is None else int(above),
        variant,
        source or "configured",
    )


def current_rows(price: Price | None, now: float) -> dict[str, float] | None:
    """The rows of the standard price that hold now, in USD; None: there is no price."""
    if price is None:
        return None
    return {row: float(usd) for row, usd in rows_of(price.plan.at(now)[""][0].rates_text).items()}


class CostPart(NamedTuple):
    """The cost of one unit of a call."""

    unit: str
    """Unit as in `config/rates.py`: `prompt`, `cached`, `completion`, `reasoning`, or one of `units.UNITS`."""
    amount: int
    per: int
    """The amount that the price is for."""
    price_usd: float
    cost_usd: float


def cost_parts(text: str, usage: Usage, nusd: int) -> list[CostPart]:
    """The cost of a record as a sum, by the text of its price; nothing where another model, tier or variant, with other
    prices, had a part in it."""
    rates, of_rows = _paid_rates(text)
    amounts = {unit: amount for unit, amount in _amounts(rates, usage).items() if amount}
    if not amounts.keys() <= rates.keys():
        return []
    if -(-sum([amount * rates[unit] for unit, amount in amounts.items()]) // SCALE) != nusd:
        return []
    return [
        CostPart(
            unit, amounts[unit], per := of_rows.get(unit, _MILLION), rates[unit] * per / SCALE / NUSD,
            amounts[unit] * rates[unit] / SCALE / NUSD,
        )
        for unit in sorted(amounts, key=_PLACES.__getitem__)
    ]  # fmt: skip


_MILLION = 1_000_000
_PLACES = {row.unit: place for place, row in enumerate(ROWS.values())}


@lru_cache(maxsize=1024)
def _paid_rates(text: str) -> tuple[Rates, Mapping[str, int]]:
    """The rates of a price that `record_text` wrote, and for how many units the price of each row is."""
    paid = read_price(text)
    defaults = DEFAULTS if paid.source == "configured" else TABLE_DEFAULTS
    rates = rates_of({name: Decimal(repr(usd)) for name, usd in paid.rows.items() if name in ROWS}, defaults)
    return rates, {ROWS[name].unit: ROWS[name].per for name in paid.rows if name in ROWS}


def usd(nusd: int) -> float:
    """Converts to US dollars for reports and metrics: the number nearest to this amount."""
    return nusd / NUSD


def format_usd(nusd: int) -> str:
    """Formats an amount for messages: $12.34, with more decimals only where there are fractions of a cent."""
    whole, rest = divmod(nusd, NUSD)
    return f"${whole}.{f'{rest:09d}'.rstrip('0'):0<2}"
