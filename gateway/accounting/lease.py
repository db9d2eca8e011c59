"""A reservation and its one settlement: a call cannot end without it.

Call id = lease id = record id. A lease is closed exactly once: by the relay with the actual usage;
else by its context, when an error or a cancellation leaves it. A second closing is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from gateway.config import Route
from gateway.errors import GatewayError, Unavailable, UpstreamFailed
from gateway.formats import FORMATS
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import Trace, Tracer
from gateway.quota import limit_headers, pricing, windows
from gateway.quota.output_fit import OutputFit
from gateway.records import (
    OTHER,
    UPSTREAM,
    Call,
    Claim,
    Draw,
    Ended,
    Failure,
    Fault,
    Granted,
    Phase,
    Record,
    Refused,
    Settlement,
    Usage,
    WindowStatus,
)
from gateway.store import JournalFull, Ledger, StoreUnavailable
from gateway.tasks import is_cut_off
from gateway.upstream.limits import Place, further

from .deferral import Deferral, encode_deferral
from .other_prices import other_prices
from .served_models import ServedModels

log = logging.getLogger("gateway")

_WHY_NOT = {
    StoreUnavailable.code: "The gateway cannot reach its ledger, so it cannot admit requests right now. Please try "
    "again in a moment.",
    JournalFull.code: "The gateway cannot write its journal, so it cannot admit requests right now. Please try again "
    "in a moment.",
}

_ABOVE_CEILING = (
    "upstream %s, model %s: its usage report has more {} tokens than the call can have used (call %s); the call is "
    "charged up to the ceiling and marked estimated. Compare the upstream's bill with `gateway usage --compare`, and "
    "report it to the upstream or remove the route. Logged once; gateway_usage_implausible_total counts all."
)
_ABOVE_WHOLE = (
    "upstream %s, model %s: its usage report has more {} tokens than {} tokens, of which they are a part (call %s); "
    "the record has the smaller number. Report it to the upstream. Logged once; gateway_usage_implausible_total counts "
    "all."
)
_DOUBT = {
    "prompt": _ABOVE_CEILING.format("prompt"),
    "completion": _ABOVE_CEILING.format("completion"),
    "cached": _ABOVE_WHOLE.format("cached", "prompt"),
    "reasoning": _ABOVE_WHOLE.format("reasoning", "completion"),
}
"""What the log says of implausible counts, by their kind."""

SHRINKS = 3
"""How often the output of one call is made smaller: other calls may take what was left meanwhile."""

MAX_RETURNED_MODEL = 256
"""Stored characters of it, as many as a client may send: an upstream's text must not fill the store."""


class AttemptCost(Protocol):
    """What one attempt may have cost. Implemented by relay/charge.py."""

    @property
    def usage(self) -> Usage: ...

    @property
    def doubts(self) -> tuple[str, ...]: ...


class Admission(Protocol):
    """One call's way to a place with room. Implemented by queueing/waiting_room.py."""

    async def admit(self, attempt: Callable[[], Awaitable[Sequence[Refused]]]) -> Sequence[Refused]: ...

    def ended(self, tokens: int, windows: Collection[str]) -> None: ...


class AccessLogExtras(NamedTuple):
    """What the access line of a call says that its record does not."""

    remote: str | None
    """The client's address, as far as it is known."""
    error: str | None
    """The client's error: its code, or its type."""
    upstream_error: str | None
    """What the last upstream did wrong."""
    trace_id: str | None


@dataclass(frozen=True, slots=True)
class Accounting:
    """Where calls are accounted for."""

    ledger: Ledger
    telemetry: Telemetry
    write_line: Callable[[Record, AccessLogExtras], None]
    """Writes the access line of a call that has ended."""
    tracer: Tracer | None = None
    """Makes the spans of calls, where that is wanted."""
    served: ServedModels = field(default_factory=ServedModels)
    """The names under patterns that are groups of the daily sums."""


class Lease:
    """The reservation of one call, and the call's progress.

    An asynchronous context: entering reserves on every window of the call, or raises the refusal (`RateLimited`,
    `QuotaSpent`, `Unavailable`); after the block the lease has been closed exactly once.

    `likely` is the most probable route of the call: a lost call is counted there. `places` are the routes with limits
    of their own: the first one with room is `place`, and drawn on with the call's windows. With an `admission`
    the call waits where none has room. With a `fit` it gets less output where its caller's quotas have no room.
    """

    def __init__(
        self,
        books: Accounting,
        call: Call,
        claims: tuple[Claim, ...],
        likely: Route | None = None,
        places: Sequence[Place] = (),
        admission: Admission | None = None,
        fit: OutputFit | None = None,
    ) -> None:
        self.call = call
        self.standings: tuple[WindowStatus, ...] = ()
        self.attempts = 0
        self.route: Route | None = None
        self.upstream_s = 0.0
        """Time spent waiting for upstreams."""
        self.spent = Usage()
        """What attempts that did not answer the call may have cost: added to what the last one has cost."""
        self.is_cut_off = False
        """The client is gone, and the answer is not read on for its usage."""
        self.failed: list[str] = []
        """The attempts that failed, as `Record.failed` has them."""
        self.left_out: tuple[str, ...] = ()
        """What the client asked for and the upstream of the last attempt was not offered."""
        self.upstream_error: str | None = None
        """What went wrong with the last attempt, for the log."""
        self.trace: Trace | None = None
        """The call's span, where there is one."""
        self.place: Place | None = None
        """What was drawn on for the first attempt, where routes have limits."""
        self.place_standings: tuple[WindowStatus, ...] = ()
        """Its windows, with this call in them."""
        self.reduced_output = call.params.output_limit if fit is not None else None
        """The output limit that the call has because a quota had no room for its model's default; None: the default."""
        self.fallbacks_left = 0
        """Other models that may still serve the call."""
        self._earlier: tuple[Usage, int] | None = None
        """What attempts with models before this one may have cost: tokens, and billionths of a US dollar."""
        self._own = claims
        self._places = places
        self._admission = admission
        self._fit = fit
        self._waited_s = 0.0
        """Time spent waiting for room."""
        self._growing = asyncio.Lock() if places else None
        self._books = books
        self._likely = likely or call.model.routes[0]
        self._draw = Draw(_if_lost(call, self._likely), claims)
        self._first_byte_s: float | None = None
        self._settled: asyncio.Future[None] | None = None
        self._is_handed_over = False
        self._shrinks_left = 0 if fit is None else SHRINKS

    async def __aenter__(self) -> Self:
        refused = await self._find_place() if self._places else await self._reserve()
        while refused is not None and not self._places and self._shrink(refused):
            self._draw = Draw(_if_lost(self.call, self._likely), self._own)
            refused = await self._reserve()
        if refused is not None:
            error = _refusal(refused, self.call)
            if isinstance(error, UpstreamFailed):
                self._books.telemetry.rejected(error.reason)
            raise error
        return self

    async def _find_place(self) -> Refused | None:
        """Reserve where there is room, now or after a wait. Returns the refusal that ends first."""
        began = time.perf_counter()
        admit = self._reserve_place() if self._admission is None else self._admission.admit(self._reserve_place)
        refusals = await admit
        self._waited_s = time.perf_counter() - began
        return min(refusals, key=lambda refused: refused.retry_after_us or 0, default=None)

    async def _reserve_place(self) -> Sequence[Refused]:
        """Reserve for the first place with room. Returns the refusals of all; or that of the caller's own limits, which
        no other place mends."""
        refusals = []
        for place in self._places:
            self._draw = Draw(_if_lost(self.call, place.route), self._own + place.claims)
            refused = await self._reserve()
            if refused is None:
                number = len(self._own)
                self.place, self.place_standings, self.standings = (
                    place, self.standings[number:], self.standings[:number],
                )  # fmt: skip
                return ()
            if not windows.is_of_upstream(refused.standing.window):
                if self._shrink(refused):
                    return await self._reserve_place()
                return (refused._replace(standings=refused.standings[: len(self._own)]),)
            refusals.append(refused)
        return refusals

    def _shrink(self, refused: Refused) -> bool:
        """Make the call's default output smaller, so that it fits into what its quotas have left. False: it cannot."""
        if self._fit is None or not self._shrinks_left:
            return False
        self._shrinks_left -= 1
        smaller = self._fit.largest(refused.standings)
        if smaller is None or windows.output_limit(smaller) >= windows.output_limit(self.call):
            return False
        self.call, self._own, self.reduced_output = smaller, self._fit.claims(smaller), smaller.params.output_limit
        return True

    def fall_back(self, call: Call) -> None:
        """Another model serves from here on: this is the call for it. It has the price of that model."""
        usage, nusd = self._earlier or (Usage(), 0)
        nusd += _cost_nusd(self.call, self.route, self.spent) or 0
        self._earlier, self.spent = (pricing.total_usage((usage, self.spent)), nusd), Usage()
        self.call, self.route = call, None
        self.fallbacks_left -= 1

    @property
    def has_fallen_back(self) -> bool:
        """Whether another model serves than the one that the client's name means."""
        return self._earlier is not None

    async def extend(self, wanted: Sequence[Claim]) -> Refused | None:
        """Draw for another attempt, on what is not held yet. Returns why not; then nothing more is held.

        While it is cancelled it waits for the store's answer, so that what is held is known.
        """
        if self._growing is None:
            return None
        async with self._growing:
            more = further(self._draw.claims, wanted)
            if not more:
                return None
            grown = self._draw._replace(claims=self._draw.claims + more)
            drawing = self._books.ledger.extend(grown, len(self._draw.claims))
            try:
                await asyncio.wait([drawing])
            except asyncio.CancelledError:
                while not drawing.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([drawing])
                self._note_extension(drawing, grown)
                raise
            return self._note_extension(drawing, grown)

    def _note_extension(self, drawing: asyncio.Future[Granted | Refused], grown: Draw) -> Refused | None:
        away = drawing.exception()
        if away is None and isinstance(refused := drawing.result(), Refused):
            return refused
        self._draw = grown
        if away is not None:
            raise Unavailable(_WHY_NOT[StoreUnavailable.code], code=StoreUnavailable.code) from None
        return None

    async def _reserve(self) -> Refused | None:
        drawing = self._books.ledger.draw(self._draw)
        try:
            verdict = await drawing
        except StoreUnavailable as away:
            raise Unavailable(_WHY_NOT[away.code], code=away.code) from None
        except asyncio.CancelledError:
            # A pending reservation is voided by the ledger; one that was granted in this turn has to be voided here.
            if not drawing.cancelled() and drawing.exception() is None and isinstance(drawing.result(), Granted):
                self._books.ledger.settle(self._draw.taken_back())
            raise
        if isinstance(verdict, Refused):
            return verdict
        self.standings = verdict.standings
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_after(error)
        if isinstance(error, GatewayError):
            await self.acknowledged()  # a client that retries finds its slot free

    def __repr__(self) -> str:
        state = "open" if self._settled is None else "closed"
        return f"<Lease {self.call.id} {state}, {self.attempts} attempts>"

    @property
    def claims(self) -> tuple[Claim, ...]:
        return self._draw.claims

    @property
    def is_open(self) -> bool:
        return self._settled is None

    def hand_over(self) -> None:
        """Another task closes this lease from now on: its context will not."""
        self._is_handed_over = True

    def note_first_byte(self) -> None:
        """The first byte of the answer is there."""
        if self._first_byte_s is None:
            self._first_byte_s = time.perf_counter() - self.call.arrived

    def close(
        self, *, status: int, usage: Usage, ended: Ended, is_truncated: bool = False, returned_model: str | None = None,
        error: str | None = None,
    ) -> None:  # fmt: skip
        """Settle, once. Queued for the store without waiting. `error` is the code that the client gets."""
        if self._settled is not None:
            return
        call = self.call
        if status == 200 and call.label_model == OTHER:
            call = call._replace(label_model=self._books.served.note(call.model_name))
        duration_s = time.perf_counter() - call.arrived
        usage = pricing.total_usage((self.spent, usage))
        record = record_of(
            call, self.route, status, usage, ended,
            returned_model=returned_model and returned_model[:MAX_RETURNED_MODEL],
            first_byte_s=self._first_byte_s,
            duration_s=duration_s,
            attempts=self.attempts,
            is_truncated=is_truncated,
            failed=" ".join(self.failed) if self.failed else "",
        )  # fmt: skip
        if self._earlier is not None:
            record = _with_earlier(record, *self._earlier)
        self._settled = self._books.ledger.settle(Settlement(record, self._draw.claims))
        if self._admission is not None:
            self._admission.ended(
                usage.total_tokens, [claim.window.id for claim in self._draw.claims[len(self._own) :]]
            )
        overhead_s = max(0.0, duration_s - self.upstream_s - call.body_wait_s - self._waited_s)
        self._books.telemetry.recorded(
            record,
            estimated_prompt_tokens=call.params.prompt_tokens,
            overhead_s=overhead_s,
            is_usage_unknown=usage.source == "estimated",
        )
        trace = self.trace
        self._books.write_line(
            record,
            AccessLogExtras(
                call.remote, error, self.upstream_error if error else None, None if trace is None else trace.id
            ),
        )
        if trace is not None:
            trace.recorded(record, error)

    def defer(self, deferral: Deferral) -> None:
        """End the call, once, and leave its reservation to what goes on at the upstream. Queued without waiting."""
        if self._settled is not None:
            return
        record = _if_lost(self.call, self.route or self.call.model.routes[0])
        self._settled = self._books.ledger.defer(Settlement(record, self._draw.claims), encode_deferral(deferral))
        if self._admission is not None:
            windows_of_place = [claim.window.id for claim in self._draw.claims[len(self._own) :]]
            self._admission.ended(record.usage.total_tokens, windows_of_place)
        if self.trace is not None:
            self.trace.recorded(record._replace(status=200, ended="done"), None)

    def add_cost(self, charged: AttemptCost) -> None:
        """Add what an attempt that did not answer the call may have cost."""
        self.doubt(charged.doubts)
        self.spent = pricing.total_usage((self.spent, charged.usage))

    def doubt(self, kinds: Iterable[str]) -> None:
        """Count and log that the upstream reported more tokens of these kinds than there can have been."""
        upstream, model = self.route.upstream if self.route else "", self.call.label_model
        for kind in kinds:
            if self._books.telemetry.doubted(upstream, model, kind):
                log.warning(_DOUBT[kind], upstream, model, self.call.id)

    async def acknowledged(self) -> None:
        """Wait until the settlement is safe: in the store or, where that takes its time, in the journal."""
        if self._settled is not None and not self._settled.done():
            await self._settled  # a cancellation does not take the settlement back

    def _close_after(self, error: BaseException | None) -> None:
        """Close what the block left open: only `spent` is charged."""
        if self._is_handed_over:
            return
        if isinstance(error, GatewayError):
            self.close(status=error.status, usage=Usage(), ended="error", error=error.name)
        elif isinstance(error, asyncio.CancelledError) and not is_cut_off(error):
            self.close(status=499, usage=Usage(), ended="client_gone")
        elif isinstance(error, asyncio.CancelledError):
            self.close(status=503, usage=Usage(), ended="error", error="shutting_down")
        else:
            self.close(status=500, usage=Usage(), ended="error", error=GatewayError.type)


def _refusal(refused: Refused, call: Call) -> GatewayError:
    """The 429 for a refused reservation: the caller's own limit, or one of the gateway's account at an upstream."""
    standing = refused.standing
    if not windows.is_of_upstream(standing.window):
        return limit_headers.refusal(refused, FORMATS[call.endpoint].rate_headers, call.started)
    failure = limit_failure(refused)
    error = UpstreamFailed.after(failure)
    error.reason, error.limit, error.limit_state = failure.fault.value, standing.window.id, failure.detail
    return error


def limit_failure(refused: Refused) -> Failure:
    """The failure of an attempt that an upstream's limit has no room for."""
    standing, asked = refused.standing, refused.asked
    window = standing.window
    detail = f"Limit {window.limit} {window.unit}, Used {standing.used}, Requested {asked}"
    name = window.scope.removeprefix(UPSTREAM)
    return Failure(name, Phase.CONNECT, Fault.LIMIT, detail, retry_after_s=(refused.retry_after_us or 0) / 1e6)


def _if_lost(call: Call, route: Route) -> Record:
    """The record of a call whose worker was killed: its whole reservation."""
    output = windows.output_limit(call) * call.params.candidates
    params = call.params
    usage = Usage(params.prompt_tokens, output, source="estimated", more=params.units, variant=params.variant)
    record = record_of(call, route, 0, usage, "lost")
    if record.price is None or (call.model.price is not None and call.model.price.spelling is not None):
        return record
    return record._replace(cost_nusd=windows.most_nusd(call, usage.prompt_tokens, output))


def _with_earlier(record: Record, usage: Usage, nusd: int) -> Record:
    """The record with what attempts with other models may have cost, which is charged by their prices."""
    cost_nusd = None if record.cost_nusd is None else record.cost_nusd + nusd
    return record._replace(usage=pricing.total_usage((usage, record.usage)), cost_nusd=cost_nusd)


def record_of(
    call: Call,
    route: Route | None,
    status: int,
    usage: Usage,
    ended: Ended,
    *,
    returned_model: str | None = None,
    first_byte_s: float | None = None,
    duration_s: float = 0.0,
    attempts: int = 0,
    is_truncated: bool = False,
    failed: str = "",
) -> Record:
    """A call and what became of it on this route; None: it was tried on none."""
    price = call.model.price
    return Record(
        id=call.id,
        time=call.started,
        key=call.key.id,
        team=call.key.team,
        endpoint=call.endpoint,
        model=call.params.model,
        label_model=call.label_model,
        routed_model=(route.model if route else None) or call.params.model,
        returned_model=returned_model,
        upstream=route.upstream if route else "",
        status=status,
        stream=call.params.stream,
        usage=_without_parts(call, route, usage) if usage.parts else usage,
        ended=ended,
        first_byte_s=first_byte_s,
        duration_s=duration_s,
        attempts=attempts,
        truncated=is_truncated,
        client_request_id=call.client_request_id,
        cost_nusd=_cost_nusd(call, route, usage),
        price=None if price is None else price.spelling or pricing.spelling(price, usage, call.started),
        failed=failed,
        user=call.user,
        tags=call.tags,
    )


def _cost_nusd(call: Call, route: Route | None, usage: Usage) -> int | None:
    others = other_prices(call, route, usage) if usage.parts else {}
    return pricing.cost_nusd(call.model.price, usage, call.started, others)


def _without_parts(call: Call, route: Route | None, usage: Usage) -> Usage:
    """The usage as it is stored: an estimate where a model ran whose price is not known."""
    ran = {part.model for part in usage.parts if part.model}
    is_known = not ran or ran <= other_prices(call, route, usage).keys()
    return usage._replace(parts=(), source=usage.source if is_known else "estimated")
