"""Clients that call while workers are killed, and the records that have to agree afterwards.

Each call has a number, which is in its X-Client-Request-Id and its body; the usage that the upstream reports is
computed from the number.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Behaviour, Scripted

from .gateway_process import SIMULATOR, Gateway, Process, eventually

KILLS = 3
"""Below the number at which a gateway gives up."""

SETTLED_S = 60.0
STORES = ("embedded", "redis")


def client_id(number: int) -> str:
    """The X-Client-Request-Id of a call."""
    return f"client-{number}"


@contextlib.contextmanager
def new_store(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """The section `store` of a new store."""
    with contextlib.ExitStack() as ends:
        url = f"embedded:{folder / 'data'}"
        if kind == "redis":
            url = ends.enter_context(RedisServer(folder / "redis")).url
        yield {"url": url, "journal_dir": str(folder / "journal")}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    with new_store(request.param, tmp_path) as section:
        yield section


@pytest.fixture
def upstream_port(tmp_path: Path) -> Iterator[int]:
    """The port of a simulated upstream of the test's own."""
    simulated = Process(tmp_path / "simulated", SIMULATOR, "--port", "0")
    yield int(simulated.wait_for(r"serves http://127\.0\.0\.1:(\d+)/v1\n")[1])
    simulated.end()


@contextlib.contextmanager
def upstream_and_store(kind: str, folder: Path, answer: Behaviour) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of an upstream that answers so, and the section `store` of a new store."""
    with Scripted(always=answer) as upstream, new_store(kind, folder) as section:
        yield upstream.url, section
        # A worker that is killed while it sends leaves half a request.
        upstream.troubles = [words for words in upstream.troubles if "half a request" not in words]


def calls_while_workers_die(
    gateway: Gateway, call: Callable[[int, int], bool], work_s: float, *, clients: int = 6, pause_s: float = 0.0
) -> list[int]:
    """The numbers of the calls that were answered while one of two workers was killed again and again. `call` has the
    port and the number, and returns whether it was answered; each client waits `pause_s` between two calls."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice, numbers = random.Random(seed), itertools.count()
    answered: list[int] = []
    end = time.monotonic() + work_s

    def work() -> None:
        while time.monotonic() < end:
            number = next(numbers)
            if call(gateway.port, number):
                answered.append(number)
            time.sleep(pause_s)

    with ThreadPoolExecutor(clients) as pool:
        workers = [pool.submit(work) for _ in range(clients)]
        killed = 0
        while time.monotonic() < end - 3 and killed < KILLS:
            time.sleep(dice.uniform(0.5, 3))
            if len(alive := gateway.workers()) == 2:
                os.kill(dice.choice(alive), signal.SIGKILL)
                killed += 1
        for each in workers:
            each.result()
    assert killed
    assert answered
    return answered


def kill_all(gateway: Gateway) -> None:
    """The supervisor and its workers at once."""
    gateway.expected_code = -signal.SIGKILL
    os.killpg(gateway.process.pid, signal.SIGKILL)
    gateway.wait()


def windows(gateway: Gateway) -> dict[str, Any]:
    """The windows of alice's quotas, by their units."""
    return {each["unit"]: each for each in gateway.admin("quotas", key="alice").json["data"]}


def settled(gateway: Gateway, received: Iterable[int]) -> dict[str, dict[str, Any]]:
    """The records by the client's ids, as soon as each call that the upstream has received has one and nothing is
    reserved. No call has two."""
    wanted = {client_id(number) for number in received}

    def rows() -> list[dict[str, Any]]:
        return gateway.calls(limit=100_000)

    def is_settled() -> bool:
        known = {row["client_request_id"] for row in rows()}
        return wanted <= known and not any(window["reserved"] for window in windows(gateway).values())

    eventually(is_settled, SETTLED_S, 1)
    records = rows()
    assert max(Counter(row["client_request_id"] for row in records).values()) == 1
    return {row["client_request_id"]: row for row in records}
