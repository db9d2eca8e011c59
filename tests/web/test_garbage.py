"""A call is forgotten when it is over: nothing of it waits for the collector."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from aiohttp import web

from gateway.config import build
from gateway.observe.metrics import Telemetry
from gateway.web import app, server
from tests.fakes.scripted import Scripted, ok_json, stream

KEY = b"sk-test-0123456789abcdefghijkl"
CALLS = 20
ANSWERS = {
    "plain": (b"", ok_json(), b"\r\n\r\n"),
    "stream": (
        b',"stream":true',
        stream([{"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}]),
        b"0\r\n\r\n",
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_call_leaves_nothing_for_the_collector(kind: str, tmp_path: Path) -> None:
    more, answer, end = ANSWERS[kind]
    body = b'{"model":"m","prompt":"hi"%s}' % more
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (KEY, len(body), body)
    )
    async with Scripted(always=answer) as upstream:
        config = build({
            "server": {"access_log": "off"},
            "store": {"url": f"embedded:{tmp_path}"},
            "upstreams": {"up": {"base_url": upstream.url}},
            "models": {"m": {"routes": [{"upstream": "up"}]}},
            "keys": [{"id": "k", "secret": KEY.decode(), "quotas": [{"requests": 1000, "per": "day"}]}],
        })  # fmt: skip

        async def scrape() -> bytes:
            return b""

        async with app.build(config, Telemetry(["k"], 1), scrape) as worker:
            runner = server.runner_of(worker.app, worker.shortcuts, worker.parts)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            reader, writer = await asyncio.open_connection(*runner.addresses[0])

            async def call() -> None:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                if kind == "stream":
                    await reader.readuntil(end)
                else:
                    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    await reader.readexactly(int(length))

            await call()
            gc.collect()
            gc.disable()
            try:
                for _ in range(CALLS):
                    await call()
                left = gc.collect()
            finally:
                gc.enable()
            writer.close()
            await runner.cleanup()
    assert left < CALLS, "something refers to itself: find it with gc.DEBUG_SAVEALL and cut the ring"
