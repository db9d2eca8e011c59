"""`gateway usage`: usage reports, read from the store itself.

It needs no running gateway and does not disturb one. A report goes to standard output, all else to standard error.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from gateway.config import Config
from gateway.errors import GatewayError
from gateway.keys.documents import labels_of
from gateway.reports.table import Row
from gateway.reports.usage import (
    LabelReport,
    format_csv,
    format_json,
    format_table,
    label_in,
    notes,
    read_groups,
    read_period,
    stored_groups,
)
from gateway.store import (
    NARROWING_GROUPS,
    USAGE_GROUPS,
    Store,
    StoreMisconfigured,
    StoreUnavailable,
    Where,
    attribution_in,
)
from gateway.wings import parts

from .common import UsageError, ask, fail, named, put
from .place import RemoteGateway, add_place, on_gateway

FORMATS = ("table", "csv", "json")


class WingOption(NamedTuple):
    """An option of a wing that prints something else than the report."""

    name: str
    """Name of the option without `--`."""
    metavar: str
    help: str
    report: Callable[[argparse.Namespace, Config | RemoteGateway], tuple[str, Sequence[str]]]
    """The text, and notes. Raises `UsageError`, and as `commands.ask`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument(
        "--by", metavar="NAMES", help=f"default: key; some of {','.join(USAGE_GROUPS)},user,tag:NAME,label:NAME,person"
    )
    parser.add_argument("--since", metavar="TIME", help="first day or hour (UTC): 2026-11-20, 2026-11-20T14, 7d, 24h")
    parser.add_argument("--until", metavar="TIME", help="the last day or hour; default: all kept")
    for name in ("key", "team", "model"):
        parser.add_argument(f"--{name}", metavar="NAME", help=f"only the usage of this {name}")
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--json", action="store_const", dest="format", const="json", help="for scripts")
    shapes.add_argument("--csv", action="store_const", dest="format", const="csv", help="for spreadsheets")
    shapes.add_argument("--format", choices=FORMATS, help="the same; default: table")
    parser.set_defaults(format="table")
    parser.add_argument("--upstream", metavar="NAME", help="only calls to this upstream")
    options = parts(WingOption, "usage")
    for option in options:
        parser.add_argument(f"--{option.name}", metavar=option.metavar, help=option.help)
    parser.set_defaults(options=options)


def run(args: argparse.Namespace, place: Config | RemoteGateway) -> int:
    # Warnings of opening a store are for `gateway serve`, not for a report.
    logging.getLogger("gateway").setLevel(logging.ERROR)
    try:
        for option in args.options:
            if getattr(args, option.name) is not None:
                return _put(args, *option.report(args, place))
        return _report(args, place)
    except UsageError as error:
        return fail(*error.args, code=2)
    except GatewayError as error:
        return fail(f"cannot read the usage: {error.message}")
    except (StoreUnavailable, StoreMisconfigured) as error:
        return fail(f"cannot read the usage: {_named(place, str(error))}")
    except OSError as error:
        return fail(f"cannot read the usage: {_named(place, (error.strerror or str(error)).lower())}")


def _put(args: argparse.Namespace, text: str, notes: Sequence[str]) -> int:
    """Write a text; its notes below a table, else to standard error."""
    if args.format != "table":
        print("".join([f"gateway: {note}\n" for note in notes]), end="", file=sys.stderr)
    elif notes:
        text += "\n" + "".join([f"{note}\n" for note in notes])
    return put(text)


def _named(place: Config | RemoteGateway, why: str) -> str:
    return f"{place.url}: {why}" if isinstance(place, RemoteGateway) else named(place.store, why)


def _report(args: argparse.Namespace, place: Config | RemoteGateway) -> int:
    """Writes the usage report, one for programs as it is read; returns the exit code. Raises `UsageError`, and as
    `commands.ask`."""
    since, until = days_of(args, read_period)
    try:
        groups = read_groups("key" if args.by is None else args.by)
    except ValueError as error:
        raise UsageError(f"argument --by: {error}") from None
    if args.upstream is not None and (by := attribution_in(groups)) is not None:
        raise UsageError(f"argument --upstream: sums by {by} are not kept by upstream")
    filters = {name: getattr(args, name) for name in NARROWING_GROUPS}
    span = _shown_period(args, since, until)
    if isinstance(place, RemoteGateway):
        return on_gateway(place, lambda at: _write(args, groups, at.usage(groups, since, until, **filters), span))
    where: Where = tuple([(name, value) for name, value in filters.items() if value is not None])
    of_file, report = place.keys, LabelReport(groups)

    async def portions(store: Store | None) -> AsyncIterator[Sequence[Row]]:
        if store is None:
            return
        async for rows in store.usage_portions(stored_groups(groups), since, until, where=where):
            if label_in(groups) is None:
                yield rows
            else:
                report.add(rows, await labels_of(store, of_file, report.without_label(rows)))
        yield report.rows()

    return ask(place.store, lambda store: _write(args, groups, portions(store), span))


async def _write(
    args: argparse.Namespace, groups: Sequence[str], found: AsyncIterator[Sequence[Row]], span: Sequence[str]
) -> int:
    opening, between, closing = (format_csv(groups, [], "\n"), "", "") if args.format == "csv" else ("[", ",\n", "]\n")
    before, kept = opening, list[Row]()
    async for rows in found:
        if args.format == "table":
            kept += rows
        elif rows:
            is_csv = args.format == "csv"
            put(before + (format_csv(groups, rows, "\n", has_heading=False) if is_csv else format_json(rows)[1:-1]))
            before = between
    if args.format != "table":
        return _put(args, f"{opening if before == opening else ''}{closing}", span)
    return _put(args, (format_table(groups, kept) if kept else "Nothing was used.") + "\n", [*span, *notes(kept)])


def days_of(args: argparse.Namespace, read: Callable[[str, datetime], str]) -> tuple[str | None, str | None]:
    """The values of `--since` and `--until`, read with the present time. Raises `UsageError`."""
    now, days = datetime.now(UTC), []
    for name in ("since", "until"):
        text = getattr(args, name)
        try:
            days.append(None if text is None else read(text, now))
        except ValueError as error:
            raise UsageError(f"argument --{name}: {error}") from None
    since, until = days
    if since and until and since[: len(until)] > until:
        raise UsageError(f"argument --until: {until} is before --since {since}")
    return since, until


def _shown_period(args: argparse.Namespace, since: str | None, until: str | None) -> list[str]:
    """The period of a duration, in whole days and hours, by which usage is summed."""
    spans = [f"from {since} on"] if since and since != args.since else []
    spans += [f"until {until}"] if until and until != args.until else []
    return [f"{' and '.join(spans)} (UTC)"] if spans else []
