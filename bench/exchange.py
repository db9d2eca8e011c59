"""`python -m bench.exchange`, two minutes: a call and a chunk of nginx, of a proxy that reads nothing (pipe.py), of a
bare aiohttp proxy and of the gateway, in turns on one core.

No exchange of bytes on the gateway's event loop costs less than the pipe, in whatever language it is written: what the
gateway costs above it is all that compiled code could save, the decisions and the accounting included.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import uvloop

from . import load, nginx, ours
from .__main__ import SETTLE_S, Bench, chunks, machine
from .lone import bare, proxy
from .processes import BenchError, Program
from .streams import Upstream
from .table import figure

ROUNDS, SECONDS = 4, 4
Costs = Mapping[str, list[float]]
"""CPU us by program, round by round."""


def programs(bench: Bench, upstream: int, running: ExitStack, *, is_buffered: bool) -> dict[str, Program]:
    """All of them in front of this port."""
    made = {
        "nginx": nginx.proxy(bench.new_folder(), bench.measured, upstream, is_buffered=is_buffered),
        "a pipe": proxy("bench.pipe", bench.new_folder(), bench.measured, str(upstream)),
        "a bare aiohttp proxy": bare(bench.new_folder(), bench.measured, upstream),
        "this gateway": ours.gateway(bench.new_folder(), bench.measured, upstream),
    }
    for program in made.values():
        running.enter_context(program)
        program.wait_until_answered()
    return made


def of_calls(bench: Bench) -> Costs:
    """Whole answers, 64 at once."""
    costs: dict[str, list[float]] = {}
    with ExitStack() as running:
        upstream = running.enter_context(nginx.upstream(bench.new_folder(), bench.own))
        made, folder = programs(bench, upstream.port, running, is_buffered=True), bench.new_folder()
        for _ in range(ROUNDS):
            for name, program in made.items():
                time.sleep(SETTLE_S)
                cpu_s = program.cpu_s()
                seen = load.run(program.port, SECONDS, folder)
                time.sleep(SETTLE_S)
                costs.setdefault(name, []).append((program.cpu_s() - cpu_s) / seen.requests * 1e6)
    return costs


async def of_chunks(bench: Bench) -> Costs:
    """Streams with a chunk every 20 ms; the bare proxy has none."""
    costs: dict[str, list[float]] = {}
    upstream = Upstream()
    async with await upstream.start():
        with ExitStack() as running:
            made = await asyncio.to_thread(programs, bench, upstream.port, running, is_buffered=False)
            del made["a bare aiohttp proxy"]
            for _ in range(ROUNDS):
                for name, program in made.items():
                    cpu_us, _, _ = await chunks(program, upstream, 0.02, SECONDS)
                    costs.setdefault(name, []).append(cpu_us)
    return costs


def rows(what: str, costs: Costs) -> list[str]:
    """A line of Markdown for each program."""
    found = []
    for name, cost_us in costs.items():
        ratios = [mine / theirs for mine, theirs in zip(cost_us, costs["nginx"], strict=True)]
        cells = [what, name, *map(figure, (median(cost_us), median(ratios)))]
        found.append(f"| {' | '.join(cells)} | {figure(min(ratios))} - {figure(max(ratios))} |")
    return found


def main() -> int:
    """Measure and print; returns the exit code."""
    try:
        with tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder:
            bench = Bench(Path(folder), ROUNDS)
            lines = [*rows("a call", of_calls(bench)), *rows("a chunk", uvloop.run(of_chunks(bench)))]
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("| | | CPU, us | x nginx | lowest - highest |", "| --- | --- | ---: | ---: | ---: |", *lines, "", sep="\n")
    print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
