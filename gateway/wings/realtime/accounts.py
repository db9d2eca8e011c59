"""The charge of a Realtime session: each response is a call of its own, with a reservation and a record.

1. One reservation is always held beforehand, because with voice detection a response begins without a client's event.
   It is given back, and never was, if no response begins.
2. `response.done` settles a response by its usage, before the client sees it. relay/realtime_transcription.py has the
   transcriptions of the client's audio.
3. A response that has not ended with its session is charged like a stream that broke off (relay/charge.py): its prompt
   is what the client has sent so far, and what the last report counts.
4. A speech that the upstream has heard to its end counts as a response from then on, where it answers by itself.
5. A response that begins beyond what is reserved is counted whatever the quotas have left. Only an error that names the
   event of a `response.create` gives back what is reserved for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol

from gateway import units
from gateway.accounting import call_record
from gateway.accounting.admission import Admission
from gateway.accounting.call_log import Accounting, CallLog
from gateway.accounting.reservation import Reservation
from gateway.config import Model, Route
from gateway.errors import InvalidRequest
from gateway.formats import token_rule
from gateway.formats.ceilings import ADDED_TEXT_TOKENS
from gateway.formats.reader import text_of
from gateway.formats.token_rule import CountsTexts
from gateway.quota.output_fit import OutputFit
from gateway.quota.windows import output_limit
from gateway.records import Call, Claim, Ended, Usage
from gateway.relay import charge
from gateway.relay.charge import Ending, SentRequest, Shown
from gateway.tasks import to_its_end

from . import formats as realtime
from .transcription import Transcribers, TranscriptionAccounts

FIRST_CONTEXT = 1_024
"""Prompt tokens that are reserved for the first response; for later ones as many as the last one had in and out."""


class NextCall(NamedTuple):
    """The call of a response that may begin, and what it draws on."""

    call: Call
    claims: tuple[Claim, ...]
    fit: OutputFit | None = None
    """How it may be made smaller."""


class MakesCalls(Protocol):
    """Makes a call of: its number, from 1; the tokens of its context, about; the client's own output limit, or None.
    Raises `GatewayError` where its caller may have none any more; if it `has_begun` already, it is made in any case,
    and no quota refuses it."""

    def __call__(
        self, number: int, context_tokens: int, limit: int | None, *, has_begun: bool
    ) -> Awaitable[NextCall]: ...


class SessionEnd(NamedTuple):
    """How a session has ended, for the records of what had not ended before."""

    status: int
    ended: Ended
    ending: Ending
    error: str | None = None


MAX_OPEN = 256
"""Responses that have not ended, and updates without an answer, of one session: each is held, and the end of the
session deals with all of them in one turn of the event loop."""

MAX_COUNTED = 65_536
"""Characters of an event whose tokens are counted by the rule; of a longer one every two bytes are a token."""


class _Context(NamedTuple):
    """Token counts of a prompt, in total and of its audio."""

    tokens: int = 0
    audio: int = 0
    """Those of them that are audio."""

    def and_more(self, other: _Context) -> _Context:
        return _Context(self.tokens + other.tokens, self.audio + other.audio)

    def without(self, other: _Context) -> _Context:
        """The rest, at least 0 of each."""
        return _Context(max(0, self.tokens - other.tokens), max(0, self.audio - other.audio))


class _Response:
    """A response of the session that has not ended."""

    def __init__(
        self, log: CallLog, route: Route, count_texts: CountsTexts, limit: int | None, event_id: str | None
    ) -> None:
        self.log = log
        self.limit = limit
        """Its own output limit, if its event has one."""
        self.event_id = event_id
        """Id of the client's event that asked for it, if there was one."""
        self.sent = _Context()
        """Sent by the client between the last report and its beginning."""
        log.attempt_began(route)
        self._sent = SentRequest(log.call, route.model, log.call.params.output_limit, count_texts)
        self._count = count_texts
        self._began = time.perf_counter()
        self._quarters = 0
        self._repeated_quarters = 0
        """Quarter tokens of whole texts, which some upstreams send without their pieces."""
        self._audio_characters = 0
        self._events = 0

    @property
    def has_shown(self) -> bool:
        """Whether some of its output has come."""
        return self._events > 0 or self._repeated_quarters > 0

    def saw(self, event: Mapping[str, Any]) -> None:
        """Count what an event brings of it."""
        delta = event.get("delta")
        if not isinstance(delta, str) or not delta:
            if whole := realtime.shown_text(event):
                self._repeated_quarters += self._count(json.dumps(whole)[1:].encode()).quarters
            return
        self.log.note_first_byte()
        self._events += 1
        if str(event.get("type")).endswith("audio.delta"):
            self._audio_characters += len(delta)
        else:
            self._quarters += self._count(json.dumps(delta)[1:].encode()).quarters

    def usage(self, ending: Ending, context: _Context, bytes_per_s: int) -> Usage:
        """Its estimated usage, without a report: with at least this context, and output audio of this rate."""
        audio = -(-realtime.audio_ms(self._audio_characters, bytes_per_s) // realtime.OUTPUT_TOKEN_MS)
        tokens = token_rule.tokens_of(max(self._quarters, self._repeated_quarters)) + audio
        prompt = max(self.log.call.params.prompt_tokens, context.tokens)
        more = units.counts({"audio_in": context.audio, "audio_out": audio})
        report = Usage(prompt, audio, more=more)
        shown = Shown(tokens, self._events, report, is_stream=True, elapsed_s=time.perf_counter() - self._began)
        return charge.estimate(self._sent, ending, shown)


def session_usage(report: Usage) -> Usage:
    """A report of a response of a Realtime session, whose prompt is in no request, or what of it can be true."""
    if max(report[:2]) <= ADDED_TEXT_TOKENS:
        return report
    prompt, output = [min(count, ADDED_TEXT_TOKENS) for count in report[:2]]
    return report._replace(prompt_tokens=prompt, completion_tokens=output, source="estimated")


class ResponseAccounts:
    """The responses of one session on one route, and its transcriptions. `has_unknown_transcriber`: the session is one
    that transcribes, by a model that the client need not name."""

    def __init__(
        self, accounting: Accounting, route: Route, make_call: MakesCalls, count_texts: CountsTexts, *,
        has_unknown_transcriber: bool = False,
    ) -> None:  # fmt: skip
        self.other_models: dict[str, Model] = {}
        """Further models that the client has named, by their names here; their prices are those of their work."""
        transcribers = Transcribers(has_unknown=has_unknown_transcriber)
        self.transcriptions = TranscriptionAccounts(self._draw_beside, self._cost, count_texts, transcribers)
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
        self._reported = _Context()
        """Tokens of the conversation, by the last report."""
        self._added = _Context()
        """Tokens of the client's events since the last report, without audio of the buffer."""
        self._reported_ms = 0
        """Milliseconds of the buffer's audio that the last report counts."""
        self._answers_speech = not has_unknown_transcriber
        self._is_answering = False
        """Whether the upstream may have begun a response by itself, of which no event has come."""
        self._output_bytes_per_s = realtime.BYTES_PER_S
        self._reserved_context = FIRST_CONTEXT
        self._number = 0

    def __repr__(self) -> str:
        return f"<ResponseAccounts {self._number} drawn, {len(self._asked)} asked for, {len(self._running)} running>"

    def note(self, event: Mapping[str, Any]) -> None:
        """An event of the client, which is no audio of the buffer, is sent: its content is in later prompts."""
        added = realtime.added(event)
        if len(added.texts) > MAX_COUNTED:
            tokens = len(added.texts.encode("utf-8", "surrogatepass")) // 2
        else:
            text = json.dumps(added.texts)[1:].encode()
            tokens = token_rule.tokens_of(self._count_texts(text).quarters)
        audio = _audio_tokens(realtime.audio_ms(added.audio_characters, realtime.BYTES_PER_S))
        self._added = self._added.and_more(_Context(tokens + added.picture_tokens + audio, audio))
        for settings in realtime.settings_of(event):
            given, made = realtime.audio_rates(settings)
            self.transcriptions.note_rate(given)
            self._output_bytes_per_s = min(self._output_bytes_per_s, made)

    async def ready(self, *, anew: bool = False) -> None:
        """Hold a reservation for a response that may begin; `anew`: not the one that is held. Raises its refusal."""
        async with self._lock:
            if anew:
                self.take_back()
            if self._spare is None:
                self._spare = await self._draw(self._limit, self._reserved_context)

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

    def refuse_unanswered(self, kind: str) -> None:
        """Raises `InvalidRequest` for an event of the client of which the upstream has too many in hand."""
        opened = {realtime.CREATE: len(self._asked) + len(self._running)}
        opened |= dict.fromkeys(realtime.UPDATES, self.transcriptions.transcribers.unanswered)
        if opened.get(kind, 0) >= MAX_OPEN:
            raise InvalidRequest(
                f"{MAX_OPEN} events of the type '{kind}' are without an end. Wait for the answers to them.",
                code="too_many_events",
            )

    async def limit(self, output_tokens: int | None) -> None:
        """Sets the client's output limit for later responses of this session; None: it has none. Raises the refusal of
        a reservation of that size."""
        async with self._lock:
            if output_tokens != self._limit:
                self._limit = output_tokens
                self.take_back()
                self._spare = await self._draw(output_tokens, self._reserved_context)

    async def asked(self, output_tokens: int | None, event_id: str | None) -> None:
        """The client asks for a response, with this output limit of its own, by the event with this id. Raises the
        refusal of its reservation."""
        async with self._lock:
            self._asked.append(await self._begin(output_tokens, event_id=event_id))

    async def began(self, response: str) -> None:
        """A response with this id has begun. It is counted also if this is cancelled meanwhile."""
        await to_its_end(self._began(response), "realtime-began")

    async def _began(self, response: str) -> None:
        async with self._lock:
            if response not in self._running:
                self._running[response] = await self._next()

    def note_settings(self, session: Any) -> None:
        """The upstream has sent the settings of the session."""
        if (found := realtime.answers_speech(session)) is not None:
            self._answers_speech = found

    def saw(self, event: Mapping[str, Any]) -> None:
        """An event of the upstream that may bring output, or may be followed by some."""
        if text_of(event.get("type")) in realtime.ENDS_SPEECH:
            self._is_answering = self._answers_speech
        response = self._running.get(realtime.response_id(event) or "")
        if response is not None:
            response.saw(event)

    def refused(self, about: str) -> None:
        """The upstream has refused the client's event with this id: what it asked for does not begin."""
        self.transcriptions.transcribers.refused(about)
        self.transcriptions.refused(about)
        response = next((each for each in self._asked if each.event_id == about), None)
        if response is not None:
            self._asked.remove(response)
            if self._spare is None and response.limit is None:
                self._spare = response.log.reservation
            else:
                response.log.reservation.take_back()

    async def ended(self, end: realtime.ResponseEnd) -> None:
        """A response has ended. It is counted also if this is cancelled meanwhile."""
        await to_its_end(self._ended(end), "realtime-ended")

    async def _ended(self, end: realtime.ResponseEnd) -> None:
        async with self._lock:
            name = end.id if end.id is not None or not self._running else next(iter(self._running))
            response = self._running.pop(name or "", None)
            if response is None:
                response = await self._next()
        usage = None if end.usage is None else session_usage(end.usage)
        if usage is None or (response.has_shown and not usage.completion_tokens):
            usage = self._estimate(response, Ending.ERROR if end.is_failed else Ending.WHOLE)
        self._note_report(usage, response.sent)
        if end.is_failed:
            response.log.close(status=502, usage=usage, ended="error", error="response_failed")
        else:
            response.log.close(status=200, usage=usage, ended="done")
        await response.log.acknowledged()

    def close(self, end: SessionEnd) -> None:
        """Charge what has not ended, and give back what has not begun. May be called again."""
        if self._is_answering and self._spare is not None:
            self._asked.append(self._made(self._spare))
            self._spare = None
        for response in (*self._running.values(), *self._asked):
            usage = self._estimate(response, end.ending)
            response.log.close(
                status=end.status, usage=usage, ended=end.ended, is_truncated=True, error=end.error
            )  # fmt: skip
        self._running.clear()
        self._asked.clear()
        self.transcriptions.close(end.status, end.ended, end.error)
        self.take_back()

    def take_back(self) -> None:
        """Give back what is held for a response that has not begun."""
        if self._spare is not None:
            self._spare.take_back()
            self._spare = None

    @property
    def _since_report(self) -> _Context:
        heard = _audio_tokens(self.transcriptions.committed_ms - self._reported_ms)
        return self._added.and_more(_Context(heard, heard))

    def _note_report(self, usage: Usage, sent: _Context) -> None:
        """The next prompt begins with all of this, and the client has sent `sent` of it since the last report."""
        of = dict(usage.more)
        audio = sum([of.get(name, 0) for name in ("audio_in", "cached_audio", "audio_out")])
        self._reported = _Context(usage.total_tokens, min(audio, usage.total_tokens))
        left = self._since_report.without(sent)
        self._added, self._reported_ms = left, self.transcriptions.committed_ms
        self._reserved_context = max(FIRST_CONTEXT, usage.total_tokens)

    def _estimate(self, response: _Response, ending: Ending) -> Usage:
        sent = response.sent if response.sent.tokens else self._since_report
        context = self._reported.and_more(sent)
        usage = response.usage(ending, context, self._output_bytes_per_s)
        if context.audio and self._cost(response.log, usage) is None:  # its model has a price for text alone
            usage = response.usage(ending, context._replace(audio=0), self._output_bytes_per_s)
        return usage

    def _cost(self, log: CallLog, usage: Usage) -> int | None:
        return call_record.cost_nusd(log.call, self._route, usage)

    async def _draw_beside(self, prompt_tokens: int, output_tokens: int, *, has_begun: bool) -> CallLog:
        """A call beside the one that is held for a response."""
        log = self._log_of(await self._draw(output_tokens, prompt_tokens, has_begun=has_begun))
        log.attempt_began(self._route)
        return log

    async def _begin(
        self, limit: int | None = None, *, event_id: str | None = None, has_begun: bool = False
    ) -> _Response:
        if limit is not None and limit != self.spare_output:
            self.take_back()
        limit_or_own = self._limit if limit is None else limit
        reservation = self._spare or await self._draw(limit_or_own, self._reserved_context, has_begun=has_begun)
        self._spare = None
        return self._made(reservation, limit, event_id)

    async def _next(self) -> _Response:
        made = self._asked.popleft() if self._asked else await self._begin(has_begun=True)
        self._is_answering, made.sent = False, self._since_report
        return made

    def _made(self, reservation: Reservation, limit: int | None = None, event_id: str | None = None) -> _Response:
        return _Response(self._log_of(reservation), self._route, self._count_texts, limit, event_id)

    def _log_of(self, reservation: Reservation) -> CallLog:
        call = reservation.call._replace(arrived=time.perf_counter(), other_models=tuple(self.other_models.items()))
        return CallLog(self._accounting, call, reservation)

    async def _draw(self, limit: int | None, context_tokens: int, *, has_begun: bool = False) -> Reservation:
        self._number += 1
        call, claims, fit = await self._make_call(self._number, context_tokens, limit, has_begun=has_begun)
        reservation = Admission(self._accounting.ledger, call, claims, self._route, fit=fit, is_in_advance=True)
        await reservation.make()
        return reservation


def _audio_tokens(audio_ms: int) -> int:
    return -(-max(0, audio_ms) // realtime.INPUT_TOKEN_MS)
