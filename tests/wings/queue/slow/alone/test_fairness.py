"""Two gateways with two workers each on one Redis share what an upstream gives. Judged by the upstream's own log.
A call that few others overtake while the limit is used whole waits for no more than those; `tests.flows.sharing` prints
the times.

Each run takes a minute and a third of a core: two of them run at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.wings.queue.waiting_room import EXCHANGE_S
from tests.flows.gateway_process import key
from tests.flows.sharing import (
    SCENES,
    TIMES_LEFT,
    Found,
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


USED = 0.85
"""Of a limit, at least: less is left where the callers, which share the machine's cores, cannot ask for all of it."""

AT_ONCE = 2
RATE, WEIGHTS = 40, {"one": 1, "two": 2, "five": 5}


class Runs(NamedTuple):
    floods: dict[str, Future[Found]]
    """By name of the scenario."""
    shares: Future[Shared]


class Shared(NamedTuple):
    """What came to the upstream for three keys that wait all the time."""

    log: list[tuple[float, str]]
    since: float
    until: float


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        floods = {
            scenario.name: threads.submit(measure, scenario, tmp_path_factory.mktemp("flood"), 20, 40)
            for scenario in SCENES
        }
        yield Runs(floods, threads.submit(share, tmp_path_factory.mktemp("share"), 62.0))


def share(folder: Path, seconds: float) -> Shared:
    """40 calls of each key of `WEIGHTS` at a time, for so many seconds; the first two are not judged."""
    with ExitStack() as stack:
        keys = [key(name, weight=weight) for name, weight in WEIGHTS.items()]
        pair = GatewayPair(stack, folder, Upstream(0.02), {"requests": f"{RATE}/s"}, *keys)
        since = time.monotonic() + 2
        until = since - 2 + seconds
        together(
            *[lambda http, name=name: pair.backlog(http, name, 40, until) for name in WEIGHTS]  # type: ignore[misc]
        )
        for gateway in pair.gateways:
            gateway.stop()
        return Shared(pair.upstream.between(since, until), since, until)


@pytest.mark.parametrize("scenario", SCENES, ids=lambda scenario: scenario.name)
def test_a_flood_of_batch_calls_takes_what_is_left(runs: Runs, scenario: Scenario) -> None:
    found = runs.floods[scenario.name].result()
    assert found.beyond <= (0 if "parallel" in scenario.limits else IN_TRANSIT)
    assert found.used > USED
    assert found.times_left > 0.8 * TIMES_LEFT  # by what was left without the flood
    assert len(found.overtaken) >= 30
    assert {status for who, status in found.statuses if who == "human"} == {200}
    assert at_percent(found.overtaken, 95) <= scenario.overtaken


def test_shares_follow_weights_over_a_minute_and_no_key_starves(runs: Runs) -> None:
    log, since, until = runs.shares.result()
    total = sum(WEIGHTS.values())
    counts = Counter(who.partition(":")[0] for _, who in log)
    assert len(log) >= USED * RATE * (until - since)
    assert excess([at for at, _ in log], RATE, RATE) <= IN_TRANSIT
    for name, weight in WEIGHTS.items():
        assert counts[name] / len(log) == pytest.approx(weight / total, rel=0.05), counts
        bound_s = WORKERS * total / weight / RATE + 2 * EXCHANGE_S + (len(WEIGHTS) - 1 + IN_TRANSIT) / RATE
        times = [since, *[at for at, who in log if who.startswith(name)], until]
        assert max(after - before for before, after in pairwise(times)) <= bound_s, name
