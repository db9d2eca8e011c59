"""Two gateways with two workers each on one Redis share what an upstream gives. Judged by counts, shares and order in
the upstream's own log."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.flows.house import key
from tests.flows.sharing import House, Upstream, at_percent, crowd, excess, overtaken, together

RATE = 20
SECONDS = 20.0
IN_TRANSIT = 4
"""Calls by which the bucket of an upstream may be overrun, because some take longer than others on their way there."""


@pytest.mark.parametrize(
    ("limits", "serves_for_s"), [({"requests": f"{RATE}/s"}, 0.02), ({"parallel": 8}, 0.4)], ids=["rate", "parallel"]
)
def test_a_flood_of_batch_calls_takes_what_is_left(tmp_path: Path, limits: dict[str, Any], serves_for_s: float) -> None:
    with ExitStack() as stack:
        house = House(stack, tmp_path, Upstream(serves_for_s), limits, key("batch", priority="batch"))
        seen, log = crowd(house, SECONDS, 50 * RATE / 4)
        passed = overtaken(house.upstream.arrivals, seen.sent)
        if "parallel" in limits:
            assert house.upstream.most_inside == limits["parallel"]
        else:
            assert excess([at for at, _ in log], RATE, RATE) <= IN_TRANSIT
            assert len(log) >= 0.95 * RATE * (SECONDS - 1)
        assert len(passed) >= 20
        assert {status for who, status in house.statuses if who == "human"} == {200}
        assert at_percent(passed, 95) <= RATE / 2  # of 400 waiting calls
        assert sum(who.startswith("batch") for _, who in log) > len(log) / 2
        for gateway in house.gateways:
            gateway.stop()


def test_shares_follow_weights(tmp_path: Path) -> None:
    rate, seconds, weights = 40, 30.0, {"one": 1, "two": 2, "five": 5}
    with ExitStack() as stack:
        keys = [key(name, weight=weight) for name, weight in weights.items()]
        house = House(stack, tmp_path, Upstream(0.02), {"requests": f"{rate}/s"}, *keys)
        began = time.monotonic()
        until = began + seconds
        together(
            *[lambda http, name=name: house.backlog(http, name, 40, until) for name in weights]  # type: ignore[misc]
        )
        log = [arrival for arrival in house.upstream.since(began + 2) if arrival[0] < until]
        counts = Counter(who.partition(":")[0] for _, who in log)
        assert len(log) >= 0.95 * rate * (seconds - 2)
        assert excess([at for at, _ in log], rate, rate) <= IN_TRANSIT
        for name, weight in weights.items():
            assert counts[name] / len(log) == pytest.approx(weight / sum(weights.values()), rel=0.05), counts
        for gateway in house.gateways:
            gateway.stop()
