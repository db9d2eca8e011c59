"""A count says what was counted, and a call enters no more functions than it may."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

from tests.bench import ceilings, counts, instruments, redis_script, tally
from tests.bench.counter import Function, Functions

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the bench reads /proc")


def test_functions_are_counted_in_every_thread() -> None:
    functions = Functions()
    try:
        jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        thread = threading.Thread(target=_count_words, args=(jobs, done))
        thread.start()
        jobs.put("before it began")
        done.get()
        functions.begin()
        for _ in range(3):
            jobs.put("one two three")
            done.get()
        _words("here")
        counted = functions.end()
    finally:
        functions.close()
        jobs.put(None)
        thread.join()
    assert [(each.entered, each.calls_to_c) for each in counted if each.name == "_words"] == [(4, 8)]


def _count_words(jobs: queue.SimpleQueue[str | None], done: queue.SimpleQueue[int]) -> None:
    while (text := jobs.get()) is not None:
        done.put(_words(text))


def _words(text: str) -> int:
    return len(text.split())


def test_counts_are_added_up_by_module() -> None:
    functions = [
        Function("gateway.pipeline", "serve", 75, 10, 4),
        Function("gateway.pipeline", "prepare", 261, 10, 6),
        Function("aiohttp.web_protocol", "data_received", 438, 40, 0),
        Function("aiohttp.helpers", "noop", 1, 10, 0),
    ]
    rows = tally.by_module(functions, calls=10)
    assert rows == [tally.Row("aiohttp", 5, 0), tally.Row("gateway.pipeline", 2, 1)]
    assert ceilings.of(rows) == ceilings.of(tally.by_function(functions, calls=10)) == 2
    more = [functions[0]._replace(entered=60), *functions[1:]]
    (row, *rest) = tally.difference(tally.by_module(more, 10), rows, by=5)
    assert row == tally.Row("gateway.pipeline", 1, 0)
    assert {each[1:] for each in rest} == {(0, 0)}


def test_breadth_is_of_what_every_call_enters() -> None:
    functions = [
        Function("gateway.pipeline", "serve", 75, 10, 4),
        Function("gateway.pipeline", "Run.__init__", 261, 9, 6),
        Function("gateway.pipeline", "serve.<locals>.<listcomp>", 80, 10, 0),
        Function("gateway.journal.journal", "Journal.sync", 20, 1, 0),
        Function("gateway.relay", "attempt", 5, 20, 0),
        Function("aiohttp.helpers", "noop", 1, 10, 0),
    ]
    assert tally.breadth(functions, calls=10) == tally.Breadth(files=2, functions=3)


@needs_proc
async def test_a_call_goes_through_no_more_places_than_it_did(tmp_path: Path) -> None:
    found = await counts.breadths(counts.Bench(tmp_path))
    assert found.keys() == ceilings.BREADTH.keys()
    over = [name for name, most in ceilings.BREADTH.items() if any(map(int.__gt__, found[name], most))]
    assert not over, f"{found}, and at most {dict(ceilings.BREADTH)}: merge a function that has no idea of its own"


def test_strace_is_read() -> None:
    told = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 52.31    0.001234           1      1082           write
 47.69    0.001125           2       512        12 read
------ ----------- ----------- --------- --------- ----------------
100.00    0.002359           1      1594        12 total
"""
    assert instruments.read_strace(told) == {"write": 1082, "read": 512}


def test_callgrind_is_read() -> None:
    told = """version: 1
events: Ir
ob=(1) /usr/lib/libpython3.11.so.1.0
fl=(1) ceval.c
fn=(1) _PyEval_EvalFrameDefault
10 5000
cfn=(2) _PyObject_Malloc
calls=7 20
10 900000
+1 1000
fn=(2)
20 3000
ob=(2) /usr/lib/libc.so.6
fl=(2) malloc.c
fn=(3) malloc
30 2000
cob=(1)
cfn=(2)
calls=3 20
* 100
"""
    executed, asked = instruments.read_callgrind(told, by_function=False)
    assert executed == {"libpython3.11.so.1.0": 9, "libc.so.6": 2}
    assert asked["blocks asked of Python's allocator"] == 10
    executed, _ = instruments.read_callgrind(told, by_function=True)
    assert executed["libpython3.11.so.1.0 _PyEval_EvalFrameDefault"] == 6


@needs_proc
async def test_a_call_enters_no_more_functions_than_it_did(tmp_path: Path) -> None:
    found = await counts.functions(counts.Bench(tmp_path))
    assert found.keys() == ceilings.ENTERED.keys()
    over = {
        name: f"{ceilings.of(rows):.1f} functions, and there is room for {limit * ceilings.MARGIN:.1f}"
        for (name, rows), limit in zip(found.items(), ceilings.ENTERED.values(), strict=True)
        if ceilings.of(rows) > limit * ceilings.MARGIN
    }
    assert not over, (
        f"a call has become dearer: {over}. `python -m tests.bench.counts --only functions --functions` shows what is "
        "entered. Either make it cheaper, or say in the change why it has to be and write what `--ceilings` prints "
        "into tests/bench/ceilings.py."
    )


async def test_a_call_asks_no_more_of_redis_than_it_did(tmp_path: Path) -> None:
    found = await redis_script.commands(tmp_path)
    assert found.keys() == ceilings.REDIS.keys()
    over = {
        name: f"{count.served}, and at most {limit}"
        for (name, count), limit in zip(found.items(), ceilings.REDIS.values(), strict=True)
        if any(is_now > most * ceilings.MARGIN for is_now, most in zip(count.served, limit, strict=True))
    }
    assert not over, (
        f"a call has become dearer for Redis: {over}. `python -m tests.bench.counts --only redis` shows its commands. "
        "Either make it cheaper, or say in the change why it has to be and write what `--ceilings` prints into "
        "tests/bench/ceilings.py."
    )
