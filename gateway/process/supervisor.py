"""The supervisor: one socket, N workers; signals and configuration down, metrics and restarts up.

The parent binds the socket once and hands it down to all workers (worker_start.py), so that a dying worker's waiting
connections are served by the others (SO_REUSEPORT would lose them). The parent alone reads the configuration and hands
it down (reload.py); it carries no call itself. A worker that ends unexpectedly is replaced after a pause. While others
serve, that is tried without end; else the gateway ends after `MAX_DEATHS` in a minute, each soon after a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from gateway import files
from gateway.config import Config
from gateway.config.source import Reading, Source
from gateway.observe import exposition, worker_files
from gateway.observe.exposition import Reloads
from gateway.observe.live_counters import LiveCounters
from gateway.observe.live_numbers import summed
from gateway.tasks import Tasks

from . import worker_start
from .channel import ChannelClosed, ControlChannel, hand_down
from .discovery import ModelDiscovery
from .reload import Reloader
from .worker_start import Process, StartedWorker

MAX_DEATHS = 5
DEATHS_WITHIN_S = 60.0
SERVED_WELL_S = 10.0
"""A worker that ends after serving for longer did not fail at its start."""
RESTART_AFTER_S = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
KILL_AFTER_S = 10.0
"""How long after the last moment of its drain a worker may take to end."""
HAND_OVER_WITHIN_S = 30.0
"""A worker that has not answered by then (it is stopped, or starting) applies the new configuration when it
continues."""
WRITE_WITHIN_S = 0.5
"""How long a scrape waits for workers to write what they have counted so far."""

ANSWER_WITHIN_S = 2.0
"""Time limit for the workers' answers to one question."""

log = logging.getLogger("gateway")


class CannotServe(Exception):
    """The gateway cannot start or continue; the text has advice."""


def bind(host: str, port: int) -> socket.socket:
    """The listening socket. Raises `CannotServe` if the address is in use or not local."""
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


@dataclass(slots=True, eq=False)
class _WorkerSlot:
    """The parent's state of one worker process."""

    slot: int
    process: Process
    line: ControlChannel
    ready_at: float | None = None


class WorkerDeaths:
    """Counts ends of workers near their start. Times are in seconds on any monotonic clock."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MAX_DEATHS)

    def note(self, now: float, ready_at: float | None) -> bool:
        """Note the end of a worker that was ready since then; None: it never was. Returns whether the limit is
        exceeded."""
        if ready_at is None or now - ready_at < SERVED_WELL_S:
            self._times.append(now)
        return len(self._times) == MAX_DEATHS and self._times[-1] - self._times[0] < DEATHS_WITHIN_S


class Supervisor:
    """The parent of the workers. Used from one event loop. `source` is where the configuration was read from.

    `listeners` are that of calls, and that of operators where they have their own. `forked` are workers to begin with.
    """

    def __init__(
        self, reading: Reading, source: Source | None, listeners: Sequence[socket.socket], forked: deque[StartedWorker]
    ) -> None:
        self._discovery = ModelDiscovery(Path(reading.config.store.journal_dir))
        self._reloader = Reloader(reading, source, self._hand_over, self._discovery.extend)
        self._listeners = listeners
        self._forked = forked
        self._metrics_dir = ""
        self._live_counters: LiveCounters
        self._tasks = Tasks()
        self._members: dict[int, _WorkerSlot] = {}
        self._ready: set[int] = set()
        self._deaths = WorkerDeaths()
        self._restarts = 0
        self._is_asked_to_stop = asyncio.Event()
        self._stopping: float | None = None
        """Once stopping: how long workers go on serving, in seconds."""
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def _config(self) -> Config:
        return self._reloader.now.config

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until a signal. Raises `CannotServe` when the workers cannot be kept running."""
        with files.temporary("gateway-metrics-") as folder:
            self._metrics_dir, self._live_counters = str(folder), LiveCounters(folder)
            await self._run(on_ready)

    async def _run(self, on_ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._stop(self._config.server.drain_delay_s))
        loop.add_signal_handler(signal.SIGINT, self._stop, 0.0)
        loop.add_signal_handler(
            signal.SIGHUP, lambda: self._tasks.spawn(self._reloader.reload("SIGHUP"), "reload on SIGHUP")
        )
        # The models of the upstreams whose models are not known from before; later, all of them now and then.
        await self._discovery.start(self._config)
        await self._reloader.extend_again(is_start=True)
        watching = partial(self._discovery.watch, lambda: self._config, self._reloader.extend_again)
        self._tasks.keep(watching, "discover-models")
        self._tasks.keep(self._reloader.watch, "watch-configuration")
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
            for member in self._members.values():  # asked twice: now
                _signal(member.process, signal.SIGKILL)
            self._fail("asked to stop a second time: what was under way has been cut off")
            return
        self._stopping = delay_s
        self._is_asked_to_stop.set()
        for listener in self._listeners:
            listener.close()  # else the kernel would go on accepting for it, when no worker does any more
        for member in self._members.values():
            member.line.send(drain=delay_s)

    async def _keep_alive(self, slot: int, on_ready: Callable[[], None]) -> None:
        deaths = 0
        while not self._is_stopping():
            began = time.monotonic()
            end, ready_at = await self._live(slot, on_ready)
            if self._is_stopping():
                return
            now = time.monotonic()
            deaths = deaths + 1 if ready_at is None or now - began < DEATHS_WITHIN_S else 1
            self._restarts += 1
            others = sum(each.ready_at is not None for each in self._members.values())
            pauses_s = RESTART_AFTER_S if others else RESTART_AFTER_S[:MAX_DEATHS]
            pause_s = pauses_s[min(deaths, len(pauses_s)) - 1]
            text = "worker %d %s; starting another in %g s; %d of %d serve"
            log.error(text, slot, end, pause_s, others, self._config.server.workers)
            # Whatever keeps a successor from its start may not end the calls of those that serve.
            if not (others and slot in self._ready) and self._deaths.note(now, ready_at):
                self._fail(f"{MAX_DEATHS} workers ended unexpectedly within {DEATHS_WITHIN_S:g} s; giving up")
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_asked_to_stop.wait(), pause_s)

    async def _live(self, slot: int, on_ready: Callable[[], None]) -> tuple[str, float | None]:
        """Run one worker until it ends. Returns how it ended, and since when it was ready."""
        try:
            member = await self._start(slot)
        except OSError as error:  # the system has no process, memory or descriptor left
            return f"cannot be started ({error})", None
        self._tasks.spawn(self._listen(member, on_ready), f"line-{slot}")
        code = await self._wait(member.process)
        self._gone(member)
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"(pid {member.process.pid}) ended with {cause}", member.ready_at

    def _is_stopping(self) -> bool:
        return self._stopping is not None

    async def _wait(self, process: Process) -> int:
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

    async def _start(self, slot: int) -> _WorkerSlot:
        process, end = self._forked.popleft() if self._forked else await worker_start.new_interpreter()
        if self._stopping is None:
            hand_down(end, self._listeners)
        line = await ControlChannel.over(end)
        has_peers = any(member.ready_at is not None for member in self._members.values())
        line.send(config=self._reloader.now.values, metrics_dir=self._metrics_dir, has_peers=has_peers)
        if self._stopping is not None:
            line.send(drain=0.0)
        member = self._members[slot] = _WorkerSlot(slot, process, line)
        return member

    async def _listen(self, member: _WorkerSlot, on_ready: Callable[[], None]) -> None:
        slot, line = member.slot, member.line
        try:
            while (message := await line.receive()) is not None:
                if "ready" in message:
                    log.info("worker %d (pid %d) is ready", slot, member.process.pid)
                    member.ready_at = time.monotonic()
                    if slot not in self._ready:
                        self._ready.add(slot)
                        if len(self._ready) == self._config.server.workers:
                            on_ready()
                elif "failed" in message and slot not in self._ready:
                    self._fail(message["failed"])  # at the start it is the operator's to mend; later, worth another try
                elif "failed" in message:
                    log.error("worker %d: %s", slot, message["failed"])
                elif "scrape" in message:
                    self._tasks.spawn(self._scrape_for(line, message), f"scrape-{slot}")
                elif "ask" in message:
                    self._tasks.spawn(self._answer(line, message), f"answer-{slot}")
        finally:
            line.close()

    async def _answer(self, line: ControlChannel, question: Mapping[str, Any]) -> None:
        """The answer to a worker's question about the whole gateway; None: not available."""
        answer: Any = None
        try:
            if question["ask"] == "live":
                answer = await self._live_numbers()
            elif question["ask"] == "reload":
                answer = (await self._reloader.reload(question["why"]))._asdict()
            elif question["ask"] == "preview":
                answer = (await self._reloader.preview())._asdict()
            elif question["ask"] == "everyone":
                answer = [answers for _, answers in await self._ask(question["what"], ANSWER_WITHIN_S)]
        finally:
            line.answer(question, answer)

    async def _ask(
        self, what: str, within_s: float, *, only_ready: bool = False, **more: Any
    ) -> list[tuple[_WorkerSlot, Any]]:
        """Ask every worker, and return the answers that arrive in time. `only_ready`: not those that still start."""
        members = [each for each in self._members.values() if not only_ready or each.ready_at is not None]
        asked = {self._tasks.spawn(_ask(member.line, what, more), f"ask-{what}"): member for member in members}
        if asked:
            await asyncio.wait(asked, timeout=within_s)
        for task in asked:
            task.cancel()
        done = [(member, task.result()) for task, member in asked.items() if task.done() and not task.cancelled()]
        return [(member, answer) for member, answer in done if answer is not None]

    async def _hand_over(self, values: Mapping[str, Any]) -> None:
        """Give this configuration to all workers; those that start later are given it by `_start`."""
        answers = await self._ask("adopt", HAND_OVER_WITHIN_S, config=values)
        heard = [member for member, _ in answers]
        for member in self._members.values():
            if member not in heard and member.ready_at is not None:
                log.error("worker %d has not confirmed yet that it serves with the new configuration", member.slot)
        for member, failure in answers:
            if failure:
                log.error("worker %d cannot use the new configuration (%s); it is replaced", member.slot, failure)
                member.line.send(drain=0.0)

    def _gone(self, member: _WorkerSlot) -> None:
        self._members.pop(member.slot, None)
        mark_process_dead(member.process.pid, self._metrics_dir)  # type: ignore[no-untyped-call]
        # its gauges end; its counters stay in the sums
        try:
            worker_files.complete(Path(self._metrics_dir), member.process.pid)
        except OSError as error:
            log.warning("the last counts of worker pid %d are incomplete: %s", member.process.pid, error)

    def _fail(self, why: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(CannotServe(why))

    def _reloads(self) -> Reloads:
        return Reloads(self._reloader.generation, dict(self._reloader.results), self._restarts)

    async def _live_numbers(self) -> dict[str, Any] | None:
        """The counters of the whole gateway; None where the workers' files cannot be read, for instance while a new
        worker is making its own."""
        await self._ask("write", WRITE_WITHIN_S, only_ready=True)
        collectors = [self._live_counters, exposition.SupervisorMetrics(self._reloads())]
        try:
            return await asyncio.to_thread(summed, collectors, list(self._config.upstreams))
        except Exception:
            log.warning("the live numbers could not be read", exc_info=True)
            return None

    async def _scrape_for(self, line: ControlChannel, question: Mapping[str, Any]) -> None:
        text: str | None = None
        try:
            text = await self._scrape(question)
        finally:
            line.send(scraped=question["scrape"], text=text)

    async def _scrape(self, question: Mapping[str, Any]) -> str | None:
        """A file with the metrics as text, which the receiver deletes; None if they cannot be read, for
        instance while a new worker is creating its files."""
        try:
            await self._ask("write", WRITE_WITHIN_S, only_ready=True)
            quotas, teams = question["quotas"], question["teams"]
            upstreams = list(self._config.upstreams)
            return await asyncio.to_thread(
                exposition.write, self._metrics_dir, upstreams, self._reloads(), quotas, teams
            )
        except Exception:
            log.warning("the metrics could not be read", exc_info=True)
            return None


async def _ask(line: ControlChannel, what: str, more: Mapping[str, Any]) -> Any:
    """The answer of one worker; None: it has ended."""
    with contextlib.suppress(ChannelClosed):
        return await line.ask(what, **more)
    return None


def _signal(process: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
