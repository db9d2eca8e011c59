"""When a grant is renewed, and what calls get meanwhile."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.wings.clouds.background import keep_renewed
from gateway.wings.clouds.grant import Grant, NoGrant, bearer
from gateway.wings.clouds.renewal import Outcome, Renewal, pause_s, renewed_after_s
from tests.fakes.scripted import until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Asked:
    """A source whose answers are written down; each waits until `open`."""

    def __init__(self, clock: Clock, *answers: float | str) -> None:
        self._clock = clock
        self._answers = list(answers)
        self.count = 0
        self.open = asyncio.Event()
        self.open.set()

    async def obtain(self) -> Grant:
        self.count += 1
        await self.open.wait()
        found = self._answers.pop(0)
        if isinstance(found, str):
            raise NoGrant(found)
        return bearer(f"token-{self.count}", self._clock() + found)


def made(*answers: float | str, within_s: float = 30) -> tuple[Renewal, Asked, Clock]:
    clock = Clock()
    source = Asked(clock, *answers)
    return Renewal("up", source, within_s, clock, monotonic=clock), source, clock


def test_how_long_before_the_end_a_grant_is_renewed() -> None:
    assert [renewed_after_s(left) for left in (86400, 3600, 1200, 300, 40, 1)] == [86100, 3300, 900, 225, 30, 1]
    assert [renewed_after_s(left, 1) for left in (86400, 3600, 1200, 300, 40, 1)] == [85800, 3000, 600, 150, 20, 1]
    assert [pause_s(number) for number in (1, 2, 3, 6, 100)] == [1, 2, 4, 30, 30]


async def test_a_source_with_a_fault_is_asked_no_more_often_than_one_that_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, asked = Clock(), 0

    class Faulty:
        async def obtain(self) -> Grant:
            nonlocal asked
            asked += 1
            raise OverflowError("a-secret")

    renewal = Renewal("up", Faulty(), 30, clock, monotonic=clock)
    working = asyncio.ensure_future(keep_renewed([renewal], look_every_s=0.001))
    await until(lambda: asked)
    for _ in range(100):
        await asyncio.sleep(0)
    assert (asked, renewal.due_in_s) == (1, 1)
    assert await renewal.ready(1) == "authorization refused: it failed (OverflowError)"
    working.cancel()
    await asyncio.wait([working])
    assert "a-secret" not in caplog.text
    assert "background task" not in caplog.text


async def test_a_source_is_asked_as_often_as_its_grants_want() -> None:
    clock = Clock()
    grants = [Grant("h", (), None, 60), Grant("h", (), 1040, 60), Grant("h", (), 99999, 60), Grant("h", ())]
    due = []

    class Given:
        async def obtain(self) -> Grant:
            return grants.pop(0)

    renewal = Renewal("up", Given(), 30, clock, monotonic=clock)
    while grants:
        await renewal.renew()
        due.append(renewal.due_in_s)
    assert due == [60, 30, 60, 86400]


@pytest.mark.parametrize(("spread", "due"), [(0.0, [3300, 60]), (0.5, [3150, 45]), (0.98, [3006, 30.6])])
async def test_workers_do_not_renew_in_the_same_second(spread: float, due: list[float]) -> None:
    clock = Clock()
    grants = [Grant("h", (), 4600), Grant("h", (), None, 60)]

    class Given:
        async def obtain(self) -> Grant:
            return grants.pop(0)

    renewal = Renewal("up", Given(), 30, clock, spread, clock)
    found = []
    while grants:
        await renewal.renew()
        found.append(round(renewal.due_in_s, 1))
    assert found == due


async def test_many_calls_ask_once() -> None:
    renewal, source, _ = made(3600)
    source.open.clear()
    waiting = [asyncio.ensure_future(renewal.ready(30)) for _ in range(50)]
    await until(lambda: source.count)
    source.open.set()
    assert await asyncio.gather(*waiting) == [None] * 50
    assert source.count == 1
    assert await renewal.ready(0) is None
    assert renewal.due_in_s == 3300


async def test_a_late_answer_holds_no_call_longer_than_it_may() -> None:
    renewal, source, _ = made(3600)
    source.open.clear()
    assert await renewal.ready(0.01) == "nothing was obtained within 0.01 s"
    source.open.set()
    assert await renewal.ready(30) is None  # the same question is still under way
    assert source.count == 1


async def test_a_source_that_never_answers_is_late() -> None:
    renewal, source, _ = made(3600, within_s=0.01)
    source.open.clear()
    outcomes: list[tuple[Outcome, bool]] = []
    renewal.note = lambda *outcome: outcomes.append(outcome)
    assert await renewal.ready(30) == "authorization late: no answer within 0.01 s"
    assert outcomes == [("late", False)]


async def test_a_refused_renewal_leaves_the_grant_until_its_end(caplog: pytest.LogCaptureFixture) -> None:
    renewal, source, clock = made(3600, "status 403", "status 403", 3600)
    outcomes: list[tuple[Outcome, bool]] = []
    renewal.note = lambda *outcome: outcomes.append(outcome)
    await renewal.renew()
    clock.now += 3300
    await renewal.renew()
    assert await renewal.ready(0) is None
    assert renewal.grant is not None
    clock.now += 300
    assert await renewal.ready(30) == "authorization refused: status 403"  # asked again, for the pause is over
    assert await renewal.ready(30) == "authorization refused: status 403"  # and now at once
    assert source.count == 3
    clock.now += 2
    assert await renewal.ready(30) is None
    assert outcomes == [("renewed", True), ("refused", True), ("refused", False), ("renewed", True)]
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [
        logging.WARNING, logging.ERROR,
    ]  # fmt: skip
    assert "token-" not in caplog.text + repr(renewal)


async def test_what_has_expired_already_is_no_grant() -> None:
    renewal, _, _ = made(-5)
    assert await renewal.ready(30) == "authorization refused: the new one has expired already: compare the clocks"


async def test_a_grant_that_the_upstream_refuses_is_renewed_and_not_too_often() -> None:
    renewal, source, clock = made(3600, 3600, 3600)
    await renewal.renew()
    renewal.refused()
    assert source.count == 1  # it has just been renewed
    clock.now += 10
    for _ in range(5):
        renewal.refused()
    await renewal.renew()
    assert source.count == 2
    grant = renewal.grant
    assert grant is not None
    assert grant.secrets == ("token-2",)


async def test_the_background_renews_what_is_due_and_nothing_else() -> None:
    soon, source, clock = made(40, 3600)
    other, asked, _ = made(3600)
    running = asyncio.ensure_future(keep_renewed([soon, other], 0.01))
    await until(lambda: soon.grant and other.grant)
    assert (source.count, asked.count) == (1, 1)
    clock.now += 30
    await until(lambda: source.count == 2)
    assert asked.count == 1
    running.cancel()
    await asyncio.wait([running])


async def test_closing_ends_a_question_under_way() -> None:
    renewal, source, _ = made(3600)
    source.open.clear()
    waiting = asyncio.ensure_future(renewal.ready(30))
    await until(lambda: source.count)
    await renewal.close()
    assert await waiting is not None


def at_a_machine(*answers: float | str) -> tuple[Renewal, Asked, Clock, Clock]:
    """A renewal with its source, the machine's clock, and the monotonic one."""
    clock, monotonic = Clock(), Clock()
    source = Asked(clock, *answers)
    return Renewal("up", source, 30, clock, monotonic=monotonic), source, clock, monotonic


async def test_a_clock_that_is_set_back_prolongs_no_grant_and_no_pause() -> None:
    """As by NTP, some time after a start."""
    renewal, source, clock, monotonic = at_a_machine("no network", 3600, 3600, 3600)
    assert await renewal.ready(30) == "authorization refused: no network"
    clock.now -= 14_400
    monotonic.now += 2
    assert await renewal.ready(30) is None
    clock.now -= 14_400
    monotonic.now += 10
    renewal.refused()
    await renewal.renew()
    assert source.count == 3
    clock.now -= 14_400
    monotonic.now += 3300
    assert renewal.due_in_s == 0
    monotonic.now += 300
    assert renewal.grant is None
    assert await renewal.ready(30) is None


async def test_a_clock_that_is_set_ahead_delays_no_question_and_keeps_no_grant() -> None:
    renewal, source, clock, monotonic = at_a_machine(3600, "no network", 3600)
    await renewal.renew()
    clock.now += 90_000
    assert renewal.grant is None  # the machine may have been suspended
    assert await renewal.ready(30) == "authorization refused: no network"
    clock.now += 90_000
    assert await renewal.ready(30) == "authorization refused: no network"
    monotonic.now += 1
    assert await renewal.ready(30) is None
    assert source.count == 3
