"""The bills over the admin API: `POST /admin/api/invoice` reads, compares and forgets an export, `GET /admin/api/bills`
has the newest bills that were read, `GET /admin/api/statement` those of a month with who spent what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from aiohttp import web

from gateway.errors import InvalidRequest
from gateway.pipeline import Services
from gateway.reports.usage import LabelReport, read_day, stored_groups
from gateway.store import Store
from gateway.web.admin.common import (
    SCOPE,
    AdminAccess,
    bad,
    csv_response,
    parts_of,
    read_json,
    shape_of,
    shown,
    today_of,
)
from gateway.web.admin.permissions import read_permissions
from gateway.web.admin.request_bodies import Names, RequestBody, read
from gateway.web.openapi.operation import JSON, Operation, Schema, in_query
from gateway.web.wings import WingEndpoints

from . import comparison
from .bill import Account, Bill
from .compare import total
from .explain import CAUSES
from .invoice import Export, NotUnderstood, read_export
from .month import GROUPS, format_statement_csv, month_of, statement
from .operations import OPERATIONS as BILL_OPERATIONS
from .operations import PATH, STATEMENT
from .posted import newest
from .question import Comparison, Question, ask
from .recorded import ComparedBill, compared
from .settings import BillingSettings
from .statement import account_of, format_csv, rows_of, summary_of, within

PLACE = ("POST", "/admin/api/invoice")
MAX_BYTES = 8 * 1024 * 1024
"""The maximum size of a body: more than a year of a provider's export by day and model."""
MOST_ROWS = 20_000
"""The most days and models in an answer."""


class CompareInvoice(RequestBody):
    """A provider's usage export as the text of its file (CSV or JSON), and what it is compared with."""

    text: str
    upstreams: Names | None = None
    since: str | None = None
    until: str | None = None


class InvoiceEndpoints:
    """Serves the endpoint `POST /admin/api/invoice`."""

    def __init__(self, access: AdminAccess, store: Store) -> None:
        self._access = access
        self._store = store
        self._lock = asyncio.Lock()
        """One file is read at a time, which bounds the memory."""

    def routes(self) -> Sequence[web.RouteDef]:
        return [self._access.change(*PLACE, self.compare_invoice)]

    async def compare_invoice(self, request: web.Request) -> web.StreamResponse:
        """The comparison by day and model: `format=json|csv`."""
        shape, config = shape_of(request.query), parts_of(request).config
        raw = await read_json(request, MAX_BYTES)
        async with self._lock:
            question = await asyncio.to_thread(_question, raw, today_of(request))
            if unknown := [name for name in question.upstreams if name not in config.upstreams]:
                raise bad(
                    "upstreams", f"there is no upstream {unknown[0][:100]!r}; there are: {', '.join(config.upstreams)}"
                )
            found = await ask(self._store, question, config.models, await self._access.reach(request))
            if len(found.pairs) > MOST_ROWS:
                raise bad(
                    "text", f"{len(found.pairs):,} days and models; at most {MOST_ROWS:,}: narrow it by since and until"
                )
            if shape == "csv":
                rows = comparison.rows_of(found.pairs, question.export.reported)
                return csv_response(await asyncio.to_thread(comparison.format_csv, rows))
            return shown(await asyncio.to_thread(_answer, question, found, request[SCOPE].principal.team))


def _question(raw: bytes, now: datetime) -> Question:
    """The question that a body asks. Raises `InvalidRequest`."""
    body = read(raw, CompareInvoice)
    if "text" not in body:
        raise InvalidRequest("Missing required parameter: 'text'.", param="text", code="missing_required_parameter")
    days: dict[str, str | None] = {"since": None, "until": None}
    for name in days:
        try:
            days[name] = read_day(body[name], now) if body.get(name) else None
        except ValueError as error:
            raise bad(name, str(error)) from None
    return Question(_read(body["text"]), body.get("upstreams") or [], **days)


def _read(text: str) -> Export:
    try:
        return read_export(text.removeprefix("\ufeff").splitlines(keepends=True))
    except NotUnderstood as error:
        raise bad("text", "; ".join(error.faults)) from None


def _answer(question: Question, found: Comparison, team: str | None) -> dict[str, Any]:
    known = question.export.reported
    rows = comparison.rows_of(found.pairs, known)
    (together,) = comparison.rows_of([total(found.pairs)], known)
    since, until = question.days or (None, None)
    scope = [f"The gateway's side is that of the team {team} alone; its calls count under their configured names."]
    return {
        "object": "comparison", "since": since, "until": until,
        "data": [{**row, "why": comparison.reasons(row)} for row in rows],
        "total": together, "notes": [*(scope if team else []), *found.notes],
    }  # fmt: skip


_NUMBER: Schema = {"type": ["number", "null"]}
_ROW: dict[str, Schema] = {
    name: {"type": "string"} if name in ("day", "model")
    else {"type": "array", "items": {"type": "string"}} if name == "names"
    else {"enum": ["ours", "theirs", None]} if name == "only"
    else _NUMBER
    for name in comparison.COLUMNS
}  # fmt: skip


def _object(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


_DAY: Schema = {"type": ["string", "null"], "format": "date"}
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    PLACE: Operation(
        "Compare the usage with a provider's usage export, by day and model. Nothing of it is kept.", "admin",
        {
            JSON: _object(object={"const": "comparison"}, since=_DAY, until=_DAY, notes=_TEXTS, total=_object(**_ROW),
                          data={"type": "array", "items": _object(**_ROW, why=_TEXTS)}),
            "text/csv": {"type": "string", "description": "The rows as `gateway usage --compare --csv` has them."},
        },
        (401, 403, 408, 413, 429), CompareInvoice,
        (in_query("format", "The format of the rows.", type="string", enum=["json", "csv"], default="json"),),
    )
}  # fmt: skip

INVOICES = WingEndpoints(
    OPERATIONS,
    lambda parts: InvoiceEndpoints(parts.access, parts.store).routes(),
    {PLACE: {"operator": "all", "lead": "team"}},
    "admin",
)


_DAY_TEXT = re.compile(r"\d{4}-\d{2}-\d{2}")
ACCOUNT_ALONE = "A bill is that of the whole account, so it is shown to those who may see all teams."


class BillEndpoints:
    """Serves the bills that one worker of all has read."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> Sequence[web.RouteDef]:
        return [self._access.get(PATH, self.show_bills), self._access.get(STATEMENT, self.show_statement)]

    async def show_bills(self, request: web.Request) -> web.StreamResponse:
        """`format=json|csv`, `since` and `until` as days."""
        shape, parts = shape_of(request.query), parts_of(request)
        since, until = (_day(request.query, name) for name in ("since", "until"))
        posted = await newest(parts.accounting.ledger, parts.config.section(BillingSettings).upstreams)
        found = within(await _compared(parts, posted), since, until)
        rows = await asyncio.to_thread(rows_of, found)
        if shape == "csv":
            return csv_response(await asyncio.to_thread(format_csv, rows))
        read = [summary_of(each, posted[each.upstream][1]) for each in found]
        absent = [_unread(name, failed) for name, (bill, failed) in posted.items() if bill is None]
        return shown({"object": "bills", "causes": dict(CAUSES), "upstreams": read + absent, "data": rows})

    async def show_statement(self, request: web.Request) -> web.StreamResponse:
        """`month=2026-11`, the running one by default; `format=json|csv`."""
        shape, parts, scope = shape_of(request.query), parts_of(request), request[SCOPE]
        today = today_of(request).date().isoformat()
        try:
            month = month_of(request.query.get("month", today[:7]))
        except ValueError as error:
            raise bad("month", str(error)) from None
        report = LabelReport(GROUPS)
        only = await self._access.reach(request)
        async for rows in parts.reports.usage_portions(stored_groups(GROUPS), month.since, month.until, only, ()):
            owners = await self._access.registry.labels_of(report.without_label(rows), scope.covers)
            await asyncio.to_thread(report.add, rows, owners)
        spent = await asyncio.to_thread(report.rows)
        bills, notes = list[ComparedBill](), [ACCOUNT_ALONE]
        if scope.is_all:
            posted = await newest(parts.accounting.ledger, parts.config.section(BillingSettings).upstreams)
            bills, notes = within(await _compared(parts, posted), month.since, month.until), []
        answer = await asyncio.to_thread(statement, month, spent, bills, notes, today)
        return csv_response(format_statement_csv(answer)) if shape == "csv" else shown(answer)


async def _compared(parts: Services, posted: Mapping[str, tuple[Bill | None, str | None]]) -> list[ComparedBill]:
    bills = {name: bill for name, (bill, _) in posted.items() if bill is not None}
    return await compared(parts.reports, bills, parts.config.section(BillingSettings), parts.config.models)


def _unread(upstream: str, failed: str | None) -> dict[str, Any]:
    """The summary of a bill that was not read yet."""
    times = dict.fromkeys(("read_at", "since", "open_from"))
    sums = dict.fromkeys(("bill_usd", "recorded_usd", "difference_usd"), 0.0)
    rest: dict[str, Any] = {"causes": {}, "account": account_of(Account()), "prices": [], "failed": failed}
    return {"upstream": upstream, **times, **sums, **rest}


def _day(query: Mapping[str, str], name: str) -> str | None:
    if (text := query.get(name)) is not None and _DAY_TEXT.fullmatch(text) is None:
        raise bad(name, "expected a day such as 2026-11-20")
    return text


BILLS = WingEndpoints(
    BILL_OPERATIONS,
    lambda parts: BillEndpoints(parts.access).routes(),
    read_permissions("""
                                 operator  lead  member  viewer  key
    GET    /admin/api/bills      all       -     -       all     -
    GET    /admin/api/statement  all       team  -       all     -
    """),
    "admin",
)
