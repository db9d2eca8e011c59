"""Given what has happened so far: try whom, after how long, or give up.

All retry policy is `next_step`, a pure function of the routes, the failures so far and the model's settings, so that
its specification is a table (tests/rules/test_attempts.py). The further an attempt got, the less it may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.config import Model, Route
from gateway.records import Failure, Fault, Phase

REPEAT_AFTER_S = (0.1, 0.4)
"""Pauses before the next try of an upstream that could not be reached, so that a restart in between may end."""


@dataclass(frozen=True, slots=True)
class Try:
    """Try this route, after this pause."""

    route: Route
    after_s: float = 0.0
    is_fresh: bool = False
    """Whether only a new connection will do."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tell the client of the last failure."""

    last: Failure


def next_step(model: Model, failures: Sequence[Failure]) -> Try | GiveUp:
    """What to do next for one call."""
    route = model.routes[0]
    if not failures:
        return Try(route)
    last = failures[-1]
    if len(failures) >= model.max_attempts:
        return GiveUp(last)
    match last.phase:
        case Phase.STALE if sum(failure.phase is Phase.STALE for failure in failures) == 1:
            return Try(route, is_fresh=True)
        case Phase.CONNECT if last.fault in (Fault.CONNECT, Fault.CUT):
            pauses = sum(failure.phase is Phase.CONNECT for failure in failures)
            return Try(route, REPEAT_AFTER_S[min(pauses, len(REPEAT_AFTER_S)) - 1])
        case Phase.WAITING | Phase.STALE if model.repeat_when_waiting:
            return Try(route, is_fresh=True)
        case _:
            return GiveUp(last)
