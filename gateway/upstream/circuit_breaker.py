"""When an upstream is avoided, when it is left alone, and when it is asked again: a circuit breaker as a state table.

A `Circuit` is a value, and `TABLE` says which function makes its successor of it, for each state and event:

    state       BEGIN         WELL     ILL, BROKEN                  NOTHING              RESTED      PROVEN
    CLOSED      -             count    count; open at a threshold   -                    -           count
    OPEN        half-open     close    count                        -                    half-open   close
    HALF_OPEN   bar others    close    open again, for longer       let the next one in  -           close

An open circuit `admits` nobody before its time, a half-open one a single probe, which is a call like any other. Who
has nothing else may come all the same, as long as there is hope (`is_hopeless`): every second answer, or the first half
of each, is better than none.

What an attempt that began before the last change of state has to say is not heard (`is_heard`): a hundred calls that
hang for a minute must not open a circuit again that has recovered meanwhile.

A circuit about which there is nothing to say is `None`, so that those who are well cost nothing to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from math import inf
from typing import NamedTuple

from gateway.records import Failure, Fault, Phase

IN_A_ROW = 5
"""So many failures in a row open it (Envoy's outlier detection has the same default)."""

HOPELESS_AFTER = 10
"""So many in a row without even the beginning of an answer, and it is left alone by everybody."""

WINDOW_S = 30.0
SHARE = 0.5
AT_LEAST = 20
"""... and so does this share of the attempts of a window, if there are so many. A window begins with a failure."""

FIRST_REST_S, LONGEST_REST_S = 1.0, 30.0
"""It rests this long when it opens, twice as long each further time. A second is enough for a restart."""

CALM_S = 60.0
"""Closed for so long, its next opening counts as the first."""

PROBE_S = 5.0
"""A half-open circuit that has not heard of its probe for so long lets another one in."""


class CircuitState(IntEnum):
    """The numbers are those of `gateway_upstream_state`."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitEvent(Enum):
    """What happens to a circuit."""

    BEGIN = "begin"
    """An attempt begins."""
    WELL = "well"
    """An attempt was answered."""
    ILL = "ill"
    """An attempt failed through a fault of the upstream."""
    BROKEN = "broken"
    """So did this one, but a part of an answer had come."""
    NOTHING = "nothing"
    """An attempt has ended, and says nothing about the upstream."""
    RESTED = "rested"
    """Its rest is over, and nobody has come yet."""
    PROVEN = "proven"
    """It was asked for no other reason than to see whether it is well, and it is."""


class Circuit(NamedTuple):
    """Of one upstream or one model of it. Times are in seconds, on any clock that only goes forward."""

    state: CircuitState = CircuitState.CLOSED
    since: float = -inf
    """When it came into this state; -inf: it never was in another."""
    until: float = 0.0
    """Open: the end of its rest. Half-open: until when a probe bars the others."""
    openings: int = 0
    """In a row."""
    in_a_row: int = 0
    hopeless: int = 0
    """Of these, those that brought nothing at all."""
    window: float = 0.0
    """When its window began."""
    ill: int = 0
    seen: int = 0


NEW = Circuit()


def admits(circuit: Circuit | None, now: float) -> bool:
    """Whether an attempt may begin."""
    return circuit is None or circuit.state is CircuitState.CLOSED or now >= circuit.until


def is_hopeless(circuit: Circuit | None) -> bool:
    """Whether not even those who have nothing else should come before they are admitted."""
    return circuit is not None and circuit.hopeless >= HOPELESS_AFTER


def is_heard(circuit: Circuit | None, began: float) -> bool:
    """Whether an attempt that began at this time may still say something."""
    return circuit is None or began >= circuit.since


def after(circuit: Circuit | None, event: CircuitEvent, now: float) -> Circuit | None:
    """What becomes of a circuit; None: there is nothing to remember."""
    made = TABLE[(circuit or NEW).state, event](circuit or NEW, now)
    return None if made == NEW else made


def verdict(failure: Failure | None) -> CircuitEvent:
    """What an attempt says about its upstream. The client's own faults and our limits at it are no illness."""
    if failure is None:
        return CircuitEvent.WELL
    if failure.was_held_back or failure.phase is Phase.STALE:
        return CircuitEvent.NOTHING
    if failure.fault is Fault.STATUS and failure.status is not None and 400 <= failure.status < 500:
        return CircuitEvent.NOTHING
    if failure.fault in _SAY_NOTHING:
        return CircuitEvent.NOTHING
    return CircuitEvent.BROKEN if failure.has_begun else CircuitEvent.ILL


_SAY_NOTHING = frozenset({
    Fault.RATE_LIMITED, Fault.AUTH, Fault.BALANCE,  # the credential rests instead (upstream/credentials.py)
    Fault.BUSY, Fault.TOO_LARGE, Fault.LEFT_ALONE,
})  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- moves


def _stay(circuit: Circuit, now: float) -> Circuit:
    return circuit


def _count_well(circuit: Circuit, now: float) -> Circuit:
    if circuit.window + WINDOW_S <= now or not circuit.seen:
        is_calm = circuit.since + CALM_S <= now
        return NEW if is_calm else circuit._replace(in_a_row=0, hopeless=0, ill=0, seen=0)
    return circuit._replace(in_a_row=0, hopeless=0, seen=circuit.seen + 1)


def _count_broken(circuit: Circuit, now: float) -> Circuit:
    if circuit.window + WINDOW_S <= now or not circuit.seen:
        circuit = circuit._replace(window=now, ill=0, seen=0)
    circuit = circuit._replace(in_a_row=circuit.in_a_row + 1, ill=circuit.ill + 1, seen=circuit.seen + 1)
    if circuit.in_a_row >= IN_A_ROW or (circuit.seen >= AT_LEAST and circuit.ill >= SHARE * circuit.seen):
        return _open(circuit, now)
    return circuit


def _count_ill(circuit: Circuit, now: float) -> Circuit:
    return _count_broken(_without_hope(circuit, now), now)


def _without_hope(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(hopeless=circuit.hopeless + 1)


def _open(circuit: Circuit, now: float) -> Circuit:
    is_calm = circuit.state is CircuitState.CLOSED and circuit.since + CALM_S <= now
    openings = 1 if is_calm else circuit.openings + 1
    rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(openings - 1, 10))
    return Circuit(CircuitState.OPEN, now, now + rest_s, openings, hopeless=circuit.hopeless)


def _open_again(circuit: Circuit, now: float) -> Circuit:
    return _open(_without_hope(circuit, now), now)


def _await_probe(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(state=CircuitState.HALF_OPEN, since=now, until=now)


def _probe(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(state=CircuitState.HALF_OPEN, since=now, until=now + PROBE_S)


def _bar(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(until=now + PROBE_S)


def _let_in(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(until=now)


def _close(circuit: Circuit, now: float) -> Circuit:
    return Circuit(CircuitState.CLOSED, now, openings=circuit.openings)


TABLE: Mapping[tuple[CircuitState, CircuitEvent], Callable[[Circuit, float], Circuit]] = {
    (CircuitState.CLOSED, CircuitEvent.BEGIN): _stay,
    (CircuitState.CLOSED, CircuitEvent.WELL): _count_well,
    (CircuitState.CLOSED, CircuitEvent.ILL): _count_ill,
    (CircuitState.CLOSED, CircuitEvent.BROKEN): _count_broken,
    (CircuitState.CLOSED, CircuitEvent.NOTHING): _stay,
    (CircuitState.CLOSED, CircuitEvent.RESTED): _stay,
    (CircuitState.CLOSED, CircuitEvent.PROVEN): _count_well,
    (CircuitState.OPEN, CircuitEvent.BEGIN): _probe,
    (CircuitState.OPEN, CircuitEvent.WELL): _close,
    (CircuitState.OPEN, CircuitEvent.ILL): _without_hope,
    (CircuitState.OPEN, CircuitEvent.BROKEN): _stay,
    (CircuitState.OPEN, CircuitEvent.NOTHING): _stay,
    (CircuitState.OPEN, CircuitEvent.RESTED): _await_probe,
    (CircuitState.OPEN, CircuitEvent.PROVEN): _close,
    (CircuitState.HALF_OPEN, CircuitEvent.BEGIN): _bar,
    (CircuitState.HALF_OPEN, CircuitEvent.WELL): _close,
    (CircuitState.HALF_OPEN, CircuitEvent.ILL): _open_again,
    (CircuitState.HALF_OPEN, CircuitEvent.BROKEN): _open,
    (CircuitState.HALF_OPEN, CircuitEvent.NOTHING): _let_in,
    (CircuitState.HALF_OPEN, CircuitEvent.RESTED): _stay,
    (CircuitState.HALF_OPEN, CircuitEvent.PROVEN): _close,
}
