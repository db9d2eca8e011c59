"""A run of `bench.bill` that finds no fault has looked: it notices what is lost, wrong or explained wrongly."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from bench.bill.plan import DEARER, KILL_BLOCK, KILLS, SHARES, UNPAID, Kind, PlannedCall, planned
from bench.bill.verdict import Verdict, judge
from gateway.wings.billing.explain import CAUSES
from gateway.wings.billing.simulated_vendor import Sale

MODEL = "gpt-4o-mini"
KINDS = {1: Kind.WHOLE, 2: Kind.LEFT, 3: Kind.UNPAID, 4: Kind.OTHER}
MODELS = {1: DEARER, 2: MODEL, 3: UNPAID, 4: MODEL}


def sale(model: str, prompt: int, dollars: str) -> list[Sale]:
    return [Sale(0.0, model, "key", (prompt, 0, 0), (Decimal(dollars), Decimal(0), Decimal(0)))]


SALES = {1: sale(DEARER, 1_000, "0.0036"), 2: sale(MODEL, 1_000, "0.00015"), 3: sale(UNPAID, 1_000, "0.0004"),
         4: sale(MODEL, 10_000, "0.0015")}  # fmt: skip
RECORDS = {
    1: {"client_request_id": "1", "cost_usd": 0.003, "usage_source": "reported"},
    2: {"client_request_id": "2", "cost_usd": 0.00018, "usage_source": "estimated"},
    3: {"client_request_id": "3", "cost_usd": None, "usage_source": "none"},
}
CAUSED = {"price": 0.0006, "estimated": -0.00003, "not_arrived": 0.0004, "other_users": 0.0015}


def row(**more: Any) -> dict[str, Any]:
    causes = {f"{cause}_usd": CAUSED.get(cause, 0.0) for cause in CAUSES}
    return {"day": "2026-11-29", "model": "all", "bill_usd": 0.00565, "recorded_usd": 0.00318,
            "difference_usd": 0.00247, **causes, **more}  # fmt: skip


def verdict(records: dict[int, dict[str, Any]] = RECORDS, **more: Any) -> Verdict:
    plan = [PlannedCall(number, kind, MODELS[number], {}) for number, kind in KINDS.items()]
    return judge(plan, SALES, records.values(), [row(**more)])


def test_a_run_that_is_explained_has_no_complaint() -> None:
    found = verdict()
    assert found.complaints == []
    assert {cause: amount / 1e9 for cause, amount in found.injected.items()} == CAUSED
    assert (found.bill, found.recorded) == (5_650_000, 3_180_000)


@pytest.mark.parametrize(
    ("records", "more", "words"),
    [
        (
            {1: RECORDS[1], 2: RECORDS[2]},
            {},
            "call 3 (billed, and answered with an error) was billed and has no",
        ),
        ({**RECORDS, 1: RECORDS[1] | {"cost_usd": 0.001}}, {}, "is recorded at 1000000 and billed at 3000000"),
        (RECORDS, {"bill_usd": 0.00566}, "the causes sum up to 2470000, the difference is 2480000"),
        (RECORDS, {"bill_usd": 0.006, "recorded_usd": 0.00353}, "but the calls sum up to 5650000 and 3180000"),
        (RECORDS, {"not_arrived_usd": 0.00039, "unexplained_usd": 0.00001}, "10000 of 5650000 is unexplained"),
        (RECORDS, {"not_arrived_usd": 0.0003, "price_usd": 0.0007}, "price: 700000 is explained, 600000 was injected"),
        (RECORDS, {"tier_usd": 0.000001, "price_usd": 0.000599}, "tier: 1000 is explained, 0 was injected"),
    ],
)
def test_what_is_wrong_is_a_complaint(records: dict[int, dict[str, Any]], more: dict[str, float], words: str) -> None:
    assert any(words in each for each in verdict(records, **more).complaints)


def test_a_plan_has_all_kinds_of_calls_and_each_number_once() -> None:
    blocks = list(planned(2_000, 1))
    calls = [call for block in blocks for call in block.calls]
    assert [call.number for call in calls] == list(range(2_000))
    assert [len(block.calls) for block in blocks if block.is_killed] == [KILL_BLOCK] * KILLS
    assert {(call.kind, call.model) for call in calls} == {*SHARES, (Kind.KILLED, MODEL)}
    assert {call.path for call in calls} > {"/v1/messages", "/v1/embeddings", "/v1/responses", "/v1/completions"}
