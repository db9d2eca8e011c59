"""Anthropic's bill: what was used by model and key, and what it cost by model and kind of token.

Sources: "Usage and Cost API" and the reference of `GET /v1/organizations/usage_report/messages` and
`GET /v1/organizations/cost_report` (platform.claude.com). Buckets are days in UTC, at most 31 on a page. An amount is a
decimal text in cents. Costs are not by key, so the money of a model is divided by the tokens of each key. Priority
tier is in the usage and in no cost. The key id of what was used in the Console's workbench is null.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from .asking import Ask, BilledDays, Query, buckets
from .bill import CLASSES, STANDARD, Account, BillLine, Numbers, check_currency, money_of, place

BASE_URL = "https://api.anthropic.com/v1"
KEY_HEADER = "x-api-key"
HEADERS: Mapping[str, str] = {"anthropic-version": "2023-06-01"}
WANTED = "an admin key of the organization (sk-ant-admin...)"

BUCKETS = 31
WORKBENCH = "workbench"
"""The key of what has no key."""


async def lines(ask: Ask, since: datetime, until: datetime) -> BilledDays:
    """The lines of these days. Raises `BillFault`."""
    days = [("starting_at", _written(since)), ("ending_at", _written(until))]
    span = [*days, ("bucket_width", "1d"), ("limit", str(BUCKETS))]
    used, costs = list[BillLine](), list[BillLine]()
    groups = ["model", "api_key_id", "workspace_id", "service_tier"]
    async for bucket in buckets(ask, "/organizations/usage_report/messages", [*span, *_by(groups)]):
        used += [_of_usage(bucket["starting_at"][:10], each) for each in bucket["results"]]
    async for bucket in buckets(ask, "/organizations/cost_report", [*span, *_by(["workspace_id", "description"])]):
        costs += [_of_cost(bucket["starting_at"][:10], each) for each in bucket["results"]]
    return BilledDays(since, used + await asyncio.to_thread(divided, costs, used))


def _by(groups: list[str]) -> Query:
    return [("group_by[]", group) for group in groups]


async def account(ask: Ask) -> Account:
    """Anthropic states neither a balance nor a limit."""
    return Account()


def _written(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _of_usage(day: str, result: Mapping[str, Any]) -> BillLine:
    written = sum((result.get("cache_creation") or {}).values())
    fresh, cached = result.get("uncached_input_tokens") or 0, result.get("cache_read_input_tokens") or 0
    tokens = (fresh + written, cached, result.get("output_tokens") or 0, 0)
    return BillLine(
        day, result.get("model") or "", result.get("api_key_id") or WORKBENCH, result.get("workspace_id") or "",
        result.get("service_tier") or STANDARD, 0, tokens,
    )  # fmt: skip


def _of_cost(day: str, result: Mapping[str, Any]) -> BillLine:
    check_currency(result.get("currency") or "USD")
    usd = Decimal(str(result.get("amount") or 0)) / 100
    nusd, rounding_nusd = money_of(_kind(result.get("token_type") or ""), usd)
    model = result.get("model") or result.get("description") or result.get("cost_type") or "other"
    return BillLine(
        day, model, "", result.get("workspace_id") or "", result.get("service_tier") or STANDARD,
        nusd=nusd, rounding_nusd=rounding_nusd,
    )  # fmt: skip


def _kind(name: str) -> str:
    """The class of a kind of token, such as `cache_creation.ephemeral_5m_input_tokens`."""
    known = {"cache_read_input_tokens": "cached_input", "output_tokens": "output"}
    return known.get(name, "input" if name.endswith("input_tokens") else "other")


def divided(costs: list[BillLine], used: list[BillLine]) -> list[BillLine]:
    """Costs by key: those of a day, model, workspace, tier and kind of token are divided by the tokens of each key, and
    the last key gets what rounding leaves."""
    shares: defaultdict[tuple[str, ...], defaultdict[str, list[int]]]
    shares = defaultdict(lambda: defaultdict(lambda: [0] * len(CLASSES)))
    for line in used:
        of_key = shares[line.day, line.model, line.project, line.tier][line.key]
        of_key[:] = [a + b for a, b in zip(of_key, line.tokens, strict=True)]
    found: list[BillLine] = []
    for cost in costs:
        kind = next((at for at, nusd in enumerate(cost.nusd) if nusd), 0)
        by_key = shares[cost.day, cost.model, cost.project, cost.tier]
        weights = {key: tokens[kind] or (sum(tokens) if kind == len(CLASSES) - 1 else 0)
                   for key, tokens in by_key.items()}  # fmt: skip
        found += _parts(cost, kind, {key: weight for key, weight in weights.items() if weight})
    return found


def _parts(cost: BillLine, kind: int, weights: Mapping[str, int]) -> list[BillLine]:
    if not weights:
        return [cost]
    left, whole, parts = cost.nusd[kind], sum(weights.values()), []
    for number, (key, weight) in enumerate(weights.items(), 1):
        nusd = left if number == len(weights) else cost.nusd[kind] * weight // whole
        left -= nusd
        numbers: Numbers = place(CLASSES[kind], nusd)
        parts.append(cost._replace(key=key, nusd=numbers, rounding_nusd=cost.rounding_nusd if number == 1 else 0))
    return parts
