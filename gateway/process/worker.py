"""One worker process, started by the supervisor (worker_start.py), which hands down its listening sockets.

It takes its configuration from the supervisor, serves until the supervisor sends a drain message, and drains by itself
when the supervisor is gone. Ready means: the store is open, the key store has answered, and connections are accepted.
While other workers serve, a new one waits for that answer for `KEYS_WITHIN_S`; else it soon accepts and refuses calls.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvloop
from aiohttp import web

from gateway.api import tokenizer
from gateway.config import Config, ConfigError, build
from gateway.errors import Unavailable
from gateway.files import naming
from gateway.keys.cache import KeyCache
from gateway.observe.metrics import GATHER_S, Telemetry, quota_rows
from gateway.observe.worker_files import WorkerFiles
from gateway.pipeline import Services
from gateway.store import Clock, Ledger, StoreMisconfigured
from gateway.store.opening import load as load_store
from gateway.tasks import Tasks
from gateway.web import app, server
from gateway.web.middleware import Handler

from .channel import ChannelClosed, ControlChannel, take_over

BACKLOG = 2048
WATCH_STORE_S = 0.5
LOOK_EVERY_S = 0.05
"""While waiting for the key store, or for the end of calls."""

KEYS_WITHIN_S = 30.0
"""How long a worker waits for the key store before it accepts calls, while other workers serve."""

KEYS_WITHIN_ALONE_S = 1.0
"""The same while no other worker serves."""

PROCESS_NAME = "gateway-worker"
"""Process name in `ps -o comm` and `top`; at most 15 bytes."""

log = logging.getLogger("gateway")


class WorkerProcess:
    """The life of one worker."""

    def __init__(
        self,
        listener: socket.socket,
        admin_listener: socket.socket | None,
        line: ControlChannel,
        config: Config,
        files: WorkerFiles,
        *,
        has_peers: bool = False,
    ) -> None:
        self._listener = listener
        self._admin_listener = admin_listener
        """The operators' listener, where they have one."""
        self._line = line
        self._config = config
        self._has_peers = has_peers
        loop = asyncio.get_running_loop()
        self._telemetry = Telemetry(
            (key.id for key in config.keys), config.metrics.max_keys,
            models=config.labelled_models, max_models=config.metrics.max_models,
            defer=partial(loop.call_later, GATHER_S), files=files,
        )  # fmt: skip
        self._scrapes: dict[int, asyncio.Future[str | None]] = {}
        self._drain_delay_s: asyncio.Future[float] = loop.create_future()
        self._is_orphan = False
        self._tasks = Tasks()
        self._worker: asyncio.Future[app.Worker] = loop.create_future()
        """Its parts, as soon as it serves."""
        self._runners: list[server.Runner] = []

    async def run(self) -> None:
        """Serve until a drain message, then drain."""
        self._tasks.spawn(self._listen(), "control-line")
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._drain(self._config.server.drain_delay_s))
        async with app.build(self._config, self._telemetry, self._scrape, self._ask) as worker:
            await self._wait_for_keys(worker.parts.key_cache)
            sites = [await self._serve(worker.app, worker.shortcuts, worker.parts, self._listener)]
            if worker.admin_app is not None and self._admin_listener is not None:
                sites.append(await self._serve(worker.admin_app, {}, worker.parts, self._admin_listener))
            watching = partial(self._watch_store, worker.parts.accounting.ledger, worker.parts.clock)
            self._tasks.keep(watching, "watch-store")
            settle_memory()
            self._worker.set_result(worker)
            self._line.send(ready=True)
            delay_s = await self._drain_delay_s
            worker.status.is_ready = False
            if self._is_orphan:
                for site in sites:
                    await site.stop()  # another gateway may take the port
            await asyncio.sleep(delay_s)
            deadline = time.monotonic() + self._config.server.drain_timeout_s
            if not self._is_orphan:
                await self._close_listener(sites[0])
            await self._let_clients_close(min(deadline, time.monotonic() + delay_s))
            worker.status.is_draining = True
            await self._let_calls_end(worker, deadline)
            for runner in self._runners:
                await runner.cleanup()  # closes the listener
        await self._tasks.cancel_all()
        self._telemetry.close()

    async def _wait_for_keys(self, key_cache: KeyCache) -> None:
        """Wait for the key store, without whose answer every call is refused."""
        deadline = time.monotonic() + (KEYS_WITHIN_S if self._has_peers else KEYS_WITHIN_ALONE_S)
        while not self._drain_delay_s.done() and time.monotonic() < deadline:
            try:
                key_cache.trust()
                break
            except Unavailable:
                await asyncio.sleep(LOOK_EVERY_S)

    async def _serve(
        self, application: web.Application, shortcuts: Mapping[str, Handler], parts: Services, listener: socket.socket
    ) -> web.SockSite:
        runner = server.runner_of(application, shortcuts, parts)
        self._runners.append(runner)
        await runner.setup()
        site = web.SockSite(runner, listener, backlog=BACKLOG)
        await site.start()
        return site

    async def _close_listener(self, site: web.SockSite) -> None:
        """Closes the listener: when the last worker has, new connections are refused, so a proxy takes another gateway
        by itself. Those that the kernel has accepted already are taken first: they would be reset, their calls lost."""
        connected, last = cast("web.Server", self._runners[0].server), self._listener.dup()
        await site.stop()
        with last, suppress(BlockingIOError):
            while True:
                accepted, _ = last.accept()
                accepted.setblocking(False)
                self._tasks.spawn(asyncio.get_running_loop().connect_accepted_socket(connected, accepted), "last")

    async def _let_clients_close(self, deadline: float) -> None:
        """Serves calls on connections that proxies keep, each of which ends its own; closes those that stay idle."""
        connected = cast("web.Server", self._runners[0].server)
        while connected.connections and time.monotonic() < deadline:  # noqa: ASYNC110 - so no call pays for it
            await asyncio.sleep(LOOK_EVERY_S)
        connected.pre_shutdown()

    async def _let_calls_end(self, worker: app.Worker, deadline: float) -> None:
        """Waits until no call is active and no answer of a client that left is being read; then cuts off the rest."""
        status = worker.status
        while status.calls and time.monotonic() < deadline:  # noqa: ASYNC110 - so no call pays for it
            await asyncio.sleep(LOOK_EVERY_S)
        await worker.parts.tasks.wait_until_idle(max(0.0, deadline - time.monotonic()))
        if status.calls:
            log.warning("%d calls are cut off: drain_timeout_s is over", len(status.calls))
            status.cut_off_calls()
            await asyncio.sleep(LOOK_EVERY_S)  # for their last words

    def _drain(self, delay_s: float) -> None:
        if not self._drain_delay_s.done():
            self._drain_delay_s.set_result(delay_s)

    async def _listen(self) -> None:
        while (message := await self._line.receive()) is not None:
            if "drain" in message:
                self._drain(message["drain"])
            elif "scraped" in message:
                waiter, text = self._scrapes.pop(message["scraped"]), message["text"]
                if not waiter.done():
                    waiter.set_result(text)
                elif text is not None:  # the requester has left
                    await asyncio.to_thread(_take, Path(text))
            elif message.get("ask") == "adopt":
                self._tasks.spawn(self._adopt(message), "adopt-configuration")
            elif message.get("ask") == "write":
                self._telemetry.write()
                self._line.answer(message, True)
            elif message.get("ask") == "upstreams":
                self._line.answer(message, self._worker.result().report_upstreams() if self._worker.done() else None)
        self._is_orphan = True
        self._drain(0.0)  # the supervisor is gone: no process would replace or stop this worker

    async def _adopt(self, question: Mapping[str, Any]) -> None:
        """Go by another configuration, and answer why not, or nothing."""
        failure = ""
        worker = await self._worker
        try:
            self._config = await worker.changeover.change_to(question["config"])
            for runner in self._runners:
                runner.configure(self._config)
        except Exception as error:  # the parent has checked it: we are short of something, or it is a bug
            log.exception("the new configuration cannot be used")
            failure = type(error).__name__
        self._line.answer(question, failure)

    async def _ask(self, what: str, /, **more: Any) -> Any:
        """The supervisor's answer; None: it has ended."""
        try:
            return await self._line.ask(what, **more)
        except ChannelClosed:
            return None

    async def _scrape(self) -> bytes:
        """The gateway's metrics. This worker reads keys and their quotas; the supervisor sums up the workers and writes
        the text to a file, which keeps it off this event loop."""
        keys, statuses = await app.labelled_keys(self._worker.result().parts)
        quotas = list(quota_rows(statuses, self._telemetry.key_labels))
        waiter: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        number = id(waiter)
        self._scrapes[number] = waiter
        self._line.send(scrape=number, quotas=quotas, teams={key.id: key.team for key in keys})
        if (text := await waiter) is None:
            raise Unavailable("The metrics cannot be read right now.", code="metrics_unavailable")
        return await asyncio.to_thread(_take, Path(text))

    async def _watch_store(self, ledger: Ledger, clock: Clock) -> None:
        """Show how the store is doing, also while no call comes."""
        shown = closed = 0
        while True:
            self._telemetry.show_pending(ledger.pending)
            for _ in range(ledger.errors - shown):
                self._telemetry.store_failed()
            shown = ledger.errors
            self._telemetry.calls_closed(ledger.closed_calls - closed)
            closed = ledger.closed_calls
            if (skew_s := clock.skew_s) is not None:
                self._telemetry.show_skew(skew_s)
            await asyncio.sleep(WATCH_STORE_S)


def _take(file: Path) -> bytes:
    """The content of a file that was written for this worker; the file is deleted."""
    data = file.read_bytes()
    file.unlink()
    return data


def settle_memory() -> None:
    """Exclude the objects that are loaded by now from garbage collections, and begin these."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20000, 20, 100)
    gc.enable()


async def _serve_on(end: socket.socket, listeners: Sequence[socket.socket]) -> int:
    line = await ControlChannel.over(end)
    message: dict[str, Any] | None = await line.receive()
    if message is None:
        return 1
    try:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = message["metrics_dir"]
        config, has_peers = build(message["config"]), message["has_peers"]
        listener, admin_listener = listeners[0], listeners[1] if len(listeners) > 1 else None
        with naming(Path(message["metrics_dir"])):
            files = WorkerFiles(Path(message["metrics_dir"]))
            worker = WorkerProcess(listener, admin_listener, line, config, files, has_peers=has_peers)
        await worker.run()
    except (ConfigError, StoreMisconfigured) as error:
        line.send(failed=str(error))
        return 1
    except OSError as error:
        line.send(failed=f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    finally:
        line.close()
    return 0


def load(config: Config) -> None:
    """Load what every worker of this configuration needs, beside what it imports: before a fork, so that workers share
    it."""
    load_store(config.store)
    tokenizer.load({})


def serve_on(line: socket.socket) -> int:
    """Run one worker on this control line; returns its exit code."""
    with suppress(OSError):  # Linux alone has it: proc(5)
        Path("/proc/self/comm").write_text(PROCESS_NAME)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process; the supervisor decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listeners = take_over(line)
    if not listeners:
        return 1
    for each in (line, *listeners):
        each.setblocking(False)
    return uvloop.run(_serve_on(line, listeners))


def main() -> None:
    """Run one worker, in an interpreter of its own, on the inherited descriptor that is its argument."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(serve_on(socket.socket(fileno=int(sys.argv[1]))))
