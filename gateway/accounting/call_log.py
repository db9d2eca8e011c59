"""The progress of one call, and its one end: attempts, what they cost, and then the record and the access line.

A call that was reserved is closed exactly once: by the relay with the actual usage; else by the context of its log,
when an error or a cancellation leaves it. A second closing is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from gateway.config import Route
from gateway.errors import GatewayError, UpstreamFailed
from gateway.formats.table import FORMATS
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import CLIENT_GONE, NO_TRACE, NO_TRACER, Trace, Tracer
from gateway.quota import pricing
from gateway.quota.recent_output import RecentOutput
from gateway.records import OTHER, Call, Ended, Fault, Record, Usage
from gateway.store import Ledger
from gateway.tasks import is_cut_off
from gateway.wings import OfWings

from . import call_record
from .call_record import EndedAttempt, cost_nusd, failed_text, lost_record, record_of, timeline_text, with_earlier
from .deferral import Deferral, encode_deferral
from .reservation import Reservation

log = logging.getLogger("gateway")

_ABOVE_CEILING = (
    "upstream %s, model %s: its usage report has more {} than the call can have used (call %s); the call is "
    "charged up to the ceiling and marked estimated. Compare the upstream's bill with `gateway usage --compare`, and "
    "report it to the upstream or remove the route. Logged once; gateway_usage_implausible_total counts all."
)
_ABOVE_WHOLE = (
    "upstream %s, model %s: its usage report has more {} tokens than {} tokens, of which they are a part (call %s); "
    "the record has the smaller number. Report it to the upstream. Logged once; gateway_usage_implausible_total counts "
    "all."
)
_TOKENS = {"prompt": "prompt tokens", "completion": "completion tokens"}
_DOUBT = {
    "cached": _ABOVE_WHOLE.format("cached", "prompt"),
    "reasoning": _ABOVE_WHOLE.format("reasoning", "completion"),
}

_NOTHING = Usage()

MOST_ATTEMPTS = 100
"""Attempts that the record of a call with many prompts names, failed ones and others."""

MAX_RETURNED_MODEL = 256
"""Stored characters of it, as many as a client may send: an upstream's text must not fill the store."""


class AttemptCost(Protocol):
    """The possible cost of one attempt. Implemented by relay/charge.py."""

    @property
    def usage(self) -> Usage: ...

    @property
    def doubts(self) -> tuple[str, ...]: ...


class AccessLogExtras(NamedTuple):
    """The fields of a call's access line that its record lacks."""

    remote: str | None
    """The client's address, as far as it is known."""
    error: str | None
    """The client's error: its code, or its type."""
    upstream_error: str | None
    trace_id: str | None


@dataclass(frozen=True, slots=True)
class Accounting:
    ledger: Ledger
    telemetry: Telemetry
    write_line: Callable[[Record, AccessLogExtras], None]
    tracer: Tracer = NO_TRACER
    served: call_record.ServedModels = field(default_factory=call_record.ServedModels)
    """The names under patterns that are groups of the daily sums."""
    recent: RecentOutput = field(default_factory=RecentOutput)
    """How much output calls had lately, for what the next ones draw on rates."""
    of_wing: OfWings = field(default_factory=OfWings)
    """The notes of wings about calls; they outlive configurations."""


class CallProgress(NamedTuple):
    attempts: int
    spent: Usage
    failed: tuple[EndedAttempt, ...]
    upstream_s: float


class CallLog:
    """The progress of one call. Its fields are written by its methods only.

    An asynchronous context: entering makes the reservation, or raises its refusal (`RateLimited`, `QuotaSpent`,
    `Unavailable`, `UpstreamFailed`); after the block the call has been closed exactly once.
    """

    def __init__(self, accounting: Accounting, call: Call, reservation: Reservation, trace: Trace = NO_TRACE) -> None:
        self.call = call
        """The call as it is sent: for the model that serves it, with the output limit that was reserved."""
        self.reservation = reservation
        self.trace = trace
        self.attempts = 0
        self.route: Route | None = None
        """Route of the last attempt; None if there was no attempt with this model."""
        self.upstream_s = 0.0
        self.spent = _NOTHING
        """The possible cost of attempts that did not answer the call, added to the cost of the last one."""
        self.is_cut_off = False
        """The client is gone, and the answer is not read on for its usage."""
        self.failed: list[EndedAttempt] = []
        self.answered: list[EndedAttempt] = []
        """The attempts that answered a part of the call each."""
        self.more_headers: tuple[tuple[str, str], ...] = ()
        """Further headers of the gateway about the last attempt."""
        self.upstream_error: str | None = None
        self._accounting = accounting
        self._earlier: tuple[Usage, int] | None = None
        """The possible cost of attempts with models before this one: tokens, and billionths of a US dollar."""
        self.first_byte_s: float | None = None
        """Seconds from the arrival of the call to the first byte of the attempt that answers it."""
        self._attempt_began: float | None = None
        """When the last attempt began, unless it has failed; as `Call.arrived`."""
        self._is_handed_over = False

    async def __aenter__(self) -> Self:
        try:
            await self.reservation.make()
        except UpstreamFailed as no_room:
            self._accounting.telemetry.rejected(no_room.reason)
            raise
        self.call = self.reservation.call
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.reservation.is_open and not self._is_handed_over:
            self._close_after(error)
        if isinstance(error, GatewayError):
            await self.acknowledged()  # a client that retries finds its slot free

    def __repr__(self) -> str:
        return f"<CallLog {self.call.id} {'open' if self.is_open else 'closed'}, {self.attempts} attempts>"

    @property
    def is_open(self) -> bool:
        return self.reservation.is_open

    @property
    def stopped_as(self) -> str:
        return CLIENT_GONE

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The gateway's headers on an answer: the upstream of the call, what it was not offered, and the state of the
        caller's quotas."""
        model, reserved = self.call.target, self.reservation
        return (
            ("x-gateway-upstream", self.route.upstream if self.route else ""),
            *((("x-gateway-model", model),) if model is not None else ()),
            *((("x-gateway-model-reason", self.call.model_reason),) if self.call.model_reason else ()),
            *((("x-gateway-amended", self.call.amended),) if self.call.amended else ()),
            ("x-gateway-attempts", str(self.attempts)),
            *reserved.more_headers,
            *self.more_headers,
            *FORMATS[self.call.endpoint].rate_headers(reserved.window_statuses, self.call.started).items(),
        )

    # ------------------------------------------------------------------------------------------------------- progress

    def traced_by(self, trace: Trace) -> None:
        """Report to this trace from now on, which passes on everything to the one before."""
        self.trace = trace

    def attempt_began(self, route: Route, more_headers: tuple[tuple[str, str], ...] = ()) -> None:
        """An attempt on this route has begun, with further headers for the client if it answers."""
        self.route, self.more_headers = route, more_headers
        self.attempts += 1
        self.first_byte_s = None
        self._attempt_began = time.perf_counter()

    def attempt_failed(self, fault: Fault, upstream_error: str, *, has_begun: bool = False) -> None:
        """The last attempt has failed. `has_begun`: behind the beginning of an answer, which the client has."""
        self.note_failed(fault.value)
        self.upstream_error = upstream_error
        if not has_begun:
            self.first_byte_s = None

    def note_failed(self, fault: str) -> None:
        """The last attempt has ended without an answer for the client."""
        assert self.route is not None
        arrived, ended = self.call.arrived, time.perf_counter()
        began = ended if self._attempt_began is None else self._attempt_began
        self.failed.append(EndedAttempt(self.route.upstream, fault, began - arrived, ended - arrived))
        self._attempt_began = None

    def note_upstream_error(self, detail: str) -> None:
        """Keep the last upstream's error about the request, for the access line."""
        self.upstream_error = detail

    def note_upstream_wait(self, seconds: float) -> None:
        """Add to the time that the call has waited for upstreams."""
        self.upstream_s += seconds

    def note_first_byte(self) -> None:
        """The first byte of the answer is there; of an attempt that comes to nothing it does not count."""
        if self.first_byte_s is None:
            self.first_byte_s = time.perf_counter() - self.call.arrived

    def fall_back(self, call: Call) -> None:
        """Another model serves from here on: this is the call for it. It has the price of that model."""
        usage, nusd = self._earlier or (Usage(), 0)
        nusd += cost_nusd(self.call, self.route, self.spent) or 0
        self._earlier, self.spent = (pricing.total_usage((usage, self.spent)), nusd), _NOTHING
        self.call, self.route = call, None

    def sum_up(self, before: CallProgress, parts: Sequence[CallLog]) -> None:
        """Add up the progress of the parts that carry the call. May be called again."""
        self.attempts = before.attempts + sum([each.attempts for each in parts])
        self.failed = [*before.failed, *[failure for each in parts for failure in each.failed]][:MOST_ATTEMPTS]
        self.answered = [answer for each in parts for answer in each.answered][:MOST_ATTEMPTS]
        self.route = next((each.route for each in parts if each.route is not None), self.route)
        self.upstream_error = next((each.upstream_error for each in parts if each.upstream_error), None)
        self.first_byte_s = min([each.first_byte_s for each in parts if each.first_byte_s is not None], default=None)
        self._attempt_began = None

    @property
    def progress(self) -> CallProgress:
        """The progress before attempts that run at the same time."""
        return CallProgress(self.attempts, self.spent, tuple(self.failed), self.upstream_s)

    def sum_up_race(
        self, before: CallProgress, served: CallLog, usage: Usage, upstream_s: float, *logs: CallLog
    ) -> None:
        """Add up the logs of attempts that ran at the same time. `usage` is their cost beside the answer, `upstream_s`
        their time altogether; `served` is the one whose end is the call's. May be called again."""
        self.attempts = before.attempts + sum([each.attempts for each in logs])
        self.failed = [*before.failed, *[failure for each in logs for failure in each.failed]]
        self.spent = pricing.total_usage((before.spent, usage))
        self.upstream_s = before.upstream_s + upstream_s
        self.route, self.more_headers = served.route or self.route, served.more_headers
        self.upstream_error, self.first_byte_s = served.upstream_error, served.first_byte_s
        self._attempt_began = served._attempt_began

    def add_cost(self, charged: AttemptCost) -> None:
        """Add what an attempt that did not answer the call may have cost."""
        self.doubt(charged.doubts)
        self.spent = pricing.total_usage((self.spent, charged.usage))

    def doubt(self, kinds: Iterable[str]) -> None:
        """Count and log that the upstream reported more tokens of these kinds than there can have been."""
        upstream, model = self.route.upstream if self.route else "", self.call.label_model
        for kind in kinds:
            if self._accounting.telemetry.doubted(upstream, model, kind):
                log.warning(
                    _DOUBT.get(kind) or _ABOVE_CEILING.format(_TOKENS.get(kind, kind)), upstream, model, self.call.id
                )

    # -------------------------------------------------------------------------------------------------------- the end

    def hand_over(self) -> None:
        """Another task closes the call from now on: this context will not."""
        self._is_handed_over = True

    def cut_off(self) -> None:
        """The call fails without this answer: it is not read on for its usage."""
        self.is_cut_off = True

    def close(
        self, *, status: int, usage: Usage, ended: Ended, is_truncated: bool = False, returned_model: str | None = None,
        error: str | None = None,
    ) -> None:  # fmt: skip
        """Settle, once. Queued for the store without waiting. `error` is the code that the client gets."""
        if not self.reservation.is_open:
            return
        call = self.call
        if status == 200 and call.label_model == OTHER:
            call = call._replace(label_model=self._accounting.served.note(call.model_name))
        duration_s = time.perf_counter() - call.arrived
        if self.spent is not _NOTHING:
            usage = pricing.total_usage((self.spent, usage))
        record = record_of(
            call, self.route, status, usage, ended,
            returned_model=returned_model and returned_model[:MAX_RETURNED_MODEL],
            first_byte_s=self.first_byte_s,
            duration_s=duration_s,
            attempts=self.attempts,
            is_truncated=is_truncated,
            failed=failed_text(self.failed) if self.failed else "",
            timeline=self.timeline(duration_s) if self.attempts > 1 or self.reservation.waits else "",
        )  # fmt: skip
        asked = self.reservation.call
        if asked.expected_output is not None and status == 200 and usage.source != "none":
            self._accounting.recent.note(asked.key, asked.label_model, usage.completion_tokens / call.params.candidates)
        if self._earlier is not None:
            record = with_earlier(record, *self._earlier)
        self.reservation.settle(record)
        overhead_s = max(0.0, duration_s - self.upstream_s - call.body_wait_s - self.reservation.waited_s)
        self._accounting.telemetry.recorded(
            record,
            estimated_prompt_tokens=call.params.prompt_tokens,
            overhead_s=overhead_s,
            is_usage_unknown=usage.source == "estimated",
        )
        extras = AccessLogExtras(call.remote, error, self.upstream_error if error else None, self.trace.id)
        self._accounting.write_line(record, extras)
        self.trace.recorded(record, error)

    def timeline(self, duration_s: float) -> str:
        """All attempts and waits with their times after `duration_s`, as `Record.timeline` has them.

        Empty where the times of some attempts are not known.
        """
        found = [*self.failed, *self.answered]
        if (running := self.running(duration_s)) is not None:
            found.append(running)
        if len(found) != self.attempts:
            return ""
        return timeline_text([*found, *[EndedAttempt(*wait) for wait in self.reservation.waits]])

    def running(self, duration_s: float) -> EndedAttempt | None:
        """The attempt that has not failed, if there is one, as it is after `duration_s`."""
        if self._attempt_began is None or self.route is None:
            return None
        return EndedAttempt(self.route.upstream, "", self._attempt_began - self.call.arrived, duration_s)

    def note_deferral(self, deferral: Deferral) -> None:
        """Should the worker be killed before the call ends, its reservation is left to what goes on at the upstream."""
        record = lost_record(self.call, self.route or self.call.model.routes[0])
        self.reservation.note_deferral(record, encode_deferral(deferral))

    def defer(self, deferral: Deferral) -> None:
        """End the call, once, and leave its reservation to what goes on at the upstream. Queued without waiting."""
        if not self.reservation.is_open:
            return
        record = lost_record(self.call, self.route or self.call.model.routes[0])
        self.reservation.defer(record, encode_deferral(deferral))
        self.trace.recorded(record._replace(status=200, ended="done"), None)

    async def acknowledged(self) -> None:
        """Wait until the settlement is safe: in the store or, where that takes its time, in the journal."""
        settled = self.reservation.settled
        if settled is not None and not settled.done():
            await settled  # a cancellation does not take the settlement back

    def _close_after(self, error: BaseException | None) -> None:
        """Close what the block left open: only `spent` is charged."""
        if isinstance(error, GatewayError):
            self.close(status=error.status, usage=Usage(), ended="error", error=error.name)
        elif isinstance(error, asyncio.CancelledError) and not is_cut_off(error):
            self.close(status=499, usage=Usage(), ended="client_gone")
        elif isinstance(error, asyncio.CancelledError):
            self.close(status=503, usage=Usage(), ended="error", error="shutting_down")
        else:
            self.close(status=500, usage=Usage(), ended="error", error=GatewayError.type)
