"""A time limit for answers of a server that does not count pauses of the event loop.

While the event loop is blocked (a long step of other code, a suspended machine), time passes and answers wait in the
socket, unread. A limit that expired only during such a pause shows nothing about the server.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

LATE_S = 0.05
"""A timer that fires later than this was delayed by the event loop."""

LOOK_S = 0.1
"""Seconds that are left, once, after such a delay, to read data that has already arrived."""


class StallTolerantTimeout:
    """`asyncio.timeout`, without pauses of the event loop. None: no limit."""

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
