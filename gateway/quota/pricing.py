"""What tokens cost. Money is whole billionths of a US dollar (nano-USD): no float ever holds a sum.

Prices are USD per million tokens, so one of up to three decimals is a whole number of nano-USD for each token; finer
ones are added up exactly over the call, and the sum is rounded up, once. Cached prompt tokens are part of the prompt
and have their own price; reasoning tokens are part of the completion. An unknown price makes an unknown cost, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway import units
from gateway.config import NUSD, Price
from gateway.records import Usage

MAX_NUSD = 2**53 - 1
"""Nine million dollars: beyond, Redis scripts cannot count. No call costs that; a report of tokens may be nonsense."""


def cost_nusd(price: Price | None, usage: Usage) -> int | None:
    """The cost of these tokens; None if the price is unknown."""
    if price is None:
        return None
    prompt, cached, output = price.nusd_per_million
    cached_tokens = min(usage.cached_tokens, usage.prompt_tokens)
    total = (
        (usage.prompt_tokens - cached_tokens) * prompt + cached_tokens * cached + usage.completion_tokens * output
    )  # fmt: skip
    return min(MAX_NUSD, -(-total // 1_000_000))


def total_usage(parts: Iterable[Usage]) -> Usage:
    """The sum; estimated if a part of it is."""
    parts = tuple(parts)
    sources = {part.source for part in parts}
    return Usage(
        sum([part.prompt_tokens for part in parts]),
        sum([part.completion_tokens for part in parts]),
        sum([part.cached_tokens for part in parts]),
        sum([part.reasoning_tokens for part in parts]),
        "estimated" if "estimated" in sources else "reported" if "reported" in sources else "none",
        units.total(more) if any(more := [part.more for part in parts]) else (),
    )


def read_price(spelling: str) -> dict[str, float]:
    """The price that a record was charged at (`Price.spelling`), by the names of the configuration."""
    return dict(zip(("input", "cached_input", "output"), map(float, spelling.split()), strict=True))


def usd(nusd: int) -> float:
    """For reports and metrics: the number nearest to this amount in US dollars."""
    return nusd / NUSD


def format_usd(nusd: int) -> str:
    """For messages: $12.34, with more decimals only where there are fractions of a cent."""
    whole, rest = divmod(nusd, NUSD)
    return f"${whole}.{f'{rest:09d}'.rstrip('0'):0<2}"
