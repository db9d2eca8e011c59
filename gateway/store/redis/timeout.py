"""A time limit that knows a late answer from a late look at it.

While the event loop stands still (a long step of somebody else's, a machine that was suspended), time passes and
answers wait in the socket, unread. A limit that is found to be over only then says nothing about the server.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

LATE_S = 0.05
"""A timer that fires later than this was held up by the loop."""

LOOK_S = 0.1
"""Then this long is left, once, to read what is there already."""


class StallTolerantTimeout:
    """`asyncio.timeout`, but for the pauses of the event loop. None: no limit."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self.begin_again(self.limit_s)
        return self

    def begin_again(self, limit_s: float | None) -> None:
        """So long from now."""
        self.limit_s = limit_s
        self._stop()
        if limit_s is not None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + limit_s
            self._timer = loop.call_at(deadline, self._over, loop, deadline)

    def _over(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        if loop.time() > deadline + LATE_S:
            self._timer = loop.call_later(LOOK_S, self._timeout.reschedule, 0)
        else:
            self._timeout.reschedule(0)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        await self._timeout.__aexit__(kind, error, trace)
