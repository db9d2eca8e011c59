"""The reservation of one call: made before the call is sent, and closed exactly once.

Call id = lease id = record id. Closing it again has no effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from gateway.config import Route
from gateway.errors import GatewayError, Unavailable, UpstreamFailed
from gateway.formats import FORMATS
from gateway.quota import ledger_entry, limit_headers, windows
from gateway.quota.output_fit import OutputFit
from gateway.records import (
    UPSTREAM,
    Call,
    Claim,
    Failure,
    Fault,
    Granted,
    Phase,
    Record,
    Refused,
    WindowStatus,
)
from gateway.store import JournalFull, Ledger, RateDraw, Reserve, StoreUnavailable
from gateway.upstream.limits import RETRY_AFTER, Place, further

from .call_record import lost_record, lost_twice

_WHY_NOT = {
    StoreUnavailable.code: "The gateway cannot reach its ledger, so it cannot admit requests right now. Please try "
    "again in a moment.",
    JournalFull.code: "The gateway cannot write its journal, so it cannot admit requests right now. Please try again "
    "in a moment.",
}

SHRINKS = 3
"""Maximum reductions of one call's output limit: other calls may take the remaining quota in between."""


class Admission(Protocol):
    """Admission of one call to an upstream with free capacity. Implemented by queueing/waiting_room.py."""

    has_waited: bool
    """Whether the call was in the queue in the last `admit`."""

    async def admit(self, attempt: Callable[[], Awaitable[Sequence[Refused]]]) -> Sequence[Refused]: ...

    def taken_back(self, windows: Collection[str]) -> None: ...

    def granted(self, statuses: Collection[WindowStatus]) -> None: ...

    def ended(self, tokens: int, windows: Collection[str]) -> None: ...


class Reservation:
    """The reservation of one call.

    `likely` is the most probable route of the call: a lost call is counted there. `places` are the routes with limits
    of their own: the first one with room is `place`, and drawn on with the call's windows. With an `admission`
    the call waits where none has room. `pause` returns whether the upstream of a place has asked for a pause. With a
    `fit` it gets less output where its caller's quotas have no room. `is_in_advance`: for a call that may never be, so
    that one whose caller leaves while it is made leaves no record.
    """

    def __init__(
        self,
        ledger: Ledger,
        call: Call,
        claims: tuple[Claim, ...],
        likely: Route | None = None,
        places: Sequence[Place] = (),
        admission: Admission | None = None,
        fit: OutputFit | None = None,
        pause: Callable[[Place], Refused | None] | None = None,
        *,
        is_in_advance: bool = False,
    ) -> None:
        self.call = call
        """The call, with the reserved output limit."""
        self.window_statuses: tuple[WindowStatus, ...] = ()
        """Status of the caller's windows, including this call."""
        self.place: Place | None = None
        """The route that the first attempt reserved, if routes have limits."""
        self.place_statuses: tuple[WindowStatus, ...] = ()
        """Status of its windows, including this call."""
        self.reduced_output = call.params.output_limit if fit is not None else None
        """The output limit of the call, if a quota had no room for its model's default; None: the default."""
        self.waited_s = 0.0
        """Seconds spent waiting for free capacity."""
        self.waits: tuple[tuple[float, float], ...] = ()
        """When the call began and ended to wait in the queue, in seconds since it arrived."""
        self.is_open = True
        self._own = claims
        self._places = places
        self._admission = admission
        self._fit = fit
        self._pause = pause
        self._growing = asyncio.Lock() if places else None
        self._ledger = ledger
        self._likely = likely or call.model.routes[0]
        self.held = _reserve_of(call, self._likely, claims)
        """The claims, and the record of the call if it is lost."""
        self.settled: asyncio.Future[None] | None = None
        """Done when the settlement is stored or, if the store is slow, in the journal."""
        self._shrinks_left = 0 if fit is None else SHRINKS
        self._is_in_advance = is_in_advance
        self._is_again = False
        """Whether the call has been reserved before, and its end is recorded in any case."""
        self._is_held = False
        """Whether the store has reserved what is `held`."""

    def __repr__(self) -> str:
        return f"<Reservation {self.call.id} {'open' if self.is_open else 'closed'}>"

    async def make(self) -> None:
        """Reserve on every window of the call. Raises the refusal (`RateLimited`, `QuotaSpent`, `Unavailable`, or
        `UpstreamFailed` where no upstream has room)."""
        refused = await self._find_place() if self._places else await self._reserve()
        while refused is not None and not self._places and self._shrink(refused):
            self.held = _reserve_of(self.call, self._likely, self._own)
            refused = await self._reserve()
        if refused is not None:
            raise _refusal(refused, self.call)

    async def make_again(
        self, places: Sequence[Place], admission: Admission, pause: Callable[[Place], Refused | None]
    ) -> Refused | None:
        """Give back what is held and wait for room, because upstreams refused the call. Returns the refusal by an
        upstream that ends first, if there was no room; raises one by the caller's own limits.

        Meanwhile the call holds nothing, so that others can be served. The requests that upstreams have seen stay
        counted there.
        """
        of_place = self.held.claims[len(self._own) :]
        self._ledger.void(self.held)
        self.held = _reserve_of(self.call, self._likely, self._own)
        if self._admission is not None:
            self._admission.taken_back([claim.window.id for claim in of_place])
        if seen := tuple([claim for claim in of_place if claim.window.unit == "requests"]):
            with suppress(StoreUnavailable):
                await self._ledger.draw(RateDraw(seen))
        self._places, self._admission, self._pause = places, admission, pause
        self._is_again, self._is_held = True, False
        self._growing = self._growing or asyncio.Lock()
        try:
            refused = await self._find_place()
        finally:
            if not self._is_held:
                self.held = _reserve_of(self.call, self._likely, self._own)
        if refused is None:
            return None
        if windows.is_of_upstream(refused.window_status.window):
            return refused
        raise _refusal(refused, self.call)

    async def extend(self, wanted: Sequence[Claim]) -> Refused | None:
        """Reserve further windows for another attempt. Returns the refusal, if any; then nothing is added.

        If cancelled, it still waits for the store's answer, so that the reservation is known.
        """
        if self._growing is None:
            return None
        async with self._growing:
            more = further(self.held.claims, wanted)
            return await self._grow(self.held.record, more) if more else None

    async def extend_for_hedge(self, wanted: Sequence[Claim]) -> Refused | None:
        """`extend` for an attempt beside a running one: if the worker is killed, the call is charged two reservations.

        The caller's own windows are drawn on once, like those of any call with several attempts.
        """
        more = further(self.held.claims, wanted)
        return await self._grow(lost_twice(self.held.record), more)

    async def _grow(self, record: Record, more: tuple[Claim, ...]) -> Refused | None:
        grown = Reserve.of(record, self.held.claims + more, held=len(self.held.claims))
        drawing = self._ledger.extend(grown)
        try:
            await _known(drawing)
        except asyncio.CancelledError:
            self._note_extension(drawing, grown)
            raise
        return self._note_extension(drawing, grown)

    def _note_extension(self, drawing: asyncio.Future[Granted | Refused], grown: Reserve) -> Refused | None:
        away = drawing.exception()
        if away is None and isinstance(refused := drawing.result(), Refused):
            return refused
        self.held = grown
        if away is not None:
            raise Unavailable(_WHY_NOT[StoreUnavailable.code], code=StoreUnavailable.code) from None
        return None

    async def _reserve(self) -> Refused | None:
        drawing = self._ledger.draw(self.held)
        try:
            if self._is_again or self._is_in_advance:
                await _known(drawing)
            verdict = await drawing
        except StoreUnavailable as away:
            raise Unavailable(_WHY_NOT[away.code], code=away.code) from None
        except asyncio.CancelledError:
            # A pending reservation is voided by the ledger; one that was granted in this turn has to be voided here.
            # A call that was reserved before is closed by its log.
            is_known = not drawing.cancelled() and drawing.exception() is None
            if is_known and isinstance(drawing.result(), Granted):
                self._is_held = self._is_again
                if self._is_in_advance:
                    self.take_back()
                elif not self._is_again:
                    self._ledger.settle(self.held.taken_back(), self.held.claims)
            raise
        if isinstance(verdict, Refused):
            return verdict
        self.window_statuses, self._is_held = verdict.window_statuses, True
        return None

    def settle(self, record: Record) -> None:
        """Close with the actual use. Queued for the store without waiting."""
        if self.is_open:
            self.is_open, self.settled = False, self._ledger.settle(record, self.held.claims)
            if self._admission is not None:
                self._note_use(self._admission, record)

    def take_back(self) -> None:
        """Cancel the reservation: no request is counted, no record is written. Queued for the store without waiting."""
        if self.is_open:
            self.is_open = False
            self._ledger.void(self.held)

    def defer(self, record: Record, note: str) -> None:
        """Close, and turn the reservation into a deferred lease with `note`: the upstream continues. `record` is the
        record of the call if it is lost. Queued for the store without waiting."""
        if self.is_open:
            self.is_open, self.settled = False, self._ledger.defer(record, self.held.claims, note)
            if self._admission is not None:
                self._note_use(self._admission, record)

    def note_deferral(self, record: Record, note: str) -> None:
        """If this worker is killed before it is closed, it becomes a deferred lease with this note."""
        if self.is_open:
            self._ledger.note_deferral(record, self.held.claims, note)

    def _note_use(self, admission: Admission, record: Record) -> None:
        of_place = [claim.window.id for claim in self.held.claims[len(self._own) :]]
        admission.ended(record.usage.total_tokens, of_place)

    async def _find_place(self) -> Refused | None:
        """Reserve at a route with free capacity, now or after a wait. Returns the refusal that ends first."""
        began = time.perf_counter()
        admit = self._reserve_place() if self._admission is None else self._admission.admit(self._reserve_place)
        refusals = await admit
        ended = time.perf_counter()
        self.waited_s += ended - began
        if self._admission is not None and self._admission.has_waited:
            arrived = self.call.arrived
            self.waits = (*self.waits, (began - arrived, ended - arrived))
        return min(refusals, key=lambda refused: refused.retry_after_us or 0, default=None)

    async def _reserve_place(self) -> Sequence[Refused]:
        """Reserve the first route with free capacity. Returns the refusals of all; or that of the caller's own limits,
        which holds for every route."""
        refusals = []
        for place in self._places:
            if self._pause is not None and (refused := self._pause(place)) is not None:
                refusals.append(refused)
                continue
            self.held = _reserve_of(self.call, place.route, self._own + place.claims)
            refused = await self._reserve()
            if refused is None:
                number = len(self._own)
                self.place, self.place_statuses, self.window_statuses = (
                    place, self.window_statuses[number:], self.window_statuses[:number],
                )  # fmt: skip
                if self._admission is not None:
                    self._admission.granted(self.place_statuses)
                return ()
            if not windows.is_of_upstream(refused.window_status.window):
                if self._shrink(refused):
                    return await self._reserve_place()
                return (refused._replace(window_statuses=refused.window_statuses[: len(self._own)]),)
            refusals.append(refused)
        return refusals

    def _shrink(self, refused: Refused) -> bool:
        """Reduce the call's default output limit to what its quotas have left. False: not possible."""
        if self._fit is None or not self._shrinks_left:
            return False
        self._shrinks_left -= 1
        smaller = self._fit.largest(refused.window_statuses)
        if smaller is None or windows.output_limit(smaller) >= windows.output_limit(self.call):
            return False
        self.call, self._own, self.reduced_output = smaller, self._fit.claims(smaller), smaller.params.output_limit
        return True


def _reserve_of(call: Call, route: Route, claims: tuple[Claim, ...]) -> Reserve:
    """The request to the store, with the record of the call if it is lost on this route."""
    record = lost_record(call, route)
    return Reserve(record, claims, ledger_entry.encode(record, claims))


async def _known(drawing: asyncio.Future[Granted | Refused]) -> None:
    """Wait for the store's answer, also if this is cancelled, so that it is known what is reserved."""
    try:
        await asyncio.wait([drawing])
    except asyncio.CancelledError:
        while not drawing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([drawing])
        raise


async def count_request(
    ledger: Ledger, terms: Iterable[windows.Limit], started: float, write_headers: limit_headers.WritesHeaders
) -> None:
    """Count a request that is no call, and has no model, in its key's limits of requests per time.

    `started` is a Unix time in seconds. Raises `RateLimited` or `Unavailable`.
    """
    claims = tuple([term.one(started) for term in windows.request_rates(terms) if term.model is None])
    if not claims:
        return
    try:
        verdict = await ledger.draw(RateDraw(claims))
    except StoreUnavailable as away:
        raise Unavailable(_WHY_NOT[away.code], code=away.code) from None
    if isinstance(verdict, Refused):
        raise limit_headers.refusal(verdict, write_headers, started)


def _refusal(refused: Refused, call: Call) -> GatewayError:
    """The 429 for a refused reservation: the caller's own limit, or one of the gateway's account at an upstream."""
    status = refused.window_status
    if not windows.is_of_upstream(status.window):
        return limit_headers.refusal(refused, FORMATS[call.endpoint].rate_headers, call.started)
    failure = limit_failure(refused)
    error = UpstreamFailed.after(failure)
    error.reason, error.limit, error.limit_state = failure.fault.value, status.window.id, failure.detail
    return error


def limit_failure(refused: Refused) -> Failure:
    """The failure of an attempt that exceeds an upstream's limit."""
    status, asked = refused.window_status, refused.asked
    window = status.window
    if window.per == RETRY_AFTER:
        detail = "The upstream's Retry-After is not over"
    else:
        detail = f"Limit {window.limit} {window.unit}, Used {status.used}, Requested {asked}"
    name = window.scope.removeprefix(UPSTREAM)
    return Failure(name, Phase.CONNECT, Fault.LIMIT, detail, retry_after_s=(refused.retry_after_us or 0) / 1e6)
