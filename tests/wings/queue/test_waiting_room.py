"""One worker's waiting room: turns, deadlines, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

import pytest

from gateway.quota.windows import unreserved
from gateway.records import Refused, Window, WindowStatus
from gateway.wings.queue import waiting_room
from gateway.wings.queue.fair_queue import Waiting
from gateway.wings.queue.settings import QueueSettings
from gateway.wings.queue.waiting_room import WaitingRoom
from tests.fakes.scripted import until

SLOTS = Window("upstream:up|parallel|||", "upstream:up", "parallel", "", None, 1)
TOKENS = Window("upstream:up|tokens|minute||", "upstream:up", "tokens", "minute", None, 1000, 60_000_000)
RARE = Window("upstream:up|requests|hour|rare|", "upstream:up", "requests", "hour", "rare", 1, 3_600_000_000)
HOURLY = Window("upstream:up|requests|hour||", "upstream:up", "requests", "hour", None, 1, 3_600_000_000)
OWN = Window("key:k|requests|day||2026-11-20", "key:k", "requests", "day", None, 1, starts="2026-11-20")
LONG_S = 3600.0


def full(window: Window, after_us: int | None = 1_000_000, amount: int = 1) -> Refused:
    return Refused(WindowStatus(window, 1, 0, 0), amount, after_us)


def rounded_up(wait_us: int) -> Collection[int]:
    """A difference of two times of the loop's clock may be a bit more, of which a whole microsecond is made."""
    return wait_us, wait_us + 1


class Waits:
    """The waits that were counted."""

    def __init__(self) -> None:
        self.depth = 0
        self.ended: list[tuple[str, str]] = []

    def wait_began(self, upstreams: Collection[str]) -> None:
        assert tuple(upstreams) == ("up",)
        self.depth += 1

    def wait_ended(self, upstreams: Collection[str], priority: str, outcome: str, seconds: float) -> None:
        assert tuple(upstreams) == ("up",)
        assert seconds >= 0
        self.depth -= 1
        self.ended.append((priority, outcome))


class Upstream:
    """So many slots; who asks for one gets it, or a refusal."""

    def __init__(self) -> None:
        self.waits = Waits()
        self.free = 0
        self.asked = 0
        self.admitted: list[str] = []
        self.tasks: list[asyncio.Task[Sequence[Refused]]] = []
        self.room = WaitingRoom(QueueSettings(max_wait_s=LONG_S, max_calls=3), self.exchange, self.waits)

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> Mapping[str, str]:
        return {}

    def call(
        self,
        flow: str,
        patience_s: float = LONG_S,
        window: Window = SLOTS,
        windows: Collection[str] = (),
        after_us: int = 1_000_000,
        amount: int = 1,
        size: int = 1,
    ) -> asyncio.Task[Sequence[Refused]]:
        async def attempt() -> Sequence[Refused]:
            self.asked += 1
            await asyncio.sleep(0)
            if not self.free:
                return [full(window, after_us, amount)]
            self.free -= 1
            self.admitted.append(flow)
            ticket.granted([WindowStatus(window._replace(limit=1 + self.free), 1, 0, 0)])
            return ()

        amounts = dict.fromkeys(windows or [window.id], amount)
        ticket = self.room.ticket(["up"], Waiting(flow, 1, 10, size, [amounts]), patience_s)
        task = asyncio.ensure_future(ticket.admit(attempt))
        self.tasks.append(task)
        return task

    @property
    def waiting(self) -> int:
        return self.room.waiting().get("up", 0)

    def release(self, slots: int = 1) -> None:
        """A call ends."""
        self.free += slots
        line = self.room.line(("up",))
        assert line is not None
        line.freed([SLOTS.id])


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)
    await made.room.close()


async def test_a_call_waits_until_there_is_room(upstream: Upstream) -> None:
    call = upstream.call("a")
    await until(lambda: upstream.waiting == 1)
    upstream.release()
    assert await call == ()
    assert upstream.waiting == 0


async def test_a_call_that_is_admitted_again_at_once_has_not_waited_again(upstream: Upstream) -> None:
    """After a 429 of its upstream a call is admitted again: only waits count in the times of its record."""
    free = asyncio.Event()
    ticket = upstream.room.ticket(["up"], Waiting("a", 1, 10, 1, [{SLOTS.id: 1}]), LONG_S)

    async def attempt() -> Sequence[Refused]:
        return () if free.is_set() else [full(SLOTS)]

    call = asyncio.ensure_future(ticket.admit(attempt))
    await until(lambda: upstream.waiting == 1)
    free.set()
    assert (await call, ticket.has_waited) == ((), True)
    ticket.taken_back([SLOTS.id])
    assert (await ticket.admit(attempt), ticket.has_waited) == ((), False)


async def test_a_call_that_takes_the_last_room_lets_no_other_ask(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.wings.queue.waiting_room.POLL_S", LONG_S)
    calls = [upstream.call(flow) for flow in "abc"]
    await until(lambda: upstream.waiting == 3)
    asked = upstream.asked
    upstream.release()
    await calls[0]
    for _ in range(10):
        await asyncio.sleep(0)
    assert upstream.asked == asked + 1


async def test_a_client_that_leaves_as_room_is_found_is_in_no_way(upstream: Upstream) -> None:
    gone, stays = upstream.call("a"), upstream.call("a")
    await until(lambda: upstream.waiting == 2)
    gone.cancel()
    upstream.release()  # in the same turn of the loop
    assert await stays == ()
    assert (gone.cancelled() or gone.cancelling(), upstream.waiting) == (True, 0) or gone.done()
    assert upstream.admitted == ["a"]


async def test_a_client_that_leaves_while_it_asks_takes_no_turn_along(upstream: Upstream) -> None:
    gone, stays = upstream.call("a"), upstream.call("a")
    await until(lambda: upstream.waiting == 2)
    asked = upstream.asked
    upstream.release()
    await until(lambda: upstream.asked > asked)
    gone.cancel()
    upstream.release()
    await asyncio.wait([stays])
    assert stays.result() == ()


async def test_a_deadline_ends_the_wait_with_the_last_refusal(upstream: Upstream) -> None:
    call = upstream.call("a", patience_s=0.01)
    (refused,) = await call
    assert refused.window_status.window == SLOTS
    assert upstream.waiting == 0


async def test_who_cannot_be_served_in_time_does_not_wait(upstream: Upstream) -> None:
    call = upstream.call("a", patience_s=0.5, window=HOURLY)
    (refused,) = await call
    assert refused.retry_after_us in rounded_up(1_000_000)
    assert upstream.asked == 1


async def test_who_cannot_be_served_in_time_does_not_wait_with_others_either(upstream: Upstream) -> None:
    """A window of one model is full for an hour, while calls of others wait for a slot."""
    upstream.call("a", window=RARE, after_us=1_800_000_000, patience_s=LONG_S)
    upstream.call("b")
    await until(lambda: upstream.waiting == 2)
    (refused,) = await upstream.call("c", window=RARE, windows=[RARE.id, SLOTS.id], patience_s=60)
    assert (refused.window_status.window, upstream.waiting) == (RARE, 2)
    assert 1_799_000_000 < (refused.retry_after_us or 0) <= 3_600_000_001


async def test_a_call_with_an_unknown_window_asks_before_it_waits(upstream: Upstream) -> None:
    upstream.call("a")
    await until(lambda: upstream.waiting == 1)
    (refused,) = await upstream.call(
        "b", window=RARE, windows=[RARE.id, SLOTS.id], after_us=1_800_000_000, patience_s=9
    )
    assert refused.retry_after_us in rounded_up(1_800_000_000)
    assert upstream.waiting == 1
    asked = upstream.asked
    await upstream.call("b", window=RARE, windows=[RARE.id, SLOTS.id], after_us=1_800_000_000, patience_s=9)
    assert upstream.asked == asked  # it is known by now


async def test_a_wait_ends_with_what_its_own_windows_lack(upstream: Upstream) -> None:
    busy = upstream.call("a")
    await until(lambda: upstream.waiting == 1)
    rare = upstream.call("b", window=RARE, after_us=1_800_000_000)
    await until(lambda: upstream.waiting == 2 and upstream.asked >= 2)
    (refused,) = await upstream.call("c", patience_s=0.01)
    assert refused.window_status.window == SLOTS
    assert not busy.done()
    assert not rare.done()


async def test_a_small_call_is_not_refused_for_the_time_that_a_large_one_takes(upstream: Upstream) -> None:
    """900 tokens are there in 50 s, and 100 after 2 s."""
    upstream.call("large", window=TOKENS, amount=900, after_us=50_000_000)
    await until(lambda: upstream.waiting == 1)
    (refused,) = await upstream.call("small", window=TOKENS, amount=100, patience_s=1)
    assert (refused.asked, upstream.waiting) == (100, 1)
    assert 1_000_000 < (refused.retry_after_us or 0) <= 2_000_001
    upstream.call("small", window=TOKENS, amount=100, patience_s=10)
    await until(lambda: upstream.waiting == 2)


async def test_a_large_call_that_leaves_keeps_no_small_one_waiting(upstream: Upstream) -> None:
    upstream.call("a")
    await until(lambda: upstream.waiting == 1)
    large = upstream.call("large", window=TOKENS, amount=900, after_us=50_000_000, patience_s=20)
    (refused,) = await large
    assert refused.asked == 900
    small = upstream.call("small", window=TOKENS, amount=1, after_us=1)
    upstream.free = 1
    assert await small == ()


async def test_a_reserved_place_is_taken_past_those_for_whom_there_is_none(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_room, "POLL_S", LONG_S)  # only news of a window let a call ask again
    shared = {SLOTS.id, unreserved(SLOTS.id)}
    batch = [upstream.call("batch", windows=shared) for _ in range(2)]
    await until(lambda: upstream.waiting == 2)
    upstream.free = 1  # the store would grant it to an interactive call alone, and no call of this worker has ended
    assert await upstream.call("human") == ()
    assert upstream.admitted == ["human"]
    assert not any(call.done() for call in batch)


async def test_the_callers_own_limit_ends_the_wait(upstream: Upstream) -> None:
    call = upstream.call("a", window=OWN)
    (refused,) = await call
    assert (refused.window_status.window, upstream.asked) == (OWN, 1)


async def test_a_full_room_takes_a_new_flow_in_the_place_of_the_longest(upstream: Upstream) -> None:
    calls = [upstream.call("a") for _ in range(3)]
    await until(lambda: upstream.waiting == 3)
    assert len(await upstream.call("a")) == 1
    new = upstream.call("b")
    await until(lambda: any(call.done() for call in calls))
    assert [call.done() for call in calls] == [False, False, True]
    upstream.release(3)
    assert await new == ()


async def test_calls_are_displaced_until_the_bytes_of_a_new_one_fit(upstream: Upstream) -> None:
    upstream.room.configure(QueueSettings(max_wait_s=LONG_S, max_calls=99, max_bytes=1000))
    calls = [upstream.call("a", size=100) for _ in range(10)]
    await until(lambda: upstream.waiting == 10)
    new = upstream.call("b", size=350)
    await until(lambda: sum(call.done() for call in calls) == 4)
    assert upstream.waiting == 7
    assert len(await upstream.call("c", size=1001)) == 1
    assert upstream.waiting == 7
    upstream.release(7)
    assert await new == ()


async def test_the_time_to_come_back_counts_what_goes_before(upstream: Upstream) -> None:
    for _ in range(3):
        upstream.call("a", window=HOURLY)
    await until(lambda: upstream.waiting == 3)
    (refused,) = await upstream.call("a", window=HOURLY)
    assert refused.retry_after_us is not None
    assert refused.retry_after_us >= 3_600_000_000


async def test_what_calls_used_lately_is_what_the_next_is_charged(upstream: Upstream) -> None:
    for tokens in (500, 500):
        upstream.room.note_use("a", tokens)
    assert upstream.room.expected(Waiting("a", 1, 10)) == 500
    assert upstream.room.expected(Waiting("b", 1, 10)) == 10


async def test_every_wait_is_counted_with_its_end(upstream: Upstream) -> None:
    gone, displaced, served = upstream.call("a"), upstream.call("a"), upstream.call("a")
    await until(lambda: upstream.waiting == 3)
    full = upstream.call("a")
    await full
    other = upstream.call("b")
    await until(served.done)  # the last of its flow
    gone.cancel()
    await asyncio.wait([gone])
    late = upstream.call("c", patience_s=0.01)
    await late
    upstream.release(2)
    await asyncio.wait([displaced, other])
    assert upstream.waits.depth == 0
    outcomes = sorted(outcome for _, outcome in upstream.waits.ended)
    assert outcomes == ["admitted", "admitted", "client_gone", "displaced", "expired", "full"]


@pytest.mark.parametrize(
    ("key_s", "model_s", "wait_s"), [(None, None, LONG_S), (0, None, 0), (None, 7, 7), (5, 7, 5), (9, 7, 7)]
)
async def test_the_shortest_wait_of_key_and_model_replaces_the_default(
    upstream: Upstream, key_s: float | None, model_s: float | None, wait_s: float
) -> None:
    assert upstream.room.longest_wait_s(key_s, model_s) == wait_s
