"""Room for a call at its upstreams: where it may go, and what it draws on there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from gateway.accounting.admission import Admission
from gateway.accounting.reservation import WaitsForRoom, limit_failure
from gateway.api.capabilities import PROMPTS_AT_ONCE, Adaptation
from gateway.config import Route
from gateway.records import Call, Failure, Refused
from gateway.relay import Attempt
from gateway.relay.attempt import Rider
from gateway.upstream.connection import Head
from gateway.upstream.health import AttemptHandle, asker_of
from gateway.upstream.learned_limits import has_room
from gateway.upstream.limits import Place
from gateway.upstream.retry_policy import GiveUp, Try

from .active_call import ActiveCall, by_policy
from .plan import Layer, Outcome
from .services import Services
from .steps import candidates


def places(active: ActiveCall, candidates: Sequence[Route]) -> Sequence[Place]:
    """Where the call may go first, with what it draws on there."""
    call = active.call

    def prompts(route: Route) -> tuple[int, int]:
        count = 1 if active.way_to(route) is Adaptation.PLAIN else call.params.prompts
        return count, min(count, PROMPTS_AT_ONCE)

    found = active.services.router.places(call, candidates, prompts)
    if call.bond is None:
        return found
    key = active.only_key
    return [place._replace(key=key) for place in found if place.key in (None, key)]


def pause(call: Call, ticket: WaitsForRoom | None, services: Services) -> Callable[[Place], Refused | None] | None:
    """Whether a place has room by what its upstream asked for. A call that may not wait heeds it where limits are
    learned; one that has a fallback goes on to that."""
    if call.fallbacks:
        return None
    router = services.router

    def of(place: Place) -> Refused | None:
        waits = ticket is not None and services.waiting.longest_wait_s(call)
        return router.pause(call, place) if waits or place.route.upstream in router.limits.learning else None

    return of


async def room(active: ActiveCall) -> None:
    """Finds the places where the call may go first, and how it waits where none has room. Its reservation looks for
    room there."""
    call, services, router = active.call, active.services, active.services.router
    routes = [*active.routes, *[route for other in active.others for route in other.routes]]
    found: Sequence[Place] = ()
    may_have_places = services.waiting.may_wait(call) or router.limits.binds_any(routes)
    in_order = candidates(active) if may_have_places or len(active.routes) > 1 else active.routes
    active.likely = next(iter(in_order), active.routes[0])
    if may_have_places:
        found = places(active, in_order)
    admitted = services.waiting.ticket(call, found, router, is_new=True) if found else None
    active.position = None if admitted is None else admitted.position
    pausing = pause(call, admitted, services)
    active.reserve = partial(Admission, places=found, ticket=admitted, fit=active.fit, pause=pausing)


def by_place(active: ActiveCall) -> Try | GiveUp:
    """The next step of a call: first to the place that its reservation holds."""
    return by_policy(active) if active.place is None else Try(active.place.route)


class RouteLimits(Layer):
    """Draws on the limits of a route before its attempt, unless the reservation holds a place there. A refusal counts
    as a failed attempt."""

    async def carry(self, active: ActiveCall) -> Outcome:
        call, route, router, place = active.call, active.route, active.services.router, active.place
        if place is not None:
            active.key = place.key
        elif router.limits.binds(route.upstream):
            if call.bond is None:
                active.key = router.next_key(route, call.params.model, active.tried, call.affinity, asker_of(call))
            refused = await active.log.reservation.extend(router.limits.claims(call, route, active.key))
            if refused is not None:
                return limit_failure(refused)
        outcome = await self.inner.carry(active)
        if isinstance(outcome, Failure):
            active.place = None
        return outcome


class LearnedLimits(Rider):
    """Learns an upstream's limits from the heads of its answers."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        self._limits = active.services.router.limits
        self._used = active.used_at_place
        self._key, self._asker = handle.key, handle.asker

    def request(self, draft: Attempt) -> Attempt:
        self._upstream, self._model = draft.route.upstream, draft.route.model or draft.call.params.model
        return draft._replace(riders=(*draft.riders, self)) if self._upstream in self._limits.learning else draft

    def head(self, head: Head) -> None:
        if head.status == 429:
            self._limits.refused(self._upstream, self._model, self._key, self._asker, has_room(head.get))
        self._limits.heard(self._upstream, self._model, self._key, head.get, self._used, self._asker)


class AdaptiveLimits(Rider):
    """Adapts the limits of an upstream to the time to the first token of a stream."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        self._limits, self._place = active.services.router.limits, active.place
        self._used, self._answered = active.used_at_place, handle.answered
        self._is_first = True

    def request(self, draft: Attempt) -> Attempt:
        self._began = time.perf_counter()
        is_adaptive = self._place is not None and draft.route.upstream in self._limits.adaptive
        return draft._replace(answered=self._token) if is_adaptive else draft

    def _token(self) -> None:
        if self._is_first and self._place is not None:
            self._limits.first_token(self._place.claims, self._used, time.perf_counter() - self._began)
            self._is_first = False
        self._answered()
