"""What the ledger costs a call: a draw and its settlement, in the gateway's process and in Redis.

A bookkeeper with its journal, in front of a real Redis on the other core, carries `RATE` calls a second that last a
moment each. What the same calls cost without a ledger is taken off.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from gateway.accounting import LedgerClient
from gateway.accounting.changed_windows import ChangedWindows
from gateway.config import StoreSettings as Settings
from gateway.journal import Journal
from gateway.process.worker import settle_memory
from gateway.quota.windows import calendar_window
from gateway.records import Claim, Granted, Record, Usage, Window
from gateway.store import Reserve
from gateway.store.opening import open_store
from tests.fakes.redis_servers import RedisServer

from .processes import BenchError, pinned

RATE = 5000
TICK_S = 0.002
CALL_S = 0.02
"""How long a call lasts between its draw and its settlement."""

UNITS = (("requests", "minute", 60), ("tokens", "day", 0), ("requests", "day", 0))
"""The windows of a key, as in the shipped example; more of them are rates of other lengths."""


class Case(NamedTuple):
    """What is measured, and against how much of it."""

    keys: int
    windows: int
    """Of each key."""


CASES = (Case(10, 1), Case(10, 3), Case(10, 6), Case(1_000, 3), Case(100_000, 3))


class Cost(NamedTuple):
    """CPU microseconds for the draw and the settlement of one call."""

    gateway_us: float
    redis_us: float
    batch: float
    """Draws and settlements that went together, on average."""


class NoLedger:
    """Grants everything at once."""

    def draw(self, draw: Reserve) -> asyncio.Future[Granted]:
        answer: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        answer.set_result(Granted())
        return answer

    def settle(self, record: Record, claims: tuple[Claim, ...]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Keys:
    """Keys that call in turn, each with so many windows."""

    def __init__(self, count: int, windows: int) -> None:
        self._claims = [self._of(f"key-{number}", windows) for number in range(count)]
        self._numbers = itertools.count()

    def _of(self, key: str, windows: int) -> tuple[Claim, ...]:
        quotas = [*UNITS, *[("requests", f"{3600 + extra}", 3600 + extra) for extra in range(windows)]][:windows]
        return tuple(Claim(_window(key, *quota), 500 if quota[0] == "tokens" else 1) for quota in quotas)

    def draw(self) -> Reserve:
        number = next(self._numbers)
        key = number % len(self._claims)
        return Reserve.of(_record(f"req_{number:032x}", f"key-{key}", "lost"), self._claims[key])


def _window(key: str, unit: Any, per: str, seconds: int) -> Window:
    starts, resets_us = ("", 0) if seconds else calendar_window(per, time.time())
    name = f"key:{key}|{unit}|{per}||{starts}"
    return Window(
        name, f"key:{key}", unit, per, None, 10**6 if seconds else 10**12, seconds * 1_000_000, starts, resets_us
    )


def _record(name: str, key: str, ended: Any) -> Record:
    usage = Usage(200, 300, source="estimated") if ended == "lost" else Usage(210, 34, source="reported")
    return Record(
        name, time.time(), key, "platform", "chat", "gpt-4o-mini", "gpt-4o-mini", "gpt-4o-mini", "gpt-4o-mini", "main",
        200, False, usage, ended, 0.0123, 0.0456, 1,
    )  # fmt: skip


async def _carry(ledger: Any, keys: Keys, seconds: float) -> tuple[int, float]:
    """Calls at `RATE`: how many there were, and the CPU seconds of this process. Raises `BenchError`."""
    running: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    async def call() -> None:
        reserve = keys.draw()
        granted = await ledger.draw(reserve)
        assert isinstance(granted, Granted)
        await asyncio.sleep(CALL_S)
        await ledger.settle(reserve.record._replace(usage=Usage(210, 34, source="reported")), reserve.claims)

    def note(task: asyncio.Task[None]) -> None:
        running.discard(task)
        if (error := task.exception()) is not None:
            failures.append(error)

    count, began, cpu = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - began) < seconds and not failures:
        due = int(elapsed * RATE)
        for _ in range(due - count):
            task = asyncio.ensure_future(call())
            running.add(task)
            task.add_done_callback(note)
        count = due
        await asyncio.sleep(TICK_S)
    await asyncio.gather(*running, return_exceptions=True)
    if failures:
        raise BenchError(f"of {count} calls {len(failures)} failed: {failures[0]}")
    return count, time.process_time() - cpu


async def _measure(server: RedisServer, folder: Path, case: Case, seconds: float) -> Cost:
    settings = Settings(url=server.url, journal_dir=str(folder), namespace=f"bench-{case.keys}-{case.windows}")
    client = LedgerClient(
        await open_store(settings), Journal.create(folder, "bench"), settings, changed_windows=ChangedWindows()
    )
    callers = Keys(*case)
    settle_memory()
    await _carry(client, callers, seconds / 4)  # warm
    _, free = await _carry(NoLedger(), callers, seconds)
    before = _redis(server)
    count, spent = await _carry(client, callers, seconds)
    used, batches = (after - then for after, then in zip(_redis(server), before, strict=True))
    await client.close(5)
    return Cost((spent - free) / count * 1e6, used / count * 1e6, 2 * count / batches)


def _redis(server: RedisServer) -> tuple[float, float]:
    """The CPU seconds of Redis, and the scripts that it has run."""
    received = dict(line.split(":", 1) for line in server.cli("INFO", "all").splitlines() if ":" in line)
    cpu = float(received["used_cpu_sys"]) + float(received["used_cpu_user"])
    return cpu, float(received["cmdstat_evalsha"].split("=")[1].split(",")[0])


def measure(folder: Path, core: int, cases: Sequence[Case] = CASES, seconds: float = 4) -> dict[Case, Cost]:
    """The cost of each case, with Redis on this core and us on the other."""
    with pinned(core):
        server = RedisServer(folder, appendonly="everysec")
    with server:
        return {case: uvloop.run(_measure(server, folder / f"journal-{case}", case, seconds)) for case in cases}


def render(costs: Mapping[Case, Cost]) -> str:
    """As a table, with what one more window costs."""
    head = f"A draw and its settlement, {RATE} calls a second on Redis"
    lines = [f"{head:62}  gateway, us   Redis, us   in one batch"]
    for case, cost in costs.items():
        name = f"  {case.keys} keys with {case.windows} windows"
        lines.append(f"{name:62}  {cost.gateway_us:11.1f}   {cost.redis_us:9.1f}   {cost.batch:12.0f}")
    few, many = (next(cost for case, cost in costs.items() if case == of) for of in (CASES[0], CASES[2]))
    more = CASES[2].windows - CASES[0].windows
    each = [(other - one) / more for one, other in zip(few[:2], many[:2], strict=True)]
    return "\n".join([*lines, f"{'  each further window':62}  {each[0]:11.1f}   {each[1]:9.1f}"])
