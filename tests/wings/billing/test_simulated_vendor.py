"""The simulated provider: what it generates is what it bills, in pages that OpenAI's SDK understands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.config import Upstream
from gateway.simulator import Settings
from gateway.wings.billing.account import read_bill
from gateway.wings.billing.bill import Bill, BillFault
from gateway.wings.billing.settings import BillSource
from gateway.wings.billing.simulated_vendor import DAY_S, BillingSimulator, Rates, Sale, key_id, usd_of

ADMIN = "sk-admin-of-the-simulated-vendor"
OWN, OTHER = "sk-the-gateways-own", "sk-of-a-notebook"
RATES: Rates = {"input": Decimal("0.15"), "cached_input": Decimal("0.075"), "output": Decimal("0.6")}
CHAT: dict[str, Any] = {"model": "gpt-4o-mini", "max_tokens": 30, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def vendor() -> AsyncIterator[tuple[BillingSimulator, TestClient[Any, Any]]]:
    made = BillingSimulator(Settings(), ADMIN, lambda _, __: RATES, limit_usd=20)
    async with TestClient(TestServer(made.app())) as client:
        yield made, client


def secret(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


async def bill_of(client: TestClient[Any, Any], now: float, key: str = ADMIN, **more: Any) -> Bill:
    fields = {"provider": "openai", "api_key": key, "base_url": str(client.make_url("/v1")), **more}
    way = Upstream(base_url="http://127.0.0.1:9")
    return await read_bill(BillSource.model_validate(fields), way, now, 40, waits=())


async def test_each_answer_is_billed_once_to_its_key(vendor: tuple[BillingSimulator, TestClient[Any, Any]]) -> None:
    made, client = vendor
    for key, body in ((OWN, CHAT), (OWN, CHAT | {"stream": True}), (OTHER, CHAT)):
        async with client.post("/v1/chat/completions", json=body, headers=secret(key)) as answer:
            await answer.read()
    message = {**CHAT, "model": "claude-sonnet-5"}
    async with client.post("/v1/messages", json=message, headers={"x-api-key": OWN}) as answer:
        used = (await answer.json())["usage"]
    async with client.post("/v1/chat/completions", json=CHAT | {"model": "gpt-9"}, headers=secret(OWN)) as answer:
        assert answer.status == 404
    (newest, *_) = made.ledger.as_json()["calls"][1:]
    bill = await bill_of(client, newest["time"], key_ids=[key_id(OWN)])
    ((_, chat), (_, claude)) = sorted(bill.rows.items(), key=lambda row: row[0][1], reverse=True)
    assert (chat.ours.requests, chat.others.requests) == (2, 1)
    assert chat.ours.tokens == tuple(2 * number for number in chat.others.tokens)
    fresh, _, output, _ = chat.ours.tokens
    assert (fresh, output) == (2 * 2, 60), "two tokens of prompt, for the role and the word"
    assert chat.ours.nusd == (fresh * 150, 0, output * 600, 0)
    assert claude.ours.tokens == (used["input_tokens"], 0, used["output_tokens"], 0)
    assert bill.account.limit_usd == 20
    assert made.sold.usd() * 10**9 == sum(sum(side.nusd) for billed in bill.rows.values() for side in billed)


async def test_an_answer_whose_client_leaves_is_billed_as_far_as_it_was_made(
    vendor: tuple[BillingSimulator, TestClient[Any, Any]],
) -> None:
    made, client = vendor
    body = CHAT | {"stream": True, "max_tokens": 4_000, "simulate": {"tokens_per_s": 200}}
    async with client.post("/v1/chat/completions", json=body, headers=secret(OWN)) as answer:
        await answer.content.readany()
        answer.close()
    while True:
        if calls := made.ledger.as_json()["calls"]:
            break
        await asyncio.sleep(0.01)
    (call,) = calls
    assert call["ended"] == "aborted"
    bill = await bill_of(client, call["time"])
    ((_, billed),) = bill.rows.items()
    assert billed.ours.tokens == (call["prompt_tokens"], 0, call["completion_tokens"], 0)
    assert 0 < call["completion_tokens"] < 4_000


async def test_its_pages_are_those_of_openai() -> None:
    from openai.types.admin.organization import UsageCompletionsResponse, UsageCostsResponse, UsageEmbeddingsResponse

    day, before = 20_000 * DAY_S, 19_990 * DAY_S
    sales = [
        Sale(day, "m", "key_1", (10, 5, 3), usd_of(RATES, (10, 5, 3)), tier="flex"),
        Sale(before + 7, "m", "key_1", (10, 5, 3), usd_of(RATES, (10, 5, 3)), tier="batch"),
        Sale(day, "e", "key_1", (10, 0, 0), usd_of(RATES, (10, 0, 0)), kind="embeddings"),
    ]
    made = BillingSimulator(Settings(), ADMIN, lambda _, __: RATES, lambda: sales)
    kinds = {"usage/completions": UsageCompletionsResponse, "costs": UsageCostsResponse,
             "usage/embeddings": UsageEmbeddingsResponse}  # fmt: skip
    async with TestClient(TestServer(made.app())) as client:
        for path, form in kinds.items():
            query = {"start_time": str(before), "end_time": str(day + DAY_S), "limit": "6"}
            pages = []
            while True:
                url = f"/v1/organization/{path}"
                async with client.get(url, params=query, headers=secret(ADMIN)) as answer:
                    pages.append(await answer.json())
                form.model_validate(pages[-1], strict=False)
                if not pages[-1]["has_more"]:
                    break
                query["page"] = pages[-1]["next_page"]
            assert [len(page["data"]) for page in pages] == [6, 5]
        bill = await bill_of(client, float(day))
        tiers = {name: billed.ours.special_tokens for name, billed in bill.rows.items()}
        assert tiers == {("2024-10-04", "m"): 18, ("2024-09-24", "m"): 18, ("2024-10-04", "e"): 0}
        with pytest.raises(BillFault, match="answers 401"):
            await bill_of(client, float(day), OWN)


def test_tokens_that_were_written_to_a_cache_have_a_price_of_their_own() -> None:
    rates = RATES | {"cache_write": Decimal(1), "cache_write_1h": Decimal(2)}
    assert usd_of(rates, (1_000_000, 0, 0), 100_000, 200_000)[0] == Decimal("0.7") * Decimal("0.15") + Decimal("0.5")
    assert usd_of(RATES, (1_000_000, 0, 0), 100_000)[0] == Decimal("0.15")
    assert usd_of(None, (1, 1, 1)) == (0, 0, 0)
