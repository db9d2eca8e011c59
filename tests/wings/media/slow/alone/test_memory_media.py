"""What long answers of sound and images cost in memory: what is passed on as it comes costs nothing, and a plain answer
of images costs its own size for as long as it is under way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes.scripted import CHUNKED, Scripted, Wire, chunk
from tests.flows.client import Raw
from tests.flows.gateway_process import Gateway, secret, settings
from tests.flows.slow.alone.test_memory import MB, ROOM, rss

LONG = 200 * MB
BLOCK = bytes(range(256)) * 4096
SOUND = CHUNKED.replace(b"text/event-stream", b"audio/mpeg")
IMAGE = b"A" * (30 * MB)
KEPT_BY_THE_ALLOCATOR = 64 * MB
"""glibc raises its threshold for mmap to the size of a freed block, at most 32 MB, and then keeps up to twice that at
the top of the heap (mallopt(3), M_MMAP_THRESHOLD)."""
PICTURE = b'data: {"type":"image_generation.partial_image","partial_image_index":0,"b64_json":"' + b"A" * (5 * MB)
COMPLETED = {"type": "image_generation.completed", "b64_json": "AAAA", "usage": {"input_tokens": 1, "output_tokens": 9}}


async def upstream_of_all(wire: Wire) -> None:
    """Long answers, by path."""
    asked = wire.request.json
    if "speech" in wire.request.path:
        await wire.write(SOUND)
        for _ in range(LONG // len(BLOCK)):
            await wire.write(chunk(BLOCK))
        await wire.write(b"0\r\n\r\n")
    elif asked.get("stream"):
        await wire.write(CHUNKED)
        for _ in range(LONG // len(PICTURE)):
            await wire.write(chunk(PICTURE) + chunk(b'"}\n\n'))
        await wire.write(chunk(b"data: " + json.dumps(COMPLETED).encode() + b"\n\n") + b"0\r\n\r\n")
    else:
        body = b'{"created":1,"data":[{"b64_json":"' + IMAGE + b'"}]}'
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await wire.write(head.encode() + body)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways) -> Iterator[Gateway]:
    with Scripted(always=upstream_of_all) as upstream:
        model = {
            "endpoints": ["speech", "images"],
            "routes": [{"upstream": "main"}],
            "price": {"input": 1, "audio_out": 12},
        }
        changes: dict[str, Any] = {"models": {"m": model}}
        yield start_shared_gateway(settings(upstream.url, **changes))


def ask(client: Raw, path: str, body: dict[str, Any]) -> None:
    client.post(path, json.dumps({"model": "m", **body}).encode(), secret("alice"))


def read_chunked(client: Raw, worker: int) -> tuple[str, int, int]:
    """Digest and size of a body in chunks, none of which is kept, and the worker's largest memory meanwhile."""
    digest, size, most = hashlib.sha256(), 0, 0
    while length := int(client.read_until(b"\r\n"), 16):
        digest.update(client.read(length))
        client.read(2)
        if size // (20 * MB) != (size + length) // (20 * MB):
            most = max(most, rss(worker))
        size += length
    client.read(2)
    return digest.hexdigest(), size, most


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/audio/speech", {"input": "Hi", "voice": "v"}, BLOCK * 2),
        ("/v1/images/generations", {"prompt": "a cat", "stream": True}, PICTURE + b'"}\n\n'),
    ],
)
def test_an_answer_that_is_passed_on_is_not_in_memory(
    gateway: Gateway, path: str, body: dict[str, Any], expected: bytes
) -> None:
    (worker,) = gateway.workers()
    with gateway.connect() as client:
        for turn in ("first", "second"):  # the first of a process costs more
            before = rss(worker)
            ask(client, path, body)
            assert client.read_head().status == 200
            digest, size, most = read_chunked(client, worker)
            assert size >= LONG - len(expected)
            assert most - before < ROOM or turn == "first"
    if "speech" in path:
        assert digest == hashlib.sha256(BLOCK * (LONG // len(BLOCK))).hexdigest()
    row = gateway.calls(limit=1)[0]
    assert (row["ended"], row["completion_tokens"] > 0) == ("done", True)


def test_plain_answers_of_images_cost_their_size_once(gateway: Gateway) -> None:
    (worker,) = gateway.workers()
    with gateway.connect() as client:
        for turn in range(1 + 12):
            ask(client, "/v1/images/generations", {"prompt": "a cat"})
            answer = client.read_head()
            length = int(answer.headers["content-length"])
            assert (answer.status, length > len(IMAGE)) == (200, True)
            assert client.read(length).endswith(b'A"}]}')
            if turn == 0:
                before = rss(worker)
    assert rss(worker) - before < ROOM + KEPT_BY_THE_ALLOCATOR < 12 * len(IMAGE) / 4
