"""Faults of upstreams and of clients with JSON, forms and bytes of tasks: nothing is paid twice or for nothing, no
reservation stays, and no answer is taken for whole that is not."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import BOUNDARY, TYPE, form
from tests.fakes.scripted import (
    CHUNKED,
    Behaviour,
    answer,
    chunk,
    close_without_answer,
    cut_mid_body,
    error_json,
    not_http,
    ok_json,
    raw,
    reset_mid_body,
    reset_without_answer,
    silent,
)
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, eventually, key, secret, settings

MB = 2**20
MAX_REQUEST, MAX_FORM, MAX_RESPONSE = MB, 2 * MB, MB
ROW = {
    "upstream": "main", "prefix": "/t", "upstream_prefix": "", "submit": ["POST /make/{kind}"],
    "read": ["GET /made/{task}", "GET /made/{task}/content"], "task": "/id", "done": {"/state": "done"},
    "failed": {"/state": "failed"}, "prices": [{"task": 1}],
}  # fmt: skip
JSON_BODY = json.dumps({"prompt": "cat"}).encode()
FORM_BODY = form(("prompt", "cat"), ("image", bytes(300_000)))
BODIES = {"json": (JSON_BODY, {}), "form": (FORM_BODY, TYPE)}

FREE: dict[str, Behaviour] = {
    "refused": error_json(400), "not found": error_json(404), "key refused": error_json(401), "busy": error_json(429),
    "failing": error_json(500), "a page": answer(b"<html></html>", 503), "elsewhere": answer(b"", 302),
    "no id": ok_json({"state": "queued"}), "an error inside": ok_json({"error": {"message": "no"}}),
    "null": ok_json({"id": None}), "an object for an id": ok_json({"id": {"a": 1}}), "a list": ok_json([1]),
    "failed at once": ok_json({"id": "f1", "state": "failed"}),
}  # fmt: skip
"""What costs nothing."""

PAID: dict[str, Behaviour] = {
    "no answer": close_without_answer, "a reset": reset_without_answer, "cut": cut_mid_body,
    "cut by a reset": reset_mid_body,
    "not HTTP": not_http, "not JSON": answer(b"thank you"), "nothing": answer(b""),
    "too long": answer(b'{"id":"' + b"a" * (MAX_RESPONSE + 10) + b'"}'), "too deep": answer(b"[" * 100_000),
    "silent": silent,
}  # fmt: skip
"""After which the task may have been made: its price is charged, marked as an estimate."""


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    upstream = {"timeouts": {"head_s": 1, "idle_s": 1, "total_s": 5}}
    return start_shared_gateway(
        settings(
            shared_upstream.url, upstreams={"main": upstream}, passthrough={"t": ROW},
            keys=[key("alice", quotas=[{"usd": 100_000, "per": "month"}]), key("bob")],
            server={"max_request_bytes": MAX_REQUEST, "max_response_bytes": MAX_RESPONSE, "client_body_timeout_s": 1},
            uploads={"max_bytes": MAX_FORM, "memory_bytes": 10_000, "timeout_s": 1},
        )
    )  # fmt: skip


def submit(gateway: Gateway, kind: str = "json") -> Answer:
    body, headers = BODIES[kind]
    return gateway.post("/t/make/video", body, headers=headers)


def used(gateway: Gateway) -> tuple[float, float]:
    (row,) = [each for each in gateway.get("/v1/key").json["quotas"] if each["unit"] == "usd"]
    return row["used"], row["reserved"]


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("fault", FREE)
def test_what_costs_nothing(gateway: Gateway, upstream: ScriptedUpstream, fault: str, kind: str) -> None:
    upstream.answer_with(always=FREE[fault])
    before = used(gateway)
    got = submit(gateway, kind)
    assert got.status in (200, 400, 404, 429, 502, 503)
    record = gateway.call(got.id)
    assert (record["units"], record["cost_usd"]) == ({}, 0)
    assert used(gateway) == before


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("fault", PAID)
def test_what_may_have_been_made(gateway: Gateway, upstream: ScriptedUpstream, fault: str, kind: str) -> None:
    upstream.answer_with(FREE["no id"], always=PAID[fault])
    assert submit(gateway, kind).status == 200  # and leaves an idle connection
    before, hits = used(gateway), upstream.hits
    got = submit(gateway, kind)
    assert got.status in (502, 504)
    assert upstream.hits == hits + 1  # it is never sent again
    record = gateway.call(got.id)
    assert (record["units"], record["usage_source"], record["cost_usd"]) == ({"tasks": 1}, "estimated", 1)
    assert used(gateway) == (before[0] + 1, 0)


def task(gateway: Gateway, upstream: ScriptedUpstream, name: str, then: Behaviour) -> str:
    """A task of alice's that goes on, at an upstream that does this from then on."""
    upstream.answer_with(ok_json({"id": name}), always=then)
    assert submit(gateway).status == 200
    return name


@pytest.mark.parametrize("fault", [close_without_answer, cut_mid_body, not_http, error_json(500), silent])
def test_reads_that_fail(gateway: Gateway, upstream: ScriptedUpstream, fault: Behaviour) -> None:
    name = task(gateway, upstream, f"r{upstream.hits}-{id(fault)}", fault)
    before = used(gateway)
    got = gateway.get(f"/t/made/{name}")
    assert got.status in (502, 503, 504)
    assert used(gateway) == before
    upstream.answer_with(always=ok_json({"state": "failed"}))
    assert gateway.get(f"/t/made/{name}").status == 200
    assert used(gateway) == (before[0], before[1] - 1)


def test_content_that_is_cut_is_not_whole(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The connection ends inside the message: a client cannot take it for the whole film."""
    head = CHUNKED.replace(b"text/event-stream", b"video/mp4")
    name = task(gateway, upstream, "film", raw(head + chunk(bytes(100_000)), then_close=True))
    with gateway.connect() as client:
        asked = f"GET /t/made/{name}/content HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n\r\n"
        client.send(asked.encode())
        came = b""
        while data := client.socket.recv(65536):
            came += data
    assert came.startswith(b"HTTP/1.1 200")
    assert not came.endswith(b"0\r\n\r\n")
    upstream.answer_with(always=ok_json({"state": "failed"}))
    eventually(lambda: gateway.get(f"/t/made/{name}").status == 200)


def head(*more: str) -> bytes:
    lines = ["POST /t/make/video HTTP/1.1", "Host: x", f"Authorization: Bearer {secret('alice')}", *more, "", ""]
    return "\r\n".join(lines).encode()


MULTIPART = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
APPLICATION = "Content-Type: application/json"
BOMB = gzip.compress(b'{"prompt":"' + bytes(64 * MB) + b'"}')

HOSTILE: dict[str, tuple[bytes, int]] = {
    "a form of 1 GB": (head(MULTIPART, f"Content-Length: {2**30}"), 413),
    "JSON of 1 GB": (head(APPLICATION, f"Content-Length: {2**30}"), 413),
    "a slow form": (head(MULTIPART, "Content-Length: 100000") + FORM_BODY[:50], 408),
    "slow JSON": (head(APPLICATION, "Content-Length: 1000") + b'{"a":', 408),
    "a form without an end": (head(MULTIPART, "Content-Length: 200") + FORM_BODY[:200], 400),
    "another boundary": (head(MULTIPART.replace(BOUNDARY, "other"), "Content-Length: 200") + FORM_BODY[:200], 400),
    "no boundary": (head("Content-Type: multipart/form-data", "Content-Length: 5") + b"abcde", 400),
    "a field twice": (
        head(MULTIPART, f"Content-Length: {len(form(('a', '1'), ('a', '2')))}") + form(("a", "1"), ("a", "2")), 400
    ),
    "another type": (head("Content-Type: text/plain", "Content-Length: 2") + b"{}", 400),
    "a bomb": (head(APPLICATION, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}") + BOMB, 413),
    "two lengths": (head(APPLICATION, "Content-Length: 2", "Content-Length: 3") + b"{}", 400),
    "too deep": (head(APPLICATION, "Content-Length: 100000") + b"[" * 100_000, 400),
}  # fmt: skip
"""What a client sends, and the status it gets; nothing of it reaches the upstream."""


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bodies(gateway: Gateway, upstream: ScriptedUpstream, what: str) -> None:
    sent, status = HOSTILE[what]
    before, hits = used(gateway), upstream.hits
    with gateway.connect() as client:
        try:
            client.send(sent)
        except ConnectionError:
            pass  # it had heard enough
        assert client.read_head().status == status
    assert (used(gateway), upstream.hits) == (before, hits)


@pytest.mark.parametrize(
    "path",
    [
        "/t/made/%2e%2e/x", "/t/made/a%2fb", "/t/made/a%5cb", "/t/made/%0d%0aX:1", "/t/made/" + "a" * 4000,
        "/t/made//content", "/t/made/%00", "/t/made/%ff%fe",
    ],
)  # fmt: skip
def test_hostile_ids(gateway: Gateway, upstream: ScriptedUpstream, path: str) -> None:
    hits = upstream.hits
    got: Any = gateway.get(path)
    assert got.status in (400, 404)
    assert upstream.hits == hits
