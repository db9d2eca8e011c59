"""The state table of a circuit: each row of it, what counts, and a naive model that must always agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.records import Failure, Fault, Phase
from gateway.upstream.circuit_breaker import (
    AT_LEAST,
    CALM_S,
    FIRST_REST_S,
    HOPELESS_AFTER,
    IN_A_ROW,
    LONGEST_REST_S,
    PROBE_S,
    SHARE,
    TABLE,
    WINDOW_S,
    Circuit,
    CircuitEvent,
    CircuitState,
    admits,
    after,
    is_heard,
    is_hopeless,
    verdict,
)

NOW = 1000.0
OPEN = Circuit(CircuitState.OPEN, NOW - 0.5, NOW + 0.5, openings=1)
RESTED = Circuit(CircuitState.OPEN, NOW - 1.0, NOW, openings=1)
AWAITING = Circuit(CircuitState.HALF_OPEN, NOW - 0.2, NOW - 0.2, openings=1)
PROBED = Circuit(CircuitState.HALF_OPEN, NOW - 0.2, NOW + 4.8, openings=1)
CLOSED_AGAIN = Circuit(CircuitState.CLOSED, NOW, openings=1)


def story(*events: CircuitEvent, begin: Circuit | None = None, step_s: float = 0.0) -> Circuit | None:
    circuit = begin
    for number, event in enumerate(events):
        circuit = after(circuit, event, NOW + number * step_s)
    return circuit


def test_table_is_whole() -> None:
    assert set(TABLE) == {(state, event) for state in CircuitState for event in CircuitEvent}


ROWS: list[tuple[str, Circuit | None, CircuitEvent, Circuit | None]] = [
    ("well says nothing of the well", None, CircuitEvent.WELL, None),
    ("a call begins", None, CircuitEvent.BEGIN, None),
    ("nothing is nothing", None, CircuitEvent.NOTHING, None),
    ("one failure is remembered", None, CircuitEvent.ILL, Circuit(in_a_row=1, hopeless=1, window=NOW, ill=1, seen=1)),
    ("one that broke off is, too", None, CircuitEvent.BROKEN, Circuit(in_a_row=1, window=NOW, ill=1, seen=1)),
    (
        "an answer ends the row", Circuit(in_a_row=4, hopeless=3, window=NOW - 1, ill=4, seen=6), CircuitEvent.WELL,
        Circuit(in_a_row=0, window=NOW - 1, ill=4, seen=7),
    ),
    (
        "the fifth in a row opens", Circuit(in_a_row=4, hopeless=3, window=NOW - 1, ill=4, seen=6), CircuitEvent.ILL,
        Circuit(CircuitState.OPEN, NOW, NOW + FIRST_REST_S, openings=1, hopeless=4),
    ),
    (
        "the fifth that breaks off opens", Circuit(in_a_row=4, window=NOW - 1, ill=4, seen=6), CircuitEvent.BROKEN,
        Circuit(CircuitState.OPEN, NOW, NOW + FIRST_REST_S, openings=1),
    ),
    (
        "half of twenty opens", Circuit(in_a_row=1, window=NOW - 1, ill=9, seen=19), CircuitEvent.ILL,
        Circuit(CircuitState.OPEN, NOW, NOW + FIRST_REST_S, openings=1, hopeless=1),
    ),
    (
        "less than half does not", Circuit(in_a_row=1, window=NOW - 1, ill=8, seen=19), CircuitEvent.ILL,
        Circuit(in_a_row=2, hopeless=1, window=NOW - 1, ill=9, seen=20),
    ),
    (
        "half of fewer does not", Circuit(in_a_row=1, window=NOW - 1, ill=9, seen=18), CircuitEvent.ILL,
        Circuit(in_a_row=2, hopeless=1, window=NOW - 1, ill=10, seen=19),
    ),
    (
        "a window ends", Circuit(in_a_row=1, window=NOW - WINDOW_S, ill=9, seen=19), CircuitEvent.ILL,
        Circuit(in_a_row=2, hopeless=1, window=NOW, ill=1, seen=1),
    ),
    ("who is well for a window is forgotten", Circuit(window=NOW - WINDOW_S, ill=9, seen=50), CircuitEvent.WELL, None),
    ("open: whoever came all the same is answered", OPEN, CircuitEvent.WELL, CLOSED_AGAIN),
    ("open: whoever came all the same fails", OPEN, CircuitEvent.ILL, OPEN._replace(hopeless=1)),
    ("open: whoever came all the same is broken off", OPEN, CircuitEvent.BROKEN, OPEN),
    ("open: a client leaves", OPEN, CircuitEvent.NOTHING, OPEN),
    ("cooled: a call", RESTED, CircuitEvent.BEGIN, Circuit(CircuitState.HALF_OPEN, NOW, NOW + PROBE_S, openings=1)),
    ("rested: nobody comes", RESTED, CircuitEvent.RESTED, Circuit(CircuitState.HALF_OPEN, NOW, NOW, openings=1)),
    ("open: proven well", OPEN, CircuitEvent.PROVEN, CLOSED_AGAIN),
    ("half-open: the probe begins", AWAITING, CircuitEvent.BEGIN, AWAITING._replace(until=NOW + PROBE_S)),
    ("half-open: the probe is answered", PROBED, CircuitEvent.WELL, CLOSED_AGAIN),
    ("half-open: proven well", PROBED, CircuitEvent.PROVEN, CLOSED_AGAIN),
    (
        "half-open: the probe fails", PROBED, CircuitEvent.ILL,
        Circuit(CircuitState.OPEN, NOW, NOW + 2 * FIRST_REST_S, openings=2, hopeless=1),
    ),
    (
        "half-open: the probe is broken off", PROBED._replace(hopeless=9), CircuitEvent.BROKEN,
        Circuit(CircuitState.OPEN, NOW, NOW + 2 * FIRST_REST_S, openings=2, hopeless=9),
    ),
    ("half-open: nobody knows", PROBED, CircuitEvent.NOTHING, PROBED._replace(until=NOW)),
    ("closed again: well", CLOSED_AGAIN, CircuitEvent.WELL, CLOSED_AGAIN),
    ("closed again for long: well", CLOSED_AGAIN._replace(since=NOW - CALM_S), CircuitEvent.WELL, None),
]  # fmt: skip


@pytest.mark.parametrize(("before", "event", "then"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_row(before: Circuit | None, event: CircuitEvent, then: Circuit | None) -> None:
    assert after(before, event, NOW) == then


@pytest.mark.parametrize(
    ("circuit", "admitted"),
    [(None, True), (Circuit(in_a_row=4), True), (OPEN, False), (RESTED, True), (AWAITING, True), (PROBED, False),
     (PROBED._replace(until=NOW), True)],
)  # fmt: skip
def test_admits(circuit: Circuit | None, admitted: bool) -> None:
    assert admits(circuit, NOW) is admitted


@pytest.mark.parametrize(("event", "is_without_hope"), [(CircuitEvent.ILL, True), (CircuitEvent.BROKEN, False)])
def test_hope_ends_with_the_tenth_that_brings_nothing(event: CircuitEvent, is_without_hope: bool) -> None:
    circuit = story(*[event] * (HOPELESS_AFTER - 1))
    assert not is_hopeless(circuit)
    circuit = after(circuit, event, NOW)
    assert is_hopeless(circuit) is is_without_hope
    probed = after(after(circuit, CircuitEvent.BEGIN, NOW + FIRST_REST_S), event, NOW + FIRST_REST_S)
    assert is_hopeless(probed) is is_without_hope
    assert not is_hopeless(after(circuit, CircuitEvent.WELL, NOW))
    assert not is_hopeless(None)


def test_rests_grow_and_are_bounded() -> None:
    circuit: Circuit | None = None
    now, rests = NOW, []
    for _ in range(IN_A_ROW):
        circuit = after(circuit, CircuitEvent.ILL, now)
    for _ in range(20):
        assert circuit is not None
        rests.append(circuit.until - now)
        now = circuit.until
        circuit = after(after(circuit, CircuitEvent.BEGIN, now), CircuitEvent.ILL, now)
    assert rests[:5] == [FIRST_REST_S * 2**n for n in range(5)]
    assert rests[-1] == LONGEST_REST_S


@pytest.mark.parametrize(("closed_for_s", "rest_s"), [(CALM_S - 1, 2 * FIRST_REST_S), (CALM_S, FIRST_REST_S)])
def test_who_falls_ill_again_soon_rests_for_longer(closed_for_s: float, rest_s: float) -> None:
    circuit: Circuit | None = CLOSED_AGAIN
    now = NOW + closed_for_s
    for _ in range(IN_A_ROW):
        circuit = after(circuit, CircuitEvent.ILL, now)
    assert circuit is not None
    assert circuit.until - now == rest_s


def test_calls_from_before_it_changed_are_not_heard() -> None:
    assert is_heard(None, -inf)
    assert is_heard(Circuit(in_a_row=3), NOW - 600)
    assert not is_heard(PROBED, PROBED.since - 0.001)
    assert is_heard(PROBED, PROBED.since)


@pytest.mark.parametrize(
    ("failure", "event"),
    [
        (None, CircuitEvent.WELL),
        (Failure("up", Phase.CONNECT, Fault.CONNECT), CircuitEvent.ILL),
        (Failure("up", Phase.CONNECT, Fault.TIMEOUT), CircuitEvent.ILL),
        (Failure("up", Phase.CONNECT, Fault.CUT), CircuitEvent.ILL),
        (Failure("up", Phase.CONNECT, Fault.BUSY), CircuitEvent.NOTHING),
        (Failure("up", Phase.STALE, Fault.CUT), CircuitEvent.NOTHING),
        (Failure("up", Phase.WAITING, Fault.TIMEOUT), CircuitEvent.ILL),
        (Failure("up", Phase.WAITING, Fault.CUT), CircuitEvent.ILL),
        (Failure("up", Phase.WAITING, Fault.PROTOCOL), CircuitEvent.ILL),
        (Failure("up", Phase.WAITING, Fault.NOT_JSON), CircuitEvent.ILL),
        (Failure("up", Phase.WAITING, Fault.TOO_LARGE), CircuitEvent.NOTHING),
        (Failure("up", Phase.WAITING, Fault.CUT, has_begun=True), CircuitEvent.BROKEN),
        (Failure("up", Phase.RELAYING, Fault.CUT, has_begun=True), CircuitEvent.BROKEN),
        (Failure("up", Phase.RELAYING, Fault.TIMEOUT, has_begun=True), CircuitEvent.BROKEN),
        (Failure("up", Phase.REFUSED, Fault.IN_BAND, has_begun=True), CircuitEvent.BROKEN),
        (Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, has_begun=True), CircuitEvent.NOTHING),
        (Failure("up", Phase.RELAYING, Fault.TIMEOUT, was_held_back=True), CircuitEvent.NOTHING),
        (Failure("up", Phase.RELAYING, Fault.CUT, was_held_back=True), CircuitEvent.NOTHING),
        (Failure("up", Phase.REFUSED, Fault.STATUS, status=500), CircuitEvent.ILL),
        (Failure("up", Phase.REFUSED, Fault.STATUS, status=503), CircuitEvent.ILL),
        (Failure("up", Phase.REFUSED, Fault.STATUS, status=409), CircuitEvent.NOTHING),
        (Failure("up", Phase.REFUSED, Fault.NO_CHANNEL, status=503), CircuitEvent.ILL),
        (Failure("up", Phase.REFUSED, Fault.REDIRECT, status=302), CircuitEvent.ILL),
        (Failure("up", Phase.REFUSED, Fault.IN_BAND), CircuitEvent.ILL),
        (Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429), CircuitEvent.NOTHING),
        (Failure("up", Phase.REFUSED, Fault.AUTH, status=401), CircuitEvent.NOTHING),
        (Failure("up", Phase.REFUSED, Fault.BALANCE, status=403), CircuitEvent.NOTHING),
    ],
)
def test_what_counts(failure: Failure | None, event: CircuitEvent) -> None:
    assert verdict(failure) is event


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
        is_first = self.state is CircuitState.CLOSED and now - self.changed >= CALM_S
        self.openings = 1 if is_first else self.openings + 1
        rest_s = FIRST_REST_S
        for _ in range(self.openings - 1):
            rest_s = min(LONGEST_REST_S, rest_s * 2)
        self._become(CircuitState.OPEN, now)
        self.rests_until = now + rest_s

    def admits(self, now: float) -> bool:
        return self.state is CircuitState.CLOSED or now >= self.rests_until

    def hear(self, event: CircuitEvent, now: float) -> None:
        if event is CircuitEvent.ILL:
            self.without_hope += 1
        elif event in (CircuitEvent.WELL, CircuitEvent.PROVEN):
            self.without_hope = 0
        match self.state:
            case CircuitState.CLOSED if event in (
                CircuitEvent.WELL,
                CircuitEvent.ILL,
                CircuitEvent.BROKEN,
                CircuitEvent.PROVEN,
            ):
                self._count(event in (CircuitEvent.ILL, CircuitEvent.BROKEN), now)
            case CircuitState.OPEN | CircuitState.HALF_OPEN if event in (CircuitEvent.WELL, CircuitEvent.PROVEN):
                self._become(CircuitState.CLOSED, now)
            case CircuitState.OPEN if event in (CircuitEvent.BEGIN, CircuitEvent.RESTED):
                self._become(CircuitState.HALF_OPEN, now)
                self.rests_until = now + PROBE_S if event is CircuitEvent.BEGIN else now
            case CircuitState.HALF_OPEN if event is CircuitEvent.BEGIN:
                self.rests_until = now + PROBE_S
            case CircuitState.HALF_OPEN if event is CircuitEvent.NOTHING:
                self.rests_until = now
            case CircuitState.HALF_OPEN if event in (CircuitEvent.ILL, CircuitEvent.BROKEN):
                self._open(now)

    def _count(self, is_ill: bool, now: float) -> None:
        if self.outcomes and now - self.outcomes[0][0] >= WINDOW_S:
            self.outcomes = []
        if is_ill or self.outcomes:  # a window begins with a failure
            self.outcomes.append((now, is_ill))
        self.row = [*self.row, True] if is_ill else []
        ill = len([None for _, failed in self.outcomes if failed])
        is_half = len(self.outcomes) >= AT_LEAST and ill / len(self.outcomes) >= SHARE
        if is_ill and (len(self.row) >= IN_A_ROW or is_half):
            self._open(now)


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 1.0, 4.0, 20.0, 70.0]),
        st.sampled_from([*CircuitEvent, CircuitEvent.ILL, CircuitEvent.ILL, CircuitEvent.BROKEN]),
    ),
    max_size=120,
)


@given(STEPS)
def test_it_is_what_the_naive_model_says(steps: list[tuple[float, CircuitEvent]]) -> None:
    naive, circuit, now = Naive(), None, NOW
    for wait_s, event in steps:
        now += wait_s
        if event in (CircuitEvent.BEGIN, CircuitEvent.RESTED) and not admits(circuit, now):
            continue  # nobody begins where nobody is admitted
        naive.hear(event, now)
        circuit = after(circuit, event, now)
        assert admits(circuit, now) is naive.admits(now)
        assert (CircuitState.CLOSED if circuit is None else circuit.state) is naive.state
        if circuit is not None and circuit.state is CircuitState.OPEN:
            assert circuit.until == naive.rests_until
        assert is_hopeless(circuit) is (naive.without_hope >= HOPELESS_AFTER)
        assert is_heard(circuit, now)


@given(STEPS)
def test_half_open_lets_one_probe_through_at_a_time(steps: list[tuple[float, CircuitEvent]]) -> None:
    circuit, now, begun_at = None, NOW, -inf
    for wait_s, event in steps:
        now += wait_s
        was_half_open = circuit is not None and circuit.state is not CircuitState.CLOSED
        if event is CircuitEvent.BEGIN and was_half_open and admits(circuit, now):
            assert now - begun_at >= PROBE_S
            begun_at = now
        elif event is not CircuitEvent.BEGIN:
            begun_at = -inf
        if event not in (CircuitEvent.BEGIN, CircuitEvent.RESTED) or admits(circuit, now):
            circuit = after(circuit, event, now)


@given(st.lists(st.sampled_from([CircuitEvent.BEGIN, CircuitEvent.WELL, CircuitEvent.NOTHING, CircuitEvent.PROVEN])))
def test_who_never_fails_is_never_remembered(events: list[CircuitEvent]) -> None:
    assert story(*events, step_s=1.0) is None
