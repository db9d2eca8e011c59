"""An attempt after its client left, or while the gateway ends: no fault of the upstream, and it is charged.

1. A plain answer is read on for its usage, within the time limits of its connection; a stream with `on_disconnect:
   drain` for at most `drain_limit_s`. Otherwise the connection to the upstream is closed, and relay/charge.py estimates
   the cost.
2. Reading on is a background task of the worker. It ends with the answer or with the worker; cancelling the call does
   not reach it. Until then it holds the reservation, with its slot of `max_parallel`.
"""

from __future__ import annotations

import asyncio
import time

from gateway.errors import StreamInterrupted
from gateway.records import Ended, Usage

from . import charge
from .exchange import Exchange, pending_id_of, read_whole

LEFT_TO_END_S = 1.0
"""Seconds after `[DONE]` in which the upstream may end its message before its connection is closed."""


def client_left(exchange: Exchange) -> None:
    """See to it that the call is accounted for, now or when the answer has ended."""
    this = exchange.attempt
    log = this.log
    exchange.forget_client()
    if exchange.is_sending:
        _stop_sending(exchange, 499, "client_gone")
    elif not log.is_open:
        exchange.stop()
    elif log.is_cut_off:
        exchange.stop()
        _close(exchange)
    elif not this.call.params.stream:
        _read_on(exchange, None)  # bounded by the time limits of the connection itself
    elif exchange.pending_id is not None:
        exchange.stop()
        _close(exchange)
    elif this.upstream.on_disconnect == "drain" or this.call.params.is_deferred:
        _read_on(exchange, this.upstream.drain_limit_s)
    else:
        exchange.stop()
        _close(exchange)


def end_at_once(exchange: Exchange) -> None:
    """The gateway ends. The client is still connected and gets an error."""
    this = exchange.attempt
    exchange.end_event()
    if exchange.is_sending:
        _stop_sending(exchange, 503, "error", "shutting_down")
        return
    exchange.stop()
    if this.log.is_open:
        if exchange.scan is not None and (pending_id := exchange.pending_id) is not None:
            event = this.format.error_event(StreamInterrupted(pending_id), exchange.scan, this.call.id)
            exchange.interrupt(event or b"")
        _close(exchange, 503, "error", "shutting_down")


def _stop_sending(exchange: Exchange, status: int, ended: Ended, error: str | None = None) -> None:
    """The upstream does not have the whole request, so nothing was generated for it."""
    exchange.stop()
    log = exchange.attempt.log
    if log.is_open:
        log.close(status=status, usage=Usage(), ended=ended, error=error)


def let_end(exchange: Exchange) -> None:
    """`[DONE]` has come: read the upstream's message to its end, so that its connection can be used again."""
    if exchange.connection is not None:
        exchange.attempt.tasks.spawn(_await_end(exchange), "end-of-stream")


async def _await_end(exchange: Exchange) -> None:
    try:
        await asyncio.sleep(LEFT_TO_END_S)
    finally:
        exchange.stop()


def _read_on(exchange: Exchange, limit_s: float | None) -> None:
    exchange.attempt.log.hand_over()
    draining = exchange.attempt.tasks.spawn(_drain(exchange, limit_s), "drain")
    draining.add_done_callback(lambda _: _close_unread(exchange))


def _close_unread(exchange: Exchange) -> None:
    """The drain task was cancelled before its first step, or an error of the gateway ended it."""
    log = exchange.attempt.log
    if log.is_open:
        exchange.stop()
        usage = charge.of_broken(exchange.attempt.sent, charge.Ending.BROKEN).usage
        log.close(status=499, usage=usage, ended="client_gone")


async def _drain(exchange: Exchange, limit_s: float | None) -> None:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(limit_s):
            failure = await exchange.wait_until_over()
            if exchange.is_long and failure is None:
                await exchange.read_aside(exchange.take_body())
    except TimeoutError:
        pass
    finally:
        if exchange.scan is not None and exchange.scan.is_done:
            let_end(exchange)
        else:
            exchange.stop()
        exchange.attempt.log.note_upstream_wait(time.perf_counter() - began)
        _close(exchange)


def _close(exchange: Exchange, status: int = 499, ended: Ended = "client_gone", error: str | None = None) -> None:
    this, scan = exchange.attempt, exchange.scan
    if scan is not None:
        if exchange.is_ended and exchange.problem is None:
            exchange.pass_rest()
        if this.leave(exchange.pending_id):
            return
        charged, model, is_truncated = exchange.charge_stream(), scan.model, not scan.is_complete
    else:
        charged, model, pending_id = _used(exchange)
        if this.leave(pending_id):
            return
        is_truncated = not exchange.is_over and this.call.params.stream
    this.log.doubt(charged.doubts)
    this.log.close(
        status=status, usage=charged.usage, ended=ended, is_truncated=is_truncated, returned_model=model, error=error
    )


def _used(exchange: Exchange) -> tuple[charge.Charge, str | None, str | None]:
    """Cost and model of an answer that is not a stream or has not begun, and its id if it is still being made."""
    if exchange.gathered is not None:
        return exchange.charge_stream(), exchange.gathered.model, None
    if not exchange.is_over:
        sent = exchange.attempt.sent
        charged = charge.of_broken(sent, charge.Ending.STOPPED, exchange.take_body(), elapsed_s=exchange.elapsed_s)
        return charged, None, None
    read = read_whole(exchange, exchange.take_body(), exchange.problem)
    return read.charged, read.model, pending_id_of(exchange.attempt, read.facts)
