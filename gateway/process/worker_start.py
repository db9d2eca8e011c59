"""How workers start: the first ones are forked off the supervisor, their successors are new interpreters.

Most of a start is imports. So `forked` loads once what several workers need, and forks before the process has
threads, an event loop, a listener or a lock on a folder: a worker inherits none of these, and shares memory with the
others. One worker alone loads it after the fork: a page that it or the supervisor writes to, if only to count
references, would be there twice. A worker then waits on its control line: for the listening sockets (SCM_RIGHTS,
unix(7)), and for its configuration.

A supervisor that serves has threads, so that a fork is no longer safe. A successor is therefore a new interpreter, and
so is every worker where the system has no pidfd_open(2).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from gateway.config import Config


class Process(Protocol):
    """A worker as the supervisor sees it; `asyncio.subprocess.Process` is one."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Its exit code once it has ended; of a signal, its number below 0."""

    def send_signal(self, signal: int) -> None:
        """Raises `ProcessLookupError` if it has ended."""


class StartedWorker(NamedTuple):
    """A worker that waits for its listeners and its configuration."""

    process: Process
    line: socket.socket
    """The supervisor's end of the control line."""


class ForkedProcess:
    """A forked child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None

    async def wait(self) -> int:
        """Wait for its end, from one task at a time."""
        if self._code is None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(self._pidfd, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(self._pidfd)
        return self.reap()

    def reap(self) -> int:
        """Its exit code; blocks until it has ended."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._pidfd)
        return self._code

    def send_signal(self, signal_number: int) -> None:
        if self._code is not None:
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, signal_number)


@contextmanager
def forked(config: Config) -> Iterator[deque[StartedWorker]]:
    """The forked workers of this configuration, none where forking is not possible. Those that are left in the end are
    ended."""
    workers: deque[StartedWorker] = deque()
    if _can_fork():
        if config.server.workers > 1:
            _load_worker(config)
        gc.freeze()  # so that no collection touches the memory pages that processes share
        sys.stdout.flush()
        sys.stderr.flush()
        for _ in range(config.server.workers):
            workers.append(_fork([each.line for each in workers]))
    try:
        yield workers
    finally:
        for process, line in workers:
            line.close()
            if isinstance(process, ForkedProcess):
                process.reap()


def _can_fork() -> bool:
    if not hasattr(os, "pidfd_open") or threading.active_count() > 1:
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a sandbox
        return False
    return True


def _load_worker(config: Config) -> None:
    """Imports the worker with the garbage collector off, which would scan the imported objects a dozen times."""
    gc.disable()
    from . import worker

    worker.load(config)
    gc.enable()


def _fork(other_lines: Sequence[socket.socket]) -> StartedWorker:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        for line in (*other_lines, ours):  # the end of a line must not depend on other workers
            line.close()
        _run_worker(theirs)
    theirs.close()
    return StartedWorker(ForkedProcess(pid), ours)


def _run_worker(line: socket.socket) -> None:
    """Run the worker, and end this process: what it has inherited from its parent's functions is not for it."""
    code = 1
    try:
        gc.disable()  # as in `_load_worker`, where it was not loaded before; a worker that serves begins again
        from .worker import serve_on

        code = serve_on(line)
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


async def new_interpreter() -> StartedWorker:
    """A worker that imports everything itself. It imports from where this process does, and so not from the folder
    that they are started in."""
    places = [place for place in sys.path if place]
    code = f"import gc, sys; gc.disable(); sys.path[:] = {places!r}; from gateway.process.worker import main; main()"
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", code, str(theirs.fileno()), pass_fds=[theirs.fileno()]
        )
    return StartedWorker(process, ours)
