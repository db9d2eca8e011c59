"""`make bench-lone`: a call at 50, 100 and 200 calls a second, beside a bare aiohttp proxy, in two minutes.

At full load many calls share a batch, a turn of the event loop and a wake-up. At these rates nearly every call is
alone, as in most gateways for most of the day. The gateway has two quotas a key and everything else as it is shipped;
the proxy (bare.py) only forwards. Both have one core in turns, under the same arrivals at random; the calls and their
upstream have the other. Times are those above what the same calls take without a proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import uvloop

from tests.fakes.redis_servers import RedisServer

from . import calls, ours
from .lockstep import Caller, Upstream
from .processes import BenchError, Program, listener
from .streams import http
from .table import figure

RATES = (50, 100, 200)
"""Calls a second."""

CONNECTIONS = 8
WARM_S, LOAD_S, DIRECT_S = 1.0, 4.0, 2.0
SETTLE_S = 0.5
"""After a load: what is still to be written (records, access lines) belongs to it."""

WATCH_S = 1.0
"""How often an open dashboard asks for the live numbers."""

WATCH = b"GET /admin/api/live HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer admin-token-of-the-bench\r\n\r\n"


class Cost(NamedTuple):
    """What one load has shown of a program."""

    cpu_us: float
    """CPU time of a call, in all processes of the program, in microseconds."""
    p50_ms: float
    p99_ms: float
    """Times of a call, less those of the same calls straight to the upstream, in milliseconds."""


def cost(spent_s: float, took_ms: Sequence[float], direct_ms: Sequence[float]) -> Cost:
    """Of a load that took so much CPU time."""
    p50_ms, p99_ms = (many - few for many, few in zip(_percentiles(took_ms), _percentiles(direct_ms), strict=True))
    return Cost(spent_s / len(took_ms) * 1e6, p50_ms, p99_ms)


def _percentiles(took_ms: Sequence[float]) -> tuple[float, float]:
    return median(took_ms), quantiles(took_ms, n=100)[98]


def cpu_s(pids: Sequence[int]) -> float:
    """CPU time so far of these processes, to the nanosecond, that of ended threads included.

    The clock's number is made as `clock_getcpuclockid` makes it (glibc, sysdeps/unix/sysv/linux).
    """
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


async def load(port: int, rate: float, seconds: float, seed: int) -> list[float]:
    """The time of each call in milliseconds, from the moment at which it was due. Raises `BenchError`."""
    loop, request, gaps = asyncio.get_running_loop(), http(calls.request()), random.Random(seed)
    idle: asyncio.LifoQueue[Caller] = asyncio.LifoQueue()
    callers = [(await loop.create_connection(Caller, "127.0.0.1", port))[1] for _ in range(CONNECTIONS)]
    for caller in callers:
        idle.put_nowait(caller)
    took_ms: list[float] = []

    async def call(due: float) -> None:
        caller = await idle.get()
        await ask(caller, request)
        took_ms.append((loop.time() - due) * 1e3)
        idle.put_nowait(caller)

    running, due = [], loop.time()
    end = due + seconds
    while (due := due + gaps.expovariate(rate)) < end:
        await asyncio.sleep(due - loop.time())
        running.append(asyncio.ensure_future(call(due)))
    await asyncio.gather(*running)
    for caller in callers:
        caller.transport.close()
    return took_ms


async def ask(caller: Caller, request: bytes) -> None:
    """One call, until its whole answer is there."""
    caller.ask(request)
    while not caller.is_whole:
        await caller.received()
        if caller.transport.is_closing():
            raise BenchError("a connection was closed")


async def watch(port: int) -> None:
    """Ask for the live numbers as an open dashboard does, until cancelled."""
    _, caller = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port)
    while True:
        await ask(caller, WATCH)
        await asyncio.sleep(WATCH_S)


def bare(folder: Path, core: int, upstream: int) -> Program:
    """The proxy that only forwards, in front of this port."""
    return proxy("bench.bare", folder, core, f"http://127.0.0.1:{upstream}")


def proxy(module: str, folder: Path, core: int, upstream: str) -> Program:
    """A proxy of this package: it is given a listening socket and its upstream."""
    with listener() as socket:
        command = [sys.executable, "-m", module, str(socket.fileno()), upstream]
        return Program(
            module, command, folder, core, socket.getsockname()[1],
            env={"PYTHONPATH": str(ours.ROOT)}, inherited=[socket.fileno()],
        )  # fmt: skip


class Bench:
    """The programs, their core, and the loads that they take in turns."""

    def __init__(self, running: ExitStack, folder: Path, store: str) -> None:
        self._running, self._folder, self._store = running, folder, store
        allowed = sorted(os.sched_getaffinity(0))
        self._core = allowed[0]
        os.sched_setaffinity(0, {allowed[-1]})

    def start(self, upstream: int) -> dict[str, Program]:
        """Both, in front of this port."""
        return {
            "bare": self._running.enter_context(bare(self._new_folder(), self._core, upstream)),
            "gateway": self._gateway(upstream),
        }

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _gateway(self, upstream: int) -> Program:
        folder = self._new_folder()
        received = ours.settings(folder, upstream)
        received["keys"][0]["quotas"] = ours.quotas(2)
        if self._store == "redis":
            server = self._running.enter_context(RedisServer(self._new_folder(), appendonly="everysec"))
            received["store"] = {"url": server.url, "journal_dir": str(folder)}
        return self._running.enter_context(ours.serving(received, folder, self._core))

    async def measure(self, rates: Sequence[int], rounds: int, *, is_watched: bool) -> dict[int, dict[str, list[Cost]]]:
        """By rate and program, what each round has shown."""
        upstream, costs = Upstream(), {rate: {"bare": [], "gateway": []} for rate in rates}
        async with await upstream.start():
            programs = self.start(upstream.port)
            for program in programs.values():
                await asyncio.to_thread(program.wait_until_answered)
                await load(program.port, rates[-1], WARM_S, seed=0)
            watching = asyncio.ensure_future(watch(programs["gateway"].port)) if is_watched else None
            for number, rate in [(number, rate) for number in range(rounds) for rate in rates]:
                direct_ms = await load(upstream.port, rate, DIRECT_S, seed=number)
                for name, program in programs.items():
                    before_s = cpu_s(program.pids)
                    took_ms = await load(program.port, rate, LOAD_S, seed=number)
                    await asyncio.sleep(SETTLE_S)
                    costs[rate][name].append(cost(cpu_s(program.pids) - before_s, took_ms, direct_ms))
            if watching is not None:
                watching.cancel()
        return costs


FIGURES = {"CPU per call, us": "cpu_us", "added p50, ms": "p50_ms", "added p99, ms": "p99_ms"}


def render(costs: dict[int, dict[str, list[Cost]]]) -> str:
    """Medians of the rounds, and of the ratios of each round, with the lowest and the highest."""
    lines = [f"{'':34} {'bare':>8} {'gateway':>8} {'ratio':>6}  lowest - highest"]
    for rate, of in costs.items():
        lines.append(f"{rate} calls a second")
        for name, member in FIGURES.items():
            bare, gateway = ([getattr(each, member) for each in of[program]] for program in ("bare", "gateway"))
            ratios = sorted(ours / theirs for ours, theirs in zip(gateway, bare, strict=True))
            cells = f"{figure(median(bare)):>8} {figure(median(gateway)):>8} {figure(median(ratios)):>6}"
            lines.append(f"  {name:32} {cells}  {figure(ratios[0])} - {figure(ratios[-1])}")
    return "\n".join(lines)


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.lone", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=("embedded", "redis"), default="embedded")
    parser.add_argument("--rate", type=int, help="calls a second: this one alone")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--dashboard", action="store_true", help="one dashboard is open")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="gateway-lone-") as folder, ExitStack() as running:
            bench = Bench(running, Path(folder), args.store)
            rates = (args.rate,) if args.rate else RATES
            print(render(uvloop.run(bench.measure(rates, args.rounds, is_watched=args.dashboard))))
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
