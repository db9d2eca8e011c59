"""Each ready row of config/tasks.yaml through a whole gateway: submission, reads, end, failure and refusal."""

from __future__ import annotations

import pytest

from tests.conftest import StartsGateways
from tests.flows import task_rows as scene
from tests.flows.house import UPSTREAM_KEY, Gateway, check
from tests.flows.task_rows import POLLED, SUBMISSIONS


@pytest.fixture(scope="module")
def house(gateways: StartsGateways, simulated_port: int, store_url: str) -> Gateway:
    return gateways(scene.config(f"http://127.0.0.1:{simulated_port}", store_url))


@pytest.mark.parametrize("row", SUBMISSIONS)
def test_a_task_is_submitted_read_and_paid(house: Gateway, simulated_port: int, row: str) -> None:
    asked = SUBMISSIONS[row]
    before, told_before = scene.spent(house)[0], scene.ledger(simulated_port)["totals"]["tasks"]
    made = scene.submit(house, row, takes_s=0.3)
    assert made.status in (200, 201)
    assert UPSTREAM_KEY not in str(made)
    if asked.read:
        task = scene.id_in(row, made)
        assert scene.spent(house)[1] > 0
        assert scene.read(house, row, task).status == 200
        other, unknown = scene.read(house, row, task, "bob"), scene.read(house, row, f"{task}0" if task else "")
        assert (other.status, unknown.status) == (404, 404)
        assert other.error["code"] == unknown.error["code"] == "task_not_found"
    record = scene.settled(house, made.id)
    check(
        record, endpoint=row, model=asked.model, units=asked.units, status=200, ended="done", usage_source="reported",
        upstream="main", key="alice", stream=False,
    )  # fmt: skip
    assert record["cost_usd"] > 0
    assert scene.spent(house) == (pytest.approx(before + record["cost_usd"]), 0)
    assert scene.ledger(simulated_port)["totals"]["tasks"] == told_before + 1


@pytest.mark.parametrize("row", POLLED)
def test_a_failed_task_is_given_back_once(house: Gateway, row: str) -> None:
    before = scene.spent(house, "bob")[0]
    made = scene.submit(house, row, "bob", takes_s=0.2, fails=True)
    task = scene.id_in(row, made)
    assert scene.spent(house, "bob")[1] > 0
    record = scene.settled(house, made.id)
    check(record, endpoint=row, units={}, status=502, ended="error", cost_usd=0)
    for _ in range(3):
        assert scene.read(house, row, task, "bob").status == 200
    assert scene.spent(house, "bob") == (before, 0)
    assert len(scene.records(house, made.id)) == 1


@pytest.mark.parametrize("row", POLLED)
def test_a_refused_submission_costs_nothing(house: Gateway, row: str) -> None:
    before = scene.spent(house, "bob")
    made = scene.submit(house, row, "bob", refuses=True)
    check(scene.settled(house, made.id), units={})
    assert scene.spent(house, "bob") == before
