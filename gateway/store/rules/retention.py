"""How far retention may go, also with a wrong clock.

Old days are deleted by a clock, and a clock can be wrong: one hour a year ahead must not delete a year. So retention
has a clock of its own, kept in the store:

1. It looks once in each hour of the wall clock.
2. At each look it advances to the wall clock, but by one day at most. So one look deletes one day's worth at most, and
   after a pause of 30 days retention needs 30 hours to catch up.
3. It falls back with the wall clock at once.
4. Data older than `sums_days` by this clock is deleted. An operator who lowers `sums_days` deletes more at once.

`apply_retention.lua` has the same rules for Redis.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.quantities import PER_SECONDS
from gateway.records import WindowState

HOUR_S = 3600
STEP_H = 24
"""How far the clock of retention advances at one look, in hours."""

IDLE_PERIODS = 100
"""A rate that was not used for this number of its periods has no level left."""


class RetentionLook(NamedTuple):
    """The last look of retention. Both are hours since 1970."""

    wall_h: int
    """The wall clock at that look."""
    clock_h: int
    """The clock of retention since then."""


def next_look(last: RetentionLook | None, wall_h: int, first_due_h: int | None) -> RetentionLook | None:
    """The look that is due now; None: there was one in this hour.

    A store that retention has not seen yet (`last` is None) starts where its oldest day is due: at `first_due_h`, None
    for a store without days.
    """
    if last is None:
        return RetentionLook(wall_h, wall_h if first_due_h is None else min(wall_h, first_due_h))
    if last.wall_h == wall_h:
        return None
    return RetentionLook(wall_h, min(wall_h, last.clock_h + STEP_H))


def is_idle(window: str, state: WindowState, kept_us: int, clock_us: int) -> bool:
    """Whether a rate or parallel window (by id and state) can be forgotten: it did not change for `kept_us`, and either
    it is empty or its level has leaked since."""
    age_us = clock_us - state.at_us
    if age_us <= kept_us:
        return False
    if state.used == 0 and state.reserved == 0:
        return True
    _, *parts = window.rsplit("|", 4)
    period_s = PER_SECONDS.get(parts[1]) or (int(parts[1]) if parts[1].isdecimal() else 0) if len(parts) == 4 else 0
    return period_s > 0 and age_us > IDLE_PERIODS * period_s * 1_000_000
