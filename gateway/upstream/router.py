"""Whom to try: the routes of a call in their order, without those who are left alone or have no key to show.

Private to a worker, as all it knows is. The policy is in rules/: routing.py the order, breaker.py who is left alone,
attempts.py what follows from a failure.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from gateway.config import Config, Route
from gateway.records import Failure, Phase

from .credentials import REFUSALS, Grade
from .health import AttemptHandle, Health, Show
from .retry_policy import FailedAttempt
from .route_order import order


class Router:
    """The upstreams of one worker. `show` is told of each change of an upstream's state; `kept` is what is known of
    some of them already."""

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
        self.health: Mapping[str, Health] = {
            name: kept.get(name) or Health(name, _names(config, name), len(upstream.credentials), show, clock)
            for name, upstream in config.upstreams.items()
        }
        for name, health in kept.items():
            health.name(_names(config, name))

    def candidates(self, routes: Sequence[Route], model: str) -> Sequence[Route]:
        """Those of the routes that a call for `model` may be sent to now, the best first.

        Who is only a last resort stands at the end, whatever its priority.
        """
        if len(routes) == 1 and self.health[routes[0].upstream].is_calm:
            return routes
        now = self._clock()
        graded = [(self.health[route.upstream].grade(route.model or model, now), route) for route in routes]
        found = order([route for grade, route in graded if grade is Grade.FREE], self._in_flight, self._chance)
        if len(found) < len(routes):
            last = [route for grade, route in graded if grade is Grade.LAST_RESORT]
            found += order(last, self._in_flight, self._chance)
        return found

    def count(self, route: Route, model: str, tried: Sequence[FailedAttempt] = ()) -> None:
        """A call with these attempts behind it is to be sent here, now or after a pause; the budget has to bear it.

        Counted when it is decided: of many calls that pause at the same time, the last ones have to know of the first.
        """
        budget, now = self.health[route.upstream].budget, self._clock()
        here = [each.failure for each in tried if each.route.upstream == route.upstream] if tried else ()
        if here and here[-1].phase is not Phase.STALE and route not in self.renewed(model, tried):
            budget.note_repeat(now)
        else:  # also where nobody has read the first attempt, or it comes with another key
            budget.note_call(now)

    def begin(self, route: Route, model: str, tried: Sequence[FailedAttempt] = ()) -> AttemptHandle:
        """An attempt on this route begins, of a call with these attempts behind it."""
        used = (
            [each.key for each in tried if each.route.upstream == route.upstream and each.failure.fault in REFUSALS]
            if tried
            else ()
        )
        return self.health[route.upstream].begin(route.model or model, used)

    def renewed(self, model: str, tried: Sequence[FailedAttempt]) -> set[Route]:
        """Routes that refused the key of this call, which has another one to show there now."""
        last = {each.route: each.failure for each in tried}
        now, found = self._clock(), set()
        for route in [route for route, failure in last.items() if failure.fault in REFUSALS]:
            used = [each.key for each in tried if each.route.upstream == route.upstream]
            grade = self.health[route.upstream].credentials.grade(route.model or model, now, used)
            if grade is not Grade.BARRED:
                found.add(route)
        return found

    def spent(self, tried: Sequence[FailedAttempt]) -> set[str]:
        """The upstreams of these attempts that must not be asked once more: enough others do so already."""
        now = self._clock()
        return {each.route.upstream for each in tried if self.health[each.route.upstream].budget.is_spent(now)}

    def barrier(self, routes: Sequence[Route], model: str) -> Failure:
        """Why there is no candidate: of all the routes, the one that may be back first."""
        now = self._clock()
        barriers = [self.health[route.upstream].barrier(route.model or model, now) for route in routes]
        return min(barriers, key=lambda failure: failure.retry_after_s or 0.0)

    def _in_flight(self, route: Route) -> int:
        return self.health[route.upstream].in_flight


def _names(config: Config, upstream: str) -> set[str]:
    """The models by which the configuration knows this upstream."""
    named = [
        (name, route) for name, model in config.models.items() for route in model.routes if name != "*" or route.model
    ]
    return {route.model or name for name, route in named if route.upstream == upstream}
