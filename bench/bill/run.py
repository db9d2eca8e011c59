"""One run: a gateway with two workers, its provider and the clients, and at the end the bill of the day, read a day
later, when no part of it may be late."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp

from gateway import simulator
from gateway.wings.billing.simulated_vendor import DAY_S, Sale, key_id
from tests.fakes import other_time
from tests.flows.gateway_process import ADMIN_TOKEN, UPSTREAM_KEY, Gateway, eventually, key, model, secret
from tests.flows.gateway_process import run as run_command

from .plan import DRAINED, ENDPOINTS, KILL_BLOCK, PRICES, UPSTREAMS, Block, Kind, PlannedCall, planned
from .provider import ADMIN, Provider
from .verdict import Verdict, judge

AT_ONCE = 24
OTHER_KEY = "sk-of-another-user-of-the-account"
SETTLED_S = 120.0
"""The calls of a killed worker are closed after a minute of silence."""

Say = Callable[[str], object]


@asynccontextmanager
async def providers(blocks: list[Block]) -> AsyncIterator[dict[str, tuple[Provider, str]]]:
    """Two accounts, each with its address, by the names of the upstreams."""
    unpaid = [call.number for block in blocks for call in block.calls if call.kind in (Kind.UNPAID, Kind.REPEATED)]
    found, runners = {}, []
    try:
        for name in ("main", DRAINED):
            made = Provider(unpaid if name == "main" else ())
            runner, port = await simulator.serve("127.0.0.1", 0, made.settings, lambda _, made=made: made.app())
            runners.append(runner)
            found[name] = made, f"http://127.0.0.1:{port}/v1"
        yield found
    finally:
        for runner in runners:
            await runner.cleanup()


def settings(addresses: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The configuration of the gateway."""
    return {
        "server": {"port": 0, "workers": 2, "access_log": "off"},
        "store": {"url": f"embedded:{folder / 'data'}", "journal_dir": str(folder / "journal")},
        "admin": {"token": ADMIN_TOKEN},
        "upstreams": {
            name: {"base_url": address, "api_key": UPSTREAM_KEY, "capabilities": {"messages": True, "responses": True},
                   "on_disconnect": "drain" if name == DRAINED else "cancel"}
            for name, address in addresses.items()
        },
        "models": {
            name: model(
                ENDPOINTS.get(name, "chat"), price=dict(price),
                routes=[
                    {"upstream": upstream, "priority": number}
                    for number, upstream in enumerate(UPSTREAMS.get(name, ("main",)))
                ],
            )
            for name, price in PRICES.items()
        },
        "keys": [key("alice")],
        "billing": {
            "settles_after": 1,
            "upstreams": {
                name: {"provider": "openai", "base_url": address, "api_key": ADMIN, "key_ids": [key_id(UPSTREAM_KEY)]}
                for name, address in addresses.items()
            },
        },
    }  # fmt: skip


async def run(calls: int, seed: int, folder: Path, say: Say) -> Verdict:
    """The verdict of a run of this number of calls."""
    began, blocks = time.time(), list(planned(calls, seed))
    async with providers(blocks) as found:
        clock = folder / "later"
        clock.write_text("0")
        path = os.pathsep.join([*other_time.__path__, *filter(None, [os.environ.get("PYTHONPATH")])])
        later = {"PYTHONPATH": path, "OTHER_TIME": str(clock)}
        addresses = {name: address for name, (_, address) in found.items()}
        gateway = await asyncio.to_thread(Gateway, folder, settings(addresses, folder), env=later)
        try:
            await _call_all(gateway, blocks, found["main"][0], addresses["main"], say)
            await _until(lambda: not any(provider.ledger.as_json()["open"] for provider, _ in found.values()))
            sales = defaultdict[int, list[Sale]](list)
            for number, sold in chain.from_iterable(provider.sales.items() for provider, _ in found.values()):
                sales[number] += sold
            own = {call.number for block in blocks for call in block.calls if call.kind is not Kind.OTHER} & {*sales}
            records = await asyncio.to_thread(_settled, gateway, own, calls)
        finally:
            await asyncio.to_thread(gateway.end)
        clock.write_text(str(DAY_S))
        rows = await asyncio.to_thread(_bill, gateway, later)
    assert time.time() // DAY_S == began // DAY_S, "the run crossed midnight (UTC): repeat it"
    return judge(chain.from_iterable(block.calls for block in blocks), sales, records, rows)


async def _call_all(gateway: Gateway, blocks: list[Block], main: Provider, address: str, say: Say) -> None:
    places = asyncio.Semaphore(AT_ONCE)
    done = 0
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
    ) as session:

        async def call(each: PlannedCall) -> None:
            async with places if not block.is_killed else asyncio.Semaphore():
                await _send(session, gateway.url, address.removesuffix("/v1"), each)

        for number, block in enumerate(blocks):
            if number == len(blocks) // 2 + 1:
                main.noon = time.time()
            under_way = asyncio.gather(*map(call, block.calls))
            if block.is_killed:
                await _kill(gateway, main)
            await under_way
            done += len(block.calls)
            say(f"{done:,} calls")


async def _kill(gateway: Gateway, main: Provider) -> None:
    """Kill one of the two workers while most calls of the block are under way, and wait for the next one."""
    await _until(lambda: main.ledger.as_json()["open"] >= KILL_BLOCK // 2)
    os.kill(random.choice(gateway.workers()), signal.SIGKILL)
    await asyncio.to_thread(eventually, lambda: len(gateway.workers()) == 2)


async def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SETTLED_S
    while not holds():
        assert time.monotonic() < end, f"this never came true within {SETTLED_S:g} s"
        await asyncio.sleep(0.02)


async def _send(session: aiohttp.ClientSession, gateway: str, provider: str, call: PlannedCall) -> None:
    """One call; a killed worker breaks it off."""
    is_own = call.kind is not Kind.OTHER
    headers = {
        "Authorization": f"Bearer {secret('alice') if is_own else OTHER_KEY}", "X-Client-Request-Id": str(call.number),
    }  # fmt: skip
    try:
        url = f"{gateway if is_own else provider}{call.path}"
        async with session.post(url, json=call.body, headers=headers) as answer:
            if call.kind in (Kind.LEFT, Kind.DRAINED):
                await answer.content.readany()
                answer.close()
            else:
                await answer.read()
    except aiohttp.ClientError:
        pass


def _settled(gateway: Gateway, own: set[int], calls: int) -> list[dict[str, Any]]:
    """The records, when each call that was billed has one."""

    def look() -> list[dict[str, Any]] | None:
        records = gateway.calls(limit=calls)
        return records if own <= {int(each["client_request_id"]) for each in records} else None

    return eventually(look, SETTLED_S, 2.0)


def _bill(gateway: Gateway, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of `gateway bill --json`."""
    ended = run_command("bill", "--config", str(gateway.file), "--json", env=env)
    assert ended.returncode == 0, ended.stderr
    rows: list[dict[str, Any]] = json.loads(ended.stdout)
    return rows
