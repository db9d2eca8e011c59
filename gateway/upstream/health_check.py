"""Active probes: each worker asks an upstream for its models now and then, so that no call has to find out.

A probe tells of the upstream as a whole: whether it can be reached and answers, be it with a refusal. What it finds
counts as a call would, but that one good answer closes the circuit at once. It costs no tokens anywhere.
"""

from __future__ import annotations

import asyncio

from gateway.records import Failure, Fault, Phase

from . import circuit_breaker
from .circuit_breaker import CircuitEvent
from .connection import Head
from .health import Health
from .pool import Pool

LONGEST_S = 10.0
"""An upstream that has not listed its models by then is not well, however patient its calls are."""


class _ProbeReceiver:
    """Receives an answer, of which only the status matters."""

    def __init__(self) -> None:
        self.over: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        self.is_over = False
        """`over` cannot tell: whoever waits for it and is cancelled takes it along."""
        self._status = 0

    def head_received(self, head: Head) -> None:
        self._status = head.status

    def body_received(self, data: bytes) -> None:
        pass

    def ended(self, failure: Failure | None) -> None:
        if failure is None and self._status >= 500:
            failure = Failure("", Phase.REFUSED, Fault.STATUS, "", self._status)
        self.is_over = True
        if not self.over.done():
            self.over.set_result(failure)


async def keep_probing(pool: Pool, health: Health, every_s: float, within_s: float) -> None:
    """Probe in this interval for ever. A probe that is not answered `within_s` has failed."""
    while True:
        began = health.clock()
        failure = await _probe(pool, min(within_s, LONGEST_S))
        event = circuit_breaker.verdict(failure)
        health.probed(CircuitEvent.PROVEN if event is CircuitEvent.WELL else event, began)
        await asyncio.sleep(max(0.0, began + every_s - health.clock()))


async def _probe(pool: Pool, within_s: float) -> Failure | None:
    connection = None
    ear = _ProbeReceiver()
    try:
        async with asyncio.timeout(within_s):
            got = await pool.acquire()
            if isinstance(got, Failure):
                return got
            connection = got
            connection.send(pool.request("/models", [], b"", method="GET"), ear)
            return await ear.over
    except TimeoutError:
        return Failure("", Phase.WAITING, Fault.TIMEOUT, "")
    finally:
        if connection is not None and not ear.is_over:
            connection.abort()
