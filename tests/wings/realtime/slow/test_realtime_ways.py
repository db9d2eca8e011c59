"""How a Realtime session reaches its upstream: a proxy, TLS, time limits, sizes, slow readers and half-closed ends."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.conftest import StartsGateways
from tests.fakes.proxy import ConnectProxy, tunnel
from tests.fakes.realtime import RealtimeUpstream
from tests.fakes.scripted import Authority, Scripted, Wire
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, eventually, secret, settings
from tests.wings.realtime.test_realtime import ASK, KEYS, MODEL, MODELS, close_code, refused, session, until

USERINFO = "Gate:pw-Nobody-may-see"
NAME = "api.example.com"
FLOOD = 192 * 2**20
HELD = 64 * 2**20
"""More than the buffers of two connections hold, and much less than a flood."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def away(authority: Authority) -> Iterator[RealtimeUpstream]:
    """api.example.com, which only the proxy can reach."""
    with RealtimeUpstream(authority.server_context(NAME)) as upstream:
        yield upstream


@pytest.fixture
def upstream() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


def before(base_url: str, server: dict[str, Any] | None = None, **main: Any) -> dict[str, Any]:
    """One model on one upstream with these settings."""
    upstreams = {"main": {"capabilities": {"realtime": True}, **main}}
    config = settings(base_url, keys=KEYS, upstreams=upstreams, server={"workers": 1, **(server or {})})
    return config | {"models": {MODEL: MODELS[MODEL]}}


async def converse(gateway: Gateway) -> None:
    """One response, by openai-python."""
    async with (
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice")) as client,
        client.realtime.connect(model=MODEL) as connection,
    ):
        await connection.response.create()
        async for event in connection:
            if event.type == "response.done":
                return
    raise AssertionError("no response.done")


# ------------------------------------------------------------------------------------------------ the proxy, and TLS


@pytest.mark.parametrize("is_setting", [False, True], ids=["environment", "setting"])
async def test_a_session_goes_through_the_proxy_to_a_private_authority(
    start_gateway: StartsGateways, authority: Authority, away: RealtimeUpstream, is_setting: bool
) -> None:
    with ConnectProxy(always=tunnel(away.port, userinfo=USERINFO)) as proxy:
        url, main = proxy.url_with(USERINFO), {"ca_file": str(authority.ca_file)}
        env = {"HTTPS_PROXY": url}
        if is_setting:
            env, main = {"PROXY": url, "HTTPS_PROXY": "http://127.0.0.1:9"}, main | {"proxy": "${PROXY}"}
        gateway = start_gateway(before(f"https://{NAME}/v1", **main), env=env)
        await converse(gateway)
        await converse(gateway)
        assert proxy.targets == [f"{NAME}:443"] * 2
        ((path, headers), _) = away.requests
        assert path == "/v1/realtime?model=gpt-realtime-2025-08-28"
        assert (headers["Host"], headers["Authorization"]) == (NAME, f"Bearer {UPSTREAM_KEY}")
        assert not {"Proxy-Authorization", "Content-Type"} & set(headers)
        assert USERINFO.partition(":")[2] not in gateway.stdout + gateway.stderr
        gateway.stop()


async def test_the_proxy_makes_a_tunnel_to_an_upstream_without_tls(
    start_gateway: StartsGateways, upstream: RealtimeUpstream
) -> None:
    with ConnectProxy(always=tunnel(upstream.port)) as proxy:
        gateway = start_gateway(before(f"http://{NAME}:8000/v1", proxy=proxy.url))
        await converse(gateway)
        assert proxy.targets == [f"{NAME}:8000"]
        assert upstream.requests[0][1]["Host"] == f"{NAME}:8000"


async def test_a_proxy_that_refuses_is_named_in_the_log_alone(start_gateway: StartsGateways) -> None:
    with ConnectProxy(always=tunnel(0, userinfo="other:credentials")) as proxy:
        gateway = start_gateway(before(f"https://{NAME}/v1", proxy=proxy.url_with(USERINFO)))
        status, error = await refused(gateway, f"/v1/realtime?model={MODEL}")
        assert (status, error["code"]) == (502, "upstream_error")
        assert not [each for each in ("127.0.0.1", str(proxy.port), "proxy", NAME) if each in error["message"]]
        assert "the proxy refuses the credentials (status 407)" in gateway.stderr
        assert USERINFO.partition(":")[2] not in gateway.stderr


@pytest.mark.parametrize("fault", ["authority", "name"])
async def test_a_certificate_that_is_not_the_upstreams_opens_nothing(
    start_gateway: StartsGateways, authority: Authority, tmp_path: Path, fault: str
) -> None:
    trusted = Authority(tmp_path) if fault == "authority" else authority
    with RealtimeUpstream(authority.server_context("127.0.0.1" if fault == "authority" else NAME)) as upstream:
        gateway = start_gateway(before(f"https://127.0.0.1:{upstream.port}/v1", ca_file=str(trusted.ca_file)))
        assert (await refused(gateway, f"/v1/realtime?model={MODEL}"))[0] == 502
        assert "certificate rejected" in gateway.stderr
        assert upstream.requests == []


# ---------------------------------------------------------------------------------------------------- time and sizes


async def hangs(wire: Wire) -> None:
    await wire.until_gone()


async def test_a_handshake_without_an_answer_ends_in_time(start_gateway: StartsGateways) -> None:
    with Scripted(always=hangs) as upstream:
        gateway = start_gateway(before(upstream.url, timeouts={"connect_s": 0.5, "head_s": 0.5}))
        status, error = await refused(gateway, f"/v1/realtime?model={MODEL}")
        assert (status, error["code"]) == (504, "upstream_timeout")
        (row,) = eventually(lambda: gateway.calls("alice"))
        assert (row["prompt_tokens"], row["completion_tokens"]) == (0, 0)
        (path,) = {request.path for request in upstream.requests}
        assert path.startswith("/v1/realtime")


async def test_messages_have_a_size(start_gateway: StartsGateways, upstream: RealtimeUpstream) -> None:
    gateway = start_gateway(before(upstream.url, {"max_request_bytes": 100_000, "max_response_bytes": 200_000}))
    async with session(gateway) as socket:
        await socket.send_str("x" * 150_000)
        assert await close_code(socket) == 1009
    assert upstream.texts == []
    async with session(gateway) as socket:
        await socket.send_json({"type": "test.large", "bytes": 150_000})
        assert len((await socket.receive(timeout=10)).data) == 150_000
        await socket.send_json({"type": "test.large", "bytes": 250_000})
        assert await close_code(socket) == 1009
    rows = eventually(lambda: (rows := gateway.calls("alice"))[1:] and rows)
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in rows] == [(0, 0)] * 2


# ------------------------------------------------------------------------------------------------------ slow readers


def resident(gateway: Gateway) -> int:
    """Bytes of memory of the worker."""
    (worker,) = gateway.workers()
    (line,) = [each for each in Path(f"/proc/{worker}/status").read_text().splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


async def at_rest(count: Any) -> int:
    """What this counts when it counts no further."""
    seen = -1
    while (now := int(count())) != seen or now == 0:
        seen = now
        await asyncio.sleep(1)
    return seen


async def test_a_client_that_does_not_read_stops_the_upstream(
    start_gateway: StartsGateways, upstream: RealtimeUpstream
) -> None:
    gateway = start_gateway(before(upstream.url))
    async with session(gateway) as socket:
        used = resident(gateway)
        transport = socket._response.connection.transport
        transport.pause_reading()
        await socket.send_json({"type": "test.flood", "bytes": FLOOD})
        assert await at_rest(lambda: upstream.flooded) < HELD
        assert resident(gateway) - used < HELD
        transport.resume_reading()
        await until(socket, "test.flooded")
        assert upstream.flooded == FLOOD
        assert resident(gateway) - used < HELD
        await socket.send_json(ASK)
        await until(socket, "response.done")


async def test_an_upstream_that_does_not_read_stops_the_client(
    start_gateway: StartsGateways, upstream: RealtimeUpstream
) -> None:
    gateway = start_gateway(before(upstream.url))
    sent, piece = 0, "A" * 65536
    async with session(gateway) as socket:
        used = resident(gateway)
        await socket.send_json({"type": "test.pause"})

        async def send() -> None:
            nonlocal sent
            for _ in range(FLOOD // len(piece)):
                await socket.send_json({"type": "input_audio_buffer.append", "audio": piece})
                sent += len(piece)

        sending = asyncio.create_task(send())
        assert await at_rest(lambda: sent) < HELD
        assert resident(gateway) - used < HELD
        upstream.goes_on.set()
        await sending
        await socket.send_json(ASK)
        await until(socket, "response.done")
        assert len(upstream.seen) == FLOOD // len(piece) + 2


# --------------------------------------------------------------------------------------------------- half-closed ends


async def test_an_upstream_that_only_stops_sending_is_gone(
    start_gateway: StartsGateways, upstream: RealtimeUpstream
) -> None:
    gateway = start_gateway(before(upstream.url))
    async with session(gateway) as socket:
        await socket.send_json({"type": "test.half"})
        assert await close_code(socket) == 1011
    (row,) = eventually(lambda: gateway.calls("alice"))
    assert (row["ended"], row["status"]) == ("error", 502)
    assert "cut while relaying (closed with 1006), call" in gateway.stderr


async def test_a_client_that_only_stops_sending_is_gone(
    start_gateway: StartsGateways, upstream: RealtimeUpstream
) -> None:
    gateway = start_gateway(before(upstream.url))
    async with session(gateway, "single") as socket:
        socket._response.connection.transport.write_eof()
        assert await asyncio.to_thread(eventually, lambda: upstream.close_codes) == [1000]
    (row,) = eventually(lambda: gateway.calls("single"))
    assert (row["ended"], row["prompt_tokens"]) == ("client_gone", 0)
    eventually(lambda: gateway.get("/v1/models", key="single").status == 200)


@pytest.mark.timeout(150)
async def test_a_side_that_answers_no_ping_is_gone(start_gateway: StartsGateways, upstream: RealtimeUpstream) -> None:
    gateway = start_gateway(before(upstream.url))
    mute = sockets.create_connection(("127.0.0.1", gateway.port))
    lines = [
        f"GET /v1/realtime?model={MODEL} HTTP/1.1", "Host: gateway", f"Authorization: Bearer {secret('alice')}",
        "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", "",
    ]  # fmt: skip
    with mute:
        mute.sendall("\r\n".join(lines).encode())
        async with session(gateway, "narrow") as socket:
            await socket.send_json({"type": "test.pause"})
            code = await asyncio.wait_for(close_code_after(socket), 90)
            assert code == 1011
            upstream.goes_on.set()
        assert await asyncio.to_thread(eventually, lambda: gateway.calls("alice"), 60)
        (row,) = gateway.calls("alice")
        assert row["ended"] == "client_gone"


async def close_code_after(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """What the gateway closes it with, however long it takes."""
    while not (await socket.receive()).type.name.startswith("CLOSE"):
        pass
    return socket.close_code
