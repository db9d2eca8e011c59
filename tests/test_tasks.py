"""Background tasks are referenced, named and awaited; their exceptions are logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway import tasks as module
from gateway.tasks import Tasks, to_its_end


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_task_is_held_until_it_is_done() -> None:
    tasks, go = Tasks(), asyncio.Event()
    task = tasks.spawn(go.wait(), "waits")
    assert (len(tasks), task.get_name()) == (1, "waits")
    assert not await tasks.wait_until_idle(0)
    go.set()
    assert await tasks.wait_until_idle(5)
    assert (len(tasks), task.result()) == (0, True)


async def test_nothing_to_wait_for() -> None:
    tasks = Tasks()
    assert await tasks.wait_until_idle(0)
    await tasks.cancel_all()


async def test_the_exception_of_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("of this")

    tasks = Tasks()
    tasks.spawn(fail(), "doomed")
    assert await tasks.wait_until_idle(5)
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "background task doomed failed")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "of this"


async def test_cancelled_tasks_have_ended_and_are_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    ended = []

    async def tidy() -> None:
        try:
            await wait_for_ever()
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    tasks = Tasks()
    for _ in range(3):
        tasks.spawn(tidy(), "tidy")
    await asyncio.sleep(0)
    await tasks.cancel_all()
    assert ended == [1, 1, 1]
    assert len(tasks) == 0
    assert not caplog.records


async def test_a_task_that_will_not_be_cancelled_is_waited_for() -> None:
    go, ended = asyncio.Event(), []

    async def stubborn() -> None:
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            await go.wait()
            ended.append(1)

    tasks = Tasks()
    tasks.spawn(stubborn(), "stubborn")
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(go.set)
    await tasks.cancel_all()
    assert ended == [1]


async def test_what_tasks_spawn_is_waited_for_and_cancelled_too() -> None:
    tasks, ended = Tasks(), []

    async def generation(number: int) -> None:
        await asyncio.sleep(0)
        ended.append(number)
        if number:
            tasks.spawn(generation(number - 1), f"generation-{number}")

    tasks.spawn(generation(3), "first")
    assert await tasks.wait_until_idle(5)
    assert ended == [3, 2, 1, 0]

    async def leave_an_heir() -> None:
        try:
            await wait_for_ever()
        finally:
            tasks.spawn(wait_for_ever(), "heir")

    tasks.spawn(leave_an_heir(), "leaves an heir")
    await asyncio.sleep(0)
    await tasks.cancel_all()
    assert len(tasks) == 0


async def test_one_late_task_among_many() -> None:
    tasks = Tasks()
    tasks.spawn(asyncio.sleep(0), "quick")
    tasks.spawn(wait_for_ever(), "late")
    assert not await tasks.wait_until_idle(0.01)
    assert len(tasks) == 1
    await tasks.cancel_all()


async def test_work_goes_on_to_its_end_and_its_caller_is_cancelled_behind_it() -> None:
    go, seen = asyncio.Event(), []

    async def work() -> int:
        await go.wait()
        return 7

    async def caller() -> None:
        seen.append(await to_its_end(work(), "work"))
        await wait_for_ever()

    running = asyncio.ensure_future(caller())
    for _ in range(3):
        await asyncio.sleep(0)
    running.cancel("the reason")
    await asyncio.sleep(0)
    assert not running.done()
    go.set()
    with pytest.raises(asyncio.CancelledError, match="the reason"):
        await running
    assert seen == [7]


async def test_an_error_of_the_work_is_its_callers() -> None:
    async def fail() -> None:
        raise ValueError("of this")

    with pytest.raises(ValueError, match="of this"):
        await to_its_end(fail(), "doomed")


async def test_endless_work_that_fails_begins_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def pause(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr(module.asyncio, "sleep", pause)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 10:
            raise OverflowError(f"failure {begun}")

    tasks = Tasks()
    await tasks.keep(work, "read-something")
    assert begun == 10
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [record.getMessage() for record in caplog.records][-1] == (
        "background task read-something failed, and begins again in 60 s"
    )
    assert len(tasks) == 0


async def test_endless_work_ends_when_it_is_cancelled() -> None:
    tasks = Tasks()
    task = tasks.keep(wait_for_ever, "waits")
    await asyncio.sleep(0)
    await tasks.cancel_all()
    assert task.cancelled()
