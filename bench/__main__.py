"""`make bench`: the cost of the gateway compared with nginx, on this machine, in less than three minutes.

The gateway, as it is shipped, and nginx run on one core; clients and upstreams on the other. Gateway and nginx take
turns under the same load: identical code drifts by tens of percent between hours, so only ratios of runs side by side
can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import uvloop

from . import ledger, load, nginx, ours
from .processes import BenchError, Program
from .streams import Upstream, streams
from .table import RIVALS, Group, as_json, render

REQUESTS_S, WARM_S = 4, 1
STREAMS, PACED_S, FULL_S = 200, 3, 2
MANY_STREAMS = 500
CALLS = 50
"""Number of calls for the time to the first chunk, one after the other."""
SETTLE_S = 0.5
"""Seconds before and after a load: records and access lines that are written afterwards belong to its cost."""


class Bench:
    """Two cores and a folder. This process and its children run on the core that is not measured."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.rounds = rounds
        self._folder = folder
        allowed = sorted(os.sched_getaffinity(0))
        self.measured, self.own = allowed[0], allowed[-1]
        os.sched_setaffinity(0, {self.own})

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def rival(self, name: str, upstream: int, *, is_buffered: bool = False) -> Program:
        """Starts nginx or the gateway in front of this port."""
        if name == "nginx":
            return nginx.proxy(self.new_folder(), self.measured, upstream, is_buffered=is_buffered)
        return ours.gateway(self.new_folder(), self.measured, upstream)

    def ledger(self) -> dict[ledger.Case, ledger.Cost]:
        """The ledger without a gateway: this process on its core, Redis on the measured one, which is idle now."""
        return ledger.measure(self.new_folder(), self.measured)


def requests(bench: Bench) -> list[Group]:
    """Whole answers."""
    group, folder = Group(f"Chat calls, 1 KB up, 549 B down, {load.CONNECTIONS} connections"), bench.new_folder()
    with ExitStack() as running:
        upstream = running.enter_context(nginx.upstream(bench.new_folder(), bench.own))
        rivals = {name: running.enter_context(bench.rival(name, upstream.port, is_buffered=True)) for name in RIVALS}
        for program in rivals.values():
            program.wait_until_answered()
            load.run(program.port, WARM_S, folder)
        for _ in range(bench.rounds):
            for name, program in rivals.items():
                time.sleep(SETTLE_S)
                cpu_s = program.cpu_s()
                seen = load.run(program.port, REQUESTS_S, folder)
                time.sleep(SETTLE_S)
                cpu_us = (program.cpu_s() - cpu_s) / seen.requests * 1e6
                received = {"CPU per call, us": cpu_us, "latency p50, ms": seen.p50_ms, "latency p99, ms": seen.p99_ms}
                group.add(name, received)
    return [group]


async def streamed(bench: Bench) -> list[Group]:
    """Chunks of streams at the speed of a model and twice as fast, and the first chunk."""
    paced = Group(f"{STREAMS} streams, each with a 210 B chunk every 20 ms")
    full = Group("The same every 10 ms, as far as it goes")
    first = Group("One stream after the other")
    upstream = Upstream()
    async with await upstream.start():
        with ExitStack() as running:
            rivals = {name: running.enter_context(bench.rival(name, upstream.port)) for name in RIVALS}
            for program in rivals.values():
                await asyncio.to_thread(program.wait_until_answered)
            for _ in range(bench.rounds):
                for name, program in rivals.items():
                    cpu_us, _, delays_ms = await chunks(program, upstream, 0.02, PACED_S)
                    p50, p99 = median(delays_ms), quantiles(delays_ms, n=100)[98]
                    paced.add(name, {"CPU per chunk, us": cpu_us, "delay p50, ms": p50, "delay p99, ms": p99})
                for name, program in rivals.items():
                    cpu_us, rate, _ = await chunks(program, upstream, 0.01, FULL_S)
                    full.add(name, {"CPU per chunk, us": cpu_us, "chunks a second": rate})
                for name, program in rivals.items():
                    seconds = [await first_chunk(program, upstream) for _ in range(CALLS)]
                    first.add(name, {"to the first chunk p50, ms": median(seconds) * 1e3})
    return [paced, full, first]


async def chunks(
    program: Program, upstream: Upstream, period_s: float, seconds: float
) -> tuple[float, float, list[float]]:
    """CPU us per chunk, chunks per second, and their delays in ms, while all streams are open."""
    async with streams(program.port, upstream, STREAMS, period_s):
        await asyncio.sleep(SETTLE_S)
        began, cpu_s, written, arrived = time.monotonic(), program.cpu_s(), upstream.written, len(upstream.arrived)
        await asyncio.sleep(seconds)
        number = upstream.written - written
        rate = number / (time.monotonic() - began)
        cpu_us = (program.cpu_s() - cpu_s) / number * 1e6
        return cpu_us, rate, [age / 1e6 for age in upstream.arrived[arrived:]]


async def first_chunk(program: Program, upstream: Upstream) -> float:
    """Seconds from a call to the first chunk of its answer."""
    async with streams(program.port, upstream, 1, 0.001) as (client,):
        return client.begun.result()


async def memory(bench: Bench) -> list[Group]:
    """Time from the start to the first answer, and memory."""
    group, upstream = Group("Start, and memory of all its processes"), Upstream()
    async with await upstream.start():
        for _ in range(bench.rounds):
            for name in RIVALS:
                with bench.rival(name, upstream.port) as program:
                    await asyncio.to_thread(program.wait_until_answered)
                    idle_mb = program.memory_mb()
                    async with streams(program.port, upstream, MANY_STREAMS, 0.1):
                        await asyncio.sleep(SETTLE_S)
                        open_mb = program.memory_mb()
                received = {"start to first answer, s": program.start_s, "memory idle, MB": idle_mb}
                group.add(name, received | {f"memory with {MANY_STREAMS} streams, MB": open_mb})
    return [group]


PARTS: dict[str, Callable[[Bench], list[Group]]] = {
    "requests": requests,
    "streams": lambda bench: uvloop.run(streamed(bench)),
    "memory": lambda bench: uvloop.run(memory(bench)),
}


def machine() -> str:
    """Where and when this was measured.

    `autogroup`: the scheduler shares a core among sessions, whatever the niceness of their processes.
    """
    names = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {nginx.version()}"
    grouped = Path("/proc/sys/kernel/sched_autogroup_enabled")
    autogroup = ", autogroup" if grouped.exists() and grouped.read_text().strip() == "1" else ""
    return f"{os.cpu_count()} cores, {names}{autogroup}, {time.strftime('%Y-%m-%d')}"


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="What the gateway costs beside nginx.")
    parser.add_argument("--only", choices=[*PARTS, "ledger"], help="one part of it")
    parser.add_argument("--quick", action="store_true", help="2 rounds instead of 4")
    parser.add_argument("--json", action="store_true", help="every round of every figure, for programs")
    args = parser.parse_args()
    tools = {"nginx-light": nginx.where(), "wrk": shutil.which("wrk")}
    if missing := [package for package, found in tools.items() if not found]:
        print(f"bench: install what is missing first; on Debian: apt install {' '.join(missing)}", file=sys.stderr)
        return 2
    if not Path("/proc/self/stat").exists():
        print("bench: this needs Linux: it reads CPU time from /proc and gives each side a core", file=sys.stderr)
        return 2
    if len(os.sched_getaffinity(0)) < 2:
        print("bench: warning: with one core, load and gateway are in each other's way", file=sys.stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder:
            bench = Bench(Path(folder), 2 if args.quick else 4)
            groups = [group for name in PARTS if args.only in (None, name) for group in PARTS[name](bench)]
            costs = bench.ledger() if args.only in (None, "ledger") else {}
    except (BenchError, OSError, subprocess.TimeoutExpired) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    if args.json:
        print(as_json(machine(), groups, costs))
    else:
        print(
            "\n\n".join([*([render(groups)] if groups else []), *([ledger.render(costs)] if costs else []), machine()])
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
