"""Who cancels or deletes a task is the key that submitted it, and what it reserved stays until its end is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.flows import task_rows as scenario
from tests.flows.gateway_process import Gateway

CHANGING: list[tuple[str, str]] = [
    (name, operation)
    for name, row in scenario.rows().items()
    for operation in row.get("read", ())
    if operation.startswith(("DELETE ", "POST ", "PUT ", "PATCH "))
]
"""Operations on one task that are no GET, by the row."""


def test_the_rows_that_cancel_are_known() -> None:
    assert sorted({row for row, _ in CHANGING}) == ["luma", "replicate", "runway", "videos"]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, simulated_port: int, store_url: str) -> Gateway:
    return start_shared_gateway(scenario.config(f"http://127.0.0.1:{simulated_port}", store_url))


@pytest.mark.parametrize(("row", "operation"), CHANGING, ids=[row for row, _ in CHANGING])
def test_only_the_owner_cancels_and_it_costs_nothing_more(gateway: Gateway, row: str, operation: str) -> None:
    settings: dict[str, Any] = scenario.rows()[row]
    made = scenario.submit(gateway, row, takes_s=600)
    task = scenario.id_in(row, made)
    method, _, path = operation.partition(" ")
    address = settings.get("prefix", "") + path.strip().format(task=task)
    before = scenario.spent(gateway)
    for spelling in (address, address.replace(task, task.upper()), address.replace(task, "unknown-" + task)):
        assert gateway.send(method, spelling, key="bob").status == 404
    assert scenario.read(gateway, row, task).status == 200
    answer = gateway.send(method, address)
    assert answer.status == (204 if row in ("runway", "luma") else 200)
    assert ("content-length" in answer.headers) == (answer.status != 204)
    assert scenario.spent(gateway) == before, "given back only by an end that the upstream shows"
