"""OpenAI's bill: what was used by model and key, and what it cost by line item and key.

Sources: API reference, "Usage" (`GET /v1/organization/usage/completions` and its siblings) and "Costs"
(`GET /v1/organization/costs`); fields and limits as in the types of openai-python 3.57, `types/admin/organization`.
Buckets are days in UTC. `input_tokens` has cached tokens and those written to a cache. A line item is a model, a comma
and a kind of token (`gpt-4o-2024-08-06, cached input`), or the name of another service. The limit of the account is
`GET /v1/organization/spend_limit`, in cents; an account without one answers 404.

Storage and sessions (`/usage/vector_stores`, `/usage/code_interpreter_sessions`: openai-openapi 2.3.0 of 2026-08-21)
have a project and no model, key or price; the line items of their costs are such as `assistants api | file search`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from .asking import Ask, BilledDays, NotThere, Query, buckets
from .bill import STANDARD, Account, BillLine, Service, ServiceUse, check_currency, money_of

BASE_URL = "https://api.openai.com/v1"
KEY_HEADER = "authorization"
HEADERS: Mapping[str, str] = {}
WANTED = "an admin key of the organization (sk-admin-...), with read access to usage"

USAGE = (
    "completions", "embeddings", "moderations", "images", "audio_speeches", "audio_transcriptions",
)  # fmt: skip
"""The kinds of usage by model. `file_search_calls` and `web_search_calls` are calls of tools, whose cost is in the
costs."""
SERVICES: Mapping[str, tuple[Service, str]] = {
    "vector_stores": ("storage_bytes", "usage_bytes"), "code_interpreter_sessions": ("sessions", "num_sessions"),
}  # fmt: skip
"""The kinds of usage without a model, each with the member that counts it."""
BUCKETS = {"usage": 31, "costs": 180}
"""The most buckets of one page."""
TIERED = ("completions",)
"""The kinds that can be grouped by batch and service tier."""

SPECIAL = ("batch", "flex", "priority", "scale")
"""Words of tiers other than the standard one."""


async def lines(ask: Ask, since: datetime, until: datetime) -> BilledDays:
    """The lines of these days. Raises `BillFault`."""
    span = [("start_time", str(int(since.timestamp()))), ("end_time", str(int(until.timestamp())))]
    found: list[BillLine] = []
    for kind in USAGE:
        groups = ["model", "api_key_id", "project_id", *(["batch", "service_tier"] if kind in TIERED else [])]
        async for bucket in buckets(ask, f"/organization/usage/{kind}", [*span, *_by(groups, BUCKETS["usage"])]):
            found += [_of_usage(_day(bucket), each) for each in bucket["results"]]
    groups = ["line_item", "api_key_id", "project_id"]
    async for bucket in buckets(ask, "/organization/costs", [*span, *_by(groups, BUCKETS["costs"])]):
        found += [_of_cost(_day(bucket), each) for each in bucket["results"]]
    return BilledDays(since, found, await _services(ask, span))


async def _services(ask: Ask, span: Query) -> list[ServiceUse]:
    found: list[ServiceUse] = []
    for kind, (service, member) in SERVICES.items():
        try:
            query = [*span, *_by(["project_id"], BUCKETS["usage"])]
            async for bucket in buckets(ask, f"/organization/usage/{kind}", query):
                found += [
                    ServiceUse(_day(bucket), service, each.get("project_id") or "", each.get(member) or 0)
                    for each in bucket["results"]
                ]
        except NotThere:
            continue
    return found


def service_of(line_item: str) -> Service | None:
    """The service whose cost a line item without a model is; None: another one."""
    return next((service for service, words in _WORDS.items() if words.search(line_item)), None)


_WORDS: Mapping[Service, re.Pattern[str]] = {
    "storage_bytes": re.compile(r"(?i)^(?!.*\bcalls?\b).*(file[ _-]search|vector[ _-]stor|\bstorage\b)"),
    "sessions": re.compile(r"(?i)code[ _-]interpreter|\b(container|session)s?\b"),
}


def _by(groups: list[str], limit: int) -> Query:
    return [("bucket_width", "1d"), ("limit", str(limit)), *[("group_by", group) for group in groups]]


async def account(ask: Ask) -> Account:
    """The limit of a month. Raises `BillFault`."""
    try:
        limit = await ask("/organization/spend_limit", [])
    except NotThere:
        return Account()
    cents = limit.get("threshold_amount")
    return Account(limit_usd=cents / 100 if isinstance(cents, int) else None)


def _day(bucket: Mapping[str, Any]) -> str:
    return datetime.fromtimestamp(bucket["start_time"], UTC).date().isoformat()


def _of_usage(day: str, result: Mapping[str, Any]) -> BillLine:
    cached = result.get("input_cached_tokens") or 0
    fresh = max((result.get("input_tokens") or 0) - cached, 0)  # of no number it stays none, in this order
    tokens = (fresh, cached, result.get("output_tokens") or 0, 0)
    tier = "batch" if result.get("batch") else result.get("service_tier") or STANDARD
    return BillLine(
        day, result.get("model") or "", result.get("api_key_id") or "", result.get("project_id") or "",
        tier if tier in SPECIAL else STANDARD, result.get("num_model_requests") or 0, tokens,
    )  # fmt: skip


def _of_cost(day: str, result: Mapping[str, Any]) -> BillLine:
    amount = result.get("amount") or {}
    check_currency(amount.get("currency") or "usd")
    model, kind = item_of(result.get("line_item") or "")
    nusd, rounding_nusd = money_of(kind, Decimal(str(amount.get("value") or 0)))
    return BillLine(
        day, model, result.get("api_key_id") or "", result.get("project_id") or "",
        nusd=nusd, rounding_nusd=rounding_nusd,
    )  # fmt: skip


def item_of(line_item: str) -> tuple[str, str]:
    """The model and the kind of a line item; one of another service is its own model."""
    model, comma, rest = line_item.partition(", ")
    words = rest.lower().replace("_", " ").split()
    if not comma or not words:
        return line_item or "other", "other"
    if "output" in words:
        return model, "output"
    if "input" in words:
        return model, "cached_input" if "cached" in words else "input"
    return model, "other"
