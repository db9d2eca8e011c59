"""Other models for a call that its own cannot serve, and less output where quotas have no room for all of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from gateway.accounting.admission import Admission
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused
from gateway.quota import windows
from gateway.quota.output_fit import OutputFit, shrunk
from gateway.records import Call, Claim, Failure
from gateway.upstream.refusal import is_context_too_long

from .active_call import ActiveCall
from .plan import Layer, Outcome
from .services import Services
from .steps import expecting

log = logging.getLogger("gateway")


async def others(active: ActiveCall) -> None:
    """Finds the other models that can take the call, and reserves for the most expensive one."""
    if not active.call.fallbacks:
        return
    active.others = others_of(active.call, active.services)
    active.claims = windows.dearest([active.claims, *[other.claims for other in active.others]])


async def draw_fitting(active: ActiveCall) -> None:
    """Finds what the call draws, with less output where its quotas never have room for its model's default."""
    call, services = active.call, active.services
    if call.tags:
        await services.key_cache.know(call)
    limits = services.key_cache.terms.of_call(call)
    if limits.is_by_use or services.router.limits.counts_tokens:
        call = expecting(call, services)
    if OutputFit.may_shrink(call):
        active.fit = _output_fit(call, services)
        active.reserve = partial(Admission, fit=active.fit)
        call = active.fit.at_first()
    active.call, active.claims = call, windows.claims(call, limits)


class AsGranted(Layer):
    """Goes on with what the reservation has found room for: a place at an upstream, or a call with less output."""

    async def carry(self, active: ActiveCall) -> Outcome:
        reservation = active.log.reservation
        if isinstance(reservation, Admission):
            active.place = reservation.place
        if reservation.call is not active.call:
            active.call, active.others = reservation.call, others_of(reservation.call, active.services)
        return await self.inner.carry(active)


class Fallbacks:
    """Tries other models, one after the other, as long as the last error permits it."""

    async def carry(self, active: ActiveCall) -> Outcome:
        one = active
        for other in active.others:
            error: UpstreamFailed | UpstreamRefused
            try:
                outcome = await one.plan.stack.passing.carry(one)
            except UpstreamRefused as refused:
                last, error = None, refused
            else:
                if outcome is not None and not isinstance(outcome, Failure):
                    return outcome
                last = one.last_failure(outcome)
                error = one.error_after(last)
            if one.client.writer is not None or not one.log.is_open or not _may_fall_back(error):
                if last is not None and isinstance(error, UpstreamFailed):
                    one.pass_on(error, last)
                raise error
            log.warning(
                "model %s: %s; model %s serves, call %s",
                one.call.model_name, error.name, other.call.target, one.call.id,
            )  # fmt: skip
            one.log.fall_back(other.call)
            other.log, other.client, one = one.log, one.client, other
        return one.answered(await one.plan.stack.last.carry(one))


def _may_fall_back(error: UpstreamFailed | UpstreamRefused) -> bool:
    """Whether another model may serve a call after this error: it cannot be billed twice, unless its model permits
    that, and another model may do better."""
    return error.may_try_elsewhere if isinstance(error, UpstreamFailed) else is_context_too_long(error)


def others_of(call: Call, services: Services) -> Sequence[ActiveCall]:
    """The call with the other models that can take it, within its limits."""
    found = []
    for fallback in call.fallbacks:
        try:
            plan, routes = services.plans.of(fallback)
            other = ActiveCall(fallback, plan, routes, services)
            other.claims = windows.claims(fallback, services.key_cache.terms.of_call(fallback))
            found.append(other)
        except GatewayError:
            continue
    return found


def _output_fit(call: Call, services: Services) -> OutputFit:
    """How the call and those of its fallbacks that can serve it with the least output may be made smaller."""
    possible = {other.call.target for other in others_of(shrunk(call, call.model.min_output_tokens or 1), services)}
    fallbacks = tuple([other for other in call.fallbacks if other.target in possible])

    def claims(smaller: Call) -> tuple[Claim, ...]:
        each = (smaller, *smaller.fallbacks)
        return windows.dearest([windows.claims(one, services.key_cache.terms.of_call(one)) for one in each])

    return OutputFit(call._replace(fallbacks=fallbacks), claims)
