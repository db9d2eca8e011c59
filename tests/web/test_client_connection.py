"""Connections that stay: how long they may rest, and how long a client may take nothing. On the production runner."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.config import build
from gateway.observe.metrics import Telemetry
from gateway.web import app, middleware, server
from gateway.web.http_guard import client_connection
from tests.fakes.scripted import Scripted, ok_json, until
from tests.fakes.turns import MOST_CALLS, counted

KEY = "sk-test-0123456789abcdefghijkl"
PATIENCE_S = 20

Runs = Callable[[str], Awaitable[web.AppRunner]]
Starts = Callable[[str], Awaitable[tuple[str, int]]]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Runs]:
    """Start a gateway in front of this upstream; returns what runs it."""
    async with AsyncExitStack() as stack:

        async def begin(url: str) -> web.AppRunner:
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
            return runner

        yield begin


@pytest.fixture
def start(run: Runs) -> Starts:
    """As `run`; returns where it listens."""

    async def begin(url: str) -> tuple[str, int]:
        address: tuple[str, int] = (await run(url)).addresses[0]
        return address

    return begin


async def test_connection_does_not_rest_for_ever(start: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.3)
    reader, writer = await asyncio.open_connection(*await start("http://127.0.0.1:9/v1"))
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b'{"status": "ok"}')).startswith(b"HTTP/1.1 200 ")
        assert await reader.read() == b""
    writer.close()


@pytest.mark.rest
async def test_client_that_takes_nothing_is_cut_off(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "STALLED_S", 1)
    body = b'{"model": "m", "prompt": "x"}'
    """Where the kernel can: elsewhere only a stream's upstream and the room for answers bound what it holds."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1}  # or else so long a text is counted
    async with Scripted(ok_json({"choices": [{"text": "x" * 50_000_000}], "usage": usage})) as upstream:
        loop = asyncio.get_running_loop()
        runner = await run(upstream.url)
        with socket.create_connection(runner.addresses[0]) as client:
            client.setblocking(False)
            await until(lambda: runner.server is not None and runner.server.connections)
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            await loop.sock_sendall(client, head.encode() + body)
            assert runner.server is not None
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                await until(lambda: runner.server is not None and not runner.server.connections)
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


@pytest.mark.parametrize("turns", range(5))
async def test_nonsense_in_a_body_is_refused_at_once_whenever_it_comes(run: Runs, turns: int) -> None:
    """Also in the turn of the loop in which the request is out of the queue, and not the current one yet."""
    runner = await run("http://127.0.0.1:9/v1")
    reader, writer = await asyncio.open_connection(*runner.addresses[0])
    assert runner.server is not None
    await until(lambda: runner.server is not None and runner.server.connections)
    (connection,) = runner.server.connections
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    connection.data_received(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for _ in range(turns):
        await asyncio.sleep(0)
    connection.data_received(b"+5\r\nhello\r\n0\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()


@pytest.mark.parametrize("key", [KEY, "no-key"])
async def test_a_body_in_tiny_chunks_is_read_in_turns(start: Starts, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six thousand chunks in each turn held up other calls for 80 ms, also those of a client without a key."""
    monkeypatch.setattr(client_connection, "TURN_S", 0.0)
    address = await start("http://127.0.0.1:9")
    reader, writer = await asyncio.open_connection(*address)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    )
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    await writer.drain()
    with counted(monkeypatch) as turns:
        for _ in range(20):
            writer.write(b"1\r\n{\r\n" * 2_000)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 40"), answer[:100]
    assert turns.most <= 12 * MOST_CALLS, turns.by


@pytest.mark.parametrize("turn_s", [0.0, 60.0])
async def test_what_follows_an_upgrade_is_read_in_turns(
    run: Runs, turn_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each read takes less than a turn: uvloop would read up to 32 times then. A WebSocket's fragments of
    one byte held up other calls for 700 ms."""
    monkeypatch.setattr(client_connection, "TURN_S", turn_s)
    runner = await run("http://127.0.0.1:9/v1")
    _, writer = await asyncio.open_connection(*runner.addresses[0])
    await until(lambda: runner.server is not None and runner.server.connections)
    assert runner.server is not None
    (connection,) = runner.server.connections
    sizes: list[int] = []

    class Parser:
        def feed_data(self, data: bytes) -> tuple[bool, bytes]:
            sizes.append(len(data))
            return False, b""

        def feed_eof(self) -> None:
            pass

    connection._upgraded = True
    connection.set_parser(Parser())
    connection.data_received(b"x" * 60_000)
    assert sum(sizes) == (60_000 if turn_s else client_connection.PIECE_BYTES)
    assert connection.transport is not None
    assert not connection.transport.is_reading()
    await until(connection.transport.is_reading)
    assert (sum(sizes), max(sizes)) == (60_000, client_connection.PIECE_BYTES)
    writer.close()


class Spied:
    """A pattern that notes the length of what it is run over."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.longest = 0
        self._pattern = pattern

    def sub(self, by: str, text: str) -> str:
        self.longest = max(self.longest, len(text))
        return self._pattern.sub(by, text)


async def first_answer(address: tuple[str, int], method: str, path: str) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection(*address)
    async with asyncio.timeout(PATIENCE_S):
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1]), json.loads(body)


MODEL = "a" * 2048
"""As long as Bedrock permits."""


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"/v1beta/models/{MODEL}:generateContent", 401),
        ("POST", f"/v1/projects/p/locations/l/publishers/google/models/{MODEL}:generateContent", 401),
        ("POST", f"/model/{MODEL}/invoke", 401),
        ("POST", f"/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123%3Ainference-profile%2F{MODEL}/invoke", 401),
        ("GET", "/v1/models/" + "a/" * 50 + "a", 401),
        ("GET", "/v1/v1" * 20 + "//" * 3800, 404),
        ("GET", "/v1/models" + "/a" * 3900, 404),
        ("POST", "/" * 65, 404),
        ("POST", f"/model/{MODEL}{MODEL}/invoke", 404),
    ],
)
async def test_no_route_is_looked_for_with_a_path_that_none_can_have(
    start: Starts, monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int
) -> None:
    """The router would hash each beginning of it, and needs no key for that."""
    asked = []
    resolve = web.UrlDispatcher.resolve

    async def noted(router: web.UrlDispatcher, request: web.Request) -> web.UrlMappingMatchInfo:
        asked.append(request.path)
        return await resolve(router, request)

    monkeypatch.setattr(web.UrlDispatcher, "resolve", noted)
    for name in ("_LIKE_A_KEY", "_SLASHES"):
        monkeypatch.setattr(middleware, name, Spied(getattr(middleware, name)))
    found, body = await first_answer(await start("http://127.0.0.1:9/v1"), method, path)
    assert (found, len(asked)) == (status, 1 if status == 401 else 0)
    assert max(middleware._LIKE_A_KEY.longest, middleware._SLASHES.longest) <= middleware.READ  # type: ignore[attr-defined]
    if status == 404:
        assert "Invalid URL" in str(body)
        assert ("error" in body) is not path.startswith("/model/")  # in the words of Bedrock
