"""Background tasks that are not lost.

The garbage collector may collect a task without a reference, and its exception is lost. `Tasks` names each task, holds
it until it is done, logs its exception, and can wait for all tasks at shutdown. House rule (tests/test_floors.py):
nothing else in `gateway` calls `create_task`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

log = logging.getLogger("gateway")

T = TypeVar("T")

_CUT_OFF = "the gateway ends"


def cut_off(task: asyncio.Task[Any]) -> None:
    """Cancel what serves a client because the gateway ends, and not because the client has left."""
    task.cancel(_CUT_OFF)


def is_cut_off(cancelled: asyncio.CancelledError) -> bool:
    """Returns whether `cut_off` caused the cancellation."""
    return cancelled.args == (_CUT_OFF,)


async def to_its_end(work: Coroutine[Any, Any, T], name: str) -> T:
    """Its result, also if this task is cancelled meanwhile: then the cancellation comes with the next `await`."""
    running = asyncio.get_running_loop().create_task(work, name=name)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and (task := asyncio.current_task()) is not None:
        task.cancel(*cancelled.args)
    return running.result()


AGAIN_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Seconds until endless work that failed begins again; they double with each further failure."""


class Tasks:
    """The background tasks of one owner. Used from one event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine on its own, held and named."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        """Run endless work, held and named. After an exception, which is logged, it begins again: what one odd answer
        or file broke would otherwise end until a restart."""
        return self.spawn(_again_and_again(work, name), name)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s failed", task.get_name(), exc_info=error)

    async def cancel_all(self) -> None:
        """Cancel what runs, also what is spawned meanwhile, and wait until it has ended."""
        while self._running:
            tasks = list(self._running)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._running.difference_update(tasks)

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait for the running tasks, and what they spawn, to end by themselves; False when some did not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._running:
            tasks = list(self._running)
            _, late = await asyncio.wait(tasks, timeout=max(0.0, deadline - loop.time()))
            if late:
                return False
            self._running.difference_update(tasks)
        return True


async def _again_and_again(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    loop, pause_s = asyncio.get_running_loop(), AGAIN_S
    while True:
        began = loop.time()
        try:
            return await work()
        except Exception:
            if loop.time() - began > LONGEST_PAUSE_S:
                pause_s = AGAIN_S
            log.exception("background task %s failed, and begins again in %g s", name, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


LATE_S = 0.05
"""A timer that fires later than this was delayed by the event loop."""

LOOK_S = 0.1
"""Seconds that are left, once, after such a delay, to read data that has already arrived."""


class StallTolerantTimeout:
    """`asyncio.timeout` for answers of a server, without pauses of the event loop. None: no limit.

    While the event loop is blocked (a long step of other code, a suspended machine), time passes and answers wait in
    the socket, unread. A limit that expired only during such a pause shows nothing about the server.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        if self._limit_s is not None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self._limit_s
            self._timer = loop.call_at(deadline, self._expire, loop, deadline)
        return self

    def _expire(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        if loop.time() > deadline + LATE_S:
            self._timer = loop.call_later(LOOK_S, self._timeout.reschedule, 0)
        else:
            self._timeout.reschedule(0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)
