"""`gateway prices`: what each model would be charged, and why. Uses no running gateway, and no network but for
`update`.

`gateway prices update` writes the newest price table into the file that the configuration names.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway import untrusted_json
from gateway.config import Config, Model, ModelTable, Price, is_pattern
from gateway.config.faults import few
from gateway.config.price_table import PriceTable, Unpriced, UnreadableTable, Wanted, price_of, provider_of, table_of
from gateway.config.rates import ROWS, Tiers, rows_of
from gateway.quota.pricing import current_rows
from gateway.reports.table import UNKNOWN, aligned, format_json

from .common import UsageError, fail, put
from .place import add_config

TIMEOUT_S = 30
MAX_BYTES = 33_554_432
"""The table has half a megabyte; what is much longer is no table."""

FEWEST_MODELS = 100
"""A table with fewer is taken for a mistake, and the file stays as it is."""


def update(file: str | None, url: str | None) -> int:
    """Write the file; returns the exit code. `url`: from here instead of the package's own address."""
    from genai_prices.update_prices import DEFAULT_UPDATE_URL

    if file is None:
        return fail("prices.file is not set: the configuration has to name the file that is written", code=2)
    source = url or DEFAULT_UPDATE_URL
    try:
        text = _download(source)
        providers = untrusted_json.parse(text)
        kept = json.dumps({"date": datetime.now(UTC).date().isoformat(), "from": source, "providers": providers})
        table = PriceTable(datetime.now(UTC), kept)
        number = sum([len(table.names(provider)) for provider in table.providers()])
        if number < FEWEST_MODELS:
            return fail(f"{source} has {number} models, which is no price table; {file} is unchanged")
        _write(Path(file), kept)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        return fail(f"cannot download {source}: {getattr(error, 'reason', None) or error}; {file} is unchanged")
    except (UnreadableTable, ValueError) as error:
        return fail(f"{source} is no price table that this version can read ({error}); {file} is unchanged")
    except OSError as error:
        return fail(f"cannot write {file}: {(error.strerror or str(error)).lower()}")
    return put(f"{file} has {number} names of models of {len(table.providers())} providers, from {source}.\n")


def _download(url: str) -> str:
    """Raises `URLError`, `HTTPException`, `TimeoutError`, and `ValueError` for what is no address or too long."""
    if not url.startswith(("https://", "http://")):
        raise ValueError("expected an address that begins with https://")
    request = urllib.request.Request(url, headers={"User-Agent": "completions-gateway"})  # noqa: S310 - checked above
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        data: bytes = answer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return data.decode()


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a gateway may read the file at any moment. Raises `OSError`."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as new:
            new.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


CONFIGURED = "configured"
UPDATE = "update"
"""Argument in place of a model: download a newer table."""
MAX_NAMED = 5
"""Models that `gateway check` names for each reason why they have no price."""
_SHOWN = ("input", "cached_input", "output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show the prices of the models, and their sources."
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="all rows of one model, as a client names it; or `update`"
    )
    add_config(parser, is_needed=False)
    parser.add_argument("--providers", action="store_true", help="list the providers of the price table")
    parser.add_argument(
        "--from", dest="source", metavar="URL", help="with update: download from here, not from the package's address"
    )
    parser.add_argument("--format", default="table", choices=("table", "json"), help="default: table")


def run(args: argparse.Namespace) -> int:
    """Print the prices; returns the exit code. Raises `ConfigError`, and `UsageError` where a file is needed."""
    from gateway.config.source import Source
    from gateway.process.discovery import ModelDiscovery

    now = datetime.now(UTC)
    if args.config is None:
        return _of_the_table(args, now)
    config = Source(args.config, os.environ, reads_secrets=False).read().config
    if args.model == UPDATE:
        return update(config.prices.file, args.source)
    if any(upstream.discover is not None for upstream in config.upstreams.values()):
        lists = ModelDiscovery(Path(config.store.journal_dir))
        config = lists.extend(Source(args.config, os.environ, reads_secrets=False).read()).config
    if args.providers:
        return put("".join([f"{name}\n" for name in table_of(config.prices.file, now).providers()]))
    if args.model is None:
        rows = [_row(config, name, model, now) for name, model in config.models.items()]
        return put(format_json(rows) if args.format == "json" else _table(rows))
    found = ModelTable(config.models, config.aliases).find(args.model)
    if found is None:
        return fail(f"the configuration serves no model {args.model!r}; it has: {', '.join(config.models)}", code=2)
    row = _row(config, found.name, found.model, now)
    if args.format == "json":
        price = found.model.price
        given = None if price is None else price.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return put(format_json({**row, "price": given}))
    return put("".join([f"{line}\n" for line in _in_full(row, found.model.price)]))


def _of_the_table(args: argparse.Namespace, now: datetime) -> int:
    """The same without a configuration: a model's prices at each provider of the table. Raises `UsageError`."""
    if args.model == UPDATE or (args.model is None and not args.providers):
        raise UsageError("expected a model, such as gateway prices gpt-4o-mini, or a configuration: --config FILE")
    table = table_of(None, now)
    if args.providers:
        return put("".join([f"{name}\n" for name in table.providers()]))
    found = {
        provider: price
        for provider in table.providers()
        if not isinstance(price := table.find(provider, args.model), Unpriced)
    }
    if not found:
        return fail(f"the price table has no model {args.model!r} at any provider", code=2)
    if args.format == "json":
        return put(format_json([{"model": args.model, "provider": name, "price": found[name]} for name in found]))
    lines = [
        line
        for provider, price in found.items()
        for line in _in_full({"model": args.model, "source": f"{provider}, {table.name}"}, Price.model_validate(price))
    ]
    return put("".join([f"{line}\n" for line in lines]))


def summary(config: Config, now: datetime) -> str:
    """Where the prices of all models come from, in one line for `gateway check`."""
    sources: dict[str, list[str]] = {}
    for name, model in config.models.items():
        sources.setdefault(_source(model), []).append(name)
    number = len(config.models)
    listed = {source: names for source, names in sources.items() if source not in (CONFIGURED, "")}
    parts = [f"{len(names)} of {number} by the {source}" for source, names in listed.items()]
    if configured := sources.get(CONFIGURED):
        parts.append(f"{len(configured)} of {number} configured")
    if unknown := sources.get(""):
        reasons: dict[str, list[str]] = {}
        for name in unknown:
            reasons.setdefault(_why(config, name, now), []).append(name)
        parts.append("unknown: " + ", ".join([f"{few(names, MAX_NAMED)} ({why})" for why, names in reasons.items()]))
    return "; ".join(parts) or "looked up when the models are known"


def _source(model: Model) -> str:
    """The source is empty if the model has no price."""
    price = next(iter(model.table_prices.values()), None) if model.price is None else model.price
    return "" if price is None else price.source or CONFIGURED


def _row(config: Config, name: str, model: Model, now: datetime) -> dict[str, Any]:
    price = model.price
    row: dict[str, Any] = {"model": name}
    if price is not None:
        given = current_rows(price, now.timestamp()) or {}
        row |= {shown: given.get(shown) for shown in _SHOWN}
        row |= {"further": _further(price), "source": _source(model)}
    elif model.table_prices and is_pattern(name):
        row |= dict.fromkeys(_SHOWN)
        row |= {"further": f"{len(model.table_prices)} models", "source": _source(model)}
    else:
        row |= dict.fromkeys(_SHOWN)
        row |= {"further": "", "source": f"unknown: {_why(config, name, now)}"}
    return row


def _further(price: Price) -> str:
    rows = [name for name in ROWS if name not in _SHOWN and getattr(price, name) is not None]
    return ", ".join([
        *rows,
        *(["tiers"] if price.tiers else []),
        *price.variants,
        *(["hours"] if price.hours else []),
        *[f"from {each.starts}" for each in price.later],
    ])  # fmt: skip


def _why(config: Config, name: str, now: datetime) -> str:
    """Why a model has no price."""
    model = config.models.get(name)
    if model is None:
        return "its pattern has prices only for the names that the table lists"
    providers = []
    for route in model.routes:
        upstream = config.upstreams[route.upstream]
        provider = provider_of({"provider": upstream.provider, "base_url": upstream.base_url})
        if provider is None:
            return f"the provider of upstream {route.upstream} is not known: set its provider, or a price"
        providers.append((provider, route.model))
    found = price_of(table_of(config.prices.file, now), name, Wanted(providers, model.strip_prefix or ""))
    if isinstance(found, Unpriced):
        return found.why
    return "unpriced: allow" if model.unpriced == "allow" else "price: null"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [["model", "source", "further", *_SHOWN]]
    for row in rows:
        prices = [UNKNOWN if row[name] is None else f"{row[name]:.9f}".rstrip("0").rstrip(".") for name in _SHOWN]
        lines.append([row["model"], row["source"], row["further"] or UNKNOWN, *prices])
    return aligned(lines, 3, has_total=False) + "\n\nUSD per million tokens. `gateway prices MODEL` has all rows.\n"


def _in_full(row: Mapping[str, Any], price: Price | None) -> Iterator[str]:
    yield f"{row['model']}: {row['source']}"
    if price is None:
        return
    for variant, tiers in price.plan.variants.items():
        yield from _tier_lines(variant, tiers)
    for hours, rates in zip(price.hours, price.plan.hours, strict=True):
        yield from _tier_lines(f"from {hours.start} to {hours.until} UTC", rates.variants[""])
    for later in price.later:
        yield from _tier_lines(f"from {later.starts} on", later.as_price(price.source).plan.variants[""])


def _tier_lines(title: str, tiers: Tiers) -> Iterator[str]:
    for tier in tiers:
        words = [title or "standard", *([f"prompts above {tier.above:,} tokens"] if tier.above else [])]
        rows = [f"{row} {usd}" for row, usd in rows_of(tier.rates_text).items() if row in ROWS]
        yield f"  {', '.join(words)}: {', '.join(rows)}"
