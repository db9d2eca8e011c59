"""Health checks: each worker sends `GET /models` to an upstream at an interval, so that no call has to be the probe.

1. A health check tests the upstream as a whole: any answer below 500 proves that it can be reached.
2. Its result counts as that of a call, except that one success closes the circuit at once.
3. It uses no tokens at any provider.
"""

from __future__ import annotations

import asyncio

from gateway.records import Failure, Fault, Phase

from . import circuit_breaker
from .circuit_breaker import CircuitEvent
from .connection import Head
from .health import Health
from .pool import Pool

MAX_TIMEOUT_S = 10.0
"""Limit of the timeout of a health check; `head_s`, the timeout of a call, may be much longer."""


class _ProbeReceiver:
    """Receives an answer and keeps its status."""

    def __init__(self) -> None:
        self.result: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        self.is_over = False
        """A field of its own, because the cancellation of the waiting task cancels `result` as well."""
        self._status = 0

    def head_received(self, head: Head) -> None:
        self._status = head.status

    def body_received(self, data: bytes) -> None:
        pass

    def ended(self, failure: Failure | None) -> None:
        if failure is None and self._status >= 500:
            failure = Failure("", Phase.REFUSED, Fault.STATUS, "", self._status)
        self.is_over = True
        if not self.result.done():
            self.result.set_result(failure)


async def run_health_checks(pool: Pool, health: Health, every_s: float, within_s: float) -> None:
    """Check at this interval until cancelled. A check without an answer within `within_s` has failed."""
    while True:
        began = health.clock()
        failure = await _check(pool, min(within_s, MAX_TIMEOUT_S))
        event = circuit_breaker.event_of(failure)
        health.health_checked(CircuitEvent.PROBE_OK if event is CircuitEvent.SUCCESS else event, began)
        await asyncio.sleep(max(0.0, began + every_s - health.clock()))


async def _check(pool: Pool, within_s: float) -> Failure | None:
    connection = None
    receiver = _ProbeReceiver()
    try:
        async with asyncio.timeout(within_s):
            got = await pool.acquire()
            if isinstance(got, Failure):
                return got
            connection = got
            connection.send(pool.request("/models", [], b"", method="GET"), receiver)
            return await receiver.result
    except TimeoutError:
        return Failure("", Phase.WAITING, Fault.TIMEOUT, "")
    finally:
        if connection is not None and not receiver.is_over:
            connection.abort()
