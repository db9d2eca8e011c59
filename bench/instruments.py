"""Counts of a worker by other programs: system calls by strace, instructions by Valgrind's callgrind."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from .processes import BenchError

ATTACH_S = 0.5
"""Wait for strace: it reports when it has attached to the first thread, but not to the others."""

END_S = 60.0

ALLOCATORS = {
    "_PyObject_Malloc": "blocks asked of Python's allocator", "_PyObject_Realloc": "blocks made longer or shorter",
    "malloc": "blocks asked of the C library",
}  # fmt: skip

_ROW = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$")
_NAME = re.compile(r"^(\w+)=\((\d+)\)(?: (.*))?$")


Load = Callable[[], Awaitable[None]]


class Missing(Exception):
    """An instrument is not installed or not permitted; the text is the cause."""


class Instrument(Protocol):
    """Counts operations of a worker under load."""

    def python(self, folder: Path) -> str:
        """The Python command to start the worker with; empty: the usual one. Raises `Missing`."""

    async def measure(self, worker: int, folder: Path, load: Load) -> dict[str, Counter[str]]:
        """The counts by table heading. `folder` has the temporary files of the worker.
        Raises `Missing`."""


class Strace:
    """System calls by name, of all threads."""

    def python(self, folder: Path) -> str:
        if shutil.which("strace") is None:
            raise Missing("strace is not installed; on Debian: apt install strace")
        return ""

    async def measure(self, worker: int, folder: Path, load: Load) -> dict[str, Counter[str]]:
        file = folder / "strace"
        tracer = await asyncio.create_subprocess_exec(
            "strace", "-c", "-f", "-o", str(file), "-p", str(worker), stderr=asyncio.subprocess.PIPE
        )
        assert tracer.stderr is not None
        said = await tracer.stderr.readline()
        if b"attached" not in said:
            await tracer.wait()
            raise Missing(said.decode().strip() or "strace ended at once")
        await asyncio.sleep(ATTACH_S)
        try:
            await load()
        finally:
            tracer.send_signal(signal.SIGINT)
            await asyncio.wait_for(tracer.communicate(), END_S)
        return {"system calls": read_strace(file.read_text())}


class Callgrind:
    """Thousands of instructions by library or by function, and allocated blocks of memory."""

    def __init__(self, *, by_function: bool) -> None:
        self._by_function = by_function

    def python(self, folder: Path) -> str:
        return self.program(folder, sys.executable)

    def program(self, folder: Path, program: str) -> str:
        """The command that runs this program in Valgrind, about thirty times as slow. `folder` has the temporary files
        of both. Raises `Missing`."""
        if shutil.which("valgrind") is None:
            raise Missing("valgrind is not installed; on Debian: apt install valgrind")
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed")
        file = folder / f"{Path(program).name}-under-callgrind"
        file.write_text(
            f"#!/bin/sh\nTMPDIR='{folder}' exec valgrind --tool=callgrind --instr-atstart=no "
            f"--callgrind-out-file='{folder}/callgrind.%p' --log-file='{folder}/valgrind.%p' "
            f"'{program}' \"$@\"\n"
        )
        file.chmod(0o700)
        return str(file)

    async def measure(self, worker: int, folder: Path, load: Load) -> dict[str, Counter[str]]:
        await self._order(worker, folder, "--instr=on")
        await load()
        await self._order(worker, folder, "--dump")
        await self._order(worker, folder, "--instr=off")
        executed, asked = read_callgrind(_newest(folder, worker), by_function=self._by_function)
        return {"thousands of instructions": executed, "blocks of memory": asked}

    async def _order(self, worker: int, folder: Path, order: str) -> None:
        control = await asyncio.create_subprocess_exec(
            "callgrind_control", order, str(worker), stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, env={**os.environ, "TMPDIR": str(folder)},
        )  # fmt: skip
        said, _ = await asyncio.wait_for(control.communicate(), END_S)
        if control.returncode or b"OK" not in said:
            raise BenchError(f"callgrind_control says: {said.decode().strip()[-300:]}")


def _newest(folder: Path, worker: int) -> str:
    """The newest file of callgrind; each dump has the next number."""
    files = folder.glob(f"callgrind.{worker}.*")
    return max(files, key=lambda file: int(file.suffix[1:])).read_text(errors="replace")


def read_strace(text: str) -> Counter[str]:
    """The table of `strace -c`."""
    found = (_ROW.match(line) for line in text.splitlines())
    return Counter({row[2]: int(row[1]) for row in found if row and row[2] != "total"})


def read_callgrind(text: str, *, by_function: bool) -> tuple[Counter[str], Counter[str]]:
    """From a file of callgrind: thousands of instructions, and calls of each allocator.

    The format is documented by Valgrind: a name is written once and referred to by number from then on; the line after
    `calls=` has the inclusive cost of the called function, which its own entry repeats.
    """
    names: dict[tuple[str, str], str] = {}
    executed: Counter[str] = Counter()
    called: Counter[str] = Counter()
    place = function = callee = ""
    is_callees = False
    for line in text.splitlines():
        if found := _NAME.match(line):
            kind, number, name = found.groups()
            if name:
                names[kind.lstrip("c"), number] = name
            if kind == "ob":
                place = names["ob", number]
            elif kind == "fn":
                function = names["fn", number]
            elif kind == "cfn":
                callee = names["fn", number]
        elif line.startswith("calls="):
            called[callee] += int(line[len("calls=") :].split()[0])
            is_callees = True
        elif line[:1] in "+-*0123456789" and line:
            if not is_callees:
                name = f"{Path(place).name} {function}" if by_function else Path(place).name
                executed[name] += int(line.split()[1])
            is_callees = False
    thousands = Counter({name: count // 1000 for name, count in executed.items()})
    return thousands, Counter({what: called[name] for name, what in ALLOCATORS.items()})
