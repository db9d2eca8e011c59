"""Scans all windows repeatedly, to find changes that no call of this worker made.

The windows of an owner have to be computed, and many owners have none: portions are therefore counted in owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from gateway.records import Window

SWEEP_EVERY_S = 60.0

SWEPT_AT_ONCE = 200
"""Owners in one look: all are gone through once a minute, or as long as that takes."""

OWNERS_IN_A_TURN = 20
"""Of the event loop."""


class Sweep:
    """One worker's. `windows` begins to go through all windows at a Unix time, those of one owner after another."""

    def __init__(self, windows: Callable[[float], Iterator[Sequence[Window]]]) -> None:
        self._windows = windows
        self._rest: Iterator[Sequence[Window]] | None = None
        self._next_at = 0.0

    def portion(self, now: float) -> Iterator[list[Window]]:
        """The calendar windows of the next owners, those of a few at a time."""
        if self._rest is None:
            if now < self._next_at:
                return
            self._rest, self._next_at = self._windows(now), now + SWEEP_EVERY_S
        left = SWEPT_AT_ONCE
        while left and self._rest is not None:
            most = min(left, OWNERS_IN_A_TURN)
            owned = list(islice(self._rest, most))
            left -= most
            if len(owned) < most:
                self._rest = None
            yield [window for some in owned for window in some if window.starts]
