"""How a call waits for room at its upstreams: the layer around its last model, and its place in the queue."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b

from gateway.accounting.admission import Admission
from gateway.accounting.reservation import limit_failure
from gateway.api.auth import FACTORS
from gateway.config import Config
from gateway.observe.metrics import Telemetry
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.places import places
from gateway.pipeline.plan import Layer, Outcome
from gateway.pipeline.services import Exchange, NoQueue, WingQueue
from gateway.pipeline.stack import Around, WingLayer
from gateway.pipeline.steps import candidates
from gateway.records import Call, Document, Failure, Refused
from gateway.upstream.credentials import TRIAL_S
from gateway.upstream.limits import Place
from gateway.upstream.retry_policy import client_timeout_s, is_first_try, may_wait
from gateway.upstream.router import Router

from .fair_queue import Identity, Waiting
from .metrics import Waits
from .settings import QueueSettings, WaitSettings
from .waiting_room import Ticket, WaitingRoom

ANSWER_WITHIN_S = 0.5
"""How long before a client gives up a call that waits is refused, so that the refusal arrives."""

ENDS_BYTES = 4096
"""Bytes of the beginning and of the end of a body by which calls of a key are distinguished."""


class CallQueue(NoQueue):
    """The queue of one worker."""

    def __init__(self, config: Config, exchange: Exchange, telemetry: Telemetry) -> None:
        self._room = WaitingRoom(config.section(QueueSettings), exchange, Waits(telemetry))

    def configure(self, config: Config) -> None:
        self._room.configure(config.section(QueueSettings))

    def usual_wait_s(self) -> float:
        return self._room.settings.max_wait_s

    def longest_of_models_s(self, config: Config) -> float:
        of_models = [each.max_wait_s for each in config.models.values() if isinstance(each, WaitSettings)]
        return max([self.usual_wait_s(), *[each for each in of_models if each is not None]])

    def may_wait(self, call: Call) -> bool:
        return _may_wait(self._room.settings, call)

    def longest_wait_s(self, call: Call) -> float:
        """How long the call may wait: the shorter one of the limits of its key and model, else the default."""
        return self._room.longest_wait_s(call.key.max_wait_s, _of_model(call))

    def ticket(
        self, call: Call, places: Sequence[Place], router: Router, waited_s: float = 0.0, *, is_new: bool = False
    ) -> Ticket | None:
        """How the call waits where no place has room: in the flow of its key or team, not past its client's patience,
        and with what it has waited already no longer than the longest wait. None: it does not. Where others wait, a new
        call that does not has a ticket, too: its place in their order is the time after which it may come back."""
        wait_s = self.longest_wait_s(call)
        upstreams = {place.route.upstream for place in places}
        if not wait_s and not (is_new and self._room.has_line(upstreams)):
            return None
        key, document, by = call.key, call.params.document, self._room.settings.by
        owner = f"team:{key.team}" if by == "team" and key.team is not None else key.id
        waiting = Waiting(
            flow=f"{owner}|{call.priority}",
            weight=key.weight * FACTORS[call.priority],
            cost=call.params.prompt_tokens,
            size=_size(document),
            windows=[router.limits.named(call, place) for place in places],
            priority=call.priority,
            is_back=waited_s > 0,
            identity=partial(_identity, call),
        )
        patience_s = client_timeout_s(call.forwarded_headers) - (time.perf_counter() - call.arrived) - ANSWER_WITHIN_S
        return self._room.ticket(upstreams, waiting, min(patience_s, wait_s - waited_s))

    def waiting(self) -> Mapping[str, int]:
        return self._room.waiting()

    async def close(self) -> None:
        await self._room.close()


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
        admitted = services.waiting.ticket(call, found, services.router, reservation.waited_s) if found else None
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


def _of_model(call: Call) -> float | None:
    return call.model.max_wait_s if isinstance(call.model, WaitSettings) else None


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


def _may_wait(settings: QueueSettings, call: Call) -> bool:
    return bool(settings.max_wait_s or call.key.max_wait_s or _of_model(call))


QUEUE = WingQueue(CallQueue)
LAYER = WingLayer(Around.LAST_MODEL, Queue, lambda config, call: _may_wait(config.section(QueueSettings), call))
