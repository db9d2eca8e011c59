"""What a draw and a settlement cost Redis, counted: commands, bytes, and where Valgrind is installed, instructions.

Batches of one worker go straight to a real server, first of one item each, then of many. A command counts whether it
comes from the gateway or from inside the script; each batch is one round trip.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from gateway.config import StoreSettings as Settings
from gateway.quota.ledger_entry import encode
from gateway.records import Usage
from gateway.store import Batch, Item, Reserve, Settle
from gateway.store.redis.store import RedisStore
from tests.fakes.redis_servers import MissingServer, RedisServer

from . import drawing
from .counter import Function
from .instruments import Callgrind, Missing
from .ledger import Keys

KEYS, WINDOWS = 10, 3
CALLS = 256
SIZES = (1, 64)
"""Items of a batch."""

SHORTEST_S, LONGER, DURATIONS = 0.05, 1.19, 30
"""How long calls last: some seconds at most, each a bucket longer than the one before."""

PATIENCE_S = 60.0
"""Time limit of a batch: Valgrind is slow."""

OF_THE_COUNT = {"config", "config|resetstat", "info"}
"""Commands of this count itself."""


class Served(NamedTuple):
    """What Redis did for one item, on average."""

    commands: float
    """The script itself among them."""
    sent: float
    """Bytes from the gateway."""
    received: float
    """Bytes to the gateway."""


class CommandCount(NamedTuple):
    """What Redis says of some items."""

    served: Served
    by_command: Mapping[str, float]
    """Commands of an item."""
    usec: float
    """Microseconds of an item in the script, by the wall's clock: to be compared within one run alone."""


Portion = Callable[[], Awaitable[None]]
"""A part of the load."""


class _Load:
    """One worker that draws and settles."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._keys = Keys(KEYS, WINDOWS)
        self._worker = uuid.uuid4().hex
        self._seq = self._number = 0

    async def _send(self, items: Sequence[Item], size: int) -> None:
        for first in range(0, len(items), size):
            self._seq += 1
            await self._store.apply(Batch(self._worker, self._seq, self._seq - 1, items[first : first + size]))

    def portions(self, calls: int, size: int) -> dict[str, Portion]:
        """The draws of so many calls, and their settlements, in batches of this size."""
        reserves = [self._keys.draw() for _ in range(calls)]
        ends = [self._end(reserve) for reserve in reserves]
        at_once = "alone" if size == 1 else f"{size} at once"
        return {
            f"a draw, {at_once}": lambda: self._send(reserves, size),
            f"a settlement, {at_once}": lambda: self._send(ends, size),
        }

    def _end(self, reserve: Reserve) -> Settle:
        self._number += 1
        duration_s = SHORTEST_S * LONGER ** (self._number % DURATIONS)
        record = reserve.record._replace(usage=Usage(210, 34, source="reported"), ended="done", duration_s=duration_s)
        return Settle(self._number, record, reserve.claims, encode(record, reserve.claims))


@asynccontextmanager
async def _load(server: RedisServer) -> AsyncIterator[_Load]:
    store = RedisStore(Settings(url=server.url, namespace="counts"))
    store._writing._limit_s = PATIENCE_S
    try:
        load = _Load(store)
        for size in SIZES:
            for portion in load.portions(size * 2, size).values():
                await portion()  # warm
        yield load
    finally:
        await store.close()


def _server(folder: Path, **settings: str) -> RedisServer:
    try:
        return RedisServer(folder / "redis", **settings)  # type: ignore[arg-type]
    except MissingServer as missing:
        raise Missing(str(missing)) from None


async def commands(folder: Path) -> dict[str, CommandCount]:
    """By heading, what Redis counts. Raises `Missing`."""
    found = {}
    with _server(folder) as server:
        async with _load(server) as load:
            for size in SIZES:
                for name, portion in load.portions(CALLS, size).items():
                    server.call("CONFIG", "RESETSTAT")
                    await portion()
                    found[name] = _read(server.cli("INFO", "all"), CALLS)
    return found


async def functions(folder: Path) -> list[Function]:
    """What a lone draw and its settlement enter in a worker on Redis. Raises `Missing`."""
    with _server(folder) as server:
        return await drawing.count(folder, CALLS, 1, WINDOWS, redis_url=server.url)


async def instructions(folder: Path, *, by_function: bool) -> dict[str, Counter[str]]:
    """By heading, thousands of instructions of all `CALLS` together, by library or function. Raises `Missing`."""
    callgrind, found = Callgrind(by_function=by_function), {}
    with _server(folder, binary=callgrind.program(folder, "redis-server")) as server:
        async with _load(server) as load:
            for size in SIZES:
                for name, portion in load.portions(CALLS, size).items():
                    counted = await callgrind.measure(server.pid, folder, portion)
                    found[name] = counted["thousands of instructions"]
    return found


def _read(answered: str, calls: int) -> CommandCount:
    """The sections `commandstats` and `stats` of INFO."""
    rows = re.findall(r"^cmdstat_([\w|]+):calls=(\d+),usec=(\d+)", answered, re.MULTILINE)
    by_command = {name: int(times) / calls for name, times, _ in rows if name not in OF_THE_COUNT}
    usec = sum(int(usec) for name, _, usec in rows if name == "evalsha")
    net = {
        way: int(count) for way, count in re.findall(r"^total_net_(input|output)_bytes:(\d+)", answered, re.MULTILINE)
    }
    served = Served(sum(by_command.values()), net["input"] / calls, net["output"] / calls)
    return CommandCount(served, by_command, usec / calls)


def table(found: Mapping[str, CommandCount]) -> str:
    """As text, with the commands below each heading."""
    lines = [f"{'Redis, for each':50} {'commands':>9} {'sent, B':>9} {'received':>9} {'us':>7}"]
    for name, (served, by_command, usec) in found.items():
        lines.append(f"  {name:48} {served.commands:9.2f} {served.sent:9.0f} {served.received:9.0f} {usec:7.1f}")
        each = sorted(by_command.items(), key=lambda row: (-row[1], row[0]))
        lines.append("    " + ", ".join(f"{command} {times:.2f}".removesuffix(" 1.00") for command, times in each))
    return "\n".join(lines)
