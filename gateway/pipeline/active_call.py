"""One call on its way with one of its models: the loop over its attempts.

1. `upstream/retry_policy.py` decides the next step: which route, after which pause, or that there is none left.
2. A route with limits of its own is reserved first, unless the call's reservation has it already.
3. Each attempt is reported to the health of its upstream, the metrics and the log.

Optional features, such as a wait for room or a second attempt at once, wrap this loop (`stack.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from gateway import relay
from gateway.accounting.call_log import CallLog
from gateway.accounting.reservation import limit_failure
from gateway.api.capabilities import Adaptation, adaptation
from gateway.config import Route
from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.formats import FORMATS
from gateway.records import Bond, Call, Failure, Fault, Phase, Usage
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientStream
from gateway.upstream.account import position_of
from gateway.upstream.health import AttemptHandle
from gateway.upstream.limits import Place
from gateway.upstream.retry_policy import (
    FailedAttempt,
    GiveUp,
    Try,
    client_timeout_s,
    may_client_repeat,
    next_step,
)

from .plan import CallPlan
from .request import prepare
from .services import Services

log = logging.getLogger("gateway")


class ActiveCall:
    """One call with one of its models. Of several models each has its own; they share the log and the client.

    `place` is what the reservation holds for the first attempt, where routes have limits. `tried` are attempts before
    this object; `has_fallback`: another model may serve the call after this one. This class alone carries a plain call,
    one prompt of several, and one of two attempts at once; stack.py adds the optional features to it.
    """

    __slots__ = (
        "_waited_s", "back_at", "call", "client", "has_fallback", "log", "place", "plan", "routes", "services", "tried",
    )  # fmt: skip

    split_ways: ClassVar[frozenset[Adaptation]] = frozenset()
    """The ways that take one prompt only, where a call with several is carried prompt by prompt."""

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
    ) -> None:
        self.call = call
        self.plan = plan
        self.routes = routes
        self.services = services
        self.log = log
        self.client = client
        self.place = place
        self.tried = [*tried]
        self._waited_s = 0.0
        """The sum of the pauses between attempts."""
        self.back_at: dict[Route, float] = {}
        """When a route that refused the call may be asked again, as `time.monotonic`."""
        self.has_fallback = has_fallback

    async def carry(self) -> Answer | Streamed:
        """Try routes until `next_step` returns no further one. Raises `UpstreamFailed` or `UpstreamRefused`.

        Where a route takes single prompts only, each goes its own way from there.
        """
        call, router, model = self.call, self.services.router, self.call.params.model
        while True:
            first = self.place
            match self._next_step() if first is None else Try(first.route):
                case GiveUp(last):
                    if (last := await self.without_room(last)) is None and self.place is not None:
                        continue
                    raise self._given_up(last)
                case Try(route, after_s, is_fresh):
                    router.count(route, model, self.tried)
                    if after_s:
                        self._waited_s += after_s
                        await asyncio.sleep(after_s)
                    way = self.plan.ways.get(route.upstream) or self.way(route)
                    if way in self.split_ways:
                        return await self.carry_singly()
                    key = None if first is None else first.key
                    if first is None and call.bond is not None:
                        key = bound_key(call.bond, self.services)
                    if first is None and router.limits.is_any and router.limits.binds(route.upstream):
                        if call.bond is None:
                            key = router.next_key(route, model, self.tried, call.affinity)
                        refused = await self.log.reservation.extend(router.limits.claims(call, route, key))
                        if refused is not None:
                            self.tried.append(FailedAttempt(route, limit_failure(refused), key or 0))
                            continue
                    handle = router.begin(route, model, self.tried, key, call.affinity, call.key.id)
                    result = await self.attempt(route, way, handle, is_fresh=is_fresh)
                    if not isinstance(result, Failure):
                        return result
                    self.tried.append(FailedAttempt(route, result, handle.key))
                    self.place = None

    async def without_room(self, last: Failure | None) -> Failure | None:
        """Runs when no route is left after this failure. Returns nothing when there is a `place` for another attempt,
        else the failure that the client gets."""
        return last

    async def carry_singly(self) -> Answer | Streamed:
        """Carries each prompt of the call by itself. Runs before the first attempt in one of `split_ways`."""
        raise NotImplementedError

    def _next_step(self) -> Try | GiveUp:
        call, router, tried = self.call, self.services.router, self.tried
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

    def way(self, route: Route) -> Adaptation:
        """How the call is adapted for this route."""
        capabilities = self.services.config.upstreams[route.upstream].capabilities
        known = self.plan.ways.get(route.upstream)
        return known or adaptation(self.call.endpoint, self.call.params, capabilities)

    # -------------------------------------------------------------------------------------------------- no route left

    def _given_up(self, last: Failure | None) -> UpstreamFailed:
        """The error after this last failure; None: no route was available."""
        error = self._failed(last)
        spec, client = FORMATS[self.call.endpoint], self.client
        may_fall_back = client.writer is None and self.has_fallback and error.may_try_elsewhere
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
            if not self.has_fallback:
                self.services.accounting.telemetry.rejected(last.fault.value)
        may_repeat = may_client_repeat(call.model, [each.failure for each in self.tried] or [last])
        error = UpstreamFailed.after(last, may_repeat=may_repeat, passed=spec.passed_statuses)
        if last.fault is Fault.WRONG_URL and spec.is_optional:
            error.status = 404
        error.headers = {**error.headers, **dict(self.log.headers())}
        error.may_try_elsewhere = last.phase in (Phase.CONNECT, Phase.REFUSED) or (
            last.phase is not Phase.RELAYING and call.model.repeat_when_waiting
        )
        return error

    # ---------------------------------------------------------------------------------------------------- one attempt

    async def attempt(
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
            if self.place is not None and upstream in services.router.limits.adaptive:
                this = this._replace(answered=self._timing(self.place, handle))
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
        admission = self.log.reservation.admission
        if self.place is None or admission is None:
            return {}
        return {status.window.id: status.used for status in admission.place_statuses}

    def _timing(self, place: Place, handle: AttemptHandle) -> Callable[[], None]:
        """Returns a callback for the tokens of a stream: the time to the first token adapts the limits of its
        upstream."""
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


def bound_key(bond: Bond, services: Services) -> int | None:
    """The only API key that can serve a call that continues this; None: any."""
    return position_of(services.config.upstreams[bond.upstream], bond.account)
