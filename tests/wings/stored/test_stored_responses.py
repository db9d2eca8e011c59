"""Responses that the upstream keeps: each belongs to the key that made it, at every worker and gateway of a store."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from gateway.config import Upstream
from gateway.errors import Unavailable
from gateway.upstream.pool import pool_of
from gateway.wings.stored.kept import READ_AT_ONCE, at_upstream
from tests.conftest import ScriptedUpstream, StartsGateways, start_pair
from tests.fakes import responses_api as api
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import CHUNKED, Behaviour, Wire, chunk, error_json, ok_json
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings

MODEL = "gpt-4.1"
TEXT = "All is said."
KEYS = ["sk-upstream-key-that-nobody-may-see", "sk-upstream-second-that-nobody-may-see"]
FOREIGN = "sk-upstream-other-that-nobody-may-see"
_NUMBERS = itertools.count(1)


def config(upstream: str, store: str) -> dict[str, Any]:
    both = {"base_url": upstream, "api_keys": KEYS, "api_key": None}
    return settings(
        upstream,
        upstreams={"main": both, "other": {"base_url": upstream, "api_key": FOREIGN}},
        models={
            MODEL: model("responses", routes=[{"upstream": "main"}, {"upstream": "other", "priority": 2}]),
            "elsewhere": model("responses", "other"),
            "private": model("responses", store_responses=False),
        },
        teams={"red": {}},
        keys=[
            key("alice", team="red"), key("bob", team="red"),
            key("paced", quotas=[
                {"requests": 6, "per": "hour"}, {"requests": 2, "per": "day"}, {"tokens": 10**6, "per": "day"},
                {"requests": 1, "per": "hour", "model": MODEL},
            ]),
            key("counted", quotas=[{"tokens": 10**9, "per": "month"}]),
        ],
        server={"workers": 2, "access_log": "off"},
        store={"url": store},
    )  # fmt: skip


@pytest.fixture(scope="module")
def gateways(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> list[Gateway]:
    return start_pair(start_shared_gateway, config(shared_upstream.url, store_url), store_url)


def new_id() -> str:
    return f"resp_{next(_NUMBERS):048x}"


def ask(gateway: Gateway, who: str = "alice", **members: Any) -> Answer:
    return gateway.post("/v1/responses", {"model": MODEL, "input": "Hello"} | members, key=who)


def make(gateway: Gateway, upstream: ScriptedUpstream, who: str = "alice", **members: Any) -> str:
    """A stored response; its id."""
    made = new_id()
    upstream.answer_with(ok_json(api.response([api.message(TEXT)], id=made)))
    assert ask(gateway, who, **members).json["id"] == made
    return made


def used_key(upstream: ScriptedUpstream) -> str:
    return upstream.requests[-1].headers["authorization"].removeprefix("Bearer ")


def sent(*events: bytes) -> Behaviour:
    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED + b"".join(map(chunk, events)) + b"0\r\n\r\n")

    return behaviour


def test_it_is_continued_where_it_is_kept(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    for _ in range(4):  # the keys of the upstream take turns
        made = make(gateways[0], upstream)
        kept_by = used_key(upstream)
        for gateway in gateways * 2:
            upstream.answer_with(ok_json(api.response(id=new_id())))
            assert ask(gateway, previous_response_id=made).status == 200
            assert used_key(upstream) == kept_by
            assert upstream.requests[-1].json["previous_response_id"] == made


def test_a_streamed_one_is_bound_before_its_id_is_seen(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = new_id()
    output = [api.message(TEXT)]
    text = api.written(api.events(output, api.response(output, id=made), start=api.response(id=made)))
    may_end = threading.Event()

    async def paused(wire: Wire) -> None:
        if wire.request.method == "GET":
            await ok_json(api.response(id=made))(wire)
            return
        cut = text.index(b"event: response.output_item")
        await wire.write(CHUNKED + chunk(text[:cut]))
        await asyncio.to_thread(may_end.wait, 30)
        await wire.write(chunk(text[cut:]) + b"0\r\n\r\n")

    upstream.answer_with(always=paused)
    with gateways[0].connect() as raw:
        body = json.dumps({"model": MODEL, "input": "Hello", "stream": True}).encode()
        raw.post("/v1/responses", body, secret("alice"))
        head = raw.read_head()
        assert head.status == 200
        begun = raw.read_until(made.encode())
        assert gateways[1].get(f"/v1/responses/{made}").json["id"] == made
        assert gateways[1].get(f"/v1/responses/{made}", key="bob").status == 404
        may_end.set()
        rest = raw.read_until(b"\r\n0\r\n\r\n")
    assert b"response.completed" in begun + rest


@pytest.mark.parametrize("who", ["bob", "counted"])
@pytest.mark.parametrize("place", ["known", "unknown"])
def test_another_key_finds_nothing(gateways: list[Gateway], upstream: ScriptedUpstream, who: str, place: str) -> None:
    made = make(gateways[0], upstream) if place == "known" else new_id()
    before = upstream.hits
    gateway = gateways[1]
    answers = [
        gateway.get(f"/v1/responses/{made}", key=who),
        gateway.send("DELETE", f"/v1/responses/{made}", key=who),
        gateway.post(f"/v1/responses/{made}/cancel", b"", key=who),
        gateway.get(f"/v1/responses/{made}/input_items", key=who),
    ]
    for answer in answers:
        assert answer.refusal == (404, "invalid_request_error", None, None)
        assert answer.error["message"] == f"Response with id '{made[:64]}' not found."
    received = ask(gateway, who, previous_response_id=made)
    assert received.refusal == (404, "invalid_request_error", "previous_response_id", "previous_response_not_found")
    assert received.error["message"] == f"Previous response with id '{made[:64]}' not found."
    received = ask(gateway, who, conversation={"id": made})
    assert received.refusal == (404, "invalid_request_error", "conversation", None)
    long = ask(gateway, who, previous_response_id=made, instructions="x" * 70_000)
    assert long.status == 404
    counted = gateway.post("/v1/responses/input_tokens", {"model": MODEL, "previous_response_id": made}, key=who)
    assert counted.status == 404
    assert upstream.hits == before


def test_each_operation_counts_in_requests_per_time_alone(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """In those of all gateways, also where the id is unknown; not in those for some models, which it does not name."""
    made = make(gateways[0], upstream, "paced")

    def used() -> dict[tuple[str, str], int]:
        rows = gateways[0].get("/v1/key", key="paced").json["quotas"]
        return {(row["per"], row["unit"]): row["used"] for row in rows if row["model"] is None}

    before = used()
    upstream.answer_with(*[ok_json({"id": made, "object": "response"})] * 3)
    one = f"/v1/responses/{made}"
    assert gateways[1].get(one, key="paced").status == 200
    assert gateways[0].post(f"{one}/cancel", b"", key="paced").status == 200
    assert gateways[1].get(f"{one}/input_items", key="paced").status == 200
    assert gateways[0].get(f"/v1/responses/{new_id()}", key="paced").status == 404
    assert gateways[1].get("/v1/conversations/conv_unknown", key="paced").status == 404
    hits = upstream.hits
    for refused in (
        gateways[0].send("DELETE", one, key="paced"),
        gateways[1].post("/v1/conversations", {}, key="paced"),
    ):
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["x-ratelimit-limit-requests"] == "6"
    assert upstream.hits == hits
    assert used() == before | {("hour", "requests"): 6}


def test_without_a_key_nothing_is_looked_up(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = make(gateways[0], upstream)
    assert gateways[0].get(f"/v1/responses/{made}", key=None).status == 401
    assert gateways[0].get(f"/v1/responses/{made}", key="nobody").status == 401


def test_it_is_read_and_deleted(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = make(gateways[0], upstream)
    kept_by = used_key(upstream)
    shown = api.response([api.message(TEXT)], id=made)
    items = {"object": "list", "data": [], "has_more": False}
    deleted = {"id": made, "object": "response", "deleted": True}
    upstream.answer_with(
        ok_json(shown), ok_json(items), error_json(400, message="Not in the background."), ok_json(deleted)
    )
    gateway = gateways[1]
    received = gateway.get(f"/v1/responses/{made}?include[]=reasoning.encrypted_content")
    assert (received.status, received.json) == (200, shown)
    assert gateway.get(f"/v1/responses/{made}/input_items?limit=2").json == items
    refused = gateway.post(f"/v1/responses/{made}/cancel", b"")
    assert (refused.status, refused.error["message"]) == (400, "Not in the background.")
    assert gateway.send("DELETE", f"/v1/responses/{made}").json == deleted
    assert [(each.method, each.path) for each in upstream.requests] == [
        ("GET", f"/v1/responses/{made}?include[]=reasoning.encrypted_content"),
        ("GET", f"/v1/responses/{made}/input_items?limit=2"),
        ("POST", f"/v1/responses/{made}/cancel"),
        ("DELETE", f"/v1/responses/{made}"),
    ]
    assert {each.headers["authorization"] for each in upstream.requests} == {f"Bearer {kept_by}"}
    for each in gateways:
        assert each.get(f"/v1/responses/{made}").status == 404


def test_what_is_not_kept_is_not_bound(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    asked = make(gateways[0], upstream, store=False)
    received = new_id()
    upstream.answer_with(ok_json(api.response(id=received, store=False)))  # an organisation that keeps nothing
    assert ask(gateways[0]).status == 200
    for made in (asked, received):
        assert gateways[0].get(f"/v1/responses/{made}").status == 404


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_stream_that_is_not_kept_is_not_bound(gateways: list[Gateway], upstream: ScriptedUpstream, size: int) -> None:
    made = new_id()
    start = api.response(id=made, instructions="x" * size, store=False)
    upstream.answer_with(sent(api.written(api.events([], start, start=start))))
    answer = ask(gateways[0], stream=True)
    assert made.encode() in answer.body
    assert gateways[0].get(f"/v1/responses/{made}").status == 404


def test_the_default_of_a_model(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json(api.response(id=new_id(), store=False)))
    for given, received in (
        ({}, False),
        ({"store": True}, True),
        ({"store": None}, False),
        ({"background": True}, None),
    ):
        ask(gateways[0], model="private", **given)
        assert upstream.requests[-1].json.get("store") is received, given
    ask(gateways[0])
    assert "store" not in upstream.requests[-1].json


def test_another_provider_cannot_continue_it(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = make(gateways[0], upstream)
    received = ask(gateways[0], model="elsewhere", previous_response_id=made)
    assert received.refusal == (400, "invalid_request_error", "model", "model_mismatch")


def test_a_continuation_never_goes_elsewhere(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = make(gateways[0], upstream)
    kept_by = used_key(upstream)
    upstream.answer_with(always=error_json(429, message="slow down"))
    assert ask(gateways[0], previous_response_id=made).status == 429
    assert {each.headers["authorization"] for each in upstream.requests} == {f"Bearer {kept_by}"}


def test_the_context_is_reserved(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = make(gateways[0], upstream, "counted")
    upstream.answer_with(ok_json(api.response([api.message(TEXT)], usage=None, id=new_id())))
    received = ask(gateways[0], "counted", previous_response_id=made)
    assert gateways[0].call(received.id)["prompt_tokens"] > api.USAGE["total_tokens"]


def test_the_prompt_is_reserved_where_the_client_left(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """The upstream may keep the response, and no usage of it is known."""
    made = new_id()
    output = [api.message(TEXT)]
    whole = api.written(api.events(output, api.response(output, id=made), start=api.response(id=made)))
    cut = whole[: whole.index(b"event: response.completed")]

    async def begins(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(cut))
        await wire.until_gone()

    upstream.answer_with(begins)
    with gateways[0].connect() as raw:
        body = json.dumps({"model": MODEL, "input": "word " * 8000, "stream": True}).encode()
        raw.post("/v1/responses", body, secret("counted"))
        raw.read_until(made.encode())
    upstream.answer_with(ok_json(api.response([api.message(TEXT)], usage=None, id=new_id())))
    received = ask(gateways[0], "counted", previous_response_id=made)
    assert gateways[0].call(received.id)["prompt_tokens"] > 8000


def test_an_answer_that_is_no_stream_is_no_resumed_stream(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = make(gateways[0], upstream)
    upstream.answer_with(ok_json(api.response(id=made)), error_json(400, message="Not in the background."))
    path = f"/v1/responses/{made}?stream=true&starting_after=3"
    assert gateways[0].get(path).refusal == (502, "server_error", None, "upstream_error")
    refused = gateways[0].get(path)
    assert (refused.status, refused.error["message"]) == (400, "Not in the background.")
    assert upstream.requests[-1].path == path


def test_a_store_that_is_away(
    start_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    upstream: ScriptedUpstream,
    redis_server: RedisServer,
) -> None:
    """The paid answer is passed on, and its id is known as soon as the store is back."""
    own = start_gateway(
        config(shared_upstream.url, redis_server.url) | {"server": {"port": 0, "workers": 1, "drain_delay_s": 0}}
    )
    made = make(own, upstream)
    later = new_id()

    async def meanwhile(wire: Wire) -> None:
        redis_server.stop()
        await ok_json(api.response(id=later))(wire)

    upstream.answer_with(meanwhile)
    assert ask(own).json["id"] == later
    received = own.get(f"/v1/responses/{made}")
    assert (received.status, received.error["code"]) == (503, "store_unavailable")
    redis_server.cont()
    upstream.answer_with(always=ok_json(api.response(id=later)))
    eventually(lambda: own.get(f"/v1/responses/{made}").status == 200)
    assert eventually(lambda: own.get(f"/v1/responses/{later}").status == 200)
    assert eventually(lambda: "bond" in redis_server.cli("KEYS", f"*{later}"))


@pytest.mark.parametrize(("connections", "most"), [(100, 50), (10, 4 * READ_AT_ONCE)])
async def test_one_key_leaves_connections_for_others(connections: int, most: int) -> None:
    """Reads of what is kept count in no `max_parallel`, and a client may take an answer as slowly as it likes."""
    pool = pool_of("up", Upstream(base_url="http://127.0.0.1:9/v1"), connections)
    async with AsyncExitStack() as stack:
        for _ in range(most):
            await stack.enter_async_context(at_upstream(pool, "alice"))
        with pytest.raises(Unavailable, match="too many requests for stored objects"):
            await stack.enter_async_context(at_upstream(pool, "alice"))
        await stack.enter_async_context(at_upstream(pool, "bob"))
    assert not pool.kept
    await pool.close()


def test_unanswered_reads_leave_connections_for_calls(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    """Of a key with `max_parallel: 1`."""
    main = {"base_url": upstream.url, "max_connections": 64}
    keys = [key("alice", max_parallel=1), key("bob")]
    gateway = start_gateway(
        settings(
            upstream.url, upstreams={"main": main}, models={MODEL: model("responses")}, keys=keys, server={"workers": 1}
        )
    )

    async def waits(wire: Wire) -> None:
        if wire.request.method == "POST":
            await ok_json(api.response([api.message(TEXT)], id="resp_kept"))(wire)
        else:
            await wire.until_gone()

    upstream.answer_with(always=waits)
    assert gateway.post("/v1/responses", {"model": MODEL, "input": "Hi"}).status == 200
    asked = f"GET /v1/responses/resp_kept HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n\r\n"
    with ExitStack() as stack:
        clients = [stack.enter_context(gateway.connect()) for _ in range(70)]
        for client in clients:
            client.send(asked.encode())
        eventually(lambda: upstream.hits >= 1 + 4 * READ_AT_ONCE)
        assert gateway.post("/v1/responses", {"model": MODEL, "input": "Hi"}, key="bob").status == 200
