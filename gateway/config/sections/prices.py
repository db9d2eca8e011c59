"""Prices of models, and `prices`: the table that they are read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from gateway.config.rates import DEFAULTS, ROWS, TABLE_DEFAULTS, Hours, Plan, Tier, Tiers, format_price, rates_of

from .values import NUSD, Positive, Section, Usd, nusd_of


class Rows(Section):
    """Prices in US dollars, by what they count. A row that is left out: cached_input, image_in and video_in cost as
    input, cached_audio and cached_image as cached_input, reasoning and citations as output; a call that uses anything
    else without a row has an unknown cost."""

    input: Usd | None = None
    """USD per million prompt tokens."""
    output: Usd | None = None
    """USD per million completion tokens; only a model of embeddings alone can do without."""
    cached_input: Usd | None = None
    """USD per million prompt tokens that the upstream had in its cache; default: as input."""
    cache_write: Usd | None = None
    """USD per million prompt tokens written to the upstream's cache."""
    cache_write_1h: Usd | None = None
    """The same for caches that are kept for an hour or longer."""
    reasoning: Usd | None = None
    """USD per million reasoning tokens; default: as output."""
    audio_in: Usd | None = None
    """USD per million audio tokens of the prompt."""
    audio_out: Usd | None = None
    """USD per million audio tokens of the completion."""
    image_in: Usd | None = None
    """USD per million image tokens of the prompt; default: as input."""
    image_out: Usd | None = None
    """USD per million image tokens of the completion."""
    video_in: Usd | None = None
    """USD per million video tokens of the prompt; default: as input."""
    video_out: Usd | None = None
    """USD per million video tokens of the completion."""
    cached_audio: Usd | None = None
    """USD per million audio tokens of the prompt that the upstream had in its cache; default: as cached_input."""
    cached_image: Usd | None = None
    """The same for image tokens."""
    citations: Usd | None = None
    """USD per million citation tokens; default: as output."""
    image_tool_in: Usd | None = None
    """USD per million prompt tokens of the image tool of a response."""
    image_tool_out: Usd | None = None
    """USD per million output tokens of the image tool of a response."""
    characters_per_million: Usd | None = None
    """USD per million characters that are spoken."""
    audio_per_hour: Usd | None = None
    """USD per hour of audio."""
    audio_per_minute: Usd | None = None
    """USD per minute of audio, in place of audio_per_hour."""
    web_searches_per_1000: Usd | None = None
    """USD per thousand web searches of the upstream."""
    maps_searches_per_1000: Usd | None = None
    """USD per thousand prompts that were answered with Google Maps."""
    search_sources_per_1000: Usd | None = None
    """USD per thousand sources that a search of the upstream used."""
    tool_calls_per_1000: Usd | None = None
    """USD per thousand calls of other paid tools of the upstream."""
    file_searches_per_1000: Usd | None = None
    """USD per thousand file searches of the upstream."""
    search_units_per_1000: Usd | None = None
    """USD per thousand search units of a rerank."""
    container: Usd | None = None
    """USD per container that an answer names; providers bill them by minute, so the usage is estimated."""
    image: Usd | None = None
    """USD per generated image."""
    call: Usd | None = None
    """USD per call, besides all else."""
    task: Usd | None = None
    """USD per task of a passthrough row."""
    second: Usd | None = None
    """USD per second of a video or a sound that a task makes."""

    @model_validator(mode="after")
    def _has_one_price_of_audio(self) -> Self:
        if self.audio_per_hour is not None and self.audio_per_minute is not None:
            raise ValueError("has audio_per_hour and audio_per_minute; keep one")
        return self


class PriceTier(Rows):
    """Rows for long prompts: above its start they apply to the whole call; other rows stay as they are."""

    above: Positive
    """Prompts of more tokens than this."""


class TieredRows(Rows):
    """Prices with tiers for long prompts."""

    tiers: tuple[PriceTier, ...] = ()
    """Rows for long prompts."""

    @field_validator("tiers")
    @classmethod
    def _ascend(cls, tiers: tuple[PriceTier, ...]) -> tuple[PriceTier, ...]:
        if any(one.above >= other.above for one, other in pairwise(tiers)):
            raise ValueError("expected each tier to begin above the one before it")
        return tiers


TimeOfDay = Annotated[str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class PriceHours(TieredRows):
    """A whole price for some hours of each day, in UTC. `until` may be on the next day."""

    start: TimeOfDay
    """From this time, such as 16:30."""
    until: TimeOfDay
    """Until before this time."""


_PLAIN = frozenset({"input", "cached_input", "output"})


class FullRows(TieredRows):
    """A whole price."""

    variants: dict[Annotated[str, Field(pattern=r"^[^\s=]{1,40}$")], TieredRows] = {}
    """Rows for a service of another kind, by its name in the answer: flex, priority, batch, fast; others stay."""
    hours: tuple[PriceHours, ...] = ()
    """Whole prices for some hours of the day."""
    cache_write_on_request: bool = False
    """Whether the cache is written only where a request has a cache_control; then others reserve no writes."""


class LaterPrice(FullRows):
    """A whole price that replaces the others on a day."""

    starts: date
    """From this day on, in UTC."""

    def as_price(self, source: str | None) -> Price:
        return Price.model_construct(**{name: getattr(self, name) for name in FullRows.model_fields}, source=source)


class Price(FullRows):
    """The price of calls."""

    later: tuple[LaterPrice, ...] = ()
    """Prices from a day on."""
    source: str | None = None
    """Not for files: the table that the price is from."""

    @model_validator(mode="after")
    def _cached_is_cheaper(self) -> Self:
        cached, whole = self.cached_input, self.input
        if self.source is None and cached is not None and whole is not None and cached > whole:
            raise ValueError("cached_input is more than input; the two are probably swapped")
        return self

    @cached_property
    def nusd_per_million(self) -> tuple[int, int, int] | None:
        """Billionths of a USD for a million tokens: prompt, cached prompt, completion; None where the price has other
        rows."""
        if self.input is None or self.model_fields_set - _PLAIN:
            return None
        cached = self.input if self.cached_input is None else self.cached_input
        return nusd_of(self.input), nusd_of(cached), nusd_of(self.output or Decimal(0))

    @cached_property
    def plan(self) -> Plan:
        return plan_of(self)

    @cached_property
    def record_text(self) -> str | None:
        """Of a price with these three rows only: input, cached input and output in USD per million tokens, as each
        record of a call keeps them: `1.5 0.75 2`.

        Computed once, because a record is formatted twice per call.
        """
        if self.nusd_per_million is None:
            return None
        return " ".join([f"{Decimal(nusd) / NUSD:f}" for nusd in self.nusd_per_million])


def without_auto(price: Any) -> Any:
    # The table's price was put in its place before; a provider or model that the table lacks has none.
    return None if price == "auto" else price


class PriceSettings(Section):
    file: Annotated[str, Field(min_length=1)] | None = None
    """File that gateway prices update writes; while it is there, its table is used instead of the package's."""


# -------------------------------------------------------------------------------------------------------- rates


def plan_of(price: Price) -> Plan:
    defaults = DEFAULTS if price.source is None else TABLE_DEFAULTS
    hours = [
        Hours(_minute(each.start), _minute(each.until), _variants(each, defaults, price.variants))
        for each in price.hours
    ]
    later = sorted(price.later, key=lambda each: each.starts, reverse=True)
    return Plan(
        _variants(price, defaults, price.variants),
        hours,
        [
            (
                datetime(each.starts.year, each.starts.month, each.starts.day, tzinfo=UTC).timestamp(),
                plan_of(each.as_price(price.source)),
            )
            for each in later
        ],
        is_listed=price.source is not None,
    )


def _variants(
    rows: TieredRows, defaults: Mapping[str, Sequence[str]], variants: Mapping[str, TieredRows]
) -> dict[str, Tiers]:
    found = {"": _tiers([rows], defaults, "")}
    found |= {name: _tiers([own, rows], defaults, name) for name, own in variants.items()}
    return found


def _tiers(layers: Sequence[TieredRows], defaults: Mapping[str, Sequence[str]], variant: str) -> Tiers:
    """The tiers of some rows; a row that the first layer does not name comes from the next one."""
    starts = sorted({0, *[tier.above for rows in layers for tier in rows.tiers]})
    prices = [(start, _prices_above(start, layers)) for start in starts]
    return tuple([Tier(start, rates_of(each, defaults), _format_rates(each, start, variant)) for start, each in prices])


def _prices_above(start: int, layers: Sequence[TieredRows]) -> dict[str, Decimal]:
    prices: dict[str, Decimal] = {}
    for name in ROWS:
        for rows in layers:
            steps = (rows, *[tier for tier in rows.tiers if tier.above <= start])
            if given := [usd for step in steps if (usd := getattr(step, name)) is not None]:
                prices[name] = given[-1]
                break
    return prices


def _format_rates(prices: Mapping[str, Decimal], above: int, variant: str) -> str:
    named = [f"{name}={format_price(usd)}" for name, usd in prices.items()]
    return " ".join([*named, *([f"above={above}"] if above else []), *([f"variant={variant}"] if variant else [])])


def _minute(time: str) -> int:
    return int(time[:2]) * 60 + int(time[3:])
