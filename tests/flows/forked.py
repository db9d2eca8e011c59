"""Commands of the gateway as forks of one process that has imported it, which saves each of them most of its start.

The tiers `fast` and `slow` start commands so (`FORKS.begin` in tests/conftest.py), but for the files that judge starts;
the tier `alone` starts interpreters. This file is also the program of that process: it has one thread and neither an
event loop nor an open file that a command could inherit. A fork gets the environment, folder, session and standard
files that a new interpreter would get.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

IMPORTED = ("gateway.cli", "gateway.commands.serve", "gateway.process.supervisor", "gateway.process.worker")
AT_IMPORT = ("PYTHON", "SSL_CERT_", "LD_", "LC_", "LANG", "TZ")
"""Beginnings of the names of variables that the loader, the interpreter or a library reads at the start."""
LOOK_S = 0.005


class Fork:
    """As much of `subprocess.Popen` as tests use, of a process whose parent is the forking one."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forks = forks

    def poll(self) -> int | None:
        if self.returncode is None:
            self._forks.look()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
            time.sleep(LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """The forking process, which is started when it is first needed or shared, and ends with this one."""

    def __init__(self) -> None:
        self.is_paused = False
        """Whether commands are interpreters for now."""
        self._is_used = False
        self._environment: dict[str, str] = {}
        self._paths: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: list[socket.socket] = []
        """Of this process; before others are forked, of each of them."""
        self._rest = b""
        self._running: dict[int, Fork] = {}
        """By pid, which the system gives to another process later."""
        self._lock = threading.Lock()

    def begin(self, *paths: str) -> None:
        """From now on commands may be forks. `paths` are the values of PYTHONPATH that make no difference to what
        `IMPORTED` imports, only to what is imported later."""
        self._is_used = sys.platform == "linux"  # macOS: a fork must not use system libraries that were used before it
        self._paths = {*paths, os.environ.get("PYTHONPATH", "")}
        self._environment = dict(os.environ)

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork is the same as a new interpreter in this environment."""
        names = {name for name in {*environment, *self._environment} if name.startswith(AT_IMPORT)} - {"PYTHONPATH"}
        return (
            self._is_used
            and not self.is_paused
            and environment.get("PYTHONPATH", "") in self._paths
            and all(environment.get(name) == self._environment.get(name) for name in names)
        )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, output: Path) -> Fork:
        """`gateway ARGUMENTS` in this folder, in a session of its own; it writes `stdout` and `stderr` of `output`.
        A first argument that begins with `tests.` is a module, which is run in place of the gateway."""
        asked = {"arguments": arguments, "environment": dict(environment), "cwd": str(cwd), "output": str(output)}
        with self._lock:
            if not self._lines:
                self.share(1)
            (line,) = self._lines
            line.setblocking(True)
            line.sendall(json.dumps(asked).encode() + b"\n")
            while (pid := self._read()) is None:
                pass
            self._running[pid] = Fork(self, pid)
            return self._running[pid]

    def look(self) -> None:
        """Give the forks that have ended their exit codes."""
        with self._lock:
            self._lines[0].setblocking(False)
            try:
                while True:
                    self._read()
            except BlockingIOError:
                pass

    def end(self) -> None:
        """End the forking process."""
        self._is_used = False
        self.keep_none()
        if self._process is not None:
            self._process.wait()

    def share(self, count: int) -> None:
        """Start so many forking processes, for this process or for those that it is about to fork: one interpreter
        imports, and the others are its forks."""
        if not self._is_used:
            return
        pairs = [socket.socketpair() for _ in range(count)]
        self._lines = [line for line, _ in pairs]
        numbers = [theirs.fileno() for _, theirs in pairs]
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, *map(str, numbers)], pass_fds=numbers, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for _, theirs in pairs:
            theirs.close()

    def take(self, number: int) -> None:
        """In a fork of the process that shares: keep this one."""
        mine = self._lines[number : number + 1]
        self._lines = [line for line in self._lines if line not in mine]
        self.keep_none()
        self._lines = mine
        if self._process is not None:
            self._process.returncode = 0  # only the process that shares can wait for it

    def keep_none(self) -> None:
        """In the process that shares: a forking process ends when no process has its line."""
        for line in self._lines:
            line.close()
        self._lines = []

    def _read(self) -> int | None:
        """One message: returns the pid of a fork that was started, or gives one that has ended its code."""
        while b"\n" not in self._rest:
            piece = self._lines[0].recv(65536)
            assert piece, "the process that forks gateways has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\n")
        received: dict[str, int] = json.loads(message)
        if "code" in received:
            self._running.pop(received["pid"]).returncode = received["code"]
            return None
        return received["pid"]


FORKS = Forks()


# ------------------------------------------------------------------------------------------------ the forking process


def serve(line: socket.socket) -> list[str] | None:
    """Fork until the line ends; returns None then, and in each fork the arguments of its command."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    rest = b""
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            for pid, code in _ended():
                line.sendall(json.dumps({"pid": pid, "code": code}).encode() + b"\n")
        if line in ready:
            piece = line.recv(1 << 20)
            if not piece:
                return None
            *asked, rest = (rest + piece).split(b"\n")
            for each in map(json.loads, asked):
                pid = _fork(each, (line, woken, wakes))
                if not pid:
                    arguments: list[str] = each["arguments"]
                    return arguments
                line.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _path(environment: Mapping[str, str]) -> list[str]:
    return [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


def _ended() -> list[tuple[int, int]]:
    found = []
    try:
        while (each := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((each[0], os.waitstatus_to_exitcode(each[1])))
    except ChildProcessError:
        pass
    return found


def _fork(asked: Mapping[str, Any], sockets: Sequence[socket.socket]) -> int:
    """The pid in the parent, once the fork has a session of its own; 0 in the fork."""
    began, begins = os.pipe()
    pid = os.fork()
    os.close(began if not pid else begins)
    if pid:
        os.read(began, 1)
        os.close(began)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in sockets:
        each.close()
    os.setsid()
    os.chdir(asked["cwd"])
    mine = _path(os.environ)
    sys.path[:] = _path(asked["environment"]) + [each for each in sys.path if each not in mine]
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    for number, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(Path(asked["output"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.close(begins)
    return 0


def _one_for_each(lines: Sequence[socket.socket]) -> socket.socket | None:
    """Returns in a fork for each line, with that line; and when all of them have ended, with None."""
    for line in lines:
        if not os.fork():
            for other in lines:
                if other is not line:
                    other.close()
            return line
    for line in lines:
        line.close()
    for _ in lines:
        os.wait()
    return None


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process; the ends of the lines count
    for name in IMPORTED:
        __import__(name)
    gc.collect()
    gc.freeze()
    line = _one_for_each([socket.socket(fileno=int(number)) for number in sys.argv[1:]])
    arguments = serve(line) if line is not None else None
    if arguments is not None:
        if arguments[0].startswith("tests."):
            sys.path.append(str(Path(__file__).parents[2]))
            sys.exit(import_module(f"{arguments[0]}.__main__").main(arguments[1:]))
        sys.argv = ["gateway", *arguments]
        sys.exit(sys.modules["gateway.cli"].main(arguments))


if __name__ == "__main__":
    _main()
