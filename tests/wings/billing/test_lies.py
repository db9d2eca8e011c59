"""Billing APIs that lie: whatever they answer is a bill or a fault with a reason, and the reader goes on. Values of
another form in rows of OpenAI and Anthropic are in `test_account.py`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.config import Upstream
from gateway.wings.billing import account, asking
from gateway.wings.billing.account import read_bill, read_generations
from gateway.wings.billing.bill import Account, Bill, BillFault, written
from gateway.wings.billing.settings import BillSource

from .test_account import NOW
from .vendors import ADMIN

UPSTREAM = Upstream(base_url="http://127.0.0.1:9/v1")
DEEP = b'{"a":' * 40_000
INF, NAN = float("inf"), float("nan")


def usage(**result: Any) -> Any:
    return {"data": [{"start_time": int(NOW), "results": [{"model": "m", **result}]}]}


def cost(**amount: Any) -> Any:
    return {"data": [{"start_time": int(NOW), "results": [{"line_item": "m, input", "amount": amount}]}]}


async def bill_of(provider: str, answers: Mapping[str, Any], **more: Any) -> Bill:
    """The bill of a provider that answers so below these paths, and nothing below others."""

    async def serve(request: web.Request) -> web.Response:
        found = next((answer for path, answer in answers.items() if request.path.endswith(path)), {"data": []})
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    async with TestServer(app) as server:
        address = str(server.make_url("")).rstrip("/")
        source = BillSource.model_validate({"provider": provider, "api_key": ADMIN, "base_url": address, **more})
        if "/generation" in answers:
            found, failed = await read_generations(source, UPSTREAM, ["one"], waits=())
            assert found == {}
            raise BillFault(str(failed))
        return await read_bill(source, UPSTREAM, NOW, 10, waits=())


@pytest.mark.parametrize(
    "answer",
    [DEEP, {"data": [{"start_time": 1, "results": None}]}, {"data": [], "has_more": True, "next_page": {"a": 1}}],
    ids=lambda answer: str(answer)[:80],
)
async def test_usage_that_cannot_be_read(answer: Any) -> None:
    with pytest.raises(BillFault):
        await bill_of("openai", {"/usage/completions": answer})


@pytest.mark.parametrize(
    "answer",
    [
        cost(value="abc"), cost(value=NAN), cost(value=INF), cost(value=1e300), cost(value="sNaN"),
        cost(value="1e999999"), cost(currency=["usd"]),
    ],
    ids=str,
)  # fmt: skip
async def test_costs_that_cannot_be_read(answer: Any) -> None:
    with pytest.raises(BillFault):
        await bill_of("openai", {"/costs": answer})


@pytest.mark.parametrize("limit", [10**400, 10**30, NAN, INF])
async def test_an_account_that_cannot_be_read_is_none(limit: float) -> None:
    assert (await bill_of("openai", {"/spend_limit": {"threshold_amount": limit}})).account == Account()
    left = {"/credits": {"data": {"total_credits": limit, "total_usage": 0.0}}}
    if limit != 10**400:
        assert (await bill_of("openrouter", left)).account == Account()


@pytest.mark.parametrize(
    "data",
    [{"total_cost": "x"}, {"total_cost": NAN}, {"total_cost": 1, "tokens_prompt": "5"}, {"total_cost": 1e300}, None],
    ids=str,
)
async def test_single_calls_that_cannot_be_read(data: Any) -> None:
    with pytest.raises(BillFault, match="/generation has another form"):
        await bill_of("openrouter", {"/generation": {"data": data}})


async def test_names_are_cut_and_can_be_written() -> None:
    bill = await bill_of("openai", {"/usage/completions": usage(model="\ud800\n" + "m" * 10_000, output_tokens=1)})
    ((_, model),) = bill.rows
    assert model == "??" + "m" * 254
    written(bill).encode()


@pytest.mark.parametrize("provider", ["newapi", "oneapi"])
async def test_no_fault_has_the_key(provider: str) -> None:
    refusal = {"success": False, "message": f"the token {ADMIN} is unknown"}
    with pytest.raises(BillFault) as raised:
        await bill_of(provider, {"/self": refusal}, user="7")
    assert "the token *** is unknown" in str(raised.value)


async def test_a_bill_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "MOST_OBJECTS_OF_A_PAGE", 100)
    many = {"data": [{"start_time": int(NOW), "results": [{"model": "m"}] * 100}]}
    with pytest.raises(BillFault, match="more than 100 objects"):
        await bill_of("openai", {"/usage/completions": many})
    monkeypatch.setattr(account, "MOST_OBJECTS", 500)
    again = {"data": [{"start_time": int(NOW), "results": [{"model": "m"}] * 9}], "has_more": True, "next_page": "same"}
    with pytest.raises(BillFault, match="too many"):
        await bill_of("openai", {"/usage/completions": again})
    monkeypatch.setattr(account, "MOST_ROWS", 5)
    models = [{"model": f"m{number}", "output_tokens": 1} for number in range(6)]
    with pytest.raises(BillFault, match="6 days and models"):
        await bill_of("openai", {"/usage/completions": {"data": [{"start_time": int(NOW), "results": models}]}})


async def test_a_bucket_with_many_results_is_read_in_turns() -> None:
    turns = 0

    async def ask(_: str, __: Any) -> Any:
        return {"data": [{"start_time": 1, "results": [{}] * (3 * asking.IN_A_TURN)}]}

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    results = [len(bucket["results"]) async for bucket in asking.buckets(ask, "/usage", [])]
    rows = [row async for row in asking.in_turns(range(3 * asking.IN_A_TURN))]
    counting.cancel()
    assert (results, len(rows)) == ([asking.IN_A_TURN] * 3, 3 * asking.IN_A_TURN)
    assert turns >= 6
