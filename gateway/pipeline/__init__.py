"""The story of one call. A newcomer starts here.

Before, `web/endpoints.py` has found the key and checked the body. Here its routes are found, it is reserved in the
ledger, and carried:

1. `steps.py` finds out what has to be known before the reservation, such as what the call draws.
2. `active_call.py` carries it with one of its models: it tries one route after the other. `stack.py` puts the layers of
   optional features around that.
3. `request.py` makes the request of one attempt from the client's body.
4. `relay` passes the answer on, and computes its usage on the way.

However `serve` ends, the call is closed exactly once.
"""

from __future__ import annotations

from gateway.accounting.call_log import CallLog
from gateway.observe.tracing import NO_TRACE, Trace
from gateway.records import Call
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientPort, ClientStream

from .active_call import ActiveCall
from .services import CurrentServices, Services

__all__ = ["CurrentServices", "Services", "serve"]


async def serve(call: Call, services: Services, port: ClientPort, trace: Trace = NO_TRACE) -> Answer | Streamed:
    """Carry one checked call to an upstream and back, and account for it once.

    A whole answer has the gateway's headers, too. `trace` is ended here once `port.reserved` was called. Raises
    `GatewayError` for errors that the client gets as a status. Cancelled: the client is gone.
    """
    plan, routes = services.plans.of(call)
    if call.params.refers_to is not None:
        call, routes = await _continued(call, routes, services)
    if call.tags and services.key_cache.terms.labels.owners:
        await services.key_cache.know(call)
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
    client.position = None if ticket is None else ticket.position
    try:
        async with log:
            port.reserved()
            outcome = await plan.stack.whole.carry(active)
            if isinstance(outcome, Answer):
                return Answer(outcome.status, (*outcome.headers, *log.headers()), outcome.body)
            return outcome if isinstance(outcome, Streamed) else active.answered(outcome)
    finally:
        client.close()
