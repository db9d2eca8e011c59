"""Single calls at a router: noted from the heads of its answers, asked for where its bill differs, and a cause of their
own that is exact to the billionth of a dollar."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import generate_latest

from gateway.config import build
from gateway.observe.metrics import Telemetry
from gateway.records import Record, Usage
from gateway.simulator import Settings
from gateway.simulator.server import ServedCall
from gateway.web import app
from gateway.wings.billing import generations, singles
from gateway.wings.billing.account import read_generations
from gateway.wings.billing.bill import Bill, Billed, Side
from gateway.wings.billing.compare import RecordedUsage
from gateway.wings.billing.explain import explain
from gateway.wings.billing.generations import (
    GenerationCost,
    GenerationNotes,
    NotedCall,
    NotedCalls,
    ReadCall,
    calls_in,
    corrections,
)
from gateway.wings.billing.recorded import ComparedBill
from gateway.wings.billing.settings import BillSource
from gateway.wings.billing.simulated_vendor import DAY_S, Rates, RouterSimulator, Server
from gateway.wings.billing.singles import Singles, chosen, differing, place_of
from gateway.wings.billing.statement import notes
from tests.web.conftest import ADMIN_TOKEN, AUTH, KEY

from .test_account import UPSTREAM
from .vendors import ADMIN

RATES: Rates = {"input": Decimal("0.15"), "output": Decimal("0.6")}
PRICE = {"input": 0.15, "output": 0.6}
DEARER = [Server("One"), Server("Two", Decimal("1.5"))]

OPENROUTER = """
{"data": {"id": "gen-3bhGkxlo4XFrqiabUM7NDtwDzWwG", "upstream_id": "chatcmpl-791bcf62-080e-4568-87d0-94c72e3b4946",
  "total_cost": 0.0015, "cache_discount": 0.0002, "upstream_inference_cost": 0.0012,
  "created_at": "2024-07-15T23:33:19.433273+00:00", "model": "sao10k/l3-stheno-8b", "app_id": 12345, "streamed": true,
  "cancelled": false, "provider_name": "Infermatic", "latency": 1250, "moderation_latency": 50,
  "generation_time": 1200, "finish_reason": "stop", "tokens_prompt": 10, "tokens_completion": 25,
  "native_tokens_prompt": 10, "native_tokens_completion": 25, "native_tokens_completion_images": 0,
  "native_tokens_reasoning": 5, "native_tokens_cached": 3, "num_media_prompt": 1, "num_input_audio_prompt": 0,
  "num_media_completion": 0, "num_search_results": 5, "origin": "https://openrouter.ai/", "usage": 0.0015,
  "is_byok": false, "native_finish_reason": "stop", "external_user": "user-123", "api_type": "completions",
  "router": "openrouter/auto"}}
"""
"""The example of its reference, "Get request & usage metadata for a generation" (openrouter.ai)."""


@asynccontextmanager
async def serving(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[BillSource]:
    async def serve(request: web.Request) -> web.Response:
        return answer(request)

    made = web.Application()
    made.router.add_get("/{path:.*}", serve)
    async with TestServer(made) as server:
        fields = {"provider": "openrouter", "api_key": ADMIN, "base_url": str(server.make_url(""))}
        yield BillSource.model_validate(fields)


@pytest.mark.parametrize(("is_byok", "upstream_nusd"), [(False, None), (True, 1_200_000)])
async def test_the_answer_of_openrouters_reference(*, is_byok: bool, upstream_nusd: int | None) -> None:
    answer = json.loads(OPENROUTER)
    answer["data"]["is_byok"] = is_byok
    asked: list[str] = []

    def serve(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.json_response(answer)

    async with serving(serve) as source:
        found, failed = await read_generations(source, UPSTREAM, ["gen-3b"], waits=())
    assert (found, failed) == (
        {"gen-3b": GenerationCost(1_500_000, 10, 3, 25, "Infermatic", False, upstream_nusd)},
        None,
    )
    assert asked == ["/generation?id=gen-3b"]


async def test_what_is_not_there_yet_is_none_and_a_fault_ends_the_questions() -> None:
    answers = {"gen-1": web.json_response({}, status=404), "gen-2": web.json_response({"data": {}})}

    async with serving(lambda request: answers[request.query["id"]]) as source:
        found, failed = await read_generations(source, UPSTREAM, ["gen-1", "gen-2", "gen-3"], 0.0, waits=())
    assert found == {"gen-1": None}
    assert failed == "/generation has another form than expected (KeyError)"


# ------------------------------------------------------------------------------------------------ what a worker notes


def record(**more: Any) -> Record:
    fields: dict[str, Any] = {
        "id": "call", "time": 20_000 * DAY_S + 5.0, "key": "k", "team": None, "endpoint": "chat", "model": "m",
        "label_model": "m", "routed_model": "m", "returned_model": "vendor/m", "upstream": "up", "status": 200,
        "stream": False, "usage": Usage(10, 20, 0, 0, "reported"), "ended": "done", "first_byte_s": None,
        "duration_s": 1.0, "attempts": 1, "cost_nusd": 700,
    }  # fmt: skip
    return Record(**fields | more)


def call(name: str, cost: int | None, model: str = "vendor/m", day: int = 20_000) -> NotedCall:
    return NotedCall(name, day * DAY_S + 5.0, model, cost, 10, 0, 20, False, False)


def test_a_call_of_one_generation_is_noted() -> None:
    notes = GenerationNotes()
    notes.note("gen-1", record())
    for generation, more in ((None, {}), ("gen-2", {"attempts": 2}), ("gen 3", {}), ("gen-4", {"ended": "lost"})):
        notes.note(generation, record(**more))
    ((upstream, day, text),) = notes.changed("2024-10-04")
    assert (upstream, day) == ("up", "2024-10-04")
    assert calls_in(text) == [call("gen-1", 700)]
    assert list(notes.changed("2024-10-04")) == [], "it is posted once"
    notes.again(upstream, day)
    assert [text for _, _, text in notes.changed("2024-10-04")] == [text]
    notes.note("gen-5", record(time=20_003 * DAY_S + 5.0))
    assert [day for _, day, _ in notes.changed("2024-10-07")] == ["2024-10-07"]


def test_the_largest_calls_of_each_model_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "MOST_CALLS", 3)
    monkeypatch.setattr(generations, "MOST_MODELS", 2)
    kept = NotedCalls()
    for number in (5, 1, 4, 2, 3):
        kept.add(call(f"gen-{number}", number))
    kept.add(call("gen-unknown", None))
    kept.add(call("gen-other", 1, "vendor/other"))
    kept.add(call("gen-third", 9, "vendor/third"))
    assert {each.id for each in calls_in(kept.written())} == {"gen-5", "gen-4", "gen-unknown", "gen-other"}


@pytest.mark.parametrize("text", ["", "[[1]]", "{", "[1]"])
def test_a_post_of_another_version_has_no_calls(text: str) -> None:
    assert calls_in(text) == []


# ------------------------------------------------------------------------------------------------ what is asked for

ROWS = {("2024-10-04", "m"): 50, ("2024-10-04", "n"): 900}
NAMES = {"vendor/m": "m", "vendor/n": "n"}


def test_the_largest_calls_of_the_largest_difference_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = [call("small", 1), call("large", 9), call("other", 3, "vendor/n"), call("agrees", 99, "vendor/o"),
             call("tomorrow", 99, day=20_001), call("given-up", 99)]  # fmt: skip
    assert [each.id for each in chosen(ROWS, noted, NAMES, {"given-up": 3})] == ["other", "large", "small"]
    monkeypatch.setattr(singles, "MOST_AT_ONCE", 2)
    assert [each.id for each in chosen(ROWS, noted, NAMES, {})] == ["other", "given-up"]


def compared(bill: Bill, **causes: int) -> ComparedBill:
    found = explain(
        {("2024-10-04", "m"): RecordedUsage(2, 0, 20, 40, cost_nusd=1_400)},
        {("2024-10-04", "m"): Billed(Side(2, (20, 0, 40, 0), (0, 0, 0, 2_100)))},
        open_from="2026-01-01", knows_keys=True,
    )  # fmt: skip
    (row,) = found
    return ComparedBill("up", bill, "2026-01-01", [row._replace(causes=causes or row.causes)], names={"vendor/m": "m"})


def test_a_difference_that_is_certain_asks_for_nothing() -> None:
    bill = Bill(0.0, "2024-10-01", {})
    assert differing(compared(bill)) == {("2024-10-04", "m"): 700}
    assert differing(compared(bill, other_users=700, rounding=3, late=-5)) == {}


class Posted:
    """The posts of a day."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> dict[str, str]:
        assert (place, text) == (place_of("up", "2024-10-04"), "")
        return dict(enumerate(self._texts))  # type: ignore[arg-type]


async def test_a_call_that_is_late_is_asked_for_again_and_one_that_never_comes_is_given_up() -> None:
    posted = Posted([json.dumps([call("gen-1", 700), call("gen-2", 700)]), json.dumps([call("gen-1", 700)])])
    asked: list[str] = []

    def serve(request: web.Request) -> web.Response:
        asked.append(name := request.query["id"])
        is_there = name == "gen-1" and asked.count(name) > 1
        return web.json_response(json.loads(OPENROUTER) if is_there else {}, status=200 if is_there else 404)

    each, asking = compared(Bill(0.0, "2024-10-01", {})), Singles(posted)
    async with serving(serve) as source:
        assert await asking.read(each, source, UPSTREAM, waits=()) == (None, None)
        (bill, failed) = await asking.read(each, source, UPSTREAM, waits=())
        assert bill is not None
        assert [(read.noted.id, read.generation.nusd) for read in bill.calls] == [("gen-1", 1_500_000)]
        for _ in range(3):
            assert await asking.read(each._replace(bill=bill), source, UPSTREAM, waits=()) == (None, None)
    assert (failed, asked.count("gen-1"), asked.count("gen-2")) == (None, 2, 3)


async def test_too_many_questions_end_the_reading_and_keep_what_was_read() -> None:
    posted = Posted([json.dumps([call(f"gen-{number}", number) for number in range(5)])])
    asked: list[str] = []

    def serve(request: web.Request) -> web.Response:
        asked.append(request.query["id"])
        return web.json_response(json.loads(OPENROUTER), status=200 if len(asked) < 3 else 429)

    async with serving(serve) as source:
        bill, failed = await Singles(posted).read(compared(Bill(0.0, "2024-10-01", {})), source, UPSTREAM, waits=())
    assert bill is not None
    assert [read.noted.id for read in bill.calls] == ["gen-4", "gen-3"]
    assert (failed, len(asked)) == ("/generation answers 429", 3)


# ----------------------------------------------------------------------------------------------------- the cause


def test_records_that_are_corrected_by_single_calls_leave_the_other_rules_the_rest() -> None:
    """One of two calls was estimated at twice its output, and its server was dearer; a third was the account's."""
    read = [ReadCall(call("gen-1", 1_400)._replace(completion_tokens=40, is_estimated=True),
                     GenerationCost(1_200, 10, 0, 20, "Two"))]  # fmt: skip
    records = {("2024-10-04", "vendor/m"): RecordedUsage(2, 0, 20, 60, 0, 50, 2_100)}
    bill = {("2024-10-04", "vendor/m"): Billed(Side(3, (30, 0, 60, 0), (0, 0, 0, 2_700)))}
    (row,) = explain(records, bill, open_from="2026-01-01", knows_keys=True, corrections=corrections(read))
    assert row.difference_nusd == 600
    assert row.causes["generation"] == -200
    assert row.causes["unexplained"] == 900, "a whole call at the bill's price: nothing is estimated any more"
    assert sum(row.causes.values()) == 600


# ----------------------------------------------------------------------------------------------------- a gateway


@asynccontextmanager
async def gateway(folder: Path, address: str, **more: Any) -> AsyncIterator[TestClient[Any, Any]]:
    values = {
        "server": {"access_log": "off"}, "store": {"url": f"embedded:{folder}"}, "admin": {"token": ADMIN_TOKEN},
        "upstreams": {"up": {"base_url": address, "api_key": "sk-of-calls"}},
        "models": {"gpt-4o-mini": {"routes": [{"upstream": "up"}], "max_output_tokens": 100, "price": PRICE}},
        "keys": [{"id": "k", "secret": KEY}],
        "billing": {"upstreams": {"up": {"provider": "openrouter", "api_key": ADMIN, "base_url": address}}},
        **more,
    }  # fmt: skip
    config = build(values)
    telemetry = Telemetry((key.id for key in config.keys), config.metrics.max_keys)

    async def scrape() -> bytes:
        return generate_latest(telemetry.registry)

    async with app.build(config, telemetry, scrape) as worker:
        server = TestServer(worker.app)
        await server.start_server(auto_decompress=False)
        async with TestClient(server) as client:
            yield client


async def ask(client: TestClient[Any, Any], number: int, *, stream: bool) -> None:
    body = {"model": "gpt-4o-mini", "max_tokens": 10 + number, "stream": stream,
            "messages": [{"role": "user", "content": "word " * (number + 1)}]}  # fmt: skip
    async with client.post("/v1/chat/completions", json=body, headers=AUTH) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


async def bills(client: TestClient[Any, Any], vendor: RouterSimulator) -> dict[str, Any]:
    """The bill of the upstream, once the worker has read it and asked for each call."""
    while True:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        async with client.get("/admin/api/bills", headers=headers) as answer:
            (found,) = (await answer.json())["upstreams"]
        if len(vendor.asked) == len(vendor.generations) and (vendor.is_late or "generation" in found["causes"]):
            return dict(found)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("late", [0, 1])
async def test_calls_that_went_to_a_dearer_server_are_explained_one_by_one(tmp_path: Path, late: int) -> None:
    """Of a router whose servers have prices of their own. The gateway is started anew, for it reads at its start."""
    vendor = RouterSimulator(Settings(), ADMIN, lambda _, __: RATES, DEARER, lambda: time.time() + DAY_S, late)
    async with TestServer(vendor.app()) as server:
        address = str(server.make_url("/v1"))
        async with gateway(tmp_path, address) as client:
            for number in range(6):
                await ask(client, number, stream=number % 3 == 0)
        injected = sum(
            round(sum(sale.usd, Decimal(0)) * (1 - 1 / server.factor) * 10**9)
            for _, sale, server in vendor.generations.values()
        )
        async with gateway(tmp_path, address) as client:
            found = await bills(client, vendor)
    assert sorted(vendor.asked) == sorted(vendor.generations)
    causes = {cause: round(amount * 1e9) for cause, amount in found["causes"].items()}
    assert round(found["difference_usd"] * 1e9) == sum(causes.values()) == injected > 0
    assert ("generation" in causes) is not vendor.is_late
    assert late or causes == {"generation": injected}


class LosingFirst(RouterSimulator):
    """Answers the first call with an error."""

    def is_lost(self, entry: ServedCall) -> bool:
        return not self.generations


async def test_the_content_of_a_second_attempt_is_kept_beside_the_id_of_its_generation(tmp_path: Path) -> None:
    """Content and bills each have a trace around that of the call, and each finds its own at every attempt."""
    vendor = LosingFirst(Settings(), ADMIN, lambda _, __: RATES)
    async with TestServer(vendor.app()) as server:
        address = str(server.make_url("/v1"))
        upstreams = {name: {"base_url": address, "api_key": "sk-of-calls"} for name in ("up", "spare")}
        bill = {"provider": "openrouter", "api_key": ADMIN, "base_url": address}
        routes = [{"upstream": name, "priority": number} for number, name in enumerate(upstreams)]
        async with gateway(
            tmp_path / "data", address, upstreams=upstreams, billing={"upstreams": dict.fromkeys(upstreams, bill)},
            models={"gpt-4o-mini": {"routes": routes, "max_output_tokens": 100}},
            content={"files": {"folder": str(tmp_path / "kept")}, "keep": [{"keys": ["k"]}]},
        ) as client:  # fmt: skip
            await ask(client, 1, stream=False)
    assert len(vendor.generations) == 2
    (kept,) = [json.loads(line) for file in (tmp_path / "kept").iterdir() for line in file.read_text().splitlines()]
    assert kept["attributes"]["gen_ai.output.messages"]


def test_the_notes_name_who_served_the_calls_that_were_read() -> None:
    read = [
        ReadCall(call("gen-1", 1_400), GenerationCost(1_200, 10, 0, 20, "One")),
        ReadCall(call("gen-2", 1_400), GenerationCost(5_001_400, 10, 0, 20, "Two", is_cancelled=True)),
    ]
    found = notes([compared(Bill(0.0, "2024-10-01", {}, calls=tuple(read)))])
    more = "USD more than is recorded."
    assert [text for text in found if text.startswith("Single")] == [
        f"Single calls of up that Two served: 1 read, 1 of them cancelled; they cost +0.005000 {more}",
        f"Single calls of up that One served: 1 read, 0 of them cancelled; they cost -0.000000 {more}",
    ]
