"""The gateway's side of a bill, and the two sides together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import NamedTuple

from gateway.config import Model, ModelTable
from gateway.reports.table import Row
from gateway.store import ReportReader, ReportScope

from .bill import Bill, Service
from .compare import by_upstream_name, common_names, folded, routes_of
from .explain import Explained, explain
from .generations import corrections
from .openai import service_of
from .repeated import attempts_at, with_repeated
from .settings import BillingSettings

PriceHere = tuple[float | None, ...]
"""US dollars for a million tokens of each of the first three `CLASSES`; None: the price has no such row."""


class ComparedBill(NamedTuple):
    """The bill of one upstream beside the records."""

    upstream: str
    bill: Bill
    open_from: str
    """The first day that the provider may not have billed wholly."""
    rows: list[Explained]
    here: Mapping[str, Sequence[str]] = {}
    """The configured models whose calls count under a model of the rows."""
    configured: Mapping[str, PriceHere] = {}
    """The price that is configured for each of these models, where there is one."""
    names: Mapping[str, str] = {}
    """The model of a row, by the models of either side."""
    services: Mapping[tuple[str, str], tuple[Service, int]] = {}
    """The usage behind each day and line item that is no model's."""


async def read_usage(
    store: ReportReader, since: str, until: str, only: ReportScope | None = None
) -> tuple[Sequence[Row], Sequence[Row]]:
    """The usage of these days with the upstreams' names of models, as far as records are kept, and all of it by day,
    model and upstream. `only`: a part of it, of which there are no records here. Raises `StoreUnavailable`."""
    # Records first: what ends meanwhile is then in the sums alone, and counts under its configured name.
    recorded = await store.usage_by_returned_model(since, until) if only is None else []
    return recorded, await store.usage(("day", "model", "upstream"), since, until, None, None, only)


async def compared(
    store: ReportReader, bills: Mapping[str, Bill], settings: BillingSettings, models: Mapping[str, Model]
) -> list[ComparedBill]:
    """Every bill beside the records of its days. Raises `StoreUnavailable`."""
    if not bills:
        return []
    since, read_at = min(bill.since for bill in bills.values()), max(bill.read_at for bill in bills.values())
    recorded, sums = await read_usage(store, since, _day(read_at))
    found = []
    for upstream, bill in bills.items():
        each = await asyncio.to_thread(_compare, upstream, bill, recorded, sums, settings, models)
        if days := {row.day for row in each.rows if row.causes.get("unexplained", 0) > 0}:
            routes = routes_of(models, {row["model"] for row in sums})
            attempts = folded(await attempts_at(store, upstream, days, routes), each.names)
            each = each._replace(rows=with_repeated(each.rows, attempts))
        found.append(each)
    return found


def _compare(
    upstream: str, bill: Bill, recorded: Sequence[Row], sums: Sequence[Row], settings: BillingSettings,
    models: Mapping[str, Model],
) -> ComparedBill:  # fmt: skip
    until = _day(bill.read_at)
    recorded, sums = (
        [row for row in rows if row["upstream"] == upstream and bill.since <= row["day"] <= until]
        for rows in (recorded, sums)
    )
    routes = routes_of(models, {row["model"] for row in sums})
    records = by_upstream_name(sums, recorded, routes)
    open_from = _day(bill.read_at - settings.settles_after)
    source = settings.upstreams.get(upstream)
    knows_keys = source is not None and bool(source.key_ids or source.projects)
    names = common_names({model for _, model in records}, {model for _, model in bill.rows})
    services = services_of(bill)
    read = {name: usage for name, usage in corrections(bill.calls).items() if name in records}
    rows = explain(
        folded(records, names), folded(bill.rows, names), open_from=open_from, knows_keys=knows_keys,
        corrections=folded(read, names), services=services,
    )  # fmt: skip
    here = defaultdict[str, set[str]](set)
    for row in (*sums, *recorded):
        theirs = row.get("returned_model") or routes.get((row["model"], upstream), row["model"])
        here[names.get(theirs, theirs)].add(row["model"])
    names_here = {name: sorted(found) for name, found in here.items()}
    prices = _configured(models, chain(*names_here.values()))
    return ComparedBill(upstream, bill, open_from, rows, names_here, prices, names, services)


def services_of(bill: Bill) -> dict[tuple[str, str], tuple[Service, int]]:
    """The usage behind the line items without a model. Of several for the same on a day, the first one has it."""
    found: dict[tuple[str, str], tuple[Service, int]] = {}
    left = dict(bill.services)
    for day, model in sorted(bill.rows):
        service = service_of(model)
        if service is not None and (day, service) in bill.services:
            found[day, model] = service, left.pop((day, service), 0)
    return found


def _configured(models: Mapping[str, Model], names: Iterable[str]) -> dict[str, PriceHere]:
    table = ModelTable(models)
    prices = {name: found.model.price for name in names if (found := table.find(name)) is not None}
    return {
        name: tuple([None if rate is None else float(rate) for rate in (price.input, price.cached_input, price.output)])
        for name, price in prices.items()
        if price is not None
    }


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).date().isoformat()
