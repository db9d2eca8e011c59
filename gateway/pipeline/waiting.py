"""Room for a call at its upstreams: where it may go, what it draws on there, and how it waits where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b

from gateway.accounting.admission import Admission
from gateway.accounting.reservation import limit_failure
from gateway.api.capabilities import Adaptation
from gateway.bridge import fan_out
from gateway.config import Route
from gateway.queueing import Identity, Ticket, Waiting
from gateway.queueing.classes import FACTORS
from gateway.records import Call, Document, Failure, Refused
from gateway.upstream.credentials import TRIAL_S
from gateway.upstream.limits import Place
from gateway.upstream.retry_policy import GiveUp, Try, client_timeout_s, is_first_try, may_wait

from .active_call import ActiveCall, by_policy
from .plan import Layer, Outcome
from .services import Services
from .steps import candidates

ANSWER_WITHIN_S = 0.5
"""How long before a client gives up a call that waits is refused, so that the refusal arrives."""

ENDS_BYTES = 4096
"""Bytes of the beginning and of the end of a body by which calls of a key are distinguished."""


def places(active: ActiveCall, candidates: Sequence[Route]) -> Sequence[Place]:
    """Where the call may go first, with what it draws on there."""
    call = active.call

    def prompts(route: Route) -> tuple[int, int]:
        count = 1 if active.way_to(route) is Adaptation.PLAIN else call.params.prompts
        return count, min(count, fan_out.AT_ONCE)

    found = active.services.router.places(call, candidates, prompts)
    if call.bond is None:
        return found
    key = active.only_key
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


async def room(active: ActiveCall) -> None:
    """Finds the places where the call may go first, and how it waits where none has room. Its reservation looks for
    room there."""
    call, services, router = active.call, active.services, active.services.router
    routes = [*active.routes, *[route for other in active.others for route in other.routes]]
    waits = services.waiting.settings.max_wait_s or call.key.max_wait_s or call.model.max_wait_s
    found: Sequence[Place] = ()
    may_have_places = waits or router.limits.binds_any(routes)
    in_order = candidates(active) if may_have_places or len(active.routes) > 1 else active.routes
    active.likely = next(iter(in_order), active.routes[0])
    if may_have_places:
        found = places(active, in_order)
    admitted = ticket(call, found, services, is_new=True) if found else None
    active.position = None if admitted is None else admitted.position
    pausing = pause(call, admitted, services)
    active.reserve = partial(Admission, places=found, ticket=admitted, fit=active.fit, pause=pausing)


def by_place(active: ActiveCall) -> Try | GiveUp:
    """The next step of a call: first to the place that its reservation holds."""
    return by_policy(active) if active.place is None else Try(active.place.route)


class RouteLimits(Layer):
    """Draws on the limits of a route before its attempt, unless the reservation holds a place there. A refusal counts
    as a failed attempt."""

    async def carry(self, active: ActiveCall) -> Outcome:
        call, route, router, place = active.call, active.route, active.services.router, active.place
        if place is not None:
            active.key = place.key
        elif router.limits.binds(route.upstream):
            if call.bond is None:
                active.key = router.next_key(route, call.params.model, active.tried, call.affinity)
            refused = await active.log.reservation.extend(router.limits.claims(call, route, active.key))
            if refused is not None:
                return limit_failure(refused)
        outcome = await self.inner.carry(active)
        if isinstance(outcome, Failure):
            active.place = None
        return outcome


class Queue(Layer):
    """Lets a call wait for room: a new one at the place that its reservation found, and one whose upstreams refused it
    for room of theirs. Only the last of several models waits: each of the others falls back to the next one."""

    async def carry(self, active: ActiveCall) -> Outcome:
        while True:
            outcome = await self.inner.carry(active)
            if not isinstance(outcome, Failure):
                return outcome
            refused = await self._refused(active, outcome)
            if refused is not None:
                return refused

    async def _refused(self, active: ActiveCall, last: Failure) -> Failure | None:
        """Waits for room after the last failure if the upstreams have none. Returns None if there is a place, else the
        failure that the client gets. Attempts that had no room no longer count: the wait bounds them."""
        call, services = active.call, active.services
        if not may_wait(last):
            return last
        found = places(active, candidates(active))
        reservation = active.log.reservation
        admitted = ticket(call, found, services, reservation.waited_s) if found else None
        if admitted is None or not isinstance(reservation, Admission):
            return last
        active.client.position = admitted.position
        active.back_at[active.tried[-1].route] = time.monotonic() + max(TRIAL_S, last.retry_after_s or 0.0)
        refused = await reservation.admit_again(found, admitted, partial(_pause, active))
        if refused is not None:
            return replace(last, retry_after_s=limit_failure(refused).retry_after_s)
        active.place = reservation.place
        active.tried = [each for each in active.tried if not may_wait(each.failure)]
        return None


def _pause(active: ActiveCall, place: Place) -> Refused | None:
    return active.services.router.pause(active.call, place, active.back_at.get(place.route, 0.0))


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
