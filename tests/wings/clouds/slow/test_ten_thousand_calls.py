"""Ten thousand calls across three renewals: none is lost, and none is sent with what is not valid any more.

The clock goes on with each call, so the renewals fall where they fall however fast the machine is. The cloud refuses
what is not valid at its own, equal clock. Streams begin with one token and end under the next.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from typing import Any

import pytest

from gateway.records import Failure
from gateway.upstream.ask import Fetched, fetch
from gateway.wings.clouds import sources
from gateway.wings.clouds.background import keep_renewed
from gateway.wings.clouds.pool import CloudPool
from gateway.wings.clouds.renewal import AHEAD_S, Renewal
from tests.fakes.scripted import CHUNKED, Scripted, Wire, answer, chunk, error_json, ok_json
from tests.wings.clouds.fakes import SECRET, aws_keys, signature_of, token_reply
from tests.wings.clouds.test_pool import oauth, pool

CALLERS = 16


class Clock:
    """Unix time, which goes on by a step with each call."""

    def __init__(self, step_s: float) -> None:
        self.now = time.time()
        self.step_s = step_s

    def __call__(self) -> float:
        return self.now

    time = __call__


class Cloud:
    """Issues tokens, and answers what is authorized."""

    def __init__(self, clock: Clock, lives_s: float) -> None:
        self._clock = clock
        self._lives_s = lives_s
        self._lock = threading.Lock()
        self.ends: list[float] = []
        self.served: Counter[int] = Counter()
        self.refused = 0

    async def issue(self, wire: Wire) -> None:
        with self._lock:
            self.ends.append(self._clock.now + self._lives_s)
            number = len(self.ends)
        await token_reply(f"token-{number}", self._lives_s)(wire)

    async def issue_keys(self, wire: Wire) -> None:
        """Keys that botocore renews whenever it is asked: they end within 15 minutes. Those before the last ones are
        withdrawn."""
        with self._lock:
            self.ends.append(self._clock.now + self._lives_s)
            number = len(self.ends)
        await answer(json.dumps(aws_keys(number, self._lives_s)).encode())(wire)

    def _number(self, wire: Wire) -> int:
        sent = wire.request.headers["authorization"]
        if sent.startswith("Bearer "):
            return int(sent.rpartition("-")[2])
        number = int(sent.partition("AKIAFAKE")[2].partition("/")[0])
        assert sent == signature_of(wire.request, f"{SECRET}-{number}", "bedrock", "us-west-2")
        return number if number >= len(self.ends) - 1 else 0

    async def serve(self, wire: Wire) -> None:
        number = self._number(wire)
        if not number or self._clock.now >= self.ends[number - 1]:
            self.refused += 1
            await error_json(401)(wire)
            return
        with self._lock:
            self.served[number] += 1
        if not wire.request.json.get("stream"):
            await ok_json({"served": number})(wire)
            return
        await wire.write(CHUNKED + chunk(b"data: 1\n\n"))
        while len(self.ends) == number:  # noqa: ASYNC110 - another loop counts them
            await asyncio.sleep(0.001)  # until the token that it began with is not the last one any more
        await wire.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")


async def call(made: CloudPool, clock: Clock, *, is_stream: bool = False) -> Fetched | Failure:
    body = b'{"stream": true}' if is_stream else b"{}"
    if made.renewal is not None and made.renewal.due_in_s > -AHEAD_S / 2:
        clock.now += clock.step_s  # it waits for a renewal, so that calls go on however slow it is
    return await fetch("up", made, made.request("/chat/completions", [], body), 60, 10**6)


async def carry(made: CloudPool, renewal: Renewal, clock: Clock, number: int) -> list[Any]:
    """Make this number of calls, and a stream with each token; returns what was lost."""
    left, lost, streams = iter(range(number)), [], []
    begun: set[tuple[str, ...]] = set()

    async def caller() -> None:
        for _ in left:
            got = await call(made, clock)
            if not isinstance(got, Fetched) or got.head.status != 200:
                lost.append(got)
            if renewal.secrets not in begun and len(begun) < 3:
                begun.add(renewal.secrets)
                streams.append(asyncio.ensure_future(call(made, clock, is_stream=True)))

    renewing = asyncio.ensure_future(keep_renewed([renewal], 0.001))
    await asyncio.gather(*[caller() for _ in range(CALLERS)])
    ends = await asyncio.gather(*streams)
    renewing.cancel()
    assert len(ends) == 3
    return lost + [end for end in ends if not isinstance(end, Fetched) or end.body != b"data: 1\n\ndata: 2\n\n"]


async def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0)
    cloud = Cloud(clock, 2600 + AHEAD_S)
    monkeypatch.setattr(sources, "time", clock)
    with Scripted(always=cloud.issue, prefix="") as tokens, Scripted(always=cloud.serve, prefix="") as server:
        async with pool(f"{server.url}/v1", auth=oauth(tokens)) as made:
            source = sources.of(made._settings)
            assert source is not None
            made.renewal = renewal = Renewal("up", source, 30, clock, monotonic=clock)
            made.max_connections = CALLERS + 3
            assert await carry(made, renewal, clock, 10_000) == []
            await renewal.close()
    assert (len(cloud.ends), cloud.refused, sum(cloud.served.values())) == (4, 0, 10_003)
    assert all(cloud.served[number] > 1000 for number in (1, 2, 3, 4))


async def test_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.1)
    cloud = Cloud(clock, 600)
    with Scripted(always=cloud.issue_keys, prefix="") as tokens, Scripted(always=cloud.serve, prefix="") as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{tokens.url}/aws")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", "/nowhere")
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
            monkeypatch.delenv(f"AWS_{name}", raising=False)
        async with pool(f"{server.url}/v1", auth={"type": "aws", "region": "us-west-2"}) as made:
            source = sources.of(made._settings)
            assert source is not None
            made.renewal = renewal = Renewal("up", source, 30, clock, monotonic=clock)
            made.max_connections = CALLERS + 3
            assert await carry(made, renewal, clock, 2500) == []
            await renewal.close()
    assert (cloud.refused, sum(cloud.served.values())) == (0, 2503)
    assert len(cloud.ends) >= 4
