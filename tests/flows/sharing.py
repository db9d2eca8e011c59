"""Two gateways with two workers each on one Redis share an upstream with a limit: a flood of batch calls, and ten keys
that send a call now and then.

    python -m tests.flows.sharing            # measures, and prints the table of docs/fairness.md
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Scripted, Wire, ok_json

from .house import Gateway, key, secret, settings

GOOD = ok_json({"model": "up", "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
HUMANS = 10
QUEUE = {"max_wait_s": 60, "max_calls": 100}
TROUBLE_S = 60.0


@dataclass
class Upstream:
    """Serves each call for so long, and keeps its own log."""

    serves_for_s: float
    arrivals: list[tuple[float, str]] = field(default_factory=list)
    """When each call came, and whose it was (`KEY:NUMBER`), in order."""
    inside: int = 0
    most_inside: int = 0

    async def __call__(self, wire: Wire) -> None:
        self.arrivals.append((time.monotonic(), wire.request.json["user"]))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            await asyncio.sleep(self.serves_for_s)
        finally:
            self.inside -= 1
        await GOOD(wire)

    def since(self, began: float) -> list[tuple[float, str]]:
        """Arrivals from this moment on."""
        return [arrival for arrival in self.arrivals if arrival[0] >= began]


def excess(times: Sequence[float], rate: float, burst: float) -> float:
    """By how many calls a bucket of `burst` calls that refills at `rate` a second was overrun at most."""
    level, last, worst = 0.0, times[0], 0.0
    for at in times:
        level = max(0.0, level - rate * (at - last)) + 1
        last, worst = at, max(worst, level - burst)
    return worst


def overtaken(arrivals: Sequence[tuple[float, str]], sent: Mapping[str, int]) -> list[int]:
    """For each call of `sent`, how many others came to the upstream between its sending (at that many arrivals) and its
    arrival."""
    places = {who: place for place, (_, who) in enumerate(arrivals)}
    return sorted(places[who] - before for who, before in sent.items() if who in places)


def at_percent(values: Sequence[float], percent: int) -> float:
    return values[min(len(values) - 1, len(values) * percent // 100)]


class House:
    """Two gateways on one Redis in front of one upstream."""

    def __init__(self, stack: ExitStack, folder: Path, upstream: Upstream, limits: dict[str, Any], *keys: Any) -> None:
        self.upstream = upstream
        server = stack.enter_context(RedisServer(folder))
        stage = stack.enter_context(Scripted(always=upstream))
        config = settings(
            stage.url,
            server={"workers": 2, "access_log": "off"},
            store={"url": server.url},
            queue=QUEUE,
            keys=[key(f"human-{number}", priority="interactive") for number in range(HUMANS)] + list(keys),
            upstreams={"main": {"limits": limits}},
        )
        self.gateways = [Gateway(folder / f"gateway-{number}", config, is_awaited=False) for number in range(2)]
        for gateway in self.gateways:
            stack.callback(gateway.end)
            gateway.wait_until_ready()
        self.statuses: Counter[tuple[str, int]] = Counter()

    async def call(self, http: aiohttp.ClientSession, who: str, number: int) -> float:
        """One call, to one of the gateways by turns. Returns how long it took in seconds."""
        port = self.gateways[number % 2].port
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello"}], "user": f"{who}:{number}"}
        began = time.monotonic()
        headers = {"Authorization": f"Bearer {secret(who)}"}
        try:
            async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers) as answer:
                await answer.read()
                status = answer.status
        except aiohttp.ClientError:
            status = 0
        self.statuses[who.partition("-")[0], status] += 1
        return time.monotonic() - began

    async def flood(self, http: aiohttp.ClientSession, who: str, per_s: float, until: float) -> None:
        """So many calls a second, whatever becomes of them."""
        running, began, number = set[asyncio.Task[float]](), time.monotonic(), 0
        while (now := time.monotonic()) < until:
            while number < (now - began) * per_s:
                task = asyncio.ensure_future(self.call(http, who, number))
                running.add(task)
                task.add_done_callback(running.discard)
                number += 1
            await asyncio.sleep(0.005)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def backlog(self, http: aiohttp.ClientSession, who: str, at_once: int, until: float) -> None:
        """So many calls all the time."""

        async def caller(first: int) -> None:
            number = first
            while time.monotonic() < until:
                await self.call(http, who, number)
                number += at_once

        callers = [asyncio.ensure_future(caller(number)) for number in range(at_once)]
        await asyncio.wait(callers, timeout=until - time.monotonic())
        for each in callers:
            each.cancel()
        await asyncio.gather(*callers, return_exceptions=True)

    async def human(self, http: aiohttp.ClientSession, place: int, until: float, seen: Humans) -> None:
        """A call now and then."""
        chance, who, number = random.Random(place), f"human-{place}", 0
        while True:
            await asyncio.sleep(chance.uniform(1.5, 4.5))
            if time.monotonic() >= until:
                return
            seen.sent[f"{who}:{number}"] = len(self.upstream.arrivals)
            seen.took_s.append(await self.call(http, who, number))
            number += 1


@dataclass
class Humans:
    """What the interactive keys lived through."""

    sent: dict[str, int] = field(default_factory=dict)
    """The arrivals at the upstream when a call was sent."""
    took_s: list[float] = field(default_factory=list)


def together(*works: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]]) -> None:
    """Run clients of one scene at the same time."""

    async def run() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
            await asyncio.gather(*[work(http) for work in works])

    asyncio.run(run())


def crowd(house: House, seconds: float, flood_per_s: float) -> tuple[Humans, list[tuple[float, str]]]:
    """Ten people, and a flood of batch calls if `flood_per_s`: what they lived through, and the upstream's log from a
    second after the beginning to the end."""
    seen, began = Humans(), time.monotonic()
    until = began + seconds
    works: list[Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]]] = [
        lambda http, place=place: house.human(http, place, until, seen)  # type: ignore[misc]
        for place in range(HUMANS)
    ]
    if flood_per_s:
        works.append(lambda http: house.flood(http, "batch", flood_per_s, until))
    together(*works)
    return seen, [arrival for arrival in house.upstream.since(began + 1) if arrival[0] < until]


def main() -> int:
    """Measure, and print the table."""
    rows = []
    scenes: list[tuple[str, dict[str, Any], float, float]] = [
        ("8 requests/s", {"requests": "8/s"}, 1.0, 8.0),
        ("8 at once, 1 s each", {"parallel": 8}, 1.0, 8.0),
    ]
    for name, limits, serves_for_s, rate in scenes:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            house = House(stack, folder, Upstream(serves_for_s), limits, key("batch", priority="batch"))
            empty, _ = crowd(house, 20, 0)
            house.upstream.most_inside = 0
            full, log = crowd(house, 40, 50 * rate / 2)
            spread = log[-1][0] - log[0][0]
            humans = sum(who.startswith("human") for _, who in log)
            passed = overtaken(house.upstream.arrivals, full.sent)
            before, after = sorted(empty.took_s), sorted(full.took_s)
            rows.append(
                f"| {name} | {at_percent(before, 95) * 1000:.0f} ms | {at_percent(after, 95) * 1000:.0f} ms | "
                f"{at_percent(passed, 95):.0f} | {len(log) / spread / rate:.1%} | {humans / len(log):.0%} | "
                f"{house.upstream.most_inside} | {excess([at for at, _ in log], rate, rate):.1f} |"
            )
            print(json.dumps({f"{who} {status}": count for (who, status), count in house.statuses.items()}))
    print(
        "| Limit | p95 alone | p95 in the flood | overtaken by, p95 | limit used | interactive | most inside | over |"
    )
    print("|---|---|---|---|---|---|---|---|", *rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
