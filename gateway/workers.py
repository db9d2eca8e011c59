"""The supervisor: one socket, N workers; signals and configuration down, metrics and restarts up.

The parent binds the socket once; workers are fresh processes that inherit it, so that a dying worker's waiting
connections are served by the others (SO_REUSEPORT would lose them). The parent alone has read the configuration and
hands it down; it carries no call itself. A worker that dies is replaced after a pause; `MAX_DEATHS` in a minute mean
that replacing will not help, and the gateway ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from . import __version__, folders
from .config import Config
from .control import Line
from .tasks import Tasks

MAX_DEATHS = 5
DEATHS_WITHIN_S = 60.0
RESTART_AFTER_S = (0.1, 0.5, 1.0, 2.0, 4.0)
KILL_AFTER_S = 10.0
"""How long after the last moment of its drain a worker may take to end."""

log = logging.getLogger("gateway")


class CannotServe(Exception):
    """The gateway cannot start or go on; the text tells a person what to do."""


def bind(host: str, port: int) -> socket.socket:
    """The listening socket. Raises `CannotServe` in plain words where the address is taken or not ours."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        hint = "; is another gateway running? Choose another with --port" if error.errno == errno.EADDRINUSE else ""
        raise CannotServe(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}{hint}") from None
    return listener


class Supervisor:
    """The parent of the workers. Used from one event loop."""

    def __init__(self, config: Config, values: Mapping[str, Any], listener: socket.socket) -> None:
        self._config = config
        self._values = values
        self._listener = listener
        self._metrics_dir = ""
        self._tasks = Tasks()
        self._lines: dict[int, Line] = {}
        """By worker slot."""
        self._ready: set[int] = set()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._stopping: float | None = None
        """Once stopping: how long workers go on serving, in seconds."""
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until a signal says otherwise. Raises `CannotServe` when the workers cannot be kept alive."""
        with folders.temporary("gateway-metrics-") as folder:
            self._metrics_dir = str(folder)
            await self._run(on_ready)

    async def _run(self, on_ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, self._config.server.drain_delay_s)
        loop.add_signal_handler(signal.SIGINT, self._stop, 0.0)
        loop.add_signal_handler(signal.SIGHUP, log.warning, "SIGHUP: reloading does not work yet; restart the gateway")
        slots = [
            self._tasks.spawn(self._keep_alive(slot, on_ready), f"worker-{slot}")
            for slot in range(self._config.server.workers)
        ]
        everyone: asyncio.Future[list[None]] = asyncio.gather(*slots)
        try:
            waited: list[asyncio.Future[Any]] = [everyone, self._failed]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                if self._stopping is None:
                    self._stop(0.0)
                await everyone
                self._failed.result()
        finally:
            await self._tasks.cancel_all()

    def _stop(self, delay_s: float) -> None:
        if self._stopping is not None:
            for process in self._processes.values():  # asked twice: now
                _signal(process, signal.SIGKILL)
            self._fail("asked to stop a second time: what was under way has been cut off")
            return
        self._stopping = delay_s
        self._listener.close()  # else the kernel would go on accepting for it, when no worker does any more
        for line in self._lines.values():
            line.send(drain=delay_s)

    async def _keep_alive(self, slot: int, on_ready: Callable[[], None]) -> None:
        deaths = 0
        while not self._is_stopping():
            began = time.monotonic()
            process, line = await self._start(slot)
            self._tasks.spawn(self._listen(slot, process, line, on_ready), f"line-{slot}")
            code = await self._wait(process)
            self._gone(slot, process)
            if self._is_stopping():
                return
            deaths = deaths + 1 if time.monotonic() - began < DEATHS_WITHIN_S else 1
            log.error("worker %d (pid %d) ended with %s; starting another", slot, process.pid, _cause(code))
            self._deaths.append(time.monotonic())
            if len(self._deaths) == MAX_DEATHS and self._deaths[-1] - self._deaths[0] < DEATHS_WITHIN_S:
                self._fail(f"{MAX_DEATHS} workers died within {DEATHS_WITHIN_S:g} s; giving up")
                return
            await asyncio.sleep(RESTART_AFTER_S[min(deaths, len(RESTART_AFTER_S)) - 1])

    def _is_stopping(self) -> bool:
        return self._stopping is not None

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        """Wait for a worker's end; one that is stopping and does not end in time is killed."""
        ended = self._tasks.spawn(process.wait(), f"wait-{process.pid}")
        while not ended.done():
            await asyncio.wait([ended], timeout=1.0)
            if self._stopping is not None and not ended.done():
                limit_s = self._stopping + self._config.server.drain_timeout_s + KILL_AFTER_S
                await asyncio.wait([ended], timeout=limit_s)
                if not ended.done():
                    log.error("worker pid %d did not end in time; killing it", process.pid)
                    _signal(process, signal.SIGKILL)
        code: int = ended.result()
        return code

    async def _start(self, slot: int) -> tuple[asyncio.subprocess.Process, Line]:
        ours, theirs = socket.socketpair()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            _start_code(),
            str(self._listener.fileno()),
            str(theirs.fileno()),
            pass_fds=(self._listener.fileno(), theirs.fileno()),
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._metrics_dir},
        )
        theirs.close()
        line = await Line.over(ours)
        line.send(config=self._values, generation=1)
        if self._stopping is not None:
            line.send(drain=0.0)
        self._lines[slot] = line
        self._processes[slot] = process
        return process, line

    async def _listen(
        self, slot: int, process: asyncio.subprocess.Process, line: Line, on_ready: Callable[[], None]
    ) -> None:
        while (message := await line.receive()) is not None:
            if "ready" in message:
                log.info("worker %d (pid %d) is ready", slot, process.pid)
                if slot not in self._ready:
                    self._ready.add(slot)
                    if len(self._ready) == self._config.server.workers:
                        on_ready()
            elif "failed" in message and slot not in self._ready:
                self._fail(message["failed"])  # at the start it is the operator's to mend; later, worth another try
            elif "failed" in message:
                log.error("worker %d: %s", slot, message["failed"])
            elif "scrape" in message:
                line.send(scraped=message["scrape"], text=await self._scrape())
        line.close()

    def _gone(self, slot: int, process: asyncio.subprocess.Process) -> None:
        self._lines.pop(slot, None)
        self._processes.pop(slot, None)
        mark_process_dead(process.pid, self._metrics_dir)  # type: ignore[no-untyped-call]
        # its gauges end; its counters stay in the sums

    def _fail(self, why: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(CannotServe(why))

    async def _scrape(self) -> str | None:
        """The metrics as text; None where they cannot be read, for instance while a new worker is making its files."""
        try:
            return (await asyncio.to_thread(self._render)).decode()
        except Exception:
            log.warning("the metrics could not be read", exc_info=True)
            return None

    def _render(self) -> bytes:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=self._metrics_dir)  # type: ignore[no-untyped-call]
        Gauge("gateway_build_info", "The version that runs.", ["version"], registry=registry).labels(__version__).set(1)
        Gauge("gateway_config_generation", "Number of the configuration in use.", registry=registry).set(1)
        return generate_latest(registry)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _start_code() -> str:
    """What a worker runs: it imports from where this process does, and so not from the folder they are started in."""
    places = [place for place in sys.path if place]
    return f"import sys; sys.path[:] = {places!r}; from gateway.worker import main; sys.exit(main())"
