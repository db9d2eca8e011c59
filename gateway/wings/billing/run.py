"""`gateway bill`: reads the bills of providers now and compares them with the store; changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Mapping, Sequence

from gateway.commands.common import UsageError, ask, fail, named, put
from gateway.commands.place import add_config, chosen
from gateway.commands.usage import days_of
from gateway.config import Config
from gateway.config.source import Source
from gateway.reports.table import format_json
from gateway.reports.usage import read_day
from gateway.store import Store, StoreMisconfigured, StoreUnavailable

from .account import read_bill
from .bill import Bill, BillFault
from .posted import newest
from .recorded import ComparedBill, compared
from .settings import BillingSettings
from .singles import Singles, still_of
from .statement import format_csv, format_table, notes, rows_of, within

EPILOG = """\
example:
  gateway bill --config gateway.yaml --since 2026-11-01
  gateway bill --config gateway.yaml --csv

docs/billing.md has the settings, and what each cause means.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_config(parser)
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--since", metavar="DAY", help="first day (UTC); default: all that are read")
    parser.add_argument("--until", metavar="DAY", help="the last day")
    parser.add_argument("--upstream", metavar="NAMES", help="only the bills of these upstreams")
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--json", action="store_const", dest="format", const="json", help="for scripts")
    shapes.add_argument("--csv", action="store_const", dest="format", const="csv", help="for spreadsheets")
    parser.set_defaults(format="table")


def run(args: argparse.Namespace, config: Config) -> int:
    """Print the comparison; returns the exit code."""
    try:
        text, beside = report(args, config, *days_of(args, read_day))
    except UsageError as error:
        return fail(*error.args, code=2)
    except (StoreUnavailable, StoreMisconfigured) as error:
        return fail(f"cannot read the usage: {named(config.store, str(error))}")
    if beside and args.format == "table":
        text += "\n" + "".join([f"{note}\n" for note in beside])
    return put(text)


def report(args: argparse.Namespace, config: Config, since: str | None, until: str | None) -> tuple[str, Sequence[str]]:
    """The comparison as text, and notes. Raises `UsageError`, and as `commands.ask`."""
    settings = config.section(BillingSettings)
    wanted = [name for part in (args.upstream or "").split(",") if (name := part.strip())] or [*settings.upstreams]
    if not settings.upstreams:
        raise UsageError("billing.upstreams is empty; docs/billing.md has how to name a provider's billing API")
    for name in wanted:
        if name not in settings.upstreams or name not in config.upstreams:
            known = ", ".join(settings.upstreams)
            raise UsageError(f"argument --upstream: {name!r} is not in billing.upstreams; there are: {known}")
    try:
        bills = asyncio.run(_read(config, settings, wanted))
    except BillFault as error:
        raise UsageError(str(error)) from None

    async def question(store: Store | None) -> list[ComparedBill]:
        return await _with_singles(store, bills, config) if store else []

    found = within(ask(config.store, question), since, until)
    if args.format == "json":
        return format_json(rows_of(found)) + "\n", ()
    if args.format == "csv":
        return format_csv(rows_of(found), line_end="\n"), ()
    return format_table(found), notes(found)


async def _with_singles(store: Store, bills: Mapping[str, Bill], config: Config) -> list[ComparedBill]:
    """The bills beside the records, with the single calls that the gateway or this has read. Raises
    `StoreUnavailable`."""
    settings = config.section(BillingSettings)
    known = await newest(store, bills)
    found = {name: still_of(bill, known[name][0]) for name, bill in bills.items()}
    both, singles = await compared(store, found, settings, config.models), Singles(store)
    for each in both:
        bill, _ = await singles.read(each, settings.upstreams[each.upstream], config.upstreams[each.upstream])
        if bill is not None:
            found[each.upstream] = bill
    return await compared(store, found, settings, config.models)


def with_secrets(args: argparse.Namespace) -> Config:
    """The configuration with its secrets, for a command that reads none otherwise. Raises `ConfigError`."""
    found = chosen(args, lambda path: Source(path, os.environ).read().config)
    assert isinstance(found, Config)
    return found


async def _read(config: Config, settings: BillingSettings, names: Sequence[str]) -> dict[str, Bill]:
    """The bills, one after another. Raises `BillFault`, which names the upstream."""
    found = {}
    for name in names:
        try:
            found[name] = await read_bill(settings.upstreams[name], config.upstreams[name], time.time(), settings.days)
        except BillFault as error:
            raise BillFault(f"billing.upstreams.{name}: {error}") from None
    return found
