"""One call on its way with one of its models: the loop over its attempts.

1. `upstream/retry_policy.py` decides the next step: which route, after which pause, or that there is none left.
2. A route with limits of its own is reserved first, unless the call's reservation has it already.
3. Each attempt is reported to the health of its upstream, the metrics and the log.
4. A call with several prompts, at an upstream that takes one only, goes on prompt by prompt (`bridge/fan_out.py`): each
   is an `ActiveCall` of its own.
5. Where its upstreams have no room at last, or refused it with a Retry-After, it waits for room as a new call does
   (`waiting.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gateway import relay
from gateway.accounting.call_log import CallLog
from gateway.accounting.reservation import limit_failure
from gateway.api.capabilities import Adaptation, adaptation
from gateway.bridge import fan_out
from gateway.config import Route
from gateway.errors import GatewayError, Unavailable, UpstreamFailed, UpstreamRefused
from gateway.formats import FORMATS
from gateway.records import Call, Failure, Fault, Phase, Refused, Usage
from gateway.relay import Answer, Streamed, hedge
from gateway.relay.client_stream import ClientStream
from gateway.upstream.credentials import TRIAL_S
from gateway.upstream.health import AttemptHandle
from gateway.upstream.limits import Place
from gateway.upstream.retry_policy import (
    FailedAttempt,
    GiveUp,
    Try,
    client_timeout_s,
    may_client_repeat,
    may_wait,
    next_step,
)

from . import waiting
from .plan import CallPlan
from .request import prepare
from .services import Services

log = logging.getLogger("gateway")

_PROMPT_BY_PROMPT = frozenset({Adaptation.ONE_BY_ONE, Adaptation.VIA_CHAT})


class ActiveCall:
    """One call with one of its models. Of several models each has its own; they share the log and the client.

    `place` is what the reservation holds for the first attempt, where routes have limits. `tried` are attempts before
    this object; `has_fallback`: another model may serve the call after this one; `is_single`: of a call with several
    prompts this is one.
    """

    __slots__ = (
        "_back_at", "_has_fallback", "_is_single", "_place", "_tried", "_waited_s", "call", "client", "log", "plan",
        "routes", "services",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        plan: CallPlan,
        routes: Sequence[Route],
        services: Services,
        log: CallLog,
        client: ClientStream,
        place: Place | None = None,
        *,
        tried: Sequence[FailedAttempt] = (),
        has_fallback: bool = False,
        is_single: bool = False,
    ) -> None:
        self.call = call
        self.plan = plan
        self.routes = routes
        self.services = services
        self.log = log
        self.client = client
        self._place = place
        self._tried = [*tried]
        self._waited_s = 0.0
        """The sum of the pauses between attempts."""
        self._back_at: dict[Route, float] = {}
        """When a route that refused the call may be asked again, as `time.monotonic`."""
        self._has_fallback = has_fallback
        self._is_single = is_single

    async def carry(self) -> Answer | Streamed:
        """Try routes until `next_step` returns no further one. Raises `UpstreamFailed` or `UpstreamRefused`.

        Where a route takes single prompts only, each goes its own way from there.
        """
        call, router, model = self.call, self.services.router, self.call.params.model
        while True:
            first = self._place
            match self._next_step() if first is None else Try(first.route):
                case GiveUp(last):
                    if (last := await self._without_room(last)) is None and self._place is not None:
                        continue
                    raise self._given_up(last)
                case Try(route, after_s, is_fresh):
                    router.count(route, model, self._tried)
                    if after_s:
                        self._waited_s += after_s
                        await asyncio.sleep(after_s)
                    way = self.plan.ways.get(route.upstream) or self._adaptation(route)
                    if way in _PROMPT_BY_PROMPT and not self._is_single:
                        return await self._carry_singly()
                    key = None if first is None else first.key
                    if first is None and call.bond is not None:
                        key = waiting.bound_key(call.bond, self.services)
                    if first is None and router.limits.is_any and router.limits.binds(route.upstream):
                        if call.bond is None:
                            key = router.next_key(route, model, self._tried, call.affinity)
                        refused = await self.log.reservation.extend(router.limits.claims(call, route, key))
                        if refused is not None:
                            self._tried.append(FailedAttempt(route, limit_failure(refused), key or 0))
                            continue
                    handle = router.begin(route, model, self._tried, key, call.affinity, call.key.id)
                    attempt = self._try if call.model.hedge_after is None else self._try_hedged
                    result = await attempt(route, way, handle, is_fresh=is_fresh)
                    if not isinstance(result, Failure):
                        return result
                    self._tried.append(FailedAttempt(route, result, handle.key))
                    self._place = None

    async def _without_room(self, last: Failure | None) -> Failure | None:
        """After the last failure: if upstreams have no room, wait for some. Returns nothing when there is a place, else
        the failure that the client gets. Attempts that had no room count no longer: the wait bounds them."""
        call, services = self.call, self.services
        if last is None or not may_wait(last) or self._has_fallback or self._is_single:
            return last
        is_firm = bool(call.params.account_bound_by)
        candidates = services.router.candidates(
            self.routes, call.params.model, call.affinity, call.key.id, is_firm=is_firm
        )
        places = waiting.places(call, candidates, self.plan, services)
        reservation = self.log.reservation
        ticket = waiting.ticket(call, places, services, reservation.waited_s) if places else None
        if ticket is None:
            return last
        self.client.position = ticket.position
        self._back_at[self._tried[-1].route] = time.monotonic() + max(TRIAL_S, last.retry_after_s or 0.0)
        refused = await reservation.make_again(places, ticket, self._pause)
        if refused is not None:
            return replace(last, retry_after_s=limit_failure(refused).retry_after_s)
        self._place = reservation.place
        self._tried = [each for each in self._tried if not may_wait(each.failure)]
        return None

    def _pause(self, place: Place) -> Refused | None:
        return self.services.router.pause(self.call, place, self._back_at.get(place.route, 0.0))

    def _next_step(self) -> Try | GiveUp:
        call, router, tried = self.call, self.services.router, self._tried
        name = call.params.model
        is_firm = bool(call.params.account_bound_by)
        candidates = router.candidates(self.routes, name, call.affinity, call.key.id, is_firm=is_firm)
        if not tried:  # no failure that `next_step` could judge
            return Try(candidates[0]) if candidates else GiveUp(None)
        upstreams = self.services.config.upstreams
        total_s = max([upstreams[route.upstream].timeouts.total_s for route in self.routes])
        left_s = min(total_s, client_timeout_s(call.forwarded_headers)) - (time.perf_counter() - call.arrived)
        return next_step(
            call.model, candidates, tried,
            waited_s=self._waited_s, left_s=left_s,
            has_other_credential=router.with_other_credential(name, tried) if call.bond is None else set(),
            spent=router.spent(tried),
        )  # fmt: skip

    def _way(self, route: Route) -> Adaptation:
        return self.plan.ways.get(route.upstream) or self._adaptation(route)

    def _adaptation(self, route: Route) -> Adaptation:
        capabilities = self.services.config.upstreams[route.upstream].capabilities
        return adaptation(self.call.endpoint, self.call.params, capabilities)

    async def _carry_singly(self) -> Answer | Streamed:
        """Carry each prompt by itself, from where the whole call has come to."""
        services, place = self.services, self._place

        async def carry_one(single: Call, share: CallLog, side: ClientStream) -> Answer | Streamed:
            return await ActiveCall(
                single, self.plan, self.routes, services, share, side, place, tried=self._tried, is_single=True
            ).carry()

        try:
            return await fan_out.carry(
                self.call, self.log, self.client, one=carry_one, upstreams=services.config.upstreams,
                accounting=services.accounting, tasks=services.tasks,
                max_response_bytes=services.config.server.max_response_bytes,
            )  # fmt: skip
        except GatewayError as error:
            error.headers = {**error.headers, **dict(self.log.headers())}
            raise

    # -------------------------------------------------------------------------------------------------- no route left

    def _given_up(self, last: Failure | None) -> UpstreamFailed:
        """The error after this last failure; None: no route was available."""
        error = self._failed(last)
        spec, client = FORMATS[self.call.endpoint], self.client
        may_fall_back = client.writer is None and self._has_fallback and error.may_try_elsewhere
        is_passed_on = not may_fall_back and not spec.error_keeps_status
        if last is not None and last.phase is Phase.REFUSED and last.has_begun and is_passed_on:
            # An error as the first event of a stream: it is passed on unchanged.
            client.open((("content-type", "text/event-stream"),))
            self.log.close(status=error.status, usage=Usage(), ended="error", is_truncated=True, error=error.name)
        return error

    def _failed(self, last: Failure | None) -> UpstreamFailed:
        call, spec = self.call, FORMATS[self.call.endpoint]
        if last is None:
            last = self.services.router.unavailable_reason(self.routes, call.params.model)
            if not self._has_fallback:
                self.services.accounting.telemetry.rejected(last.fault.value)
        may_repeat = may_client_repeat(call.model, [each.failure for each in self._tried] or [last])
        error = UpstreamFailed.after(last, may_repeat=may_repeat, passed=spec.passed_statuses)
        if last.fault is Fault.WRONG_URL and spec.is_optional:
            error.status = 404
        error.headers = {**error.headers, **dict(self.log.headers())}
        error.may_try_elsewhere = last.phase in (Phase.CONNECT, Phase.REFUSED) or (
            last.phase is not Phase.RELAYING and call.model.repeat_when_waiting
        )
        return error

    # --------------------------------------------------------------------------------------------------- two at once

    async def _try_hedged(
        self, route: Route, way: Adaptation, handle: AttemptHandle, *, is_fresh: bool
    ) -> Answer | Streamed | Failure:
        """One attempt, and another one beside it if its first byte is late."""
        call, services = self.call, self.services
        may_hedge = hedge.may_hedge(call) and len(self._tried) + 1 < call.model.max_attempts and not self._is_single
        if not may_hedge:
            return await self._try(route, way, handle, is_fresh=is_fresh)

        has_begun = False

        async def first(leg: CallLog, side: ClientStream) -> Answer | Streamed | Failure:
            nonlocal has_begun
            has_begun = True
            of_leg = ActiveCall(call, self.plan, self.routes, services, leg, side, self._place, tried=self._tried)
            return await of_leg._try(route, way, handle, is_fresh=is_fresh)

        async def second(leg: CallLog, side: ClientStream) -> Answer | Streamed | Failure | None:
            of_leg = ActiveCall(call, self.plan, self.routes, services, leg, side, tried=self._tried)
            if (chosen := await self._beside(route)) is None:
                return None
            other, way, handle = chosen
            result = await of_leg._try(other, way, handle, is_fresh=False)
            if isinstance(result, Failure):
                self._tried.append(FailedAttempt(other, result, handle.key))
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
            each for each in self.routes if not waiting.get(each.upstream) and self._way(each) not in _PROMPT_BY_PROMPT
        ]
        other = router.beside(open_routes, call, {route, *[each.route for each in self._tried]})
        if other is None:
            return None
        key = router.next_key(other, call.params.model, self._tried)
        try:
            refused = await self.log.reservation.extend_for_hedge(router.limits.claims(call, other, key))
        except Unavailable:
            return None
        if refused is not None:
            return None
        return other, self._way(other), router.begin(other, call.params.model, self._tried, key, caller=call.key.id)

    # ---------------------------------------------------------------------------------------------------- one attempt

    async def _try(
        self, route: Route, way: Adaptation, handle: AttemptHandle, *, is_fresh: bool
    ) -> Answer | Streamed | Failure:
        """One attempt; its outcome counts for the health of its upstream."""
        call_log, services, upstream = self.log, self.services, route.upstream
        telemetry = services.accounting.telemetry
        base_url = services.config.upstreams[upstream].base_url
        call, span = call_log.trace.attempt(self.call, route, base_url, call_log.attempts + 1)
        try:
            this = prepare(self, call, route, way, handle)
            call_log.attempt_began(route, this.left_out)
            if self._place is not None and upstream in services.router.limits.adaptive:
                this = this._replace(answered=self._timing(self._place, handle))
            result = await relay.attempt(this, is_fresh=is_fresh)
        except UpstreamRefused as refused:
            handle.ended(None)
            span.ended(refused.status, "refused")
            telemetry.attempted(upstream, "refused")
            call_log.note_upstream_error(refused.detail)
            refused.headers = {**refused.headers, **dict(call_log.headers())}
            raise
        except asyncio.CancelledError:
            handle.abandoned()
            span.ended(None, call_log.stopped_as)
            telemetry.attempted(upstream, call_log.stopped_as)
            raise
        except BaseException as error:
            handle.abandoned()
            span.ended(None, type(error).__name__)
            raise
        if isinstance(result, Failure):
            fault = result.fault.value
            handle.ended(result)
            span.ended(result.status, fault)
            telemetry.attempted(upstream, fault)
            call_log.attempt_failed(result.fault, f"{fault}: {result.detail}")
            log.warning(
                "upstream %s: %s while %s (%s), call %s",
                result.upstream, fault, result.phase.value, result.detail, call.id,
            )  # fmt: skip
        elif isinstance(result, Streamed) and result.fault is not None:
            fault = result.fault.value
            handle.ended(result.problem)
            span.ended(200, fault)
            telemetry.attempted(upstream, fault)
            call_log.attempt_failed(result.fault, result.detail, has_begun=True)
            log.warning("upstream %s: %s inside a stream (%s), call %s", upstream, fault, result.detail, call.id)
        else:
            handle.ended(None)
            span.ended(200, None)
            telemetry.attempted(upstream, "ok")
        return result

    @property
    def used_at_place(self) -> Mapping[str, int]:
        """Used units by window, this call included: the windows of the place that the next attempt has reserved."""
        if self._place is None:
            return {}
        return {status.window.id: status.used for status in self.log.reservation.place_statuses}

    def _timing(self, place: Place, handle: AttemptHandle) -> Callable[[], None]:
        """For the first token of a stream, whose time the limits of its upstream follow."""
        limits, began = self.services.router.limits, time.perf_counter()
        under_way = self.used_at_place
        is_first = True

        def answered() -> None:
            nonlocal is_first
            if is_first:
                limits.first_token(place.claims, under_way, time.perf_counter() - began)
                is_first = False
            handle.answered()

        return answered
