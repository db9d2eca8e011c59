"""Circuit breaker: a state table that stops calls to an upstream or a model after repeated failures.

A `Circuit` is a value. `TABLE` maps each state and event to the function that makes the next value:

    state       BEGIN         SUCCESS  FAILURE, PARTIAL             NEUTRAL              TIMER       PROBE_OK
    CLOSED      -             count    count; open at a threshold   -                    -           count
    OPEN        half-open     close    count                        -                    half-open   close
    HALF_OPEN   hold others   close    open, longer cooldown        admit the next       -           close

1. A closed circuit opens after 5 consecutive failures, or when at least half of 20 or more attempts within 30 s failed.
2. The cooldown is 1 s and doubles with each opening in a row, up to 30 s.
3. An open circuit admits no call before its cooldown ends. A half-open circuit admits one call at a time as a probe.
4. A model without another route uses an open circuit all the same, until 10 attempts in a row returned no byte
   (`is_dead`): an upstream that answers every second call is better than a 503.
5. As long as only one caller's calls have failed, a circuit holds for that caller alone (`binds`): the fault may be in
   its requests.
6. The result of an attempt that began before the last change of state is stale and does not count (`is_current`): 100
   calls that time out after a minute must not open a circuit that has recovered meanwhile.

A circuit in its initial state is None, so that a healthy upstream takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from math import inf
from typing import NamedTuple

from gateway.records import Failure, Fault, Phase

CONSECUTIVE_FAILURES = 5
"""Failures in a row that open a circuit. Envoy's outlier detection has the same default."""

DEAD_AFTER = 10
"""Attempts in a row without one byte of an answer, after which even a model without another route is refused."""

WINDOW_S = 30.0
"""The window in which failures are counted. It starts with a failure."""
FAILURE_SHARE = 0.5
MIN_ATTEMPTS = 20
"""A window with at least this many attempts opens the circuit when at least `FAILURE_SHARE` of them failed."""

FIRST_COOLDOWN_S, MAX_COOLDOWN_S = 1.0, 30.0
"""The first cooldown, which is enough for a restart, and the limit of its doubling."""

RESET_AFTER_S = 60.0
"""Time in the closed state after which the next opening counts as the first."""

PROBE_TIMEOUT_S = 5.0
"""A half-open circuit whose probe has no result after this time admits another probe."""


class CircuitState(IntEnum):
    """The numbers are those of the metric `gateway_upstream_state`."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitEvent(Enum):
    """An input of the state table."""

    BEGIN = "begin"
    SUCCESS = "success"
    """The upstream answered an attempt."""
    FAILURE = "failure"
    """An attempt failed through a fault of the upstream, and no part of an answer arrived."""
    PARTIAL = "partial"
    """An attempt failed through a fault of the upstream after a part of an answer had arrived."""
    NEUTRAL = "neutral"
    """An attempt ended and its result shows nothing about the upstream."""
    TIMER = "timer"
    """The cooldown ended before a call began."""
    PROBE_OK = "probe_ok"
    """A health check of the upstream succeeded."""


_FAILURES = frozenset({CircuitEvent.FAILURE, CircuitEvent.PARTIAL})


class Circuit(NamedTuple):
    """The circuit of one upstream or of one model of it. Times are seconds of a monotonic clock."""

    state: CircuitState = CircuitState.CLOSED
    since: float = -inf
    """Start of this state; -inf: the circuit never changed its state."""
    until: float = 0.0
    """Open: end of the cooldown. Half-open: until then the running probe holds other calls."""
    openings: int = 0
    """Number of consecutive openings of the circuit."""
    consecutive_failures: int = 0
    unanswered: int = 0
    """Attempts in a row that returned no byte."""
    window_start: float = 0.0
    failures: int = 0
    attempts: int = 0
    caller: str = ""
    """The only caller whose attempts failed; empty: there are several, or it is no matter of requests."""


NEW = Circuit()


def admits(circuit: Circuit | None, now: float) -> bool:
    return circuit is None or circuit.state is CircuitState.CLOSED or now >= circuit.until


def binds(circuit: Circuit | None, caller: str) -> bool:
    """Whether the failures of a circuit count for this caller; an empty one is any."""
    return circuit is not None and (not circuit.caller or not caller or circuit.caller == caller)


def is_dead(circuit: Circuit | None) -> bool:
    """Whether even a model without another route is refused until the circuit admits a call."""
    return circuit is not None and circuit.unanswered >= DEAD_AFTER


def is_current(circuit: Circuit | None, began: float) -> bool:
    """Whether the result of an attempt that began at this time counts; False: the result is stale."""
    return circuit is None or began >= circuit.since


def after(circuit: Circuit | None, event: CircuitEvent, now: float, caller: str = "") -> Circuit | None:
    """The next value of a circuit after an event of an attempt of this caller; None: the initial state."""
    before = circuit or NEW
    made = TABLE[before.state, event](before, now)
    if event in _FAILURES:
        has_none = not before.failures or (made.failures == 1 and not before.consecutive_failures)
        is_first = before.state is CircuitState.CLOSED and has_none
        made = made._replace(caller=caller if is_first or before.caller == caller else "")
    elif made.state is not CircuitState.CLOSED:
        made = made._replace(caller=before.caller)
    return None if made == NEW else made


def event_of(failure: Failure | None) -> CircuitEvent:
    """The event for the result of an attempt. Faults of the client and limits of our account are neutral."""
    if failure is None:
        return CircuitEvent.SUCCESS
    if failure.was_held_back or failure.phase is Phase.STALE:
        return CircuitEvent.NEUTRAL
    if failure.fault is Fault.STATUS and failure.status is not None and 400 <= failure.status < 500:
        return CircuitEvent.NEUTRAL
    if failure.fault in _NEUTRAL_FAULTS:
        return CircuitEvent.NEUTRAL
    return CircuitEvent.PARTIAL if failure.has_begun else CircuitEvent.FAILURE


_NEUTRAL_FAULTS = frozenset({
    Fault.RATE_LIMITED, Fault.AUTH, Fault.BALANCE,  # these start a cooldown of the credential (upstream/credentials.py)
    Fault.BUSY, Fault.TOO_LARGE, Fault.CIRCUIT_OPEN, Fault.WRONG_URL,
})  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- moves


def _stay(circuit: Circuit, now: float) -> Circuit:
    return circuit


def _count_success(circuit: Circuit, now: float) -> Circuit:
    if circuit.window_start + WINDOW_S <= now or not circuit.attempts:
        is_reset = circuit.since + RESET_AFTER_S <= now
        return NEW if is_reset else circuit._replace(consecutive_failures=0, unanswered=0, failures=0, attempts=0)
    return circuit._replace(consecutive_failures=0, unanswered=0, attempts=circuit.attempts + 1)


def _count_partial(circuit: Circuit, now: float) -> Circuit:
    if circuit.window_start + WINDOW_S <= now or not circuit.attempts:
        circuit = circuit._replace(window_start=now, failures=0, attempts=0)
    circuit = circuit._replace(
        consecutive_failures=circuit.consecutive_failures + 1,
        failures=circuit.failures + 1,
        attempts=circuit.attempts + 1,
    )
    if circuit.consecutive_failures >= CONSECUTIVE_FAILURES or (
        circuit.attempts >= MIN_ATTEMPTS and circuit.failures >= FAILURE_SHARE * circuit.attempts
    ):
        return _open(circuit, now)
    return circuit


def _count_failure(circuit: Circuit, now: float) -> Circuit:
    return _count_partial(_count_unanswered(circuit, now), now)


def _count_unanswered(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(unanswered=circuit.unanswered + 1)


def _open(circuit: Circuit, now: float) -> Circuit:
    is_reset = circuit.state is CircuitState.CLOSED and circuit.since + RESET_AFTER_S <= now
    openings = 1 if is_reset else circuit.openings + 1
    cooldown_s = min(MAX_COOLDOWN_S, FIRST_COOLDOWN_S * 2.0 ** min(openings - 1, 10))
    return Circuit(CircuitState.OPEN, now, now + cooldown_s, openings, unanswered=circuit.unanswered)


def _reopen(circuit: Circuit, now: float) -> Circuit:
    return _open(_count_unanswered(circuit, now), now)


def _half_open(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(state=CircuitState.HALF_OPEN, since=now, until=now)


def _start_probe(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(state=CircuitState.HALF_OPEN, since=now, until=now + PROBE_TIMEOUT_S)


def _hold_others(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(until=now + PROBE_TIMEOUT_S)


def _admit_next(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(until=now)


def _close(circuit: Circuit, now: float) -> Circuit:
    return Circuit(CircuitState.CLOSED, now, openings=circuit.openings)


TABLE: Mapping[tuple[CircuitState, CircuitEvent], Callable[[Circuit, float], Circuit]] = {
    (CircuitState.CLOSED, CircuitEvent.BEGIN): _stay,
    (CircuitState.CLOSED, CircuitEvent.SUCCESS): _count_success,
    (CircuitState.CLOSED, CircuitEvent.FAILURE): _count_failure,
    (CircuitState.CLOSED, CircuitEvent.PARTIAL): _count_partial,
    (CircuitState.CLOSED, CircuitEvent.NEUTRAL): _stay,
    (CircuitState.CLOSED, CircuitEvent.TIMER): _stay,
    (CircuitState.CLOSED, CircuitEvent.PROBE_OK): _count_success,
    (CircuitState.OPEN, CircuitEvent.BEGIN): _start_probe,
    (CircuitState.OPEN, CircuitEvent.SUCCESS): _close,
    (CircuitState.OPEN, CircuitEvent.FAILURE): _count_unanswered,
    (CircuitState.OPEN, CircuitEvent.PARTIAL): _stay,
    (CircuitState.OPEN, CircuitEvent.NEUTRAL): _stay,
    (CircuitState.OPEN, CircuitEvent.TIMER): _half_open,
    (CircuitState.OPEN, CircuitEvent.PROBE_OK): _close,
    (CircuitState.HALF_OPEN, CircuitEvent.BEGIN): _hold_others,
    (CircuitState.HALF_OPEN, CircuitEvent.SUCCESS): _close,
    (CircuitState.HALF_OPEN, CircuitEvent.FAILURE): _reopen,
    (CircuitState.HALF_OPEN, CircuitEvent.PARTIAL): _open,
    (CircuitState.HALF_OPEN, CircuitEvent.NEUTRAL): _admit_next,
    (CircuitState.HALF_OPEN, CircuitEvent.TIMER): _stay,
    (CircuitState.HALF_OPEN, CircuitEvent.PROBE_OK): _close,
}
