"""The bill of a reseller built on new-api: usage by hour and model of one user, and the balance that is left.

Source: new-api, `controller/usedata.go` and `model/usedata.go`: `GET /api/data/self` has at most 30 days at a time,
hours as Unix times, tokens of both kinds in one number, and money as quota, of which 500,000 are a US dollar
(`QuotaPerUnit`, which the reseller can change). It is asked with an access token of the user and her id in
`New-Api-User` (`middleware/auth.go`, which has not asked for the id since 040b46a0). Tokens of one user share the
numbers, so other keys cannot be separated. An answer that is an error has `success: false`, most with status 200. The
sums are written every five minutes, and only while `DataExportEnabled` is on, as it is shipped (`common/constants.go`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from .asking import Ask, BilledDays, in_turns
from .bill import Account, BillFault, BillLine, place
from .invoice import QUOTA_OF_A_DOLLAR, whole_nusd

BASE_URL = ""
KEY_HEADER = "authorization"
HEADERS: Mapping[str, str] = {}
USER_HEADER = "New-Api-User"
WANTED = "an access token of the user (console, personal settings), and `user`, her number"
MOST_DAYS = timedelta(days=30)


async def lines(ask: Ask, since: datetime, until: datetime) -> BilledDays:
    """The lines of these days. Raises `BillFault`."""
    found, start = list[BillLine](), since
    while start < until:
        end = min(start + MOST_DAYS, until)
        span = [("start_timestamp", str(int(start.timestamp()))), ("end_timestamp", str(int(end.timestamp()) - 1))]
        rows = data_of(await ask("/api/data/self", span)) or []
        found += [_of(each) async for each in in_turns(rows)]
        start = end
    return BilledDays(since, found)


async def account(ask: Ask) -> Account:
    """The balance that is left. Raises `BillFault`."""
    data = data_of(await ask("/api/user/self", [])) or {}
    quota = data.get("quota")
    return Account(left_usd=quota / QUOTA_OF_A_DOLLAR if isinstance(quota, int) else None)


def data_of(answer: Mapping[str, Any], wanted: str = WANTED) -> Any:
    """The content of an answer. Raises `BillFault` where it is an error."""
    if answer.get("success") is False:
        raise BillFault(f"it answers {str(answer.get('message'))[:200]!r}; expected {wanted}")
    return answer.get("data")


def _of(entry: Mapping[str, Any]) -> BillLine:
    day = datetime.fromtimestamp(entry["created_at"], UTC).date().isoformat()
    usd = Decimal(entry.get("quota") or 0) / QUOTA_OF_A_DOLLAR
    tokens = (entry.get("token_used") or 0, 0, 0, 0)
    # Each call is rounded to a whole number of quota.
    rounding = whole_nusd(Decimal(entry.get("count") or 0) / 2 / QUOTA_OF_A_DOLLAR)
    return BillLine(day, entry.get("model_name") or "", requests=entry.get("count") or 0, tokens=tokens,
                nusd=place("other", whole_nusd(usd)), rounding_nusd=rounding)  # fmt: skip
