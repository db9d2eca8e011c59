"""`make bench-wide`: what else has a price, beside nginx: sizes, TLS, Redis, workers, keys, models, windows, streams.

One thing is changed at a time. Each case has an nginx and a gateway of its own, which take turns under the same load on
the same core, so that a ratio is of two that ran side by side. In a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import uvloop

from tests.fakes.redis_servers import ROOT, Certificates, RedisServer

from . import cases, crowds, issuing, large, load, nginx, ours, page, peers, plot, standstill, table
from .__main__ import SETTLE_S, machine
from .cases import CASES, MAIN, Case
from .processes import BenchError, Probe, Program, pinned
from .table import RIVALS, Group

PAGE = ROOT / "docs/costs.md"
PICTURES = ROOT / "docs/images"
ROUND_S, WARM_S = 3, 1
CPU = "CPU per call, us"
REDIS = "Of that call in Redis, CPU us"
TITLE = "CPU per call, as a multiple of nginx"


class Bench:
    """The measured core, a folder, and what the cases share."""

    def __init__(self, folder: Path, rounds: int, only: str = "") -> None:
        self.rounds, self.only = rounds, only
        self._folder = folder
        allowed = sorted(os.sched_getaffinity(0))
        self.measured, self.own = allowed[0], allowed[-1]
        os.sched_setaffinity(0, {self.own})
        self.certificates = Certificates(self.new_folder())
        self.seeds = self.new_folder()

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))


def whole_calls(bench: Bench) -> tuple[str, list[Group]]:
    """Every case, how the connections change the latency, and what Redis takes for itself."""
    cpu, latency, redis = Group(CPU), Group("Latency at full load, ms"), Group(REDIS)
    for case in CASES:
        if bench.only in case.name:
            print(f"bench: {case.name}", file=sys.stderr, flush=True)
            measure(bench, case, cpu, latency, redis)
    lines = [f"| {REDIS} | |", "| --- | ---: |"]
    lines += [f"| {name} | {table.figure(median(row.seen['gateway']))} |" for name, row in redis.rows.items()]
    groups = [group for group in (cpu, latency) if group.rows]
    return "\n\n".join([table.as_markdown(groups), *(["\n".join(lines)] if redis.rows else [])]), groups


def measure(bench: Bench, case: Case, cpu: Group, latency: Group, redis: Group) -> None:
    """nginx and the gateway in turns, under the load of this case; adds to these groups."""
    folder, files = bench.new_folder(), bench.certificates
    with ExitStack() as running:
        secrets = (files.ca_file, files.server_file) if case.is_tls else (None, None)
        behind = running.enter_context(nginx.upstream(bench.new_folder(), bench.own, case.answer, secrets[1]))
        redis_server = None
        if case.store == "redis":
            with pinned(bench.own):
                redis_server = running.enter_context(RedisServer(bench.new_folder(), appendonly="everysec"))
        if case.issued:
            issuing.place(bench.seeds, folder, case.issued, case.windows)
        received = ours.settings_of(case, folder, behind.port, secrets[0], redis_server.url if redis_server else "")
        theirs = nginx.proxy(bench.new_folder(), bench.measured, behind.port, is_buffered=True, ca_file=secrets[0])
        rivals = dict(zip(RIVALS, (theirs, ours.serving(received, folder, bench.measured)), strict=True))
        made = {}
        for name, program in rivals.items():
            running.enter_context(program)
            program.probe = _probe(case)
            program.wait_until_answered()
            made[name] = load.run(program.port, WARM_S, folder, case).requests
        for _ in range(bench.rounds):
            for name, program in rivals.items():
                redis_s = _cpu_s(redis_server)
                seen, cpu_us = _round(program, folder, case, made[name])
                made[name] += seen.requests
                cpu.add(name, {case.name: cpu_us})
                if case.connections != MAIN.connections or case is MAIN:
                    latency.add(name, {f"p50, {case.connections} connections": seen.p50_ms})
                    latency.add(name, {f"p99, {case.connections} connections": seen.p99_ms})
                if redis_server is not None and name == "gateway":
                    redis.add(name, {case.name: (_cpu_s(redis_server) - redis_s) / seen.requests * 1e6})


def _round(program: Program, folder: Path, case: Case, first: int) -> tuple[load.Load, float]:
    """What was seen, and the CPU us per call. What is still to be written afterwards belongs to it."""
    time.sleep(SETTLE_S)
    cpu_s = program.cpu_s()
    seen = load.run(program.port, ROUND_S, folder, case, first)
    time.sleep(SETTLE_S)
    return seen, (program.cpu_s() - cpu_s) / seen.requests * 1e6


def _probe(case: Case) -> Probe:
    """One call of this case."""
    headers = {"Authorization": f"Bearer {cases.secret(0)}", "Content-Type": "application/json"}
    return Probe(case.path, case.request(), headers, case.answer)


def _cpu_s(server: RedisServer | None) -> float:
    return float(server.info("used_cpu_user")) + float(server.info("used_cpu_sys")) if server else 0.0


# ------------------------------------------------------------------------------------------------------ the other parts


def others(bench: Bench) -> tuple[str, list[Group]]:
    return peers.measure(bench.new_folder, bench.measured, bench.own), []


def in_crowds(bench: Bench) -> tuple[str, list[Group]]:
    groups = uvloop.run(crowds.measure((bench.new_folder(), bench.new_folder()), bench.measured))
    return table.as_markdown(groups), groups


def of_large_messages(bench: Bench) -> tuple[str, list[Group]]:
    groups = uvloop.run(large.measure(bench.new_folder, bench.measured))
    return table.as_markdown(groups), groups


def of_the_loop(bench: Bench) -> tuple[str, list[Group]]:
    folders = (bench.new_folder(), bench.new_folder(), bench.new_folder())
    return uvloop.run(standstill.measure(folders, bench.measured, bench.own)), []


PARTS: dict[str, Callable[[Bench], tuple[str, list[Group]]]] = {
    "calls": whole_calls,
    "streams": in_crowds,
    "large": of_large_messages,
    "loop": of_the_loop,
    "peers": others,
}


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.wide", description="What else has a price.")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--case", default="", help="of the calls, those with this in their name")
    parser.add_argument("--quick", action="store_true", help="1 round instead of 3")
    parser.add_argument(
        "--write", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}, and its pictures"
    )
    args = parser.parse_args()
    tools = {"nginx-light": nginx.where(), "wrk": shutil.which("wrk"), "redis-server": shutil.which("redis-server")}
    if missing := [package for package, found in tools.items() if not found]:
        print(f"bench: install what is missing first; on Debian: apt install {' '.join(missing)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder:
            bench = Bench(Path(folder), 1 if args.quick else 3, args.case)
            for name, part in PARTS.items():
                if args.only not in (None, name):
                    continue
                text, groups = part(bench)
                print(text, end="\n\n", flush=True)
                if args.write:
                    page.put(PAGE, name, f"{text}\n\n{machine()}")
                    if name == "calls":
                        _plot(groups[0])
    except (BenchError, OSError, subprocess.TimeoutExpired) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    print(machine())
    return 0


def _plot(group: Group) -> None:
    bars = [plot.Bar(name, median(row.ratios), row.ratios[0], row.ratios[-1]) for name, row in group.rows.items()]
    for name, theme in plot.THEMES.items():
        (PICTURES / f"costs-{name}.svg").write_text(plot.svg(TITLE, bars, theme))


if __name__ == "__main__":
    sys.exit(main())
