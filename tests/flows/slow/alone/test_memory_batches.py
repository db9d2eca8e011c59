"""What files and batches cost in memory: nothing that grows with their length."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import StartsGateways
from tests.fakes.forms import BOUNDARY, TYPE, form, part
from tests.fakes.scripted import Scripted, Wire, ok_json
from tests.flows.background import records
from tests.flows.gateway_process import CHAT, Gateway, eventually, key, model, secret, settings
from tests.flows.test_batches import PRICE, create, line, upload

from .test_memory import MB, rss

SIZE = 200 * MB
ROOM = 40 * MB
"""What a worker may grow by: buffers of one connection, one line of results, and pages that the allocator keeps."""

BLOCK = bytes(range(256)) * 4096
OPENING = part("purpose", "user_data") + part("file", b"")[:-2]
ENDING = b"\r\n" + f"--{BOUNDARY}--\r\n".encode()
OWN = len(OPENING) + SIZE + len(ENDING)
LINES = 2000
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


def result(number: int) -> bytes:
    """One line of the results, a `LINES`th of `SIZE` long."""
    choices = [{"index": 0, "message": {"role": "assistant", "content": "word " * (SIZE // LINES // 5)}}]
    body = {"model": CHAT, "choices": choices, "usage": USAGE}
    received = {"custom_id": str(number), "response": {"status_code": 200, "body": body}, "error": None}
    return json.dumps(received).encode() + b"\n"


class Keeper:
    """An upstream whose batches have long results. It keeps nothing of an upload but the digest of its last `OWN`
    bytes, which are the client's: the gateway adds to those in front."""

    def __init__(self) -> None:
        self.digest = ""

    async def __call__(self, wire: Wire) -> None:
        path, method = wire.request.path, wire.request.method
        left, digest = int(wire.request.headers.get("content-length", "0")), hashlib.sha256()
        while left:
            data = await wire.reader.read(min(left, MB))
            assert data
            own = min(len(data), max(0, OWN - left + len(data)))
            digest.update(data[len(data) - own :])
            left -= len(data)
        if path.endswith("/content"):
            await self._results(wire)
        elif path == "/v1/files":
            self.digest = digest.hexdigest()
            await ok_json({"id": "file-in", "object": "file"})(wire)
        else:
            over = {"status": "completed", "output_file_id": "file-out"}
            await ok_json({"id": "batch_1", **(over if method == "GET" else {"status": "validating"})})(wire)

    async def _results(self, wire: Wire) -> None:
        size = sum([len(result(0)) + len(str(number)) - 1 for number in range(LINES)])
        await wire.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for number in range(LINES):
            await wire.write(result(number))


@pytest.fixture(scope="module")
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, keeper: Keeper) -> Iterator[Gateway]:
    with Scripted(always=keeper, reads_body=False) as upstream:
        yield start_shared_gateway(
            settings(
                upstream.url,
                models={CHAT: model("chat", price=PRICE)},
                keys=[key("alice", quotas=[{"tokens": 10**9, "per": "month"}])],
                files={"upstream": "main"},
                uploads={"max_bytes": "256MiB", "max_file_bytes": "250MiB", "timeout_s": 60},
            )
        )


@pytest.fixture
def grown(gateway: Gateway) -> Iterator[Callable[[], int]]:
    """By how many bytes the worker has grown at most since the test began."""
    (worker,) = gateway.workers()
    small = form(("purpose", "user_data"), ("file", b"x" * 2 * MB))
    assert (
        gateway.send("POST", "/v1/files", small, headers=TYPE).status == 200
    )  # the first form of a process costs more
    sizes, is_over = [rss(worker)], threading.Event()

    def sample() -> None:
        while not is_over.wait(0.1):
            sizes.append(rss(worker))

    sampler = threading.Thread(target=sample)
    sampler.start()
    yield lambda: max(*sizes, rss(worker)) - sizes[0]
    is_over.set()
    sampler.join()


def test_a_long_file_is_uploaded(gateway: Gateway, keeper: Keeper, grown: Callable[[], int]) -> None:
    head = {
        "Host": "gateway", "Authorization": f"Bearer {secret('alice')}", **TYPE, "Content-Length": str(OWN),
    }  # fmt: skip
    digest = hashlib.sha256()
    with gateway.connect() as client:
        lines = [f"{name}: {value}" for name, value in head.items()]
        client.send("\r\n".join(["POST /v1/files HTTP/1.1", *lines, "", ""]).encode())
        for block in (OPENING, *[BLOCK] * (SIZE // len(BLOCK)), ENDING):
            digest.update(block)
            client.send(block)
        assert client.read_head().status == 200
    assert keeper.digest == digest.hexdigest()
    assert grown() < ROOM


def test_long_results_of_a_batch_are_settled_and_downloaded(gateway: Gateway, grown: Callable[[], int]) -> None:
    began = create(gateway, upload(gateway, *[line(str(number)) for number in range(LINES)]).json["id"])
    (record,) = eventually(lambda: records(gateway, began.id), 60)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (7 * LINES, 3 * LINES)
    assert record["usage_source"] == "reported"
    assert grown() < ROOM
    output = gateway.get(f"/v1/batches/{began.json['id']}").json["output_file_id"]
    digest, expected = hashlib.sha256(), hashlib.sha256()
    with gateway.connect() as client:
        head = f"GET /v1/files/{output}/content HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {secret('alice')}"
        client.send(f"{head}\r\n\r\n".encode())
        assert client.read_head().status == 200
        while piece := client.read_chunk():
            digest.update(piece)
    for number in range(LINES):
        expected.update(result(number))
    assert digest.hexdigest() == expected.hexdigest()
    assert grown() < ROOM
