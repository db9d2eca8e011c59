"""A provider's side of bills, simulated: for the demo, tests and benchmarks. It bills what it has generated, by its own
prices, and shares no code with the side that reads bills.

A `BillingSimulator` is the simulated upstream with OpenAI's `GET /v1/organization/usage/...`, `/costs` and
`/spend_limit` (its API reference, "Usage" and "Costs"): buckets of days in UTC and pages of `limit` buckets, always by
model, key, batch and tier, and by line item and key. A call is billed when it ends, with all that was generated until
then, also where no client has received it; the id of its key follows from the secret.

A `RouterSimulator` has OpenRouter's side in place of it: `GET /v1/activity`, `/credits` and `/generation?id=` (its API
reference). Calls go to several servers in turn, each with prices of its own, so the same call costs differently.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, NamedTuple

from aiohttp import web

from gateway.simulator.choices import Settings
from gateway.simulator.requests import APIError, SimulatedCall
from gateway.simulator.server import CALL_ID, CallHistory, Ended, Pace, ServedCall, Simulator

DAY_S = 86_400
LINE_ITEMS = ("input", "cached input", "output")
EMBEDDINGS, COMPLETIONS = "embeddings", "completions"

Rates = Mapping[str, Decimal]
"""US dollars for a million tokens: `input`, `output`, and where they have prices of their own `cached_input`,
`cache_write` and `cache_write_1h`."""

RatesAt = Callable[[str, float], Rates | None]
"""The rates of a model at a Unix time; None: it is free."""

Amounts = tuple[Decimal, Decimal, Decimal]


class Sale(NamedTuple):
    """One call or several alike, as they are billed."""

    time: float
    model: str
    key: str
    tokens: tuple[int, int, int]
    """They are of the kinds in `LINE_ITEMS`, as the money is."""
    usd: Amounts
    kind: str = COMPLETIONS
    tier: str = "default"


class SoldService(NamedTuple):
    """Usage without a model, such as storage: its kind, the member that counts it, and its line item."""

    time: float
    kind: str
    member: str
    number: int
    line_item: str
    usd: Decimal
    project: str = "proj_simulated"


def key_id(secret: str) -> str:
    """The id that the provider gives a key."""
    return f"key_{sha256(secret.encode()).hexdigest()[:12]}"


def usd_of(rates: Rates | None, tokens: tuple[int, int, int], written: int = 0, written_1h: int = 0) -> Amounts:
    """The price of these tokens. Those that were written to a cache are in the first number, too."""
    if rates is None:
        return Decimal(0), Decimal(0), Decimal(0)
    fresh, cached, output = tokens
    dollars = [
        (fresh - written - written_1h) * _rate(rates, "input") + written * _rate(rates, "cache_write")
        + written_1h * _rate(rates, "cache_write_1h"),
        cached * _rate(rates, "cached_input"),
        output * _rate(rates, "output"),
    ]  # fmt: skip
    one, two, three = [each / 1_000_000 for each in dollars]
    return one, two, three


def _rate(rates: Rates, name: str) -> Decimal:
    return rates.get(name, Decimal(0) if name == "output" else rates["input"])


class _Sums:
    """The sales of one day with one model, key and tier."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = [0, 0, 0]
        self.usd = [Decimal(0)] * 3

    def add(self, sale: Sale) -> None:
        self.requests += 1
        self.tokens = [a + b for a, b in zip(self.tokens, sale.tokens, strict=True)]
        self.usd = [a + b for a, b in zip(self.usd, sale.usd, strict=True)]


class SoldTokens:
    """The account: sums of sales by day, kind of usage, model, key and tier."""

    def __init__(self, sales: Iterable[Sale] = ()) -> None:
        self._sums: defaultdict[int, defaultdict[tuple[str, ...], _Sums]] = defaultdict(lambda: defaultdict(_Sums))
        self._services: defaultdict[int, list[SoldService]] = defaultdict(list)
        for sale in sales:
            self.add(sale)

    def serve(self, service: SoldService) -> None:
        self._services[int(service.time // DAY_S) * DAY_S].append(service)

    def add(self, sale: Sale) -> None:
        of_day = self._sums[int(sale.time // DAY_S) * DAY_S]
        of_day[sale.kind, sale.model, sale.key, sale.tier].add(sale)

    def usd(self) -> Decimal:
        """Returns the sum of the bill."""
        services = sum((each.usd for some in self._services.values() for each in some), Decimal(0))
        return sum((usd for of_day in self._sums.values() for each in of_day.values() for usd in each.usd), services)

    def page(self, query: Mapping[str, str], kind: str | None) -> dict[str, Any]:
        """A page of the usage of a kind; None: of the costs."""
        since, until, limit = int(query["start_time"]), int(query["end_time"]), int(query.get("limit", "7"))
        days = range(since, until, DAY_S)
        at = int(query.get("page", "0"))
        more = at + limit < len(days)
        return {
            "object": "page", "has_more": more, "next_page": str(at + limit) if more else None,
            "data": [
                {"object": "bucket", "start_time": day, "end_time": day + DAY_S,
                 "results": [*(self._costs(day) if kind is None else self._usage(day, kind))]}
                for day in days[at : at + limit]
            ],
        }  # fmt: skip

    def _usage(self, day: int, wanted: str) -> Iterable[dict[str, Any]]:
        for service in self._services.get(day, ()):
            if service.kind == wanted:
                named = {"object": f"organization.usage.{wanted}.result", "project_id": service.project}
                yield {**named, service.member: service.number}
        for (kind, model, key, tier), sums in self._sums.get(day, {}).items():
            if kind == wanted:
                fresh, cached, output = sums.tokens
                of_tier = {"batch": tier == "batch", "service_tier": "default" if tier == "batch" else tier}
                completion = {"input_cached_tokens": cached, "output_tokens": output, **of_tier}
                yield {
                    "object": f"organization.usage.{kind}.result", "input_tokens": fresh + cached,
                    "num_model_requests": sums.requests, "model": model, "api_key_id": key, "project_id": None,
                    "user_id": None, **(completion if kind == COMPLETIONS else {}),
                }  # fmt: skip

    def _costs(self, day: int) -> Iterable[dict[str, Any]]:
        items: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
        for (_, model, key, _), sums in self._sums.get(day, {}).items():
            for item, usd in zip(LINE_ITEMS, sums.usd, strict=True):
                items[f"{model}, {item}", key] += usd
        for service in self._services.get(day, ()):
            amount = {"value": float(service.usd), "currency": "usd"}
            yield {"object": "organization.costs.result", "amount": amount, "line_item": service.line_item,
                   "api_key_id": None, "project_id": service.project, "quantity": None}  # fmt: skip
        for (item, key), usd in items.items():
            if usd:
                amount = {"value": float(usd), "currency": "usd"}
                yield {"object": "organization.costs.result", "amount": amount, "line_item": item, "api_key_id": key,
                       "project_id": None}  # fmt: skip


class _Ledger(CallHistory):
    """The ended calls, each of which is sold once."""

    def __init__(self, sell: Callable[[ServedCall], None]) -> None:
        super().__init__()
        self._sell = sell

    def close(self, entry: ServedCall, ended: Ended) -> None:
        if entry.ended is None:
            self._sell(entry)
        super().close(entry, ended)


class BillingSimulator(Simulator):
    """The simulated upstream with bills. `past` has earlier sales, and is asked once, in a thread, for the first
    question; `limit_usd` is the limit of a month."""

    def __init__(
        self, settings: Settings, admin_key: str, rates: RatesAt, past: Callable[[], Iterable[Sale]] = tuple,
        limit_usd: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        self.ledger = _Ledger(self._sell)
        self.sold = SoldTokens()
        self._admin = f"Bearer {admin_key}".encode()
        self._rates = rates
        self._past: Callable[[], Iterable[Sale]] | None = past
        self._limit_usd = limit_usd
        self._keys: dict[str, str] = {}
        """The key id of each open call, by its id."""
        self._lock = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """The routes of calls, and those of bills."""
        return [
            *super().routes(),
            web.get("/v1/organization/usage/{kind}", self._show_usage),
            web.get("/v1/organization/costs", self._show_costs),
            web.get("/v1/organization/spend_limit", self._show_limit),
        ]

    async def generate(self, request: web.Request, endpoint: str, entry: ServedCall) -> web.StreamResponse:
        """The answer of a generating endpoint, sent in its pace. Raises `APIError`."""
        secret = request.headers.get("x-api-key") or request.headers.get("Authorization", "").removeprefix("Bearer ")
        self._keys[request[CALL_ID]] = key_id(secret)
        return await super().generate(request, endpoint, entry)

    def is_lost(self, entry: ServedCall) -> bool:
        """Whether the answer to a call is made and billed, and an error in place of it."""
        return False

    async def respond(
        self, request: web.Request, asked: SimulatedCall, entry: ServedCall, pace: Pace
    ) -> web.StreamResponse:
        """Generate an answer and send it. Raises `APIError`."""
        if not self.is_lost(entry):
            return await super().respond(request, asked, entry, pace)
        usage = self.answer(request, asked, entry, pace.tokens_per_event).usage
        entry.prompt_tokens, entry.completion_tokens = usage.prompt, usage.completion
        raise APIError(500, "The answer was made and is lost.", error_type="server_error")

    def _sell(self, entry: ServedCall) -> None:
        if (sale := self.sale_of(entry)) is not None:
            self.sold.add(sale)

    def sale_of(self, entry: ServedCall) -> Sale | None:
        """The sale of an ended call; None: it has no usage."""
        key = self._keys.pop(entry.id, "")
        if entry.model is None or not entry.prompt_tokens + entry.completion_tokens:
            return None
        tokens = (entry.prompt_tokens - entry.cached_tokens, entry.cached_tokens, entry.completion_tokens)
        rates = self._rates(entry.model, entry.time)
        usd = usd_of(rates, tokens, entry.cache_write_tokens, entry.cache_write_1h_tokens)
        kind = EMBEDDINGS if entry.endpoint == "embeddings" else COMPLETIONS
        return Sale(entry.time, entry.model, key, tokens, usd, kind)

    async def _show_usage(self, request: web.Request) -> web.Response:
        return await self._page(request, request.match_info["kind"])

    async def _show_costs(self, request: web.Request) -> web.Response:
        return await self._page(request, None)

    async def _show_limit(self, request: web.Request) -> web.Response:
        self._authorise_admin(request)
        if self._limit_usd is None:
            raise APIError(404, "The organization has no spend limit.")
        return web.json_response({"threshold_amount": 100 * self._limit_usd, "currency": "USD"})

    async def _page(self, request: web.Request, kind: str | None) -> web.Response:
        self._authorise_admin(request)
        async with self._lock:
            if self._past is not None:
                past, self._past = self._past, None
                for sale in await asyncio.to_thread(lambda: list(past())):
                    self.sold.add(sale)
        return web.json_response(self.sold.page(request.query, kind))

    def _authorise_admin(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._admin):
            raise APIError(401, "Incorrect API key provided.", code="invalid_api_key")


class Server(NamedTuple):
    """A server behind a router: it takes the rates times this."""

    name: str
    factor: Decimal = Decimal(1)


class RouterSimulator(BillingSimulator):
    """The simulated upstream as OpenRouter. `now`: days before that of this time are in the activity; `late`: the
    number of questions for a call until it is there; `refuse_after`: the number of questions that are answered."""

    def __init__(
        self, settings: Settings, admin_key: str, rates: RatesAt, servers: Sequence[Server] = (Server("One"),),
        now: Callable[[], float] = time.time, late: int = 0, refuse_after: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(settings, admin_key, rates)
        self.asked: list[str] = []
        """The ids of the calls that were asked for."""
        self.generations: dict[str, tuple[ServedCall, Sale, Server]] = {}
        self._servers = servers
        self._now = now
        self.is_late = late > 0
        self._late = late
        self._refuse_after = refuse_after

    def app(self) -> web.Application:
        app = super().app()
        app.on_response_prepare.append(_name_generation)
        return app

    def routes(self) -> list[web.RouteDef]:
        """The routes of calls, and those of bills."""
        return [
            *super().routes(),
            web.get("/v1/activity", self._show_activity),
            web.get("/v1/credits", self._show_credits),
            web.get("/v1/generation", self._show_generation),
        ]

    def sale_of(self, entry: ServedCall) -> Sale | None:
        """The sale of an ended call; None: it has no usage."""
        if (sale := super().sale_of(entry)) is None:
            return None
        server = self._servers[len(self.generations) % len(self._servers)]
        one, two, three = [usd * server.factor for usd in sale.usd]
        sale = sale._replace(usd=(one, two, three))
        self.generations[f"gen-{entry.id}"] = entry, sale, server
        return sale

    async def _show_activity(self, request: web.Request) -> web.Response:
        self._authorise_admin(request)
        today = int(self._now() // DAY_S)
        found: defaultdict[tuple[int, str, str], list[Sale]] = defaultdict(list)
        for _, sale, server in self.generations.values():
            if today - 30 <= (day := int(sale.time // DAY_S)) < today:
                found[day, sale.model, server.name].append(sale)
        return web.json_response({"data": [
            {
                "date": _date(day * DAY_S), "model": model, "model_permaslug": model, "provider_name": server,
                "endpoint_id": "", "usage": float(sum(sum(sale.usd, Decimal(0)) for sale in sales)),
                "byok_usage_inference": 0, "requests": len(sales), "reasoning_tokens": 0,
                "prompt_tokens": sum(sum(sale.tokens[:2]) for sale in sales),
                "completion_tokens": sum(sale.tokens[2] for sale in sales),
            }
            for (day, model, server), sales in found.items()
        ]})  # fmt: skip

    async def _show_credits(self, request: web.Request) -> web.Response:
        self._authorise_admin(request)
        return web.json_response({"data": {"total_credits": 100, "total_usage": float(self.sold.usd())}})

    async def _show_generation(self, request: web.Request) -> web.Response:
        self._authorise_admin(request)
        name = request.query["id"]
        if self._refuse_after is not None and len(self.asked) >= self._refuse_after:
            raise APIError(429, "Rate limit exceeded.")
        self.asked.append(name)
        if name not in self.generations or self.asked.count(name) <= self._late:
            raise APIError(404, f"Generation {name} not found.")
        entry, sale, server = self.generations[name]
        fresh, cached, output = sale.tokens
        usd = float(sum(sale.usd, Decimal(0)))
        return web.json_response({"data": {
            "id": name, "upstream_id": entry.id, "model": sale.model, "provider_name": server.name, "total_cost": usd,
            "usage": usd, "upstream_inference_cost": None, "cache_discount": None, "is_byok": False,
            "created_at": f"{_date(sale.time)}T00:00:00+00:00", "streamed": entry.stream,
            "cancelled": entry.ended == "aborted", "finish_reason": "stop", "native_finish_reason": "stop",
            "tokens_prompt": fresh + cached, "tokens_completion": output, "native_tokens_prompt": fresh + cached,
            "native_tokens_completion": output, "native_tokens_cached": cached, "native_tokens_reasoning": 0,
            "api_type": "completions", "origin": "", "router": None,
        }})  # fmt: skip


async def _name_generation(request: web.Request, response: web.StreamResponse) -> None:
    if request.method == "POST":
        response.headers["X-Generation-Id"] = f"gen-{request[CALL_ID]}"


def _date(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).date().isoformat()


def noon(time: float) -> float:
    """The noon of a day in UTC, as Unix time."""
    return datetime.fromtimestamp(time, UTC).replace(hour=12, minute=0, second=0, microsecond=0).timestamp()
