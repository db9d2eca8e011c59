"""One call on its way with one of its models, and the loop over attempts, the only layer around those of a plain call.

`upstream/retry_policy.py` decides the next step: which route, after which pause, or that there is none left. Optional
features, such as a wait for room or a second attempt at once, are further layers (`stack.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.accounting.admission import Admission
from gateway.accounting.call_log import CallLog
from gateway.accounting.reservation import Reservation
from gateway.api.capabilities import Adaptation, adaptation
from gateway.config import Route
from gateway.errors import UpstreamFailed
from gateway.formats.table import FORMATS
from gateway.quota.output_fit import OutputFit
from gateway.records import Call, Claim, Failure, Fault, Phase, Usage
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientStream
from gateway.store import Ledger
from gateway.upstream.credentials import Asker
from gateway.upstream.health import asker_of
from gateway.upstream.limits import Place
from gateway.upstream.retry_policy import FailedAttempt, GiveUp, Try, client_timeout_s, may_client_repeat, next_step

from .plan import CallPlan, Carries, Outcome
from .services import Services


@dataclass(slots=True, eq=False)
class ActiveCall:
    """One call with one of its models: what was found out about it, and how far it has come.

    Of several models each has its own, and so has one prompt of several and each of two attempts at once; they share
    the reservation. `log` and `client` are set when it is reserved, the step under way by the loop over attempts.
    """

    call: Call
    plan: CallPlan
    routes: Sequence[Route]
    services: Services
    claims: tuple[Claim, ...] = ()
    """The claims on its caller's windows."""
    likely: Route | None = None
    """The most probable route; None: the model's first."""
    reserve: Callable[[Ledger, Call, tuple[Claim, ...], Route | None], Reservation] = Reservation
    fit: OutputFit | None = None
    others: Sequence[ActiveCall] = ()
    """The same call with the models that serve it, in this order, where this one cannot."""
    position: Callable[[], int | None] | None = None
    """Its position in the queue, from 1."""
    only_key: int | None = None
    """The only API key that can serve it; None: any."""
    place: Place | None = None
    """The place that the reservation holds for the next attempt, where routes have limits."""
    tried: list[FailedAttempt] = field(default_factory=list)
    waited_s: float = 0.0
    """The sum of the pauses between attempts."""
    back_at: dict[Route, float] = field(default_factory=dict)
    """When a route that refused the call may be asked again, as `time.monotonic`."""
    asker: Asker | None = None
    """Whose call it is for upstreams; None: not known yet."""
    log: CallLog = field(init=False)
    client: ClientStream = field(init=False)
    route: Route = field(init=False)
    """The route of the step under way."""
    way: Adaptation = field(init=False)
    """How the call is adapted for it."""
    key: int | None = field(init=False)
    """Its API key; None: any."""
    is_fresh: bool = field(init=False)
    """Whether it needs a new connection."""

    def part(self, call: Call, log: CallLog, client: ClientStream, place: Place | None) -> ActiveCall:
        """A part that goes on by itself from here, with a log and a client's side of its own."""
        part = ActiveCall(call, self.plan, self.routes, self.services)
        part.log, part.client, part.place = log, client, place
        part.only_key, part.tried = self.only_key, [*self.tried]
        return part

    def way_to(self, route: Route) -> Adaptation:
        """How the call is adapted for this route."""
        capabilities = self.services.config.upstreams[route.upstream].capabilities
        known = self.plan.ways.get(route.upstream)
        return known or adaptation(self.call.endpoint, self.call.params, capabilities)

    # -------------------------------------------------------------------------------------------------- no route left

    def answered(self, outcome: Outcome) -> Answer | Streamed:
        """The answer. Raises the error that the client gets where there is none."""
        if outcome is not None and not isinstance(outcome, Failure):
            return outcome
        last = self.last_failure(outcome)
        if outcome is None:
            self.services.accounting.telemetry.rejected(last.fault.value)
        error = self.error_after(last)
        self.pass_on(error, last)
        raise error

    def last_failure(self, last: Failure | None) -> Failure:
        """This failure, or the reason why no route is available."""
        return last or self.services.router.unavailable_reason(self.routes, self.call.params.model, asker_of(self.call))

    def error_after(self, last: Failure) -> UpstreamFailed:
        """The error after this last failure, and whether another model may serve."""
        call, spec = self.call, FORMATS[self.call.endpoint]
        may_repeat = may_client_repeat(call.model, [each.failure for each in self.tried] or [last])
        error = UpstreamFailed.after(last, may_repeat=may_repeat, passed=spec.passed_statuses)
        if last.fault is Fault.WRONG_URL and spec.is_optional:
            error.status = 404
        error.headers = {**error.headers, **dict(self.log.headers())}
        error.may_try_elsewhere = last.phase in (Phase.CONNECT, Phase.REFUSED) or (
            last.phase is not Phase.RELAYING and call.model.repeat_when_waiting
        )
        return error

    def pass_on(self, error: UpstreamFailed, last: Failure) -> None:
        """Opens the client's stream for an error that was the first event of one: it is passed on unchanged."""
        is_passed_on = not FORMATS[self.call.endpoint].error_keeps_status
        if last.phase is Phase.REFUSED and last.has_begun and is_passed_on:
            self.client.open((("content-type", "text/event-stream"),))
            self.log.close(status=error.status, usage=Usage(), ended="error", is_truncated=True, error=error.name)

    # ------------------------------------------------------------------------------------------- facts for an attempt

    @property
    def used_at_place(self) -> Mapping[str, int]:
        """Used units by window, this call included: the windows of the place that the next attempt has reserved."""
        reservation = self.log.reservation
        if self.place is None or not isinstance(reservation, Admission):
            return {}
        return {status.window.id: status.used for status in reservation.place_statuses}


def by_policy(active: ActiveCall) -> Try | GiveUp:
    """The next step of a call by its failures so far."""
    call, router, tried = active.call, active.services.router, active.tried
    name = call.params.model
    is_firm = bool(call.params.account_bound_by)
    active.asker = asker = active.asker or asker_of(call)
    candidates = router.candidates(active.routes, name, call.affinity, asker, is_firm=is_firm)
    if not tried:  # no failure that `next_step` could judge
        return Try(candidates[0]) if candidates else GiveUp(None)
    upstreams = active.services.config.upstreams
    total_s = max([upstreams[route.upstream].timeouts.total_s for route in active.routes])
    left_s = min(total_s, client_timeout_s(call.forwarded_headers)) - (time.perf_counter() - call.arrived)
    return next_step(
        call.model, candidates, tried,
        waited_s=active.waited_s, left_s=left_s,
        has_other_credential=router.with_other_credential(name, tried, asker) if call.bond is None else set(),
        spent=router.spent(tried),
    )  # fmt: skip


class Retry:
    """The loop over attempts: one step after the other, as `choose` decides."""

    def __init__(self, inner: Carries, choose: Callable[[ActiveCall], Try | GiveUp] = by_policy) -> None:
        self.inner = inner
        self._choose = choose

    async def carry(self, active: ActiveCall) -> Outcome:
        """Try routes until `choose` returns no further one."""
        router, model = active.services.router, active.call.params.model
        while True:
            match self._choose(active):
                case GiveUp(last):
                    return last
                case Try(route, after_s, is_fresh):
                    router.count(route, model, active.tried)
                    if after_s:
                        active.waited_s += after_s
                        await asyncio.sleep(after_s)
                    active.route, active.key, active.is_fresh = route, active.only_key, is_fresh
                    active.way = active.plan.ways.get(route.upstream) or active.way_to(route)
                    outcome = await self.inner.carry(active)
                    if not isinstance(outcome, Failure):
                        return outcome
                    active.tried.append(FailedAttempt(route, outcome, active.key or 0))
