"""Room for a call at its upstreams: where it may go, what it draws on there, and how it waits where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b

from gateway.accounting.admission import Admission
from gateway.accounting.reservation import limit_failure
from gateway.api import capabilities as able
from gateway.api.capabilities import Adaptation
from gateway.bridge import fan_out
from gateway.config import Route
from gateway.queueing import Identity, Ticket, Waiting
from gateway.queueing.classes import FACTORS
from gateway.records import Call, Document, Failure, Refused
from gateway.upstream.credentials import TRIAL_S
from gateway.upstream.limits import Place
from gateway.upstream.retry_policy import client_timeout_s, is_first_try, may_wait

from .active_call import ActiveCall, bound_key
from .plan import CallPlan
from .services import Services

ANSWER_WITHIN_S = 0.5
"""How long before a client gives up a call that waits is refused, so that the refusal arrives."""

ENDS_BYTES = 4096
"""Bytes of the beginning and of the end of a body by which calls of a key are distinguished."""


def places(call: Call, candidates: Sequence[Route], plan: CallPlan, services: Services) -> Sequence[Place]:
    """Where the call may go first, with what it draws on there."""

    def prompts(route: Route) -> tuple[int, int]:
        way = plan.ways.get(route.upstream)
        if way is None:
            way = able.adaptation(call.endpoint, call.params, services.config.upstreams[route.upstream].capabilities)
        count = 1 if way is Adaptation.PLAIN else call.params.prompts
        return count, min(count, fan_out.AT_ONCE)

    found = services.router.places(call, candidates, prompts)
    if call.bond is None:
        return found
    key = bound_key(call.bond, services)
    return [place._replace(key=key) for place in found if place.key in (None, key)]


def ticket(
    call: Call, places: Sequence[Place], services: Services, waited_s: float = 0.0, *, is_new: bool = False
) -> Ticket | None:
    """How the call waits where no place has room: in the flow of its key or team, not past its client's patience, and
    with what it has waited already no longer than the longest wait. None: it does not. Where others wait, a new call
    that does not has a ticket, too: its place in their order is the time after which it may come back."""
    wait_s = services.waiting.longest_wait_s(call.key.max_wait_s, call.model.max_wait_s)
    upstreams = {place.route.upstream for place in places}
    if not wait_s and not (is_new and services.waiting.has_line(upstreams)):
        return None
    key, document, by = call.key, call.params.document, services.waiting.settings.by
    owner = f"team:{key.team}" if by == "team" and key.team is not None else key.id
    waiting = Waiting(
        flow=f"{owner}|{call.priority}",
        weight=key.weight * FACTORS[call.priority],
        cost=call.params.prompt_tokens,
        size=_size(document),
        windows=[services.router.limits.named(call, place) for place in places],
        priority=call.priority,
        is_back=waited_s > 0,
        identity=partial(_identity, call),
    )
    patience_s = client_timeout_s(call.forwarded_headers) - (time.perf_counter() - call.arrived) - ANSWER_WITHIN_S
    return services.waiting.ticket(upstreams, waiting, min(patience_s, wait_s - waited_s))


def pause(call: Call, ticket: Ticket | None, services: Services) -> Callable[[Place], Refused | None] | None:
    """Whether a place has room by what its upstream asked for. A call that may not wait heeds it where limits are
    learned; one that has a fallback goes on to that."""
    if call.fallbacks:
        return None
    router = services.router

    def of(place: Place) -> Refused | None:
        waits = ticket is not None and services.waiting.longest_wait_s(call.key.max_wait_s, call.model.max_wait_s)
        return router.pause(call, place) if waits or place.route.upstream in router.limits.learning else None

    return of


class Queue(ActiveCall):
    """Lets a call wait for room. If a call has several models, it waits only at the last one: each of the others falls
    back to the next model."""

    __slots__ = ()

    async def without_room(self, last: Failure | None) -> Failure | None:
        """Waits for room after the last failure if the upstreams have none. Returns None if there is a place, else the
        failure that the client gets. Attempts that had no room no longer count: the wait bounds them."""
        call, services = self.call, self.services
        if last is None or not may_wait(last) or self.has_fallback:
            return last
        is_firm = bool(call.params.account_bound_by)
        candidates = services.router.candidates(
            self.routes, call.params.model, call.affinity, call.key.id, is_firm=is_firm
        )
        found = places(call, candidates, self.plan, services)
        reservation = self.log.reservation
        admitted = ticket(call, found, services, reservation.waited_s) if found else None
        if admitted is None:
            return last
        self.client.position = admitted.position
        self.back_at[self.tried[-1].route] = time.monotonic() + max(TRIAL_S, last.retry_after_s or 0.0)
        reservation.admission = admission = reservation.admission or Admission(reservation)
        refused = await admission.admit_again(found, admitted, self._pause)
        if refused is not None:
            return replace(last, retry_after_s=limit_failure(refused).retry_after_s)
        self.place = admission.place
        self.tried = [each for each in self.tried if not may_wait(each.failure)]
        return None

    def _pause(self, place: Place) -> Refused | None:
        return self.services.router.pause(self.call, place, self.back_at.get(place.route, 0.0))


def _size(document: Document) -> int:
    """Bytes of the body that are held in memory."""
    if document.form is not None:
        return 0
    return len(document.text) if document.large is None else sum(map(len, document.large.pieces))


def _identity(call: Call) -> Identity:
    """Returns the identity by which a repeated call is recognized: its model, and the length, beginning and end of its
    body. The middle is not hashed, so that a long body takes no time."""
    document = call.params.document
    if document.form is not None:
        pieces: Sequence[bytes | bytearray | memoryview] = [repr(sorted(document.members)).encode()]
    elif document.large is not None:
        pieces = document.large.pieces
    else:
        pieces = [document.text.encode(errors="surrogatepass")]
    size, first, last = sum(map(len, pieces)), pieces[0], pieces[-1]
    digest = blake2b(f"{call.endpoint}|{call.params.model}|{size}|".encode(), digest_size=8)
    digest.update(first[:ENDS_BYTES])
    digest.update(last[-ENDS_BYTES:])
    return Identity(digest.hexdigest(), is_first_try(call.forwarded_headers))
