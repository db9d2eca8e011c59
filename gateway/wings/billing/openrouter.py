"""OpenRouter's bill: usage by day, model and provider of the last 30 whole days, and the credits that are left.

Source: OpenRouter's API reference, `GET /api/v1/activity` (with a provisioning key; `usage` is in US dollars) and
`GET /api/v1/credits`. Activity is by endpoint and not by key, so calls of other keys cannot be separated.
`GET /api/v1/generation?id=` has one call, for any key of the account (OpenRouter's skill `openrouter-generations`); its
id is in the head of the answer (`X-Generation-Id`). It answers 404 for some seconds, or longer where a stream was left
(RooCodeInc/Roo-Code#915, speakeasy-api/gram#978). `total_cost` is on this bill; `upstream_inference_cost` is billed by
the server of the model, for a key of the customer's own there (`is_byok`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from .asking import Ask, BilledDays, in_turns
from .bill import Account, BillLine, money_of
from .generations import GenerationCost
from .invoice import whole_nusd

BASE_URL = "https://openrouter.ai/api/v1"
KEY_HEADER = "authorization"
HEADERS: Mapping[str, str] = {}
WANTED = "a provisioning key (management key)"
GENERATION_HEADER = "x-generation-id"
DAYS = timedelta(days=31)
"""The 30 days that are over, and the running one, which has no line."""


async def lines(ask: Ask, since: datetime, until: datetime) -> BilledDays:
    """The lines of these days, of which OpenRouter has the last 30 that are over. Raises `BillFault`."""
    since = max(since, until - DAYS)
    first, last = since.date().isoformat(), until.date().isoformat()
    page = await ask("/activity", [])
    found = [_of(each) async for each in in_turns(page.get("data") or [])]
    return BilledDays(since, [line for line in found if first <= line.day < last])


async def account(ask: Ask) -> Account:
    """The credits that are left. Raises `BillFault`."""
    data = (await ask("/credits", [])).get("data") or {}
    bought, used = data.get("total_credits"), data.get("total_usage")
    if not isinstance(bought, int | float) or not isinstance(used, int | float):
        return Account()
    return Account(left_usd=bought - used)


async def generation(ask: Ask, name: str) -> GenerationCost:
    """One call by its id. Raises `BillFault`; `NotThere` where it is not there yet, or not this account's."""
    data = (await ask("/generation", [("id", name)]))["data"]
    cost, upstream = data["total_cost"], data.get("upstream_inference_cost")
    return GenerationCost(
        whole_nusd(Decimal(str(cost or 0))), _native(data, "prompt"), data.get("native_tokens_cached") or 0,
        _native(data, "completion"), str(data.get("provider_name") or ""), bool(data.get("cancelled")),
        whole_nusd(Decimal(str(upstream))) if data.get("is_byok") and upstream is not None else None,
    )  # fmt: skip


def _native(data: Mapping[str, Any], kind: str) -> int:
    """Tokens as the server of the model counts them, which are those that are billed."""
    return data.get(f"native_tokens_{kind}") or data.get(f"tokens_{kind}") or 0


def _of(entry: Mapping[str, Any]) -> BillLine:
    nusd, rounding_nusd = money_of("other", Decimal(str(entry.get("usage") or 0)))
    tokens = (entry.get("prompt_tokens") or 0, 0, entry.get("completion_tokens") or 0, 0)
    return BillLine(
        str(entry.get("date") or "")[:10], entry.get("model") or "", requests=entry.get("requests") or 0,
        tokens=tokens, nusd=nusd, rounding_nusd=rounding_nusd,
    )  # fmt: skip
