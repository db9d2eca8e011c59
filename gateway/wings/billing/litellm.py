"""The bill of a reseller built on LiteLLM: the sums of its spend logs by day, model and key, and a key's budget.

Source: LiteLLM 1.106.12, `proxy/management_endpoints/internal_user_endpoints.py` (`GET /user/daily/activity`) and
`types/proxy/management_endpoints/common_daily_activity.py`. `GET /spend/logs` has the single calls, at most 10,000 and
without their cached tokens, and is called deprecated there; its answer can be compared as a file (`invoice.py`).
Days are in UTC. The name that a client asks for is a group of models; `models` are those behind it. Prompt tokens have
the cached ones. The id of a key is the hash of its secret. Users who are no administrators have to give their id.
`GET /key/info` has the budget of the key itself; one that begins anew is no balance.
Tools (MCP) have a cost and no model, and the flat cost of a deployment has no key: both are in the sums alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from .asking import Ask, BilledDays
from .bill import Account, BillLine, place
from .invoice import whole_nusd

BASE_URL = ""
KEY_HEADER = "authorization"
HEADERS: Mapping[str, str] = {}
USER_QUERY = "user_id"
WANTED = "a key that may read its own usage, with `user`, the id of its user; or an administrator's"
PAGE = 1000


async def lines(ask: Ask, since: datetime, until: datetime) -> BilledDays:
    """The lines of these days. Raises `BillFault`."""
    found, number, is_more = list[BillLine](), 1, True
    last = (until - timedelta(days=1)).date().isoformat()
    span = [("start_date", since.date().isoformat()), ("end_date", last), ("page_size", str(PAGE))]
    while is_more:
        page = await ask("/user/daily/activity", [*span, ("page", str(number))])
        for day in page["results"]:
            found += await asyncio.to_thread(list, _of_day(day))
        number, is_more = number + 1, bool(page["metadata"].get("has_more"))
    return BilledDays(since, found)


async def account(ask: Ask) -> Account:
    """The budget that is left. Raises `BillFault`."""
    info = (await ask("/key/info", [])).get("info") or {}
    budget, spent = info.get("max_budget"), info.get("spend")
    if info.get("budget_duration") or not isinstance(budget, int | float) or not isinstance(spent, int | float):
        return Account()
    return Account(left_usd=budget - spent)


def _of_day(day: Mapping[str, Any]) -> Iterator[BillLine]:
    """The lines by model and key, and the rest of each sum."""
    date, lines = str(day["date"])[:10], list[BillLine]()
    for model, group in day["breakdown"]["model_groups"].items():
        of_keys = [_line(date, model, key, used["metrics"]) for key, used in group["api_key_breakdown"].items()]
        lines += [*of_keys, *_rest(date, model, group["metrics"], of_keys)]
    yield from lines
    yield from _rest(date, "other", day["metrics"], lines)


def _rest(date: str, model: str, sums: Mapping[str, Any], lines: Sequence[BillLine]) -> Iterator[BillLine]:
    """The money of a sum that none of its lines has, above what rounding makes of them."""
    rest = whole_nusd(Decimal(str(sums.get("spend") or 0))) - sum([sum(line.nusd) for line in lines])
    if rest > len(lines):
        yield BillLine(date, model, nusd=place("other", rest))


def _line(day: str, model: str, key: str, used: Mapping[str, Any]) -> BillLine:
    cached = used.get("cache_read_input_tokens") or 0
    tokens = (max(0, (used.get("prompt_tokens") or 0) - cached), cached, used.get("completion_tokens") or 0, 0)
    spent = whole_nusd(Decimal(str(used.get("spend") or 0)))  # it is not rounded
    requests = used.get("successful_requests") or 0
    return BillLine(day, model, key, requests=requests, tokens=tokens, nusd=place("other", spent))
