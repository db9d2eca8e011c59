"""Bytes of WebSocket messages count while they are held: unfinished, waiting or in hand, on both sides of a session."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import chain
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType
from aiohttp._websocket import reader, reader_py

from gateway.wings.realtime.held_messages import FREE_BYTES, HeldMessages
from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.gateway_process import Gateway, key, model, settings
from tests.wings.realtime.test_realtime import session, until

ROOM = 1_200_000
LARGEST = 500_000
"""Of one message. A key has half of the room: one of these beside a small one."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(upstream: RealtimeUpstream) -> None:
    upstream.reset()


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, upstream: RealtimeUpstream) -> Gateway:
    server = {"max_buffered_bytes": ROOM, "max_request_bytes": LARGEST}
    models = {"gpt-realtime": model("realtime")}
    able = {"main": {"capabilities": {"realtime": True}}}
    keys = [key("alice"), key("bob")]
    return start_shared_gateway(settings(upstream.url, server=server, models=models, upstreams=able, keys=keys))


def frame(payload: bytes, opcode: int, *, is_last: bool = True, announced: int | None = None) -> bytes:
    """A frame of a client, masked with zeros; of `announced` bytes, of which these are the first."""
    size = len(payload) if announced is None else announced
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2) if size < 2**16 else None
    return bytes([opcode | 0x80 * is_last]) + (length or b"\xff" + size.to_bytes(8)) + bytes(4) + payload


def in_one_frame(size: int, *, is_whole: bool) -> bytes:
    return frame(b"x" * size, WSMsgType.TEXT, announced=None if is_whole else LARGEST - 1)


def in_fragments(size: int, *, is_whole: bool) -> bytes:
    """With pings between them."""
    first = frame(b"x", WSMsgType.TEXT, is_last=False)
    piece = frame(b"x" * 1_000, WSMsgType.CONTINUATION, is_last=False) + frame(b"", WSMsgType.PING)
    return first + piece * (size // 1_000) + (frame(b"x", WSMsgType.CONTINUATION) if is_whole else b"")


def send(socket: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
    connection = socket._response.connection
    assert connection is not None
    assert connection.transport is not None
    connection.transport.write(data)


async def first_refused(sessions: list[aiohttp.ClientWebSocketResponse]) -> None:
    """One of these sessions ends because there is no room, and the others go on."""
    waiting = {asyncio.ensure_future(until(each, "error")): each for each in sessions}
    ended, others = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for each in others:
        each.cancel()
    (refused,) = ended
    assert refused.result()["error"]["code"] == "buffers_full"
    await waiting[refused].receive()
    assert waiting[refused].close_code == 1013


@pytest.mark.parametrize("made", [in_one_frame, in_fragments])
async def test_unfinished_messages_of_a_client_take_room(gateway: Gateway, made: Any) -> None:
    """Of their key only, until the session ends."""
    for _ in range(2):  # room that is not given back would be missed the second time
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(session(gateway)) for _ in range(2)]
            for each in sessions:
                send(each, made(400_000, is_whole=False))
            await first_refused(sessions)
            other = await stack.enter_async_context(session(gateway, who="bob"))
            send(other, made(400_000, is_whole=True))
            assert (await until(other, "error"))["error"]["code"] == "invalid_json"


async def test_unfinished_messages_of_an_upstream_take_room(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(session(gateway)) for _ in range(2)]
        for each in sessions:
            await each.send_json({"type": "test.unfinished", "bytes": 400_000})
        await first_refused(sessions)
    async with session(gateway) as again:
        await again.send_json({"type": "test.say", "event": {"type": "test.long", "x": "x" * 250_000}})
        await until(again, "test.long")


class _Room:
    def __init__(self) -> None:
        self.held = 0

    def hold(self, size: int, key: str) -> bool:
        self.held += size
        return True

    def release(self, size: int, key: str) -> None:
        self.held -= size


class _Protocol:
    _reading_paused = False

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False


@pytest.mark.parametrize("module", [reader, reader_py])
@pytest.mark.parametrize("seed", range(8))
async def test_what_is_counted_is_what_is_held(module: Any, seed: int) -> None:
    """Whatever is sent, in whatever pieces, and however slowly it is read: never less than there is, but for what is
    free, and nothing once all is read."""
    chance, loop, room = random.Random(seed), asyncio.get_running_loop(), _Room()
    protocol, full = _Protocol(), loop.create_future()
    queue = module.WebSocketDataQueue(protocol, 2**16, loop=loop)
    held = HeldMessages(room, "alice", full)
    first = held.watch(module.WebSocketReader(queue, 2**22, compress=False, decode_text=True), queue)
    frames: list[tuple[bytes, int]] = []
    for _ in range(60):
        parts = [b"x" * chance.choice([1, 100, 5_000, 70_000, 300_000]) for _ in range(chance.choice([1, 1, 3]))]
        opcodes = chain([WSMsgType.TEXT], iter(lambda: WSMsgType.CONTINUATION, None))
        for number, (part, opcode) in enumerate(zip(parts, opcodes, strict=False), 1):
            frames.append((frame(part, opcode, is_last=number == len(parts)), len(part)))
            if chance.random() < 0.3:
                frames.append((frame(b"x" * chance.choice([0, 125]), WSMsgType.PING), 0))
    stream, come, read = b"".join([each for each, _ in frames]), 0, 0
    payload = sum([size for _, size in frames])
    heads = len(stream) - payload
    while read < payload:
        if come < len(stream) and not protocol._reading_paused and chance.random() < 0.8:
            piece = stream[come : come + chance.choice([1, 1_000, 2**16, 2**18])]
            come += len(piece)
            first.feed_data(piece)
        elif queue._buffer:
            message = await queue.read()
            if message.type is WSMsgType.TEXT:
                with held.in_hand(len(message.data)):
                    assert room.held >= come - heads - read - FREE_BYTES
                read += len(message.data)
        assert room.held >= come - heads - read - FREE_BYTES
    while queue._buffer:
        await queue.read()
    assert room.held == 0
    held.close()
    assert not full.done()
