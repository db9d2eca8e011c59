"""The findings of the readings that have to be known at once, as one line of JSON: the worker that reads the bills
posts it, and the wing `answers` makes problems of it. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from gateway.quota.pricing import usd

from .explain import proposals
from .recorded import ComparedBill

PLACE, HOLDER = "bills", "findings"
"""The place of the post, which `answers` reads, and its only holder."""


def finding_of(each: ComparedBill, failed: str | None, bound_usd: float) -> dict[str, Any]:
    """The findings at one upstream. `failed`: why the last reading failed; `bound_usd`: the least amount without an
    explanation that is a problem."""
    spent, unexplained = defaultdict[str, int](int), defaultdict[str, int](int)
    priced: dict[str, str] = {}
    for row in each.rows:
        spent[row.day] += row.bill_nusd
        unexplained[row.day] += row.causes.get("unexplained", 0)
        if "price" in row.causes:
            priced.setdefault(row.model, row.day)
    return {
        "upstream": each.upstream,
        "failed": failed,
        "read_at": each.bill.read_at,
        "bound_usd": bound_usd,
        "unexplained": {day: usd(amount) for day, amount in unexplained.items() if amount},
        "prices": {model: priced[model] for model in proposals(each.rows)},
        "spent": {day: usd(amount) for day, amount in spent.items()},
        "left_usd": each.bill.account.left_usd,
        "limit_usd": each.bill.account.limit_usd,
    }


def unread(upstream: str, failed: str | None) -> dict[str, Any]:
    """Those of a bill that was never read."""
    nothing: dict[str, Any] = {"unexplained": {}, "prices": {}, "spent": {}, "left_usd": None, "limit_usd": None}
    return {"upstream": upstream, "failed": failed, "read_at": None, "bound_usd": 0.0, **nothing}


def written(findings: Iterable[dict[str, Any]]) -> str:
    return json.dumps([*findings], separators=(",", ":"))
