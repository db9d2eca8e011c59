"""Streams from 50 to 10,000 at once, with as many chunks a second each time: what a chunk costs, and the memory."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import nginx, ours
from .processes import Program
from .streams import Upstream, streams
from .table import RIVALS, Group

STREAMS = (50, 500, 5_000, 10_000)
"""As far as the machine allows so many descriptors: see `_room`."""
CHUNKS_A_SECOND = 5_000
SECONDS = 6
SETTLE_S = 1.0
SPARE = 100
"""Descriptors for all else."""


async def measure(folders: tuple[Path, Path], core: int, counts: Sequence[int] = STREAMS) -> list[Group]:
    """CPU per chunk, and memory, of nginx and the gateway in turns."""
    room = _room()
    chunks = Group(f"CPU per chunk, us, at {CHUNKS_A_SECOND} chunks a second")
    memory = Group("Memory of all its processes, MB")
    upstream = Upstream()
    async with await upstream.start():
        with (
            nginx.proxy(
                folders[0], core, upstream.port, is_buffered=False, connections=2 * max(STREAMS) + SPARE
            ) as theirs,
            ours.serving(_settings(folders[1], upstream.port), folders[1], core) as gateway,
        ):
            rivals = dict(zip(RIVALS, (theirs, gateway), strict=True))
            for name, program in rivals.items():
                await asyncio.to_thread(program.wait_until_answered)
                memory.add(name, {"no stream": program.memory_mb()})
            for count in [min(count, room) for count in counts]:
                for name, program in rivals.items():
                    cpu_us, memory_mb = await _measure(program, upstream, count)
                    chunks.add(name, {f"{count:,} streams": cpu_us})
                    memory.add(name, {f"{count:,} streams": memory_mb})
    return [chunks, memory]


def _room() -> int:
    """How many streams fit: each takes two descriptors, here and in each rival, and the gateway keeps a quarter of its
    own from clients (gateway/web/http_guard/fd_limit.py)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * max(STREAMS) if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted * 3 // 8 - SPARE


def _settings(folder: Path, upstream: int) -> dict[str, Any]:
    received = ours.settings(folder, upstream)
    received["server"]["max_in_flight"] = received["upstreams"]["main"]["max_connections"] = 2 * max(STREAMS)
    return received


async def _measure(program: Program, upstream: Upstream, count: int) -> tuple[float, float]:
    """CPU us per chunk, and the memory while they are open."""
    async with streams(program.port, upstream, count, count / CHUNKS_A_SECOND):
        await asyncio.sleep(SETTLE_S)
        cpu_s, written = program.cpu_s(), upstream.written
        await asyncio.sleep(SECONDS)
        cpu_us = (program.cpu_s() - cpu_s) / (upstream.written - written) * 1e6
        memory_mb = program.memory_mb()
    await upstream.hang_up()
    return cpu_us, memory_mb
