"""The requests of one key that count in no limit of the key take half of `server.max_in_flight` at most."""

from __future__ import annotations

import ast
import asyncio
import json
import select
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

import gateway as package
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.forms import TYPE, form
from tests.fakes.scripted import Wire, ok_json, silent
from tests.flows.client import Raw
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, model, secret, settings
from tests.flows.task_rows import rows

IN_FLIGHT = 8
NUMBERS = iter(range(1_000))


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    able = {"main": {"capabilities": {"realtime": True}}}
    models = {name: model(name) for name in ("responses", "realtime")}
    return start_shared_gateway(
        settings(
            shared_upstream.url, models=models, upstreams=able, files={"upstream": "main"}, passthrough=rows(),
            keys=[key("alice", max_parallel=2), key("bob")],
            server={"max_in_flight": IN_FLIGHT, "workers": 1},
        )
    )  # fmt: skip


def body(gateway: Gateway, upstream: ScriptedUpstream) -> str:
    return "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n{"


def upload(gateway: Gateway, upstream: ScriptedUpstream) -> str:
    content_type, begun = TYPE["Content-Type"], form(("purpose", "user_data"), ("file", b"abc")).decode()[:-4]
    return f"POST /v1/files HTTP/1.1\r\nContent-Type: {content_type}\r\nContent-Length: 9000\r\n\r\n{begun}"


def _get(path: str) -> str:
    return f"GET {path} HTTP/1.1\r\n\r\n"


def kept(gateway: Gateway, upstream: ScriptedUpstream) -> str:
    made = f"resp_{next(NUMBERS)}"
    upstream.answer_with(ok_json(api.response([api.message("Hi")], id=made)))
    assert gateway.post("/v1/responses", {"model": "responses", "input": "Hi"}).status == 200
    return _get(f"/v1/responses/{made}")


def resumed(gateway: Gateway, upstream: ScriptedUpstream) -> str:
    return kept(gateway, upstream).replace(" HTTP", "?stream=true HTTP")


def download(gateway: Gateway, upstream: ScriptedUpstream) -> str:
    made = f"file-{next(NUMBERS)}"
    upstream.answer_with(ok_json({"id": made, "object": "file"}))
    sent = form(("purpose", "user_data"), ("file", b"abc"))
    assert gateway.send("POST", "/v1/files", sent, headers=TYPE).status == 200
    return _get(f"/v1/files/{made}/content")


def task(gateway: Gateway, upstream: ScriptedUpstream) -> str:
    made = f"task-{next(NUMBERS)}"
    upstream.answer_with(ok_json({"id": made, "status": "PENDING"}))
    members = {"model": "gen4_turbo", "promptImage": "https://a.example/", "duration": 5}
    assert gateway.post("/runwayml/v1/image_to_video", members).status == 200
    return _get(f"/runwayml/v1/tasks/{made}")


Door = Callable[[Gateway, ScriptedUpstream], str]
DOORS: Mapping[str, tuple[str, Door]] = {
    "body": ("web/endpoints", body), "read of a task": ("web/endpoints", task),
    "upload": ("wings/stored/files", upload),
    "resumed stream": ("wings/stored/endpoints", resumed), "download": ("wings/stored/kept", download),
    "kept object": ("", kept),
}  # fmt: skip
"""Each with the module that counts it as under way; the last is not counted, and holds a connection all the same."""


def test_every_module_that_counts_a_request_as_under_way_is_a_door() -> None:
    folder, found = Path(package.__file__).parent, set()
    for path in folder.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "calls.add" in text else ():
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="calls"), attr="add")):
                    found.add(str(path.relative_to(folder).with_suffix("")))
    assert found == {module for module, _ in DOORS.values()} - {""} | DRAWS


DRAWS = {"wings/realtime/endpoints"}
"""Modules whose requests all draw on `max_parallel`."""


def refused(clients: list[Raw]) -> int:
    """How many have their answer, which is that there are too many calls."""
    readable, _, _ = select.select([each.socket for each in clients], [], [], 0)
    heads = [each.recv(4096, socket.MSG_PEEK) for each in readable]
    assert all(b" 503 " in head for head in heads), heads
    return len(heads)


@pytest.mark.parametrize("door", DOORS)
def test_one_key_leaves_places_to_others(gateway: Gateway, upstream: ScriptedUpstream, door: str) -> None:
    """Also a key with `max_parallel`, where that does not bind; and they are given back."""
    head = f"\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n"
    asked = DOORS[door][1](gateway, upstream).replace("\r\n", head, 1)
    path = kept(gateway, upstream).split()[1]
    upstream.answer_with(always=silent)
    with ExitStack() as stack:
        clients = [stack.enter_context(gateway.connect()) for _ in range(IN_FLIGHT)]
        for client in clients:
            client.send(asked.encode())
        eventually(lambda: refused(clients) == IN_FLIGHT // 2)
        upstream.answer_with(always=ok_json())
        assert gateway.complete(key="bob").status == 200
    eventually(lambda: gateway.get(path).status == 200)


@pytest.mark.parametrize("parallel", [None, 2])
def test_calls_may_take_all_places_that_their_key_permits(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, parallel: int | None
) -> None:
    end = threading.Event()

    async def held(wire: Wire) -> None:
        while not end.is_set():  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(0.01)
        await ok_json()(wire)

    upstream.answer_with(always=held)
    keys = [key("alice", max_parallel=parallel), key("bob")]
    gateway = start_gateway(settings(upstream.url, keys=keys, server={"max_in_flight": IN_FLIGHT, "workers": 1}))
    with ExitStack() as stack:
        stack.callback(end.set)
        clients = [stack.enter_context(gateway.connect()) for _ in range(IN_FLIGHT)]
        for client in clients:
            client.post("/v1/completions", json.dumps({"model": COMPLETIONS, "prompt": "Hi"}).encode(), secret("alice"))
        refused_ones = 0 if parallel is None else IN_FLIGHT - parallel
        eventually(lambda: _under_way(gateway) == IN_FLIGHT - refused_ones)
        eventually(lambda: len(select.select([each.socket for each in clients], [], [], 0)[0]) == refused_ones)
        eventually(lambda: _completions(upstream) == IN_FLIGHT - refused_ones)  # a later one would be answered at once
        upstream.answer_with(always=ok_json())
        assert gateway.complete(key="bob").status == (200 if refused_ones else 503)


def _completions(upstream: ScriptedUpstream) -> int:
    """How many have arrived, beside what the other gateway of this file asks about its tasks."""
    return sum(request.path == "/v1/completions" for request in upstream.requests)


def _under_way(gateway: Gateway) -> float:
    return gateway.metric("gateway_in_flight_requests")
