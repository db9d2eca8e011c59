"""The state table of a circuit: each row of it, what counts, and a naive model that must always agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.records import Failure, Fault, Phase
from gateway.upstream.circuit_breaker import (
    CONSECUTIVE_FAILURES,
    DEAD_AFTER,
    FAILURE_SHARE,
    FIRST_COOLDOWN_S,
    MAX_COOLDOWN_S,
    MIN_ATTEMPTS,
    PROBE_TIMEOUT_S,
    RESET_AFTER_S,
    TABLE,
    WINDOW_S,
    Circuit,
    CircuitEvent,
    CircuitState,
    admits,
    after,
    event_of,
    is_current,
    is_dead,
)

NOW = 1000.0
OPEN = Circuit(CircuitState.OPEN, NOW - 0.5, NOW + 0.5, openings=1)
RESTED = Circuit(CircuitState.OPEN, NOW - 1.0, NOW, openings=1)
AWAITING = Circuit(CircuitState.HALF_OPEN, NOW - 0.2, NOW - 0.2, openings=1)
PROBED = Circuit(CircuitState.HALF_OPEN, NOW - 0.2, NOW + 4.8, openings=1)
CLOSED_AGAIN = Circuit(CircuitState.CLOSED, NOW, openings=1)


def scenario(*events: CircuitEvent, begin: Circuit | None = None, step_s: float = 0.0) -> Circuit | None:
    circuit = begin
    for number, event in enumerate(events):
        circuit = after(circuit, event, NOW + number * step_s)
    return circuit


def test_table_is_whole() -> None:
    assert set(TABLE) == {(state, event) for state in CircuitState for event in CircuitEvent}


ROWS: list[tuple[str, Circuit | None, CircuitEvent, Circuit | None]] = [
    ("well says nothing of the well", None, CircuitEvent.SUCCESS, None),
    ("a call begins", None, CircuitEvent.BEGIN, None),
    ("nothing is nothing", None, CircuitEvent.NEUTRAL, None),
    (
        "one failure is remembered",
        None,
        CircuitEvent.FAILURE,
        Circuit(consecutive_failures=1, unanswered=1, window_start=NOW, failures=1, attempts=1),
    ),
    (
        "one that broke off is, too",
        None,
        CircuitEvent.PARTIAL,
        Circuit(consecutive_failures=1, window_start=NOW, failures=1, attempts=1),
    ),
    (
        "an answer ends the row",
        Circuit(consecutive_failures=4, unanswered=3, window_start=NOW - 1, failures=4, attempts=6),
        CircuitEvent.SUCCESS,
        Circuit(consecutive_failures=0, window_start=NOW - 1, failures=4, attempts=7),
    ),
    (
        "the fifth in a row opens",
        Circuit(consecutive_failures=4, unanswered=3, window_start=NOW - 1, failures=4, attempts=6),
        CircuitEvent.FAILURE,
        Circuit(CircuitState.OPEN, NOW, NOW + FIRST_COOLDOWN_S, openings=1, unanswered=4),
    ),
    (
        "the fifth that breaks off opens",
        Circuit(consecutive_failures=4, window_start=NOW - 1, failures=4, attempts=6),
        CircuitEvent.PARTIAL,
        Circuit(CircuitState.OPEN, NOW, NOW + FIRST_COOLDOWN_S, openings=1),
    ),
    (
        "half of twenty opens",
        Circuit(consecutive_failures=1, window_start=NOW - 1, failures=9, attempts=19),
        CircuitEvent.FAILURE,
        Circuit(CircuitState.OPEN, NOW, NOW + FIRST_COOLDOWN_S, openings=1, unanswered=1),
    ),
    (
        "less than half does not",
        Circuit(consecutive_failures=1, window_start=NOW - 1, failures=8, attempts=19),
        CircuitEvent.FAILURE,
        Circuit(consecutive_failures=2, unanswered=1, window_start=NOW - 1, failures=9, attempts=20),
    ),
    (
        "half of fewer does not",
        Circuit(consecutive_failures=1, window_start=NOW - 1, failures=9, attempts=18),
        CircuitEvent.FAILURE,
        Circuit(consecutive_failures=2, unanswered=1, window_start=NOW - 1, failures=10, attempts=19),
    ),
    (
        "a window ends",
        Circuit(consecutive_failures=1, window_start=NOW - WINDOW_S, failures=9, attempts=19),
        CircuitEvent.FAILURE,
        Circuit(consecutive_failures=2, unanswered=1, window_start=NOW, failures=1, attempts=1),
    ),
    (
        "who is well for a window is forgotten",
        Circuit(window_start=NOW - WINDOW_S, failures=9, attempts=50),
        CircuitEvent.SUCCESS,
        None,
    ),
    ("open: whoever came all the same is answered", OPEN, CircuitEvent.SUCCESS, CLOSED_AGAIN),
    ("open: whoever came all the same fails", OPEN, CircuitEvent.FAILURE, OPEN._replace(unanswered=1)),
    ("open: whoever came all the same is broken off", OPEN, CircuitEvent.PARTIAL, OPEN),
    ("open: a client leaves", OPEN, CircuitEvent.NEUTRAL, OPEN),
    (
        "cooled: a call",
        RESTED,
        CircuitEvent.BEGIN,
        Circuit(CircuitState.HALF_OPEN, NOW, NOW + PROBE_TIMEOUT_S, openings=1),
    ),
    ("rested: nobody comes", RESTED, CircuitEvent.TIMER, Circuit(CircuitState.HALF_OPEN, NOW, NOW, openings=1)),
    ("open: proven well", OPEN, CircuitEvent.PROBE_OK, CLOSED_AGAIN),
    ("half-open: the probe begins", AWAITING, CircuitEvent.BEGIN, AWAITING._replace(until=NOW + PROBE_TIMEOUT_S)),
    ("half-open: the probe is answered", PROBED, CircuitEvent.SUCCESS, CLOSED_AGAIN),
    ("half-open: proven well", PROBED, CircuitEvent.PROBE_OK, CLOSED_AGAIN),
    (
        "half-open: the probe fails",
        PROBED,
        CircuitEvent.FAILURE,
        Circuit(CircuitState.OPEN, NOW, NOW + 2 * FIRST_COOLDOWN_S, openings=2, unanswered=1),
    ),
    (
        "half-open: the probe is broken off",
        PROBED._replace(unanswered=9),
        CircuitEvent.PARTIAL,
        Circuit(CircuitState.OPEN, NOW, NOW + 2 * FIRST_COOLDOWN_S, openings=2, unanswered=9),
    ),
    ("half-open: nobody knows", PROBED, CircuitEvent.NEUTRAL, PROBED._replace(until=NOW)),
    ("closed again: well", CLOSED_AGAIN, CircuitEvent.SUCCESS, CLOSED_AGAIN),
    ("closed again for long: well", CLOSED_AGAIN._replace(since=NOW - RESET_AFTER_S), CircuitEvent.SUCCESS, None),
]


@pytest.mark.parametrize(("before", "event", "then"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_row(before: Circuit | None, event: CircuitEvent, then: Circuit | None) -> None:
    assert after(before, event, NOW) == then


@pytest.mark.parametrize(
    ("circuit", "admitted"),
    [
        (None, True),
        (Circuit(consecutive_failures=4), True),
        (OPEN, False),
        (RESTED, True),
        (AWAITING, True),
        (PROBED, False),
        (PROBED._replace(until=NOW), True),
    ],
)
def test_admits(circuit: Circuit | None, admitted: bool) -> None:
    assert admits(circuit, NOW) is admitted


@pytest.mark.parametrize(("event", "is_without_hope"), [(CircuitEvent.FAILURE, True), (CircuitEvent.PARTIAL, False)])
def test_hope_ends_with_the_tenth_that_brings_nothing(event: CircuitEvent, is_without_hope: bool) -> None:
    circuit = scenario(*[event] * (DEAD_AFTER - 1))
    assert not is_dead(circuit)
    circuit = after(circuit, event, NOW)
    assert is_dead(circuit) is is_without_hope
    probed = after(after(circuit, CircuitEvent.BEGIN, NOW + FIRST_COOLDOWN_S), event, NOW + FIRST_COOLDOWN_S)
    assert is_dead(probed) is is_without_hope
    assert not is_dead(after(circuit, CircuitEvent.SUCCESS, NOW))
    assert not is_dead(None)


def test_cooldowns_grow_and_are_bounded() -> None:
    circuit: Circuit | None = None
    now, rests = NOW, []
    for _ in range(CONSECUTIVE_FAILURES):
        circuit = after(circuit, CircuitEvent.FAILURE, now)
    for _ in range(20):
        assert circuit is not None
        rests.append(circuit.until - now)
        now = circuit.until
        circuit = after(after(circuit, CircuitEvent.BEGIN, now), CircuitEvent.FAILURE, now)
    assert rests[:5] == [FIRST_COOLDOWN_S * 2**n for n in range(5)]
    assert rests[-1] == MAX_COOLDOWN_S


@pytest.mark.parametrize(
    ("closed_for_s", "rest_s"), [(RESET_AFTER_S - 1, 2 * FIRST_COOLDOWN_S), (RESET_AFTER_S, FIRST_COOLDOWN_S)]
)
def test_an_upstream_that_fails_again_soon_has_a_longer_cooldown(closed_for_s: float, rest_s: float) -> None:
    circuit: Circuit | None = CLOSED_AGAIN
    now = NOW + closed_for_s
    for _ in range(CONSECUTIVE_FAILURES):
        circuit = after(circuit, CircuitEvent.FAILURE, now)
    assert circuit is not None
    assert circuit.until - now == rest_s


def test_calls_from_before_it_changed_are_not_heard() -> None:
    assert is_current(None, -inf)
    assert is_current(Circuit(consecutive_failures=3), NOW - 600)
    assert not is_current(PROBED, PROBED.since - 0.001)
    assert is_current(PROBED, PROBED.since)


@pytest.mark.parametrize(
    ("failure", "event"),
    [
        (None, CircuitEvent.SUCCESS),
        (Failure("up", Phase.CONNECT, Fault.CONNECT), CircuitEvent.FAILURE),
        (Failure("up", Phase.CONNECT, Fault.TIMEOUT), CircuitEvent.FAILURE),
        (Failure("up", Phase.CONNECT, Fault.CUT), CircuitEvent.FAILURE),
        (Failure("up", Phase.CONNECT, Fault.BUSY), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.STALE, Fault.CUT), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.WAITING, Fault.TIMEOUT), CircuitEvent.FAILURE),
        (Failure("up", Phase.WAITING, Fault.CUT), CircuitEvent.FAILURE),
        (Failure("up", Phase.WAITING, Fault.PROTOCOL), CircuitEvent.FAILURE),
        (Failure("up", Phase.WAITING, Fault.NOT_JSON), CircuitEvent.FAILURE),
        (Failure("up", Phase.WAITING, Fault.TOO_LARGE), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.WAITING, Fault.CUT, has_begun=True), CircuitEvent.PARTIAL),
        (Failure("up", Phase.RELAYING, Fault.CUT, has_begun=True), CircuitEvent.PARTIAL),
        (Failure("up", Phase.RELAYING, Fault.TIMEOUT, has_begun=True), CircuitEvent.PARTIAL),
        (Failure("up", Phase.REFUSED, Fault.IN_BAND, has_begun=True), CircuitEvent.PARTIAL),
        (Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, has_begun=True), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.RELAYING, Fault.TIMEOUT, was_held_back=True), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.RELAYING, Fault.CUT, was_held_back=True), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.REFUSED, Fault.STATUS, status=500), CircuitEvent.FAILURE),
        (Failure("up", Phase.REFUSED, Fault.STATUS, status=503), CircuitEvent.FAILURE),
        (Failure("up", Phase.REFUSED, Fault.STATUS, status=409), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.REFUSED, Fault.NO_CHANNEL, status=503), CircuitEvent.FAILURE),
        (Failure("up", Phase.REFUSED, Fault.REDIRECT, status=302), CircuitEvent.FAILURE),
        (Failure("up", Phase.REFUSED, Fault.IN_BAND), CircuitEvent.FAILURE),
        (Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.REFUSED, Fault.AUTH, status=401), CircuitEvent.NEUTRAL),
        (Failure("up", Phase.REFUSED, Fault.BALANCE, status=403), CircuitEvent.NEUTRAL),
    ],
)
def test_what_counts(failure: Failure | None, event: CircuitEvent) -> None:
    assert event_of(failure) is event


# ------------------------------------------------------------------------------------------------------ a naive model


@dataclass
class Naive:
    """The same in another way: it keeps every outcome with its time, and looks at all of them each time."""

    state: CircuitState = CircuitState.CLOSED
    changed: float = -inf
    rests_until: float = 0.0
    openings: int = 0
    without_hope: int = 0
    row: list[bool] = field(default_factory=list)
    outcomes: list[tuple[float, bool]] = field(default_factory=list)

    def _become(self, state: CircuitState, now: float) -> None:
        self.state, self.changed = state, now
        self.row, self.outcomes = [], []

    def _open(self, now: float) -> None:
        is_first = self.state is CircuitState.CLOSED and now - self.changed >= RESET_AFTER_S
        self.openings = 1 if is_first else self.openings + 1
        rest_s = FIRST_COOLDOWN_S
        for _ in range(self.openings - 1):
            rest_s = min(MAX_COOLDOWN_S, rest_s * 2)
        self._become(CircuitState.OPEN, now)
        self.rests_until = now + rest_s

    def admits(self, now: float) -> bool:
        return self.state is CircuitState.CLOSED or now >= self.rests_until

    def hear(self, event: CircuitEvent, now: float) -> None:
        if event is CircuitEvent.FAILURE:
            self.without_hope += 1
        elif event in (CircuitEvent.SUCCESS, CircuitEvent.PROBE_OK):
            self.without_hope = 0
        match self.state:
            case CircuitState.CLOSED if event in (
                CircuitEvent.SUCCESS,
                CircuitEvent.FAILURE,
                CircuitEvent.PARTIAL,
                CircuitEvent.PROBE_OK,
            ):
                self._count(event in (CircuitEvent.FAILURE, CircuitEvent.PARTIAL), now)
            case CircuitState.OPEN | CircuitState.HALF_OPEN if event in (CircuitEvent.SUCCESS, CircuitEvent.PROBE_OK):
                self._become(CircuitState.CLOSED, now)
            case CircuitState.OPEN if event in (CircuitEvent.BEGIN, CircuitEvent.TIMER):
                self._become(CircuitState.HALF_OPEN, now)
                self.rests_until = now + PROBE_TIMEOUT_S if event is CircuitEvent.BEGIN else now
            case CircuitState.HALF_OPEN if event is CircuitEvent.BEGIN:
                self.rests_until = now + PROBE_TIMEOUT_S
            case CircuitState.HALF_OPEN if event is CircuitEvent.NEUTRAL:
                self.rests_until = now
            case CircuitState.HALF_OPEN if event in (CircuitEvent.FAILURE, CircuitEvent.PARTIAL):
                self._open(now)

    def _count(self, is_ill: bool, now: float) -> None:
        if self.outcomes and now - self.outcomes[0][0] >= WINDOW_S:
            self.outcomes = []
        if is_ill or self.outcomes:  # a window begins with a failure
            self.outcomes.append((now, is_ill))
        self.row = [*self.row, True] if is_ill else []
        ill = len([None for _, failed in self.outcomes if failed])
        is_half = len(self.outcomes) >= MIN_ATTEMPTS and ill / len(self.outcomes) >= FAILURE_SHARE
        if is_ill and (len(self.row) >= CONSECUTIVE_FAILURES or is_half):
            self._open(now)


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 1.0, 4.0, 20.0, 70.0]),
        st.sampled_from([*CircuitEvent, CircuitEvent.FAILURE, CircuitEvent.FAILURE, CircuitEvent.PARTIAL]),
    ),
    max_size=120,
)


@given(STEPS)
def test_it_is_what_the_naive_model_says(steps: list[tuple[float, CircuitEvent]]) -> None:
    naive, circuit, now = Naive(), None, NOW
    for wait_s, event in steps:
        now += wait_s
        if event in (CircuitEvent.BEGIN, CircuitEvent.TIMER) and not admits(circuit, now):
            continue  # no attempt begins unless it is admitted
        naive.hear(event, now)
        circuit = after(circuit, event, now)
        assert admits(circuit, now) is naive.admits(now)
        assert (CircuitState.CLOSED if circuit is None else circuit.state) is naive.state
        if circuit is not None and circuit.state is CircuitState.OPEN:
            assert circuit.until == naive.rests_until
        assert is_dead(circuit) is (naive.without_hope >= DEAD_AFTER)
        assert is_current(circuit, now)


@given(STEPS)
def test_half_open_lets_one_probe_through_at_a_time(steps: list[tuple[float, CircuitEvent]]) -> None:
    circuit, now, begun_at = None, NOW, -inf
    for wait_s, event in steps:
        now += wait_s
        was_half_open = circuit is not None and circuit.state is not CircuitState.CLOSED
        if event is CircuitEvent.BEGIN and was_half_open and admits(circuit, now):
            assert now - begun_at >= PROBE_TIMEOUT_S
            begun_at = now
        elif event is not CircuitEvent.BEGIN:
            begun_at = -inf
        if event not in (CircuitEvent.BEGIN, CircuitEvent.TIMER) or admits(circuit, now):
            circuit = after(circuit, event, now)


@given(
    st.lists(st.sampled_from([CircuitEvent.BEGIN, CircuitEvent.SUCCESS, CircuitEvent.NEUTRAL, CircuitEvent.PROBE_OK]))
)
def test_who_never_fails_is_never_remembered(events: list[CircuitEvent]) -> None:
    assert scenario(*events, step_s=1.0) is None
