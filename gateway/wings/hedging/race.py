"""Two routes at once for a call: the first one that answers serves, the other is stopped.

This is the hedged request of Dean and Barroso, "The Tail at Scale" (CACM 2013), for models with `hedge_after`.

1. The first event of a stream decides, or the end of a good plain answer. Until then nothing has gone to the client but
   comments of the gateway. The client gets the answer of one route, byte by byte.
2. The stopped attempt is charged as one whose client left (relay/charge.py), because its upstream may bill it. The
   call's record has the sum of both, and `UPSTREAM:hedged` among its failed attempts.
3. A second route never worsens a call: its refusal or failure counts only if the first one fails too.
4. Each route has a part of the call's log. The call is settled once, when both have ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, cast

from gateway.accounting.call_log import Accounting, CallLog
from gateway.accounting.share import PartLog
from gateway.api.acting_tools import acts
from gateway.config import Route
from gateway.errors import GatewayError
from gateway.observe.tracing import HEDGED
from gateway.quota import pricing
from gateway.records import Call, Ended, Failure, Usage
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientStream, Headers, StreamWriter
from gateway.relay.exchange import no_client
from gateway.tasks import Tasks, cut_off, is_cut_off

from .metrics import count_cost, count_hedge

log = logging.getLogger("gateway")

Runs = Callable[[CallLog, ClientStream], Coroutine[Any, Any, Answer | Streamed | Failure | None]]
"""Tries one route with a log and a client's side of its own. None: there was no route to try."""

Noted = Callable[[Route, float], None]
"""Notes the time to the first byte of an attempt at this route, in seconds."""


def may_hedge(call: Call) -> bool:
    """Whether a call may be sent to two upstreams at once: nothing of it is kept there or goes on without the
    connection, nothing ties it to one of them, and it has no files."""
    params = call.params
    is_kept = params.is_kept or params.is_deferred or params.document.members.get("store") is True
    is_bound = call.bond is not None or call.affinity is not None
    return not (is_kept or is_bound or params.document.form is not None or acts(params.document))


class _End(NamedTuple):
    """How a route's log was closed."""

    status: int
    ended: Ended
    is_truncated: bool
    returned_model: str | None
    error: str | None


class _Leg(PartLog):
    """The log of one route."""

    def __init__(self, race: Race, whole: CallLog, accounting: Accounting, call: Call) -> None:
        super().__init__(whole, accounting, call, race.leg_ended)
        self.side = _Side(race, self)
        self.task: asyncio.Task[None] | None = None
        self.began = time.perf_counter()
        self.first_byte_after_s: float | None = None
        self.result: Answer | Streamed | Failure | None = None
        self.error: Exception | None = None
        self.end: _End | None = None
        self._race = race

    @property
    def is_beaten(self) -> bool:
        """Whether the other route serves."""
        return self._race.winner not in (None, self)

    @property
    def stopped_as(self) -> str:
        return HEDGED if self.is_beaten else super().stopped_as

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    def note_first_byte(self) -> None:
        if self.first_byte_after_s is None:
            self.first_byte_after_s = time.perf_counter() - self.began
            self._race.first_byte()
            super().note_first_byte()

    def close(
        self, *, status: int, usage: Usage, ended: Ended, is_truncated: bool = False, returned_model: str | None = None,
        error: str | None = None,
    ) -> None:  # fmt: skip
        if not self.is_open:
            return
        self.end = _End(status, ended, is_truncated, returned_model, error)
        if status == 200:
            self._race.claim(self)
        if self.is_beaten and self.route is not None and not self.failed:
            self.note_failed(HEDGED)
        super().close(status=status, usage=usage, ended=ended, returned_model=returned_model)

    async def acknowledged(self) -> None:
        await self._race.acknowledged(self)


class _Side(ClientStream):
    """The client's side as one route sees it. Opening it is answering first."""

    def __init__(self, race: Race, leg: _Leg) -> None:
        self._race = race
        self._leg = leg
        super().__init__(no_client, tuple, 0, hold=race.client.hold)

    @property
    def writer(self) -> StreamWriter | None:
        """The real one, if it is open, for comments of the gateway or for this route."""
        return None if self._leg.is_beaten else self._race.client.writer

    @writer.setter
    def writer(self, writer: StreamWriter | None) -> None:
        pass

    @property
    def spoke_at(self) -> float:
        return self._spoke_at

    @spoke_at.setter
    def spoke_at(self, at: float) -> None:
        self._spoke_at = at
        if self._race.winner is self._leg:
            self._race.client.spoke_at = at

    def open(self, headers: Headers) -> StreamWriter:
        return self._race.client.open(headers) if self._race.claim(self._leg) else no_client(headers)


class Race:
    """One call with up to two routes at once."""

    def __init__(
        self, call: Call, whole: CallLog, client: ClientStream, accounting: Accounting, tasks: Tasks, noted: Noted
    ) -> None:
        self.client = client
        self.winner: _Leg | None = None
        """Route that serves the call; None until one has claimed the client."""
        self._call = call
        self._whole = whole
        self._accounting = accounting
        self._tasks = tasks
        self._noted = noted
        self._legs: list[_Leg] = []
        self._began = time.perf_counter()
        self._first_byte: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_left = False
        """Whether the client is gone, or the gateway ends."""
        self._before = whole.progress

    async def run(self, first: Runs, second: Runs, after_s: float | None) -> Answer | Streamed | Failure:
        """Try the first route, and the second beside it if there is no byte after `after_s`; None: in no case. Returns
        the failure of the first if both failed. Cancelled: each attempt ends by the rules of relay/disconnect.py."""
        self.client.speaker = self
        try:
            self._start(first)
            if after_s is not None and await self._is_late(after_s):
                self._start(second)
            return await self._outcome()
        except asyncio.CancelledError as cancelled:
            self._leave(is_gateway_ending=is_cut_off(cancelled))
            raise
        finally:
            self.client.speaker = None

    @property
    def may_be_interrupted(self) -> bool:
        """Whether a comment may go to the client now."""
        speaker = None if self.winner is None else self.winner.side.speaker
        return speaker is None or speaker.may_be_interrupted

    def _start(self, runs: Runs) -> None:
        leg = _Leg(self, self._whole, self._accounting, self._call)
        self._legs.append(leg)
        leg.task = self._tasks.spawn(self._run(leg, runs), "hedged-attempt")
        leg.task.add_done_callback(lambda _: self._leg_gone(leg))

    async def _run(self, leg: _Leg, runs: Runs) -> None:
        async with leg:
            try:
                leg.result = await runs(leg, leg.side)
            except Exception as error:
                leg.error = error

    def _leg_gone(self, leg: _Leg) -> None:
        """The task of a route has ended; it may have been cancelled before its first step."""
        if leg.route is None and leg.is_open:
            leg.close(status=499, usage=Usage(), ended="client_gone")
        seconds = leg.first_byte_after_s
        if seconds is None and leg.is_beaten:
            seconds = time.perf_counter() - leg.began
        if seconds is not None and leg.route is not None and not isinstance(leg.result, Failure) and leg.error is None:
            self._noted(leg.route, seconds)

    async def _is_late(self, after_s: float) -> bool:
        task = self._legs[0].task
        assert task is not None
        await asyncio.wait([task, self._first_byte], timeout=after_s, return_when=asyncio.FIRST_COMPLETED)
        return not (task.done() or self._first_byte.done())

    # ---------------------------------------------------------------------------------------------- called by the legs

    def first_byte(self) -> None:
        """A route has begun to answer."""
        if not self._first_byte.done():
            self._first_byte.set_result(None)

    def claim(self, leg: _Leg) -> bool:
        """Whether this route serves: the first one that asks does, and the other is stopped."""
        if self.winner is None:
            self.winner = leg
            self.first_byte()
            self._stop_others(leg)
            self._sum_up()
        return self.winner is leg

    async def acknowledged(self, leg: _Leg) -> None:
        """Wait until the call is settled; of an answer that is an error of the second route, until the first one has
        failed."""
        await self._until_ended(self._legs[: self._legs.index(leg)])
        if self.claim(leg):
            await self._until_ended([other for other in self._legs if other is not leg])
            self.leg_ended()
            await self._whole.acknowledged()

    def leg_ended(self) -> None:
        """A route's log is closed: the call is, if all are and one serves, or the client is gone."""
        if (self.winner is None and not self._is_left) or any(leg.is_open for leg in self._legs):
            return
        self._sum_up()
        served = self._served
        end = cast(_End, served.end)
        self._whole.close(
            status=end.status, usage=served.answer_usage, ended=end.ended, is_truncated=end.is_truncated,
            returned_model=end.returned_model, error=end.error,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------- the end

    async def _outcome(self) -> Answer | Streamed | Failure:
        """The answer of the route that serves, or the failure of the first. Raises what the first route raises, or else
        the second."""
        first = self._legs[0]
        while running := [leg for leg in self._legs if leg.is_running]:
            if first.error is not None or (self.winner is not None and not self.winner.is_running):
                break
            await asyncio.wait(
                [cast(asyncio.Task[None], leg.task) for leg in running], return_when=asyncio.FIRST_COMPLETED
            )
        self._stop_others(self.winner or first)
        await self._until_ended(self._legs)
        self._sum_up()
        served = self._served
        self._count()
        for leg in self._legs:
            if leg is not served and leg.error is not None and not isinstance(leg.error, GatewayError):
                log.error("an attempt beside another one failed, call %s", self._call.id, exc_info=leg.error)
        if served.error is not None:
            raise served.error
        if served.result is None:
            raise asyncio.CancelledError  # the worker ends
        return served.result

    @property
    def _served(self) -> _Leg:
        """The route whose end is the call's, as far as it is known."""
        if self.winner is not None:
            return self.winner
        if self._is_left:
            candidates = [leg for leg in self._legs if leg.result is None and leg.error is None]
        else:
            candidates = [leg for leg in self._legs if leg.error is not None]
        return next(iter(candidates), self._legs[0])

    def _stop_others(self, leg: _Leg) -> None:
        for other in self._legs:
            if other is not leg and other.is_running:
                other.cut_off()
                cast(asyncio.Task[None], other.task).cancel()

    async def _until_ended(self, legs: list[_Leg]) -> None:
        running = [cast(asyncio.Task[None], leg.task) for leg in legs if leg.is_running]
        if running:
            await asyncio.wait(running)

    def _leave(self, *, is_gateway_ending: bool) -> None:
        """The call is accounted for when nothing of it is read on any more."""
        self._is_left = True
        self._whole.hand_over()
        for leg in self._legs:
            if leg.is_running:
                (cut_off if is_gateway_ending else asyncio.Task.cancel)(cast(asyncio.Task[None], leg.task))
        self.leg_ended()
        self._count()

    def _count(self) -> None:
        """Count the call, if two routes were tried at once."""
        first, *others = self._legs
        if not others or others[0].route is None:
            return
        outcome = "client_gone" if self._is_left else "failed"
        if self.winner is not None:
            outcome = "first" if self.winner is first else "second"
        telemetry, model = self._accounting.telemetry, self._call.label_model
        count_hedge(telemetry, model, outcome)
        for leg in self._legs:
            if leg.is_beaten and leg.route is not None:
                count_cost(telemetry, model, leg.route.upstream, leg.usage)

    def _sum_up(self) -> None:
        """Report the progress of the routes to the call; as often as one likes."""
        served = self._served
        beside = [leg.spent if leg.is_open else leg.usage for leg in self._legs if leg is not served]
        upstream_s = max([leg.began - self._began + leg.upstream_s for leg in self._legs])
        spent = pricing.total_usage([*beside, served.spent])
        self._whole.sum_up_race(self._before, served, spent, upstream_s, *self._legs)
