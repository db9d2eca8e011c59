"""The keys of one upstream: in turn, and at rest when they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.records import Failure, Fault, Phase
from gateway.upstream.circuit_breaker import WINDOW_S
from gateway.upstream.credentials import (
    ANYONE,
    COOLDOWN_S,
    LAST_KEY_COOLDOWN_S,
    MAX_COOLDOWNS,
    MAX_RATE_LIMIT_COOLDOWN_S,
    RATE_LIMIT_COOLDOWN_S,
    SOLE_KEY_UNAVAILABLE_AFTER,
    TRIAL_S,
    UNAVAILABLE_AFTER,
    Asker,
    Credentials,
    Grade,
)
from tests.amounts import amount

NOW = 1000.0
UNKNOWN = Failure("up", Phase.REFUSED, Fault.AUTH, status=401)
FORBIDDEN = Failure("up", Phase.REFUSED, Fault.AUTH, status=403)
SPENT = Failure("up", Phase.REFUSED, Fault.BALANCE, status=403)
LIMITED = Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429, retry_after_s=5)


def refuse(
    keys: Credentials, failure: Failure, place: int = 0, times: int = 1, now: float = NOW, caller: str = ""
) -> None:
    """Report this failure for a number of attempts, one after the other."""
    for _ in range(times):
        keys.refused(place, "m", failure, now, now, Asker(caller))


def test_keys_are_used_in_turn() -> None:
    keys = Credentials(3)
    assert [keys.take("m", NOW) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [Credentials(1).take("m", NOW) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("failure", [UNKNOWN, FORBIDDEN, SPENT, LIMITED], ids=str)
def test_a_refused_key_has_a_cooldown_while_others_are_used_in_turn(failure: Failure) -> None:
    keys = Credentials(3)
    refuse(keys, failure, place=1)
    assert [keys.take("m", NOW) for _ in range(4)] == [0, 2, 0, 2]
    assert keys.grade("m", NOW) is Grade.HEALTHY


@pytest.mark.parametrize(("failure", "rest_s"), [(UNKNOWN, COOLDOWN_S), (SPENT, COOLDOWN_S), (LIMITED, 5.0)])
def test_refused_key_is_tried_again_after_its_rest(failure: Failure, rest_s: float) -> None:
    keys = Credentials(2)
    refuse(keys, failure, times=9)
    assert 0 not in [keys.take("m", NOW + rest_s - 0.1) for _ in range(4)]
    assert 0 in [keys.take("m", NOW + rest_s) for _ in range(2)]


def test_a_stated_pause_is_over_when_its_time_is() -> None:
    keys = Credentials(2)
    refuse(keys, LIMITED)
    assert (keys.pause_s("m", NOW), keys.pause_s("m", NOW, 0), keys.pause_s("other", NOW, 0)) == (0, 5, 0)
    refuse(keys, replace(LIMITED, retry_after_s=3), place=1)
    assert keys.pause_s("m", NOW) == 3
    assert keys.pause_s("m", NOW + 3) == 0


@pytest.mark.parametrize("failure", [UNKNOWN, SPENT, replace(LIMITED, retry_after_s=None)])
def test_no_pause_is_made_up(failure: Failure) -> None:
    keys = Credentials(1)
    refuse(keys, failure)
    assert keys.pause_s("m", NOW) == 0


def test_after_a_pause_one_call_at_a_time_is_sent_until_one_is_accepted() -> None:
    keys = Credentials(1)
    refuse(keys, LIMITED)
    keys.begun(0, "m", NOW + 4)  # a call that cannot wait
    assert keys.pause_s("m", NOW + 5) == 0
    keys.begun(0, "m", NOW + 5)
    assert keys.pause_s("m", NOW + 5) == TRIAL_S
    assert keys.grade("m", NOW + 5) is Grade.HEALTHY
    keys.begun(0, "m", NOW + 5 + TRIAL_S)
    assert keys.pause_s("m", NOW + 5 + TRIAL_S) == TRIAL_S
    keys.accepted(0, "m", NOW + 5)
    assert keys.pause_s("m", NOW + 5 + TRIAL_S) == 0


ALICE, BOB, CAROL = Asker("alice"), Asker("bob"), Asker("carol")


def pauses(keys: Credentials, now: float, *askers: Asker) -> list[float]:
    return [keys.pause_s("m", now, 0, asker) for asker in askers]


def limited(keys: Credentials, now: float, asker: Asker, seconds: float, *, has_room: bool | None = None) -> None:
    keys.refused(0, "m", replace(LIMITED, retry_after_s=seconds, has_room=has_room), now, now, asker)


def test_a_429_pauses_its_caller_and_all_while_two_are_paused() -> None:
    keys = Credentials(1)
    limited(keys, NOW, ALICE, 60)
    assert pauses(keys, NOW, ALICE, BOB, ANYONE) == [60, 0, 0]
    limited(keys, NOW + 1, BOB, 9)
    assert pauses(keys, NOW + 1, ALICE, BOB, CAROL, ANYONE) == [59, 9, 9, 9]  # not 59: one caller's word
    limited(keys, NOW + 2, ALICE, 600)
    assert pauses(keys, NOW + 2, ALICE, BOB, CAROL) == [600, 8, 8]
    limited(keys, NOW + 11, CAROL, 30)
    assert pauses(keys, NOW + 11, ALICE, BOB, CAROL) == [591, 30, 30]
    limited(keys, NOW + 12, ALICE, 5)
    assert pauses(keys, NOW + 12, BOB) == [29]


def test_after_a_pause_for_all_another_one_needs_two_refusals() -> None:
    keys = Credentials(1)
    for asker in (ALICE, BOB):
        limited(keys, NOW, asker, 60)
    limited(keys, NOW + 60, ALICE, 60)
    assert pauses(keys, NOW + 60, ALICE, CAROL) == [60, 0]
    limited(keys, NOW + 60, CAROL, 60)
    assert pauses(keys, NOW + 60, ALICE, BOB) == [60, 60]


def test_refusals_of_calls_that_ran_together_count_once_for_each_caller() -> None:
    keys = Credentials(1)
    for asker in (ALICE, ALICE, BOB, BOB, CAROL):
        keys.refused(0, "m", LIMITED, NOW - 1, NOW, asker)
    assert pauses(keys, NOW, ALICE, ANYONE) == [5, 5]
    assert {asker.caller: cooldown.refusals for (_, _, asker), cooldown in keys.cooldowns.items()} == {
        "alice": 1, "bob": 1, "carol": 1, "": 1,
    }  # fmt: skip


def test_headers_show_whom_a_429_concerns() -> None:
    keys = Credentials(1)
    for asker in (ALICE, BOB):
        limited(keys, NOW, asker, 60, has_room=True)
    assert pauses(keys, NOW, ALICE, BOB, CAROL) == [60, 60, 0]
    limited(keys, NOW, CAROL, 60)  # it is the first one without room
    assert pauses(keys, NOW, ANYONE) == [0]
    limited(keys, NOW + 1, ALICE, 60, has_room=False)
    assert pauses(keys, NOW + 1, ANYONE) == [60]


def test_a_429_of_a_service_is_about_that_service() -> None:
    keys = Credentials(1)
    flex = [asker._replace(service="flex") for asker in (ALICE, BOB, CAROL)]
    for asker in flex[:2] * SOLE_KEY_UNAVAILABLE_AFTER:
        limited(keys, NOW, asker, 60, has_room=False)
    assert pauses(keys, NOW, *flex, ALICE, BOB, ALICE._replace(service="fast")) == [60, 60, 60, 0, 0, 0]
    assert keys.grade("m", NOW, asker=ALICE) is Grade.HEALTHY
    keys.accepted(0, "m", NOW + 1, ALICE)
    assert pauses(keys, NOW + 1, flex[0]) == [59]
    limited(keys, NOW + 1, ALICE, 5)
    limited(keys, NOW + 1, BOB, 5)
    assert pauses(keys, NOW + 1, CAROL._replace(service="fast")) == [5]  # of ordinary calls it is about all


def test_a_caller_that_never_returns_is_forgotten() -> None:
    keys = Credentials(1)
    limited(keys, NOW, ALICE, 60)
    keys.accepted(0, "m", NOW + 60, BOB)
    assert keys.cooldowns
    keys.accepted(0, "m", NOW + 60 + WINDOW_S, BOB)
    assert not keys.cooldowns


OWN = replace(UNKNOWN, is_of_credential=True)
"""The reseller's own text about the gateway's key."""

Received = tuple[str, Failure | None]
"""A model, and the refusal; None: a success."""

SCOPES: list[tuple[list[Received], dict[str, Grade]]] = [
    # The failures of a single key, in order; then its grade for each model.
    #
    # A refusal concerns the model that was asked for, however often it is repeated.
    ([("a", UNKNOWN)], {"a": Grade.DEGRADED, "c": Grade.HEALTHY}),
    ([("a", UNKNOWN)] * 12, {"a": Grade.UNAVAILABLE, "c": Grade.HEALTHY}),
    ([("a", SPENT)] * 12, {"a": Grade.UNAVAILABLE, "c": Grade.HEALTHY}),
    ([("a", LIMITED)] * 12, {"a": Grade.UNAVAILABLE, "c": Grade.HEALTHY}),
    ([("a", FORBIDDEN)] * 12, {"a": Grade.UNAVAILABLE, "c": Grade.HEALTHY}),
    # Of two models it concerns the key; but a model that was not refused itself is always tried.
    ([("a", UNKNOWN), ("b", UNKNOWN)], {"a": Grade.DEGRADED, "b": Grade.DEGRADED, "c": Grade.DEGRADED}),
    ([("a", SPENT), ("b", UNKNOWN)], {"c": Grade.DEGRADED}),
    ([*[("a", UNKNOWN)] * 12, *[("b", UNKNOWN)] * 12], {"b": Grade.UNAVAILABLE, "c": Grade.DEGRADED}),
    # Rate limits and 403 do not: a client can cause them with any number of models.
    ([("a", LIMITED), ("b", LIMITED)], {"c": Grade.HEALTHY}),
    ([("a", FORBIDDEN), ("b", FORBIDDEN), ("a", LIMITED)], {"c": Grade.HEALTHY}),
    # A success of another model in between, or later, shows that the key is accepted.
    ([("a", UNKNOWN), ("c", None), ("b", UNKNOWN)], {"a": Grade.DEGRADED, "c": Grade.HEALTHY}),
    ([("a", UNKNOWN), ("b", UNKNOWN), ("c", None)], {"a": Grade.DEGRADED, "c": Grade.HEALTHY, "d": Grade.HEALTHY}),
    ([("a", UNKNOWN), ("b", UNKNOWN), ("a", None)], {"a": Grade.HEALTHY, "b": Grade.DEGRADED, "c": Grade.HEALTHY}),
    ([*[("a", UNKNOWN)] * 12, ("c", None), ("a", UNKNOWN)], {"a": Grade.UNAVAILABLE, "c": Grade.HEALTHY}),
    # The reseller's own text concerns the key at once, until a success.
    ([("a", OWN)], {"a": Grade.DEGRADED, "c": Grade.DEGRADED}),
    ([("a", OWN)] * 10, {"a": Grade.UNAVAILABLE, "c": Grade.UNAVAILABLE}),
    ([*[("a", OWN)] * 10, ("c", None)], {"a": Grade.HEALTHY, "c": Grade.HEALTHY}),
    ([*[("a", OWN)] * 10, ("a", UNKNOWN), ("b", UNKNOWN)], {"c": Grade.UNAVAILABLE}),
]


@pytest.mark.parametrize(("received", "grades"), SCOPES)
def test_scope_of_a_refusal(received: list[Received], grades: dict[str, Grade]) -> None:
    keys, now = Credentials(1), NOW
    for model, failure in received:
        now += 0.1
        if failure is None:
            keys.accepted(0, model, now)
        else:
            keys.refused(0, model, failure, now, now)
    assert {model: keys.grade(model, now) for model in grades} == grades


def test_a_success_that_began_before_the_refusals_says_nothing() -> None:
    keys = Credentials(1)
    refuse(keys, UNKNOWN)
    keys.accepted(0, "c", NOW - 1)
    keys.refused(0, "b", UNKNOWN, NOW + 1, NOW + 1)
    assert keys.grade("c", NOW + 1) is Grade.DEGRADED


def test_last_key_is_tried_again_soon_and_then_less_often() -> None:
    """So a balance that was topped up is noticed within 5 to 20 s, where nothing else is left."""
    keys = Credentials(1)
    cooldowns = [keys.refused(0, "m", SPENT, NOW + number, NOW + number) for number in range(14)]
    assert [each.until - each.since for each in cooldowns if each] == [5.0] * 10 + [10.0, 20.0, 20.0, 20.0]


def test_only_the_last_of_several_keys_is_tried_again_soon() -> None:
    keys = Credentials(2)
    first, second = (keys.refused(place, "m", SPENT, NOW, NOW) for place in (0, 1))
    assert first is not None
    assert second is not None
    assert (first.until, second.until) == (NOW + COOLDOWN_S, NOW + LAST_KEY_COOLDOWN_S)


@pytest.mark.parametrize("failure", [UNKNOWN, FORBIDDEN, SPENT, LIMITED], ids=str)
def test_only_key_is_barred_when_it_is_certain(failure: Failure) -> None:
    keys = Credentials(1)
    grades = []
    for _ in range(SOLE_KEY_UNAVAILABLE_AFTER + 1):
        grades.append(keys.grade("m", NOW))
        refuse(keys, failure)
    assert grades == [Grade.HEALTHY, *[Grade.DEGRADED] * (SOLE_KEY_UNAVAILABLE_AFTER - 1), Grade.UNAVAILABLE]
    rest = keys.first_available("m", NOW + 1)
    assert rest is not None
    assert rest.fault is failure.fault


@pytest.mark.parametrize("failure", [FORBIDDEN, SPENT, replace(SPENT, is_of_credential=True)], ids=str)
@pytest.mark.parametrize("number", [1, 2])
def test_refusals_of_one_caller_bar_no_other(failure: Failure, number: int) -> None:
    keys = Credentials(number)
    for place in range(number):
        refuse(keys, failure, place, times=2 * SOLE_KEY_UNAVAILABLE_AFTER, caller="alice")
    grades = [keys.grade("m", NOW, (), Asker(caller)) for caller in ("alice", "bob", "")]
    assert grades == [Grade.UNAVAILABLE, Grade.DEGRADED, Grade.UNAVAILABLE]
    for place in range(number):
        refuse(keys, failure, place, caller="bob")
    assert keys.grade("m", NOW, (), Asker("carol")) is Grade.UNAVAILABLE


def test_of_several_keys_it_is_certain_sooner() -> None:
    keys = Credentials(2)
    for place in (0, 1):
        refuse(keys, UNKNOWN, place, times=UNAVAILABLE_AFTER - 1)
    assert keys.grade("m", NOW) is Grade.DEGRADED
    for place in (0, 1):
        refuse(keys, UNKNOWN, place)
    assert keys.grade("m", NOW) is Grade.UNAVAILABLE


def test_an_answer_ends_the_row() -> None:
    keys = Credentials(1)
    refuse(keys, UNKNOWN, times=2)
    keys.accepted(0, "m", NOW)
    assert not keys.cooldowns
    refuse(keys, UNKNOWN, times=2)
    assert keys.grade("m", NOW) is Grade.DEGRADED


def test_refusals_in_a_row_go_on_after_the_rest() -> None:
    keys = Credentials(1)
    refuse(keys, UNKNOWN, times=SOLE_KEY_UNAVAILABLE_AFTER)
    later = NOW + LAST_KEY_COOLDOWN_S
    assert keys.grade("m", later) is Grade.HEALTHY
    refuse(keys, UNKNOWN, now=later)
    assert keys.grade("m", later) is Grade.UNAVAILABLE


def test_many_calls_at_once_learn_of_one_refusal() -> None:
    keys = Credentials(1)
    received = [keys.refused(0, "m", UNKNOWN, NOW - 1 + number / 100, NOW + number / 100) for number in range(50)]
    assert [rest is not None for rest in received] == [True] + [False] * 49
    assert keys.grade("m", NOW + 1) is Grade.DEGRADED
    keys.accepted(0, "m", NOW - 5)  # a long stream that began before
    assert keys.cooldowns


@pytest.mark.parametrize(
    ("said", "rest_s"),
    [(None, RATE_LIMIT_COOLDOWN_S), (0.0, RATE_LIMIT_COOLDOWN_S), (3.5, 3.5), (1e9, MAX_RATE_LIMIT_COOLDOWN_S)],
)
def test_a_rate_limit_gives_the_cooldown_of_retry_after(said: float | None, rest_s: float) -> None:
    rest = Credentials(1).refused(0, "m", Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, "", 429, said), NOW, NOW)
    assert rest is not None
    assert rest.until - rest.since == rest_s


def test_call_shows_no_key_twice_while_it_has_another() -> None:
    keys = Credentials(3)
    refuse(keys, UNKNOWN, place=1)
    assert keys.take("m", NOW, used=[0]) == 2
    assert keys.take("m", NOW, used=[0, 2]) == 1
    assert keys.grade("m", NOW, used=[0, 2]) is Grade.DEGRADED
    assert keys.grade("m", NOW, used=[0, 1, 2]) is Grade.UNAVAILABLE


@pytest.mark.shortened
def test_any_number_of_models_takes_little_memory() -> None:
    keys = Credentials(2)
    many = amount(10_000, 2_000)
    for number in range(many):
        keys.refused(0, f"made up {number}", LIMITED, NOW, NOW)
    assert len(keys.cooldowns) == MAX_COOLDOWNS
    assert keys.take(f"made up {many - 1}", NOW) == 1
