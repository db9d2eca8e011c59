"""What one core, one gigabyte and one Redis carry: a few short measurements, and the division."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

from . import crowds, ledger, wide
from .cases import CASES, MAIN
from .table import Group

BUSY = 0.6
"""Of a core, on average: what is left is for the worst minute of the hour."""
CHUNKS_A_SECOND = 30
"""Of a stream, as a model writes."""
FEW, MANY = 500, 5_000


class Figures(NamedTuple):
    """What was measured; microseconds of CPU, and bytes."""

    call_us: float
    call_on_redis_us: float
    chunk_us: float
    stream_bytes: float
    rest_bytes: float
    """A gateway with one worker that does nothing."""
    redis_us: float
    """In Redis, for a call with three windows, as they go together in a batch under load."""
    redis_window_us: float


def measure(bench: wide.Bench) -> Figures:
    """In two minutes."""
    cpu, latency, redis = Group("cpu"), Group("latency"), Group("redis")
    on_redis = next(case for case in CASES if case.store == "redis")
    for case in (MAIN, on_redis):
        wide.measure(bench, case, cpu, latency, redis)
    chunks, memory = uvloop.run(crowds.measure((bench.new_folder(), bench.new_folder()), bench.measured, (FEW, MANY)))
    mb = {name: row.seen["gateway"][0] for name, row in memory.rows.items()}
    costs = ledger.measure(bench.new_folder(), bench.measured, ledger.CASES[:3], seconds=3)
    one, three, six = (costs[case].redis_us for case in ledger.CASES[:3])
    return Figures(
        call_us=_ours(cpu, MAIN.name),
        call_on_redis_us=_ours(cpu, on_redis.name),
        chunk_us=_ours(chunks, f"{MANY:,} streams"),
        stream_bytes=(mb[f"{MANY:,} streams"] - mb[f"{FEW:,} streams"]) / (MANY - FEW) * 1e6,
        rest_bytes=mb["no stream"] * 1e6,
        redis_us=three,
        redis_window_us=(six - one) / 5,
    )


def _ours(group: Group, name: str) -> float:
    return median(group.rows[name].seen["gateway"])


def carried(seen: Figures, record_bytes: float) -> Mapping[str, tuple[str, str]]:
    """What is carried, how much of it, and the division. `record_bytes`: of memory in Redis."""
    room = f"1 s x {BUSY:g}"
    stream_us = CHUNKS_A_SECOND * seen.chunk_us
    return {
        "whole calls a second, one core, embedded": (_by(seen.call_us), f"{room} / {seen.call_us:.0f} us"),
        "whole calls a second, one core, on Redis": (
            _by(seen.call_on_redis_us), f"{room} / {seen.call_on_redis_us:.0f} us",
        ),
        "chunks a second, one core": (_by(seen.chunk_us), f"{room} / {seen.chunk_us:.1f} us"),
        f"streams at {CHUNKS_A_SECOND} chunks a second, one core": (
            _by(stream_us), f"{room} / ({CHUNKS_A_SECOND} x {seen.chunk_us:.1f} us)",
        ),
        "streams that wait, one GB": (
            _rounded((1e9 - seen.rest_bytes) / seen.stream_bytes),
            f"(1 GB - {seen.rest_bytes / 1e6:.0f} MB) / {seen.stream_bytes / 1e3:.0f} KB",
        ),
        "calls a second, one Redis, three windows": (_by(seen.redis_us), f"{room} / {seen.redis_us:.0f} us"),
        "the same with six windows": (
            _by(seen.redis_us + 3 * seen.redis_window_us),
            f"{room} / ({seen.redis_us:.0f} + 3 x {seen.redis_window_us:.1f} us)",
        ),
        "usage records, one GB of Redis": (_rounded(1e9 / record_bytes), f"1 GB / {record_bytes:.0f} bytes"),
    }  # fmt: skip


def _by(us: float) -> str:
    """So many a second."""
    return _rounded(BUSY * 1e6 / us)


def _rounded(number: float) -> str:
    """To two digits: more of them would promise too much."""
    return f"{float(f'{number:.2g}'):,.0f}"


def render(received: Mapping[str, tuple[str, str]]) -> str:
    """As a table in Markdown."""
    lines = ["| One carries | about | because |", "| --- | ---: | --- |"]
    return "\n".join([*lines, *[f"| {name} | {much} | {why} |" for name, (much, why) in received.items()]])


def figures(folder: Path) -> Figures:
    """All of it."""
    return measure(wide.Bench(folder, 1))
