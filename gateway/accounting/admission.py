"""Room for one call that has to be looked for: at upstreams with limits, in the queue, or with less output.

It is drawn again and again until there is room. Windows of the caller and of a place are drawn on in one step of
the store, so a call that waits holds neither.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from gateway.api.auth import TRUSTED_S
from gateway.config import Route
from gateway.quota import windows
from gateway.quota.output_fit import OutputFit
from gateway.records import Call, Claim, Record, Refused, WindowStatus
from gateway.store import Ledger, RateDraw, StoreUnavailable
from gateway.upstream.limits import Place, with_end

from .reservation import Reservation, WaitsForRoom, is_granted, known, refusal, reserve_of, unavailable

SHRINKS = 3
"""Maximum reductions of one call's output limit: other calls may take the remaining quota in between."""


class Admission(Reservation):
    """The reservation of a call for which room is looked for.

    `places` are the routes with limits of their own: the first one with room is `place`, and drawn on with the call's
    windows. With a `ticket` the call waits where none has room. `pause` returns whether the upstream of a place has
    asked for a pause. With a `fit` the call gets less output where its caller's quotas have no room. Made
    `is_in_advance`, for a call that may never be, it leaves no record where its caller leaves meanwhile.
    """

    def __init__(
        self, ledger: Ledger, call: Call, claims: tuple[Claim, ...], likely: Route | None = None, *,
        places: Sequence[Place] = (), ticket: WaitsForRoom | None = None, fit: OutputFit | None = None,
        pause: Callable[[Place], Refused | None] | None = None, is_in_advance: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(ledger, call, claims, likely)
        self.place: Place | None = None
        """The route that the first attempt reserved, if routes have limits."""
        self.check_again: Callable[[], Awaitable[None]] | None = None
        """Looks up whether a call that has waited may still be sent. Raises the refusal of its key."""
        self._checked_at = time.perf_counter()
        self.place_statuses: tuple[WindowStatus, ...] = ()
        """Status of its windows, including this call."""
        self._places = places
        self._ticket = ticket
        self._fit = fit
        self._pause = pause
        self._is_in_advance = is_in_advance
        self._is_again = False
        """Whether the call has been reserved before, and its end is recorded in any case."""
        self._is_held = False
        """Whether the store has reserved what is `held`."""
        self._shrinks_left = 0 if fit is None else SHRINKS
        if fit is not None and call.params.output_limit is not None:
            self._show_output(call.params.output_limit)

    async def make(self) -> None:
        if (refused := await self._admit()) is not None:
            raise refusal(refused, self.call)

    async def _admit(self) -> Refused | None:
        """Reserve. Returns the refusal that ends first, if there was no room."""
        if self._places:
            refused = await self._find_place()
            if refused is None or not self.call.fallbacks or not refused.window_status.window.starts:
                return refused
            # No upstream of this model has money left: the call goes on without a place, to its fallbacks.
        refused = await self.draw(self.likely)
        while refused is not None and self._shrink(refused):
            refused = await self.draw(self.likely)
        return refused

    async def admit_again(
        self, places: Sequence[Place], ticket: WaitsForRoom, pause: Callable[[Place], Refused | None]
    ) -> Refused | None:
        """Give back what is held and wait for room, because upstreams refused the call. Returns the refusal by an
        upstream that ends first, if there was no room; raises one by the caller's own limits.

        Meanwhile the call holds nothing, so that others can be served. The requests that upstreams have seen stay
        counted there.
        """
        of_place = self._give_back()
        if self._ticket is not None:
            self._ticket.taken_back([claim.window.id for claim in of_place])
        if seen := tuple([claim for claim in of_place if claim.window.unit == "requests"]):
            with suppress(StoreUnavailable):
                await self.ledger.draw(RateDraw(seen))
        self._places, self._ticket, self._pause = places, ticket, pause
        self._shrinks_left = 0  # the attempts send the output limit of the first draw
        try:
            refused = await self._find_place()
        finally:
            if not self._is_held:
                self.held = reserve_of(self.call, self.likely, self.claims)
        if refused is None or windows.is_of_upstream(refused.window_status.window):
            return refused
        raise refusal(refused, self.call)

    def _give_back(self) -> tuple[Claim, ...]:
        """Cancel what is held; the call stays open, and is drawn again. Returns the claims on windows of its place."""
        of_place = self._of_place
        self.ledger.void(self.held)
        self.held = reserve_of(self.call, self.likely, self.claims)
        self._is_again, self._is_held = True, False
        return of_place

    @property
    def _of_place(self) -> tuple[Claim, ...]:
        return self.held.claims[len(self.claims) :]

    async def _draw(self) -> Refused | None:
        """Draws once. The verdict on a draw in advance, or of a call that was reserved before, is awaited even if this
        is cancelled: the log closes a call that was reserved before, and one in advance leaves no record. Each wait
        ends here, so here the key of a call that has waited is checked again."""
        if self.check_again is not None and (now := time.perf_counter()) - self._checked_at > TRUSTED_S:
            await self.check_again()
            self._checked_at = now
        if not (self._is_again or self._is_in_advance):
            refused = await super()._draw()
            self._is_held = self._is_held or refused is None
            return refused
        drawing = self.ledger.draw(self.held)
        try:
            await known(drawing)
            verdict = drawing.result()
        except StoreUnavailable as away:
            raise unavailable(away) from None
        except asyncio.CancelledError:
            if is_granted(drawing):
                self._is_held = self._is_again
                if self._is_in_advance:
                    self.take_back()
            raise
        if isinstance(verdict, Refused):
            return verdict
        self.window_statuses, self._is_held = verdict.window_statuses, True
        return None

    def settle(self, record: Record) -> None:
        if self.is_open:
            super().settle(record)
            self._ended(record)

    def defer(self, record: Record, note: str) -> None:
        if self.is_open:
            super().defer(record, note)
            self._ended(record)

    def _ended(self, record: Record) -> None:
        """Others may have what the call held of its place."""
        if self._ticket is not None:
            self._ticket.ended(record.usage.total_tokens, [claim.window.id for claim in self._of_place])

    async def _find_place(self) -> Refused | None:
        """Reserve at a route with free capacity, now or after a wait. Returns the refusal that ends first."""
        ticket = self._ticket
        began = time.perf_counter()
        refusals = await (self._draw_place() if ticket is None else ticket.admit(self._draw_place))
        ended = time.perf_counter()
        self.waited_s += ended - began
        if ticket is not None and ticket.has_waited:
            arrived = self.call.arrived
            self.waits = (*self.waits, ("", "", began - arrived, ended - arrived))
        return min(refusals, key=lambda refused: refused.retry_after_us or 0, default=None)

    async def _draw_place(self) -> Sequence[Refused]:
        """Reserve the first route with free capacity. Returns the refusals of all; or that of the caller's own limits,
        which holds for every route."""
        refusals = list[Refused]()
        for place in self._places:
            if self._pause is not None and (refused := self._pause(place)) is not None:
                refusals.append(refused)
                continue
            refused = await self.draw(place.route, place.claims)
            own = len(self.claims)
            if refused is None:
                self.place, statuses = place, self.window_statuses
                self.window_statuses, self.place_statuses = statuses[:own], statuses[own:]
                if self._ticket is not None:
                    self._ticket.granted(self.place_statuses)
                return ()
            if not windows.is_of_upstream(refused.window_status.window):
                if self._shrink(refused):
                    return await self._draw_place()
                return (refused._replace(window_statuses=refused.window_statuses[:own]),)
            refusals.append(with_end(refused))
        return refusals

    def _shrink(self, refused: Refused) -> bool:
        """Reduce the call's default output limit to what its quotas have left. False: not possible."""
        if self._fit is None or not self._shrinks_left:
            return False
        self._shrinks_left -= 1
        smaller = self._fit.largest(refused.window_statuses)
        if smaller is None or windows.output_limit(smaller) >= windows.output_limit(self.call):
            return False
        self.call, self.claims = smaller, self._fit.claims(smaller)
        self._show_output(windows.output_limit(smaller))
        return True

    def _show_output(self, limit: int) -> None:
        """Shows the client the output limit of its call, which is less than its model's default."""
        self.more_headers = (("x-gateway-output-limit", str(limit)),)
