"""Prices from the table of the package `genai-prices`, as settings of the file.

A model without a price has the table's, if the provider of each of its upstreams is known and the table has the model.
The package is imported here alone, when a configuration needs it: by the parent of the workers or a command, never by a
worker, because the import takes a quarter of a second and 25 MB. It looks nothing up over the network.

The table's numbers are decimals, and stay decimals. One with more than 9 decimals (a converted binary fraction) is
rounded to 9. Units of the table that the gateway does not count (pages, pixels, messages) are left out; a call that
reports none of them has the table's price.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from .faults import ConfigError, ConfigFault, format_faults, printable
from .model_names import compiled, is_pattern
from .rates import format_price, variant_of
from .wings import wing_upstreams

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice

AUTO = "auto"

HOSTS: Mapping[str, str] = {
    "api.anthropic.com": "anthropic",
    "api.avian.io": "avian",
    "api.cerebras.ai": "cerebras",
    "api.cohere.com": "cohere",
    "api.deepseek.com": "deepseek",
    "api.fireworks.ai": "fireworks",
    "generativelanguage.googleapis.com": "google",
    "api.groq.com": "groq",
    "api.minimax.io": "minimax",
    "api.mistral.ai": "mistral",
    "api.moonshot.ai": "moonshotai",
    "api.novita.ai": "novita",
    "api.openai.com": "openai",
    "openrouter.ai": "openrouter",
    "api.perplexity.ai": "perplexity",
    "api.together.xyz": "together",
    "api.voyageai.com": "voyageai",
    "api.x.ai": "x-ai",
    "api.z.ai": "zai",
    "inference.baseten.co": "baseten",
}
"""Providers by the host of their API. Only hosts that bill the listed price in US dollars: no regional ones,
which may cost more, and none of another currency."""

ROWS: Mapping[str, tuple[str, int]] = {
    "input_mtok": ("input", 1),
    "output_mtok": ("output", 1),
    "cache_read_mtok": ("cached_input", 1),
    "cache_write_mtok": ("cache_write", 1),
    "cache_write_1h_mtok": ("cache_write_1h", 1),
    "output_reasoning_mtok": ("reasoning", 1),
    "input_audio_mtok": ("audio_in", 1),
    "output_audio_mtok": ("audio_out", 1),
    "input_image_mtok": ("image_in", 1),
    "output_image_mtok": ("image_out", 1),
    "input_video_mtok": ("video_in", 1),
    "output_video_mtok": ("video_out", 1),
    "cache_audio_read_mtok": ("cached_audio", 1),
    "cache_image_read_mtok": ("cached_image", 1),
    "output_citation_mtok": ("citations", 1),
    "input_mchars": ("characters_per_million", 1),
    "audio_hours": ("audio_per_hour", 1),
    "input_audio_hours": ("audio_per_hour", 1),
    "web_searches_kcount": ("web_searches_per_1000", 1),
    "storage_searches_kcount": ("file_searches_per_1000", 1),
    "rerank_searches_kcount": ("search_units_per_1000", 1),
    "requests_kcount": ("call", 1000),
}
"""Our row for each price of the table, and by how much the table's number is divided."""

VARIANT_KEYS = frozenset({"service_tier", "processing", "speed"})
"""The table's names for the members of an answer that name a variant."""

REGIONS: Mapping[str, Mapping[str, Decimal]] = {"anthropic": {"us": Decimal("1.1")}}
"""Factors by which a provider multiplies its prices of tokens for inference in a region (platform.claude.com, "Data
residency"), which the table leaves out. They apply to the models that have variants in the table."""
_OF_TOKENS = frozenset({"input", "output", "cached_input", "cache_write", "cache_write_1h"})

SAME_PRICE: Mapping[str, Sequence[str]] = {"groq": ("flex",)}
"""Services that cost as much as the standard one (console.groq.com, "Flex Processing"). Of others that the table does
not list the price is unknown."""

MINIMUM_CHARGE = frozenset({("groq", "whisper-large-v3"), ("groq", "whisper-large-v3-turbo")})
"""Models of which each call costs at least ten seconds: rows cannot express that."""


class Unpriced(NamedTuple):
    """Why the table has no price for a model."""

    why: str


def provider_of(upstream: Mapping[str, Any]) -> str | None:
    """The provider of an upstream's plain settings: as named, else by the host of its address; None: unknown."""
    named, url = upstream.get("provider"), upstream.get("base_url")
    if named is not None:
        return named if isinstance(named, str) else None
    with suppress(ValueError):
        if isinstance(url, str) and (host := urlsplit(url).hostname) is not None:
            named_by_wings = (each.provider_of(host) for each in wing_upstreams())
            return HOSTS.get(host) or next(filter(None, named_by_wings), None)
    return None


class UnreadableTable(Exception):
    """A file that holds no price table; the text has the reason."""


class PriceTable:
    """The table of the installed package, or of the text of a file that `gateway prices update` wrote.

    Raises `UnreadableTable`.
    """

    def __init__(self, now: datetime, text: str | None = None) -> None:
        from genai_prices import __version__
        from genai_prices.data_snapshot import get_snapshot

        self._today = now.date()
        self.name = f"genai-prices {__version__}"
        self._snapshot: DataSnapshot = get_snapshot()
        if text is not None:
            self.name, self._snapshot = _read(text)

    def __repr__(self) -> str:
        return f"<PriceTable {self.name}>"

    def providers(self) -> list[str]:
        return sorted(provider.id for provider in self._snapshot.providers)

    def find(self, provider: str, model: str) -> dict[str, Any] | Unpriced:
        """The price of a model, in the form of the file. Prices whose time is over are left out."""
        for name in (model, model.removeprefix(f"{provider}/")):  # which its own API may call it
            with suppress(LookupError):
                found_at, found = self._snapshot.find_provider_model(name, None, provider, None)
                break
        else:
            return Unpriced(f"the table has no such model of {provider}")
        if (found_at.id, found.id) in MINIMUM_CHARGE:
            return Unpriced(f"each call of {found.id} has a minimum charge")
        # As the package does it: variants are those of the provider itself, not of one that it resells.
        has_variants = any(found is each for each in found_at.models)
        document = self._whole_price(found_at.id, self._today, found, has_variants)
        later = [
            {"starts": day.isoformat(), **self._whole_price(found_at.id, day, found, has_variants)}
            for day in self._days(found)
        ]
        if not any(row in document for row, _ in ROWS.values()):
            return Unpriced(f"the table counts {found.id} of {provider} in units that the gateway does not count")
        document |= {"later": later} if later else {}
        return {**document, "source": f"table {self.name}"}

    def names(self, provider: str) -> list[str]:
        """The names of a provider's models: those that the table has as whole words."""
        found = self._snapshot.find_provider(None, provider, None)
        return list(dict.fromkeys(name for model in found.models for name in (model.id, *_equals(model.match))))

    def _days(self, model: ModelInfo) -> list[date]:
        """The days from tomorrow on at which its price changes."""
        conditions = [*_conditions(model), *(model.price_variants or ())]
        starts = {getattr(each.constraint, "start_date", None) for each in conditions}
        return sorted(day for day in starts if day is not None and day > self._today)

    def _whole_price(self, provider: str, day: date, model: ModelInfo, has_variants: bool) -> dict[str, Any]:
        document = _in_regions(self._price_on(day, model, has_variants), REGIONS.get(provider, {}))
        if same := SAME_PRICE.get(provider, ()):
            document["variants"] = {name: {} for name in same} | document.get("variants", {})
        return document

    def _price_on(self, day: date, model: ModelInfo, has_variants: bool) -> dict[str, Any]:
        conditions = _conditions(model)
        standard, hours = conditions[0].prices, []
        for each in reversed(conditions):
            if hasattr(each.constraint, "start_time"):
                hours.append({**_span(each.constraint), **_rows(each.prices)})
            elif _has_begun(each.constraint, day):
                standard = each.prices
                break
        document = _rows(standard)
        if hours:
            document["hours"] = hours[::-1]
        variants: dict[str, dict[str, Any]] = {}
        for variant in (model.price_variants or ()) if has_variants else ():
            if len(variant.when) == 1 and VARIANT_KEYS.issuperset(variant.when) and _has_begun(variant.constraint, day):
                (name,) = variant.when.values()
                variants[name] = _first_of(variants.get(name, {}), _rows(variant.prices))
        if variants := {name: rows for name, rows in variants.items() if rows}:
            document["variants"] = variants
        if "claude" in model.id:
            document["cache_write_on_request"] = True
        return document


def _in_regions(document: dict[str, Any], factors: Mapping[str, Decimal]) -> dict[str, Any]:
    """A price with the variants of these regions."""
    variants = document.get("variants")
    if not variants or not factors:
        return document
    services = [("", document), *variants.items()]
    found = {
        variant_of(service, region): _multiplied(rows, factor)
        for region, factor in factors.items()
        for service, rows in services
    }
    return document | {"variants": variants | found}


def _multiplied(rows: Mapping[str, Any], factor: Decimal) -> dict[str, Any]:
    found: dict[str, Any] = {row: format_price(Decimal(usd) * factor) for row, usd in rows.items() if row in _OF_TOKENS}
    if tiers := rows.get("tiers"):
        found["tiers"] = [{"above": tier["above"], **_multiplied(tier, factor)} for tier in tiers]
    return found


def _read(text: str) -> tuple[str, DataSnapshot]:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import _providers_from_raw  # as in the package's own updater

    try:
        kept = json.loads(text, parse_float=Decimal)
        day = date.fromisoformat(kept["date"])
        snapshot = DataSnapshot(_providers_from_raw(kept["providers"]), from_auto_update=True)
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError) as error:
        raise UnreadableTable(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    return day.isoformat(), snapshot


def read_whole(path: str) -> str:
    """A file's text. Raises `OSError`, `UnicodeDecodeError`."""
    return Path(path).read_text(encoding="utf-8")


def table_of(file: str | None, now: datetime, read_file: Callable[[str], str] = read_whole) -> PriceTable:
    """The table that counts: of the file if it is there. Raises `ConfigError`."""
    text = None
    if file is not None:
        try:
            text = read_file(file)
        except FileNotFoundError:
            pass  # not updated yet
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror or "").lower() if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError([ConfigFault("prices.file", f"cannot be read: {reason}")]) from None
    try:
        return PriceTable(now, text)
    except UnreadableTable as error:
        raise ConfigError([
            ConfigFault("prices.file", f"holds no price table ({error}); delete it, and run gateway prices update")
        ]) from None  # fmt: skip


def _conditions(model: ModelInfo) -> Sequence[ConditionalPrice]:
    from genai_prices.types import ConditionalPrice

    return model.prices if isinstance(model.prices, list) else [ConditionalPrice(prices=model.prices)]


def _has_begun(constraint: Any, day: date) -> bool:
    return constraint is None or (hasattr(constraint, "start_date") and constraint.start_date <= day)


def _span(constraint: Any) -> dict[str, str]:
    """Hours of the day, in UTC."""
    start, until = [
        datetime.combine(date(1970, 1, 2), time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
        for time in (constraint.start_time, constraint.end_time)
    ]
    return {"start": f"{start:%H:%M}", "until": f"{until:%H:%M}"}


def _rows(prices: ModelPrice) -> dict[str, Any]:
    """Rows and tiers of one price."""
    rows: dict[str, Any] = {}
    tiers: dict[int, dict[str, str]] = {}
    for key, price in vars(prices).items():
        if key not in ROWS or price is None:
            continue
        row, divisor = ROWS[key]
        rows[row] = _usd(getattr(price, "base", price), divisor)
        for tier in getattr(price, "tiers", ()):
            tiers.setdefault(tier.start, {})[row] = _usd(tier.price, divisor)
    if tiers:
        rows["tiers"] = [{"above": start, **tiers[start]} for start in sorted(tiers)]
    return rows


def _usd(price: Decimal, divisor: int) -> str:
    return format_price(round(price / divisor, 9))


def _first_of(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The rows of both, the first one's where both have one."""
    tiers: dict[int, dict[str, Any]] = {}
    for rows, others in ((one, {}), (other, one)):
        for tier in rows.get("tiers", ()):
            own = {row: usd for row, usd in tier.items() if row not in others}
            if len(own) > ("above" in own):
                tiers.setdefault(tier["above"], {"above": tier["above"]}).update(own)
    rows = {row: usd for row, usd in {**other, **one}.items() if row != "tiers"}
    return {**rows, "tiers": [tiers[above] for above in sorted(tiers)]} if tiers else rows


def _equals(match: Any) -> Iterator[str]:
    """The whole names among the conditions of a match."""
    if isinstance(name := getattr(match, "equals", None), str):
        yield name
    for clause in getattr(match, "or_", ()):
        yield from _equals(clause)


# --------------------------------------------------------------------------------------------------- in a configuration


class Wanted(NamedTuple):
    """A model that has its price from the table, if it is there."""

    providers: Sequence[tuple[str, str | None]]
    """The provider of each route, and the model's name there; None: the name that the client asked for."""
    strip_prefix: str


def wanted_prices(values: Mapping[str, Any]) -> dict[str, Wanted]:
    """The models of plain values, faulty or not, that have their price from the table: those whose price is `auto`, and
    those without one, unless they have `unpriced: allow`, if the provider of each upstream is known."""
    upstreams, models = _section(values, "upstreams"), _section(values, "models")
    defaults = _section(_section(values, "defaults"), "models")
    found = {}
    for name, own in models.items():
        if not isinstance(own, dict) or not isinstance(name, str):
            continue
        model = {**defaults, **own}
        price = model.get("price", None if model.get("unpriced") == "allow" else AUTO)
        if price != AUTO or not isinstance(routes := model.get("routes"), list):
            continue
        providers = [
            (provider_of(_section(upstreams, route.get("upstream"))), route.get("model"))
            for route in routes
            if isinstance(route, dict)
        ]
        prefix = model.get("strip_prefix")
        known = [(provider, sent) for provider, sent in providers if provider is not None]
        if known and len(known) == len(routes):
            found[name] = Wanted(known, prefix if isinstance(prefix, str) else "")
    return found


def with_table_prices(
    values: Mapping[str, Any], now: datetime, read_file: Callable[[str], str] = read_whole
) -> dict[str, Any]:
    """Plain values, with the table's price in each model that wants one and is there. `read_file` reads `prices.file`.

    Raises `ConfigError` for a provider that the table does not have, and for settings that only this function makes.
    """
    values = dict(values)
    if faults := list(_own_settings(values)):
        raise ConfigError(faults)
    wanted = wanted_prices(values)
    if faults := [
        ConfigFault(
            format_faults(("models", name, "price")),
            "auto needs upstreams whose provider is known; set upstreams.NAME.provider",
        )
        for name, model in _section(values, "models").items()
        if isinstance(model, dict) and model.get("price") == AUTO and isinstance(name, str) and name not in wanted
    ]:
        raise ConfigError(faults)
    if not wanted:
        return values
    file = _section(values, "prices").get("file")
    table = table_of(file if isinstance(file, str) and file else None, now, read_file)
    if faults := list(_unknown_providers(values, table)):
        raise ConfigError(faults)
    models = dict(values["models"])
    for name, each in wanted.items():
        if is_pattern(name) and any(sent is None for _, sent in each.providers):
            models[name] = {**models[name], "price": None, "table_prices": _under_pattern(table, name, each)}
        else:
            price = price_of(table, name, each)
            models[name] = {**models[name], "price": None if isinstance(price, Unpriced) else price}
    values["models"] = models
    return values


def price_of(table: PriceTable, name: str, wanted: Wanted) -> dict[str, Any] | Unpriced:
    """The price of one model: the same at each of its routes."""
    prices = [
        table.find(provider, sent or name.removeprefix(wanted.strip_prefix)) for provider, sent in wanted.providers
    ]
    if missing := next((price for price in prices if isinstance(price, Unpriced)), None):
        return missing
    if any(price != prices[0] for price in prices):
        return Unpriced("its routes lead to upstreams with different prices")
    return prices[0]


def _under_pattern(table: PriceTable, pattern: str, wanted: Wanted) -> dict[str, Any]:
    """The prices of the table's names that a pattern matches."""
    matches = compiled(pattern).match
    listed = {
        f"{wanted.strip_prefix}{name}": None for provider, _ in wanted.providers for name in table.names(provider)
    }
    prices = {name: price_of(table, name, wanted) for name in listed if matches(name)}
    return {name: price for name, price in prices.items() if not isinstance(price, Unpriced)}


def _own_settings(values: Mapping[str, Any]) -> Iterator[ConfigFault]:
    sections = [(("defaults", "models"), _section(_section(values, "defaults"), "models"))]
    sections += [(("models", str(name)), model) for name, model in _section(values, "models").items()]
    for place, model in sections:
        if isinstance(model, dict) and "table_prices" in model:
            yield ConfigFault(format_faults((*place, "table_prices")), "there is no such setting")
        if isinstance(model, dict) and "source" in _section(model, "price"):
            yield ConfigFault(format_faults((*place, "price", "source")), "there is no such setting")


def _unknown_providers(values: Mapping[str, Any], table: PriceTable) -> Iterator[ConfigFault]:
    known = table.providers()
    for name, upstream in _section(values, "upstreams").items():
        named = upstream.get("provider") if isinstance(upstream, dict) else None
        if named is not None and named not in known:
            yield ConfigFault(
                format_faults(("upstreams", str(name), "provider")),
                f"the price table has no provider {printable(str(named))!r}; it has: {', '.join(known)}",
            )


def _section(values: Mapping[str, Any], name: Any) -> dict[str, Any]:
    found = values.get(name) if isinstance(name, str) else None
    return found if isinstance(found, dict) else {}
