"""The layer that tries a second route beside a slow one."""

from __future__ import annotations

from functools import partial

from gateway.accounting.call_log import CallLog
from gateway.api.capabilities import SPLIT_WAYS
from gateway.errors import Unavailable
from gateway.records import Failure
from gateway.relay import Answer, Streamed, hedge
from gateway.relay.client_stream import ClientStream
from gateway.upstream.retry_policy import FailedAttempt

from .active_call import ActiveCall
from .plan import Layer, Outcome


class Hedge(Layer):
    """Carries a call to a model with `hedge_after`: one attempt, and another one beside it if its first byte is late.
    Each of the two has an `ActiveCall` and a part of the log."""

    async def carry(self, active: ActiveCall) -> Outcome:
        call, services = active.call, active.services
        if not hedge.may_hedge(call) or len(active.tried) + 1 >= call.model.max_attempts:
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

        noted = partial(services.router.note_first_byte, call)
        race = hedge.Race(call, active.log, active.client, services.accounting, services.tasks, noted)
        return await race.run(first, second, services.router.hedge_after_s(call, active.route))

    async def _is_reserved_beside(self, active: ActiveCall, part: ActiveCall) -> bool:
        """Whether there is another route for an attempt beside the one that is under way: a healthy one, with room that
        no call waits for. It is reserved, and is the route of this part."""
        call, services = active.call, active.services
        router, waiting = services.router, services.waiting.waiting()
        open_routes = [
            each for each in active.routes if not waiting.get(each.upstream) and active.way_to(each) not in SPLIT_WAYS
        ]
        other = router.beside(open_routes, call, {active.route, *[each.route for each in active.tried]})
        if other is None:
            return False
        key = router.next_key(other, call.params.model, active.tried)
        try:
            refused = await active.log.reservation.extend_for_hedge(router.limits.claims(call, other, key))
        except Unavailable:
            return False
        part.route, part.key, part.way = other, key, active.way_to(other)
        return refused is None
