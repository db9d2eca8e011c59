"""`python -m bench.starts`: what a start costs, beside one of a bare aiohttp proxy, in half a minute.

From the start of the program to its first answered call, on one core: CPU time of all its processes, time, and the
memory that they then take, where a page that several of them share counts once (Pss of proc(5), smaps_rollup).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

from tests.flows.gateway_process import keep_bytecode

from . import ours
from .lockstep import Upstream
from .lone import bare, cpu_s
from .processes import BenchError, Program
from .table import figure

WORKERS = (1, 2, 4)
BARE = "bare proxy"


class Start(NamedTuple):
    """One start."""

    cpu_s: float
    took_s: float
    memory_mb: float


async def measure(folder: Path, rounds: int, workers: Iterable[int] = WORKERS) -> dict[str, list[Start]]:
    """By program, what its starts have cost; a first round, which compiles modules and fills caches, does not count."""
    core = min(os.sched_getaffinity(0))
    costs: dict[str, list[Start]] = {}
    upstream = Upstream()
    async with await upstream.start():
        for number in range(rounds + 1):
            for name, count in {BARE: 0, **{_named(count): count for count in workers}}.items():
                place = Path(tempfile.mkdtemp(dir=folder))
                start = await _start(_program(place, core, upstream.port, count))
                costs.setdefault(name, []).extend([start] if number else [])
    return costs


def _named(workers: int) -> str:
    return f"gateway, {workers} worker{'s' * (workers > 1)}"


def _program(folder: Path, core: int, upstream: int, workers: int) -> Program:
    if not workers:
        return bare(folder, core, upstream)
    received = ours.settings(folder, upstream)
    received["server"]["workers"] = workers
    return ours.serving(received, folder, core)


async def _start(program: Program) -> Start:
    with program:
        await asyncio.to_thread(program.wait_until_answered)
        return Start(cpu_s(program.pids), program.start_s, program.memory_mb())


def render(costs: Mapping[str, list[Start]]) -> str:
    """Medians; and of CPU time, the median of the ratios to the bare proxy's start of the same round."""
    lines = [f"{'start to first answer':22} {'CPU, s':>8} {'x bare':>8} {'time, s':>8} {'memory, MB':>11}"]
    for name, starts in costs.items():
        cells = [figure(median(each)) for each in zip(*starts, strict=True)]
        ratio = figure(median(own.cpu_s / other.cpu_s for own, other in zip(starts, costs[BARE], strict=True)))
        lines.append(f"{name:22} {cells[0]:>8} {ratio:>8} {cells[1]:>8} {cells[2]:>11}")
    return "\n".join(lines)


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.starts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    keep_bytecode()
    try:
        with tempfile.TemporaryDirectory(prefix="gateway-starts-") as folder:
            print(render(uvloop.run(measure(Path(folder), args.rounds))))
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
