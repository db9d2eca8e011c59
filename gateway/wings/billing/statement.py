"""The bill beside the records as rows, CSV and a table. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gateway.config import printable
from gateway.quota.pricing import usd
from gateway.reports.csv_text import csv_text
from gateway.reports.table import aligned, plain_usd, utc

from .bill import CLASSES, Account
from .explain import CAUSES, Explained, proposals, total
from .generations import ReadCall
from .recorded import ComparedBill, PriceHere

MOST_SERVERS = 5
"""The servers that the notes name."""

COLUMNS = (
    "upstream", "day", "model", "bill_usd", "recorded_usd", "difference_usd", *[f"{cause}_usd" for cause in CAUSES],
    "bill_requests", "recorded_requests", "bill_tokens", "recorded_tokens", "bill_storage_bytes", "bill_sessions",
)  # fmt: skip


def within(compared: Iterable[ComparedBill], since: str | None, until: str | None) -> list[ComparedBill]:
    """The same with these days alone, both included."""
    return [
        each._replace(rows=[row for row in each.rows if (since or "") <= row.day <= (until or "9999")])
        for each in compared
    ]


def rows_of(compared: Iterable[ComparedBill]) -> list[dict[str, Any]]:
    """One row for each upstream, day and model; `models` are the names of the model here."""
    return [
        {"upstream": each.upstream, **_row(row), **_usage_of(each, row), "models": list(each.here.get(row.model, ()))}
        for each in compared
        for row in each.rows
    ]


def _row(row: Explained) -> dict[str, Any]:
    sides = row.billed or ()
    ours = row.ours
    return {
        "day": row.day, "model": row.model, "bill_usd": usd(row.bill_nusd), "recorded_usd": usd(row.recorded_nusd),
        "difference_usd": usd(row.difference_nusd),
        **{f"{cause}_usd": usd(row.causes.get(cause, 0)) for cause in CAUSES},
        "bill_requests": sum(side.requests for side in sides),
        "recorded_requests": ours.requests if ours else 0,
        "bill_tokens": sum(sum(side.tokens) for side in sides),
        "recorded_tokens": ours.prompt_tokens + ours.completion_tokens if ours else 0,
    }  # fmt: skip


def _usage_of(each: ComparedBill, row: Explained) -> dict[str, int]:
    """The usage behind a line item that is no model's."""
    service, number = each.services.get((row.day, row.model), ("", 0))
    return {
        "bill_storage_bytes": number * (service == "storage_bytes"),
        "bill_sessions": number * (service == "sessions"),
    }


def summary_of(each: ComparedBill, failed: str | None = None) -> dict[str, Any]:
    """Returns the sums of the bill of an upstream. `failed`: why it could not be read lately."""
    bill, records, difference = _sums(each.rows)
    return {
        "upstream": each.upstream,
        "read_at": utc(each.bill.read_at),
        "since": each.bill.since,
        "open_from": each.open_from,
        "bill_usd": usd(bill),
        "recorded_usd": usd(records),
        "difference_usd": usd(difference),
        "causes": {cause: usd(amount) for cause, amount in total(each.rows).items()},
        "account": account_of(each.bill.account),
        "prices": [
            {"model": model, **_rates(_proposed(found)),
             "configured": {name: _rates(each.configured[name]) for name in each.here.get(model, ())
                            if name in each.configured}}
            for model, found in proposals(each.rows).items()
        ],
        "failed": failed,
    }  # fmt: skip


def _sums(rows: Iterable[Explained]) -> tuple[int, int, int]:
    """The bill, the records and the difference of these rows, in billionths of a US dollar."""
    some = list(rows)
    bill, records = sum(row.bill_nusd for row in some), sum(row.recorded_nusd for row in some)
    return bill, records, bill - records


def _proposed(found: Iterable[Fraction | None]) -> PriceHere:
    return tuple([None if price is None else per_million(price) for price in found])


def _rates(price: PriceHere) -> dict[str, float | None]:
    return {f"{kind}_usd_per_million": rate for kind, rate in zip(CLASSES, price, strict=False)}


def _shown(price: PriceHere) -> str:
    known = [f"{kind}: {rate:.6g}" for kind, rate in zip(CLASSES, price, strict=False) if rate is not None]
    return f"{{{', '.join(known)}}}"


def per_million(price: Fraction) -> float:
    """US dollars per million tokens; `price` is in billionths of a US dollar for one."""
    return float(price / 1000)


def account_of(account: Account) -> dict[str, float | None]:
    return {"left_usd": account.left_usd, "limit_usd": account.limit_usd}


def format_csv(rows: Sequence[Mapping[str, Any]], line_end: str = "\r\n") -> str:
    """A line of names, then one for each row, with amounts as plain decimals."""
    money = [name for name in COLUMNS if name.endswith("_usd")]
    return csv_text(
        COLUMNS, ({**row, **{name: plain_usd(row[name]) for name in money}} for row in rows), line_end=line_end
    )


def format_table(compared: Iterable[ComparedBill]) -> str:
    """Shows for each upstream the models, the causes of their differences, and a total."""
    return "\n".join([_table(each) for each in compared])


def _table(each: ComparedBill) -> str:
    causes = [cause for cause in CAUSES if any(cause in row.causes for row in each.rows)]
    lines = [["model", "bill USD", "recorded USD", "difference", *causes]]
    by_model: defaultdict[str, list[Explained]] = defaultdict(list)
    for row in each.rows:
        by_model[row.model].append(row)
    lines += [_line(printable(model), rows, causes) for model, rows in by_model.items()]
    lines.append(_line("total", each.rows, causes))
    heading = f"{each.upstream}, from {each.bill.since}, read {utc(each.bill.read_at)}"
    return f"{heading}\n{aligned(lines, 1, has_total=True)}\n"


def _line(name: str, rows: Sequence[Explained], causes: Iterable[str]) -> list[str]:
    sums = total(rows)
    return [name, *[f"{usd(amount):.4f}" for amount in (*_sums(rows), *[sums.get(cause, 0) for cause in causes])]]


def notes(compared: Sequence[ComparedBill]) -> list[str]:
    """Sentences below a table: what each cause is, and prices that the bill contradicts."""
    found = {cause for each in compared for row in each.rows for cause in row.causes}
    lines = [f"{cause}: {text}." for cause, text in CAUSES.items() if cause in found]
    for each in compared:
        for model, some in proposals(each.rows).items():
            lines.append(f"{each.upstream} bills {model} at {_shown(_proposed(some))} USD per million tokens.")
            for name in each.here.get(model, (model,)):
                now = f", which is {_shown(each.configured[name])}" if name in each.configured else ""
                lines.append(f"They can be models.{name}.price{now}.")
        lines += _about_services(each)
        lines += _about_calls(each)
        if any(row.causes.get("unexplained", 0) > 0 for row in each.rows):
            lines.append(f"billing.upstreams.{each.upstream}.key_ids sets calls of other keys apart.")
    return lines


def _about_services(each: ComparedBill) -> Iterator[str]:
    """A sentence about the usage that explains line items without a model, in the days that are shown."""
    shown = {(row.day, row.model) for row in each.rows}
    found = [usage for name, usage in each.services.items() if name in shown]
    if stored := [number for service, number in found if service == "storage_bytes"]:
        yield f"{each.upstream} states at most {max(stored):,} bytes in vector stores on a day."
    if sessions := sum([number for service, number in found if service == "sessions"]):
        yield f"{each.upstream} states {sessions:,} sessions of the code interpreter."


def _about_calls(each: ComparedBill) -> Iterator[str]:
    """A sentence for each server of single calls that were read, the dearest first."""
    by_server: defaultdict[str, list[ReadCall]] = defaultdict(list)
    for call in each.bill.calls:
        by_server[call.generation.provider or "unknown"].append(call)
    more = {name: sum([call.generation.nusd - (call.noted.cost_nusd or 0) for call in calls])
            for name, calls in by_server.items()}  # fmt: skip
    for name in sorted(by_server, key=lambda name: -more[name])[:MOST_SERVERS]:
        cancelled = sum([call.generation.is_cancelled for call in by_server[name]])
        counted = f"{len(by_server[name]):,} read, {cancelled:,} of them cancelled"
        cost = f"they cost {usd(more[name]):+.6f} USD more than is recorded"
        yield f"Single calls of {each.upstream} that {printable(name)} served: {counted}; {cost}."
