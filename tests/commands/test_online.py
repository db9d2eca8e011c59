"""`gateway check --online`: what is asked, and what is said of each answer."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.online import Asked, ask_all, lines_of
from gateway.config import build
from tests.fakes.collector import Collector
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Authority, Scripted, answer, error_json, ok_json

MODELS = ok_json({"data": [{"id": "gpt-4o"}, {"id": "text-embedding-3-small"}]})
CHAT = ok_json({"choices": [{"message": {"content": "Hi"}}]})
AWAY = "http://127.0.0.1:9/v1"


def values(url: str, **changes: Any) -> dict[str, Any]:
    return {
        "upstreams": {"up": {"base_url": url, "api_key": "sk-a-secret-of-ours"} | changes.pop("upstream", {})},
        "models": {changes.pop("model", "gpt-4o"): {"routes": [{"upstream": "up"}]}},
    } | changes


async def asked(given: dict[str, Any], *, spends: bool = False) -> list[Asked]:
    found = await ask_all(build(given), spends=spends)
    assert "secret-of-ours" not in "".join(lines_of(found))
    return found


async def test_a_good_upstream() -> None:
    async with Scripted(always=MODELS) as upstream:
        assert await asked(values(upstream.url)) == [Asked(f"upstream up, GET {upstream.url}/models", "2 models")]
        assert [request.method for request in upstream.requests] == ["GET"]


@pytest.mark.parametrize(
    ("behaviour", "key", "says"),
    [
        (error_json(401), "sk-a-secret-of-ours", "it answered 401: the key is refused"),
        (error_json(401), None, "it answered 401: it wants a key, and api_key is not set"),
        (error_json(404), None, "it answered 404: base_url is wrong, or it has no list of models"),
        (answer(b"<html>"), None, "it answered 200, and not with a list of models: base_url is probably wrong"),
        (error_json(500), None, "it answered 500"),
    ],
)
async def test_a_bad_upstream(behaviour: Any, key: str | None, says: str) -> None:
    async with Scripted(always=behaviour) as upstream:
        (found,) = await asked(values(upstream.url, upstream={"api_key": key}))
        assert (found.came, found.is_good) == (says, False)


async def test_each_key_is_asked() -> None:
    async with Scripted(MODELS, error_json(401)) as upstream:
        keys = ["sk-a-secret-of-ours-1", "sk-a-secret-of-ours-2"]
        found = await asked(values(upstream.url, upstream={"api_key": None, "api_keys": keys}))
        assert [each.what.partition(" with ")[2] for each in found] == ["key 1 of 2", "key 2 of 2"]
        assert sorted(each.is_good for each in found) == [False, True]


async def test_all_faults_are_reported_at_once() -> None:
    given = values(AWAY, tracing={"endpoint": AWAY}, store={"url": "redis://127.0.0.1:9/0"})
    found = await asked(given)
    assert [each.what.partition(",")[0].partition(" ")[0] for each in found] == [
        "store", "upstream", "tracing.endpoint",
    ]  # fmt: skip
    assert not any(each.is_good for each in found)
    assert all(line.startswith("  FAILED     ") for line in lines_of(found))


async def test_a_model_that_is_not_listed_is_doubtful() -> None:
    async with Scripted(always=MODELS) as upstream:
        _, found = await asked(values(upstream.url, model="gpt-4-misspelt"))
        assert (found.is_good, found.is_doubtful) == (True, True)
        assert found.came == "not in its list: gpt-4-misspelt"


@pytest.mark.parametrize(
    ("script", "says", "is_good"),
    [
        (CHAT, "it works", True),
        (error_json(429), "it answered 429", False),
        (ok_json({"error": "no"}), "it answered 200", False),
    ],
)
async def test_one_token_is_spent_only_if_it_may(script: Any, says: str, is_good: bool) -> None:
    async with Scripted(MODELS, script) as upstream:
        *_, found = await asked(values(upstream.url), spends=True)
        assert (found.came, found.is_good) == (says, is_good)
        _, sent = upstream.requests
        assert sent.json["max_completion_tokens"] == 1
        assert sent.json["model"] == "gpt-4o"


async def test_a_pattern_takes_a_listed_model_that_chats() -> None:
    async with Scripted(MODELS, CHAT) as upstream:
        *_, found = await asked(values(upstream.url, model="*"), spends=True)
        assert found.what.endswith("a chat of one token with gpt-4o")
    async with Scripted(ok_json({"data": [{"id": "text-embedding-3-small"}]})) as upstream:
        *_, found = await asked(values(upstream.url, model="*"), spends=True)
        assert found.came == "not tried: no model is named that serves chat"


async def test_a_collector_gets_no_span() -> None:
    with Collector() as collector:
        given = values(AWAY, tracing={"endpoint": collector.url, "headers": {"Authorization": "Bearer secret-of-ours"}})
        found = (await asked(given))[-1]
        assert (found.came, found.is_good) == ("taken", True)
        assert collector.requests[0].body == b""
        assert collector.requests[0].headers["authorization"] == "Bearer secret-of-ours"


async def test_redis_is_asked_for_its_persistence(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        found = (await asked(values(AWAY, store={"url": server.url})))[0]
        assert found.is_good
        assert "append-only file" in found.came


async def _answer_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def test_https_at_a_port_without_tls() -> None:
    async with await asyncio.start_server(_answer_plainly, "127.0.0.1", 0) as server:
        (found,) = await asked(values(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"))
    assert not found.is_good
    assert found.came.endswith("it speaks no TLS: write http:// in its address")


def _refuse_plain(listener: socket.socket, tls: ssl.SSLContext, plain: bytes) -> None:
    """Serve handshakes; what is not one gets `plain`, as servers have it on the same port. Ends with the listener."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.settimeout(10)
            with connection, suppress(OSError):
                if connection.recv(1, socket.MSG_PEEK) == b"\x16":
                    tls.wrap_socket(connection, server_side=True).close()
                else:
                    connection.recv(4096)
                    connection.sendall(plain)


@pytest.mark.parametrize(
    ("plain", "came"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "it answered 400"),  # nginx, Go
        (b"", "closed without an answer"),  # Node, Python, HAProxy
    ],
)
async def test_http_at_a_port_with_tls(tmp_path: Path, plain: bytes, came: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tls = Authority(tmp_path).server_context("127.0.0.1")
        serving = asyncio.create_task(asyncio.to_thread(_refuse_plain, listener, tls, plain))
        (found,) = await asked(values(f"http://127.0.0.1:{listener.getsockname()[1]}/v1"))
        listener.shutdown(socket.SHUT_RDWR)
        await serving
    assert found == Asked(found.what, f"{came}: this port speaks TLS; write https:// in base_url", is_good=False)


async def test_a_plain_port_that_refuses_is_not_one_with_tls() -> None:
    async with await asyncio.start_server(_answer_plainly, "127.0.0.1", 0) as server:
        (found,) = await asked(values(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"))
    assert found.came == "it answered 400"
