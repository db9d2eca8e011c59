"""Conversations that an upstream keeps: each belongs to the key that made it, and stays with its account."""

from __future__ import annotations

import gzip
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways, start_pair
from tests.fakes import responses_api as api
from tests.fakes.scripted import after, error_json, ok_json, silent
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings

MODEL = "gpt-4.1"
KEYS = ["sk-upstream-key-that-nobody-may-see", "sk-upstream-second-that-nobody-may-see"]
PATH = "/v1/conversations"
ITEM = {"type": "message", "role": "user", "content": "Hello"}
ITEMS = {"object": "list", "data": [], "has_more": False}
_NUMBERS = itertools.count(1)


def config(upstream: str, store: str) -> dict[str, Any]:
    both = {"base_url": upstream, "api_keys": KEYS, "api_key": None}
    return settings(
        upstream,
        upstreams={
            "main": both,
            "other": {"base_url": upstream, "api_key": "sk-upstream-other"},
            "without": {"base_url": upstream, "capabilities": {"responses": "via_chat"}},
        },
        models={
            MODEL: model("responses", routes=[{"upstream": "main"}, {"upstream": "other", "priority": 2}]),
            "second": model("responses"), "elsewhere": model("responses", "other"),
            "translated": model("responses", "without"), "chat-only": model("chat", "other"),
        },
        keys=[key("alice"), key("bob"), key("poor", models=["translated", "chat-only"])],
        server={"workers": 2, "access_log": "off"},
        store={"url": store},
    )  # fmt: skip


@pytest.fixture(scope="module")
def gateways(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> list[Gateway]:
    return start_pair(start_shared_gateway, config(shared_upstream.url, store_url), store_url)


def ask(gateway: Gateway, who: str = "alice", **members: Any) -> Answer:
    return gateway.post("/v1/responses", {"model": MODEL, "input": "Hello"} | members, key=who)


def make(gateway: Gateway, upstream: ScriptedUpstream, who: str = "alice", **members: Any) -> str:
    """A conversation; its id."""
    made = f"conv_{next(_NUMBERS):048x}"
    upstream.answer_with(ok_json({"id": made, "object": "conversation", "created_at": 1, "metadata": {}}))
    received = gateway.post(PATH, members, key=who)
    assert (received.status, received.json["id"]) == (200, made)
    return made


def used_key(upstream: ScriptedUpstream) -> str:
    return upstream.requests[-1].headers["authorization"].removeprefix("Bearer ")


def test_each_operation_reaches_the_account_that_keeps_it(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = make(gateways[0], upstream, items=[ITEM], metadata={"topic": "x"})
    assert (upstream.requests[-1].method, upstream.requests[-1].path) == ("POST", PATH)
    assert upstream.requests[-1].json == {"items": [ITEM], "metadata": {"topic": "x"}}
    kept_by, shown = used_key(upstream), {"id": made, "object": "conversation", "metadata": {}}
    assert kept_by in KEYS
    one = f"{PATH}/{made}"
    deleted = {"id": made, "object": "conversation.deleted", "deleted": True}
    upstream.answer_with(*[ok_json(each) for each in (shown, shown, ITEMS, ITEMS, ITEM, shown, deleted)])
    before, gateway = upstream.hits, gateways[1]
    assert gateway.get(one).json == shown
    assert gateway.post(one, {"metadata": {}}).json == shown
    assert gateway.post(f"{one}/items?include[]=x", {"items": [ITEM]}).json == ITEMS
    assert gateway.get(f"{one}/items?limit=2&order=asc&after=msg_1").json == ITEMS
    assert gateway.get(f"{one}/items/msg_1").json == ITEM
    assert gateway.send("DELETE", f"{one}/items/msg_1").json == shown
    assert gateway.send("DELETE", one).json == deleted
    assert [(each.method, each.path, each.body) for each in upstream.requests[before:]] == [
        ("GET", one, b""),
        ("POST", one, b'{"metadata": {}}'),
        ("POST", f"{one}/items?include[]=x", json.dumps({"items": [ITEM]}).encode()),
        ("GET", f"{one}/items?limit=2&order=asc&after=msg_1", b""),
        ("GET", f"{one}/items/msg_1", b""),
        ("DELETE", f"{one}/items/msg_1", b""),
        ("DELETE", one, b""),
    ]
    assert {each.headers["authorization"] for each in upstream.requests[before:]} == {f"Bearer {kept_by}"}
    for each in gateways:
        assert each.get(one).status == 404
        assert ask(each, conversation=made).status == 404
    assert upstream.hits == before + 7


@pytest.mark.parametrize("is_object", [False, True])
def test_a_call_goes_where_its_conversation_is_kept(
    gateways: list[Gateway], upstream: ScriptedUpstream, is_object: bool
) -> None:
    for _ in range(3):
        made = make(gateways[0], upstream)
        kept_by = used_key(upstream)
        for gateway in gateways * 2:
            upstream.answer_with(ok_json(api.response()))
            given: Any = {"id": made} if is_object else made
            assert ask(gateway, conversation=given).status == 200
            assert used_key(upstream) == kept_by
            assert upstream.requests[-1].json["conversation"] == given
    received = ask(gateways[0], conversation=made, model="elsewhere")
    assert received.refusal == (400, "invalid_request_error", "model", "model_mismatch")


def test_its_tokens_are_reserved(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    gateway, made = gateways[0], make(gateways[0], upstream)
    for stream in (False, True):
        upstream.answer_with(ok_json(api.response([api.message("Hi")])))
        assert ask(gateway, conversation=made, stream=stream).status == 200
        upstream.answer_with(ok_json(api.response([api.message("Hi")], usage=None)))
        received = ask(gateways[1], conversation=made)
        assert gateway.call(received.id)["prompt_tokens"] > api.USAGE["total_tokens"]
    upstream.answer_with(ok_json(ITEMS), ok_json(api.response([api.message("Hi")], usage=None)))
    gateway.post(f"{PATH}/{made}/items", {"items": [ITEM | {"content": "word " * 1000}]})
    assert gateway.call(ask(gateways[1], conversation=made).id)["prompt_tokens"] > 1000


def tokens_of(gateway: Gateway, upstream: ScriptedUpstream, made: str) -> int:
    """What a short call in this conversation is charged for its prompt without a report."""
    upstream.answer_with(ok_json(api.response([api.message("Hi")], usage=None)))
    tokens: int = gateway.call(ask(gateway, conversation=made).id)["prompt_tokens"]
    return tokens


LONG = ITEM | {"content": "word " * 8000}


def test_what_is_added_at_once_adds_up(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """Also through two gateways, and beside a change that began before and ends after it."""
    made, body = make(gateways[0], upstream), b'{"metadata": {}}'
    upstream.answer_with(always=after(0.2, ok_json(ITEMS)))
    with gateways[0].connect() as slow:
        head = f"POST {PATH}/{made} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n"
        slow.send(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{{".encode())
        with ThreadPoolExecutor(6) as threads:
            adds = [
                threads.submit(gateways[each % 2].post, f"{PATH}/{made}/items", {"items": [LONG]}) for each in range(6)
            ]
        assert {each.result().status for each in adds} == {200}
        slow.send(body[1:])
        assert slow.read_answer().status == 200
    assert tokens_of(gateways[1], upstream, made) > 6 * 8000


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("what", ["call", "items"])
def test_what_a_client_that_left_has_added_counts(
    gateways: list[Gateway], upstream: ScriptedUpstream, what: str, is_kept: bool
) -> None:
    made = make(gateways[0], upstream)
    upstream.answer_with(silent)
    path, members = f"{PATH}/{made}/items", {"items": [LONG]}
    if what == "call":
        path, members = "/v1/responses", {"model": MODEL, "conversation": made, "store": is_kept, "input": [LONG]}
    before = upstream.hits
    with gateways[0].connect() as client:
        client.post(path, json.dumps(members).encode(), secret("alice"))
        eventually(lambda: upstream.hits > before)
    eventually(lambda: tokens_of(gateways[1], upstream, made) > 8000)


def test_a_report_is_the_size_of_the_conversation(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """Whatever was estimated before: it sinks again."""
    made = make(gateways[0], upstream, items=[LONG])
    upstream.answer_with(ok_json(api.response([api.message("Hi")])))
    assert ask(gateways[0], conversation=made, input=[LONG]).status == 200
    assert api.USAGE["total_tokens"] < tokens_of(gateways[1], upstream, made) < 100


@pytest.mark.parametrize("place", ["known", "unknown", "response"])
def test_another_key_finds_nothing(gateways: list[Gateway], upstream: ScriptedUpstream, place: str) -> None:
    made, who = "conv_unknown", "bob"
    if place == "known":
        made = make(gateways[0], upstream)
    elif place == "response":
        made, who = f"resp_{next(_NUMBERS)}", "alice"
        upstream.answer_with(ok_json(api.response(id=made)))
        ask(gateways[0])
    before, gateway, one = upstream.hits, gateways[1], f"{PATH}/{made}"
    answers = [
        gateway.get(one, key=who), gateway.post(one, {"metadata": {}}, key=who), gateway.send("DELETE", one, key=who),
        gateway.post(f"{one}/items", {"items": [ITEM]}, key=who), gateway.get(f"{one}/items", key=who),
        gateway.get(f"{one}/items/msg_1", key=who), gateway.send("DELETE", f"{one}/items/msg_1", key=who),
    ]  # fmt: skip
    for received in answers:
        assert received.status == 404
        assert received.error["message"] == f"Conversation with id '{made}' not found."
    for received in (
        ask(gateway, who, conversation=made),
        ask(gateway, who, conversation={"id": made}, stream=True),
        gateway.post("/v1/responses/input_tokens", {"model": MODEL, "conversation": made}, key=who),
    ):
        assert received.refusal == (404, "invalid_request_error", "conversation", None)
    assert upstream.hits == before


def test_a_conversation_is_no_response(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = make(gateways[0], upstream)
    before = upstream.hits
    assert gateways[0].get(f"/v1/responses/{made}").status == 404
    assert ask(gateways[0], previous_response_id=made).status == 404
    assert upstream.hits == before


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [ITEM, {"type": "item_reference", "id": "msg_1"}]}, "items[1]"),
        ({"items": [{"id": "msg_1"}]}, "items[0]"),
        ({"items": "all"}, "items"),
        ({"items": [ITEM] * 21}, "items"),
        ({"Items": []}, "Items"),
        ({"metadata": 1}, "metadata"),
        ([], None),
    ],
)
def test_what_is_refused(gateways: list[Gateway], upstream: ScriptedUpstream, body: Any, param: str | None) -> None:
    made = make(gateways[0], upstream)
    before = upstream.hits
    for path in (PATH, f"{PATH}/{made}/items"):
        received = gateways[0].post(path, body)
        assert (received.status, received.error["param"]) == (400, param)
    assert upstream.hits == before


def test_bodies(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    gateway = gateways[0]
    upstream.answer_with(ok_json({"id": "conv_a"}))
    assert gateway.send("POST", PATH, None).status == 200
    assert upstream.requests[-1].json == {}
    upstream.answer_with(ok_json({"id": "conv_b"}))
    packed = gzip.compress(json.dumps({"items": [ITEM]}).encode())
    assert gateway.send("POST", PATH, packed, headers={"Content-Encoding": "gzip"}).status == 200
    assert upstream.requests[-1].json == {"items": [ITEM]}
    assert "content-encoding" not in upstream.requests[-1].headers
    received = gateway.post(PATH, {"items": [ITEM | {"content": "x" * 1_100_000}]})
    assert received.status == 413
    assert "POST /v1/responses" in received.error["message"]
    assert gateway.get(f"{PATH}/conv_b/items/..%2F..").status == 404
    assert gateway.get(PATH).status == 405
    assert gateway.get(f"{PATH}/conv_b", key=None).status == 401


def test_items_have_only_so_many_objects_and_lists(gateways: list[Gateway], shared_upstream: ScriptedUpstream) -> None:
    """A mebibyte of empty lists took a fifth of a second, in which other calls waited."""
    count = len(shared_upstream.requests)
    received = gateways[0].post(PATH, {"items": [{**ITEM, "content": [[]] * 65_536}]}, key="alice")
    assert (received.status, received.error["param"]) == (400, "items")
    assert "65536 objects and lists" in received.error["message"]
    assert len(shared_upstream.requests) == count


def test_upstreams_without_conversations(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    before = upstream.hits
    received = gateways[0].post(PATH, {}, key="poor")
    assert received.refusal == (404, "invalid_request_error", None, None)
    assert upstream.hits == before
    upstream.answer_with(error_json(404, message="Not Found"))
    assert gateways[0].post(PATH, {}).status == 404
    upstream.answer_with(ok_json({"object": "conversation"}))
    assert gateways[0].post(PATH, {}).status == 502
    assert secret("alice") not in str([each.head for each in upstream.requests])
