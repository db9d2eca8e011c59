"""Workers and gateways are killed while Realtime sessions are open: each response has one record, and the sums agree
with the upstream's ledger."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.client import request
from tests.flows.gateway_process import Gateway, eventually, key, settings
from tests.flows.killing import kill_all, store, upstream_port
from tests.wings.realtime.test_realtime import ASK, MODEL, close_code, configuration, session, until

__all__ = ["store", "upstream_port"]

WORK_S, CLIENTS, KILLS = 9.0, 4, 2
SETTLED_S = 90.0
ANSWERS = 3
"""Of one session."""
Pair = tuple[int, int]
"""Tokens of prompt and output."""


def config(port: int, store: dict[str, str], workers: int) -> dict[str, Any]:
    model = {"endpoints": ["realtime"], "routes": [{"upstream": "main"}], "max_output_tokens": 200}
    one = settings(
        f"http://127.0.0.1:{port}/v1", upstreams={"main": {"capabilities": {"realtime": True}}}, store=store,
        keys=[key("alice", quotas=[{"tokens": 10**9, "per": "month"}], max_parallel=50)], server={"workers": workers},
    )  # fmt: skip
    return one | {"models": {MODEL: model}}


async def converse(gateway: Gateway, number: int, heard: list[Pair]) -> None:
    """One session, however it ends; with the usage of each response that it saw the end of."""
    with contextlib.suppress(aiohttp.ClientError, OSError, TypeError, AssertionError):
        async with session(gateway) as socket:
            for at in range(ANSWERS):
                said = {"content": [{"type": "input_text", "text": f"Story {number}, part {at}. " * (number % 7 + 1)}]}
                await socket.send_json({"type": "conversation.item.create", "item": said})
                await socket.send_json(ASK | {"response": {"simulate": {"tokens_per_s": 60}}})
                usage = (await until(socket, "response.done"))["response"]["usage"]
                heard.append((usage["input_tokens"], usage["output_tokens"]))


def check(gateway: Gateway, port: int, heard: list[Pair]) -> None:
    """Nothing is reserved any more, each response has one record, and those that ended have the upstream's tokens."""

    def window(unit: str = "tokens") -> dict[str, Any]:
        (row,) = [each for each in gateway.admin("quotas", key="alice").json["data"] if each["unit"] == unit]
        return dict(row)

    def received() -> Any:
        return request(port, "GET", "/simulator/ledger", None, {}).json

    eventually(lambda: not window()["reserved"] and not received()["open"], SETTLED_S, 1)
    calls, rows = received()["calls"], gateway.calls("alice", limit=10_000)
    assert len(calls) == received()["totals"]["calls"]  # the ledger has them all
    assert max(Counter(row["id"] for row in rows).values()) == 1
    responses = [row for row in rows if row["prompt_tokens"]]
    done = Counter(pair(row) for row in responses if row["ended"] == "done")
    lost = [pair(row) for row in responses if row["ended"] == "lost"]
    assert Counter(heard) <= done <= Counter(pair(call) for call in calls if call["ended"] == "done")
    assert len(calls) <= len(responses)
    assert all(prompt >= 1024 and output == 200 for prompt, output in lost)
    assert window()["used"] == sum(map(sum, map(pair, responses)))
    assert window("parallel")["used"] == 0


def pair(row: dict[str, Any]) -> Pair:
    return row["prompt_tokens"], row["completion_tokens"]


@pytest.mark.timeout(200)
async def test_the_sums_agree_after_kills_of_workers(
    start_gateway: StartsGateways, upstream_port: int, store: dict[str, str]
) -> None:
    gateway = await asyncio.to_thread(start_gateway, config(upstream_port, store, workers=2))
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice, numbers, heard = random.Random(seed), itertools.count(), list[Pair]()
    end, killed = time.monotonic() + WORK_S, 0

    async def work() -> None:
        while time.monotonic() < end:
            await converse(gateway, next(numbers), heard)

    working = [asyncio.create_task(work()) for _ in range(CLIENTS)]
    while time.monotonic() < end - 3 and killed < KILLS:
        await asyncio.sleep(dice.uniform(1, 2.5))
        if len(workers := gateway.workers()) == 2:
            os.kill(dice.choice(workers), signal.SIGKILL)
            killed += 1
    await asyncio.gather(*working)
    assert killed
    assert heard
    await asyncio.to_thread(check, gateway, upstream_port, heard)


@pytest.mark.timeout(200)
async def test_the_sums_agree_after_a_kill_of_the_gateway(
    start_gateway: StartsGateways, upstream_port: int, store: dict[str, str]
) -> None:
    both, heard = config(upstream_port, store, workers=1), list[Pair]()
    gateway = await asyncio.to_thread(start_gateway, both)
    working = [asyncio.create_task(converse(gateway, number, heard)) for number in range(CLIENTS)]
    await asyncio.to_thread(eventually, lambda: len(heard) > CLIENTS)
    await asyncio.to_thread(kill_all, gateway)
    await asyncio.gather(*working)
    second = await asyncio.to_thread(start_gateway, both)
    await asyncio.to_thread(check, second, upstream_port, heard)
    assert len([row for row in second.calls("alice", limit=1000) if row["ended"] == "lost"]) >= CLIENTS


async def test_a_killed_worker_leaves_no_reservation_and_no_slot(start_gateway: StartsGateways) -> None:
    with RealtimeUpstream() as upstream:
        gateway = start_gateway(configuration(upstream, server={"port": 0, "workers": 1}))
        upstream.stops_inside = True
        async with session(gateway, "small") as socket:
            await socket.send_json(ASK)
            await until(socket, "response.output_text.delta")
            (worker,) = gateway.workers()
            os.kill(worker, signal.SIGKILL)
            assert await close_code(socket) == 1006
        of_session, response = eventually(
            lambda: (rows := gateway.calls("small"))[1:] and sorted(rows, key=lambda row: row["id"])
        )
        assert (of_session["ended"], of_session["prompt_tokens"], of_session["completion_tokens"]) == ("lost", 0, 0)
        assert (response["ended"], response["prompt_tokens"], response["completion_tokens"]) == ("lost", 1024, 500)
        (window,) = gateway.admin("quotas", key="small").json["data"]
        assert (window["used"], window["reserved"]) == (1524, 0)
