"""The outages of the store, as one worker sees them: a table of states and moves, and the time without the store that
is left. Pure: no clock, no I/O; `ledger_client.py` does what a move asks for.

The store is unavailable as soon as one batch fails. With `on_outage: deny`, calls are then refused at once. With
`allow`, one lost batch is no outage: its calls and new ones wait for `HOLD_S` while the next batch tests the store, and
are sent again if it answers; otherwise they are decided from the worker's share of the limits (offline_quota.py), and
refused when `TimeAway` is spent. One batch at a time tests whether the store is back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Literal

TRY_AGAIN_S = (0.0, 0.1, 0.2, 0.4)
"""Pauses between the batches that test whether the store is back."""

HOLD_S = 0.15
"""Seconds that calls wait after a lost batch before the worker decides from its share, with `on_outage: allow`.
Together with the time limit of a batch it is less than a second."""

HOUR_S = 3600.0


class OutageState(Enum):
    """The values are for `repr`."""

    UP = "well"
    SUSPECT = "suspect"
    """One batch was lost, and calls wait."""
    ALONE = "away, calls on its share"
    DENYING = "away, calls refused"


class OutageEvent(Enum):
    LOST = "lost"
    """It is unknown whether the store has applied a batch."""
    HOLD_OVER = "hold_over"
    """Calls have waited for `HOLD_S`."""
    APPLIED = "applied"
    """The store has applied a batch."""


class OutageAction(Enum):
    REPORT = "report"
    """Log that the store is away."""
    HOLD = "hold"
    """Let the calls of the lost batch and new ones wait."""
    GO_ALONE = "go_alone"
    """Decide the calls that wait from the worker's share."""
    GIVE_UP = "give_up"
    """Decide the draws of the lost batch, and unsent ones, without the store."""
    RESUME = "resume"
    """Log that the store is back, and send the calls that wait."""


_UP, _SUSPECT, _ALONE, _DENYING = OutageState
_LOST, _HOLD_OVER, _APPLIED = OutageEvent
_REPORT, _HOLD, _GO_ALONE, _GIVE_UP, _RESUME = OutageAction

MOVES: Mapping[str, Mapping[tuple[OutageState, OutageEvent], tuple[OutageState, tuple[OutageAction, ...]]]] = {
    "deny": {
        (_UP, _LOST): (_DENYING, (_REPORT, _GIVE_UP)),
        (_UP, _HOLD_OVER): (_UP, ()),
        (_UP, _APPLIED): (_UP, ()),
        (_DENYING, _LOST): (_DENYING, (_GIVE_UP,)),
        (_DENYING, _HOLD_OVER): (_DENYING, ()),
        (_DENYING, _APPLIED): (_UP, (_RESUME,)),
    },
    "allow": {
        (_UP, _LOST): (_SUSPECT, (_REPORT, _HOLD)),
        (_UP, _HOLD_OVER): (_UP, ()),
        (_UP, _APPLIED): (_UP, ()),
        (_SUSPECT, _LOST): (_ALONE, (_GO_ALONE, _GIVE_UP)),
        (_SUSPECT, _HOLD_OVER): (_ALONE, (_GO_ALONE,)),
        (_SUSPECT, _APPLIED): (_UP, (_RESUME,)),
        (_ALONE, _LOST): (_ALONE, (_GIVE_UP,)),
        (_ALONE, _HOLD_OVER): (_ALONE, ()),
        (_ALONE, _APPLIED): (_UP, (_RESUME,)),
    },
}
"""Next state and the actions to run, in this order, by `on_outage`, state and event."""


class TimeAway:
    """The time for which the store was unavailable, within a sliding hour. Times are on a monotonic clock."""

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._span_s = max(HOUR_S, max_s)
        self._ended: deque[tuple[float, float]] = deque()
        """The end of each earlier outage, and how long it lasted."""
        self._total_s = 0.0
        self._began: float | None = None

    def begin(self, now: float) -> None:
        self._began = now

    def end(self, now: float) -> None:
        if self._began is not None:
            self._ended.append((now, now - self._began))
            self._total_s += now - self._began
            self._began = None

    def is_spent(self, now: float) -> bool:
        """Whether the outages have lasted too long by now. One counts whole until its end is an hour ago."""
        while self._ended and self._ended[0][0] <= now - self._span_s:
            self._total_s -= self._ended.popleft()[1]
        running_s = 0.0 if self._began is None else now - self._began
        return (self._total_s if self._ended else 0.0) + running_s >= self._max_s


class Outage:
    """The state of one worker's store. Times are on a monotonic clock."""

    def __init__(self, on_outage: Literal["deny", "allow"], max_s: float) -> None:
        self.state = _UP
        self.is_up = True
        """Whether the state is `UP`: asked several times for each call."""
        self.why = ""
        """The error of the batch that was lost first; empty: the store is up."""
        self.since = 0.0
        """The time of that loss."""
        self._moves = MOVES[on_outage]
        self._tries = 0
        self._time_away = TimeAway(max_s)

    def lose(self, why: str, now: float) -> tuple[OutageAction, ...]:
        if self.is_up:
            self.why, self.since, self._tries = why, now, 0
        return self.move(_LOST, now)

    def move(self, event: OutageEvent, now: float) -> tuple[OutageAction, ...]:
        """Move by the table. Returns what is to be done, in this order."""
        self.state, actions = self._moves[self.state, event]
        self.is_up = self.state is _UP
        if self.is_up:
            self.why = ""
        if _GO_ALONE in actions:
            self._time_away.begin(self.since)
        if _RESUME in actions:
            self._time_away.end(now)
        return actions

    def next_pause_s(self) -> float:
        """The pause before the next batch tests the store."""
        self._tries += 1
        return TRY_AGAIN_S[min(self._tries, len(TRY_AGAIN_S)) - 1]

    def may_go_on_alone(self, now: float) -> bool:
        """Whether calls are admitted without the store, as far as the share goes."""
        return self.state in (_SUSPECT, _ALONE) and not self._time_away.is_spent(now)
