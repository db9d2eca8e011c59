"""The story of one call. A newcomer starts here.

Before, `web/endpoints.py` has found the key and checked the body. Here its routes are found, it is reserved in the
ledger, and carried:

1. `steps.py` finds out what has to be known before the reservation, such as what the call draws.
2. `active_call.py` carries it with one of its models: it tries one route after the other. `stack.py` puts the layers of
   optional features around that.
3. `request.py` makes the request of one attempt from the client's body.
4. `relay` passes the answer on, and computes its usage on the way.

Once a call is reserved, it is closed exactly once, however `serve` ends.
"""

from __future__ import annotations

import asyncio
from functools import partial

from gateway.accounting.admission import Admission
from gateway.accounting.call_log import CallLog
from gateway.observe.tracing import NO_TRACE, Trace
from gateway.records import Call
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientPort, ClientStream

from .active_call import ActiveCall
from .services import CurrentServices, Services


async def serve(call: Call, services: Services, port: ClientPort, trace: Trace = NO_TRACE) -> Answer | Streamed:
    """Carry one checked call to an upstream and back, and account for it once.

    A whole answer has the gateway's headers, too. The log ends `trace` once `port.reserved` was called, the caller
    before that. Raises `GatewayError` for errors that the client gets as a status. Cancelled: the client is gone, or
    the gateway ends.
    """
    plan, routes = services.plans.of(call)
    active = ActiveCall(call, plan, routes, services)
    for step in plan.stack.steps:
        await step(active)
    call, accounting = active.call, services.accounting
    reservation = active.reserve(accounting.ledger, call, active.claims, active.likely)
    if isinstance(reservation, Admission):
        reservation.check_again = partial(port.check_again, call.key)
    active.log = log = CallLog(accounting, call, reservation, trace)
    active.client = client = ClientStream(
        port.open_stream, log.headers, plan.keepalive_s, plan.keepalive, port.hold, port.loop,
        is_stream=call.params.stream, position=active.position,
    )  # fmt: skip
    try:
        async with log:
            for amendment in services.amendments:
                amendment.note(reservation, services)
            port.reserved()
            outcome = await plan.stack.whole.carry(active)
            if isinstance(outcome, Answer):
                return Answer(outcome.status, (*outcome.headers, *log.headers()), outcome.body)
            return outcome if isinstance(outcome, Streamed) else active.answered(outcome)
    except asyncio.CancelledError:
        if log.is_open:
            port.left(reservation.when_closed)
        raise
    finally:
        client.close()
