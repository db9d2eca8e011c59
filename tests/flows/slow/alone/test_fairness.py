"""Two gateways with two workers each on one Redis share what an upstream gives. Judged by the upstream's own log, and
by how long the calls of the same clients take without the others."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.queueing.waiting_room import EXCHANGE_S
from tests.flows.gateway_process import key
from tests.flows.sharing import (
    SCENES,
    TIMES_LEFT,
    GatewayPair,
    Scenario,
    Upstream,
    at_percent,
    excess,
    measure,
    together,
)

WORKERS = 4
IN_TRANSIT = 4
"""Calls by which the bucket of an upstream may be overrun, because some take longer than others on their way there."""


@pytest.mark.parametrize("scenario", SCENES, ids=lambda scenario: scenario.name)
def test_a_flood_of_batch_calls_takes_what_is_left(tmp_path: Path, scenario: Scenario) -> None:
    found = measure(scenario, tmp_path, 20, 40)
    assert found.beyond <= (0 if "parallel" in scenario.limits else IN_TRANSIT)
    assert found.used > 0.95
    assert found.times_left > 0.8 * TIMES_LEFT  # by what was left without the flood
    assert len(found.overtaken) >= 30
    assert {status for who, status in found.statuses if who == "human"} == {200}
    assert at_percent(found.overtaken, 95) <= scenario.overtaken
    if scenario.is_quick:
        assert at_percent(found.flooded_s, 95) < 1.5 * at_percent(found.alone_s, 95)


def test_shares_follow_weights_over_a_minute_and_no_key_starves(tmp_path: Path) -> None:
    rate, seconds, weights = 40, 62.0, {"one": 1, "two": 2, "five": 5}
    total = sum(weights.values())
    with ExitStack() as stack:
        keys = [key(name, weight=weight) for name, weight in weights.items()]
        pair = GatewayPair(stack, tmp_path, Upstream(0.02), {"requests": f"{rate}/s"}, *keys)
        began = time.monotonic()
        until = began + seconds
        together(
            *[lambda http, name=name: pair.backlog(http, name, 40, until) for name in weights]  # type: ignore[misc]
        )
        log = pair.upstream.between(began + 2, until)
        for gateway in pair.gateways:
            gateway.stop()
    counts = Counter(who.partition(":")[0] for _, who in log)
    assert len(log) >= 0.95 * rate * (seconds - 2)
    assert excess([at for at, _ in log], rate, rate) <= IN_TRANSIT
    for name, weight in weights.items():
        assert counts[name] / len(log) == pytest.approx(weight / total, rel=0.05), counts
        bound_s = WORKERS * total / weight / rate + 2 * EXCHANGE_S + (len(weights) - 1 + IN_TRANSIT) / rate
        times = [began + 2, *[at for at, who in log if who.startswith(name)], until]
        assert max(after - before for before, after in pairwise(times)) <= bound_s, name
