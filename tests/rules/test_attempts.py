"""All retry policy, as a table: what has failed so far, and what comes next."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Model
from gateway.records import Failure, Fault, Phase
from gateway.rules.attempts import GiveUp, Try, next_step

CONNECT = Failure("up", Phase.CONNECT, Fault.CONNECT)
SLOW_CONNECT = Failure("up", Phase.CONNECT, Fault.TIMEOUT)
CUT_BEFORE_SENT = Failure("up", Phase.CONNECT, Fault.CUT)
BUSY = Failure("up", Phase.CONNECT, Fault.BUSY)
STALE = Failure("up", Phase.STALE, Fault.CUT)
REFUSED = Failure("up", Phase.REFUSED, Fault.STATUS, status=503)
LIMITED = Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429, retry_after_s=1)
WAITING = Failure("up", Phase.WAITING, Fault.TIMEOUT)
CUT = Failure("up", Phase.WAITING, Fault.CUT)
RELAYING = Failure("up", Phase.RELAYING, Fault.CUT)

GIVE_UP = "give up"


def model(**changes: Any) -> Model:
    return Model.model_validate({"routes": [{"upstream": "up"}], "max_attempts": 4, **changes})


@pytest.mark.parametrize(
    ("failures", "repeats", "step"),
    [
        ([], False, (0.0, False)),
        # Nothing reached the upstream: again, after a pause in which a restart may end.
        ([CONNECT], False, (0.1, False)),
        ([CONNECT, CONNECT], False, (0.4, False)),
        ([CONNECT, CONNECT, CONNECT], False, (0.4, False)),
        ([CONNECT] * 4, False, GIVE_UP),
        ([CONNECT] * 4, True, GIVE_UP),
        ([CUT_BEFORE_SENT], False, (0.1, False)),
        ([CONNECT, CUT_BEFORE_SENT], False, (0.4, False)),
        # It took its time already, or it is full: waiting in front of it once more would help nobody.
        ([SLOW_CONNECT], True, GIVE_UP),
        ([BUSY], True, GIVE_UP),
        ([CONNECT, BUSY], False, GIVE_UP),
        # An idle connection that was closed just then: once, on a new one.
        ([STALE], False, (0.0, True)),
        ([STALE, STALE], False, GIVE_UP),
        ([STALE, STALE], True, (0.0, True)),
        ([STALE, CONNECT], False, (0.1, False)),
        ([CONNECT, STALE], False, (0.0, True)),
        ([STALE, CONNECT, STALE], False, GIVE_UP),
        # It answered: it would answer the same, and there is nobody else to ask.
        ([REFUSED], True, GIVE_UP),
        ([LIMITED], True, GIVE_UP),
        # It may be at work on it: only if the model says so.
        ([WAITING], False, GIVE_UP),
        ([WAITING], True, (0.0, True)),
        ([CUT], False, GIVE_UP),
        ([CUT], True, (0.0, True)),
        ([WAITING] * 4, True, GIVE_UP),
        ([CONNECT, WAITING], False, GIVE_UP),
        # The client has bytes: never.
        ([RELAYING], True, GIVE_UP),
    ],
)
def test_next_step(failures: list[Failure], repeats: bool, step: tuple[float, bool] | str) -> None:
    settings = model(repeat_when_waiting=repeats)
    if step == GIVE_UP:
        assert next_step(settings, failures) == GiveUp(failures[-1])
    else:
        after_s, is_fresh = step
        assert next_step(settings, failures) == Try(settings.routes[0], after_s, is_fresh)  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", [CONNECT, STALE, WAITING], ids=lambda failure: failure.phase.value)
@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_max_attempts_ends_it(failure: Failure, attempts: int) -> None:
    settings = model(repeat_when_waiting=True, max_attempts=attempts)
    failures: list[Failure] = []
    while isinstance(next_step(settings, failures), Try):
        failures.append(failure)
        assert len(failures) <= attempts
    assert len(failures) == attempts
