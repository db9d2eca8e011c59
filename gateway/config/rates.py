"""The rates of a price as whole numbers, for each variant, tier and time of day.

A rate is billionths of a US dollar for `SCALE` units, so that every price of the file is a whole number whatever it
counts. A row that is left out has the rate of its whole where `DEFAULTS` names one, else none: a call that uses such a
unit has an unknown cost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from gateway.units import UNITS

SCALE = 18_000_000
"""A multiple of a million, of a thousand and of the milliseconds of an hour."""


class PriceRow(NamedTuple):
    """The unit of a row of a price."""

    unit: str
    """A name of `units.UNITS`; `prompt`, `cached`, `completion` or `reasoning` for these tokens."""
    per: int
    """The number of units that the price is for."""


ROWS: Mapping[str, PriceRow] = {
    "input": PriceRow("prompt", 1_000_000),
    "cached_input": PriceRow("cached", 1_000_000),
    "output": PriceRow("completion", 1_000_000),
    "reasoning": PriceRow("reasoning", 1_000_000),
    "cache_write": PriceRow("cache_write", 1_000_000),
    "cache_write_1h": PriceRow("cache_write_1h", 1_000_000),
    "audio_in": PriceRow("audio_in", 1_000_000),
    "audio_out": PriceRow("audio_out", 1_000_000),
    "image_in": PriceRow("image_in", 1_000_000),
    "image_out": PriceRow("image_out", 1_000_000),
    "video_in": PriceRow("video_in", 1_000_000),
    "video_out": PriceRow("video_out", 1_000_000),
    "cached_audio": PriceRow("cached_audio", 1_000_000),
    "cached_image": PriceRow("cached_image", 1_000_000),
    "citations": PriceRow("citations", 1_000_000),
    "image_tool_in": PriceRow("image_tool_in", 1_000_000),
    "image_tool_out": PriceRow("image_tool_out", 1_000_000),
    "characters_per_million": PriceRow("characters", 1_000_000),
    "audio_per_hour": PriceRow("audio_ms", 3_600_000),
    "audio_per_minute": PriceRow("audio_ms", 60_000),
    "web_searches_per_1000": PriceRow("web_searches", 1_000),
    "maps_searches_per_1000": PriceRow("maps_searches", 1_000),
    "search_sources_per_1000": PriceRow("search_sources", 1_000),
    "tool_calls_per_1000": PriceRow("tool_calls", 1_000),
    "file_searches_per_1000": PriceRow("file_searches", 1_000),
    "search_units_per_1000": PriceRow("search_units", 1_000),
    "container": PriceRow("containers", 1),
    "image": PriceRow("images", 1),
    "call": PriceRow("calls", 1),
    "task": PriceRow("tasks", 1),
    "second": PriceRow("seconds", 1),
}
"""The rows of a price, by their names in the file."""

BESIDE_TOKENS = tuple([name for name, row in ROWS.items() if row.unit in UNITS and UNITS[row.unit].part_of is None])
"""The rows of what is counted beside tokens."""

DEFAULTS: Mapping[str, Sequence[str]] = {
    "cached_audio": ("cached", "audio_in", "prompt"), "cached_image": ("cached", "image_in", "prompt"),
    "cached": ("prompt",), "image_in": ("prompt",), "video_in": ("prompt",), "reasoning": ("completion",),
    "citations": ("completion",),
}  # fmt: skip
"""Units that cost as much as another where they have no row: as the first of these that has one."""

TABLE_DEFAULTS: Mapping[str, Sequence[str]] = {
    **DEFAULTS, "cache_write": ("prompt",), "cache_write_1h": ("cache_write",), "audio_in": ("prompt",),
    "audio_out": ("completion",), "image_out": ("completion",), "video_out": ("completion",),
}  # fmt: skip
"""The same for prices of a table: it has a row for each part that costs something else than its whole."""

DEAR_OR_CHEAP = frozenset({"batch", "fast", "flex", "priority", "ultrafast", "us"})
"""Names in answers of services, or of a region, that have prices of their own at the providers that offer them. Every
other name is taken for the standard service, because upstreams have many names for that."""

ANYWHERE = frozenset({"", "global", "not_available"})
"""Names for no particular region in answers of Anthropic."""


def variant_of(service: str, region: object) -> str:
    """The variant of a service in a region: `us`, `fast-us`."""
    if not isinstance(region, str) or region in ANYWHERE:
        return service
    return f"{service}-{region}" if service in DEAR_OR_CHEAP else region


REGIONS = frozenset({"us"})
"""Those of `DEAR_OR_CHEAP` that are no services."""

UNSTATED_IMAGE = "auto-auto"
"""The variant of an image of which the request names neither quality nor size: the standard one."""

_IMAGE = re.compile(r"[a-z0-9_.:-]+-(?:auto|[0-9][a-z0-9.:_]*)(?:-[a-z0-9._/]+)*")
"""The variant of an image: quality, size, resolution and more, as they are asked for (`wings/media/images.py`)."""


def _is_apart(variant: str, known: Mapping[str, object], *, is_listed: bool) -> bool:
    """Whether a variant without a row has another price than the standard one at the providers that offer it.

    A price that an operator wrote without variants is the price of all. One of a table is the standard service's, also
    where the table lists no other. `known` are the variants that the price has.
    """
    if _IMAGE.fullmatch(variant):
        return variant != UNSTATED_IMAGE and any(map(_IMAGE.fullmatch, known))
    parts = DEAR_OR_CHEAP.intersection(variant.split("-"))
    return bool(parts) and (len(known) > 1 or (is_listed and not parts <= REGIONS))


Rates = Mapping[str, int]
"""Rates by unit, in billionths of a US dollar for `SCALE` units."""


class Tier(NamedTuple):
    """Rates for prompts above `above` tokens. They apply to the whole call."""

    above: int
    rates: Rates
    rates_text: str
    """The prices in USD by the names of their rows, as a record keeps them: `input=1.5 output=2`."""


def rows_of(text: str) -> dict[str, str]:
    """The rows of such a text, each with its price."""
    return dict([part.split("=", 1) for part in text.split()])


Tiers = Sequence[Tier]
"""Tiers in ascending order; the first one applies to all prompts."""


class Hours(NamedTuple):
    """Rates for some hours of each UTC day, in minutes; `until` may be before `start`, on the next day."""

    start: int
    until: int
    variants: Mapping[str, Tiers]

    def hold_at(self, minute: int) -> bool:
        """Whether this minute of the day is one of them."""
        if self.until < self.start:
            return minute >= self.start or minute < self.until
        return self.start <= minute < self.until


class Plan(NamedTuple):
    """All rates of one price."""

    variants: Mapping[str, Tiers]
    """Tiers by the name that answers give the service; the empty name is the standard service."""
    hours: Sequence[Hours] = ()
    """The last one that holds counts."""
    later: Sequence[tuple[float, Plan]] = ()
    """Plans that replace this one at a Unix time in seconds, the last one first."""
    is_listed: bool = False
    """Whether the price is from a table."""

    def tiers(self, variant: str, time: float) -> Tiers | None:
        """The rates of a variant at this Unix time in seconds; None: it has none, and the standard ones are wrong."""
        variants = self.at(time)
        if variant in variants:
            return variants[variant]
        return None if variant and _is_apart(variant, variants, is_listed=self.is_listed) else variants[""]

    def at(self, time: float) -> Mapping[str, Tiers]:
        """The rates at this Unix time in seconds, by variant."""
        for begins, plan in self.later:
            if time >= begins:
                return plan.at(time)
        if self.hours:
            minute = int(time % 86400) // 60
            for hours in reversed(self.hours):
                if hours.hold_at(minute):
                    return hours.variants
        return self.variants


def rates_of(prices: Mapping[str, Decimal], defaults: Mapping[str, Sequence[str]]) -> Rates:
    rates = {
        ROWS[name].unit: int(usd.scaleb(9).to_integral_value()) * (SCALE // ROWS[name].per)
        for name, usd in prices.items()
    }
    for unit, others in defaults.items():
        if unit not in rates and (known := [rates[other] for other in others if other in rates]):
            rates[unit] = known[0]
    return rates


def format_price(usd: Decimal) -> str:
    """Formats a price without exponent and trailing zeros: `1.5`, `0.000000001`."""
    whole, point, decimals = f"{usd:f}".partition(".")
    decimals = decimals.rstrip("0")
    return whole + (point + decimals if decimals else "")
