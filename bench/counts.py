"""`make counts`: what a call costs, counted and not timed, so that it says the same on a busy machine.

Of a plain call, of a stream, of each chunk, and of a draw with its settlement: the functions that are entered, module
by module; the memory that stays behind; and where the programs for it are installed, system calls and instructions, and
what a draw and a settlement cost Redis.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from . import ceilings, drawing, instruments, redis_script, tally
from .counter import Function
from .counting import Counted
from .lockstep import Upstream, plain, streamed
from .processes import BenchError

CALLS, DRAWS = 512, 640
WARM = 128
AT_ONCE = 64
PAUSED, PAUSE_S = 200, 0.009
"""Calls with a pause between, about a hundred a second."""
STREAMS = 10
EVENTS = 100
"""Of the longer of two streams, whose difference is what a chunk costs."""

PLAIN = {"a plain call, alone": 1, f"a plain call, {AT_ONCE} at once": AT_ONCE}
DRAWING = {
    "a draw and its settlement, alone": (1, True),
    "a draw and its settlement, alone, of one of several workers": (1, False),
    f"a draw and its settlement, {AT_ONCE} at once": (AT_ONCE, False),
}
"""How many at once; whether by the only worker."""
STREAM, CHUNK = "a stream of one chunk, alone", "a further chunk"

SHOWN = 40
SHOWN_FUNCTIONS = 100

Load = Callable[[], Coroutine[Any, Any, None]]


class Bench:
    """A folder and the core of the gateways, and what is shown."""

    def __init__(self, folder: Path, *, with_functions: bool = False) -> None:
        self._folder = folder
        self.core = min(os.sched_getaffinity(0))
        self.with_functions = with_functions
        self.shown = SHOWN_FUNCTIONS if with_functions else SHOWN

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def rows(self, functions: list[Function], calls: int) -> list[tally.Row]:
        """As they are shown."""
        return (tally.by_function if self.with_functions else tally.by_module)(functions, calls)


async def functions(bench: Bench) -> dict[str, list[tally.Row]]:
    """The functions that are entered, under the headings of the table."""
    received: dict[str, list[tally.Row]] = {}
    upstream = Upstream()
    async with await upstream.start():
        with Counted(bench.new_folder(), bench.core, upstream.port, "functions") as gateway:
            await asyncio.to_thread(gateway.wait)
            for name, at_once in PLAIN.items():
                load = partial(plain, gateway.port, upstream)
                await load(WARM, at_once)
                received[name] = bench.rows(await gateway.functions(load(CALLS, at_once)), CALLS)
            short, long = [
                bench.rows(await gateway.functions(streamed(gateway.port, upstream, STREAMS, events)), STREAMS)
                for events in (1, 1 + EVENTS)
            ]
            received[STREAM] = short
            received[CHUNK] = tally.difference(long, short, EVENTS)
    for name, (at_once, is_alone) in DRAWING.items():
        counted = await drawing.count(bench.new_folder(), DRAWS, at_once, is_alone=is_alone)
        received[name] = bench.rows(counted, DRAWS)
    return received


async def breadths(bench: Bench) -> dict[str, tally.Breadth]:
    """The files and functions that a call goes through, for a plain call and for a stream."""
    upstream = Upstream()
    async with await upstream.start():
        with Counted(bench.new_folder(), bench.core, upstream.port, "functions") as gateway:
            await asyncio.to_thread(gateway.wait)
            await plain(gateway.port, upstream, WARM, 1)
            alone = await gateway.functions(plain(gateway.port, upstream, WARM, 1))
            await streamed(gateway.port, upstream, STREAMS, 1)
            stream = await gateway.functions(streamed(gateway.port, upstream, STREAMS, 1))
    return {"a plain call": tally.breadth(alone, WARM), "a stream": tally.breadth(stream, STREAMS)}


async def show_breadths(bench: Bench) -> list[str]:
    found = await breadths(bench)
    lines = [f"  {name:68} {each.files:9} {each.functions:11}" for name, each in found.items()]
    return ["\n".join([f"{'entered by every call, of the gateway itself':70} {'files':>9} {'functions':>11}", *lines])]


async def show_functions(bench: Bench) -> list[str]:
    return [tally.table(name, rows, bench.shown) for name, rows in (await functions(bench)).items()]


async def memory(bench: Bench) -> list[str]:
    """What stays behind: the difference of thrice as many, for what stays but once is no growth."""
    upstream, tables = Upstream(), []
    async with await upstream.start():
        with Counted(bench.new_folder(), bench.core, upstream.port, "memory") as gateway:
            await asyncio.to_thread(gateway.wait)

            def calls(count: int) -> Coroutine[Any, Any, None]:
                return plain(gateway.port, upstream, count, 1)

            def chunks(count: int) -> Coroutine[Any, Any, None]:
                return streamed(gateway.port, upstream, 1, count)

            for name, load in (("a plain call", calls), (CHUNK, chunks)):
                await load(CALLS)
                once, thrice = [await gateway.memory(load(CALLS * times)) for times in (1, 3)]
                thrice.subtract(once)
                tables.append(tally.numbers(f"{name}: left behind", thrice, 2 * CALLS))
    return tables


async def system_calls(bench: Bench) -> list[str]:
    """By name, as strace counts them; also for calls with a pause between, which share less."""
    return await _instrumented(bench, instruments.Strace(), PAUSED)


async def instructions(bench: Bench) -> list[str]:
    """By the library that has them, or by function, as callgrind counts them; and blocks of memory asked for."""
    return await _instrumented(bench, instruments.Callgrind(by_function=bench.with_functions))


async def system_calls_held(bench: Bench) -> dict[str, float]:
    """Of a call of many at once: what runs by the clock makes more of them for one that takes longer. Raises
    `instruments.Missing`."""
    held = {name: at_once for name, at_once in PLAIN.items() if at_once > 1}
    found = await _measured(bench, instruments.Strace(), held)
    each = {heading.partition(": ")[0]: counts.total() / calls for heading, (counts, calls) in found.items()}
    return {name: each[name] for name in held}


async def _instrumented(bench: Bench, instrument: instruments.Instrument, paused: int = 0) -> list[str]:
    found = await _measured(bench, instrument, PLAIN, paused)
    return [tally.numbers(heading, counts, calls, bench.shown) for heading, (counts, calls) in found.items()]


async def _measured(
    bench: Bench, instrument: instruments.Instrument, plains: Mapping[str, int], paused: int = 0
) -> dict[str, tuple[Counter[str], int]]:
    """Counts and the number of calls or chunks that they are of, by heading."""
    folder, upstream = bench.new_folder(), Upstream()
    found: dict[str, tuple[Counter[str], int]] = {}
    async with await upstream.start():
        with Counted(folder, bench.core, upstream.port, python=instrument.python(folder)) as gateway:
            await asyncio.to_thread(gateway.wait)
            port = gateway.port
            measure = partial(instrument.measure, gateway.worker, folder)
            if paused:
                await plain(port, upstream, WARM, 1)
                seen = await measure(partial(plain, port, upstream, paused, 1, PAUSE_S))
                found |= {
                    f"a plain call, about 100 a second: {what}": (counts, paused) for what, counts in seen.items()
                }
            for name, at_once in plains.items():
                await plain(port, upstream, WARM, at_once)
                seen = await measure(partial(plain, port, upstream, CALLS, at_once))
                found |= {f"{name}: {what}": (counts, CALLS) for what, counts in seen.items()}
            await streamed(port, upstream, STREAMS, 2)
            few, many = [
                await measure(partial(streamed, port, upstream, STREAMS, events)) for events in (1, 1 + EVENTS)
            ]
            for what, counts in many.items():
                counts.subtract(few[what])
                found[f"{CHUNK}: {what}"] = counts, STREAMS * EVENTS
    return found


async def redis(bench: Bench) -> list[str]:
    """Commands and bytes of a draw and of a settlement in Redis, and what both enter in the worker."""
    entered = bench.rows(await redis_script.functions(bench.new_folder()), redis_script.CALLS)
    found = await redis_script.commands(bench.new_folder())
    return [redis_script.table(found), tally.table(ceilings.ON_REDIS, entered, bench.shown)]


async def redis_instructions(bench: Bench) -> list[str]:
    """Instructions of Redis, as callgrind counts them, of a draw and of a settlement."""
    found = await redis_script.instructions(bench.new_folder(), by_function=bench.with_functions)
    return [
        tally.numbers(f"{name}: thousands of instructions", counts, redis_script.CALLS, bench.shown)
        for name, counts in found.items()
    ]


PARTS: Mapping[str, Callable[[Bench], Coroutine[Any, Any, list[str]]]] = {
    "functions": show_functions,
    "breadth": show_breadths,
    "memory": memory,
    "system-calls": system_calls,
    "instructions": instructions,
    "redis": redis,
    "redis-instructions": redis_instructions,
}


def main() -> int:
    """Count and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.counts", description="What a call costs, counted.")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--functions", action="store_true", help="by function instead of by module and library")
    parser.add_argument("--ceilings", action="store_true", help="the table of bench/ceilings.py as it would be now")
    args = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory(prefix="gateway-counts-") as folder:
        bench = Bench(Path(folder), with_functions=args.functions)
        try:
            if args.ceilings:
                print(ceilings.spell(uvloop.run(functions(bench))))
                on_redis = bench.rows(uvloop.run(redis_script.functions(bench.new_folder())), redis_script.CALLS)
                print(ceilings.spell({ceilings.ON_REDIS: on_redis}))
                print(ceilings.spell_redis(uvloop.run(redis_script.commands(bench.new_folder()))))
                return 0
            for name, part in PARTS.items():
                if args.only not in (None, name):
                    continue
                try:
                    print("\n\n".join(uvloop.run(part(bench))), end="\n\n", flush=True)
                except instruments.Missing as missing:
                    print(f"counts: no {name}: {missing}", file=sys.stderr)
        except (BenchError, OSError) as error:
            print(f"counts: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
