"""Input items that are named by their ids: only those of answers to the same key, and only where they are kept.

All keys share the upstream's account, which finds the items of every one of them.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways, start_pair
from tests.fakes import responses_api as api
from tests.fakes.scripted import ok_json
from tests.flows import background
from tests.flows.background import Background
from tests.wings.stored.test_stored_responses import sent

from .client import Answer
from .gateway_process import Gateway, eventually, key, model, settings

MODEL = "gpt-4.1"
KEYS = ["sk-upstream-key-that-nobody-may-see", "sk-upstream-second-that-nobody-may-see"]
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def gateways(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> list[Gateway]:
    """Two gateways on one Redis, or twice the one that an embedded store permits."""
    config = settings(
        shared_upstream.url,
        upstreams={
            "main": {"base_url": shared_upstream.url, "api_keys": KEYS, "api_key": None},
            "other": {"base_url": shared_upstream.url},
        },
        models={MODEL: model("responses"), "elsewhere": model("responses", "other")},
        keys=[key("alice"), key("bob")],
        server={"workers": 2, "access_log": "off"},
        store={"url": store_url},
    )
    return start_pair(start_shared_gateway, config, store_url)


def ask(gateway: Gateway, who: str = "alice", **members: Any) -> Answer:
    return gateway.post("/v1/responses", {"model": MODEL, "input": "Hello"} | members, key=who)


def answered(
    gateway: Gateway, upstream: ScriptedUpstream, who: str = "alice", how: str = "plain", **members: Any
) -> list[str]:
    """The ids of the items of an answer: a message and a reasoning."""
    number = next(_NUMBERS)
    reasoning = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
    output = [api.message("All is said.") | {"id": f"msg_{number}"}, reasoning]
    padding = "x" * 100_000 if how == "long" else ""
    whole = api.response(output, id=f"resp_{number}", instructions=padding)
    if how == "plain":
        upstream.answer_with(ok_json(whole))
    else:
        upstream.answer_with(sent(*map(api.one, api.events([], whole, start=api.response(id=f"resp_{number}")))))
    assert ask(gateway, who, stream=how != "plain", **members).status == 200
    return [f"msg_{number}", f"rs_{number}"]


def reference(name: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": name}


def used_key(upstream: ScriptedUpstream) -> str:
    return upstream.requests[-1].headers["authorization"]


@pytest.mark.parametrize("how", ["plain", "stream", "long"])
def test_items_of_own_answers_are_found_where_they_are_kept(
    gateways: list[Gateway], upstream: ScriptedUpstream, how: str
) -> None:
    for _ in range(3):  # the keys of the upstream take turns
        names = answered(gateways[0], upstream, how=how)
        kept_by = used_key(upstream)
        for gateway in gateways * 2:
            given = [reference(names[0]), {"id": names[1]}, {"role": "user", "content": "Go on"}]
            upstream.answer_with(ok_json(api.response(id=f"resp_{next(_NUMBERS)}x")))
            assert ask(gateway, input=given).status == 200
            assert upstream.requests[-1].json["input"] == given
            assert used_key(upstream) == kept_by


@pytest.mark.parametrize("place", ["known", "unknown"])
@pytest.mark.parametrize("given", [reference, lambda name: {"id": name}])
def test_another_keys_items_are_not_found(
    gateways: list[Gateway], upstream: ScriptedUpstream, place: str, given: Any
) -> None:
    name = answered(gateways[0], upstream)[0] if place == "known" else "msg_unknown"
    before = upstream.hits
    for members in ({}, {"stream": True}, {"background": True}, {"instructions": "x" * 70_000}):
        received = ask(gateways[1], "bob", input=[{"role": "user", "content": "Go on"}, given(name)], **members)
        assert received.refusal == (404, "invalid_request_error", "input", None)
        assert received.error["message"] == f"Item with id '{name}' not found. Send the item itself instead of its id."
    for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
        received = gateways[1].post(path, {"model": MODEL, "input": [given(name)]}, key="bob")
        assert received.status == 404
    assert upstream.hits == before


def test_an_id_in_an_item_that_the_upstream_completes(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """Of a reasoning item without its encrypted content, or a search, it keeps the rest: so it may not be a foreign
    one. One that is not known passes: stateless providers and translated answers have such items as well."""
    message, reasoning = answered(gateways[0], upstream)
    item = {"type": "reasoning", "id": reasoning, "summary": []}
    search = {"type": "web_search_call", "id": message, "status": "completed"}
    before = upstream.hits
    for each in (item, search):
        assert ask(gateways[1], "bob", input=[each]).refusal == (404, "invalid_request_error", "input", None)
    assert upstream.hits == before
    for who, each in (
        ("alice", item),
        ("bob", item | {"id": "rs_unknown"}),
        ("bob", item | {"encrypted_content": "gAAA"}),
        ("bob", {"type": "message", "id": message, "role": "user", "content": "Hi"}),
    ):
        upstream.answer_with(ok_json(api.response(id=f"resp_{next(_NUMBERS)}y")))
        assert ask(gateways[1], who, input=[each]).status == 200, each


def test_items_beside_what_is_continued(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """All of it has to be kept by one account."""
    kept: dict[str, list[str]] = {}
    while len(kept) < 2:  # each worker has its own turns
        made = answered(gateways[0], upstream)
        kept[used_key(upstream)] = made
    names = list(kept.values())
    before = upstream.hits
    mixed = [reference(names[0][0]), reference(names[1][0])]
    assert ask(gateways[0], input=mixed).refusal == (400, "invalid_request_error", "input", "item_not_available")
    previous = names[0][0].replace("msg", "resp")
    received = ask(gateways[0], input=mixed[1:], previous_response_id=previous)
    assert received.error["code"] == "item_not_available"
    assert ask(gateways[0], input=mixed[:1], model="elsewhere").error["code"] == "model_mismatch"
    assert upstream.hits == before
    upstream.answer_with(ok_json(api.response(id=f"resp_{next(_NUMBERS)}z")))
    assert ask(gateways[0], input=mixed[:1], previous_response_id=previous).status == 200


def test_what_is_not_kept_has_no_items(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    name = answered(gateways[0], upstream, store=False)[0]
    assert ask(gateways[0], input=[reference(name)]).status == 404


def test_items_of_a_background_response(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    work = Background()
    upstream.answer_with(always=work)
    made = (
        gateways[0].post("/v1/responses", {"model": MODEL, "input": "Hello", "background": True}, key="bob").json["id"]
    )
    output = [api.message("All is said.") | {"id": f"msg_{made}"}]
    work.end(made, output=output)
    eventually(lambda: [row for row in gateways[0].calls("bob") if row["ended"] == "done"])
    assert background.MODEL == MODEL
    again = {"input": [reference(f"msg_{made}")], "background": True}
    later = eventually(lambda: (got := ask(gateways[1], "bob", **again)).status == 200 and got)
    work.end(later.json["id"])
    # The gateways poll until they have seen the end, and a poll would be unexpected in the tests that follow.
    eventually(lambda: [row for row in gateways[0].calls("bob") if row["id"] == later.id and row["ended"] == "done"])
