"""How many repetitions an upstream may be asked to bear, so that attempts never multiply while it is ill.

A repetition is a call that asks an upstream once more. Going to another upstream is none: each sees a call once, so
that a failover needs no budget, and the load on whoever is left is that of the calls and not a multiple of it.
"""

from __future__ import annotations

SHARE = 0.2
"""Repetitions for each call of the last window; Finagle's and Envoy's retry budgets have the same default."""

AT_LEAST = 10
"""Repetitions in a window beside that, so that a quiet upstream may be asked again."""

SLICE_S = 5.0
"""Half a window: it slides in two slices."""


class RetryBudget:
    """Of one upstream. Private to a worker; its clock is that of `now`, in seconds."""

    __slots__ = ("_calls", "_calls_before", "_repeats", "_repeats_before", "_slice_ends")

    def __init__(self) -> None:
        self._slice_ends = 0.0
        self._calls = self._calls_before = 0
        self._repeats = self._repeats_before = 0

    def note_call(self, now: float) -> None:
        """A call comes to this upstream for the first time."""
        if now >= self._slice_ends:
            self._slide(now)
        self._calls += 1

    def note_repeat(self, now: float) -> None:
        """A call comes once more."""
        if now >= self._slice_ends:
            self._slide(now)
        self._repeats += 1

    def is_spent(self, now: float) -> bool:
        """Whether one more repetition would be too many."""
        if now >= self._slice_ends:
            self._slide(now)
        calls = self._calls + self._calls_before
        return self._repeats + self._repeats_before >= AT_LEAST + SHARE * calls

    def _slide(self, now: float) -> None:
        is_next = now < self._slice_ends + SLICE_S
        self._calls_before = self._calls if is_next else 0
        self._repeats_before = self._repeats if is_next else 0
        self._calls = self._repeats = 0
        self._slice_ends = now + SLICE_S
