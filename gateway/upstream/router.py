"""Router: the available routes of a call in their order, and the health of every upstream of one worker.

1. Routes of a lower `priority` come first. Within one priority the weights decide at random: a route of weight 3 comes
   before one of weight 1 in three of four calls. Of routes with the same weight the one with the fewest calls in flight
   comes first, so that a slow upstream gets fewer calls.
2. Degraded routes (open circuit, keys in cooldown) follow behind all healthy ones, independent of priority.
3. Unavailable routes are left out.

Workers share nothing of this. The decisions are elsewhere: upstream/circuit_breaker.py and upstream/credentials.py
(which routes are available), upstream/retry_policy.py (the next step after a failure).
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from gateway.config import Config, Route, is_pattern
from gateway.records import Call, Failure, Phase, Refused

from . import stickiness
from .credentials import ANYONE, CREDENTIAL_FAULTS, Asker, Grade
from .health import AttemptHandle, Health, Show, asker_of
from .limits import Place, UpstreamLimitTable, paused
from .retry_policy import FailedAttempt


class Router:
    """The upstreams of one worker. `show` is called with each new state of an upstream; `kept` holds the health of
    upstreams that an older configuration had as well."""

    def __init__(
        self,
        config: Config,
        show: Show,
        *,
        kept: Mapping[str, Health] = {},
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._chance = chance
        self.limits = UpstreamLimitTable(config.upstreams, clock)
        named = _models_by_upstream(config)
        self.health: Mapping[str, Health] = {
            name: kept.get(name) or Health(name, named[name], len(upstream.credentials), show, clock)
            for name, upstream in config.upstreams.items()
        }
        for name, health in kept.items():
            health.configure(named[name])

    def candidates(
        self,
        routes: Sequence[Route],
        model: str,
        affinity: bytes | None = None,
        asker: Asker = ANYONE,
        *,
        is_firm: bool = False,
    ) -> Sequence[Route]:
        """The routes that such a call for `model` may use now, the best first; with an `affinity`, always in its order,
        also under load if that `is_firm`."""
        if len(routes) == 1 and self.health[routes[0].upstream].is_healthy:
            return routes
        now = self._clock()
        graded = [(self.health[route.upstream].grade(route.model or model, now, asker), route) for route in routes]
        found = self._order([route for grade, route in graded if grade is Grade.HEALTHY], affinity, is_firm)
        if len(found) < len(routes):
            found += self._order([route for grade, route in graded if grade is Grade.DEGRADED], affinity, is_firm)
        return found

    def _order(self, routes: Sequence[Route], affinity: bytes | None, is_firm: bool) -> list[Route]:
        if affinity is None:
            return order(routes, self._in_flight, self._chance)
        return stickiness.ranked(routes, affinity, stickiness.no_load if is_firm else self._in_flight)

    def places(
        self, call: Call, candidates: Sequence[Route], prompts: Callable[[Route], tuple[int, int]]
    ) -> list[Place]:
        """Where the first attempt of a call may go, the best first: routes, and their API keys where these have limits
        of their own. `prompts` returns how many requests a route takes, and how many at once."""
        limits, now = self.limits, self._clock()
        found: list[Place] = []
        for route in candidates:
            requests, at_once = prompts(route)
            keys: Sequence[int | None] = (None,)
            if limits.binds_keys(route.upstream):
                credentials = self.health[route.upstream].credentials
                keys = credentials.in_order(route.model or call.params.model, now, call.affinity, asker_of(call))
            found += [
                Place(route, key, limits.claims(call, route, key, requests=requests, at_once=at_once)) for key in keys
            ]
        return found

    def pause(self, call: Call, place: Place, back_at: float = 0.0) -> Refused | None:
        """The refusal of a place whose upstream asked by a Retry-After not to be sent such calls yet, or this call
        before `back_at`; None: it may be sent."""
        route, key, _ = place
        model, health, asker = route.model or call.params.model, self.health[route.upstream], asker_of(call)
        shared_s = health.pause_s(model, key)
        wait_s = max(health.pause_s(model, key, asker), back_at - self._clock() if back_at else 0.0)
        of = asker if wait_s > shared_s else ANYONE
        return paused(route.upstream, model, key, wait_s, of) if wait_s > 0 else None

    def next_key(
        self,
        route: Route,
        model: str,
        tried: Sequence[FailedAttempt],
        affinity: bytes | None = None,
        asker: Asker = ANYONE,
    ) -> int | None:
        """The API key for another attempt on this route, where these have limits of their own."""
        if not self.limits.binds_keys(route.upstream):
            return None
        credentials, now = self.health[route.upstream].credentials, self._clock()
        return credentials.take(route.model or model, now, _used_keys(route, tried), affinity, asker)

    def count(self, route: Route, model: str, tried: Sequence[FailedAttempt] = ()) -> None:
        """Count an attempt of a call with these earlier attempts in the retry budget.

        It counts when it is decided and not when it begins, so that calls that pause at the same time count each other.
        """
        budget, now = self.health[route.upstream].budget, self._clock()
        here = [each.failure for each in tried if each.route.upstream == route.upstream] if tried else ()
        if here and here[-1].phase is not Phase.STALE and route not in self.with_other_credential(model, tried):
            budget.note_repeat(now)
        else:  # also after a stale connection, or with another key
            budget.note_call(now)

    def begin(
        self,
        route: Route,
        model: str,
        tried: Sequence[FailedAttempt] = (),
        key: int | None = None,
        affinity: bytes | None = None,
        asker: Asker = ANYONE,
    ) -> AttemptHandle:
        """Begin an attempt on this route, of a call with these earlier attempts; with this API key, if one is given."""
        used = _used_keys(route, tried) if tried else ()
        return self.health[route.upstream].begin(route.model or model, used, key, affinity, asker)

    def with_other_credential(self, model: str, tried: Sequence[FailedAttempt], asker: Asker = ANYONE) -> set[Route]:
        """Routes that refused a key of this call and have another one available."""
        last = {each.route: each.failure for each in tried}
        now, found = self._clock(), set()
        for route in [route for route, failure in last.items() if failure.fault in CREDENTIAL_FAULTS]:
            used = [each.key for each in tried if each.route.upstream == route.upstream]
            grade = self.health[route.upstream].credentials.grade(route.model or model, now, used, asker)
            if grade is not Grade.UNAVAILABLE:
                found.add(route)
        return found

    def spent(self, tried: Sequence[FailedAttempt]) -> set[str]:
        """The upstreams of these attempts whose retry budget is used up."""
        now = self._clock()
        return {each.route.upstream for each in tried if self.health[each.route.upstream].budget.is_spent(now)}

    def unavailable_reason(self, routes: Sequence[Route], model: str, asker: Asker = ANYONE) -> Failure:
        """Why there is no candidate: the reason of the route that may be available first."""
        now = self._clock()
        reasons = [self.health[each.upstream].unavailable_reason(each.model or model, now, asker) for each in routes]
        return min(reasons, key=lambda failure: failure.retry_after_s or 0.0)

    def _in_flight(self, route: Route) -> int:
        return self.health[route.upstream].in_flight


def _models_by_upstream(config: Config) -> Mapping[str, set[str]]:
    """The models that the configuration names for each upstream."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name in config.models:
        if (served := config.model(name)) is not None:
            for route in served.model.routes:
                if route.model or not is_pattern(name):
                    found[route.upstream].add(route.model or name)
    return found


def _used_keys(route: Route, tried: Sequence[FailedAttempt]) -> list[int]:
    """Positions of the API keys of this upstream that refused the call."""
    return [
        each.key for each in tried if each.route.upstream == route.upstream and each.failure.fault in CREDENTIAL_FAULTS
    ]


def order(routes: Sequence[Route], in_flight: Callable[[Route], int], chance: Callable[[], float]) -> list[Route]:
    """The routes, the best first. `chance` returns numbers from 0 (included) to 1 (excluded)."""
    tiers: dict[int, list[Route]] = {}
    for route in routes:
        tiers.setdefault(route.priority, []).append(route)
    ordered: list[Route] = []
    for _, left in sorted(tiers.items()):
        while len(left) > 1:
            chosen = _choose(left, in_flight, chance)
            left.remove(chosen)
            ordered.append(chosen)
        ordered += left
    return ordered


def _choose(routes: Sequence[Route], in_flight: Callable[[Route], int], chance: Callable[[], float]) -> Route:
    """One route at random by weight; of those with its weight, the one with the fewest calls in flight."""
    at = chance() * sum([route.weight for route in routes])
    chosen = routes[-1]
    for route in routes:
        at -= route.weight
        if at < 0:
            chosen = route
            break
    fewest = in_flight(chosen)
    for route in routes:
        if route.weight == chosen.weight and (number := in_flight(route)) < fewest:
            chosen, fewest = route, number
    return chosen
