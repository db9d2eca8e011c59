"""The table of outages: each state with each event, what a worker does then, and how long it may go on alone."""

from __future__ import annotations

from itertools import product
from typing import Literal, get_args

import pytest

from gateway.accounting.outage import MOVES, TRY_AGAIN_S, Outage, OutageAction, OutageEvent, OutageState, TimeAway

OnOutage = Literal["deny", "allow"]

TABLE = """
deny   UP       LOST       DENYING  REPORT GIVE_UP
deny   UP       HOLD_OVER  UP
deny   UP       APPLIED    UP
deny   SUSPECT  LOST       -
deny   SUSPECT  HOLD_OVER  -
deny   SUSPECT  APPLIED    -
deny   ALONE    LOST       -
deny   ALONE    HOLD_OVER  -
deny   ALONE    APPLIED    -
deny   DENYING  LOST       DENYING  GIVE_UP
deny   DENYING  HOLD_OVER  DENYING
deny   DENYING  APPLIED    UP       RESUME
allow  UP       LOST       SUSPECT  REPORT HOLD
allow  UP       HOLD_OVER  UP
allow  UP       APPLIED    UP
allow  SUSPECT  LOST       ALONE    GO_ALONE GIVE_UP
allow  SUSPECT  HOLD_OVER  ALONE    GO_ALONE
allow  SUSPECT  APPLIED    UP       RESUME
allow  ALONE    LOST       ALONE    GIVE_UP
allow  ALONE    HOLD_OVER  ALONE
allow  ALONE    APPLIED    UP       RESUME
allow  DENYING  LOST       -
allow  DENYING  HOLD_OVER  -
allow  DENYING  APPLIED    -
"""
"""`on_outage`, state, event, next state and actions; a dash: the worker is never in this state."""

ROWS = {tuple(line.split()[:3]): line.split()[3:] for line in TABLE.strip().splitlines()}


@pytest.mark.parametrize("on_outage", get_args(OnOutage))
@pytest.mark.parametrize("event", OutageEvent)
@pytest.mark.parametrize("state", OutageState)
def test_each_event_in_each_state(on_outage: OnOutage, state: OutageState, event: OutageEvent) -> None:
    to, *actions = ROWS[on_outage, state.name, event.name]
    move = MOVES[on_outage].get((state, event))
    if to == "-":
        assert move is None
        return
    assert move == (OutageState[to], tuple(OutageAction[name] for name in actions))
    outage = Outage(on_outage, 900)
    outage.state = state
    assert outage.move(event, 0) == move[1]
    assert (outage.state, outage.is_up) == (move[0], move[0] is OutageState.UP)


@pytest.mark.parametrize("on_outage", get_args(OnOutage))
def test_the_table_has_a_move_for_each_event_in_each_state_that_is_reached(on_outage: OnOutage) -> None:
    reached, ahead = {OutageState.UP}, [OutageState.UP]
    while ahead:
        state = ahead.pop()
        new = {MOVES[on_outage][state, event][0] for event in OutageEvent} - reached
        reached |= new
        ahead += new
    assert set(MOVES[on_outage]) == set(product(reached, OutageEvent))


@pytest.mark.parametrize("on_outage", get_args(OnOutage))
def test_an_outage_keeps_its_first_error_and_its_beginning_until_it_ends(on_outage: OnOutage) -> None:
    outage = Outage(on_outage, 900)
    outage.lose("first", 10)
    outage.lose("second", 20)
    assert (outage.why, outage.since) == ("first", 10)
    outage.move(OutageEvent.APPLIED, 30)
    assert outage.why == ""
    outage.lose("third", 40)
    assert (outage.why, outage.since) == ("third", 40)


def test_pauses_grow_to_the_longest_and_each_outage_begins_with_the_shortest() -> None:
    outage = Outage("deny", 900)
    for _ in range(2):
        outage.lose("away", 0)
        pauses = []
        for _ in range(len(TRY_AGAIN_S) + 2):
            pauses.append(outage.next_pause_s())
            outage.lose("away", 1)
        assert pauses == [*TRY_AGAIN_S, TRY_AGAIN_S[-1], TRY_AGAIN_S[-1]]
        outage.move(OutageEvent.APPLIED, 2)


def test_a_worker_goes_on_alone_only_with_a_share_and_while_time_is_left() -> None:
    denying, alone = Outage("deny", 900), Outage("allow", 900)
    assert not alone.may_go_on_alone(0)
    for outage in (denying, alone):
        outage.lose("away", 100)
    assert [outage.may_go_on_alone(100) for outage in (denying, alone)] == [False, True]
    alone.move(OutageEvent.HOLD_OVER, 101)
    assert [alone.may_go_on_alone(at) for at in (999, 1000)] == [True, False]
    alone.move(OutageEvent.APPLIED, 1100)
    alone.lose("away", 1200)
    assert not alone.may_go_on_alone(1200)
    assert alone.may_go_on_alone(4700), "the first outage ended an hour ago"


@pytest.mark.parametrize(
    ("max_s", "outages", "at", "is_spent"),
    [
        (900, [], 0, False),
        (900, [(0, None)], 899, False),
        (900, [(0, None)], 900, True),
        (900, [(0, 500), (600, None)], 999, False),
        (900, [(0, 500), (600, None)], 1000, True),
        (900, [(0, 500), (4000, None)], 4100, False),
        (900, [(0, 500), (4100, None)], 4999, False),
        (900, [(0, 500), (4100, None)], 5000, True),
        (7200, [(0, None)], 7199, False),
        (7200, [(0, None)], 7200, True),
        (0, [(0, None)], 0, True),
    ],
)
def test_time_away_within_a_sliding_hour(
    max_s: float, outages: list[tuple[float, float | None]], at: float, is_spent: bool
) -> None:
    away = TimeAway(max_s)
    for began, ended in outages:
        away.begin(began)
        if ended is not None:
            away.end(ended)
    assert away.is_spent(at) == is_spent
