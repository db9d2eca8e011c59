"""A comparison of the gateway's usage with a provider's export: what is asked, and what the store and the configuration
answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from gateway.config import Model, ModelTable
from gateway.store import ReportScope, Store

from . import comparison as comparison_report
from .compare import Pair, by_upstream_name, compare, routes_of
from .invoice import Export
from .recorded import read_usage


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


async def ask(
    store: Store | None, question: Question, models: Mapping[str, Model], only: ReportScope | None = None
) -> Comparison:
    """Compare the store with the file; the store may be empty. `only`: a part of all usage, whose calls then count
    under their configured names. Raises `StoreUnavailable`."""
    days = question.days
    if days is None:
        return Comparison([], [*question.export.notes, "The provider's file contains no day to compare."])
    recorded, sums = await read_usage(store, *days, only) if store else ([], [])
    first = await store.usage(("day",), None, None, 1, None, only) if store else []
    if question.upstreams:
        recorded, sums = ([row for row in rows if row["upstream"] in question.upstreams] for rows in (recorded, sums))
    theirs = {name: tally for name, tally in question.export.tallies.items() if days[0] <= name[0] <= days[1]}
    ours = by_upstream_name(sums, recorded, routes_of(models, {row["model"] for row in sums}))
    pairs = await asyncio.to_thread(compare, ours, theirs)
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
