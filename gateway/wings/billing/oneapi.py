"""The bill of a reseller built on one-api: its log of the calls of one user, and the balance that is left.

Source: one-api v0.6.10, `controller/log.go` and `model/log.go`: `GET /api/log/self` has 10 entries on a page, the
newest first, with the name of the token of each call; type 2 is consumption. Money is quota, of which 500,000 are a US
dollar (`common/config`; the reseller can change it); each call is rounded up to a whole one
(`relay/controller/helper.go`).
The access token of the user is asked for as it is (`middleware/auth.go`). An answer that is an error has status 200 and
`success: false`. A server answers 480 questions in three minutes (`GLOBAL_API_RATE_LIMIT`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from .asking import Ask, BilledDays, in_turns
from .bill import BillFault, BillLine, place
from .invoice import QUOTA_OF_A_DOLLAR, whole_nusd
from .newapi import account, data_of

__all__ = ["BASE_URL", "HEADERS", "KEY_HEADER", "WANTED", "account", "lines"]

BASE_URL = ""
KEY_HEADER = "authorization"
HEADERS: Mapping[str, str] = {}
WANTED = "an access token of the user (settings, personal settings)"
PAGE = 10
PAGES = 400
"""The most pages of a reading. Days before are left out."""
CONSUMPTION = "2"
BEHIND = timedelta(seconds=2)
"""Newer entries are read the next time: one that is added while pages are read would move the others."""
UNIT_NUSD = whole_nusd(Decimal(1) / QUOTA_OF_A_DOLLAR)


async def lines(ask: Ask, since: datetime, until: datetime) -> BilledDays:
    """The lines of the last of these days, as far as `PAGES` reach. Raises `BillFault`."""
    found, left = list[BillLine](), PAGES
    first = day = until
    while day > since:
        day -= timedelta(days=1)
        end = min(day + timedelta(days=1) - timedelta(seconds=1), datetime.now(UTC) - BEHIND)
        entries = await _of_day(ask, int(day.timestamp()), int(end.timestamp()), left)
        if entries is None:
            break
        left -= len(entries) // PAGE + 1
        found += [_of(each) async for each in in_turns(entries)]
        first = day
    if first == until:
        raise BillFault(f"/api/log/self has more than {PAGES * PAGE:,} calls of today, {PAGE} on a page")
    return BilledDays(first, found)


async def _of_day(ask: Ask, start: int, end: int, most: int) -> list[Any] | None:
    """The entries of a time; None: they have more pages than `most`."""
    entries = list[Any]()
    span = [("type", CONSUMPTION), ("start_timestamp", str(start)), ("end_timestamp", str(end))]
    for number in range(most):
        page = data_of(await ask("/api/log/self", [("p", str(number)), *span]), WANTED) or []
        entries += page
        if len(page) < PAGE:
            return entries
    return None


def _of(entry: Mapping[str, Any]) -> BillLine:
    day = datetime.fromtimestamp(entry["created_at"], UTC).date().isoformat()
    usd = Decimal(entry.get("quota") or 0) / QUOTA_OF_A_DOLLAR
    return BillLine(
        day, entry.get("model_name") or "", entry.get("token_name") or "", requests=1,
        tokens=(entry.get("prompt_tokens") or 0, 0, entry.get("completion_tokens") or 0, 0),
        nusd=place("other", whole_nusd(usd)), rounding_nusd=UNIT_NUSD,
    )  # fmt: skip
