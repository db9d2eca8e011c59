"""Active probes, against real servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from gateway.upstream.circuit_breaker import CircuitEvent
from gateway.upstream.health import Health
from gateway.upstream.health_check import run_health_checks
from gateway.upstream.pool import Pool
from tests.fakes.scripted import (
    Behaviour,
    Scripted,
    answer,
    close_without_answer,
    dead_port,
    dribble_head,
    error_json,
    not_http,
    ok_json,
    silent,
    until,
)

from .recorder import acquired, pool_of


class Witness(Health):
    """A health that writes down what probes say."""

    def __init__(self) -> None:
        super().__init__("up", [], 1, lambda upstream, state: None, asyncio.get_running_loop().time)
        self.heard: list[CircuitEvent] = []

    def health_checked(self, event: CircuitEvent, began: float) -> None:
        self.heard.append(event)
        super().health_checked(event, began)


async def probes(
    pool: Pool, count: int = 1, within_s: float = 60.0, until_seen: Callable[[], object] = lambda: True
) -> list[CircuitEvent]:
    """What so many probes find, or more of them until the upstream has seen one."""
    health = Witness()
    probing = asyncio.ensure_future(run_health_checks(pool, health, 0.01, within_s))
    await until(lambda: (len(health.heard) >= count and until_seen()) or probing.done())
    probing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await probing
    return health.heard[:count]


DRIBBLING = dribble_head()
HANGING = (silent, DRIBBLING)


@pytest.mark.parametrize(
    ("behaviour", "event"),
    [
        (ok_json({"object": "list", "data": []}), CircuitEvent.PROBE_OK),
        (answer(b"x" * 1_000_000), CircuitEvent.PROBE_OK),
        (error_json(401, code="invalid_api_key"), CircuitEvent.PROBE_OK),
        (error_json(404), CircuitEvent.PROBE_OK),
        (error_json(500), CircuitEvent.FAILURE),
        (error_json(503), CircuitEvent.FAILURE),
        (close_without_answer, CircuitEvent.FAILURE),
        (not_http, CircuitEvent.FAILURE),
        (silent, CircuitEvent.FAILURE),
        (DRIBBLING, CircuitEvent.FAILURE),
    ],
)
async def test_probe_finds(behaviour: Behaviour, event: CircuitEvent) -> None:
    async with Scripted(always=behaviour) as upstream:
        pool = pool_of(upstream.url, api_key="sk-up")
        within_s = 0.3 if behaviour in HANGING else 60.0
        assert await probes(pool, within_s=within_s, until_seen=lambda: upstream.requests) == [event]
        request = upstream.requests[0]
        assert (request.method, request.path, request.body) == ("GET", "/v1/models", b"")
        assert request.headers["authorization"] == "Bearer sk-up"
        assert pool.in_flight == 0
        await pool.close()


async def test_a_probe_of_an_upstream_that_is_down() -> None:
    pool = pool_of(f"http://127.0.0.1:{dead_port()}/v1")
    assert await probes(pool, 3) == [CircuitEvent.FAILURE] * 3
    await pool.close()


async def test_probes_keep_one_connection() -> None:
    async with Scripted(always=ok_json()) as upstream:
        pool = pool_of(upstream.url)
        assert await probes(pool, 4) == [CircuitEvent.PROBE_OK] * 4
        assert upstream.connections == 1
        await pool.close()


async def test_probe_that_finds_no_free_connection_says_nothing() -> None:
    """All connections are in use by calls, whose results are reported."""
    async with Scripted(always=ok_json()) as upstream:
        pool = pool_of(upstream.url, max_connections=1, connect_s=0.1)
        held = await acquired(pool)
        assert await probes(pool) == [CircuitEvent.NEUTRAL]
        held.abort()
        await pool.close()


async def test_probes_open_and_close_a_circuit() -> None:
    async with Scripted(*[error_json(503)] * 5, always=ok_json()) as upstream:
        pool, health = pool_of(upstream.url), Witness()
        states = []
        health._show = lambda _, state: states.append(int(state))
        probing = asyncio.ensure_future(run_health_checks(pool, health, 0.01, 60.0))
        await until(lambda: len(states) >= 2)
        probing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probing
        assert states == [2, 0]
        assert health.is_healthy or health.state == 0
        await pool.close()
