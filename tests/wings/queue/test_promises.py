"""A time after which a call is asked to come back is a promise: a call that comes then is served."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.quota import windows
from gateway.records import Claim, Refused, Window, WindowState
from gateway.wings.queue.fair_queue import Identity, Waiting
from gateway.wings.queue.promises import KEPT_S, MAX_OF_FLOW, MAX_OF_LINE, Promise, Promises
from gateway.wings.queue.settings import QueueSettings
from gateway.wings.queue.waiting_room import WaitingRoom

ENDS_AT = 20.0


class Skipping(selectors.DefaultSelector):
    """Waits in no time: a clock jumps instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen"
        self.now += timeout
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.skipping = Skipping()
        super().__init__(self.skipping)

    def time(self) -> float:
        return self.skipping.now


def simulate(scenario: Coroutine[Any, Any, None]) -> None:
    loop = SimulatedLoop()
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.close()


class Store:
    """What the workers of a gateway share: one rate of an upstream, as a store counts it, and their posts."""

    def __init__(self, per_s: int, unit: Any = "requests") -> None:
        name = f"upstream:up|{unit}|second||"
        self.window = Window(name, "upstream:up", unit, "second", None, per_s, 1_000_000)
        self.state = WindowState()
        self.posts: dict[str, str] = {}
        self.most_posts = 0

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> Mapping[str, str]:
        await asyncio.sleep(0.002)
        self.posts[holder] = text
        self.most_posts = max(self.most_posts, len(text))
        return {name: post for name, post in self.posts.items() if name != holder}

    async def draw(self, amount: int) -> tuple[Refused | None, Any]:
        await asyncio.sleep(0.002)
        claim, now_us = Claim(self.window, amount), int(asyncio.get_running_loop().time() * 1e6)
        self.state = windows.leak(self.window, self.state, now_us)
        refused = windows.refusal([(claim, self.state)], now_us)
        if refused is None:
            self.state = windows.draw(claim, self.state)
        return refused, windows.window_status(self.window, self.state, now_us)


class World:
    """Workers before one upstream, and the clients of several keys."""

    def __init__(self, workers: int = 1, per_s: int = 3, unit: Any = "requests") -> None:
        self.store = Store(per_s, unit)
        self.rooms = [
            WaitingRoom(QueueSettings(max_wait_s=600, max_calls=1000), self.store.exchange) for _ in range(workers)
        ]
        self.chance = random.Random(7)
        self.served: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()

    async def call(
        self, key: str, patience_s: float = 0.0, body: str = "", amount: int = 1, *, is_first_try: bool = False
    ) -> float | None:
        """One call: None where it was served, else the seconds after which it is asked to come back."""
        store, room = self.store, self.chance.choice(self.rooms)
        identity = Identity(body, is_first_try)
        waiting = Waiting(key, 1, amount, 1, [{store.window.id: amount}], identity=lambda: identity)
        ticket = room.ticket(["up"], waiting, patience_s)

        async def attempt() -> Sequence[Refused]:
            refused, status = await store.draw(amount)
            if refused is None:
                ticket.granted([status])
            return () if refused is None else [refused]

        if refusals := await ticket.admit(attempt):
            return min(-(-(refused.retry_after_us or 0) // 1000) for refused in refusals) / 1000
        self.served[key] += amount
        ticket.ended(amount, [])
        return None

    async def comes_back(self, key: str, patience_s: float = 0.0, late_s: float = 0.0, **more: Any) -> None:
        """A client that calls again and again, and comes back when it is asked to."""
        loop, was_refused = asyncio.get_running_loop(), False
        while loop.time() < ENDS_AT:
            wait_s = await self.call(key, patience_s, is_first_try=not was_refused, **more)
            if was_refused:
                self.refused[key] += 1
                self.kept[key] += wait_s is None
            was_refused = wait_s is not None
            await asyncio.sleep(0.03 if wait_s is None else wait_s + self.chance.uniform(0, late_s))

    async def waits(self, key: str, amount: int) -> None:
        while True:
            await self.call(key, 600, amount=amount)

    @contextmanager
    def batch(self, calls: int = 40, amount: int = 1) -> Iterator[None]:
        """So many calls of the key `batch` wait all the time."""
        tasks = [asyncio.ensure_future(self.waits("batch", amount)) for _ in range(calls)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        for room in self.rooms:
            await room.close()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("patience_s", [0.0, 1.0])
@pytest.mark.parametrize("keys", [1, 3])
def test_who_comes_back_in_time_is_served(keys: int, patience_s: float, workers: int) -> None:
    """40 calls of a batch key wait for 3 requests a second; the calls of other keys do not wait so long."""

    async def scenario() -> None:
        world, names = World(workers), [f"key-{number}" for number in range(keys)]
        with world.batch():
            await asyncio.sleep(2)
            world.served.clear()
            await asyncio.gather(*[world.comes_back(name, patience_s) for name in names])
        await world.close()
        assert world.refused == world.kept
        assert world.refused.total() >= (0 if patience_s else 10)
        total = world.served.total()
        assert total >= 3 * (ENDS_AT - 2) * 0.95, "a kept place leaves room unused"
        fair = total / (1 + keys)
        assert all(0.7 * fair <= world.served[name] <= 1.3 * fair for name in ["batch", *names])

    simulate(scenario())


@pytest.mark.parametrize("late_s", [0.5, 0.9])
def test_who_heeds_whole_seconds_is_served(late_s: float) -> None:
    async def scenario() -> None:
        world = World()
        with world.batch():
            await asyncio.sleep(2)
            for _ in range(5):
                wait_s = await world.call("key")
                assert wait_s is not None
                await asyncio.sleep(math.ceil(wait_s) + late_s * KEPT_S)
                assert await world.call("key") is None
        await world.close()

    simulate(scenario())


def test_who_comes_too_early_gets_the_same_time_again() -> None:
    async def scenario() -> None:
        world, loop = World(), asyncio.get_running_loop()
        with world.batch():
            await asyncio.sleep(2)
            await world.call("key", body="first")
            await asyncio.sleep(0.01)
            wait_s = await world.call("key", body="other")
            assert wait_s is not None
            due = loop.time() + wait_s
            while loop.time() < due - 0.2:
                again_s = await world.call("key", body="other")
                assert again_s == pytest.approx(due - loop.time(), abs=0.002)
                await asyncio.sleep(0.1)
            await asyncio.sleep(due - loop.time())
            assert await world.call("key", body="other") is None
        await world.close()

    simulate(scenario())


@pytest.mark.parametrize("unit", ["requests", "tokens"])
def test_calls_of_one_key_have_a_time_each_and_no_more_than_its_share(unit: str) -> None:
    """Ten clients of one key beside 40 waiting calls of another."""
    per_call = 1 if unit == "requests" else 100

    async def scenario() -> None:
        world = World(per_s=5 * per_call, unit=unit)
        with world.batch(amount=per_call):
            await asyncio.sleep(2)
            world.served.clear()
            began = asyncio.get_running_loop().time()
            clients = [world.comes_back("key", body=f"{number}", amount=per_call) for number in range(10)]
            await asyncio.gather(*clients)
            lasted = asyncio.get_running_loop().time() - began
            assert world.refused == world.kept
            assert world.served["batch"] >= 0.4 * world.served.total()
            assert world.served["key"] >= 0.4 * world.served.total()
            assert world.served.total() >= 0.95 * 5 * per_call * (lasted - 1)
        await world.close()

    simulate(scenario())


@pytest.mark.parametrize("workers", [1, 2])
def test_who_collects_times_and_never_comes_costs_others_nothing(workers: int) -> None:
    async def scenario() -> None:
        world, loop = World(workers), asyncio.get_running_loop()
        with world.batch():
            await asyncio.sleep(2)
            world.served.clear()
            began, number = loop.time(), 0
            heeding = asyncio.ensure_future(world.comes_back("heeding"))
            while loop.time() < ENDS_AT:
                number += 1
                await world.call("greedy", body=f"{number}", amount=2)
                await asyncio.sleep(0.1)
            await heeding
            assert world.refused == world.kept
            assert world.served["heeding"] >= 0.25 * 3 * (loop.time() - began)
            assert world.served["batch"] >= 0.25 * 3 * (loop.time() - began)
        await world.close()
        assert world.store.most_posts < 250 * (MAX_OF_FLOW + 10)

    simulate(scenario())


def test_an_unused_promise_ends() -> None:
    async def scenario() -> None:
        world, loop = World(per_s=1), asyncio.get_running_loop()
        with world.batch(1):
            await asyncio.sleep(2)
            wait_s = await world.call("key")
            assert wait_s is not None
            before = world.served["batch"]
            await asyncio.sleep(math.ceil(wait_s) + KEPT_S + 1)
            assert world.served["batch"] > before
            assert loop.time() < 10
        await world.close()

    simulate(scenario())


RATE = Window("upstream:up|tokens|minute||", "upstream:up", "tokens", "minute", None, 600, 60_000_000)


def call_of(flow: str, body: str = "", amount: int = 1) -> Waiting:
    return Waiting(flow, 1, amount, windows=({RATE.id: amount},), identity=lambda: Identity(body, False))


def place_of(call: Waiting) -> Mapping[str, int]:
    (place,) = call.windows
    return place


@pytest.mark.parametrize("seed", range(5))
def test_whatever_others_draw_there_is_room_when_a_promise_is_due(seed: int) -> None:
    """600 tokens a minute; calls of all sizes that draw whatever leaves room, and promises at any time."""
    chance, promises, left, now = random.Random(seed), Promises(), 0.0, 0.0
    open_: list[tuple[float, Waiting]] = []
    kept = drawn = 0
    promises.note(RATE, left, now)
    for _ in range(4000):
        now, left = now + 0.05, min(600, left + 0.5)
        promises.note(RATE, left, now)
        amount = chance.choice([1, 5, 20, 80])
        if chance.random() < 0.01:
            call = call_of(f"flow-{chance.randrange(6)}", f"{now}", amount)
            due = promises.give(call, place_of(call), now + chance.uniform(0, 10), now)
            if promises.of_call(call, now) is not None:
                open_.append((due, call))
        for due, call in [each for each in open_ if each[0] <= now]:
            promise = promises.of_call(call, now)
            assert promise is not None
            assert left + 0.5 + 1e-6 >= promise.place[RATE.id]
            left -= promise.place[RATE.id]
            promises.end(promise)
            promises.note(RATE, left, now)
            open_.remove((due, call))
            kept += 1
        if left >= amount and promises.leave_room({RATE.id: amount}, now):
            left -= amount
            drawn += amount
            promises.note(RATE, left, now)
    assert kept > 10
    assert drawn > 200


def test_promises_are_bounded_and_the_flow_with_the_most_gives_way() -> None:
    promises, now = Promises(), 0.0
    promises.note(RATE._replace(limit=600_000), 0, now)

    def count() -> dict[str, int]:
        return {flow: calls for flow, (calls, _) in promises.by_flow().items()}

    for flow in range(MAX_OF_LINE // MAX_OF_FLOW):
        for number in range(MAX_OF_FLOW + 5):
            call = call_of(f"flood-{flow}", f"{number}")
            promises.give(call, place_of(call), now + 1, now)
    assert set(count().values()) == {MAX_OF_FLOW}
    assert len(promises) == MAX_OF_LINE
    promises.give(call_of("new"), place_of(call_of("new")), now + 1, now)
    assert count()["new"] == 1
    assert len(promises) == MAX_OF_LINE
    promises.forget(now + 10)
    assert not promises


def test_a_call_has_its_own_time_and_none_for_more_than_was_promised() -> None:
    promises, now = Promises(), 0.0
    promises.note(RATE, 0, now)
    first, second = call_of("key", "first", 5), call_of("key", "second", 5)
    for each in (first, second):
        promises.give(each, place_of(each), now, now)

    def found(call: Waiting, at: float) -> Promise:
        promise = promises.of_call(call, at)
        assert promise is not None
        return promise

    assert found(first, 0).due < found(second, 0).due
    assert found(second, 1).body == "second"
    assert found(call_of("key", "third"), 0.5).body == "first", "what is due is for every call of the key"
    assert promises.of_call(call_of("key", "third"), 0) is None
    assert promises.of_call(call_of("key", "first", 6), 1) is None
    assert promises.of_call(call_of("another"), 1) is None
