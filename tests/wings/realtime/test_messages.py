"""Messages that come at once do not hold the event loop until all are dealt with, from neither side."""

from __future__ import annotations

import json
from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestClient, TestServer

from gateway.wings.realtime.websocket import UpstreamSocket, messages_of
from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.fakes.turns import counted
from tests.flows.gateway_process import Gateway, model, settings
from tests.wings.realtime.test_held_messages import frame, send
from tests.wings.realtime.test_realtime import session

MANY, FEW_CALLS = 5000, 1000
"""Messages, and the functions that one turn may call for them."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


async def take(socket: UpstreamSocket | web.WebSocketResponse, number: int) -> None:
    """Read so many events."""
    messages = messages_of(socket)
    for _ in range(number):
        assert json.loads((await anext(messages)).data) == {"type": "test.x"}


async def test_many_of_an_upstream(upstream: RealtimeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{upstream.url}/realtime", autoping=False) as socket:
        assert (await socket.receive_json())["type"] == "session.created"
        await socket.send_json({"type": "test.say", "event": {"type": "test.x"}, "times": MANY})
        with counted(monkeypatch) as turns:
            await take(socket, MANY)
    assert turns.most <= FEW_CALLS, turns.by


EVENT = frame(b'{"type": "test.x"}', WSMsgType.TEXT)


@pytest.mark.parametrize(("sent", "events"), [(EVENT * MANY, MANY), (frame(b"", WSMsgType.PONG) * MANY + EVENT, 1)])
async def test_many_of_a_client(sent: bytes, events: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await take(socket, events)
        await socket.send_str("all")
        return socket

    app = web.Application()
    app.router.add_get("/", serve)
    async with TestClient(TestServer(app)) as client, client.ws_connect("/") as opened:
        with counted(monkeypatch) as turns:
            send(opened, sent)
            assert (await opened.receive()).data == "all"
    assert turns.most <= FEW_CALLS, turns.by


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, upstream: RealtimeUpstream) -> Gateway:
    able = {"main": {"capabilities": {"realtime": True}}}
    return start_shared_gateway(settings(upstream.url, models={"gpt-realtime": model("realtime")}, upstreams=able))


async def test_a_ping_is_answered(gateway: Gateway) -> None:
    async with session(gateway, autoping=False) as socket:
        send(socket, frame(b"here?", WSMsgType.PING))
        answer = await socket.receive(timeout=10)
        assert (answer.type, answer.data) == (WSMsgType.PONG, b"here?")
