"""OpenRouter's bill: usage by day, model and provider of the last 30 whole days, and the credits that are left.

Source: OpenRouter's API reference, `GET /api/v1/activity` (with a provisioning key; `usage` is in US dollars) and
`GET /api/v1/credits`. Activity is by endpoint and not by key, so calls of other keys cannot be separated.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from .asking import Ask, BilledDays
from .bill import Account, BillLine, money_of

BASE_URL = "https://openrouter.ai/api/v1"
KEY_HEADER = "authorization"
HEADERS: Mapping[str, str] = {}
WANTED = "a provisioning key (management key)"
DAYS = timedelta(days=31)
"""The 30 days that are over, and the running one, which has no line."""


async def lines(ask: Ask, since: datetime, until: datetime) -> BilledDays:
    """The lines of these days, of which OpenRouter has the last 30 that are over. Raises `BillFault`."""
    since = max(since, until - DAYS)
    first, last = since.date().isoformat(), until.date().isoformat()
    page = await ask("/activity", [])
    return BilledDays(since, [line for each in page.get("data") or [] if first <= (line := _of(each)).day < last])


async def account(ask: Ask) -> Account:
    """The credits that are left. Raises `BillFault`."""
    data = (await ask("/credits", [])).get("data") or {}
    bought, used = data.get("total_credits"), data.get("total_usage")
    if not isinstance(bought, int | float) or not isinstance(used, int | float):
        return Account()
    return Account(left_usd=bought - used)


def _of(entry: Mapping[str, Any]) -> BillLine:
    nusd, rounding_nusd = money_of("other", Decimal(str(entry.get("usage") or 0)))
    tokens = (entry.get("prompt_tokens") or 0, 0, entry.get("completion_tokens") or 0, 0)
    return BillLine(
        str(entry.get("date") or "")[:10], entry.get("model") or "", requests=entry.get("requests") or 0,
        tokens=tokens, nusd=nusd, rounding_nusd=rounding_nusd,
    )  # fmt: skip
