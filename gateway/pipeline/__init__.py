"""The story of one call. A newcomer starts here.

Before, `web/endpoints.py` has found the key and checked the body. Here its routes and those of its fallbacks are
found, it is reserved in the ledger, and carried:

1. `active_call.py` carries it with one of its models: it tries one route after the other.
2. `request.py` makes the request of one attempt from the client's body.
3. `relay` passes the answer on, and computes its usage on the way.

However `serve` ends, the call is closed exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from gateway.accounting.admission import Admission
from gateway.accounting.call_log import CallLog
from gateway.accounting.reservation import Reservation
from gateway.config import Route
from gateway.errors import GatewayError, InvalidRequest, UpstreamFailed, UpstreamRefused
from gateway.formats import FORMATS
from gateway.observe.tracing import NO_TRACE, Trace
from gateway.quota import windows
from gateway.quota.output_fit import OutputFit, shrunk
from gateway.records import Call, Claim
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientPort, ClientStream
from gateway.upstream.refusal import is_context_too_long

from . import waiting
from .active_call import ActiveCall
from .plan import CallPlan
from .services import CurrentServices, Services
from .stack import stack_of

__all__ = ["CurrentServices", "Services", "serve"]

log = logging.getLogger("gateway")

_INSTEAD = {
    "file_id": "Use a model of the provider that keeps the file, or send its content.",
    "input_file_id": "Upload the file again: the model of its requests has moved since.",
}
"""Advice for the client if another upstream keeps the object that this parameter names."""


async def serve(call: Call, services: Services, port: ClientPort, trace: Trace = NO_TRACE) -> Answer | Streamed:
    """Carry one checked call to an upstream and back, and account for it once.

    A whole answer has the gateway's headers, too. `trace` is ended here once `port.reserved` was called. Raises
    `GatewayError` for errors that the client gets as a status. Cancelled: the client is gone.
    """
    plan, routes = services.plans.of(call)
    if call.params.refers_to is not None:
        call, routes = await _continued(call, routes, services)
    limits = services.key_cache.terms.of_call(call)
    router = services.router
    if limits.is_by_use or router.limits.counts_tokens:
        call = _expecting(call, services)
    fit = None
    if call.model.min_output_tokens is not None and OutputFit.may_shrink(call):
        fit = _output_fit(call, services)
        call = fit.at_first()
    if call.passed is not None and call.passed.is_read:
        limits = windows.CallLimits.of(windows.request_rates(limits.each), call.started)
    claims = windows.claims(call, limits)
    fallbacks: Sequence[_Fallback] = ()
    if call.fallbacks:
        fallbacks = _fallbacks(call, services)
        claims = windows.dearest([claims, *[each.claims for each in fallbacks]])
    has_limits = router.limits.is_any and router.limits.binds_any(_all_routes(routes, fallbacks))
    may_wait = services.waiting.settings.max_wait_s or call.key.max_wait_s or call.model.max_wait_s
    candidates: Sequence[Route] = routes
    if has_limits or may_wait or len(routes) > 1:
        candidates = router.candidates(
            routes, call.params.model, call.affinity, call.key.id, is_firm=bool(call.params.account_bound_by)
        )
    places = waiting.places(call, candidates, plan, services) if has_limits or may_wait else ()
    likely = candidates[0] if candidates else routes[0]
    reservation = Reservation(services.accounting.ledger, call, claims, likely)
    admission = ticket = None
    if places or fit is not None:
        ticket = waiting.ticket(call, places, services, is_new=True) if places else None
        pause = waiting.pause(call, ticket, services) if places else None
        reservation.admission = admission = Admission(reservation, places, ticket, fit, pause)
    call_log = CallLog(services.accounting, call, reservation, trace)
    keepalive = FORMATS[call.endpoint].keepalive
    keepalive_s = services.config.server.keepalive_comment_s if call.params.stream and keepalive else 0
    client = ClientStream(port.open_stream, call_log.headers, keepalive_s, keepalive, port.hold, port.loop)
    if ticket is not None:
        client.position = ticket.position
    try:
        async with call_log:
            port.reserved()
            if fit is not None and reservation.call is not call:
                call, fallbacks = reservation.call, _fallbacks(reservation.call, services)
            place = None if admission is None else admission.place
            active = stack_of(call.model)(
                call, plan, routes, services, call_log, client, place, has_fallback=bool(fallbacks)
            )
            try:
                answer = await active.carry()
            except (UpstreamFailed, UpstreamRefused) as error:
                answer = await _fall_back(error, fallbacks, active)
            if isinstance(answer, Answer):
                answer = Answer(answer.status, (*answer.headers, *call_log.headers()), answer.body)
            return answer
    finally:
        client.close()


# ------------------------------------------------------------------------------------------------ models and routes


async def _continued(call: Call, routes: Sequence[Route], services: Services) -> tuple[Call, tuple[Route, ...]]:
    """The call with its bond, and the routes to what it continues. Raises `NotFound` or `InvalidRequest`."""
    params, upstreams = call.params, services.config.upstreams
    bond = await services.bonds.require(call.key.in_team, params.refers_to or "", params.refers_param, upstreams)
    found = tuple([route for route in routes if route.upstream == bond.upstream])
    if not found:
        raise InvalidRequest(
            f"'{bond.id}' cannot be used with the model `{params.model}`, which another provider serves. "
            + _INSTEAD.get(params.refers_param, "Use the model that made it, or send the whole conversation."),
            param="model",
            code="model_mismatch",
        )
    params = params._replace(prompt_tokens=params.prompt_tokens + bond.tokens, is_prompt_exact=False)
    return call._replace(params=params, bond=bond, fallbacks=()), found


def _expecting(call: Call, services: Services) -> Call:
    """The call and its fallbacks with the output that they draw on rates: what such calls had lately. One that only
    begins work, such as a batch, draws all of it."""
    params, limit = call.params, windows.output_limit(call)
    if params.lines or params.is_deferred or call.passed is not None or not limit:
        return call
    recent = services.accounting.recent
    expected = recent.expected(call.key, call.label_model, limit)
    if expected == limit:
        return call._replace(expected_output=limit)
    fallbacks = tuple([
        other._replace(expected_output=recent.expected(call.key, call.label_model, windows.output_limit(other)))
        for other in call.fallbacks
    ])  # fmt: skip
    return call._replace(expected_output=expected, fallbacks=fallbacks)


class _Fallback(NamedTuple):
    """Another model for a call."""

    call: Call
    plan: CallPlan
    routes: Sequence[Route]
    claims: Sequence[Claim]


def _fallbacks(call: Call, services: Services) -> list[_Fallback]:
    """The other models that can take the call, within its limits."""
    found = []
    for other in call.fallbacks:
        try:
            claims = windows.claims(other, services.key_cache.terms.of_call(other))
            found.append(_Fallback(other, *services.plans.of(other), claims))
        except GatewayError:
            continue
    return found


def _output_fit(call: Call, services: Services) -> OutputFit:
    """How the call and those of its fallbacks that can serve it with the least output may be made smaller."""
    possible = {other.call.target for other in _fallbacks(shrunk(call, call.model.min_output_tokens or 1), services)}
    fallbacks = tuple([other for other in call.fallbacks if other.target in possible])

    def claims(smaller: Call) -> tuple[Claim, ...]:
        each = (smaller, *smaller.fallbacks)
        return windows.dearest([windows.claims(one, services.key_cache.terms.of_call(one)) for one in each])

    return OutputFit(call._replace(fallbacks=fallbacks), claims)


def _all_routes(routes: Sequence[Route], fallbacks: Sequence[_Fallback]) -> Sequence[Route]:
    return [*routes, *[route for each in fallbacks for route in each.routes]] if fallbacks else routes


async def _fall_back(
    error: UpstreamFailed | UpstreamRefused, fallbacks: Sequence[_Fallback], first: ActiveCall
) -> Answer | Streamed:
    """Try other models, one after the other, as long as the last error permits it. Raises the last error."""
    call_log, client = first.log, first.client
    for number, other in enumerate(fallbacks, 1):
        if client.writer is not None or not call_log.is_open or not _may_fall_back(error):
            break
        log.warning(
            "model %s: %s; model %s serves, call %s",
            call_log.call.model_name,
            error.name,
            other.call.target,
            call_log.call.id,
        )
        call_log.fall_back(other.call)
        try:
            return await stack_of(other.call.model)(
                other.call,
                other.plan,
                other.routes,
                first.services,
                call_log,
                client,
                has_fallback=number < len(fallbacks),
            ).carry()
        except (UpstreamFailed, UpstreamRefused) as another:
            error = another
    raise error


def _may_fall_back(error: UpstreamFailed | UpstreamRefused) -> bool:
    """Whether another model may serve a call after this error: it cannot be billed twice, unless its model permits
    that, and another model may do better."""
    return error.may_try_elsewhere if isinstance(error, UpstreamFailed) else is_context_too_long(error)
