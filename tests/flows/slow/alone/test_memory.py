"""What a stream costs in memory: nothing that grows with its length, with an event, or with a client's slowness."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, Behaviour, Wire, chunk, event
from tests.flows.client import TIMEOUT_S, Raw
from tests.flows.gateway_process import Gateway, eventually, settings

MB = 1 << 20
ROOM = 24 * MB
"""What a worker may grow by: buffers of one connection, and pages that the allocator keeps."""
MAX_RESPONSE = 8 * MB


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(settings(shared_upstream.url, server={"max_response_bytes": MAX_RESPONSE}))


def rss(pid: int) -> int:
    """Bytes of memory that a process has in use."""
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout) * 1024


@pytest.fixture
def grown(gateway: Gateway, upstream: ScriptedUpstream) -> Callable[[], int]:
    """By how many bytes the worker has grown since the test began."""
    (worker,) = gateway.workers()
    upstream.answer_with(streamed(b"", ENDING))
    with gateway.stream() as client:  # the first stream of a process costs more than the second
        client.read_head()
        client.read_chunks()
    before = rss(worker)
    return lambda: rss(worker) - before


def piece(text: str, finish: str | None = None) -> bytes:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
    return event({"id": "cmpl-1", "object": "text_completion", "model": "up", "choices": [choice]})


ENDING = piece("", "stop") + b"data: [DONE]\n\n"
SENT: list[int] = []
"""Bytes that the upstream has got rid of in the present test."""


def streamed(block: bytes, ending: bytes = b"", times: int = 1) -> Behaviour:
    """A stream of many equal blocks, each a chunk, and its ending."""

    async def behaviour(wire: Wire) -> None:
        SENT.clear()
        await wire.write(CHUNKED)
        for _ in range(times):
            await wire.write(chunk(block) if block else b"")
            SENT.append(len(block))
        await wire.write(chunk(ending) + b"0\r\n\r\n")

    return behaviour


def read_all(client: Raw) -> int:
    """Read a chunked body to its end; returns its bytes, of which nothing is kept."""
    size = 0
    while piece := client.read_chunk():
        size += len(piece)
    return size


def read_raw(client: Raw, size: int | None) -> int:
    """Read so much of a chunked body, framing and all, or to its end; returns how much, and keeps nothing."""
    buffer, got, tail = bytearray(MB), len(client.held), client.held
    client.held = b""
    while size is None or got < size:
        number = client.socket.recv_into(buffer, min(MB, size - got) if size else 0)
        assert number, "the gateway hung up"
        got += number
        tail = tail[-5:] + buffer[max(0, number - 5) : number]
        if tail.endswith(b"0\r\n\r\n"):
            break
    return got


def test_slow_reader_stops_the_upstream(gateway: Gateway, upstream: ScriptedUpstream, grown: Callable[[], int]) -> None:
    """A client that reads nothing of a fast stream without end: what is on its way is all there is."""
    block = piece("x" * 4000) * 16
    upstream.answer_with(streamed(block, times=10**9))
    with gateway.stream() as client:
        client.read_head()
        eventually(lambda: is_still(SENT))
        assert sum(SENT) < 64 * MB  # socket buffers of the system, on both sides
        assert grown() < ROOM
        on_its_way = sum(SENT)
        read_raw(client, 64 * MB)  # and it goes on where it stopped
        eventually(lambda: sum(SENT) > on_its_way)
    eventually(lambda: upstream.open_now == 0)
    assert grown() < ROOM


def is_still(sent: list[int]) -> bool:
    """Whether nothing more is taken."""
    before = len(sent)
    time.sleep(0.3)
    return 0 < len(sent) == before


def test_long_stream_leaves_nothing_behind(
    gateway: Gateway, upstream: ScriptedUpstream, grown: Callable[[], int]
) -> None:
    block, times = piece("x" * 4000) * 16, 3200
    upstream.answer_with(streamed(block, ENDING, times))
    with gateway.stream() as client:
        client.read_head()
        at = [read_raw(client, 50 * MB) and grown() for _ in range(3)]
        passed = 150 * MB + read_raw(client, None)
    assert passed >= len(block) * times + len(ENDING) > 200_000_000
    assert max(*at, grown()) < ROOM


def test_long_event_passes_through(gateway: Gateway, upstream: ScriptedUpstream, grown: Callable[[], int]) -> None:
    """It is not held: 64 MB in one event, and its beginning is here before its end was sent."""
    half = threading.Event()
    first, last = b'data: {"choices": [{"index": 0, "text": "', b'", "finish_reason": "stop"}]}\n\n'
    block, times = b"x" * MB, 32

    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(first))
        for number in range(2 * times):
            if number == times:
                await asyncio.to_thread(half.wait, TIMEOUT_S)
            await wire.write(chunk(block))
        await wire.write(chunk(last) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    upstream.answer_with(behaviour)
    with gateway.stream() as client:
        head = client.read_head()
        passed = 0
        while passed < times * MB - 128 * 1024:
            passed += len(client.read_chunk())
        assert grown() < ROOM
        half.set()
        passed += read_all(client)
    assert passed == len(first) + 2 * times * MB + len(last) + len(b"data: [DONE]\n\n")
    assert grown() < ROOM
    assert gateway.call(head.id)["ended"] == "done"


@pytest.mark.parametrize("size", [1 << 30, 1000])
def test_events_of_5_mb_are_the_same(gateway: Gateway, upstream: ScriptedUpstream, size: int) -> None:
    text = json.dumps({"choices": [{"index": 0, "text": "é" * 1000 + "x" * 5 * MB, "finish_reason": None}]})
    whole = event(text) + piece("a") + event(text) + ENDING
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]

    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED + b"".join(map(chunk, parts)) + b"0\r\n\r\n")

    upstream.answer_with(behaviour)
    with gateway.stream() as client:
        client.read_head()
        assert client.read_chunks() == whole


def test_endless_plain_answer_is_cut(gateway: Gateway, upstream: ScriptedUpstream, grown: Callable[[], int]) -> None:
    async def behaviour(wire: Wire) -> None:
        SENT.clear()
        await wire.write(CHUNKED.replace(b"text/event-stream", b"application/json") + chunk(b'{"x": "'))
        while not wire.writer.is_closing():
            await wire.write(chunk(b"x" * 65536))
            SENT.append(65536)

    upstream.answer_with(behaviour)
    got = gateway.complete()
    assert (got.status, got.error["code"]) == (502, "upstream_error")
    eventually(lambda: upstream.open_now == 0)
    assert MAX_RESPONSE < sum(SENT) < MAX_RESPONSE + 32 * MB
    assert grown() < 3 * MAX_RESPONSE + ROOM
