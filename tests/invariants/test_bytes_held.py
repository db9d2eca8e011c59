"""Bytes count while they are held, in the name of the key that makes the gateway hold them; one key leaves room for the
others; and what is refused is counted."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.config import ServerSettings, UploadSettings
from gateway.formats.format import no_json
from gateway.formats.table import FORMATS
from gateway.web.capacity import Capacity
from gateway.wings.realtime.formats import REALTIME
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.scripted import Wire, ok_json
from tests.flows.client import Raw
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, model, secret, settings

ROOM = 400_000
LARGEST = 200_000
BODY_S = 2
DOORS = [
    *[
        path.replace("{model}", "m")
        for each in FORMATS.values()
        if each.read is not no_json and each is not REALTIME
        for path in (each.path, *each.more_paths)
    ],
    "/v1/conversations",
]
"""Where a body of JSON is read."""

HEAD = "Host: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {secret}\r\n"
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    server = {"max_buffered_bytes": ROOM, "max_request_bytes": LARGEST, "client_body_timeout_s": BODY_S}
    keys = [key("alice", max_parallel=1), key("bob")]
    upstreams = {"chats": {"base_url": shared_upstream.url, "capabilities": {"completions": "via_chat"}}}
    models = {"hedged": model("completions", hedge_after="10ms"), "chats": model("completions", "chats")}
    return start_shared_gateway(
        settings(shared_upstream.url, server=server, keys=keys, upstreams=upstreams, models=models)
    )


def body(size: int) -> bytes:
    """A call that is so long."""
    plain = json.dumps({"model": COMPLETIONS, "prompt": ""}).encode()
    return plain.replace(b'""', b'"' + b"x" * (size - len(plain)) + b'"')


def announce(client: Raw, path: str, size: int, came: bytes, who: str = "alice") -> None:
    head = f"POST {path} HTTP/1.1\r\n{HEAD.format(secret=secret(who))}Content-Length: {size}\r\n\r\n"
    client.send(head.encode() + came)


def test_a_body_that_is_announced_and_does_not_come_takes_no_room(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """At no door; it ends by time, and is counted."""
    upstream.answer_with(always=ok_json())
    assert len(DOORS) > 10
    before = gateway.metric("gateway_rejections_total", reason="body_timeout")
    with ExitStack() as stack:
        clients = [stack.enter_context(gateway.connect()) for _ in range(3 * len(DOORS))]
        for client, path in zip(clients, 3 * DOORS, strict=True):
            announce(client, path, LARGEST, b"{")
        assert gateway.post("/v1/completions", body(LARGEST), key="bob").status == 200
        assert {client.read_answer().status for client in clients} == {408}
    counted = 3 * len([each for each in DOORS if each != "/v1/conversations"])  # which is no call
    eventually(lambda: gateway.metric("gateway_rejections_total", reason="body_timeout") == before + counted)


def test_one_key_leaves_room_for_the_others(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """However many bodies it sends all but a byte of; its refusals are counted."""
    upstream.answer_with(always=ok_json())
    before = gateway.metric("gateway_rejections_total", reason="buffers_full")
    with ExitStack() as stack:
        refused = 0
        for _ in range(2 * ROOM // LARGEST):
            client = stack.enter_context(gateway.connect())
            announce(client, "/v1/completions", LARGEST, body(LARGEST)[:-1])
        client = stack.enter_context(gateway.connect())
        announce(client, "/v1/completions", LARGEST, body(LARGEST))
        refused = client.read_answer().status
        assert gateway.post("/v1/completions", body(LARGEST), key="bob").status == 200
        assert refused == 503
    assert gateway.metric("gateway_rejections_total", reason="buffers_full") > before


@pytest.mark.parametrize(("name", "prompts"), [(COMPLETIONS, 1), ("hedged", 1), ("chats", 2)])
def test_a_call_that_goes_on_without_its_client_keeps_its_room(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, prompts: int
) -> None:
    """Its body is held until the answer has come; else a key that leaves its calls would make the worker hold any
    number of them."""
    goes_on = threading.Event()

    async def waits(wire: Wire) -> None:
        await asyncio.to_thread(goes_on.wait, 60)
        await ok_json()(wire)

    upstream.answer_with(*[waits] * prompts, always=ok_json())
    members = {"model": name, "prompt": ["x" * (LARGEST // 4)] + ["y"] * (prompts - 1)}
    whole = json.dumps(members).encode()
    before = upstream.hits
    with gateway.connect() as client:
        announce(client, "/v1/completions", len(whole), whole, "bob")
        eventually(lambda: upstream.hits == before + prompts)
    refused = eventually(
        lambda: (got := gateway.post("/v1/completions", body(LARGEST), key="bob")).status == 503 and got
    )
    assert refused.refusal == (503, "server_error", None, "buffers_full")
    assert gateway.post("/v1/completions", body(LARGEST)).status == 200
    goes_on.set()
    eventually(lambda: gateway.post("/v1/completions", body(LARGEST), key="bob").status == 200)


@pytest.mark.parametrize("most", [1_000, 150, 100])
def test_the_share_of_a_key(most: int) -> None:
    """Half, but the largest body is possible; what is given back can be taken again, and no key is remembered."""
    server = ServerSettings(max_buffered_bytes=most, max_request_bytes=100, workers=1)
    memory = Capacity(server, UploadSettings()).memory
    share = max(most // 2, 100)
    assert memory.hold(share, "alice")
    assert not memory.hold(1, "alice")
    assert memory.hold(most - share, "bob")
    assert not memory.hold(1, "carol")
    memory.release(share, "alice")
    assert memory.hold(share, "carol")
    memory.release(share, "carol")
    memory.release(most - share, "bob")
    assert not memory._by_key


# ------------------------------------------------------------------------------------ answers that are kept upstream

KEPT = 30_000_000
MODEL = "gpt-4.1"
READS = [("GET", ""), ("GET", "/input_items"), ("POST", "/cancel")]
"""The answers of stored responses that are as long as a client made them."""


@pytest.mark.rest
@pytest.mark.parametrize(("method", "action"), READS)
def test_a_kept_answer_takes_room_until_it_is_taken(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, method: str, action: str
) -> None:
    """It is refused where there is no room, as it comes; a client that reads nothing leaves room for others."""
    server = {"max_buffered_bytes": 2 * KEPT + 2_000_000, "max_response_bytes": KEPT + 1_000_000}
    models: dict[str, Any] = {MODEL: model("responses")}
    gateway = start_gateway(settings(upstream.url, server=server | {"max_request_bytes": 1_000_000}, models=models))
    made = f"resp_{next(_NUMBERS):048x}"
    long = ok_json({"id": made, "x": "x" * KEPT})
    upstream.answer_with(ok_json(api.response([api.message("A")], id=made)))
    assert gateway.post("/v1/responses", {"model": MODEL, "input": "Hello"}).status == 200
    upstream.answer_with(always=long)
    request = f"{method} /v1/responses/{made}{action} HTTP/1.1\r\n{HEAD.format(secret=secret('alice'))}"
    with gateway.connect() as slow:
        slow.send(f"{request}Content-Length: 0\r\n\r\n".encode())
        slow.socket.recv(1)  # it begins
        refused = gateway.send(method, f"/v1/responses/{made}{action}")
        assert refused.refusal == (503, "server_error", None, "buffers_full")
        assert gateway.metric("gateway_rejections_total", reason="buffers_full") == 1
        upstream.answer_with(always=ok_json(api.response([api.message("A")], id=made)))
        assert gateway.post("/v1/responses", {"model": MODEL, "input": "x" * 900_000}, key="bob").status == 200
        left = KEPT
        while left > 0:
            left -= len(slow.socket.recv(1 << 20))
        upstream.answer_with(always=long)
        eventually(lambda: gateway.send(method, f"/v1/responses/{made}{action}").status == 200)


def test_answers_that_one_key_does_not_take_leave_room_for_the_others(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    """Beyond its share a key has one answer read on; the others are read when there is room again."""
    server = {"max_buffered_bytes": 4 * KEPT, "max_response_bytes": 2 * KEPT, "max_request_bytes": 1_000_000}
    gateway = start_gateway(settings(upstream.url, server=server))
    upstream.answer_with(always=ok_json({"choices": [{"text": "x" * KEPT, "finish_reason": "stop"}]}))
    asked = body(100)
    head = f"POST /v1/completions HTTP/1.1\r\n{HEAD.format(secret=secret('alice'))}Content-Length: {len(asked)}\r\n\r\n"
    with ExitStack() as stack:
        slow = [stack.enter_context(gateway.connect()) for _ in range(6)]
        for each in slow:
            each.send(head.encode() + asked)
        eventually(lambda: upstream.hits == len(slow))
        upstream.answer_with(always=ok_json({"choices": [{"text": "Hi", "finish_reason": "stop"}]}))
        for _ in range(20):
            assert gateway.post("/v1/completions", body(900_000), key="bob").status == 200
        with ThreadPoolExecutor(len(slow)) as clients:
            assert min(clients.map(taken, slow)) >= KEPT


def taken(client: Raw) -> int:
    """Reads an answer until it has so many bytes, or ends. Returns how many there were."""
    number = 0
    while number < KEPT and (piece := client.socket.recv(1 << 20)):
        number += len(piece)
    return number
