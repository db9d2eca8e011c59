"""The reservation of one call: made before the call is sent, and closed exactly once.

Call id = lease id = record id. Closing it again has no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from gateway.config import Route
from gateway.errors import GatewayError, Unavailable, UpstreamFailed
from gateway.formats.table import FORMATS
from gateway.quota import ledger_entry, limit_headers, windows
from gateway.records import UPSTREAM, Call, Claim, Failure, Fault, Granted, Phase, Record, Refused, WindowStatus
from gateway.store import JournalFull, Ledger, RateDraw, Reserve, StoreUnavailable
from gateway.upstream.limits import RETRY_AFTER, further, is_spent, with_end
from gateway.upstream.retry_policy import may_client_repeat

from .call_record import lost_record, lost_twice

_WHY_NOT = {
    StoreUnavailable.code: "The gateway cannot reach its ledger, so it cannot admit requests right now. Please try "
    "again in a moment.",
    JournalFull.code: "The gateway cannot write its journal, so it cannot admit requests right now. Please try again "
    "in a moment.",
}


class WaitsForRoom(Protocol):
    """One call's way through the queue. Implemented by the wing `queue`."""

    has_waited: bool
    """Whether the call was in the queue in the last `admit`."""

    async def admit(self, attempt: Callable[[], Awaitable[Sequence[Refused]]]) -> Sequence[Refused]: ...

    def position(self) -> int | None: ...

    def taken_back(self, windows: Collection[str]) -> None: ...

    def granted(self, statuses: Collection[WindowStatus]) -> None: ...

    def ended(self, tokens: int, windows: Collection[str]) -> None: ...


class Reservation:
    """The reservation of one call.

    `likely` is the most probable route of the call: a lost call is counted there.
    """

    def __init__(self, ledger: Ledger, call: Call, claims: tuple[Claim, ...], likely: Route | None = None) -> None:
        self.ledger = ledger
        self.call = call
        """The call, with the reserved output limit."""
        self.claims = claims
        """Those on the caller's own windows."""
        self.likely = likely or call.model.routes[0]
        self.held = reserve_of(call, self.likely, claims)
        """The claims, and the record of the call if it is lost."""
        self.window_statuses: tuple[WindowStatus, ...] = ()
        """Status of the caller's windows, including this call."""
        self.more_headers: tuple[tuple[str, str], ...] = ()
        """Further headers of the gateway about what was reserved."""
        self.waited_s = 0.0
        """Seconds spent waiting for free capacity."""
        self.waits = call.waits
        """Those of the call, and when it began and ended to wait in the queue, in the same form without a name."""
        self.ended: tuple[Callable[[Record, tuple[Claim, ...]], None], ...] = ()
        """They hear the record and the claims when the call is settled."""
        self.closed: tuple[Callable[[], None], ...] = ()
        """They hear that the call is settled, taken back or deferred."""
        self.is_open = True
        self.settled: asyncio.Future[None] | None = None
        """Done when the settlement is stored or, if the store is slow, in the journal."""
        self._growing: asyncio.Lock | None = None
        """Held while the reservation is extended."""

    def __repr__(self) -> str:
        return f"<Reservation {self.call.id} {'open' if self.is_open else 'closed'}>"

    async def make(self) -> None:
        """Reserve on every window of the call. Raises the refusal (`RateLimited`, `QuotaSpent`, `Unavailable`, or
        `UpstreamFailed` where no upstream has room)."""
        refused = await self._draw()
        if refused is not None:
            raise refusal(refused, self.call)

    async def draw(self, route: Route, of_place: tuple[Claim, ...] = ()) -> Refused | None:
        """Reserve the caller's windows and those of a place, in one step of the store. Returns the refusal, if any."""
        self.held = reserve_of(self.call, route, self.claims + of_place)
        return await self._draw()

    async def extend(self, wanted: Sequence[Claim]) -> Refused | None:
        """Reserve further windows for another attempt. Returns the refusal, if any; then nothing is added.

        If cancelled, it still waits for the store's answer, so that the reservation is known.
        """
        self._growing = self._growing or asyncio.Lock()
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
        drawing = self.ledger.extend(grown)
        try:
            await known(drawing)
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

    async def _draw(self) -> Refused | None:
        drawing = self.ledger.draw(self.held)
        try:
            verdict = await drawing
        except StoreUnavailable as away:
            raise unavailable(away) from None
        except asyncio.CancelledError:
            # A pending reservation is voided by the ledger; one that was granted in this turn has to be voided here.
            if is_granted(drawing):
                self.ledger.settle(self.held.taken_back(), self.held.claims)
            raise
        if isinstance(verdict, Refused):
            return verdict
        self.window_statuses = verdict.window_statuses
        return None

    def settle(self, record: Record) -> None:
        """Close with the actual use. Queued for the store without waiting."""
        if self.is_open:
            self.is_open, self.settled = False, self.ledger.settle(record, self.held.claims)
            for hears in self.ended:
                hears(record, self.held.claims)
            self._close()

    def take_back(self) -> None:
        """Cancel the reservation: no request is counted, no record is written. Queued for the store without waiting."""
        if self.is_open:
            self.is_open = False
            self.ledger.void(self.held)
            self._close()

    def when_closed(self, hears: Callable[[], None]) -> None:
        """Call this when the call is settled, taken back or deferred."""
        self.closed += (hears,)

    def _close(self) -> None:
        for hears in self.closed:
            hears()

    def defer(self, record: Record, note: str) -> None:
        """Close, and turn the reservation into a deferred lease with `note`: the upstream continues. `record` is the
        record of the call if it is lost. Queued for the store without waiting."""
        if self.is_open:
            self.is_open, self.settled = False, self.ledger.defer(record, self.held.claims, note)
            self._close()

    def note_deferral(self, record: Record, note: str) -> None:
        """If this worker is killed before it is closed, it becomes a deferred lease with this note."""
        if self.is_open:
            self.ledger.note_deferral(record, self.held.claims, note)


def reserve_of(call: Call, route: Route, claims: tuple[Claim, ...]) -> Reserve:
    """The request to the store, with the record of the call if it is lost on this route."""
    record = lost_record(call, route)
    return Reserve(record, claims, ledger_entry.encode(record, claims))


def is_granted(drawing: asyncio.Future[Granted | Refused]) -> bool:
    """Whether the store has reserved what was asked for, as far as its answer is known."""
    return not drawing.cancelled() and drawing.exception() is None and isinstance(drawing.result(), Granted)


def unavailable(away: StoreUnavailable) -> Unavailable:
    """The error of a call that cannot be reserved while the store or the journal is away."""
    return Unavailable(_WHY_NOT[away.code], code=away.code)


async def known(drawing: asyncio.Future[Granted | Refused]) -> None:
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
        raise unavailable(away) from None
    if isinstance(verdict, Refused):
        raise limit_headers.refusal(verdict, write_headers, started)


def refusal(refused: Refused, call: Call) -> GatewayError:
    """The 429 for a refused reservation: the caller's own limit, or one of the gateway's account at an upstream."""
    status = refused.window_status
    if not windows.is_of_upstream(status.window):
        return limit_headers.refusal(refused, FORMATS[call.endpoint].rate_headers, call.started)
    failure = limit_failure(refused)
    error = UpstreamFailed.after(failure, may_repeat=may_client_repeat(call.model, [failure]))
    error.reason, error.limit, error.limit_state = failure.fault.value, status.window.id, failure.detail
    error.headers = {**error.headers, **limit_headers.limit_header(refused)}
    return error


def limit_failure(refused: Refused) -> Failure:
    """The failure of an attempt that exceeds an upstream's limit."""
    window = refused.window_status.window
    amounts = window.limit, refused.window_status.used, refused.asked
    if window.per == RETRY_AFTER:
        detail = "The upstream's Retry-After is not over"
    else:
        limit, used, asked = [limit_headers.format_amount(window.unit, each) for each in amounts]
        detail = f"Limit {limit} {window.unit}, Used {used}, Requested {asked}"
    name, fault = window.scope.removeprefix(UPSTREAM), Fault.SPENT if is_spent(refused) else Fault.LIMIT
    return Failure(name, Phase.CONNECT, fault, detail, retry_after_s=(with_end(refused).retry_after_us or 0) / 1e6)
