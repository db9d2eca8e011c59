"""Whom a call is sent to, after what other calls have lived through. The clock is the test's."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gateway.config import Config, Route, build
from gateway.records import Failure, Fault, Phase
from gateway.upstream.circuit_breaker import (
    CONSECUTIVE_FAILURES,
    DEAD_AFTER,
    FIRST_COOLDOWN_S,
    PROBE_TIMEOUT_S,
    RESET_AFTER_S,
    WINDOW_S,
    CircuitEvent,
    CircuitState,
)
from gateway.upstream.credentials import LAST_KEY_COOLDOWN_S
from gateway.upstream.health import FAILED_KEPT, MAX_UNNAMED_MODELS
from gateway.upstream.retry_policy import FailedAttempt
from gateway.upstream.router import Router
from gateway.upstream.status import CredentialCooldown, UpstreamReport
from tests.fakes.scripted import until

REFUSED_PORT = Failure("a", Phase.CONNECT, Fault.CONNECT)
ERROR = Failure("a", Phase.REFUSED, Fault.STATUS, status=500)
NO_CHANNEL = Failure("a", Phase.REFUSED, Fault.NO_CHANNEL, status=503)
LATE = Failure("a", Phase.WAITING, Fault.TIMEOUT)
CUT = Failure("a", Phase.RELAYING, Fault.CUT, has_begun=True)
AUTH = Failure("a", Phase.REFUSED, Fault.AUTH, status=401)
LIMITED = Failure("a", Phase.REFUSED, Fault.RATE_LIMITED, status=429, retry_after_s=5)
ILL = [REFUSED_PORT, ERROR, NO_CHANNEL, LATE]


def config(keys: int = 1) -> Config:
    up: dict[str, Any] = {"base_url": "http://up/v1", "api_keys": [f"sk-{number}" for number in range(keys)]}
    return build(
        {
            "upstreams": {"a": up, "b": up},
            "models": {
                "m": {"routes": [{"upstream": "a"}]},
                "n": {"routes": [{"upstream": "a"}]},
                "two": {"routes": [{"upstream": "a"}, {"upstream": "b", "model": "two-b", "priority": 2}]},
                "equal": {"routes": [{"upstream": "a"}, {"upstream": "b"}]},
                "*": {"routes": [{"upstream": "a"}]},
            },
        }
    )


@dataclass
class Stand:
    """A router and its clock."""

    config: Config = field(default_factory=config)
    now: float = 1000.0
    shown: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        def show(upstream: str, state: int) -> None:
            self.shown.append((upstream, state))

        self.router = Router(self.config, show, clock=lambda: self.now, chance=random.Random(1).random)

    def routes(self, model: str) -> tuple[Route, ...]:
        found = self.config.model(model)
        assert found is not None
        return found.model.routes

    def whom(self, model: str = "m") -> str:
        """The upstreams that a call may be sent to, in their order."""
        return "".join(route.upstream for route in self.router.candidates(self.routes(model), model))

    def call(self, failure: Failure | None, model: str = "m", times: int = 1, place: int = 0) -> None:
        """So many calls that end like this, one after the other."""
        for _ in range(times):
            self.router.begin(self.routes(model)[place], model).ended(failure)

    def unavailable_reason(self, model: str = "m") -> Failure:
        return self.router.unavailable_reason(self.routes(model), model)


@pytest.fixture
async def stand() -> Stand:
    return Stand()


@pytest.mark.parametrize("failure", [*ILL, CUT], ids=lambda failure: failure.fault.value)
async def test_who_fails_again_and_again_is_avoided(stand: Stand, failure: Failure) -> None:
    stand.call(failure, "two", times=CONSECUTIVE_FAILURES - 1)
    assert stand.whom("two") == "ab"
    stand.call(failure, "two")
    assert stand.whom("two") == "ba"


@pytest.mark.parametrize("failure", ILL, ids=lambda failure: failure.fault.value)
async def test_an_unreachable_upstream_is_not_tried_even_without_alternative(stand: Stand, failure: Failure) -> None:
    stand.call(failure, times=DEAD_AFTER - 1)
    assert stand.whom() == "a"
    stand.call(failure)
    assert stand.whom() == ""
    received = stand.unavailable_reason()
    assert (received.fault, received.retry_after_s) == (Fault.CIRCUIT_OPEN, FIRST_COOLDOWN_S)


async def test_half_an_answer_is_better_than_none(stand: Stand) -> None:
    stand.call(CUT, times=5 * DEAD_AFTER)
    assert stand.whom() == "a"


async def test_every_second_answer_is_better_than_none(stand: Stand) -> None:
    for _ in range(50):
        stand.call(ERROR)
        stand.call(None)
    assert stand.whom() == "a"


async def test_a_call_that_is_answered_all_the_same_closes_the_circuit(stand: Stand) -> None:
    stand.call(ERROR, "two", times=CONSECUTIVE_FAILURES)
    stand.call(None, "two")
    assert stand.whom("two") == "ab"


@pytest.mark.parametrize("failure", ILL[1:], ids=lambda failure: failure.fault.value)
async def test_one_model_that_fails_is_not_the_others_fault(stand: Stand, failure: Failure) -> None:
    stand.call(failure, times=DEAD_AFTER)
    assert (stand.whom("m"), stand.whom("n"), stand.whom("never heard of")) == ("", "a", "a")
    stand.call(failure, "never heard of", times=DEAD_AFTER)
    assert (stand.whom("never heard of"), stand.whom("nor of this")) == ("", "a")


async def test_an_unreachable_upstream_is_not_tried_by_any_model(stand: Stand) -> None:
    stand.call(REFUSED_PORT, "m", times=2)
    stand.call(REFUSED_PORT, "never heard of", times=DEAD_AFTER - 2)
    assert (stand.whom("m"), stand.whom("n"), stand.whom("nor of this"), stand.whom("two")) == ("", "", "", "b")


@pytest.mark.parametrize("answer", [None, ERROR], ids=["well", "with an error"])
async def test_an_upstream_that_answers_is_reachable(stand: Stand, answer: Failure | None) -> None:
    for _ in range(3):
        stand.call(REFUSED_PORT, times=CONSECUTIVE_FAILURES - 1)
        stand.call(answer, "n")
    assert stand.whom("two") == "ab"


async def test_clients_that_leave_say_nothing(stand: Stand) -> None:
    for _ in range(3 * DEAD_AFTER):
        stand.router.begin(stand.routes("m")[0], "m").abandoned()
    stand.call(ERROR, times=DEAD_AFTER - 1)
    stand.router.begin(stand.routes("m")[0], "m").abandoned()
    assert stand.whom() == "a"
    stand.call(ERROR)
    assert stand.whom() == ""
    assert stand.router.health["a"].in_flight == 0


async def test_half_open_lets_one_call_through_and_its_answer_closes_it(stand: Stand) -> None:
    stand.call(ERROR, times=DEAD_AFTER)
    stand.now += FIRST_COOLDOWN_S
    assert stand.whom() == "a"
    probe = stand.router.begin(stand.routes("m")[0], "m")
    assert stand.whom() == ""
    assert 0 < (stand.unavailable_reason().retry_after_s or 0) <= 1
    probe.ended(None)
    assert stand.whom() == "a"


async def test_half_open_probe_that_fails_opens_it_for_longer(stand: Stand) -> None:
    stand.call(ERROR, times=DEAD_AFTER)
    stand.now += FIRST_COOLDOWN_S
    stand.call(ERROR)
    assert stand.unavailable_reason().retry_after_s == 2 * FIRST_COOLDOWN_S


async def test_half_open_probe_whose_client_leaves_lets_the_next_one_in(stand: Stand) -> None:
    stand.call(ERROR, times=DEAD_AFTER)
    stand.now += FIRST_COOLDOWN_S
    stand.router.begin(stand.routes("m")[0], "m").abandoned()
    assert stand.whom() == "a"


async def test_half_open_probe_that_takes_long_lets_the_next_one_in(stand: Stand) -> None:
    stand.call(LATE, times=DEAD_AFTER)
    stand.now += FIRST_COOLDOWN_S
    first = stand.router.begin(stand.routes("m")[0], "m")
    stand.now += PROBE_TIMEOUT_S
    assert stand.whom() == "a"
    stand.router.begin(stand.routes("m")[0], "m").ended(None)
    first.ended(LATE)
    assert stand.whom() == "a"


async def test_stream_that_begins_well_closes_it_long_before_its_end(stand: Stand) -> None:
    stand.call(ERROR, times=DEAD_AFTER)
    stand.now += FIRST_COOLDOWN_S
    stream = stand.router.begin(stand.routes("m")[0], "m")
    stream.answered()
    assert stand.whom() == "a"
    stream.ended(None)
    assert stand.whom() == "a"


async def test_streams_that_begin_well_and_are_cut_are_no_good(stand: Stand) -> None:
    for _ in range(CONSECUTIVE_FAILURES):
        stream = stand.router.begin(stand.routes("two")[0], "two")
        stream.answered()
        stream.ended(CUT)
    assert stand.whom("two") == "ba"


async def test_calls_that_hung_for_a_minute_do_not_open_what_has_recovered(stand: Stand) -> None:
    hanging = [stand.router.begin(stand.routes("m")[0], "m") for _ in range(100)]
    stand.now += 1
    stand.call(ERROR, times=DEAD_AFTER)
    stand.now += FIRST_COOLDOWN_S
    stand.call(None)
    stand.now += 60
    for trial in hanging:
        trial.ended(LATE)
    assert stand.whom() == "a"
    assert stand.shown[-1] == ("a", 0)


async def test_nothing_is_kept_of_who_is_well(stand: Stand) -> None:
    health = stand.router.health["a"]
    for number in range(100):
        stand.call(None, f"model {number}")
    assert health.is_healthy
    stand.call(ERROR)
    stand.call(AUTH)
    assert not health.is_healthy
    stand.now += WINDOW_S + RESET_AFTER_S
    stand.call(None)
    assert health.is_healthy


async def test_ten_thousand_made_up_models_take_little_memory_and_forget_no_real_one(stand: Stand) -> None:
    stand.call(NO_CHANNEL, times=DEAD_AFTER)
    for number in range(10_000):
        stand.call(NO_CHANNEL, f"made up {number}")
        stand.call(ERROR, f"made up {number}")
    health = stand.router.health["a"]
    assert len(health._unnamed) == MAX_UNNAMED_MODELS
    assert list(health._models) == ["m"]
    assert stand.whom() == ""


async def test_state_shown_is_the_worst_of_what_the_configuration_names(stand: Stand) -> None:
    assert stand.shown == [("a", 0), ("b", 0)]
    stand.call(NO_CHANNEL, "never heard of", times=CONSECUTIVE_FAILURES)
    assert stand.shown[2:] == []
    stand.call(ERROR, "n", times=CONSECUTIVE_FAILURES)
    assert stand.shown[2:] == [("a", 2)]
    stand.now += FIRST_COOLDOWN_S
    trial = stand.router.begin(stand.routes("n")[0], "n")
    assert stand.shown[3:] == [("a", 1)]
    trial.ended(None)
    assert stand.shown[4:] == [("a", 0)]


async def test_alias_is_known_by_the_upstream_s_own_name(stand: Stand) -> None:
    stand.call(Failure("b", Phase.REFUSED, Fault.STATUS, status=500), "two", times=DEAD_AFTER, place=1)
    assert stand.whom("two") == "a"
    assert stand.shown[2:] == [("b", 2)]
    assert stand.whom("equal") in ("ab", "ba")


async def test_each_change_of_state_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    stand = Stand()
    with caplog.at_level(logging.WARNING, "gateway"):
        stand.call(ERROR, times=3 * DEAD_AFTER)
        stand.now += FIRST_COOLDOWN_S
        stand.call(ERROR)
        stand.now += 2 * FIRST_COOLDOWN_S
        stand.call(None)
        stand.call(None)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "upstream a, model 'm': circuit open for 1 s: repeated failures",
        "upstream a, model 'm': no answer to 10 attempts in a row; calls without another route are refused",
        "upstream a, model 'm': circuit half-open: the next call is a probe",
        "upstream a, model 'm': circuit open for 2 s: probe failed",
        "upstream a, model 'm': circuit half-open: the next call is a probe",
        "upstream a, model 'm': circuit closed",
    ]


async def test_an_open_circuit_is_shown_as_half_open_after_its_cooldown_without_calls() -> None:
    stand, loop = Stand(), asyncio.get_running_loop()
    began = loop.time()
    stand.router.health["a"].clock = loop.time
    stand.call(ERROR, times=CONSECUTIVE_FAILURES + 2)
    await until(lambda: stand.shown[-1] == ("a", 1))
    assert loop.time() - began >= FIRST_COOLDOWN_S


# ---------------------------------------------------------------------------------------------------- several routes


async def test_priority_holds_until_the_first_is_avoided(stand: Stand) -> None:
    assert stand.whom("two") == "ab"
    stand.call(ERROR, "two", times=CONSECUTIVE_FAILURES)
    assert stand.whom("two") == "ba"
    stand.now += FIRST_COOLDOWN_S
    assert stand.whom("two") == "ab"


async def test_route_whose_only_key_was_refused_is_the_last_resort(stand: Stand) -> None:
    stand.call(AUTH, "two")
    assert stand.whom("two") == "ba"
    stand.call(AUTH, "two", times=9)
    assert stand.whom("two") == "b"


async def test_a_rate_limited_route_has_a_cooldown_until_retry_after(stand: Stand) -> None:
    stand.call(LIMITED, "two")
    assert (stand.whom("two"), stand.whom("m")) == ("ba", "a")
    stand.now += 5
    assert stand.whom("two") == "ab"


async def test_among_equals_the_slow_one_gets_fewer(stand: Stand) -> None:
    for _ in range(10):
        stand.router.begin(stand.routes("equal")[0], "equal")
    assert {stand.whom("equal") for _ in range(20)} == {"ba"}


async def test_equals_share_by_chance(stand: Stand) -> None:
    first = Counter(stand.whom("equal")[0] for _ in range(1000))
    assert 400 < first["a"] < 600


async def test_of_several_barriers_the_one_that_ends_first_is_returned(stand: Stand) -> None:
    stand.call(AUTH, "two", times=10)
    stand.call(Failure("b", Phase.REFUSED, Fault.STATUS, status=500), "two", times=DEAD_AFTER, place=1)
    assert stand.whom("two") == ""
    received = stand.unavailable_reason("two")
    assert (received.upstream, received.fault, received.retry_after_s) == ("b", Fault.CIRCUIT_OPEN, FIRST_COOLDOWN_S)
    stand.call(replace(AUTH, is_of_credential=True), times=10)
    received = stand.unavailable_reason()
    assert (received.upstream, received.fault, received.retry_after_s) == ("a", Fault.AUTH, LAST_KEY_COOLDOWN_S)


# ----------------------------------------------------------------------------------------------------- several keys


async def test_call_with_a_refused_key_has_the_next_one_to_show() -> None:
    stand = Stand(config(keys=2))
    (route,) = stand.routes("m")
    first = stand.router.begin(route, "m")
    first.ended(AUTH)
    tried = [FailedAttempt(route, AUTH, first.key)]
    assert stand.router.with_other_credential("m", tried) == {route}
    second = stand.router.begin(route, "m", tried)
    assert (first.key, second.key) == (0, 1)
    second.ended(AUTH)
    tried.append(FailedAttempt(route, AUTH, second.key))
    assert stand.router.with_other_credential("m", tried) == set()


async def test_only_key_is_not_shown_twice_to_who_refused_it(stand: Stand) -> None:
    (route,) = stand.routes("m")
    stand.call(AUTH)
    assert stand.router.with_other_credential("m", [FailedAttempt(route, AUTH)]) == set()


async def test_keys_rest_is_logged_by_its_place(caplog: pytest.LogCaptureFixture) -> None:
    stand = Stand(config(keys=3))
    with caplog.at_level(logging.WARNING, "gateway"):
        stand.call(None)
        stand.call(AUTH)
    assert [record.getMessage() for record in caplog.records] == [
        "upstream a: key #2 in cooldown for model 'm' for 60 s: auth_failed"
    ]


# ------------------------------------------------------------------------------------------------------ retry budget


async def test_repetitions_at_one_upstream_are_bounded_and_failovers_are_not(stand: Stand) -> None:
    here, there = stand.routes("two")
    for _ in range(100):
        stand.router.count(here, "two")
    tried = [FailedAttempt(here, ERROR)]
    assert stand.router.spent(tried) == set()
    for _ in range(30):
        stand.router.count(here, "two", tried)
    assert stand.router.spent(tried) == {"a"}
    for _ in range(1000):
        stand.router.count(there, "two", tried)
    assert stand.router.spent([*tried, FailedAttempt(there, ERROR)]) == {"a"}


STALE = Failure("a", Phase.STALE, Fault.CUT)


@pytest.mark.parametrize(
    ("failure", "keys", "is_spent"),
    [
        (STALE, 1, False),  # the upstream has not read the request
        (AUTH, 2, False),  # the next key is shown
        (LIMITED, 2, False),
        (LIMITED, 1, True),  # the same one once more
    ],
)
async def test_the_next_key_and_unread_requests_need_no_budget(failure: Failure, keys: int, is_spent: bool) -> None:
    stand = Stand(config(keys))
    (route,) = stand.routes("m")
    tried = [FailedAttempt(route, failure)]
    for _ in range(100):
        stand.router.count(route, "m", tried)
    assert bool(stand.router.spent(tried)) is is_spent


# ------------------------------------------------------------------------------------------------------ active probes


async def test_probes_find_an_ill_upstream_and_a_returned_one(stand: Stand) -> None:
    health = stand.router.health["a"]
    for _ in range(DEAD_AFTER):
        health.health_checked(CircuitEvent.FAILURE, stand.now)
    assert (stand.whom("m"), stand.whom("n")) == ("", "")
    health.health_checked(CircuitEvent.NEUTRAL, stand.now)
    assert stand.whom() == ""
    health.health_checked(CircuitEvent.PROBE_OK, stand.now)
    assert stand.whom() == "a"
    assert stand.shown[2:] == [("a", 2), ("a", 0)]


async def test_load_moves_calls_with_an_affinity_unless_that_is_firm(stand: Stand) -> None:
    routes, key = stand.routes("equal"), b"conversation"
    best = stand.router.candidates(routes, "equal", key)[0]
    for _ in range(20):
        stand.router.begin(best, "equal")
    assert stand.router.candidates(routes, "equal", key)[0] != best
    assert stand.router.candidates(routes, "equal", key, is_firm=True)[0] == best


# ------------------------------------------------------------------------------------------------ another configuration


def other_models(*names: str) -> Config:
    up: dict[str, Any] = {"base_url": "http://up/v1", "api_keys": ["sk-0"]}
    models = {name: {"routes": [{"upstream": "a"}]} for name in names}
    return build({"upstreams": {"a": up, "c": up}, "models": models})


async def test_what_is_known_of_an_upstream_outlives_a_reload(stand: Stand) -> None:
    stand.call(ERROR, "m", times=CONSECUTIVE_FAILURES)
    stand.call(LIMITED, "n")
    assert stand.shown[-1] == ("a", CircuitState.OPEN)
    old, seen = stand.router, len(stand.shown)
    running = old.begin(stand.routes("m")[0], "m")

    def show(upstream: str, state: int) -> None:
        stand.shown.append((upstream, state))

    stand.config = other_models("m", "n")
    stand.router = Router(stand.config, show, kept={"a": old.health["a"]}, clock=lambda: stand.now)
    assert stand.router.health["a"].state is CircuitState.OPEN
    assert stand.router.health["a"].in_flight == 1
    assert stand.shown[seen:] == [("c", CircuitState.CLOSED)]
    running.ended(None)  # a call of before, which both routers hear of
    assert stand.router.health["a"].in_flight == 0


async def test_a_model_that_is_named_no_more_is_shown_no_more(stand: Stand) -> None:
    """Its circuit is kept for its calls, but does not appear in the upstream's status."""
    stand.call(ERROR, "m", times=CONSECUTIVE_FAILURES)
    health = stand.router.health["a"]
    for names, state in (({"n"}, CircuitState.CLOSED), ({"m", "n"}, CircuitState.OPEN)):
        health.configure(names)
        assert health.state is state
        assert stand.shown[-1] == ("a", state)
    assert not health.is_healthy


async def test_a_retired_upstream_reports_nothing_any_more(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    stand.router.health["a"].retire()
    seen = len(stand.shown)
    stand.call(ERROR, "m", times=CONSECUTIVE_FAILURES)
    assert (stand.shown[seen:], caplog.messages) == ([], [])
    assert stand.router.health["a"].state is CircuitState.OPEN  # calls of before are still spared


async def test_a_worker_reports_what_it_knows(stand: Stand) -> None:
    health = stand.router.health["a"]
    assert health.report(3) == UpstreamReport("a", 0, 0, 3, [], {})
    stand.call(ERROR, "m", times=CONSECUTIVE_FAILURES)
    stand.call(AUTH, "n")
    running = stand.router.begin(stand.routes("n")[0], "n")
    stand.now += 0.5
    rest = CredentialCooldown(1, "n", 4.5, "auth_failed")
    failed = [(0.5, 0.5, CONSECUTIVE_FAILURES, 1, ERROR.fault.value, ERROR.status, ERROR.detail, ""),
              (0.5, 0.5, 1, CONSECUTIVE_FAILURES + 1, "auth_failed", AUTH.status, AUTH.detail, "")]  # fmt: skip
    assert health.report(4) == UpstreamReport(
        "a", CircuitState.OPEN, 1, 4, [rest], {"m": CircuitState.OPEN}, "auth_failed", 0.5,
        state_s=0.5, models_s={"m": 0.5}, begun=CONSECUTIVE_FAILURES + 2, failed=tuple(failed),
    )  # fmt: skip
    running.abandoned()
    stand.now += 60
    assert health.report(4).cooldowns == []


async def test_failures_are_kept_by_minute_and_kind(stand: Stand) -> None:
    health = stand.router.health["a"]
    for _ in range(3):
        stand.call(ERROR, "m", times=2)
        stand.now += 20
    stand.call(AUTH, "n")
    assert sum(row[2] for row in health.report(0).failed) == 7
    assert len(health.report(0).failed) in (2, 3)  # as the minutes of the clock fall
    stand.now += 60
    for _ in range(FAILED_KEPT):
        stand.call(AUTH, "n")
        stand.now += 60
    assert len(health.report(0).failed) == FAILED_KEPT


def test_a_configuration_of_many_upstreams_looks_at_each_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"up-{number}" for number in range(20)]
    several = build({
        "upstreams": {name: {"base_url": "http://up/v1"} for name in names},
        "models": {
            f"m-{number}": {"routes": [{"upstream": name, "model": f"own-{number}"} for name in names[number % 10 :]]}
            for number in range(100)
        },
    })  # fmt: skip
    asked: list[str] = []
    find = Config.model
    monkeypatch.setattr(Config, "model", lambda self, name: (asked.append(name), find(self, name))[1])
    router = Router(several, lambda *_: None)
    assert len(asked) == 100
    again = Router(several, lambda *_: None, kept=router.health)
    assert len(asked) == 200
    assert again.health["up-3"]._configured == {f"own-{number}" for number in range(100) if number % 10 <= 3}
