"""Counts Python function calls, by function, in all threads of a process.

Unlike a time, a count does not depend on the load of the machine. Functions written in Python are counted at each
entry, coroutines at each resumption. Functions written in C are counted where Python calls them; code compiled by
Cython (uvloop, parts of aiohttp) is invisible to the interpreter's hook.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any, NamedTuple

LOOK_S = 0.002


class Function(NamedTuple):
    """A function written in Python, as JSON keeps it."""

    module: str
    name: str
    line: int
    entered: int
    """Calls, and resumptions of a coroutine."""
    calls_to_c: int
    """Calls from it to functions written in C."""


class Functions:
    """Counts from `begin` to `end`, in the calling thread and in all threads that start after this was made."""

    def __init__(self) -> None:
        self._is_on = False
        self._entered: dict[int, int] = {}
        self._calls_to_c: dict[int, int] = {}
        self._seen: dict[int, tuple[CodeType, str]] = {}
        threading.setprofile(self._note)

    def close(self) -> None:
        """Threads that start from now on are not counted."""
        threading.setprofile(None)

    def begin(self) -> None:
        """Starts to count."""
        self._entered.clear()
        self._calls_to_c.clear()
        self._is_on = True
        sys.setprofile(self._note)

    def end(self) -> list[Function]:
        """The counts since `begin`."""
        sys.setprofile(None)
        self._is_on = False
        entered, calls_to_c = dict(self._entered), dict(self._calls_to_c)
        return [
            Function(
                module, code.co_qualname, code.co_firstlineno, entered.get(number, 0), calls_to_c.get(number, 0)
            )
            for number, (code, module) in list(self._seen.items())
            if number in entered or number in calls_to_c
        ]  # fmt: skip

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._is_on:
            return
        if event == "call":
            counts = self._entered
        elif event == "c_call":
            counts = self._calls_to_c
        else:
            return
        code = frame.f_code
        number = id(code)
        if number not in self._seen:  # referenced, so that its id is not reused
            self._seen[number] = (code, str(frame.f_globals.get("__name__", "?")))
        counts[number] = counts.get(number, 0) + 1


class Memory:
    """Counts memory that remains after a load."""

    def begin(self) -> None:
        gc.collect()
        gc.disable()
        self._blocks = sys.getallocatedblocks()

    def end(self) -> dict[str, int]:
        """Objects in cyclic garbage, and the allocated blocks that remain after the collector ran."""
        unreachable = gc.collect()
        gc.enable()
        return {
            "objects that only the collector can free": unreachable,
            "blocks of Python's allocator": sys.getallocatedblocks() - self._blocks,
        }


class Gaps:
    """Delays of the event loop in milliseconds, caused by a callback, another thread or another process."""

    def begin(self) -> None:
        self._gaps_ms: list[float] = []
        self._worked_ms: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._is_on = True
        self._plan()

    def end(self) -> dict[str, list[float]]:
        """The delay of each tick, and the CPU time of the loop's thread since the tick before."""
        self._is_on = False
        return {"late": self._gaps_ms, "worked": self._worked_ms}

    def _plan(self) -> None:
        self._worked_s = time.thread_time()
        self._due = self._loop.time() + LOOK_S
        self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if self._is_on:
            self._gaps_ms.append((time.monotonic() - self._due) * 1e3)
            self._worked_ms.append((time.thread_time() - self._worked_s) * 1e3)
            self._plan()
