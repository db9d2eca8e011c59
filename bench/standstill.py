"""The longest delay of the event loop under load: plain calls at full speed, and streams."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from . import load, lone, nginx
from .counting import Counted
from .streams import Upstream, streams

SECONDS = 6
STREAMS = 200
CONNECTIONS = (4, load.CONNECTIONS)
"""Connections: with few, an iteration of the loop serves a few calls; with many, all that arrived meanwhile."""
LIMIT_MS = 5.0


async def measure(folders: tuple[Path, Path, Path], measured: int, own: int) -> str:
    """As a table in Markdown."""
    rows = {}
    with nginx.upstream(folders[0], own) as behind, Counted(folders[1], measured, behind.port, "gaps") as gateway:
        await asyncio.to_thread(gateway.wait)
        await asyncio.to_thread(load.run, gateway.port, 1, folders[0])
        for count in CONNECTIONS:
            calls = partial(load.run, gateway.port, SECONDS, folders[0], connections=count)
            rows[f"whole calls, {count} connections"] = await gateway.gaps(asyncio.to_thread(calls))
        most = await asyncio.to_thread(load.run, gateway.port, 2, folders[0])
        half = lone.load(gateway.port, most.requests / 2 / 2, SECONDS, seed=1)
        rows["whole calls at half of that rate"] = await gateway.gaps(half)
    upstream = Upstream()
    async with await upstream.start():
        with Counted(folders[2], measured, upstream.port, "gaps") as gateway:
            await asyncio.to_thread(gateway.wait)
            async with streams(gateway.port, upstream, STREAMS, 0.02):
                rows[f"{STREAMS} streams, a chunk every 20 ms"] = await gateway.gaps(asyncio.sleep(SECONDS))
    lines = [
        f"| The event loop in {SECONDS} s | late at most, ms | 99 % | over {LIMIT_MS:g} ms | own work at most, ms |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, seen in rows.items():
        late = sorted(seen["late"])
        over = sum(each > LIMIT_MS for each in late)
        lines.append(
            f"| {name} | {late[-1]:.1f} | {late[len(late) * 99 // 100]:.1f} | {over} of {len(late)} "
            f"| {max(seen['worked']):.1f} |"
        )
    return "\n".join(lines)
