"""Bytes from upstream to client: one attempt.

`Exchange` receives an answer in the reading callback itself. A stream is scanned and written on in that same callback,
with nothing queued between; everything else is collected. The coroutine `attempt` only waits for what has to be
decided: the call is accounted for once, *before* the last event of a stream or the body of a plain answer leaves,
because clients close there.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from .config import Route, Upstream
from .errors import GatewayError, UpstreamFailed, UpstreamRefused
from .lease import Lease
from .outlet import Client, Outlet
from .records import Call, Failure, Fault, Phase, Usage
from .rules import sse, usage
from .rules.stream import StreamScan, as_event
from .tasks import Tasks
from .upstream import quirks
from .upstream.connection import Connection, Head
from .upstream.pool import Pool

LEFT_TO_END_S = 1.0
"""After `[DONE]`, how long the upstream may take to end its message before its connection is given up."""

_DOWN = ("content-type", "openai-processing-ms", "openai-version")
"""Headers of an upstream's answer that a client sees."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, ready to be sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Streamed:
    """The answer has been sent; `last` are the bytes that end it, an error event where there was a `fault`."""

    last: bytes
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt needs to know."""

    call: Call
    route: Route
    pool: Pool
    upstream: Upstream
    request: list[bytes]
    max_response_bytes: int

    @property
    def hidden(self) -> tuple[tuple[str, str], ...]:
        """Texts of ours that no client may see, each with its stand-in."""
        own_name = self.route.model
        return self.pool.hidden if own_name is None else (*self.pool.hidden, (own_name, self.call.params.model))


class _Body(BaseModel):
    """What matters of a plain answer. Validated from the bytes: what is not named here is never built."""

    model: Any = None
    usage: Any = None
    error: Any = None


class Exchange:
    """Receives one answer. Private to `attempt`."""

    def __init__(self, attempt: Attempt, outlet: Outlet, lease: Lease, tasks: Tasks) -> None:
        loop = asyncio.get_running_loop()
        self.head: Head | None = None
        self.body = bytearray()
        self.scan: StreamScan | None = None
        self.has_passed = False
        """Whether anything of this answer has gone to the client."""
        self.is_over = False
        """Nothing more may be passed on: the answer has ended, failed, or said `[DONE]` or an error."""
        self.trouble: Failure | None = None
        """Why it is over, where it failed."""
        self.is_ended = False
        self.connection: Connection | None = None
        self._attempt = attempt
        self._outlet = outlet
        self._lease = lease
        self._tasks = tasks
        self._clock = loop.time
        self._waiter: asyncio.Future[None] | None = None
        self._is_held_back = False
        self._alive_at = 0.0
        """When something other than a comment came last, on the loop's clock."""

    async def wait_until_over(self) -> Failure | None:
        """`trouble`, as soon as `is_over`. May be cancelled, and waited for again by somebody else."""
        if not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.trouble

    @property
    def may_be_interrupted(self) -> bool:
        """Whether a comment may go to the client now."""
        is_inside_event = self.scan is not None and self.scan.is_inside_event
        return not (is_inside_event or self._is_held_back or self.is_over)

    def head_received(self, head: Head) -> None:
        self.head = head
        self._alive_at = self._clock()
        coding = (head.get("content-encoding") or "identity").lower()
        if head.status == 200 and coding != "identity":
            # We asked for identity, and so did not promise the client that it can read anything else.
            self._give_up(Fault.NOT_JSON, f"content-encoding {coding}"[:200])
            return
        is_events = (head.get("content-type") or "").lower().startswith("text/event-stream")
        if head.status == 200 and is_events and self._attempt.call.params.stream:
            params = self._attempt.call.params
            self.scan = StreamScan(choices=params.choices, shows_usage=params.include_usage)
            return
        announced = head.get("content-length") or ""
        if announced.isdecimal() and int(announced) > self._attempt.max_response_bytes:
            self._refuse_length()

    def body_received(self, data: bytes) -> None:
        scan = self.scan
        if scan is None:
            self._collect(data)
        elif scan.is_at_start and scan.is_alike(data):  # as nearly all is
            self._pass_on(data)
            self._alive_at = self._outlet.spoke_at
        else:
            self._scan(scan, data)

    def ended(self, failure: Failure | None) -> None:
        self.is_ended = True
        self.connection = None
        self._finish(failure)

    def pass_rest(self) -> None:
        """The upstream ended its stream: pass on what it left without a blank line."""
        if self.scan is not None and (rest := self.scan.finish()):
            self._pass_on(rest)
            self._look_for_life(self.scan, rest)

    def stop(self) -> None:
        """Nobody wants the answer any more."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    def open(self) -> Client:
        """The client's side of the stream, opened at the first need."""
        assert self.head is not None
        return self._outlet.open(_down(self.head))

    def _collect(self, data: bytes) -> None:
        if not self.body:
            self._lease.note_first_byte()
        self.body += data
        if len(self.body) > self._attempt.max_response_bytes:
            self._refuse_length()

    def _refuse_length(self) -> None:
        self._give_up(Fault.TOO_LARGE, f"more than {self._attempt.max_response_bytes} bytes")

    def _scan(self, scan: StreamScan, data: bytes) -> None:
        passed, is_over = scan.feed(data)
        if passed:
            self._pass_on(passed)
        self._look_for_life(scan, passed)
        if is_over:
            self._finish(None)

    def _pass_on(self, data: bytes) -> None:
        outlet = self._outlet
        client = outlet.client
        if client is None or not self.has_passed:
            client = self.open()
            self.has_passed = True
        is_congested = client.write(data)
        outlet.spoke_at = self._clock()
        if is_congested and not self._is_held_back and self.connection is not None:
            self._is_held_back = True
            self.connection.pause_reading()
            self._tasks.spawn(self._let_go_when_writable(client), "back-pressure")

    def _look_for_life(self, scan: StreamScan, passed: bytes) -> None:
        """Comments keep a connection open; that somebody is writing an answer they do not show.

        Neither do events that are left out. Half an event does.
        """
        if passed and not (passed.startswith(b":") and sse.is_comment(passed)):
            self._alive_at = self._outlet.spoke_at
            self._lease.note_first_byte()
            return
        idle_s = self._attempt.upstream.timeouts.idle_s
        if self._clock() - self._alive_at > idle_s and (passed or scan.is_between_events):
            self._give_up(Fault.TIMEOUT, f"nothing but comments for {idle_s:g} s")

    async def _let_go_when_writable(self, client: Client) -> None:
        try:
            await client.wait_until_writable()
        except ConnectionError:
            return  # the client is gone; whoever holds this exchange is being cancelled
        self._is_held_back = False
        self._alive_at = self._clock()
        if self.connection is not None:
            self.connection.resume_reading()

    def _give_up(self, fault: Fault, detail: str) -> None:
        self.stop()
        self._finish(self.failure(fault, detail))

    def _finish(self, failure: Failure | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.trouble = failure
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def failure(self, fault: Fault, detail: str = "") -> Failure:
        """A failure of this attempt, after it was sent."""
        return Failure(self._attempt.route.upstream, Phase.WAITING, fault, detail)


async def attempt(
    this: Attempt, lease: Lease, outlet: Outlet, tasks: Tasks, *, is_fresh: bool = False
) -> Answer | Streamed | Failure:
    """Try one route once. Expected trouble is returned as a `Failure`; then nothing of it has reached the client.

    Raises `UpstreamRefused` when the client has to change its request. Cancelled (the client is gone): a stream is
    stopped and charged for what was delivered; a plain answer is waited for by a background task, for its usage.
    """
    began = time.perf_counter()
    connection = await this.pool.acquire(is_fresh=is_fresh)
    if isinstance(connection, Failure):
        lease.upstream_s += time.perf_counter() - began
        return connection
    exchange = outlet.speaker = Exchange(this, outlet, lease, tasks)
    exchange.connection = connection
    try:
        connection.send(this.request, exchange)
        failure = await exchange.wait_until_over()
        lease.upstream_s += time.perf_counter() - began
        if exchange.scan is not None:
            return await _finish_stream(this, exchange, lease, tasks, failure)
        return await _finish_plain(this, exchange, lease, outlet, failure)
    except asyncio.CancelledError:
        if not exchange.is_over:
            lease.upstream_s += time.perf_counter() - began
        _client_left(this, exchange, lease, tasks)
        raise
    except BaseException:
        exchange.stop()
        raise
    finally:
        outlet.speaker = None


# ---------------------------------------------------------------------------------------------------------- streams


async def _finish_stream(
    this: Attempt, exchange: Exchange, lease: Lease, tasks: Tasks, failure: Failure | None
) -> Streamed | Failure:
    scan = exchange.scan
    assert scan is not None
    if exchange.is_ended and failure is None:
        exchange.pass_rest()
    if not exchange.has_passed and scan.error is None and not scan.is_complete:
        # Not one byte has left: this may still become a true status, or another route.
        exchange.stop()
        return failure or exchange.failure(Fault.CUT, "a stream without an event")
    if exchange.connection is not None:
        tasks.spawn(_await_end(exchange), "end-of-stream")
    tokens = scan.usage or scan.estimate(this.call.params.prompt_tokens)
    if scan.error is None and scan.is_complete and not scan.is_inside_event:
        # Without `[DONE]` the answer ends without: both SDKs take that, and an invented one would be a lie.
        lease.close(status=200, usage=tokens, ended="done", returned_model=scan.model)
        await lease.acknowledged()
        exchange.open()
        return Streamed(sse.DONE if scan.is_done else b"")
    trouble = _stream_trouble(this, scan, failure)
    error = trouble if isinstance(trouble, UpstreamRefused) else UpstreamFailed.after(trouble)
    lease.close(status=error.status, usage=tokens, ended="error", is_truncated=True, returned_model=scan.model)
    await lease.acknowledged()
    exchange.open()
    end_of_event = b"\n\n" if scan.is_inside_event else b""
    return Streamed(
        end_of_event + sse.write_event(error.body()), trouble.fault if isinstance(trouble, Failure) else Fault.IN_BAND
    )


def _stream_trouble(this: Attempt, scan: StreamScan, failure: Failure | None) -> Failure | UpstreamRefused:
    """Why a stream ends with an error event instead of `[DONE]`."""
    if scan.error is not None:
        return quirks.judge_in_band(this.route.upstream, scan.error, hide=this.hidden)
    if failure is not None:
        return replace(failure, phase=Phase.RELAYING)
    return Failure(this.route.upstream, Phase.RELAYING, Fault.CUT, "ended without every finish_reason")


async def _await_end(exchange: Exchange) -> None:
    """`[DONE]` has come; let the upstream end its message, so that its connection can be used again."""
    try:
        await asyncio.sleep(LEFT_TO_END_S)
    finally:
        exchange.stop()


# ----------------------------------------------------------------------------------------------------- plain answers


async def _finish_plain(
    this: Attempt, exchange: Exchange, lease: Lease, outlet: Outlet, failure: Failure | None
) -> Answer | Streamed | Failure:
    read = _read_plain(this, exchange, failure)
    if isinstance(read, Failure):
        return read
    tokens, model = read
    lease.close(status=200, usage=tokens, ended="done", returned_model=model)
    await lease.acknowledged()
    if outlet.client is not None:  # by a comment: the client has been promised events
        return Streamed(as_event(bytes(exchange.body), shows_usage=this.call.params.include_usage))
    assert exchange.head is not None
    headers = _down(exchange.head)
    if exchange.head.get("content-type") is None:
        headers = (*headers, ("content-type", "application/json"))  # it is, and clients look
    return Answer(200, headers, bytes(exchange.body))


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _read_plain(this: Attempt, exchange: Exchange, failure: Failure | None) -> tuple[Usage, str | None] | Failure:
    """What a plain answer used, and of which model. Raises `UpstreamRefused`."""
    if failure is not None:
        return failure
    head, body = exchange.head, bytes(exchange.body)
    assert head is not None
    if head.status != 200:
        judged = quirks.judge(this.route.upstream, head, body, now=time.time(), hide=this.hidden)
        if isinstance(judged, UpstreamRefused):
            raise judged
        return judged
    try:
        answer = _Body.model_validate_json(body)
        if b"NaN" in body or b"Infinity" in body:
            # Pydantic takes these for numbers; JSON has no such thing, and most clients stumble over them.
            json.loads(body, parse_constant=_refuse_constant)
    except ValueError:  # ValidationError is one
        return exchange.failure(Fault.NOT_JSON, f"content-type {head.get('content-type')}"[:200])
    if answer.error and (error := quirks.error_of(body)) is not None:
        in_band = quirks.judge_in_band(this.route.upstream, error, hide=this.hidden)
        if isinstance(in_band, UpstreamRefused):
            raise in_band
        return in_band
    tokens = usage.reported(answer.usage) or usage.estimated(this.call.params.prompt_tokens, usage.text_bytes(body))
    return tokens, answer.model if isinstance(answer.model, str) else None


# ------------------------------------------------------------------------------------------------------ client gone


def _client_left(this: Attempt, exchange: Exchange, lease: Lease, tasks: Tasks) -> None:
    """The client left. Not an error: nothing is held against the upstream, and the call is charged for what it cost."""
    if not lease.is_open:
        exchange.stop()
        return
    if not this.call.params.stream:
        lease.hand_over()
        tasks.spawn(_drain(this, exchange, lease), "drain")
        return
    exchange.stop()
    scan = exchange.scan
    if scan is None:
        tokens = usage.estimated(this.call.params.prompt_tokens, 0)
    else:
        tokens = scan.usage or scan.estimate(this.call.params.prompt_tokens)
    model = scan.model if scan is not None else None
    lease.close(status=499, usage=tokens, ended="client_gone", is_truncated=True, returned_model=model)


async def _drain(this: Attempt, exchange: Exchange, lease: Lease) -> None:
    """Wait for a plain answer that nobody reads any more: it was paid for, so its usage counts.

    Bounded by the time limits of the connection itself.
    """
    tokens = usage.estimated(this.call.params.prompt_tokens, 0)
    model: str | None = None
    try:
        read = _read_plain(this, exchange, await exchange.wait_until_over())
        if isinstance(read, Failure):
            tokens = Usage() if read.phase is not Phase.WAITING else tokens
        else:
            tokens, model = read
    except GatewayError:
        tokens = Usage()
    finally:
        exchange.stop()
        lease.close(status=499, usage=tokens, ended="client_gone", returned_model=model)


def _down(head: Head) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in head.headers if name in _DOWN)
