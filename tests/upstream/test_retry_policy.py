"""All retry policy, as a table: what has failed so far, who is left, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Model, Route
from gateway.records import Failure, Fault, Phase
from gateway.upstream.retry_policy import (
    MAX_PAUSES_S,
    FailedAttempt,
    GiveUp,
    Try,
    client_timeout_s,
    may_client_repeat,
    may_wait,
    next_step,
)

CONNECT = Failure("up", Phase.CONNECT, Fault.CONNECT)
SLOW_CONNECT = Failure("up", Phase.CONNECT, Fault.TIMEOUT)
CUT_BEFORE_SENT = Failure("up", Phase.CONNECT, Fault.CUT)
BUSY = Failure("up", Phase.CONNECT, Fault.BUSY)
STALE = Failure("up", Phase.STALE, Fault.CUT)
REFUSED = Failure("up", Phase.REFUSED, Fault.STATUS, status=500)
SHUT_BRIEFLY = Failure("up", Phase.REFUSED, Fault.STATUS, status=503, retry_after_s=0.3)
SHUT_AT_ONCE = Failure("up", Phase.REFUSED, Fault.STATUS, status=503, retry_after_s=0)
SHUT = Failure("up", Phase.REFUSED, Fault.STATUS, status=503, retry_after_s=7)
LIMITED = Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429)
LIMITED_BRIEFLY = Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429, retry_after_s=1)
LIMITED_NOT_AT_ALL = Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429, retry_after_s=0)
FULL_BRIEFLY = Failure("up", Phase.CONNECT, Fault.LIMIT, retry_after_s=0.2)
FULL = Failure("up", Phase.CONNECT, Fault.LIMIT, retry_after_s=7)
AUTH = Failure("up", Phase.REFUSED, Fault.AUTH, status=401)
BALANCE = Failure("up", Phase.REFUSED, Fault.BALANCE, status=403)
NO_CHANNEL = Failure("up", Phase.REFUSED, Fault.NO_CHANNEL, status=503)
WAITING = Failure("up", Phase.WAITING, Fault.TIMEOUT)
CUT = Failure("up", Phase.WAITING, Fault.CUT)
PAGE = Failure("up", Phase.WAITING, Fault.NOT_JSON)
RELAYING = Failure("up", Phase.RELAYING, Fault.CUT)

HERE = Route(upstream="up")
ALIAS = Route(upstream="up", model="other")
THERE = Route(upstream="there", priority=2)
FAR = Route(upstream="far", priority=3)

GIVE_UP = "give up"
OVER_THERE = "there"
Step = tuple[float, bool] | str


def model(**changes: Any) -> Model:
    return Model.model_validate({"routes": [{"upstream": "up"}], "max_attempts": 4, **changes})


def tried(*failures: Failure, at: Route = HERE) -> list[FailedAttempt]:
    return [FailedAttempt(at, failure) for failure in failures]


TABLE: list[tuple[list[Failure], bool, Step, Step]] = [
    # Failures here, and whether the model says `repeat_when_waiting`: then what with somewhere else left, and without.
    #
    # Nothing reached the upstream: elsewhere, or again after a pause in which a restart may end.
    ([CONNECT], False, OVER_THERE, (0.1, False)),
    ([CONNECT, CONNECT], False, OVER_THERE, (0.4, False)),
    ([CONNECT, CONNECT, CONNECT], False, OVER_THERE, (0.4, False)),
    ([CONNECT] * 4, False, GIVE_UP, GIVE_UP),
    ([CONNECT] * 4, True, GIVE_UP, GIVE_UP),
    ([CUT_BEFORE_SENT], False, OVER_THERE, (0.1, False)),
    ([CONNECT, CUT_BEFORE_SENT], False, OVER_THERE, (0.4, False)),
    # The upstream was slow to connect or is full: another attempt there would only wait again.
    ([SLOW_CONNECT], True, OVER_THERE, GIVE_UP),
    ([BUSY], True, OVER_THERE, GIVE_UP),
    ([CONNECT, BUSY], False, OVER_THERE, GIVE_UP),
    # The limit of the upstream as it is configured: nothing was sent.
    ([FULL_BRIEFLY], False, OVER_THERE, (0.2, False)),
    ([FULL], True, OVER_THERE, GIVE_UP),
    # An idle connection that was closed just then: once, on a new one, also where there is an elsewhere.
    ([STALE], False, (0.0, True), (0.0, True)),
    ([STALE, STALE], False, GIVE_UP, GIVE_UP),
    ([STALE, STALE], True, OVER_THERE, (0.0, True)),
    ([STALE, CONNECT], False, OVER_THERE, (0.1, False)),
    ([CONNECT, STALE], False, (0.0, True), (0.0, True)),
    ([STALE, CONNECT, STALE], False, GIVE_UP, GIVE_UP),
    # It answered: it would answer the same, unless it says for how long.
    ([REFUSED], True, OVER_THERE, GIVE_UP),
    ([NO_CHANNEL], True, OVER_THERE, GIVE_UP),
    ([LIMITED], True, OVER_THERE, GIVE_UP),
    ([LIMITED_NOT_AT_ALL], True, OVER_THERE, GIVE_UP),
    ([LIMITED_BRIEFLY], False, OVER_THERE, (1.0, False)),
    ([SHUT_BRIEFLY], False, OVER_THERE, (0.3, False)),
    ([SHUT], False, OVER_THERE, GIVE_UP),
    ([SHUT_AT_ONCE], False, OVER_THERE, (0.1, False)),
    ([SHUT_AT_ONCE] * 2, False, OVER_THERE, (0.4, False)),
    ([SHUT_AT_ONCE] * 4, False, GIVE_UP, GIVE_UP),
    ([REFUSED, SHUT_BRIEFLY], False, OVER_THERE, (0.3, False)),
    # It refused us: no pause mends that.
    ([AUTH], True, OVER_THERE, GIVE_UP),
    ([BALANCE], True, OVER_THERE, GIVE_UP),
    # It may be at work on it: only if the model says so.
    ([WAITING], False, GIVE_UP, GIVE_UP),
    ([WAITING], True, OVER_THERE, (0.0, True)),
    ([CUT], False, GIVE_UP, GIVE_UP),
    ([CUT], True, OVER_THERE, (0.0, True)),
    ([PAGE], False, GIVE_UP, GIVE_UP),
    ([PAGE], True, OVER_THERE, (0.0, True)),
    ([WAITING] * 4, True, GIVE_UP, GIVE_UP),
    ([CONNECT, WAITING], False, GIVE_UP, GIVE_UP),
    # The client has bytes: never.
    ([RELAYING], True, GIVE_UP, GIVE_UP),
]


def check(step: Try | GiveUp, expected: Step, failures: Sequence[Failure]) -> None:
    if expected == GIVE_UP:
        assert step == GiveUp(failures[-1])
    elif expected == OVER_THERE:
        assert step == Try(THERE)
    else:
        assert step == Try(HERE, *expected)


@pytest.mark.parametrize(("failures", "repeats", "with_elsewhere", "alone"), TABLE)
def test_next_step(failures: list[Failure], repeats: bool, with_elsewhere: Step, alone: Step) -> None:
    settings = model(repeat_when_waiting=repeats)
    check(next_step(settings, [HERE, THERE], tried(*failures)), with_elsewhere, failures)
    check(next_step(settings, [HERE], tried(*failures)), alone, failures)


@pytest.mark.parametrize(("failures", "repeats", "with_elsewhere", "alone"), TABLE)
def test_who_has_spent_its_retry_budget_is_not_asked_again_but_the_others_are(
    failures: list[Failure], repeats: bool, with_elsewhere: Step, alone: Step
) -> None:
    """A stale connection causes no load: the upstream did not read the request."""
    settings = model(repeat_when_waiting=repeats)
    check(next_step(settings, [HERE, THERE], tried(*failures), spent={"up"}), with_elsewhere, failures)
    is_unread = failures[-1] is STALE and failures.count(STALE) == 1
    check(next_step(settings, [HERE], tried(*failures), spent={"up"}), alone if is_unread else GIVE_UP, failures)


@pytest.mark.parametrize(("failures", "repeats", "with_elsewhere", "alone"), TABLE)
def test_a_route_with_an_open_circuit_is_not_tried_again(
    failures: list[Failure], repeats: bool, with_elsewhere: Step, alone: Step
) -> None:
    settings = model(repeat_when_waiting=repeats)
    is_free_to_go = with_elsewhere != GIVE_UP
    check(next_step(settings, [THERE], tried(*failures)), OVER_THERE if is_free_to_go else GIVE_UP, failures)
    check(next_step(settings, [], tried(*failures)), GIVE_UP, failures)


def test_first_candidate_is_tried_first() -> None:
    assert next_step(model(), [THERE, HERE]) == Try(THERE)
    assert next_step(model(max_attempts=1), [HERE]) == Try(HERE)


def test_without_a_candidate_there_is_no_attempt() -> None:
    assert next_step(model(), []) == GiveUp(None)


@pytest.mark.parametrize("failure", [CONNECT, STALE, WAITING, SHUT_BRIEFLY], ids=lambda failure: failure.phase.value)
@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("routes", [[HERE], [HERE, THERE, FAR]], ids=len)
def test_max_attempts_ends_it(failure: Failure, attempts: int, routes: list[Route]) -> None:
    settings = model(repeat_when_waiting=True, max_attempts=attempts)
    so_far: list[FailedAttempt] = []
    while isinstance(step := next_step(settings, routes, so_far), Try):
        so_far.append(FailedAttempt(step.route, failure))
        assert len(so_far) <= attempts
    assert len(so_far) == attempts


@pytest.mark.parametrize("last", [CONNECT, REFUSED, SHUT, LIMITED, AUTH, BALANCE, WAITING], ids=lambda f: f.fault.value)
def test_each_route_has_its_turn(last: Failure) -> None:
    settings = model(repeat_when_waiting=True)
    so_far = [FailedAttempt(HERE, last)]
    assert next_step(settings, [HERE, THERE, FAR], so_far) == Try(THERE)
    so_far.append(FailedAttempt(THERE, last))
    assert next_step(settings, [HERE, THERE, FAR], so_far) == Try(FAR)


def test_another_upstream_is_somewhere_else_before_another_model_of_the_same_is() -> None:
    so_far = tried(REFUSED)
    assert next_step(model(), [HERE, ALIAS, THERE], so_far) == Try(THERE)
    assert next_step(model(), [HERE, ALIAS], so_far) == Try(ALIAS)
    assert next_step(model(), [HERE, ALIAS], so_far, spent={"up"}) == GiveUp(REFUSED)


@pytest.mark.parametrize("failure", [AUTH, BALANCE, LIMITED], ids=lambda failure: failure.fault.value)
def test_next_key_comes_before_the_next_route(failure: Failure) -> None:
    """The order of the candidates decides; needing no budget, because the key that was refused rests."""
    so_far = tried(failure)
    assert next_step(model(), [HERE, THERE], so_far, has_other_credential={HERE}, spent={"up"}) == Try(HERE)
    assert next_step(model(), [THERE, HERE], so_far, has_other_credential={HERE}) == Try(THERE)
    assert next_step(model(), [HERE], so_far, has_other_credential={HERE}) == Try(HERE)


def test_with_all_routes_tried_the_one_that_is_back_first_is_tried_again() -> None:
    so_far = [FailedAttempt(HERE, SHUT_BRIEFLY), FailedAttempt(THERE, CONNECT)]
    assert next_step(model(), [HERE, THERE], so_far) == Try(THERE, 0.1)
    assert next_step(model(), [HERE, THERE], so_far, spent={"there"}) == Try(HERE, 0.3)
    assert next_step(model(), [HERE], so_far) == Try(HERE, 0.3)
    assert next_step(model(), [HERE, THERE], [FailedAttempt(HERE, REFUSED), FailedAttempt(THERE, REFUSED)]) == GiveUp(
        REFUSED
    )


@pytest.mark.parametrize(
    ("failure", "waited_s", "is_repeated"),
    [(CONNECT, 0.9, True), (CONNECT, 0.95, False), (LIMITED_BRIEFLY, 0.0, True), (LIMITED_BRIEFLY, 0.1, False)],
)
def test_pauses_are_a_second_in_all(failure: Failure, waited_s: float, is_repeated: bool) -> None:
    step = next_step(model(), [HERE], tried(failure), waited_s=waited_s)
    assert isinstance(step, Try) is is_repeated


@pytest.mark.parametrize("routes", [[HERE], [HERE, THERE]], ids=len)
def test_nothing_is_begun_that_the_time_left_does_not_allow(routes: list[Route]) -> None:
    assert next_step(model(), routes, tried(CONNECT), left_s=0) == GiveUp(CONNECT)
    assert next_step(model(), routes, tried(CONNECT), left_s=-1) == GiveUp(CONNECT)
    assert next_step(model(), [HERE], tried(CONNECT), left_s=0.1) == GiveUp(CONNECT)
    assert next_step(model(), [HERE], tried(CONNECT), left_s=0.2) == Try(HERE, 0.1)


FAILURES = [
    CONNECT, SLOW_CONNECT, BUSY, STALE, REFUSED, SHUT_BRIEFLY, SHUT, LIMITED, AUTH, BALANCE, NO_CHANNEL, WAITING, CUT,
    PAGE, RELAYING,
]  # fmt: skip


@given(
    routes=st.permutations([HERE, ALIAS, THERE, FAR]).flatmap(lambda each: st.integers(1, 4).map(lambda n: each[:n])),
    failures=st.lists(st.sampled_from(FAILURES), min_size=10, max_size=10),
    repeats=st.booleans(),
    attempts=st.integers(1, 10),
    spent=st.sets(st.sampled_from(["up", "there", "far"])),
)
def test_whatever_fails_it_ends_and_nothing_is_sent_twice_that_must_not_be(
    routes: list[Route], failures: list[Failure], repeats: bool, attempts: int, spent: set[str]
) -> None:
    settings = model(repeat_when_waiting=repeats, max_attempts=attempts)
    so_far: list[FailedAttempt] = []
    waited_s = 0.0
    while isinstance(step := next_step(settings, routes, so_far, waited_s=waited_s, spent=spent), Try):
        waited_s += step.after_s
        before = [each for each in so_far if each.route.upstream == step.route.upstream]
        if before and step.route.upstream in spent:
            assert so_far[-1].failure.phase is Phase.STALE
        so_far.append(FailedAttempt(step.route, failures[len(so_far)]))
    assert 1 <= len(so_far) <= attempts
    assert waited_s <= MAX_PAUSES_S
    phases = [each.failure.phase for each in so_far]
    assert Phase.RELAYING not in phases[:-1]
    if not repeats:
        assert Phase.WAITING not in phases[:-1]
        assert phases[:-1].count(Phase.STALE) <= 1
    if Phase.STALE not in phases:
        first = [each.route for each in so_far[: len(routes)]]
        assert len(set(first)) == len(first) or spent or len({route.upstream for route in routes}) < len(routes)


@pytest.mark.parametrize(
    ("headers", "patience"),
    [
        ([], inf),
        ([("x-stainless-read-timeout", "600")], 600.0),
        ([("X-Stainless-Timeout", "12.5"), ("x-stainless-lang", "js")], 12.5),
        ([("x-stainless-read-timeout", "600"), ("x-stainless-timeout", "30")], 30.0),
        ([("x-stainless-timeout", "None")], inf),
        ([("x-stainless-timeout", "0")], inf),
        ([("x-stainless-timeout", "nan")], inf),
    ],
)
def test_patience(headers: list[tuple[str, str]], patience: float) -> None:
    assert client_timeout_s(headers) == patience


@pytest.mark.parametrize(
    ("failures", "repeats", "may_repeat"),
    [
        ([AUTH], False, False),
        ([BALANCE], False, False),
        ([AUTH, BALANCE], True, False),
        ([REFUSED, AUTH], False, True),
        ([AUTH, REFUSED], False, True),
        ([LIMITED, BALANCE], False, True),
        ([WAITING], False, False),
        ([CONNECT, WAITING], False, False),
        ([WAITING], True, True),
        ([WAITING, WAITING], True, True),
        ([SLOW_CONNECT], False, True),
        ([CUT], False, True),
        ([REFUSED], False, True),
        ([NO_CHANNEL], False, True),
    ],
)
def test_client_may_repeat(failures: list[Failure], repeats: bool, may_repeat: bool) -> None:
    assert may_client_repeat(model(repeat_when_waiting=repeats), failures) is may_repeat


@pytest.mark.parametrize(
    ("failure", "waits"),
    [
        (LIMITED_BRIEFLY, True), (FULL, True), (FULL_BRIEFLY, True),
        (LIMITED, False), (LIMITED_NOT_AT_ALL, False), (AUTH, False), (BALANCE, False),
    ],
)  # fmt: skip
def test_a_call_waits_where_it_is_known_when_there_is_room(failure: Failure, waits: bool) -> None:
    assert may_wait(failure) is waits
