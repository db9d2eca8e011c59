"""What a form costs in memory: nothing that grows with its length or with an upstream's slowness."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes.forms import BOUNDARY, form, part
from tests.fakes.scripted import Scripted, Wire, ok_json
from tests.flows.client import Raw
from tests.flows.gateway_process import Gateway, eventually, secret, settings

from .test_memory import MB, ROOM, rss

FILE = 200 * MB
BLOCK = bytes(range(256)) * 4096
PATH = "/v1/audio/transcriptions"
OPENING = part("model", "m") + part("file", b"")[:-2]
ENDING = b"\r\n" + f"--{BOUNDARY}--\r\n".encode()


class SlowReader:
    """An upstream that begins to read when it may, keeps nothing, and answers with the digest of what came."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.answered = 0

    async def __call__(self, wire: Wire) -> None:
        await asyncio.to_thread(self.may_read.wait, 60)
        digest, left = hashlib.sha256(), int(wire.request.headers["content-length"])
        while left:
            data = await wire.reader.read(min(left, MB))
            assert data
            digest.update(data)
            left -= len(data)
        self.answered += 1
        await ok_json({"text": digest.hexdigest(), "duration": 1})(wire)


@pytest.fixture(scope="module")
def reader() -> SlowReader:
    return SlowReader()


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, reader: SlowReader) -> Iterator[Gateway]:
    with Scripted(always=reader, reads_body=False) as upstream:
        model = {"endpoints": ["transcriptions"], "routes": [{"upstream": "main"}]}
        uploads = {"max_bytes": "256MiB", "max_file_bytes": "250MiB", "timeout_s": 60}
        changes: dict[str, Any] = {"models": {"m": model}, "uploads": uploads}
        yield start_shared_gateway(settings(upstream.url, **changes))


def head(length: int | None) -> bytes:
    lines = [
        f"POST {PATH} HTTP/1.1", "Host: gateway", f"Authorization: Bearer {secret('alice')}",
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}",
        "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


def upload(gateway: Gateway) -> tuple[int, str]:
    """A file of `FILE` bytes; the status, and the digest that the upstream saw."""
    with gateway.connect() as client:
        client.send(head(len(OPENING) + FILE + len(ENDING)) + OPENING)
        for _ in range(FILE // len(BLOCK)):
            client.send(BLOCK)
        client.send(ENDING)
        answer = client.read_head()
        return answer.status, client.read(int(answer.headers["content-length"])).decode()


def warm(gateway: Gateway) -> None:
    """The first form of a process costs more than the second."""
    small = form(("model", "m"), ("file", b"x" * 2 * MB))
    with gateway.connect() as client:
        client.send(head(len(small)) + small)
        assert client.read_head().status == 200


def test_files_that_wait_for_the_upstream_are_not_in_memory(gateway: Gateway, reader: SlowReader) -> None:
    (worker,) = gateway.workers()
    reader.may_read.set()
    warm(gateway)
    reader.may_read.clear()
    before, answered = rss(worker), reader.answered
    digest = hashlib.sha256(OPENING)
    for _ in range(FILE // len(BLOCK)):
        digest.update(BLOCK)
    digest.update(ENDING)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(upload, gateway) for _ in range(2)]
        eventually(lambda: stored_bytes(gateway) >= 2 * FILE, 60)
        assert rss(worker) - before < ROOM
        reader.may_read.set()
        for call in calls:
            status, said = call.result()
            assert (status, digest.hexdigest() in said) == (200, True)
    assert reader.answered == answered + 2
    assert rss(worker) - before < ROOM
    assert stored_bytes(gateway) == 0


def stored_bytes(gateway: Gateway) -> int:
    """In temporary files without a name."""
    (worker,) = gateway.workers()
    total = 0
    for each in Path(f"/proc/{worker}/fd").iterdir():
        try:
            if str(each.readlink()).endswith("(deleted)"):
                total += each.stat().st_size
        except OSError:
            continue
    return total


def test_a_gigabyte_in_chunks_is_refused_within_its_limit(gateway: Gateway) -> None:
    (worker,) = gateway.workers()
    before = rss(worker)
    with gateway.connect() as client:
        client.send(head(None) + f"{len(OPENING):x}\r\n".encode() + OPENING + b"\r\n")
        send_chunks(client, 1024 * MB)
        assert client.read_head().status == 413
    assert rss(worker) - before < ROOM
    eventually(lambda: stored_bytes(gateway) == 0)


def send_chunks(client: Raw, most: int) -> None:
    """Send until the gateway hangs up: it reads what it does not want for a while, so that its answer is seen."""
    chunk = f"{len(BLOCK):x}\r\n".encode() + BLOCK + b"\r\n"
    for _ in range(most // len(BLOCK)):
        try:
            client.send(chunk)
        except OSError:
            return
