"""Tasks are settled once and failed ones refunded once, whichever process is killed; the sums agree with the
upstream's."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.flows import task_rows as scenario
from tests.flows.gateway_process import Gateway, eventually
from tests.flows.killing import kill_all, store, upstream_port
from tests.flows.task_rows import POLLED

__all__ = ["store", "upstream_port"]

WORK_S, KILLS = 12.0, 3
SETTLED_S = 90.0
PAUSE_S = 0.1
"""Between submissions: a gateway polls `POLLS_AT_ONCE` tasks a second."""


def test_a_gateway_is_killed(start_gateway: StartsGateways, upstream_port: int, store: dict[str, str]) -> None:
    config = scenario.config(f"http://127.0.0.1:{upstream_port}", **store)
    first = start_gateway(config)
    good = [(row, scenario.submit(first, row, takes_s=8)) for row in POLLED]
    bad = [(row, scenario.submit(first, row, takes_s=8, fails=True)) for row in POLLED]
    reserved = scenario.spent(first)[1]
    assert reserved > 0
    kill_all(first)
    second = start_gateway(config)
    assert reserved * 0.49 < sum(scenario.spent(second)) < reserved * 1.01  # some tasks may have ended meanwhile
    for row, made in good[:3]:
        assert scenario.read(second, row, scenario.id_in(row, made)).status == 200
        assert scenario.read(second, row, scenario.id_in(row, made), "bob").status == 404
    paid = [scenario.settled(second, made.id, SETTLED_S)["cost_usd"] for _, made in good]
    given_back = [scenario.settled(second, made.id, SETTLED_S) for _, made in bad]
    assert [(each["cost_usd"], each["units"]) for each in given_back] == [(0, {})] * len(bad)
    eventually(lambda: scenario.spent(second)[1] == 0)
    assert scenario.spent(second)[0] == pytest.approx(sum(paid)) == pytest.approx(reserved / 2)
    assert scenario.ledger(upstream_port)["totals"]["tasks"] == len(good)


def test_workers_are_killed(start_gateway: StartsGateways, upstream_port: int, store: dict[str, str]) -> None:
    """For each answered task, the gateway's record and the upstream's agree."""
    gateway = start_gateway(scenario.config(f"http://127.0.0.1:{upstream_port}", **store))
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice, numbers = random.Random(seed), itertools.count()
    answered: dict[str, bool] = {}
    end, killed, next_kill = time.monotonic() + WORK_S, 0, time.monotonic() + 1
    while time.monotonic() < end:
        number = next(numbers)
        row, fails = POLLED[number % len(POLLED)], number % 3 == 0
        with contextlib.suppress(OSError, ValueError):
            made = scenario.submit(gateway, row, takes_s=dice.uniform(0, 4), fails=fails)
            if made.status in (200, 201):
                answered[made.id] = fails
        time.sleep(PAUSE_S)
        if time.monotonic() > next_kill and killed < KILLS and len(workers := gateway.workers()) == 2:
            os.kill(dice.choice(workers), signal.SIGKILL)
            killed, next_kill = killed + 1, time.monotonic() + dice.uniform(1, 3)
    assert killed
    eventually(lambda: scenario.spent(gateway)[1] == 0 and not scenario.ledger(upstream_port)["open"], SETTLED_S, 1)
    records = {each["id"]: each for each in gateway.calls(limit=10_000)}
    assert len(records) == len(gateway.calls(limit=10_000))
    for request_id, fails in answered.items():
        record = records[request_id]
        assert (record["cost_usd"] == 0, not record["units"]) == (fails, fails)
    lost = [each for each in records.values() if each["ended"] == "lost"]
    paid = [each for each in records.values() if each["ended"] == "done" and each["units"]]
    received = scenario.ledger(upstream_port)["totals"]
    assert len(paid) <= received["tasks"] <= len(paid) + len(lost)
    assert scenario.spent(gateway)[0] == pytest.approx(sum(each["cost_usd"] or 0 for each in records.values()))


def test_two_gateways_and_their_clients_settle_once(
    start_gateway: StartsGateways, upstream_port: int, tmp_path: Path, redis_server: RedisServer
) -> None:
    """The poller of one gateway and clients of both see the end at the same time."""
    url = f"http://127.0.0.1:{upstream_port}"
    gateways = [
        start_gateway(scenario.config(url, redis_server.url, journal_dir=str(tmp_path / str(at)))) for at in range(2)
    ]
    made = [
        (row, scenario.submit(gateways[at % 2], row, takes_s=1.5, fails=at % 2 == 0))
        for at, row in enumerate(POLLED * 2)
    ]
    until = time.monotonic() + 4

    def watch(gateway: Gateway) -> None:
        while time.monotonic() < until:
            for row, each in made:
                assert scenario.read(gateway, row, scenario.id_in(row, each)).status == 200

    with ThreadPoolExecutor(4) as pool:
        for watcher in [pool.submit(watch, gateway) for gateway in gateways * 2]:
            watcher.result()
    for at, (_, each) in enumerate(made):
        record = scenario.settled(gateways[at % 2], each.id, SETTLED_S)
        assert (record["cost_usd"] == 0) is (at % 2 == 0)
    eventually(lambda: scenario.spent(gateways[0])[1] == 0)
    records = [each for each in gateways[1].calls(limit=100_000) if not each["model"].endswith("/reads")]
    assert len(records) == len(made)
    assert scenario.spent(gateways[0])[0] == pytest.approx(sum(each["cost_usd"] for each in records))
    assert scenario.ledger(upstream_port)["totals"]["tasks"] == len(made) / 2
