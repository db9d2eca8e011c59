"""How much of each window is spent or reserved, as far as this worker knows.

Every call that is reserved brings the state of its windows from the store, so a worker under load never asks. It asks
for a window that it has not heard of for `FRESH_S`, such as the first one of a day.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from gateway.quota.windows import charges
from gateway.records import Claim, Record, Window, WindowStatus
from gateway.store import Ledger, StoreUnavailable

FRESH_S = 5.0
WITHIN_S = 0.5
"""How long the store may take to answer; a call whose shares are not known keeps its model."""
MOST = 20_000
"""Windows that are known at a time."""


class Shares:
    """The shares that one worker knows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[int, float]] = {}
        """Units spent or reserved, and when that was heard, by window."""

    def note(self, statuses: Iterable[WindowStatus]) -> None:
        """The store has just had these windows like this."""
        now = self._clock()
        for status in statuses:
            if status.window.unit == "usd" and status.window.starts:
                if len(self._known) >= MOST:
                    self._known.clear()
                self._known[status.window.id] = status.used + status.reserved, now

    def settle(self, record: Record, claims: Sequence[Claim]) -> None:
        """A call has ended: what it has used is in the place of what it had reserved."""
        for (window, amount), charged in zip(claims, charges(record, claims), strict=True):
            if (known := self._known.get(window.id)) is not None:
                self._known[window.id] = max(0, known[0] + charged - amount), known[1]

    async def of(self, windows: Sequence[Window], ledger: Ledger, now: float) -> list[tuple[Window, float]]:
        """The shares of these windows, by their present limits, as far as they are known or the store returns them.
        `now` is its Unix time in seconds."""
        if any(not self._is_fresh(window) for window in windows):
            try:
                async with asyncio.timeout(WITHIN_S):
                    self.note(await ledger.window_statuses(windows, now))
            except (StoreUnavailable, TimeoutError):
                pass
        return [(each, self._known[each.id][0] / each.limit) for each in windows if self._is_fresh(each)]

    def _is_fresh(self, window: Window) -> bool:
        known = self._known.get(window.id)
        return known is not None and self._clock() - known[1] < FRESH_S
