"""The loop over attempts, where a second route is tried beside a slow one."""

from __future__ import annotations

from functools import partial

from gateway.accounting.call_log import CallLog
from gateway.api.capabilities import SPLIT_WAYS, Adaptation
from gateway.config import Route
from gateway.errors import Unavailable
from gateway.records import Failure
from gateway.relay import Answer, Streamed, hedge
from gateway.relay.client_stream import ClientStream
from gateway.upstream.health import AttemptHandle
from gateway.upstream.retry_policy import FailedAttempt

from .active_call import ActiveCall


class Hedge(ActiveCall):
    """Carries a call to a model with `hedge_after`. Each of the two attempts has an `ActiveCall` and a part of the
    log."""

    __slots__ = ()

    async def attempt(
        self, route: Route, way: Adaptation, handle: AttemptHandle, *, is_fresh: bool
    ) -> Answer | Streamed | Failure:
        """One attempt, and another one beside it if its first byte is late."""
        call, services = self.call, self.services
        may_hedge = hedge.may_hedge(call) and len(self.tried) + 1 < call.model.max_attempts
        if not may_hedge:
            return await super().attempt(route, way, handle, is_fresh=is_fresh)

        has_begun = False

        async def first(leg: CallLog, side: ClientStream) -> Answer | Streamed | Failure:
            nonlocal has_begun
            has_begun = True
            of_leg = ActiveCall(call, self.plan, self.routes, services, leg, side, self.place, tried=self.tried)
            return await of_leg.attempt(route, way, handle, is_fresh=is_fresh)

        async def second(leg: CallLog, side: ClientStream) -> Answer | Streamed | Failure | None:
            of_leg = ActiveCall(call, self.plan, self.routes, services, leg, side, tried=self.tried)
            if (chosen := await self._beside(route)) is None:
                return None
            other, way, handle = chosen
            result = await of_leg.attempt(other, way, handle, is_fresh=False)
            if isinstance(result, Failure):
                self.tried.append(FailedAttempt(other, result, handle.key))
            return result

        try:
            return await hedge.race(
                call, self.log, self.client, first=first, second=second,
                after_s=services.router.hedge_after_s(call, route), accounting=services.accounting,
                tasks=services.tasks, noted=partial(services.router.note_first_byte, call),
            )  # fmt: skip
        finally:
            if not has_begun:
                handle.abandoned()

    async def _beside(self, route: Route) -> tuple[Route, Adaptation, AttemptHandle] | None:
        """Another route for an attempt beside the one on this route, reserved; None: none is healthy and has room that
        no call waits for."""
        call, services = self.call, self.services
        router, waiting = services.router, services.waiting.waiting()
        open_routes = [
            each for each in self.routes if not waiting.get(each.upstream) and self.way(each) not in SPLIT_WAYS
        ]
        other = router.beside(open_routes, call, {route, *[each.route for each in self.tried]})
        if other is None:
            return None
        key = router.next_key(other, call.params.model, self.tried)
        try:
            refused = await self.log.reservation.extend_for_hedge(router.limits.claims(call, other, key))
        except Unavailable:
            return None
        if refused is not None:
            return None
        return other, self.way(other), router.begin(other, call.params.model, self.tried, key, caller=call.key.id)
