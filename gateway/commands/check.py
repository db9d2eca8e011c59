"""`gateway check`: every fault of a configuration at once, or its content."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gateway.config import Config, ConfigError, ConfigFault, StoreSettings, Upstream
from gateway.config.probable_mistakes import warnings_of
from gateway.wings import parts

from . import prices
from .common import UsageError, put
from .place import add_config
from .serve import count, format_address


class WingLine(NamedTuple):
    """A line of a wing about the configuration."""

    title: str
    text: Callable[[Config], str] | None = None
    findings: Callable[[Config, Sequence[str]], list[str]] = lambda config, files: []
    """Warnings about what is around the configuration and its files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, is_needed=False)
    parser.add_argument("file", nargs="?", metavar="FILE", help="the same as --config")
    parser.add_argument(
        "--online", action="store_true",
        help="ask every upstream for its models, Redis, the webhook (no event) and the collector (no span)",
    )  # fmt: skip
    parser.add_argument(
        "--spend", action="store_true", help="with --online: send a chat of one token to each upstream; it costs money"
    )


def run(args: argparse.Namespace) -> int:
    """Print the content of the configuration; returns the exit code. Raises `ConfigError` and `UsageError`."""
    from gateway.api import tokenizer
    from gateway.config.source import Source
    from gateway.process.discovery import ModelDiscovery

    args.config = args.file or args.config
    if args.config is None:
        raise UsageError("expected the configuration: gateway check gateway.yaml, or the variable GATEWAY_CONFIG")
    reading = Source(args.config, os.environ).read()
    config, whole = reading.config, reading.whole
    listed = ModelDiscovery(Path(config.store.journal_dir)).extend(reading).config
    assert whole is not None
    now = datetime.now(UTC)
    doubts = [whole.locate(each).located() for each in warnings_of(config, now)]
    doubts += [f"include: {pattern} matches no file" for pattern in whole.unmatched]
    of_wings = parts(WingLine, "check")
    doubts += [found for each in of_wings for found in each.findings(config, [*whole.texts])]
    server, warnings = config.server, [*doubts, *_look_at(config.store)]
    upstreams = ", ".join(f"{name} ({_where(upstream)})" for name, upstream in config.upstreams.items())
    keys = ", ".join(key.id for key in config.keys)
    failed, answers = _ask(config, spends=args.spend) if args.online or args.spend else (0, [])
    lines = [
        _verdict(args.config, len(doubts), failed),
        *([f"  files      {', '.join(whole.texts)}"] if len(whole.texts) > 1 else []),
        f"  serves     {format_address(server.host, server.port)} with {count(server.workers, 'worker')}",
        f"  store      {config.store.shown_url}, namespace {config.store.namespace}",
        f"  upstreams  {upstreams}",
        f"  models     {_models(config, len(listed.models))}",
        f"  prices     {prices.summary(listed, now)}",
        f"  tokens     {tokenizer.describe(listed.models)}",
        f"  keys       {keys or 'none in the file; gateway keys create makes some'}",
        f"  admin API  {_admin(config)}",
        *[f"  {each.title:<9}  {each.text(config)}" for each in of_wings if each.text is not None],
        *[f"  warning    {warning}" for warning in warnings],
        *answers,
    ]
    return put("".join([f"{line}\n" for line in lines])) or min(failed, 1)


def _verdict(file: str, doubts: int, failed: int) -> str:
    if failed:
        warnings = f" and {count(doubts, 'warning')}" if doubts else ""
        return f"{file} can be read, but see {count(failed, 'failed answer')}{warnings}."
    return f"{file} can be used, but see {count(doubts, 'warning')}." if doubts else f"{file} is good."


def _ask(config: Config, *, spends: bool) -> tuple[int, list[str]]:
    """Ask what the configuration leads to: the number of bad answers, and every answer as it is printed."""
    from .online import ask_all, lines_of

    asked = asyncio.run(ask_all(config, spends=spends))
    return sum(not each.is_good for each in asked), lines_of(asked)


def _look_at(settings: StoreSettings) -> list[str]:
    """Look at the store and the journal that the file names. Returns warnings; raises `ConfigError` for faults."""
    from gateway.journal import foreign_journals, problem_with
    from gateway.store import StoreMisconfigured
    from gateway.store.opening import look_at

    faults, warnings = [], []
    try:
        warnings = asyncio.run(look_at(settings))
    except StoreMisconfigured as error:
        faults.append(ConfigFault("store.url", str(error)))
    folder = Path(settings.journal_dir)
    if problem := problem_with(folder):
        faults.append(ConfigFault("store.journal_dir", problem))
    for where, number in foreign_journals(folder, settings.origin).items():
        belong = f"{count(number, 'journal')} in {folder} {'belongs' if number == 1 else 'belong'}"
        warnings.append(f"{belong} to another ledger ({where}); start once with the old store.url to deliver them")
    if faults:
        raise ConfigError(faults)
    return warnings


def _where(upstream: Upstream) -> str:
    """Its address, and its proxy, which may come from an environment variable that was set for something else."""
    return upstream.base_url if upstream.way is None else f"{upstream.base_url} through the proxy {upstream.way}"


def _models(config: Config, known: int) -> str:
    """The models of the file, and the upstreams whose lists are read; `known`: how many there are with them."""
    listing = [name for name, upstream in config.upstreams.items() if upstream.discover is not None]
    models = ", ".join([*config.models, *[f"those that {name} lists" for name in listing]])
    return f"{models} ({known} in all when they were last read)" if known > len(config.models) else models


def _admin(config: Config) -> str:
    if not config.has_admin_api:
        return "off: admin.token is not set"
    return f"on, at {config.admin.listen}, with dashboard and metrics" if config.admin.listen else "on"
