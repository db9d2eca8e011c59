"""Storage and sessions: usage without a model, whose cost is in line items without a model, and is counted once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.config import Upstream
from gateway.simulator import Settings
from gateway.wings.billing.account import read_bill
from gateway.wings.billing.bill import Bill, read, written
from gateway.wings.billing.compare import RecordedUsage
from gateway.wings.billing.explain import explain, total
from gateway.wings.billing.openai import service_of
from gateway.wings.billing.recorded import ComparedBill, services_of
from gateway.wings.billing.settings import BillSource
from gateway.wings.billing.simulated_vendor import DAY_S, BillingSimulator, Rates, Sale, SoldService, usd_of
from gateway.wings.billing.statement import notes, rows_of

from .vendors import ADMIN

RATES: Rates = {"input": Decimal("0.15"), "output": Decimal("0.6")}
NOON = 20_000 * DAY_S + DAY_S // 2
STORAGE = SoldService(
    NOON, "vector_stores", "usage_bytes", 3_221_225_472, "assistants api | file search", Decimal("0.2")
)
SESSIONS = SoldService(
    NOON, "code_interpreter_sessions", "num_sessions", 4, "assistants api | code interpreter", Decimal("0.12")
)
SEARCHES = SoldService(NOON, "file_search_calls", "num_requests", 2, "file search tool calls", Decimal("0.005"))


async def bill_of(*services: SoldService, **more: Any) -> Bill:
    made = BillingSimulator(Settings(), ADMIN, lambda _, __: RATES)
    made.sold.add(Sale(NOON, "m", "key_1", (1_000, 0, 100), usd_of(RATES, (1_000, 0, 100))))
    for service in services:
        made.sold.serve(service)
    async with TestClient(TestServer(made.app())) as client:
        fields = {"provider": "openai", "api_key": ADMIN, "base_url": str(client.make_url("/v1")), **more}
        way = Upstream(base_url="http://127.0.0.1:9")
        bill = await read_bill(BillSource.model_validate(fields), way, NOON + 40 * DAY_S, 90, waits=())
    assert sum(sum(side.nusd) for billed in bill.rows.values() for side in billed) == made.sold.usd() * 10**9
    return bill


def compared(bill: Bill, *, knows_keys: bool) -> ComparedBill:
    cost = 1_000 * 150 + 100 * 600
    records = {("2024-10-04", "m"): RecordedUsage(1, 0, 1_000, 100, cost_nusd=cost)}
    services = services_of(bill)
    rows = explain(records, bill.rows, open_from="2026-01-01", knows_keys=knows_keys, services=services)
    return ComparedBill("openai", bill, "2026-01-01", rows, services=services)


@pytest.mark.parametrize("knows_keys", [False, True])
async def test_line_items_without_a_model_are_storage_and_sessions(*, knows_keys: bool) -> None:
    keys = {"key_ids": ["key_1"]} if knows_keys else {}
    bill = await bill_of(STORAGE, SESSIONS, SEARCHES, **keys)
    each = compared(bill, knows_keys=knows_keys)
    searches = "unexplained" if knows_keys else "other_users"
    assert total(each.rows) == {"services": 320_000_000, searches: 5_000_000}
    rows = {row["model"]: row for row in rows_of([each])}
    assert {name: (row["bill_usd"], row["bill_storage_bytes"], row["bill_sessions"]) for name, row in rows.items()} == {
        "m": (0.00021, 0, 0), "assistants api | file search": (0.2, 3_221_225_472, 0),
        "assistants api | code interpreter": (0.12, 0, 4), "file search tool calls": (0.005, 0, 0),
    }  # fmt: skip
    found = notes([each])
    assert "openai states at most 3,221,225,472 bytes in vector stores on a day." in found
    assert "openai states 4 sessions of the code interpreter." in found
    assert read(written(bill)) == bill


async def test_a_line_item_whose_usage_is_not_stated_is_no_service() -> None:
    bill = await bill_of(STORAGE._replace(number=0), SESSIONS._replace(kind="another"))
    assert total(compared(bill, knows_keys=True).rows) == {"unexplained": 320_000_000}


async def test_usage_of_another_project_explains_nothing_of_ours() -> None:
    bill = await bill_of(STORAGE._replace(project="proj_other"), SESSIONS, projects=["proj_simulated"])
    assert bill.services == {("2024-10-04", "sessions"): 4}
    assert total(compared(bill, knows_keys=True).rows) == {"other_users": 200_000_000, "services": 120_000_000}


async def test_two_line_items_of_one_service_have_its_usage_once() -> None:
    more = STORAGE._replace(line_item="vector store storage", number=0)
    each = compared(await bill_of(STORAGE, more), knows_keys=True)
    assert total(each.rows) == {"services": 400_000_000}
    assert sum(row["bill_storage_bytes"] for row in rows_of([each])) == 3_221_225_472


async def test_its_pages_are_those_of_openai() -> None:
    from openai.types.admin.organization import (
        UsageCodeInterpreterSessionsResponse,
        UsageCostsResponse,
        UsageVectorStoresResponse,
    )

    made = BillingSimulator(Settings(), ADMIN, lambda _, __: RATES)
    made.sold.serve(STORAGE)
    made.sold.serve(SESSIONS)
    forms = {"usage/vector_stores": UsageVectorStoresResponse, "costs": UsageCostsResponse,
             "usage/code_interpreter_sessions": UsageCodeInterpreterSessionsResponse}  # fmt: skip
    async with TestClient(TestServer(made.app())) as client:
        for path, form in forms.items():
            query = {"start_time": str(20_000 * DAY_S), "end_time": str(20_001 * DAY_S)}
            headers = {"Authorization": f"Bearer {ADMIN}"}
            async with client.get(f"/v1/organization/{path}", params=query, headers=headers) as answer:
                page = form.model_validate(await answer.json(), strict=False)
            assert len(page.data[0].results) == (2 if path == "costs" else 1)


@pytest.mark.parametrize(
    ("line_item", "service"),
    [
        ("assistants api | file search", "storage_bytes"), ("Vector Store Storage", "storage_bytes"),
        ("vector_stores", "storage_bytes"), ("assistants api | code interpreter", "sessions"),
        ("code_interpreter_sessions", "sessions"), ("container usage", "sessions"), ("file search tool calls", None),
        ("gpt-4o-mini", None), ("web search tool calls", None), ("evals | gpt-4o", None),
    ],
)  # fmt: skip
def test_the_service_of_a_line_item(line_item: str, service: str | None) -> None:
    assert service_of(line_item) == service
