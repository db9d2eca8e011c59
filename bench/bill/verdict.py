"""What was injected beside what the gateway explains. Pure, and by another way than the gateway's: it goes call by
call, where a bill has only sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from gateway.wings.billing.explain import CAUSES
from gateway.wings.billing.simulated_vendor import Sale

from .plan import Kind, PlannedCall
from .provider import at_list_price, sold_usd

MOST_UNEXPLAINED = Decimal("0.001")
"""Of the bill."""
WITHIN = Decimal("0.02")
"""Of what was injected of a cause."""
NUSD = 10**9


class Verdict(NamedTuple):
    """Amounts are billionths of a US dollar."""

    calls: Mapping[Kind, int]
    bill: int
    recorded: int
    injected: Mapping[str, int]
    explained: Mapping[str, int]
    complaints: Sequence[str]


def judge(
    plan: Iterable[PlannedCall], sales: Mapping[int, list[Sale]], records: Iterable[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
) -> Verdict:  # fmt: skip
    """`rows` are those of `gateway bill --json`."""
    calls = list(plan)
    by_number = {int(each["client_request_id"]): each for each in records}
    injected: dict[str, int] = {}
    complaints: list[str] = []
    for call in calls:
        for cause, amount in _injected(call, sales, by_number.get(call.number), complaints):
            injected[cause] = injected.get(cause, 0) + amount
    explained = {cause: sum(_nusd(row[f"{cause}_usd"]) for row in rows) for cause in CAUSES}
    bill, recorded = (sum(_nusd(row[name]) for row in rows) for name in ("bill_usd", "recorded_usd"))
    sold = sum(round(sold_usd(sales, call.number) * NUSD) for call in calls)
    cost = sum(_nusd(each["cost_usd"] or 0) for each in by_number.values())
    complaints += _sums(rows)
    if (bill, recorded) != (sold, cost):
        complaints.append(f"bill {bill} and records {recorded}, but the calls sum up to {sold} and {cost}")
    complaints += [*_differences(injected, explained, bill)]
    kinds = {kind: sum(call.kind is kind for call in calls) for kind in Kind}
    return Verdict(kinds, bill, recorded, injected, explained, complaints)


def _injected(
    call: PlannedCall, sales: Mapping[int, list[Sale]], record: Mapping[str, Any] | None, complaints: list[str]
) -> Iterable[tuple[str, int]]:
    sold = round(sold_usd(sales, call.number) * NUSD)
    if call.kind is Kind.OTHER:
        yield "other_users", sold
        return
    at_list = round(at_list_price(sales, call.number) * NUSD)
    cost = _nusd(record["cost_usd"] or 0) if record else 0
    yield "price", sold - at_list
    if not (rest := at_list - cost):
        return
    if record is None:
        complaints.append(f"call {call.number} ({call.kind.value}) was billed and has no record")
    elif call.kind is Kind.REPEATED:
        yield "repeated", rest
    elif record["usage_source"] == "estimated":
        yield "estimated", rest
    elif not cost:
        yield "not_arrived", rest
    else:
        complaints.append(f"call {call.number} ({call.kind.value}) is recorded at {cost} and billed at {at_list}")


def _sums(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for row in rows:
        difference = _nusd(row["bill_usd"]) - _nusd(row["recorded_usd"])
        causes = sum(_nusd(row[f"{cause}_usd"]) for cause in CAUSES)
        if not difference == causes == _nusd(row["difference_usd"]):
            yield f"{row['day']} {row['model']}: the causes sum up to {causes}, the difference is {difference}"


def _differences(injected: Mapping[str, int], explained: Mapping[str, int], bill: int) -> Iterable[str]:
    for cause, amount in explained.items():
        if cause == "unexplained":
            if abs(amount) >= MOST_UNEXPLAINED * bill:
                yield f"{amount} of {bill} is unexplained"
        elif abs(amount - injected.get(cause, 0)) > WITHIN * abs(injected.get(cause, 0)):
            yield f"{cause}: {amount} is explained, {injected.get(cause, 0)} was injected"


def _nusd(usd: float) -> int:
    return round(Decimal(str(usd)) * NUSD)
