"""Receives one answer in the reading callback itself, and reads a plain one.

A stream is scanned and written on in that same callback, without a queue; other answers are collected.
The waiting task is woken only for decisions.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

from gateway.errors import GatewayError, Unavailable, UpstreamRefused
from gateway.formats import sse
from gateway.formats.events import Unfit
from gateway.formats.format import LONG_ANSWER, FactsReader, Format, PlainFacts, Scan, ScanInput
from gateway.formats.reported_usage import PlainText
from gateway.formats.table import FORMATS
from gateway.records import Failure, Fault, Phase, Usage
from gateway.upstream import error_shapes, provider_errors, refusal
from gateway.upstream.connection import Connection, Head
from gateway.upstream.content_encoding import Decoder, EncodingFault, decoder_of

from . import charge
from .attempt import Attempt, counted_text
from .client_stream import ClientStream, Headers, StreamWriter

KEPT_SPACE = 4096
"""Bytes of blank space before an answer that a client gets; more of it is left out."""

TAKEN_AT_ONCE = 65_536
"""Bytes of an answer that are taken in one turn of the event loop, if they take no longer than `TURN_S`."""

TURN_S = 0.005
"""Seconds for which one answer is taken in a turn, and its last piece beyond them."""

EVENTS_PIECE, PLAIN_PIECE = 1_024, 8_192
"""Bytes of a stream and of a plain answer that are taken without a look at the clock. As comments or empty objects, the
worst there are, they take some milliseconds."""

_DOWN = ("content-type", "openai-processing-ms", "openai-version")
"""Headers of an upstream's answer that a client sees, beside those of its format and of wings; all others stay here."""


class Exchange:
    """Receives the answer of one attempt and passes it on to the client."""

    error: GatewayError | None = None
    """Why a rider has broken it off."""
    is_long = False
    """Whether a plain answer has more than `LONG_ANSWER` bytes."""
    text: PlainText | None = None
    """The text of such an answer, if its charge depends on it."""
    is_unreadable = False
    """Whether another process could not read such an answer."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.head: Head | None = None
        self.body = bytearray()
        """Body of a plain answer; `take_body` empties it."""
        self._body = b""
        self.scan: Scan | None = None
        self.facts_reader: FactsReader | None = None
        """Reads a plain answer while it arrives."""
        self.gathered: Scan | None = None
        """Follows a stream that answers a plain call, by which it is charged."""
        self.facts: PlainFacts | None = None
        """The facts of the answer that such a stream makes, or of a long answer that another process has read."""
        self._may_gather = False
        """Whether the first bytes have to show if this is such a stream."""
        self._undecided_bytes = 0
        """Bytes that have come before they showed what the answer is."""
        self.has_passed = False
        """Whether anything of this answer has gone to the client."""
        self.is_over = False
        """Nothing more may be passed on: the answer has ended, failed, or sent `[DONE]` or an error."""
        self.problem: Failure | None = None
        """Why it is over, where it failed."""
        self.is_ended = False
        self.connection: Connection | None = None
        self._client = attempt.client
        self._loop = attempt.client.loop
        self._clock = self._loop.time
        self._began = self._clock()
        self._waiter: asyncio.Future[Failure | None] | None = None
        self._decoder: Decoder | None = None
        self._decoded_bytes = 0
        self._untaken: deque[bytes] = deque()
        """Bytes that have come and are not taken, nor decoded."""
        self._pieces: Iterator[bytes] | None = None
        """The rest of what was begun with, decoded and in pieces, while it waits; else None."""
        self._is_behind = False
        """Whether some of them wait for another turn of the event loop, or for the client."""
        self._turn: asyncio.Handle | None = None
        self._late_end: tuple[Failure | None] | None = None
        """How the message has ended, while its bytes wait."""
        self._is_held_back = False
        self._has_events = True
        """Whether a stream consists of events."""
        self._is_unsure = False
        """Whether the first bytes have to show if this is a stream: heads are wrong about it."""
        self._binding: asyncio.Task[None] | None = None
        """Binds the answer's id to the caller; until it is done nothing is passed on."""
        self._unbound = bytearray()
        """Bytes that wait for the binding."""
        self._alive_at = 0.0
        """When something other than a comment came last, on the loop's clock."""

    def wait_until_over(self) -> asyncio.Future[Failure | None]:
        """`problem`, as soon as `is_over`. May be cancelled; then another task may call this again."""
        self._waiter = self._loop.create_future()
        if self.is_over:
            self._waiter.set_result(self.problem)
        return self._waiter

    @property
    def may_be_interrupted(self) -> bool:
        """Whether a comment may go to the client now."""
        is_inside_event = self.scan is not None and self.scan.is_inside_event
        return not (is_inside_event or self._is_held_back or self.is_over)

    @property
    def is_sending(self) -> bool:
        return self.connection is not None and self.connection.is_sending

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began

    def charge_stream(self, failure: Failure | None = None) -> charge.Charge:
        """The charge of the stream so far; `failure`: why it ended, if not by itself."""
        scan = self.scan or self.gathered
        assert scan is not None
        failure = failure or self.problem
        if scan.error is not None:
            judged = provider_errors.judge_in_band("", scan.error, hide=())
            timed_out = isinstance(judged, Failure) and judged.status in charge.TIMED_OUT_STATUSES
            ending = charge.Ending.ERROR if scan.has_begun else charge.Ending.REFUSED
            if timed_out:
                ending = charge.Ending.SILENT
        elif failure is not None:
            ending = charge.ending_of(failure)
        else:
            is_broken = self.is_over and self.error is None
            ending = charge.Ending.BROKEN if is_broken else charge.Ending.STOPPED
        if self.attempt.format.tier_header:
            scan.usage = self.as_served(scan.usage)
        return charge.of_stream(self.attempt.sent, scan, ending, self.elapsed_s)

    def as_served(self, report: Usage | None) -> Usage | None:
        """The report with the tier that the head names, if it names none itself."""
        if report is None or report.variant or self.head is None:
            return report
        return report._replace(variant=(self.head.get(self.attempt.format.tier_header) or "").lower())

    def head_received(self, head: Head) -> None:
        self.head = head
        self._alive_at = self._clock()
        for rider in self.attempt.riders:
            rider.head(head)
        if head.get("content-encoding") is not None and not self._set_decoder(head):
            return
        params, make_scan = self.attempt.call.params, self.attempt.format.scan
        if head.status == 200 and params.stream and make_scan is not None:
            self._is_unsure = not self.attempt.format.is_binary
            if self._is_stream(head):
                self._begin_scan()
                return
        make_reader = self.attempt.format.facts_reader
        if head.status == 200:
            self._may_gather = self.attempt.format.gather is not None
            self.facts_reader = None if make_reader is None else make_reader()
        announced = head.get("content-length") or ""
        if announced.isdecimal() and int(announced) > self.attempt.max_response_bytes:
            self._refuse_length()

    def _begin_scan(self) -> None:
        assert self.attempt.format.scan is not None
        self.scan = self._scan_by(self.attempt.format.scan)

    def _scan_by(self, make_scan: Callable[[ScanInput], Scan]) -> Scan:
        params, sent = self.attempt.call.params, self.attempt.sent
        clean, members = partial(refusal.cleaned, hide=self.attempt.hidden), params.document.members
        return make_scan(
            ScanInput(
                params.choices, params.include_usage, sent.count_texts, clean, sent.allows, members, self._has_events
            )
        )

    def _is_stream(self, head: Head) -> bool:
        content_type = (head.get("content-type") or "").lower()
        if self.attempt.format.is_binary:
            self._has_events = content_type.startswith("text/event-stream")
            return not content_type.startswith("application/json")
        return content_type.startswith("text/event-stream")

    def body_received(self, data: bytes) -> None:
        scan = self.scan
        if self._decoder is not None or self._is_behind:
            self._take_later(data)
        elif scan is None:
            if len(data) > PLAIN_PIECE:
                self._take_later(data)
            else:
                self._collect(data)
        elif scan.is_at_start and scan.is_alike(data):  # as nearly all is
            client = self._client
            if self.has_passed and self._binding is None and client.writer is not None:
                if client.writer.write(data):
                    self._hold_back(client.writer)
                client.spoke_at = self._clock()
            else:
                self._pass_on(data)
            self._alive_at = client.spoke_at
        elif len(data) > EVENTS_PIECE:
            self._take_later(data)
        else:
            self._scan(scan, data)

    def ended(self, failure: Failure | None) -> None:
        self.connection = None
        if self._is_behind:
            self._late_end = (failure,)
        else:
            self._ended(failure)

    def _ended(self, failure: Failure | None) -> None:
        self.is_ended = True
        if failure is None and self.gathered is not None:
            self.gathered.finish()
        self._finish(failure)

    def take_body(self) -> bytes:
        """The whole body of a plain answer that has ended."""
        if self.body:
            self._body = bytes(self.body)
            self.body = bytearray()
        return self._body

    async def prepared(self, body: bytes) -> bytes:
        """Lets another process do what takes long of reading a whole answer. Returns the body to read. Raises
        `Unavailable`, as `put_together` does."""
        if self.gathered is not None:
            return await self.put_together(body)
        await self.read_aside(body)
        return body

    async def put_together(self, stream: bytes) -> bytes:
        """The plain answer that a stream in its place makes, or the stream, if it makes none. Raises `Unavailable`;
        then the stream is charged."""
        this = self.attempt
        try:
            made = await this.make(this.call.key.id, _put_together, stream, this.format.gather, this.format.facts)
        except GatewayError:
            this.log.add_cost(self.charge_stream())
            raise
        body, self.facts = made or (stream, None)
        return body

    async def read_aside(self, body: bytes) -> None:
        """Has a long answer read that was not read in pieces, and its text counted if it has no report: both would hold
        up other calls."""
        this, head = self.attempt, self.head
        if head is None or head.status not in this.format.good_statuses:
            return
        with suppress(ValueError, Unavailable, RuntimeError):  # no answer, or a process that fails: it is read here
            if self.facts_reader is not None:
                self.facts = self.facts_reader.facts()
            elif _is_text(this, body):
                self.facts = _facts_of_text(body)
            else:
                self.facts = await this.make(this.call.key.id, _facts_or_none, body, this.format.facts)
                self.is_unreadable = self.facts is None
            if self.facts is not None:
                self.text = await counted_text(this.make, this.sent, self.facts.usage, body)

    def pass_rest(self) -> None:
        """The upstream ended its stream: pass on what it left without a blank line."""
        if self.scan is None:
            return
        try:
            rest = self.scan.finish()
        except Unfit as unfit:
            self.problem = self.failure(Fault.UNFIT, str(unfit))
            return
        if rest:
            self._pass_on(rest)
            self._look_for_life(self.scan, rest)

    async def until_bound(self) -> None:
        """Waits until an answer that the upstream keeps belongs to the caller, and the part that has come has been
        passed on."""
        if self._binding is not None:
            await asyncio.shield(self._binding)
            self._flush()

    @property
    def pending_id(self) -> str | None:
        """The id of a streamed answer that goes on without this connection."""
        find = self.attempt.format.pending_id
        if find is None or self.scan is None or not self.attempt.call.params.is_deferred:
            return None
        return find(self.scan)

    def stop(self) -> None:
        """Discards the answer and aborts its connection."""
        self._is_behind, self._late_end, self._pieces = False, None, None
        if self._turn is not None:
            self._turn.cancel()
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    def break_off(self, error: GatewayError) -> None:
        """A rider ends the call with this error. The upstream is not to blame, and no other one is tried."""
        self.error = self.error or error
        self.stop()
        self._finish(None)

    def end_event(self) -> None:
        """Half an event may have gone to the client; what comes next has to be read as one of its own."""
        writer = self._client.writer
        if writer is not None and self.scan is not None and self.scan.is_inside_event:
            writer.write(b"\n\n")

    def interrupt(self, event: bytes) -> None:
        """The last that the client gets of a stream that the gateway ends."""
        if self._client.writer is not None:
            self._client.writer.write_last(event)

    def forget_client(self) -> None:
        """The client has left: discard further bytes without back-pressure."""
        self._client = ClientStream(no_client, tuple, keepalive_s=0, hold=self._client.hold)
        if self._is_held_back:
            self._resume()

    @property
    def is_unopened(self) -> bool:
        """Whether the client has nothing yet, not even a comment."""
        return self._client.writer is None

    def open(self) -> StreamWriter:
        """The client's side of the stream, opened at the first need."""
        writer = self._client.writer
        if writer is None:
            assert self.head is not None
            writer = self._client.open(response_headers(self.head, self.attempt.format))
        return writer

    def _set_decoder(self, head: Head) -> bool:
        """Prepare to decode an answer that is encoded although identity was asked for. False: it cannot be decoded."""
        try:
            names = ",".join([value for name, value in head.headers if name == "content-encoding"])
            if (decoder := decoder_of(names)) is not None:
                self._decoder = decoder
        except EncodingFault as fault:
            if head.status == 200:  # of an error, the status suffices
                self._give_up(Fault.ENCODING, str(fault))
                return False
        return True

    def _take_later(self, data: bytes) -> None:
        self._untaken.append(data)
        if not self._is_behind:
            self._take_on()

    def _take_on(self) -> None:
        """Take what has come, as much of it as one turn is to take: one piece of the network may hold 64 MB, or
        thousands of events."""
        self._turn, self._is_behind = None, False
        pieces, self._pieces = self._pieces or self._untaken_pieces(), None
        is_held_up, since, until = False, 0, time.monotonic() + TURN_S
        try:
            while not (self.is_over or is_held_up) and (piece := next(pieces, b"")):
                self._take(piece)
                since += len(piece)
                is_held_up = since >= TAKEN_AT_ONCE or self._is_held_back or time.monotonic() > until
        except EncodingFault as fault:
            if self.head is not None and self.head.status == 200:
                self._give_up(Fault.ENCODING, str(fault))
            else:
                self.stop()
                self._finish(None)
        if is_held_up and not self.is_over:
            self._pieces = pieces
            self._wait_for_turn()
        else:
            self._untaken.clear()
            self._read_on()

    def _untaken_pieces(self) -> Iterator[bytes]:
        """It refers to this exchange, which must not keep it: else a whole answer waits for the garbage collector."""
        while self._untaken:
            data = self._untaken.popleft()
            for whole in (data,) if self._decoder is None else self._decoder.decode(data):
                at = 0
                while at < len(whole):
                    size = PLAIN_PIECE if self.scan is None else EVENTS_PIECE
                    yield whole[at : at + size]
                    at += size

    def _take(self, piece: bytes) -> None:
        if self._decoder is not None:
            self._decoded_bytes += len(piece)
            self._decoded(piece)
        if self.scan is None:
            self._collect(piece)
        elif self._decoded_bytes > self.attempt.max_response_bytes:
            self._refuse_length()
        else:
            self._scan(self.scan, piece)

    def _wait_for_turn(self) -> None:
        self._is_behind = True
        if self.connection is not None:
            self.connection.pause_reading(by_client=self._is_held_back)
        if not self._is_held_back and self._turn is None:
            self._turn = self._loop.call_soon(self._take_on)

    def _read_on(self) -> None:
        """All that has come is taken."""
        if self.connection is not None and not self._is_held_back:
            self.connection.resume_reading()
        if self._late_end is not None:
            (failure,), self._late_end = self._late_end, None
            self._ended(failure)

    def _decoded(self, data: bytes) -> None:
        """The next bytes of an encoded answer, decoded."""

    def _collect(self, data: bytes) -> None:
        if not self.body:
            self.attempt.log.note_first_byte()
        if self._is_unsure or self._may_gather:
            self._undecided_bytes += len(data)
            data = bytes(self.body) + data
            self.body.clear()
            begins = False if data[:1] == b"{" else sse.begins_stream(data)
            if begins is None:
                self.body += data if len(data) <= KEPT_SPACE else sse.without_space(data)
                if self._undecided_bytes > self.attempt.max_response_bytes:
                    self._refuse_length()
                return
            is_unsure, self._is_unsure, self._may_gather = self._is_unsure, False, False
            if begins and is_unsure:
                self._take_for_stream(data)
                return
            if begins:
                self._begin_gathering()
        if not self.body and data.startswith(sse.MARK):
            data = sse.without_mark(data)
        self.body += data
        if self.gathered is not None:
            self.gathered.feed(data)
        elif self.facts_reader is not None:
            self.facts_reader.feed(data)
        elif len(self.body) > LONG_ANSWER:
            self._begin_reading()
        self._is_held_back = not self._client.hold(len(data), self._resume)
        if len(self.body) > self.attempt.max_response_bytes:
            self._refuse_length()

    def _begin_reading(self) -> None:
        """The answer is too long to be read at its end."""
        self.is_long = True
        if (make_reader := self.attempt.format.long_reader) is not None:
            self.facts_reader = make_reader()
            self.facts_reader.feed(bytes(self.body))

    def _begin_gathering(self) -> None:
        """The answer is a stream by its first bytes, in the place of a plain one."""
        make_scan = FORMATS[self.attempt.call.endpoint].scan
        assert make_scan is not None
        self.gathered, self.facts_reader = self._scan_by(make_scan), None

    def _refuse_length(self) -> None:
        self._give_up(Fault.TOO_LARGE, f"more than {self.attempt.max_response_bytes} bytes")

    def _take_for_stream(self, data: bytes) -> None:
        """The answer is a stream by its first bytes, whatever its head calls it."""
        self._is_unsure, self.facts_reader = False, None
        self._relabel("text/event-stream")
        self._begin_scan()
        assert self.scan is not None
        self._scan(self.scan, data)

    def _take_for_plain(self, data: bytes) -> None:
        """The answer is plain JSON by its first bytes, although its head calls it a stream."""
        self._is_unsure, self.scan = False, None
        self._relabel("application/json")
        make_reader = self.attempt.format.facts_reader
        self.facts_reader = None if make_reader is None else make_reader()
        self._collect(data)

    def _relabel(self, content_type: str) -> None:
        """Give the head this type in place of its own, which is wrong."""
        assert self.head is not None
        others = [each for each in self.head.headers if each[0] != "content-type"]
        self.head = Head(self.head.status, (*others, ("content-type", content_type)))

    def _scan(self, scan: Scan, data: bytes) -> None:
        if self._is_unsure:
            if sse.begins_stream(data) is False:
                self._take_for_plain(data)
                return
            self._is_unsure = False
        try:
            passed, is_over = scan.feed(data)
        except Unfit as unfit:
            self._give_up(Fault.UNFIT, str(unfit))
            return
        for rider in self.attempt.riders:
            if (binding := rider.event(scan)) is not None:
                self._binding = binding
                binding.add_done_callback(lambda _: self._flush())
        if passed:
            self._pass_on(passed)
        self._look_for_life(scan, passed)
        if is_over:
            self._finish(None)

    def _flush(self) -> None:
        if self._unbound:
            self._pass_on(b"")

    def _pass_on(self, data: bytes) -> None:
        if self._binding is not None and not self._binding.done():
            self._unbound += data
            return
        if self._unbound:
            data = bytes(self._unbound) + data
            self._unbound.clear()
        client = self._client
        writer = client.writer
        if writer is None or not self.has_passed:
            writer = self.open()
            self.has_passed = True
        if writer.write(data):
            self._hold_back(writer)
        client.spoke_at = self._clock()

    def _hold_back(self, writer: StreamWriter) -> None:
        """Read no more of the answer until the client has taken what was written."""
        if not self._is_held_back and self.connection is not None:
            self._is_held_back = True
            self.connection.pause_reading()
            self.attempt.tasks.spawn(self._resume_when_writable(writer), "back-pressure")

    def _look_for_life(self, scan: Scan, passed: bytes) -> None:
        """Comments keep a connection open; they are no sign that an answer is being generated.

        Neither are events that are left out. Half an event is one.
        """
        if passed and scan.is_sign_of_life(passed):
            self._alive_at = self._client.spoke_at
            self.attempt.log.note_first_byte()
            self.attempt.answered()
            return
        idle_s = self.attempt.upstream.timeouts.idle_s
        if self._clock() - self._alive_at > idle_s and (passed or scan.is_between_events):
            self._give_up(Fault.TIMEOUT, f"nothing but comments for {idle_s:g} s")

    async def _resume_when_writable(self, writer: StreamWriter) -> None:
        try:
            await writer.wait_until_writable()
        except ConnectionError:
            return  # the client is gone; the task with this exchange is being cancelled
        self._resume()

    def _resume(self) -> None:
        self._is_held_back = False
        self._alive_at = self._clock()
        if self._is_behind:
            self._wait_for_turn()
        elif self.connection is not None:
            self.connection.resume_reading()

    def _give_up(self, fault: Fault, detail: str) -> None:
        self.stop()
        self._finish(self.failure(fault, detail))

    def _finish(self, failure: Failure | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.problem = failure
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(failure)

    def failure(self, fault: Fault, detail: str = "") -> Failure:
        """A failure of this attempt, after it was sent."""
        return Failure(self.attempt.route.upstream, Phase.WAITING, fault, detail, has_begun=True)


class ReadExchange(Exchange):
    """Hands the bytes of a good answer to the readers of its attempt, too."""

    def body_received(self, data: bytes) -> None:
        if self._decoder is None:
            self._decoded(data)
        super().body_received(data)

    def _decoded(self, data: bytes) -> None:
        if self.head is not None and self.head.status in self.attempt.format.good_statuses and not self.is_over:
            for read in self.attempt.readers:
                read(data)


def response_headers(head: Head, spec: Format) -> tuple[tuple[str, str], ...]:
    """The headers of an upstream's answer that go to the client."""
    down = _down()
    return tuple([(name, value) for name, value in head.headers if name in down or name in spec.response_headers])


@cache
def _down() -> frozenset[str]:
    """The headers that a client sees in each format."""
    return frozenset(_DOWN).union(*[each.shown for each in provider_errors.of_wings()])


class _AbsentClient:
    """Reads for a client that has left."""

    is_congested = False

    def write(self, data: bytes) -> bool:
        return False

    def write_last(self, data: bytes) -> None:
        pass

    async def wait_until_writable(self) -> None:
        pass


def no_client(headers: Headers) -> StreamWriter:
    """The client side of an answer that no client reads."""
    return _AbsentClient()


# --------------------------------------------------------------------------------------------------- plain answers

_HTML = re.compile(rb"\s*<(?:!doctype|html)\b", re.IGNORECASE)
"""A page of something in front of the upstream."""


class PlainAnswer(NamedTuple):
    """The charge of a plain answer, and its model; `problem`: why it is no answer for the client."""

    charged: charge.Charge
    model: str | None = None
    problem: Failure | UpstreamRefused | None = None
    facts: PlainFacts = PlainFacts()
    has_output: bool = True


def _facts_or_none(body: bytes, facts: Callable[[bytes], PlainFacts]) -> PlainFacts | None:
    try:
        return facts(body)
    except ValueError:
        return None


def read_whole(exchange: Exchange, body: bytes, failure: Failure | None) -> PlainAnswer:
    """Read the answer to a plain call, as `read_plain`. One that came as a stream is charged as that."""
    read = read_plain(exchange, body, failure)
    return read if exchange.gathered is None else read._replace(charged=exchange.charge_stream(failure))


def read_plain(exchange: Exchange, body: bytes, failure: Failure | None) -> PlainAnswer:
    """Read a plain answer that has ended with this body, and with this failure if it has one."""
    this = exchange.attempt
    sent, head = this.sent, exchange.head
    if failure is not None:
        shown = body if head is not None and head.status == 200 else b""
        return PlainAnswer(charge.of_broken(sent, charge.ending_of(failure), shown), None, failure)
    assert head is not None
    if head.status not in this.format.good_statuses:
        judged = provider_errors.judge(this.route.upstream, head, body, now=time.time(), hide=this.hidden)
        return PlainAnswer(charge.of_broken(sent, _ending_of(judged)), None, judged)
    try:
        if exchange.is_unreadable:
            raise ValueError("no JSON")
        if exchange.facts is not None:
            answer = exchange.facts
        elif exchange.facts_reader is not None:
            answer = exchange.facts_reader.facts()
        elif this.format.is_text is not None and _is_text(this, body):
            answer = _facts_of_text(body)
        else:
            answer = this.format.facts(body)
    except ValueError:  # ValidationError is one
        failure = exchange.failure(Fault.NOT_JSON, f"content-type {head.get('content-type')}"[:200])
        return PlainAnswer(charge.of_broken(sent, charge.ending_of(failure), body), None, failure)
    model = answer.model
    if this.format.tier_header:
        answer = answer._replace(usage=exchange.as_served(answer.usage))
    if answer.is_error and (error := answer.error or error_shapes.in_place_of_an_answer(body)) is not None:
        in_band = provider_errors.judge_in_band(this.route.upstream, error, head, hide=this.hidden)
        if answer.has_usage or answer.has_output:
            charged = charge.of_plain(sent, answer.usage, body, model, charge.Ending.ERROR, exchange.text)
        else:
            charged = charge.of_broken(sent, _ending_of(in_band))
        return PlainAnswer(charged, model, in_band)
    # One without the output and without a report is of another kind: xAI's `deferred` makes the completion later
    # (docs.x.ai, "Deferred Chat Completions").
    is_whole = answer.has_output or answer.usage is not None or answer.is_error or not sent.reserved_output
    ending = charge.Ending.WHOLE if is_whole else charge.Ending.BROKEN
    charged = charge.of_plain(sent, answer.usage, body, model, ending, exchange.text)
    return PlainAnswer(charged, model, None, answer, answer.has_output)


def _put_together(
    stream: bytes, gather: Callable[[bytes], bytes | None], read: Callable[[bytes], PlainFacts]
) -> tuple[bytes, PlainFacts] | None:
    body = gather(stream)
    return None if body is None else (body, read(body))


def pending_id_of(this: Attempt, facts: PlainFacts) -> str | None:
    """The id of a plain answer that is still being made, without this connection."""
    return facts.kept_id if facts.is_pending and this.call.params.is_deferred else None


def _is_text(this: Attempt, body: bytes) -> bool:
    """Whether an answer is the text that was asked for, and no JSON."""
    is_asked = this.format.is_text is not None and this.format.is_text(this.call.params)
    return is_asked and body.lstrip()[:1] != b"{"


def _facts_of_text(body: bytes) -> PlainFacts:
    """Raises `ValueError` for a page in place of a text."""
    if _HTML.match(body) is not None:
        raise ValueError("a page in HTML")
    return PlainFacts(has_output=True)


def _ending_of(judged: Failure | UpstreamRefused) -> charge.Ending:
    return charge.Ending.REFUSED if isinstance(judged, UpstreamRefused) else charge.ending_of(judged)
