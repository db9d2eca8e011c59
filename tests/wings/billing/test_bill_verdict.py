"""A run of `bench.bill` that finds no fault has looked: it notices what is lost, wrong or explained wrongly."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from bench.bill.plan import DEARER, KILL_BLOCK, KILLS, REPEATED, SHARES, UNPAID, Kind, PlannedCall, planned
from bench.bill.verdict import Verdict, judge
from gateway.wings.billing.explain import CAUSES
from gateway.wings.billing.simulated_vendor import Sale

MODEL = "gpt-4o-mini"
KINDS = {1: Kind.WHOLE, 2: Kind.LEFT, 3: Kind.UNPAID, 4: Kind.OTHER, 5: Kind.REPEATED}
MODELS = {1: DEARER, 2: MODEL, 3: UNPAID, 4: MODEL, 5: REPEATED}


def sale(model: str, prompt: int, dollars: str) -> list[Sale]:
    return [Sale(0.0, model, "key", (prompt, 0, 0), (Decimal(dollars), Decimal(0), Decimal(0)))]


SALES = {1: sale(DEARER, 1_000, "0.0036"), 2: sale(MODEL, 1_000, "0.00015"), 3: sale(UNPAID, 1_000, "0.0004"),
         4: sale(MODEL, 10_000, "0.0015"),
         5: sale(REPEATED, 1_000, "0.00025") + sale(REPEATED, 1_000, "0.00025")}  # fmt: skip
RECORDS = {
    1: {"client_request_id": "1", "cost_usd": 0.003, "usage_source": "reported"},
    2: {"client_request_id": "2", "cost_usd": 0.00018, "usage_source": "estimated"},
    3: {"client_request_id": "3", "cost_usd": None, "usage_source": "none"},
    5: {"client_request_id": "5", "cost_usd": 0.00025, "usage_source": "reported"},
}
CAUSED = {"price": 0.0006, "estimated": -0.00003, "not_arrived": 0.0004, "other_users": 0.0015,
          "repeated": 0.00025}  # fmt: skip


def row(**more: Any) -> dict[str, Any]:
    causes = {f"{cause}_usd": CAUSED.get(cause, 0.0) for cause in CAUSES}
    return {"day": "2026-11-29", "model": "all", "bill_usd": 0.00615, "recorded_usd": 0.00343,
            "difference_usd": 0.00272, **causes, **more}  # fmt: skip


def verdict(records: dict[int, dict[str, Any]] = RECORDS, **more: Any) -> Verdict:
    plan = [PlannedCall(number, kind, MODELS[number], {}) for number, kind in KINDS.items()]
    return judge(plan, SALES, records.values(), [row(**more)])


def test_a_run_that_is_explained_has_no_complaint() -> None:
    found = verdict()
    assert found.complaints == []
    assert {cause: amount / 1e9 for cause, amount in found.injected.items()} == CAUSED
    assert (found.bill, found.recorded) == (6_150_000, 3_430_000)


@pytest.mark.parametrize(
    ("records", "more", "words"),
    [
        (
            {number: RECORDS[number] for number in (1, 2, 5)},
            {},
            "call 3 (billed, and answered with an error) was billed and has no",
        ),
        ({**RECORDS, 1: RECORDS[1] | {"cost_usd": 0.001}}, {}, "is recorded at 1000000 and billed at 3000000"),
        (RECORDS, {"bill_usd": 0.00616}, "the causes sum up to 2720000, the difference is 2730000"),
        (RECORDS, {"bill_usd": 0.0065, "recorded_usd": 0.00378}, "but the calls sum up to 6150000 and 3430000"),
        (RECORDS, {"not_arrived_usd": 0.00039, "unexplained_usd": 0.00001}, "10000 of 6150000 is unexplained"),
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
