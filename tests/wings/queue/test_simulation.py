"""Several workers share one upstream: the scheduler as it is, a bucket in the place of the store, a clock that a test
moves. What holds of order and shares over all workers is shown here (docs/fairness.md)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from gateway.api.auth import FACTORS
from gateway.wings.queue.fair_queue import FairQueue, Waiting
from gateway.wings.queue.waiting_room import EXCHANGE_S
from tests.amounts import amount

STEP_S = 0.01
RATE = 100
"""Units per second of the upstream."""
MINUTE_S = amount(60, 20)

pytestmark = pytest.mark.shortened


def never(_: Waiting) -> bool:
    return False


@dataclass
class Worker:
    name: str
    queue: FairQueue
    exchanges_at: float
    born: dict[int, float] = field(default_factory=dict)


class World:
    """Workers on one upstream of `RATE` tokens a second. Each may ask once in a step, in an order of chance."""

    def __init__(self, workers: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.level = 0.0
        self.posts: dict[str, str] = {}
        self.workers = [
            Worker(f"w{number}", FairQueue(f"q{number}"), self.chance.uniform(0, EXCHANGE_S))
            for number in range(workers)
        ]
        self.served: Counter[str] = Counter()
        self.waits: dict[str, list[float]] = {}
        self.total = 0

    def arrive(self, flow: str, cost: int, weight: float, worker: int | None = None) -> None:
        at = self.chance.choice(self.workers) if worker is None else self.workers[worker]
        call = Waiting(flow, weight, cost)
        at.queue.add(call)
        at.born[call.number] = self.now

    def step(self) -> None:
        self.now += STEP_S
        self.level = max(0.0, self.level - RATE * STEP_S)
        for worker in self.workers:
            if self.now >= worker.exchanges_at:
                worker.exchanges_at = self.now + EXCHANGE_S
                self.posts[worker.name] = worker.queue.post(self.has_no_place)
                others = {name: text for name, text in self.posts.items() if name != worker.name}
                worker.queue.read(others, self.now)
        for worker in self.chance.sample(self.workers, len(self.workers)):
            self._ask(worker)

    def has_no_place(self, _: Waiting) -> bool:
        """Whether a limit of some calls alone is in the way of this one."""
        return False

    def _ask(self, worker: Worker) -> None:
        queue = worker.queue
        if (call := queue.pick(never, self.now)) is None:
            return
        queue.begin_turn(call)
        if self.level + call.cost > RATE:  # the bucket holds a second's worth
            queue.end_turn(call, has_room=False, waits_on=True)
            return
        queue.end_turn(call, has_room=True)
        self.level += call.cost
        self.total += call.cost
        self.served[call.flow] += call.cost
        self.waits.setdefault(call.flow, []).append(self.now - worker.born.pop(call.number))

    def backlog(self, flow: str) -> int:
        return sum(dict(worker.queue.flows()).get(flow, 0) for worker in self.workers)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("seed", amount([1, 2], [1]))
def test_shares_follow_weights_over_a_minute(workers: int, seed: int) -> None:
    world = World(workers, seed)
    weights = {"a": 1, "b": 2, "c": 5}
    for _ in range(int(MINUTE_S / STEP_S)):
        for flow, weight in weights.items():
            while world.backlog(flow) < 40:
                world.arrive(flow, world.chance.randint(1, 9), weight)
        world.step()
    assert world.total > 0.95 * RATE * MINUTE_S
    for flow, weight in weights.items():
        assert world.served[flow] / world.total == pytest.approx(weight / sum(weights.values()), rel=0.05)


@pytest.mark.parametrize("workers", [2, 4])
def test_shares_hold_where_the_flows_come_to_different_workers(workers: int) -> None:
    world = World(workers, 7)
    for _ in range(int(MINUTE_S / STEP_S)):
        for worker, (flow, weight) in enumerate([("a", 1), ("b", 3)]):
            while world.backlog(flow) < 40:
                world.arrive(flow, 5, weight, worker)
        world.step()
    assert world.total > 0.95 * RATE * MINUTE_S
    assert world.served["a"] / world.total == pytest.approx(0.25, rel=0.05)


def test_interactive_calls_pass_a_flood_of_batch_calls_on_all_workers() -> None:
    world = World(4, 3)
    for step in range(int(MINUTE_S / STEP_S)):
        while world.backlog("batch") < 400:
            world.arrive("batch", 10, FACTORS["batch"])
        if step % 20 == 0:  # ten keys, each a call in two seconds: half of what there is
            world.arrive(f"human-{step // 20 % 10}", 10, FACTORS["interactive"])
        world.step()
    waits = sorted(wait for flow, all_of in world.waits.items() if flow != "batch" for wait in all_of)
    assert waits[len(waits) * 95 // 100] < 0.35  # of which a call takes 0.1 s
    assert waits[-1] < 0.8  # the bound: two exchanges, one call of each worker, and other interactive calls
    assert world.total > 0.95 * RATE * MINUTE_S
    assert world.served["batch"] > 0.4 * RATE * MINUTE_S  # all that is left


COST, HEAVY = 5, 3
WEIGHT = HEAVY * FACTORS["interactive"] + FACTORS["batch"]


def starving(world: World, light_at: int | None = None, heavy_at: int | None = None) -> tuple[list[float], float]:
    """A batch key beside interactive keys that wait all the time, each at this worker, or at all: the times between two
    of its calls, and the bound of docs/fairness.md: what all keys get while a call of this one is paid for, once for
    each worker."""
    workers, last, gaps = len(world.workers), 0.0, []
    bound_s = workers * COST * WEIGHT / FACTORS["batch"] / RATE + 2 * EXCHANGE_S + HEAVY * COST / RATE
    for _ in range(int(MINUTE_S / STEP_S)):
        for flow in [f"heavy-{number}" for number in range(HEAVY)]:
            while world.backlog(flow) < 40:
                world.arrive(flow, COST, FACTORS["interactive"], heavy_at)
        while world.backlog("light") < 2 * workers:
            world.arrive("light", COST, FACTORS["batch"], light_at)
        before = world.served["light"]
        world.step()
        if world.served["light"] > before:
            gaps.append(world.now - last)
            last = world.now
    assert len(gaps) > MINUTE_S / bound_s
    return [*gaps, world.now - last], bound_s


@pytest.mark.parametrize("workers", amount([1, 2, 4], [1, 2]))  # four workers need the whole minute
def test_no_flow_starves_for_longer_than_its_share_takes(workers: int) -> None:
    gaps, bound_s = starving(world := World(workers, 5))
    assert max(gaps) <= bound_s
    assert world.served["light"] / world.total == pytest.approx(FACTORS["batch"] / WEIGHT, rel=0.1)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("seed", amount([1, 2, 3], [1]))
def test_no_flow_starves_that_comes_to_another_worker_than_the_others(workers: int, seed: int) -> None:
    """Until the workers have heard of each other the light flow gets more than its share: it pays no more back than a
    call."""
    gaps, bound_s = starving(World(workers, seed), 0, workers - 1)
    assert max(gaps) <= bound_s


LENGTH_S = 1.0
"""How long a call holds its place."""


class Slots(World):
    """Workers on an upstream with so many places, of which some are for interactive calls alone."""

    def __init__(self, workers: int, seed: int, places: int, reserved: int, *, is_even: bool) -> None:
        super().__init__(workers, seed)
        self.places, self.reserved, self.is_even = places, reserved, is_even
        self.ends: list[float] = []
        self.held_s = 0.0

    def step(self) -> None:
        self.ends = [end for end in self.ends if end > self.now + STEP_S]
        super().step()
        self.held_s += len(self.ends) * STEP_S

    def has_no_place(self, call: Waiting) -> bool:
        return bool(self.reserved) and call.flow == "batch" and len(self.ends) >= self.places - self.reserved

    def _ask(self, worker: Worker) -> None:
        while len(self.ends) < self.places and (call := worker.queue.pick(self.has_no_place, self.now)) is not None:
            worker.queue.begin_turn(call)
            worker.queue.end_turn(call, has_room=True)
            length_s = LENGTH_S if self.is_even else LENGTH_S * self.chance.uniform(0.5, 1.5)
            self.ends.append(self.now + length_s)
            self.waits.setdefault(call.flow, []).append(self.now - worker.born.pop(call.number))


def flooded(world: Slots, batch_at: int, seconds: int) -> list[float]:
    """A flood of batch calls at so many of the workers, while ten interactive keys use four tenths of the places. How
    long the interactive calls waited, in order."""
    per_s = 0.4 * world.places / LENGTH_S
    coming = world.chance.expovariate(per_s)
    for _ in range(int(seconds / STEP_S)):
        while world.backlog("batch") < 60:
            world.arrive("batch", 10, FACTORS["batch"], world.chance.randrange(batch_at))
        while coming < world.now:
            world.arrive(f"human-{world.chance.randrange(10)}", 10, FACTORS["interactive"])
            coming += world.chance.expovariate(per_s)
        world.step()
    return sorted(wait for flow, all_of in world.waits.items() if flow != "batch" for wait in all_of)


@pytest.mark.parametrize(
    ("places", "reserved", "is_even", "wait_s", "used"),
    [
        (8, 0, True, (0.8, 1.1), 0.97),  # the calls that began together end together: a whole call is waited for
        (20, 0, False, (0.2, 0.6), 0.98),
        (20, 1, False, (0.1, 0.4), 0.95),
        (50, 1, False, (0.0, 0.2), 0.97),
    ],
)
def test_how_long_an_interactive_call_waits_for_one_of_some_places(
    places: int, reserved: int, is_even: bool, wait_s: tuple[float, float], used: float
) -> None:
    """The table of docs/fairness.md."""
    world, seconds = Slots(4, 3, places, reserved, is_even=is_even), 20
    waits = flooded(world, 4, seconds)
    assert wait_s[0] <= waits[len(waits) * 95 // 100] <= wait_s[1]
    assert world.held_s / seconds / places > used


@pytest.mark.parametrize("places", [8, 20, 50])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_workers_do_not_wait_for_each_other_where_one_alone_has_the_flood(places: int, seed: int) -> None:
    """Two workers compare the same two counters, so that the call that goes first by one of them is held back by
    none."""
    world, seconds = Slots(4, seed, places, 0, is_even=False), 10
    flooded(world, 1, seconds)
    assert world.held_s / seconds / places > 0.95
