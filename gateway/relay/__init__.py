"""One attempt: bytes from the upstream to the client.

An `Exchange` receives the answer; the coroutine `attempt` waits for the decisions. The call is settled once, *before*
the last event of a stream or the body of a plain answer is written, because clients close there. relay/disconnect.py
has what happens after the client left, relay/charge.py what an attempt costs.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from gateway.errors import GatewayError, StreamInterrupted, UpstreamFailed, UpstreamRefused
from gateway.formats.events import Unfit
from gateway.formats.format import Scan
from gateway.formats.reader import ERRORS
from gateway.records import Failure, Fault, Phase, Usage
from gateway.tasks import is_cut_off
from gateway.upstream import provider_errors, refusal
from gateway.upstream.ask import cleaned_body

from . import charge
from .attempt import Answer, Attempt, Streamed
from .disconnect import client_left, end_at_once, let_end
from .exchange import Exchange, ReadExchange, pending_id_of, read_whole, response_headers


async def attempt(this: Attempt, *, is_fresh: bool = False) -> Answer | Streamed | Failure:
    """Try one route once. An expected problem is returned as a `Failure`; then nothing of it has reached the client.

    Raises `UpstreamRefused` when the client has to change its request. Cancelled (the client is gone, or the gateway
    ends): the call is charged for what it has cost so far, or a background task reads on for that.
    """
    log, began = this.log, time.perf_counter()
    connection = await this.pool.acquire(is_fresh=is_fresh)
    if isinstance(connection, Failure):
        log.note_upstream_wait(time.perf_counter() - began)
        return connection
    exchange = this.client.speaker = (ReadExchange if this.readers else Exchange)(this)
    exchange.connection = connection
    try:
        connection.send(this.sent.pieces, exchange, None if this.upload is None else this.upload.open())
        failure = await exchange.wait_until_over()
        log.note_upstream_wait(time.perf_counter() - began)
        if exchange.scan is not None:
            return await _finish_stream(exchange, failure)
        return await _finish_plain(exchange, failure)
    except asyncio.CancelledError as cancelled:
        if not exchange.is_over:
            log.note_upstream_wait(time.perf_counter() - began)
        if is_cut_off(cancelled):
            end_at_once(exchange)
        else:
            client_left(exchange)
        raise
    except BaseException as error:
        exchange.stop()
        if not isinstance(error, GatewayError):  # an error of the gateway: what the upstream did is not known
            log.add_cost(charge.of_broken(this.sent, charge.Ending.BROKEN))
        raise
    finally:
        this.client.speaker = None


# ---------------------------------------------------------------------------------------------------------- streams


async def _finish_stream(exchange: Exchange, failure: Failure | None) -> Streamed | Failure:
    this, scan = exchange.attempt, exchange.scan
    log = this.log
    assert scan is not None
    if exchange.is_ended and failure is None:
        exchange.pass_rest()
        failure = exchange.problem
    await exchange.until_bound()
    if exchange.error is not None:
        raise _broken_off(exchange, scan, exchange.error)
    if not exchange.has_passed and scan.error is None and not scan.is_complete:
        # Not one byte has left: this may still become a true status, or another route.
        exchange.stop()
        failure = failure or exchange.failure(Fault.CUT, "a stream without an event")
        log.add_cost(exchange.charge_stream(failure))
        return failure
    let_end(exchange)
    if not exchange.has_passed and scan.error is not None:
        judged = _stream_problem(exchange, scan, failure)
        if isinstance(judged, Failure):
            log.add_cost(exchange.charge_stream())
            return replace(judged, has_begun=True)  # another route may still do better
        if this.format.error_keeps_status and exchange.is_unopened:
            log.add_cost(exchange.charge_stream())
            raise this.format.reword(judged) if this.format.reword else judged
    charged = exchange.charge_stream(failure)
    log.doubt(charged.doubts)
    tokens = charged.usage
    if scan.error is None and scan.is_complete and not scan.is_inside_event:
        last = scan.last(tokens)
        for rider in this.riders:
            rider.ending(tokens, last)
        if exchange.error is not None:
            raise _broken_off(exchange, scan, exchange.error)
        log.close(status=200, usage=tokens, ended="done", returned_model=scan.model)
        for rider in this.riders:
            await rider.streamed(scan, tokens)
        await log.acknowledged()
        exchange.open()
        return Streamed(last)
    return await _finish_broken(exchange, scan, failure, tokens)


async def _finish_broken(exchange: Exchange, scan: Scan, failure: Failure | None, tokens: Usage) -> Streamed:
    """A stream that has ended before its answer, or with an error."""
    this, log = exchange.attempt, exchange.attempt.log
    problem = _stream_problem(exchange, scan, failure)
    error: GatewayError
    if isinstance(problem, UpstreamRefused):
        error = this.format.reword(problem) if this.format.reword else problem
    else:
        error = UpstreamFailed.after(problem, passed=this.format.passed_statuses)
    if (pending_id := exchange.pending_id) is not None and this.leave(pending_id):
        error = StreamInterrupted(pending_id)
    log.note_upstream_error(problem.detail)
    log.close(
        status=error.status, usage=tokens, ended="error", is_truncated=True, returned_model=scan.model, error=error.name
    )
    await log.acknowledged()
    exchange.open()
    end_of_event = b"\n\n" if scan.is_inside_event else b""
    event = this.format.error_event(error, scan, this.call.id)
    last = None if event is None else end_of_event + event
    if isinstance(problem, Failure):
        return Streamed(last, problem.fault, replace(problem, has_begun=True), problem.detail)
    return Streamed(last, Fault.IN_BAND, detail=problem.detail)


def _broken_off(exchange: Exchange, scan: Scan, error: GatewayError) -> GatewayError:
    """The error of a rider, which ends the stream that the client has so far. The part that has come is charged."""
    log = exchange.attempt.log
    log.add_cost(exchange.charge_stream())
    log.close(
        status=error.status, usage=Usage(), ended="error", is_truncated=exchange.has_passed, returned_model=scan.model,
        error=error.name,
    )  # fmt: skip
    if exchange.has_passed:
        exchange.end_event()
        error.scan = scan
    return error


def _stream_problem(exchange: Exchange, scan: Scan, failure: Failure | None) -> Failure | UpstreamRefused:
    """Why a stream ends with an error event instead of `[DONE]`."""
    this = exchange.attempt
    if scan.error is not None:
        return provider_errors.judge_in_band(this.route.upstream, scan.error, exchange.head, hide=this.hidden)
    if failure is not None:
        return replace(failure, phase=Phase.RELAYING)
    return Failure(this.route.upstream, Phase.RELAYING, Fault.CUT, "ended without every finish_reason")


# ----------------------------------------------------------------------------------------------------- plain answers


async def _finish_plain(exchange: Exchange, failure: Failure | None) -> Answer | Streamed | Failure:
    this = exchange.attempt
    log = this.log
    body = exchange.take_body()
    if failure is None and (exchange.is_long or exchange.gathered is not None):
        body = await exchange.prepared(body)
    read = read_whole(exchange, body, failure)
    if (problem := exchange.error or read.problem) is not None:
        log.add_cost(read.charged)
        if isinstance(problem, GatewayError):
            reword = this.format.reword
            raise reword(problem) if reword and isinstance(problem, UpstreamRefused) else problem
        return problem
    is_promised = this.call.params.stream and this.format.streams_only_events and not this.client.reads_plain
    needs_events = is_promised or this.client.writer is not None
    if needs_events or this.format.answer is not None:
        try:
            body = await _written_anew(this, body, read.charged.usage, as_events=needs_events)
        except Unfit as unfit:
            log.add_cost(read.charged)
            return exchange.failure(Fault.UNFIT, str(unfit))
        except GatewayError:
            log.add_cost(read.charged)
            raise
    if not read.has_output or b'"error"' in body:  # the reason in a good answer, or that of an item of its output
        body = await cleaned_body(body, this.hidden, ERRORS if read.has_output else refusal.REASONS)
    for rider in this.riders:
        if await rider.answered(read.facts, read.charged.usage):
            break
    else:
        log.doubt(read.charged.doubts)
        log.close(status=200, usage=read.charged.usage, ended="done", returned_model=read.model)
    await log.acknowledged()
    if needs_events:
        return _written_as_events(this, body, pending_id_of(this, read.facts))
    assert exchange.head is not None
    headers = response_headers(exchange.head, this.format)
    if "json" not in (exchange.head.get("content-type") or "") and body.lstrip()[:1] == b"{":
        # It is JSON, and clients look (openai-node, `defaultParseResponse`).
        headers = (*[each for each in headers if each[0] != "content-type"], ("content-type", "application/json"))
    return Answer(exchange.head.status, headers, body)


async def _written_anew(this: Attempt, body: bytes, charged: Usage, *, as_events: bool) -> bytes:
    """The answer as the client reads it. Raises `Unfit`, and `Unavailable`."""
    make = this.format.as_events if as_events else this.format.answer
    if make is None:
        raise Unfit("a plain answer where a stream was asked for")
    known = (this.call.params.include_usage,) if as_events else ()
    return await this.make(this.call.key.id, make, body, *known, charged)


def _written_as_events(this: Attempt, body: bytes, pending_id: str | None) -> Streamed:
    """The end of a stream whose events were made of a plain answer."""
    this.client.open((("content-type", "text/event-stream"),))
    if pending_id is not None:
        body += this.format.error_event(StreamInterrupted(pending_id), None, this.call.id) or b""
    return Streamed(body)
