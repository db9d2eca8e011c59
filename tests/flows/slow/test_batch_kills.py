"""Batches whose workers and gateways are killed: charged once, by their results."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import StartsGateways, StartsProcesses
from tests.flows.house import children, eventually
from tests.flows.test_batches import config, line, made, served, settled, windows


@pytest.fixture
def simulator(process: StartsProcesses) -> str:
    return process("simulate", "--port", "0").wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]


def test_killed_workers_and_gateways_change_nothing(
    gateway: StartsGateways, simulator: str, store_url: str, tmp_path: Path
) -> None:
    given = config(simulator, store_url, journal_dir=str(tmp_path / "journal"))
    house = gateway(given)
    began = [made(house, line("a"), line("b"), metadata={"takes_s": "3"}) for _ in range(3)]
    for pid in children(house.process.pid):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: house.get("/v1/key").status == 200)
    house.expected_code = -signal.SIGKILL
    os.killpg(house.process.pid, signal.SIGKILL)
    house.wait()
    heir = gateway(given)
    for answer in began:
        settled(heir, answer)
    calls = served(simulator, *[answer.json["id"] for answer in began])
    assert len(calls) == 6
    spent = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
    assert windows(heir) == (spent, 0)
    assert sum(row["total_tokens"] for row in heir.usage()) == spent
