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
from typing import Any, NamedTuple

import aiohttp

from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Scripted, Wire, ok_json

from .gateway_process import Gateway, key, secret, settings

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
    staggered: list[float] = field(default_factory=list)
    """Shares of that time, for the next calls."""

    def stagger(self, places: int) -> None:
        """The next calls, one for each of the places, end one after the other: calls that began together would end
        together for ten turns and more."""
        self.staggered = [(place + 1) / places for place in range(places)]

    async def __call__(self, wire: Wire) -> None:
        self.arrivals.append((time.monotonic(), wire.request.json["user"]))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            await asyncio.sleep(self.serves_for_s * (self.staggered.pop() if self.staggered else 1))
        finally:
            self.inside -= 1
        await GOOD(wire)

    def between(self, since: float, until: float) -> list[tuple[float, str]]:
        """Arrivals in this time."""
        return [arrival for arrival in self.arrivals if since <= arrival[0] < until]

    def held_s(self, since: float, until: float) -> float:
        """How long calls were inside in this time, in all."""
        ends = [(at, at + self.serves_for_s) for at, _ in self.arrivals]
        return sum([max(0.0, min(end, until) - max(at, since)) for at, end in ends])


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


class GatewayPair:
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

    async def flood(self, http: aiohttp.ClientSession, who: str, per_s: float, until: float, seen: Seen) -> None:
        """So many calls a second, whatever becomes of them."""
        running, began, number = set[asyncio.Task[float]](), time.monotonic(), 0
        while (now := time.monotonic()) < until:
            while number < (now - began) * per_s:
                task = asyncio.ensure_future(self.call(http, who, number))
                running.add(task)
                task.add_done_callback(running.discard)
                number += 1
            seen.batch_sent = number
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

    async def human(self, http: aiohttp.ClientSession, place: int, until: float, seen: Seen) -> None:
        """A call now and then."""
        chance, who, number = random.Random(place), f"human-{place}", 0
        while True:
            await asyncio.sleep(chance.uniform(1.5, 4.5))
            if time.monotonic() >= until:
                return
            is_judged, arrivals = time.monotonic() >= seen.since, len(self.upstream.arrivals)
            took_s = await self.call(http, who, number)
            if is_judged:
                seen.sent[f"{who}:{number}"] = arrivals
                seen.took_s.append(took_s)
            number += 1


@dataclass
class Seen:
    """What the clients of a run lived through."""

    sent: dict[str, int] = field(default_factory=dict)
    """The arrivals at the upstream when a call of an interactive key was sent."""
    took_s: list[float] = field(default_factory=list)
    """How long these calls took."""
    batch_sent: int = 0
    """Calls of the batch key."""
    since: float = 0.0
    until: float = 0.0
    """What is judged."""


def together(*works: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]]) -> None:
    """Run clients of one scene at the same time."""

    async def run() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
            await asyncio.gather(*[work(http) for work in works])

    asyncio.run(run())


def crowd(pair: GatewayPair, warm_up_s: float, seconds: float, flood_per_s: float) -> Seen:
    """Ten people, and a flood of batch calls if `flood_per_s`; judged for so many seconds after so many others."""
    since = time.monotonic() + warm_up_s
    until = since + seconds
    seen = Seen(since=since, until=until)
    works: list[Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]]] = [
        lambda http, place=place: pair.human(http, place, until, seen)  # type: ignore[misc]
        for place in range(HUMANS)
    ]
    if flood_per_s:
        works.append(lambda http: pair.flood(http, "batch", flood_per_s, until, seen))
    together(*works)
    return seen


class Scenario(NamedTuple):
    """A limit, and what is asked of a run with it."""

    name: str
    limits: Mapping[str, Any]
    rate: int
    """Calls a second that the upstream takes."""
    serves_for_s: float
    overtaken: int
    """At most so many calls come before an interactive one, at the 95th percentile: where places become free together,
    one turn of all of them, and those that begin while it is on its way."""
    warm_up_s: float = 1.0
    """What is not judged."""
    is_staggered: bool = False
    """Whether the calls that begin together in the flood end one after the other (`Upstream.stagger`)."""


SCENES = (
    Scenario("8 requests/s", {"requests": "8/s"}, 8, 1.0, 5),
    Scenario("8 at once", {"parallel": 8}, 8, 1.0, 10),
    Scenario("20 at once, 1 of them reserved", {"parallel": 20, "reserved": 1}, 4, 5.0, 8, 6.0, is_staggered=True),
)

TIMES_LEFT = 50
"""How many times what interactive calls leave the batch key sends."""


class Found(NamedTuple):
    """What a run with a scene has shown."""

    alone_s: Sequence[float]
    """How long interactive calls took without the flood, and in it, in order."""
    flooded_s: Sequence[float]
    overtaken: Sequence[int]
    used: float
    """The share of the limit."""
    beyond: float
    """Calls beyond the limit: at once, or of the bucket."""
    times_left: float
    """How many times the batch calls that were served were sent."""
    interactive: float
    """Their share of the calls."""
    statuses: Mapping[tuple[str, int], int]


def measure(scenario: Scenario, folder: Path, alone_s: float, flooded_s: float) -> Found:
    """Interactive calls for so many seconds alone, and then for so many in a flood."""
    with ExitStack() as stack:
        upstream = Upstream(scenario.serves_for_s)
        pair = GatewayPair(stack, folder, upstream, dict(scenario.limits), key("batch", priority="batch"))
        alone = crowd(pair, 1.0, alone_s, 0)
        left = scenario.rate - len(upstream.between(alone.since, alone.until)) / alone_s
        upstream.most_inside = 0
        if scenario.is_staggered:
            upstream.stagger(scenario.limits["parallel"])
        seen = crowd(pair, scenario.warm_up_s, flooded_s, TIMES_LEFT * left)
        log = upstream.between(seen.since, seen.until)
        served = Counter(who.partition("-")[0].partition(":")[0] for _, who in log)
        places = scenario.limits.get("parallel")
        for gateway in pair.gateways:
            gateway.stop()
        return Found(
            alone_s=sorted(alone.took_s),
            flooded_s=sorted(seen.took_s),
            overtaken=overtaken(upstream.arrivals, seen.sent),
            used=(upstream.held_s(seen.since, seen.until) / places if places else len(log) / scenario.rate) / flooded_s,
            beyond=upstream.most_inside - places
            if places
            else excess([at for at, _ in log], scenario.rate, scenario.rate),
            times_left=seen.batch_sent / (scenario.warm_up_s + flooded_s) / (served["batch"] / flooded_s),
            interactive=served["human"] / len(log),
            statuses=pair.statuses,
        )


def main() -> int:
    """Measure, and print the table."""
    rows = []
    for scenario in SCENES:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(scenario, Path(folder), 40, 60)
        before, after = at_percent(found.alone_s, 95), at_percent(found.flooded_s, 95)
        rows.append(
            f"| {scenario.name} | {before:.2f} s | {after:.2f} s | {after / before:.2f} | "
            f"{at_percent(found.overtaken, 95):.0f} | {found.used:.0%} | {found.beyond:.1f} | {found.times_left:.0f} | "
            f"{found.interactive:.0%} |"
        )
        print(json.dumps({f"{who} {status}": count for (who, status), count in found.statuses.items()}))
    print(
        "| Limit | Interactive, p95: alone | in the flood | times | Calls before one, p95 | Limit used | Beyond it "
        "| Batch: sent for each served | Interactive calls |"
    )
    print("|---|---|---|---|---|---|---|---|---|", *rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
