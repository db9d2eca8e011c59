"""The client's side of a stream: opened once, and a comment for every silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.formats import sse
from gateway.relay.client_stream import ClientStream, Headers
from tests.fakes.scripted import until

QUIET_S = 0.02
LONG_S = 6 * QUIET_S


class Client:
    """Notes what is written."""

    def __init__(self) -> None:
        self.headers: list[Headers] = []
        self.written: list[bytes] = []
        self.is_congested = False

    def __call__(self, headers: Headers) -> Client:
        self.headers.append(headers)
        return self

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return self.is_congested

    async def wait_until_writable(self) -> None:
        pass


class Speaker:
    def __init__(self, *, may_be_interrupted: bool) -> None:
        self.may_be_interrupted = may_be_interrupted


def own_headers() -> Headers:
    return (("x-own", "1"),)


async def test_is_opened_once() -> None:
    client = Client()
    outlet = ClientStream(client, own_headers, 0)
    for _ in range(2):
        assert outlet.open((("content-type", "a"),)) is client is outlet.writer
    assert client.headers == [(("content-type", "a"), ("x-own", "1"))]


async def test_silence_opens_it_and_is_broken_again_and_again() -> None:
    client = Client()
    outlet = ClientStream(client, own_headers, QUIET_S, sse.KEEPALIVE)
    await until(lambda: len(client.written) >= 2)
    assert client.headers == [(("content-type", "text/event-stream"), ("x-own", "1"))]
    assert set(client.written) == {sse.KEEPALIVE}
    outlet.close()


async def test_nothing_after_it_was_closed() -> None:
    client = Client()
    outlet = ClientStream(client, own_headers, QUIET_S, sse.KEEPALIVE)
    outlet.close()
    outlet.close()
    await asyncio.sleep(LONG_S)
    assert client.headers == []


async def test_no_comments_and_no_timer_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "call_at", None)
    ClientStream(Client(), own_headers, 0).close()


@pytest.mark.parametrize("is_congested", [True, False])
@pytest.mark.parametrize("may_be_interrupted", [True, False])
async def test_only_where_it_may(is_congested: bool, may_be_interrupted: bool) -> None:
    client = Client()
    client.is_congested = is_congested
    outlet = ClientStream(client, own_headers, QUIET_S, sse.KEEPALIVE)
    outlet.speaker = Speaker(may_be_interrupted=may_be_interrupted)
    await asyncio.sleep(LONG_S)
    assert bool(client.written) is (may_be_interrupted and not is_congested)
    assert bool(client.headers) is may_be_interrupted
    outlet.speaker = None  # between two attempts
    client.is_congested = False
    await until(lambda: client.written)
    outlet.close()


async def test_passing_on_moves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    armed: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *more: Any) -> asyncio.TimerHandle:
        armed.append(when)
        return call_at(when, *more)

    client = Client()
    outlet = ClientStream(client, own_headers, QUIET_S, sse.KEEPALIVE)
    monkeypatch.setattr(loop, "call_at", counted)
    began = loop.time()
    while loop.time() < began + LONG_S:
        outlet.spoke_at = loop.time()
        await asyncio.sleep(0)
    outlet.close()
    assert client.written == []
    assert 1 <= len(armed) <= LONG_S / QUIET_S + 1
