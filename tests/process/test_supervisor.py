"""When dying workers end the gateway, and when they are just replaced."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.source import Source
from gateway.process import supervisor, worker_start
from gateway.process.supervisor import (
    DEATHS_WITHIN_S,
    MAX_DEATHS,
    SERVED_WELL_S,
    CannotServe,
    Supervisor,
    WorkerDeaths,
)
from gateway.process.worker_start import StartedWorker
from tests.fakes.scripted import until

from .test_reload import TEXT

SOON = SERVED_WELL_S - 0.1


@pytest.mark.parametrize(
    ("pause_s", "lived_s", "is_end"),
    [
        (1.0, None, True),  # it never came so far
        (1.0, 0.0, True),
        (DEATHS_WITHIN_S / MAX_DEATHS, SOON, True),
        (DEATHS_WITHIN_S / (MAX_DEATHS - 1) + 0.1, None, False),  # not within a minute
        (1.0, SERVED_WELL_S, False),  # it served well, whatever killed it
        (1.0, 3600.0, False),
    ],
)
def test_only_deaths_near_a_start_count(pause_s: float, lived_s: float | None, is_end: bool) -> None:
    deaths = WorkerDeaths()
    times = [5000.0 + number * pause_s for number in range(MAX_DEATHS)]
    received = [deaths.note(now, None if lived_s is None else now - lived_s) for now in times]
    assert received == [False] * (MAX_DEATHS - 1) + [is_end]


def test_those_that_served_well_do_not_count_between_the_others() -> None:
    deaths = WorkerDeaths()
    for number in range(MAX_DEATHS - 1):
        assert not deaths.note(100.0 + number, None)
        assert not deaths.note(100.0 + number, 100.0 + number - SERVED_WELL_S)
    assert deaths.note(110.0, None)


class FakeWorker:
    """A worker whose messages and end are those of a test."""

    def __init__(self, number: int, message: bytes) -> None:
        self.pid = 2**22 + number  # above the pids that Linux gives
        self.code = asyncio.get_running_loop().create_future()
        self.line, self.end = socket.socketpair()
        self.line.setblocking(False)
        self.end.send(message + b"\n")

    async def wait(self) -> int:
        code: int = await self.code
        self.end.close()
        return code

    def send_signal(self, signal: int) -> None:
        if not self.code.done():
            self.code.set_result(-signal)


class Starts:
    """Starts workers; those of `failing` numbers end before they are ready."""

    def __init__(self, folder: Path, workers: int, failing: range, *, is_made: bool) -> None:
        self.started: list[FakeWorker] = []
        self.count = 0
        self._failing, self._is_made = failing, is_made
        file = folder / "gateway.yaml"
        file.write_text(TEXT.replace("${file:KEY}", "a-key-of-the-upstream") + f"server: {{workers: {workers}}}\n")
        source = Source(str(file), {})
        self.supervisor = Supervisor(source.read(), source, [], deque())

    async def start(self) -> StartedWorker:
        self.count += 1
        fails = self.count in self._failing
        if fails and not self._is_made:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        worker = FakeWorker(self.count, b'{"failed": "the disk is full"}' if fails else b'{"ready": true}')
        self.started.append(worker)
        if fails:
            worker.code.set_result(1)
        return StartedWorker(worker, worker.line)


@pytest.fixture(params=[True, False], ids=["it ends", "it cannot be made"])
def starts(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, range], Starts]:
    def made(workers: int, failing: range) -> Starts:
        starts = Starts(tmp_path, workers, failing, is_made=request.param)
        monkeypatch.setattr(worker_start, "new_interpreter", starts.start)
        monkeypatch.setattr(supervisor, "RESTART_AFTER_S", (0.0,))
        return starts

    return made


async def test_a_successor_that_cannot_start_is_tried_again_while_another_worker_serves(
    starts: Callable[[int, range], Starts], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway")
    gateway = starts(2, range(3, 23))
    ready = asyncio.Event()
    running = asyncio.ensure_future(gateway.supervisor.run(ready.set))
    await ready.wait()
    gateway.started[1].send_signal(9)
    await until(lambda: gateway.count == 23 or running.done())
    assert not running.done()
    assert not gateway.started[0].code.done()
    await until(lambda: f"(pid {gateway.started[-1].pid}) is ready" in caplog.text)
    assert "1 of 2 serve" in caplog.text
    assert "the disk is full" in caplog.text or "Resource temporarily unavailable" in caplog.text
    running.cancel()
    await asyncio.wait([running])
    for worker in gateway.started:
        worker.end.close()


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_gateway_ends_when_no_worker_serves_and_none_can_start(
    starts: Callable[[int, range], Starts], workers: int
) -> None:
    gateway = starts(workers, range(workers + 1, 100))
    ready = asyncio.Event()
    running = asyncio.ensure_future(gateway.supervisor.run(ready.set))
    await ready.wait()
    for worker in gateway.started[:workers]:
        worker.send_signal(9)
    with pytest.raises(CannotServe, match="giving up"):
        await running
