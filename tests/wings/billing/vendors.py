"""Billing APIs of vendors, served on the loopback, which bill calls by their own rules.

The pages of OpenAI are checked by the types of its SDK before they are sent, so that this server cannot drift from
them. Anthropic's are those of its reference ("Usage and Cost API"), which its SDK has no types for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.test_utils import TestServer
from openai.types.admin.organization import UsageCompletionsResponse, UsageCostsResponse, UsageVectorStoresResponse

ADMIN = "sk-admin-of-the-tests-0123456789"

DAY_S = 86_400


class Call(NamedTuple):
    """One call as a vendor bills it."""

    day: int
    """Unix time at which its day begins."""
    model: str
    input: int
    cached: int
    output: int
    key: str = "key_gateway"
    tier: str = "default"
    price: tuple[Decimal, Decimal, Decimal] = (Decimal("0.15"), Decimal("0.075"), Decimal("0.6"))
    """US dollars per million tokens: input, cached input, output."""

    @property
    def usd(self) -> tuple[Decimal, Decimal, Decimal]:
        tokens = (self.input, self.cached, self.output)
        one, two, three = (number * price / 1_000_000 for number, price in zip(tokens, self.price, strict=True))
        return one, two, three


LINE_ITEMS = ("input", "cached input", "output")


class Storage(NamedTuple):
    """The storage of a day on which there were calls, too."""

    day: int
    number: int
    """Bytes."""
    usd: Decimal
    line_item: str = "assistants api | file search"


class Vendor:
    """The account of one vendor. `refuses` answers instead of it; `limit_usd` is its limit of a month; `storage` is in
    OpenAI's usage and costs."""

    def __init__(
        self,
        calls: Iterable[Call],
        page: int = 3,
        refuses: Callable[[int], web.Response | None] | None = None,
        limit_usd: int | None = None,
        storage: Iterable[Storage] = (),
    ):
        self.calls = list(calls)
        self._storage = list(storage)
        self.asked: list[str] = []
        self._page = page
        self._refuses = refuses
        self._limit_usd = limit_usd

    async def start(self) -> TestServer:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        server = TestServer(app)
        await server.start_server()
        return server

    async def _serve(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        if self._refuses is not None and (answer := self._refuses(len(self.asked))) is not None:
            return answer
        if request.headers.get("Authorization") != f"Bearer {ADMIN}" and request.headers.get("x-api-key") != ADMIN:
            return web.json_response({"error": {"message": f"Incorrect API key provided: {ADMIN[:9]}..."}}, status=401)
        match request.path.removeprefix("/v1"):
            case "/organization/usage/completions":
                found = self._page_of(request.query, self._usage)
                UsageCompletionsResponse.model_validate(found)
            case "/organization/usage/vector_stores" if self._storage:
                found = self._page_of(request.query, self._stored)
                UsageVectorStoresResponse.model_validate(found)
            case "/organization/costs":
                found = self._page_of(request.query, self._costs)
                UsageCostsResponse.model_validate(found)
            case "/organizations/usage_report/messages":
                found = self._anthropic(request.query, self._messages)
            case "/organizations/cost_report":
                found = self._anthropic(request.query, self._cents)
            case "/organization/spend_limit" if self._limit_usd is not None:
                found = {"threshold_amount": 100 * self._limit_usd}
            case path if path.startswith("/organization/usage/"):
                found = {"object": "page", "data": [], "has_more": False, "next_page": None}
            case _:
                return web.json_response({"error": {"message": "no such path"}}, status=404)
        return web.json_response(found)

    def _by_day(self) -> Mapping[int, Sequence[Call]]:
        found: defaultdict[int, list[Call]] = defaultdict(list)
        for call in self.calls:
            found[call.day].append(call)
        return dict(sorted(found.items()))

    # ------------------------------------------------------------------------------------------------------- OpenAI

    def _page_of(self, query: Mapping[str, str], results: Callable[[Sequence[Call]], list[Any]]) -> dict[str, Any]:
        since, until = int(query["start_time"]), int(query["end_time"])
        by_day = self._by_day()
        days = [day for day in by_day if since <= day < until]
        at = int(query.get("page", "0"))
        more = at + self._page < len(days)
        return {
            "object": "page", "has_more": more, "next_page": str(at + self._page) if more else None,
            "data": [
                {"object": "bucket", "start_time": day, "end_time": day + DAY_S, "results": results(by_day[day])}
                for day in days[at : at + self._page]
            ],
        }  # fmt: skip

    def _usage(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        groups: defaultdict[tuple[str, str, str], list[Call]] = defaultdict(list)
        for call in calls:
            groups[call.model, call.key, call.tier].append(call)
        return [
            {
                "object": "organization.usage.completions.result", "model": model, "api_key_id": key,
                "batch": tier == "batch", "service_tier": "default" if tier == "batch" else tier,
                "input_tokens": sum(call.input + call.cached for call in some),
                "input_cached_tokens": sum(call.cached for call in some),
                "output_tokens": sum(call.output for call in some), "num_model_requests": len(some),
                "project_id": None, "user_id": None,
            }
            for (model, key, tier), some in groups.items()
        ]  # fmt: skip

    def _costs(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        sums: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)
        for call in calls:
            for item, usd in zip(LINE_ITEMS, call.usd, strict=True):
                sums[call.model, item, call.key] += usd
        return [
            {
                "object": "organization.costs.result", "amount": {"value": float(usd), "currency": "usd"},
                "line_item": f"{model}, {item}", "api_key_id": key, "project_id": None,
            }
            for (model, item, key), usd in sums.items()
            if usd
        ] + [
            {
                "object": "organization.costs.result", "amount": {"value": float(each.usd), "currency": "usd"},
                "line_item": each.line_item, "api_key_id": None, "project_id": None,
            }
            for each in self._storage_of(calls)
        ]  # fmt: skip

    def _stored(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        return [
            {"object": "organization.usage.vector_stores.result", "usage_bytes": each.number, "project_id": None}
            for each in self._storage_of(calls)
        ]

    def _storage_of(self, calls: Sequence[Call]) -> list[Storage]:
        days = {call.day for call in calls}
        return [each for each in self._storage if each.day in days]

    # ---------------------------------------------------------------------------------------------------- Anthropic

    def _anthropic(self, query: Any, results: Callable[[Sequence[Call]], list[Any]]) -> dict[str, Any]:
        first, last = query["starting_at"][:10], query["ending_at"][:10]
        by_day = self._by_day()
        days = [day for day in by_day if first <= _day(day) < last]
        at = int(query.get("page", "0"))
        more = at + self._page < len(days)
        return {
            "data": [
                {"starting_at": f"{_day(day)}T00:00:00Z", "ending_at": f"{_day(day + DAY_S)}T00:00:00Z",
                 "results": results(by_day[day])}
                for day in days[at : at + self._page]
            ],
            "has_more": more, "next_page": str(at + self._page) if more else None,
        }  # fmt: skip

    def _messages(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        groups: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
        for call in calls:
            groups[call.model, call.key].append(call)
        return [
            {
                "uncached_input_tokens": sum(call.input for call in some), "api_key_id": key, "workspace_id": None,
                "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
                "cache_read_input_tokens": sum(call.cached for call in some), "model": model,
                "output_tokens": sum(call.output for call in some), "server_tool_use": {"web_search_requests": 0},
                "service_tier": "standard", "context_window": None,
            }
            for (model, key), some in groups.items()
        ]  # fmt: skip

    def _cents(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        sums: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
        types = ("uncached_input_tokens", "cache_read_input_tokens", "output_tokens")
        for call in calls:
            for kind, usd in zip(types, call.usd, strict=True):
                sums[call.model, kind] += usd * 100
        return [
            {
                "amount": str(cents), "currency": "USD", "cost_type": "tokens", "token_type": kind, "model": model,
                "description": f"{model} Usage - {kind}", "service_tier": "standard", "workspace_id": None,
                "context_window": "0-200k",
            }
            for (model, kind), cents in sums.items()
            if cents
        ]  # fmt: skip


def _day(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).date().isoformat()
