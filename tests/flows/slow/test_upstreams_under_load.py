"""Two upstreams under two hundred calls at once, while one of them is stopped or slow, or both fail.

The tests check that no client sees an error that another attempt could have avoided, that a recovered upstream is used
again, and, by the upstreams' own counts, that one call never causes many attempts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.upstream.health import MIN_REPEATS, RETRY_SLICE_S
from tests.conftest import StartsGateways, StartsProcesses
from tests.fakes.scripted import DEFAULT_JSON, Behaviour, Scripted, Wire, dead_port, error_json, ok_json
from tests.flows.gateway_process import Gateway, Process, key, model, secret, settings

AT_ONCE = 200
ANSWERS_IN_S = 0.4
"""How long an upstream that is well takes: with so many calls at once, about what a slow machine can do."""
PATIENT: dict[str, float] = {"connect_s": 10, "head_s": 30, "idle_s": 30}
BUDGET = 0.2

pytestmark = pytest.mark.timeout(180)


@dataclass
class Received:
    """One answer."""

    status: int
    upstream: str
    attempts: int
    retry_after: str
    is_whole: bool


@dataclass
class Crowd:
    """So many clients, each of whom calls again as soon as it was answered. Every call has a number, sent as `user`."""

    port: int
    model: str
    received: list[Received] = field(default_factory=list)
    begun: int = 0
    _is_over: bool = False

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Received:
        self.begun += 1
        members = {
            "model": self.model, "prompt": "Hello", "user": str(self.begun), "max_tokens": 4,
            "simulate": {"delay_s": ANSWERS_IN_S},
        }  # fmt: skip
        body = json.dumps(members).encode()
        head = [
            "POST /v1/completions HTTP/1.1", "Host: gateway", f"Authorization: Bearer {secret('alice')}",
            "Content-Type: application/json", f"Content-Length: {len(body)}", "", "",
        ]  # fmt: skip
        writer.write("\r\n".join(head).encode() + body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        answer = json.loads(await reader.readexactly(int(headers["content-length"])))
        return Received(
            int(first.split(" ")[1]),
            headers["x-gateway-upstream"],
            int(headers["x-gateway-attempts"]),
            headers.get("retry-after", ""),
            bool(answer.get("choices")) and "usage" in answer,
        )

    async def _call_again_and_again(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while not self._is_over:
            self.received.append(await self._ask(reader, writer))
        writer.close()
        await writer.wait_closed()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        clients = [asyncio.ensure_future(self._call_again_and_again()) for _ in range(AT_ONCE)]
        try:
            yield
        finally:
            self._is_over = True
            await asyncio.gather(*clients)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, f"{what}: {Counter((t.status, t.upstream) for t in self.received[-500:])}"
            await asyncio.sleep(0.02)

    async def some_more(self, count: int = 2 * AT_ONCE) -> None:
        """Until so many more have been answered."""
        wanted = len(self.received) + count
        await self.until(lambda: len(self.received) >= wanted, "some more answers")

    def served_by(self, upstream: str, since: int) -> int:
        return sum([received.upstream == upstream and received.status == 200 for received in self.received[since:]])

    def check_all_served(self) -> None:
        assert Counter(received.status for received in self.received) == {200: len(self.received)}
        assert all(received.is_whole for received in self.received)
        assert max(received.attempts for received in self.received) <= 3


class Seller:
    """Answers well, or as set, and counts the attempts of each call."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.asked: Counter[str] = Counter()
        self.behaviour: Behaviour = well

    async def __call__(self, wire: Wire) -> None:
        self.asked[wire.request.json["user"]] += 1
        await self.behaviour(wire)

    def check_never_asked_many_times(self) -> None:
        """A repetition is a call that comes once more; they are a share of the calls, and ten in each window of two
        slices, of which a slow machine needs more for as many calls."""
        repeats = self.asked.total() - len(self.asked)
        slices = int((time.monotonic() - self._began) / RETRY_SLICE_S) + 1
        assert repeats <= BUDGET * len(self.asked) + MIN_REPEATS * (slices + 1) // 2


async def well(wire: Wire) -> None:
    await asyncio.sleep(ANSWERS_IN_S)
    await ok_json(DEFAULT_JSON)(wire)


async def crawl(wire: Wire) -> None:
    """Takes the request, and says nothing for longer than anybody waits."""
    try:
        await asyncio.wait_for(wire.until_gone(), 60)
    except TimeoutError:
        wire.close()


def opened(start_gateway: StartsGateways, first: str, second: str, limits: dict[str, float], **routes: Any) -> Gateway:
    upstreams = {
        "first": {"base_url": first, "timeouts": limits},
        "second": {"base_url": second, "timeouts": limits},
    }
    ways = [{"upstream": "first"}, {"upstream": "second", **routes}]
    models = {"gpt-3.5-turbo-instruct": model("completions", routes=ways, repeat_when_waiting=True)}
    quotas = [{"requests": 10**9, "per": "day"}, {"tokens": 10**9, "per": "day"}]
    return start_gateway(settings(second, upstreams=upstreams, models=models, keys=[key("alice", quotas=quotas)]))


def crowd_at(gateway: Gateway) -> Crowd:
    return Crowd(gateway.port, "gpt-3.5-turbo-instruct")


def attempts(gateway: Gateway, upstream: str) -> Counter[str]:
    return Counter(
        {
            labels["outcome"]: int(value)
            for name, labels, value in gateway.metrics()
            if name == "gateway_upstream_attempts_total" and labels["upstream"] == upstream
        }
    )


async def simulator(process: StartsProcesses, port: int) -> Process:
    made = process("simulate", "--port", str(port))
    await asyncio.to_thread(made.wait_for, rf":{port}")
    return made


async def test_upstream_is_killed_and_restarted_and_no_client_notices(
    start_gateway: StartsGateways, process: StartsProcesses
) -> None:
    seller, port = Seller(), dead_port()
    with Scripted(always=seller) as second:
        victim = await simulator(process, port)
        gateway = await asyncio.to_thread(
            opened, start_gateway, f"http://127.0.0.1:{port}/v1", second.url, PATIENT, priority=2
        )
        crowd = crowd_at(gateway)
        async with crowd.at_work():
            await crowd.some_more()
            assert crowd.served_by("first", 0) == len(crowd.received)
            victim.process.kill()
            since, asked_before = len(crowd.received), crowd.begun
            await crowd.some_more(4 * AT_ONCE)
            assert crowd.served_by("second", since) > AT_ONCE
            while_away = crowd.begun - asked_before
            failed = await asyncio.to_thread(attempts, gateway, "first")
            await simulator(process, port)
            since = len(crowd.received)
            await crowd.until(lambda: crowd.served_by("first", since) > AT_ONCE, "the first is used again")
    crowd.check_all_served()
    seller.check_never_asked_many_times()
    assert seller.asked.most_common(1)[0][1] == 1
    # A call that was open at the stop made at most one more attempt there, which was refused; then only probes came.
    failed.pop("ok")
    assert failed.total() <= 2 * AT_ONCE + 0.1 * while_away


async def test_upstream_slows_to_a_crawl_and_no_client_notices(start_gateway: StartsGateways) -> None:
    slow, quick = Seller(), Seller()
    limits = PATIENT | {"head_s": 6}
    with Scripted(always=slow) as first, Scripted(always=quick) as second:
        gateway = await asyncio.to_thread(opened, start_gateway, first.url, second.url, limits)
        crowd = crowd_at(gateway)
        async with crowd.at_work():
            await crowd.some_more()
            assert min(slow.asked.total(), quick.asked.total()) > AT_ONCE / 2  # they are equals
            slow.behaviour = crawl
            before, since = slow.asked.total(), len(crowd.received)
            await crowd.until(lambda: any(t.attempts > 1 for t in crowd.received[since:]), "the first is given up")
            await crowd.some_more(4 * AT_ONCE)
            while_slow = slow.asked.total() - before
            slow.behaviour = well
            since = len(crowd.received)
            await crowd.until(lambda: crowd.served_by("first", since) > AT_ONCE / 2, "the first is used again")
    crowd.check_all_served()
    for seller in (slow, quick):
        seller.check_never_asked_many_times()
    # Those that came before it was known to crawl, and probes: not one more for each call that came meanwhile.
    assert while_slow <= 2 * AT_ONCE


@pytest.mark.parametrize(
    ("illness", "share"),
    [
        # Their circuits open, and most calls are refused without an attempt.
        (error_json(500), 0.5),
        (error_json(503, [("Retry-After-Ms", "50")]), 0.5),
        # They say when to come back, and mean it: each call may ask each of them, and a fifth of the calls once more.
        (error_json(429, [("Retry-After-Ms", "50")]), 2 * (1 + BUDGET) + 0.1),
    ],
    ids=["500", "503, come back soon", "429, come back soon"],
)
async def test_both_are_ill_and_attempts_do_not_multiply(
    start_gateway: StartsGateways, illness: Behaviour, share: float
) -> None:
    one, other = Seller(), Seller()
    with Scripted(always=one) as first, Scripted(always=other) as second:
        gateway = await asyncio.to_thread(opened, start_gateway, first.url, second.url, PATIENT, priority=2)
        crowd = crowd_at(gateway)
        async with crowd.at_work():
            await crowd.some_more(AT_ONCE)
            one.behaviour = other.behaviour = illness
            before, since = one.asked.total() + other.asked.total(), len(crowd.received)
            await crowd.some_more(10 * AT_ONCE)
            while_ill, calls = one.asked.total() + other.asked.total() - before, len(crowd.received) - since
            one.behaviour = other.behaviour = well
            since = len(crowd.received)
            await crowd.until(lambda: crowd.served_by("first", since) > AT_ONCE, "the first is used again")
    assert {received.status for received in crowd.received} <= {200, 429, 502, 503}
    assert all(received.retry_after for received in crowd.received if received.status in (429, 503))
    for seller in (one, other):
        seller.check_never_asked_many_times()
    assert while_ill < share * calls
