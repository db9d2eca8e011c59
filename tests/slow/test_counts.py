"""A count says what was counted."""

from __future__ import annotations

import queue
import threading

from bench import ceilings, instruments, tally
from bench.counter import Function, Functions


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
    assert ceilings.of(rows) == ceilings.of(tally.by_function(functions, calls=10)) == (2, 1)
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


def test_strace_is_read() -> None:
    received = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 52.31    0.001234           1      1082           write
 47.69    0.001125           2       512        12 read
------ ----------- ----------- --------- --------- ----------------
100.00    0.002359           1      1594        12 total
"""
    assert instruments.read_strace(received) == {"write": 1082, "read": 512}


def test_callgrind_is_read() -> None:
    received = """version: 1
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
    executed, asked = instruments.read_callgrind(received, by_function=False)
    assert executed == {"libpython3.11.so.1.0": 9, "libc.so.6": 2}
    assert asked["blocks asked of Python's allocator"] == 10
    executed, _ = instruments.read_callgrind(received, by_function=True)
    assert executed["libpython3.11.so.1.0 _PyEval_EvalFrameDefault"] == 6
