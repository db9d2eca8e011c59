"""Connections that stay: how long they may rest, and how long a client may take nothing. On the production runner."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from gateway.config import build
from gateway.telemetry import Telemetry
from gateway.web import app, connections, server
from tests.fakes.scripted import Scripted, ok_json

KEY = "sk-test-0123456789abcdefghijkl"
PATIENCE_S = 20

Starts = Callable[[str], Awaitable[tuple[str, int]]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starts]:
    """Start a gateway in front of this upstream; returns where it listens."""
    async with AsyncExitStack() as stack:

        async def begin(url: str) -> tuple[str, int]:
            config = build({
                "server": {"access_log": "off"},
                "store": {"url": f"embedded:{tmp_path}"},
                "upstreams": {"up": {"base_url": url}},
                "models": {"m": {"routes": [{"upstream": "up"}], "endpoints": ["completions"]}},
                "keys": [{"id": "k", "secret": KEY}],
            })  # fmt: skip

            async def scrape() -> bytes:
                return b""

            worker = await stack.enter_async_context(app.build(config, Telemetry(["k"], 1), scrape))
            runner = server.runner_of(worker.app, worker.shortcuts, worker.parts)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address: tuple[str, int] = runner.addresses[0]
            return address

        yield begin


async def test_connection_does_not_rest_for_ever(start: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.3)
    reader, writer = await asyncio.open_connection(*await start("http://127.0.0.1:9/v1"))
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b'{"status": "ok"}')).startswith(b"HTTP/1.1 200 ")
        assert await reader.read() == b""
    writer.close()


async def test_client_that_takes_nothing_is_cut_off(start: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_S", 1)
    body = b'{"model": "m", "prompt": "x"}'
    """Where the kernel can: elsewhere only a stream's upstream and the room for answers bound what it holds."""
    async with Scripted(ok_json({"choices": [], "x": "x" * 50_000_000})) as upstream:
        loop = asyncio.get_running_loop()
        with socket.create_connection(await start(upstream.url)) as client:
            client.setblocking(False)
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            await loop.sock_sendall(client, head.encode() + body)
            await asyncio.sleep(4)
            async with asyncio.timeout(PATIENCE_S):
                assert await is_reset(client) or not hasattr(socket, "TCP_USER_TIMEOUT")


async def is_reset(client: socket.socket) -> bool:
    """Whether the answer breaks off."""
    loop, size = asyncio.get_running_loop(), 0
    try:
        while size < 50_000_000 and (piece := await loop.sock_recv(client, 1 << 20)):
            size += len(piece)
    except ConnectionResetError:
        return True
    return False
