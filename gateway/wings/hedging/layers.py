"""The layer that tries a second route beside a slow one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from gateway.accounting.call_log import CallLog
from gateway.api.capabilities import SPLIT_WAYS
from gateway.config import Route
from gateway.errors import Unavailable
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.plan import Layer, Outcome
from gateway.pipeline.stack import Around, WingLayer
from gateway.records import Call, Failure
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientStream
from gateway.upstream.credentials import Grade
from gateway.upstream.health import asker_of
from gateway.upstream.retry_policy import FailedAttempt
from gateway.upstream.router import Router

from . import race
from .first_bytes import FirstByteTimes
from .settings import hedge_after


class Hedge(Layer):
    """Carries a call to a model with `hedge_after`: one attempt, and another one beside it if its first byte is late.
    Each of the two has an `ActiveCall` and a part of the log."""

    async def carry(self, active: ActiveCall) -> Outcome:
        call, services = active.call, active.services
        if not race.may_hedge(call) or len(active.tried) + 1 >= call.model.max_attempts:
            return await self.inner.carry(active)

        async def first(log: CallLog, side: ClientStream) -> Answer | Streamed | Failure | None:
            part = active.part(call, log, side, active.place)
            part.route, part.key, part.way, part.is_fresh = active.route, active.key, active.way, active.is_fresh
            try:
                return await self.inner.carry(part)
            finally:
                active.key = part.key

        async def second(log: CallLog, side: ClientStream) -> Answer | Streamed | Failure | None:
            part = active.part(call, log, side, None)
            part.is_fresh = False
            if not await self._is_reserved_beside(active, part):
                return None
            result = await self.inner.carry(part)
            if isinstance(result, Failure):
                active.tried.append(FailedAttempt(part.route, result, part.key or 0))
            return result

        noted = partial(note_first_byte, services.router, call)
        both = race.Race(call, active.log, active.client, services.accounting, services.tasks, noted)
        return await both.run(first, second, hedge_after_s(services.router, call, active.route))

    async def _is_reserved_beside(self, active: ActiveCall, part: ActiveCall) -> bool:
        """Whether there is another route for an attempt beside the one that is under way: a healthy one, with room that
        no call waits for. It is reserved, and is the route of this part."""
        call, services = active.call, active.services
        router, waiting = services.router, services.waiting.waiting()
        open_routes = [
            each for each in active.routes if not waiting.get(each.upstream) and active.way_to(each) not in SPLIT_WAYS
        ]
        other = beside(router, open_routes, call, {active.route, *[each.route for each in active.tried]})
        if other is None:
            return False
        key = router.next_key(other, call.params.model, active.tried, None, asker_of(call))
        try:
            refused = await active.log.reservation.extend_for_hedge(router.limits.claims(call, other, key))
        except Unavailable:
            return False
        part.route, part.key, part.way = other, key, active.way_to(other)
        return refused is None


def hedge_after_s(router: Router, call: Call, route: Route) -> float | None:
    """How long a call may wait for its first byte on this route before another one is tried beside it; None: its
    model wants none, or the usual time is not known yet."""
    wanted = hedge_after(call.model)
    if not isinstance(wanted, str):
        return wanted
    times = router.health[route.upstream].of_wing(FirstByteTimes)
    return times.p95_s(route.model or call.params.model, call.params.stream)


def note_first_byte(router: Router, call: Call, route: Route, seconds: float) -> None:
    """An attempt of this call on this route had its first byte after `seconds`."""
    times = router.health[route.upstream].of_wing(FirstByteTimes)
    times.note(route.model or call.params.model, call.params.stream, seconds)


def beside(router: Router, routes: Sequence[Route], call: Call, tried: Collection[Route]) -> Route | None:
    """The best healthy route for an attempt beside a running one: not one of those `tried`, on another upstream if
    there is one, and with retry budget left at its upstream, in which it counts."""
    model, asker, been = call.params.model, asker_of(call), {route.upstream for route in tried}
    found = []
    for route in router.candidates(routes, model, None, asker):
        health = router.health[route.upstream]
        now = health.clock()
        is_healthy = health.grade(route.model or model, now, asker) is Grade.HEALTHY
        if route not in tried and is_healthy and not health.budget.is_spent(now):
            found.append(route)
    best = min(found, key=lambda route: route.upstream in been, default=None)
    if best is not None:
        health = router.health[best.upstream]
        health.budget.note_repeat(health.clock())
    return best


HEDGE = WingLayer(Around.ATTEMPT, Hedge, lambda _, call: hedge_after(call.model) is not None)
