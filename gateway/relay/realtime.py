"""The charge of a Realtime session: each response is a call of its own, with a reservation and a record.

1. One reservation is always held beforehand, because with voice detection a response begins without a client's event.
   It is given back, and never was, if no response begins.
2. `response.done` settles a response by its usage, before the client sees it. A transcription of the client's audio is
   settled in the same way.
3. A response that has not ended with its session is charged like a stream that broke off (relay/charge.py).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from gateway import units
from gateway.accounting.call_log import Accounting, CallLog
from gateway.accounting.reservation import Reservation
from gateway.config import Model, Route
from gateway.formats import token_rule
from gateway.formats.openai import realtime
from gateway.formats.token_rule import CountsTexts
from gateway.quota.output_fit import OutputFit
from gateway.quota.windows import output_limit
from gateway.records import Call, Claim, Ended, Usage

from . import charge
from .charge import Ending, SentRequest, Shown

FIRST_CONTEXT = 1_024
"""Prompt tokens that are reserved for the first response; for later ones as many as the last one had in and out."""


class NextCall(NamedTuple):
    """The call of a response that may begin, and what it draws on."""

    call: Call
    claims: tuple[Claim, ...]
    fit: OutputFit | None = None
    """How it may be made smaller."""


MakesCalls = Callable[[int, int, int | None], Awaitable[NextCall]]
"""Makes a call of: its number, from 1; the tokens of its context, about; the client's own output limit, or None.
Raises `GatewayError` where its caller may have none any more."""


class SessionEnd(NamedTuple):
    """How a session has ended, for the records of what had not ended before."""

    status: int
    ended: Ended
    ending: Ending
    error: str | None = None


class _Response:
    """One response under way."""

    def __init__(self, log: CallLog, route: Route, count_texts: CountsTexts, limit: int | None) -> None:
        self.log = log
        self.limit = limit
        """Its own output limit, if its event has one."""
        log.attempt_began(route)
        self._sent = SentRequest(log.call, route.model, log.call.params.output_limit, count_texts)
        self._count = count_texts
        self._began = time.perf_counter()
        self._quarters = 0
        self._audio_characters = 0
        self._events = 0

    def saw(self, event: Mapping[str, Any]) -> None:
        """Count what an event brings of it."""
        delta = event.get("delta")
        if not isinstance(delta, str) or not delta:
            return
        self.log.note_first_byte()
        self._events += 1
        if str(event.get("type")).endswith("audio.delta"):
            self._audio_characters += len(delta)
        else:
            self._quarters += self._count(json.dumps(delta)[1:].encode()).quarters

    def usage(self, ending: Ending) -> Usage:
        """Its estimated usage, without a report."""
        audio = -(-self._audio_characters // realtime.AUDIO_CHARACTERS)
        tokens = token_rule.tokens_of(self._quarters) + audio
        report = Usage(0, audio, more=units.counts({"audio_out": audio})) if audio else None
        shown = Shown(tokens, self._events, report, is_stream=True, elapsed_s=time.perf_counter() - self._began)
        return charge.estimate(self._sent, ending, shown)


class ResponseAccounts:
    """The responses of one session on one route."""

    def __init__(self, accounting: Accounting, route: Route, make_call: MakesCalls, count_texts: CountsTexts) -> None:
        self.other_models: dict[str, Model] = {}
        """Further models that the client has named, by their names here; their prices are those of their work."""
        self._accounting = accounting
        self._route = route
        self._make_call = make_call
        self._count_texts = count_texts
        self._spare: Reservation | None = None
        self._limit: int | None = None
        self._asked: deque[_Response] = deque()
        """Those that the client has asked for and that have not begun."""
        self._running: dict[str, _Response] = {}
        self._lock = asyncio.Lock()
        self._context = FIRST_CONTEXT
        self._number = 0

    def __repr__(self) -> str:
        return f"<ResponseAccounts {self._number} drawn, {len(self._asked)} asked for, {len(self._running)} running>"

    async def ready(self) -> None:
        """Hold a reservation for a response that may begin. Raises its refusal."""
        async with self._lock:
            if self._spare is None:
                self._spare = await self._draw(self._limit)

    @property
    def spare_output(self) -> int | None:
        """Output tokens that are reserved for a response that may begin, if any are."""
        return None if self._spare is None else output_limit(self._spare.call)

    @property
    def counts_output(self) -> bool:
        """Whether what is reserved is of tokens or of money."""
        return self._spare is not None and any(
            claim.window.unit in ("tokens", "usd") for claim in self._spare.held.claims
        )

    async def limit(self, output_tokens: int | None) -> None:
        """From now on the client's limit for the output of a response of this session is this; None: it has none.
        Raises the refusal of a reservation of that size."""
        async with self._lock:
            if output_tokens != self._limit:
                self._limit = output_tokens
                self.take_back()
                self._spare = await self._draw(output_tokens)

    async def asked(self, output_tokens: int | None = None) -> None:
        """The client asks for a response, with this output limit of its own. Raises the refusal of its reservation."""
        async with self._lock:
            self._asked.append(await self._begin(output_tokens))

    async def began(self, response: str) -> None:
        """A response with this id has begun. Raises the refusal of its reservation, if it is one more than reserved."""
        async with self._lock:
            if response not in self._running:
                self._running[response] = self._asked.popleft() if self._asked else await self._begin()

    def saw(self, event: Mapping[str, Any]) -> None:
        """An event of the upstream that may bring output."""
        response = self._running.get(realtime.response_id(event) or "")
        if response is not None:
            response.saw(event)

    def refused(self) -> None:
        """The upstream has reported an error while the client waits for a response: that one does not begin."""
        if self._asked:
            response = self._asked.pop()
            if self._spare is None and response.limit is None:
                self._spare = response.log.reservation
            else:
                response.log.reservation.take_back()

    async def ended(self, end: realtime.ResponseEnd) -> None:
        """A response has ended."""
        async with self._lock:
            response = self._running.pop(end.id or "", None)
            if response is None:
                response = self._asked.popleft() if self._asked else await self._begin()
        usage = end.usage or response.usage(Ending.ERROR if end.is_failed else Ending.WHOLE)
        self._context = max(FIRST_CONTEXT, usage.total_tokens)
        if end.is_failed:
            response.log.close(status=502, usage=usage, ended="error", error="response_failed")
        else:
            response.log.close(status=200, usage=usage, ended="done")
        await response.log.acknowledged()

    async def transcribed(self, usage: Usage) -> None:
        """The client's audio was transcribed. Raises the refusal of a reservation beyond the one that is held."""
        async with self._lock:
            response = await self._begin()
        response.log.close(status=200, usage=usage, ended="done")
        await response.log.acknowledged()

    def close(self, end: SessionEnd) -> None:
        """Charge what has not ended, and give back what has not begun. May be called again."""
        for response in (*self._running.values(), *self._asked):
            usage = response.usage(end.ending)
            response.log.close(
                status=end.status, usage=usage, ended=end.ended, is_truncated=True, error=end.error
            )  # fmt: skip
        self._running.clear()
        self._asked.clear()
        self.take_back()

    def take_back(self) -> None:
        """Give back what is held for a response that has not begun."""
        if self._spare is not None:
            self._spare.take_back()
            self._spare = None

    async def _begin(self, limit: int | None = None) -> _Response:
        if limit is not None and limit != self.spare_output:
            self.take_back()
        reservation = self._spare or await self._draw(self._limit if limit is None else limit)
        self._spare = None
        call = reservation.call._replace(arrived=time.perf_counter(), other_models=tuple(self.other_models.items()))
        return _Response(CallLog(self._accounting, call, reservation), self._route, self._count_texts, limit)

    async def _draw(self, limit: int | None) -> Reservation:
        self._number += 1
        call, claims, fit = await self._make_call(self._number, self._context, limit)
        reservation = Reservation(self._accounting.ledger, call, claims, self._route, fit=fit)
        await reservation.make()
        return reservation
