"""The time on which all gateways of one store agree: the store's own.

Windows of a day, week or month, expiries and the dates of records are decided by each worker. The machines' clocks may
differ, and then each machine would have a day of its own. So all that another gateway has to agree with takes its time
from the clock of the store (`Store.clock`); only logs and the ages of what a worker keeps to itself do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

MAX_SKEW_S = 1.0
"""How far a machine's clock may be from the store's before it is reported."""


class Clock(Protocol):
    """The clock of a store."""

    @property
    def now(self) -> Callable[[], float]:
        """Returns the Unix time in seconds. It never waits."""

    @property
    def skew_s(self) -> float | None:
        """How far this machine's clock is ahead of the store's; None: the store's time is not known yet."""


class MachineClock:
    """The clock of an embedded store, which is the machine's: all of its workers are there."""

    skew_s = 0.0

    def __init__(self) -> None:
        self.now = time.time


class ServerClock:
    """The clock of a server, as it is known from answers that have its time in them.

    Between two of them it goes on by the monotonic clock: a machine's clock that is set meanwhile changes nothing, and
    while the server is away the last known difference holds. Before the first it is the machine's. `wall` and
    `monotonic` are the machine's clocks.
    """

    def __init__(
        self, wall: Callable[[], float] | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = time.time if wall is None else wall
        self.monotonic = monotonic
        """The clock that gives `asked_at` of `measured`."""
        self._ahead_s = self._wall() - monotonic()
        """The server's time minus the monotonic clock's."""
        self._is_measured = False

    def __repr__(self) -> str:
        return f"<ServerClock {self.skew_s!r} s behind the machine's>"

    def now(self) -> float:
        return self.monotonic() + self._ahead_s

    def measured(self, server_s: float, asked_at: float) -> None:
        """An answer that has just come has this Unix time of the server; its question was sent at `asked_at`.

        The clock was read at some time between. A difference that this permits stays; another one becomes the middle of
        what is permitted, so that it is wrong by half of the round trip at most.
        """
        least, most = server_s - self.monotonic(), server_s - asked_at
        if not least <= self._ahead_s <= most:
            self._ahead_s = (least + most) / 2
        self._is_measured = True

    @property
    def skew_s(self) -> float | None:
        return self._wall() - self.now() if self._is_measured else None


def skew_warning(skew_s: float | None) -> str | None:
    """A line for an operator about such a difference; None: it is small, or not known."""
    if skew_s is None or abs(skew_s) <= MAX_SKEW_S:
        return None
    return (
        f"the clock of this machine is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the store's, by"
        " which quotas and expiries go; set it by NTP"
    )
