"""The option `--compare FILE` of `gateway usage`: compares the gateway's usage with a provider's usage export.

It is a report: the exit code does not depend on the differences. Notes name the lines that cannot be compared, and how
model names were matched.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gateway.commands import common
from gateway.commands.common import UsageError
from gateway.commands.place import RemoteGateway
from gateway.commands.usage import WingOption, days_of
from gateway.config import Config, Model, ModelTable
from gateway.reports.table import format_json
from gateway.reports.usage import read_day
from gateway.store import Store

from . import comparison as comparison_report
from .compare import Pair, by_upstream_name, compare
from .invoice import Export, NotUnderstood, read_export


class Question(NamedTuple):
    """The requested comparison. Days are both included; None is where the file begins or ends."""

    export: Export
    upstreams: Sequence[str]
    """Upstreams on the gateway's side; none: all."""
    since: str | None
    until: str | None

    @property
    def days(self) -> tuple[str, str] | None:
        """The first and the last day that are compared; None where there is none."""
        if self.export.days is None:
            return None
        since, until = max(self.since or "", self.export.days[0]), min(self.until or "9999", self.export.days[1])
        return (since, until) if since <= until else None


class Comparison(NamedTuple):
    """The comparison, and the notes beside it."""

    pairs: Sequence[Pair]
    notes: Sequence[str]


def read_file(path: str) -> Export:
    """A provider's export. Raises `NotUnderstood`, also for a file that cannot be read."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as lines:
            return read_export(lines)
    except UnicodeDecodeError:
        raise NotUnderstood(["is not UTF-8 text"]) from None
    except OSError as error:
        raise NotUnderstood([f"cannot be read: {(error.strerror or str(error)).lower()}"]) from None


async def ask(store: Store | None, question: Question, models: Mapping[str, Model]) -> Comparison:
    """Compare the store with the file; the store may be empty. Raises `StoreUnavailable`."""
    days = question.days
    if days is None:
        return Comparison([], [*question.export.notes, "The provider's file contains no day to compare."])
    # Records first: what ends meanwhile is then in the sums alone, and counts under its configured name.
    recorded = await store.usage_by_returned_model(*days) if store else []
    sums = await store.usage(("day", "model", "upstream"), *days) if store else []
    first = await store.usage(("day",), None, None, 1) if store else []
    if question.upstreams:
        recorded, sums = ([row for row in rows if row["upstream"] in question.upstreams] for rows in (recorded, sums))
    theirs = {name: tally for name, tally in question.export.tallies.items() if days[0] <= name[0] <= days[1]}
    pairs = compare(by_upstream_name(sums, recorded, _routes(models, {row["model"] for row in sums})), theirs)
    upstreams = sorted({row["upstream"] for row in sums if row["upstream"]})
    return Comparison(pairs, [
        *question.export.notes,
        *_about_days(question.export, days, first[0]["day"] if first else None),
        *_about_upstreams(upstreams),
        *_about_prices(models, sorted({row["model"] for row in sums})),
        *comparison_report.notes(pairs),
    ])  # fmt: skip


def _about_upstreams(names: list[str]) -> list[str]:
    if len(names) < 2:
        return []
    return [f"The gateway's side includes the calls to {' and '.join(names)}; --upstream selects one."]


def _about_prices(models: Mapping[str, Model], names: Iterable[str]) -> list[str]:
    """Which of these models have a price from a table, which may differ from what the provider bills."""
    table, priced = ModelTable(models), dict[str, list[str]]()
    for name in names:
        price = found.model.price if (found := table.find(name)) is not None else None
        if price is not None and price.source is not None:
            priced.setdefault(price.source, []).append(name)
    return [
        f"Prices of {' and '.join(of)} are from the {source} now; each call keeps the price that it was charged at."
        for source, of in priced.items()
    ]


def format_comparison(shape: str, comparison: Comparison, export: Export) -> str:
    """The comparison as `table`, `csv` or `json`."""
    pairs = comparison.pairs
    if shape == "table":
        return (comparison_report.format_table(pairs, export.reported) if pairs else "Nothing was used.") + "\n"
    rows = comparison_report.rows_of(pairs, export.reported)
    if shape == "csv":
        return comparison_report.format_csv(rows)
    return format_json(rows)


def _routes(models: Mapping[str, Model], names: Iterable[str]) -> dict[tuple[str, str], str]:
    """A model's name at an upstream, if it differs from the one here."""
    table = ModelTable(models)
    return {
        (name, route.upstream): route.model
        for name in names
        if (found := table.find(name)) is not None
        for route in reversed(found.model.routes)  # of two to one upstream, the first counts
        if route.model
    }


def _about_days(export: Export, days: tuple[str, str], first: str | None) -> list[str]:
    notes = []
    if export.days is not None and export.days != days:
        notes.append(
            f"The provider's file covers {export.days[0]} to {export.days[1]}; compared: {days[0]} to {days[1]}."
        )
    if first is None:
        notes.append("The gateway has no usage recorded.")
    elif first > days[0]:
        notes.append(f"The gateway has usage from {first} on; earlier days cannot be compared.")
    if days[1] >= datetime.now(UTC).date().isoformat():
        notes.append(f"{days[1]} (UTC) is not over, and both sides may still grow.")
    return notes


def report(args: argparse.Namespace, config: Config | RemoteGateway) -> tuple[str, Sequence[str]]:
    """The usage beside a provider's export, and notes. Raises `UsageError`, and as `commands.ask`."""
    if isinstance(config, RemoteGateway):
        raise UsageError("argument --compare: needs --config, for it reads the store itself")
    since, until = days_of(args, read_day)
    if args.by is not None:
        raise UsageError("argument --by: a comparison is always by day and model")
    for name in ("key", "team", "model"):
        if getattr(args, name) is not None:
            raise UsageError(f"argument --{name}: a comparison is of all keys and models")
    upstreams = [name for part in (args.upstream or "").split(",") if (name := part.strip())]
    if unknown := [name for name in upstreams if name not in config.upstreams]:
        raise UsageError(
            f"argument --upstream: there is no upstream {unknown[0]!r}; there are: {', '.join(config.upstreams)}"
        )
    try:
        export = read_file(args.compare)
    except NotUnderstood as error:
        raise UsageError(*[f"{args.compare}: {fault}" for fault in error.faults]) from None
    question = Question(export, upstreams, since, until)
    comparison = common.ask(config.store, lambda store: ask(store, question, config.models))
    return format_comparison(args.format, comparison, export), comparison.notes


OPTION = WingOption(
    "compare", "FILE", "compare with a provider's usage export (CSV); --upstream may then name several", report
)
