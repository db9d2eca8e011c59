"""Programs pinned to a core; their CPU time and memory from the kernel, with all child processes."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from tests.flows.client import request
from tests.flows.gateway_process import stat_of

from . import calls

START_S = 20.0
STOP_S = 15.0
_LOOK_S = 0.002
_SERVES = re.compile(r"serves http://127\.0\.0\.1:(\d+) ")
_TICKS = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """An invalid measurement, with its cause."""


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Processes started inside inherit this core."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def listener() -> socket.socket:
    """A listening socket on a port chosen by the kernel."""
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


class Probe(NamedTuple):
    """A request that shows whether a program serves, and the expected answer."""

    path: str = calls.PATH
    body: bytes = calls.request()
    headers: Mapping[str, str] = calls.HEADERS
    answer: bytes | None = calls.answer()
    """The exact body; None: any with status 200."""


class Program:
    """A program that answers calls, with its child processes on one core and in their own session.

    All processes that run at the first answer are measured; if one ends later, even with a successor, it is an error.
    Its output goes to files in `folder`. A `port` of None is read from the gateway's ready line there.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, core: int, port: int | None = None,
        *, env: Mapping[str, str] = {}, inherited: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.name = name
        self.port = port or 0
        self.start_s = 0.0
        self._output, self._errors = folder / "stdout", folder / "stderr"
        with self._output.open("wb") as out, self._errors.open("wb") as err, pinned(core):
            self._began = time.monotonic()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env={**os.environ, **env},
                pass_fds=inherited, start_new_session=True,
            )  # fmt: skip
        self.pids = [self._process.pid]
        self.probe = Probe()
        self.start_within_s = START_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """SIGINT ends nginx and the gateway quickly; processes that remain are killed."""
        try:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # its session: only its own child processes
            except ProcessLookupError:
                pass
            self._process.wait()

    def wait_until_answered(self) -> None:
        """Waits for an answer 200 to `probe`; `start_s` is the time since the start."""
        while not self._answers():
            self._check()
            if time.monotonic() > self._began + self.start_within_s:
                raise BenchError(f"{self.name} did not answer a call within {self.start_within_s:g} s")
            time.sleep(_LOOK_S)
        self.start_s = time.monotonic() - self._began
        self.pids = [self._process.pid, *_descendants(self._process.pid)]

    def _answers(self) -> bool:
        if not self.port and (found := _SERVES.search(self._output.read_text())):
            self.port = int(found[1])
        if not self.port:
            return False
        try:
            received = request(self.port, "POST", self.probe.path, self.probe.body, self.probe.headers)
        except (OSError, http.client.HTTPException):
            return False
        if received.status != 200 or self.probe.answer not in (None, received.body):
            raise BenchError(f"{self.name} answered {received.status}: {received.body.decode(errors='replace')[:500]}")
        return True

    def _check(self) -> None:
        if (code := self._process.poll()) is not None:
            raise BenchError(f"{self.name} ended with {code}: {self._errors.read_text().strip()[-2000:]}")

    def cpu_s(self) -> float:
        """User and system time in seconds, exact to the kernel's ticks of 10 ms."""
        try:
            return sum(int(field) for pid in self.pids for field in stat_of(pid)[11:13]) / _TICKS
        except OSError:
            raise BenchError(f"a process of {self.name} has died: {self._errors.read_text().strip()[-2000:]}") from None

    def memory_mb(self) -> float:
        """Memory of all processes, in MB; a page that several processes share counts once (Pss of proc(5),
        smaps_rollup)."""
        self.cpu_s()
        lines = [line for pid in self.pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6

    def peak_mb(self) -> float:
        """Peak resident memory in MB since `forget_peak`, summed over all processes."""
        lines = [line for pid in self.pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6

    def forget_peak(self) -> None:
        """Resets the peak (proc(5), clear_refs)."""
        for pid in self.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def _descendants(pid: int) -> list[int]:
    """Its children, and theirs."""
    listed = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {each: _parent(each) for each in listed}
    found = [pid]
    for one in found:
        found += [each for each, parent in parents.items() if parent == one]
    return found[1:]


def _parent(pid: int) -> int | None:
    try:
        return int(stat_of(pid)[1])
    except OSError:
        return None  # the process has ended
