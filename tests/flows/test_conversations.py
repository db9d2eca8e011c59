"""Conversations that an upstream keeps: each belongs to the key that made it, and stays with its account."""

from __future__ import annotations

import gzip
import itertools
import json
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways, start_pair
from tests.fakes import responses_api as api
from tests.fakes.scripted import error_json, ok_json

from .client import Answer
from .house import Gateway, key, model, secret, settings

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
def houses(gateways: StartsGateways, theatre: Stage, store_url: str) -> list[Gateway]:
    return start_pair(gateways, config(theatre.url, store_url), store_url)


def ask(house: Gateway, who: str = "alice", **members: Any) -> Answer:
    return house.post("/v1/responses", {"model": MODEL, "input": "Hello"} | members, key=who)


def make(house: Gateway, upstream: Stage, who: str = "alice", **members: Any) -> str:
    """A conversation; its id."""
    made = f"conv_{next(_NUMBERS):048x}"
    upstream.play(ok_json({"id": made, "object": "conversation", "created_at": 1, "metadata": {}}))
    told = house.post(PATH, members, key=who)
    assert (told.status, told.json["id"]) == (200, made)
    return made


def used_key(upstream: Stage) -> str:
    return upstream.requests[-1].headers["authorization"].removeprefix("Bearer ")


def test_each_operation_reaches_the_account_that_keeps_it(houses: list[Gateway], upstream: Stage) -> None:
    made = make(houses[0], upstream, items=[ITEM], metadata={"topic": "x"})
    assert (upstream.requests[-1].method, upstream.requests[-1].path) == ("POST", PATH)
    assert upstream.requests[-1].json == {"items": [ITEM], "metadata": {"topic": "x"}}
    kept_by, shown = used_key(upstream), {"id": made, "object": "conversation", "metadata": {}}
    assert kept_by in KEYS
    one = f"{PATH}/{made}"
    deleted = {"id": made, "object": "conversation.deleted", "deleted": True}
    upstream.play(*[ok_json(each) for each in (shown, shown, ITEMS, ITEMS, ITEM, shown, deleted)])
    before, house = upstream.hits, houses[1]
    assert house.get(one).json == shown
    assert house.post(one, {"metadata": {}}).json == shown
    assert house.post(f"{one}/items?include[]=x", {"items": [ITEM]}).json == ITEMS
    assert house.get(f"{one}/items?limit=2&order=asc&after=msg_1").json == ITEMS
    assert house.get(f"{one}/items/msg_1").json == ITEM
    assert house.send("DELETE", f"{one}/items/msg_1").json == shown
    assert house.send("DELETE", one).json == deleted
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
    for each in houses:
        assert each.get(one).status == 404
        assert ask(each, conversation=made).status == 404
    assert upstream.hits == before + 7


@pytest.mark.parametrize("is_object", [False, True])
def test_a_call_goes_where_its_conversation_is_kept(houses: list[Gateway], upstream: Stage, is_object: bool) -> None:
    for _ in range(3):
        made = make(houses[0], upstream)
        kept_by = used_key(upstream)
        for house in houses * 2:
            upstream.play(ok_json(api.response()))
            given: Any = {"id": made} if is_object else made
            assert ask(house, conversation=given).status == 200
            assert used_key(upstream) == kept_by
            assert upstream.requests[-1].json["conversation"] == given
    told = ask(houses[0], conversation=made, model="elsewhere")
    assert told.told == (400, "invalid_request_error", "model", "model_mismatch")


def test_its_tokens_are_reserved(houses: list[Gateway], upstream: Stage) -> None:
    house, made = houses[0], make(houses[0], upstream)
    for stream in (False, True):
        upstream.play(ok_json(api.response([api.message("Hi")])))
        assert ask(house, conversation=made, stream=stream).status == 200
        upstream.play(ok_json(api.response([api.message("Hi")], usage=None)))
        told = ask(houses[1], conversation=made)
        assert house.call(told.id)["prompt_tokens"] > api.USAGE["total_tokens"]
    upstream.play(ok_json(ITEMS), ok_json(api.response([api.message("Hi")], usage=None)))
    house.post(f"{PATH}/{made}/items", {"items": [ITEM | {"content": "word " * 1000}]})
    assert house.call(ask(houses[1], conversation=made).id)["prompt_tokens"] > 1000


@pytest.mark.parametrize("place", ["known", "unknown", "response"])
def test_another_key_finds_nothing(houses: list[Gateway], upstream: Stage, place: str) -> None:
    made, who = "conv_unknown", "bob"
    if place == "known":
        made = make(houses[0], upstream)
    elif place == "response":
        made, who = f"resp_{next(_NUMBERS)}", "alice"
        upstream.play(ok_json(api.response(id=made)))
        ask(houses[0])
    before, house, one = upstream.hits, houses[1], f"{PATH}/{made}"
    answers = [
        house.get(one, key=who), house.post(one, {"metadata": {}}, key=who), house.send("DELETE", one, key=who),
        house.post(f"{one}/items", {"items": [ITEM]}, key=who), house.get(f"{one}/items", key=who),
        house.get(f"{one}/items/msg_1", key=who), house.send("DELETE", f"{one}/items/msg_1", key=who),
    ]  # fmt: skip
    for told in answers:
        assert told.status == 404
        assert told.error["message"] == f"Conversation with id '{made}' not found."
    for told in (
        ask(house, who, conversation=made),
        ask(house, who, conversation={"id": made}, stream=True),
        house.post("/v1/responses/input_tokens", {"model": MODEL, "conversation": made}, key=who),
    ):
        assert told.told == (404, "invalid_request_error", "conversation", None)
    assert upstream.hits == before


def test_a_conversation_is_no_response(houses: list[Gateway], upstream: Stage) -> None:
    made = make(houses[0], upstream)
    before = upstream.hits
    assert houses[0].get(f"/v1/responses/{made}").status == 404
    assert ask(houses[0], previous_response_id=made).status == 404
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
def test_what_is_refused(houses: list[Gateway], upstream: Stage, body: Any, param: str | None) -> None:
    made = make(houses[0], upstream)
    before = upstream.hits
    for path in (PATH, f"{PATH}/{made}/items"):
        told = houses[0].post(path, body)
        assert (told.status, told.error["param"]) == (400, param)
    assert upstream.hits == before


def test_bodies(houses: list[Gateway], upstream: Stage) -> None:
    house = houses[0]
    upstream.play(ok_json({"id": "conv_a"}))
    assert house.send("POST", PATH, None).status == 200
    assert upstream.requests[-1].json == {}
    upstream.play(ok_json({"id": "conv_b"}))
    packed = gzip.compress(json.dumps({"items": [ITEM]}).encode())
    assert house.send("POST", PATH, packed, headers={"Content-Encoding": "gzip"}).status == 200
    assert upstream.requests[-1].json == {"items": [ITEM]}
    assert "content-encoding" not in upstream.requests[-1].headers
    told = house.post(PATH, {"items": [ITEM | {"content": "x" * 1_100_000}]})
    assert told.status == 413
    assert "POST /v1/responses" in told.error["message"]
    assert house.get(f"{PATH}/conv_b/items/..%2F..").status == 404
    assert house.get(PATH).status == 405
    assert house.get(f"{PATH}/conv_b", key=None).status == 401


def test_upstreams_without_conversations(houses: list[Gateway], upstream: Stage) -> None:
    before = upstream.hits
    told = houses[0].post(PATH, {}, key="poor")
    assert told.told == (404, "invalid_request_error", None, None)
    assert upstream.hits == before
    upstream.play(error_json(404, message="Not Found"))
    assert houses[0].post(PATH, {}).status == 404
    upstream.play(ok_json({"object": "conversation"}))
    assert houses[0].post(PATH, {}).status == 502
    assert secret("alice") not in str([each.head for each in upstream.requests])
