"""A cheaper model serves when a key, a person or a team is above a share of her money, and the answer and the record
say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json, stream
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, eventually, key, settings

DEAR = {"input": 100, "output": 100}
CHEAP = {"input": 1, "output": 1}
USED = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
COST, CHEAP_COST = 0.0015, 0.000015
HALF = [{"share": "50%", "use": "mini"}]
STEPS = [*HALF, {"share": 0.9, "use": "nano"}]
QUOTA = "0.003 USD/month"
"""After one dear call half of it is used."""
FILE = {"type": "file", "file": {"file_id": "file-1"}}


def served(price: dict[str, Any], *endpoints: str, **more: Any) -> dict[str, Any]:
    names = endpoints or ("completions", "chat", "responses", "embeddings")
    return {"routes": [{"upstream": "main"}], "endpoints": [*names], "max_output_tokens": 5, "price": price, **more}


def config(url: str, store_url: str) -> dict[str, Any]:
    owners = {"ann": {"quotas": [QUOTA]}, "bea": {"quotas": [QUOTA]}, "eve": {"quotas": [QUOTA]}}
    return settings(
        url,
        store={"url": store_url},
        upstreams={"main": {"capabilities": {"responses": True}}},
        models={
            "dear": served(DEAR), "mini": served(CHEAP), "nano": served({"input": 0.5, "output": 1}),
            "cheapest": served({"input": 0.1, "output": 0.1}), "strict": served(CHEAP, limits={"n": 1}),
            "chats": served(CHEAP, "chat"), "bound": served(DEAR, "chat"),
        },
        aliases={"best": "dear"},
        people=owners,
        teams={"red": {"quotas": [QUOTA]}, "blue": {"quotas": [QUOTA]}},
        keys=[
            key("laptop", owner="ann"), key("ci", owner="ann"), key("hers", owner="bea"), key("eves", owner="eve"),
            key("one", team="red"), key("two", team="red"), key("third", team="blue"),
            *[key(name, quotas=[QUOTA]) for name in ("own", "kept", "limited", "only-chat", "long", "elsewhere")],
            key("down", quotas=[QUOTA]), key("stepped", quotas=["0.0016 USD/month"]),
            key("unkept", quotas=["0.0019 USD/month"]),
            key("narrow", quotas=[QUOTA], models=["dear"]),
            key("shadow", quotas=[QUOTA], on_exceeded="shadow"),
            key("patterns", quotas=[QUOTA, "1 USD/day:dear", "1 USD/day:mini"]),
            key("rated", quotas=["1 USD/minute", "1000 tokens/day"]),
        ],
        when_above={
            "keys": {
                "defaults": HALF, "stepped": STEPS, "limited": [{"share": "50%", "use": "strict"}],
                "only-chat": [{"share": "50%", "use": "chats"}],
                "long": [{"share": "50%", "use": "mini", "max_prompt_tokens": 20}],
                "elsewhere": [{"share": "50%", "use": "mini", "model": "gpt-*"}],
            },
            "people": {"defaults": HALF, "eve": []},
            "teams": {"red": HALF},
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    return start_shared_gateway(config(shared_upstream.url, store_url))


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=ok_json({"model": "up", "usage": USED}))
    yield
    upstream.answer_with()


def ask(gateway: Gateway, who: str, model: str = "dear", **more: Any) -> Answer:
    answer = gateway.chat(who, model=model, **more)
    assert answer.status == 200, answer
    return answer


def model_of(answer: Answer) -> str | None:
    """The model that served in place of the one that was asked for."""
    return answer.headers.get("x-gateway-model") if "x-gateway-model-reason" in answer.headers else None


def spend(gateway: Gateway, who: str) -> None:
    """One dear call: half of the quota."""
    assert model_of(ask(gateway, who)) is None


def test_the_answer_and_the_record_say_which_model_serves_and_why(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    spend(gateway, "own")
    answer = ask(gateway, "own", "best")
    reason = "when_above; limit=key:own; unit=usd; per=month; above=0.5; share=0.5000"
    assert (answer.headers["x-gateway-model"], answer.headers["x-gateway-model-reason"]) == ("mini", reason)
    assert [request.json["model"] for request in upstream.requests] == ["dear", "mini"]
    cheap, dear = eventually(lambda: len(found := gateway.calls("own")) == 2 and found)
    assert (cheap["model"], cheap["served_model"], cheap["model_reason"]) == ("best", "mini", reason)
    assert (dear["model"], dear["served_model"], dear["model_reason"]) == ("dear", "dear", "")
    assert (cheap["cost_usd"], dear["cost_usd"]) == (CHEAP_COST, COST)
    assert gateway.metric("gateway_cheaper_model_calls_total", scope="key", model="mini") >= 1
    usage = gateway.admin("usage", group_by="model", key="own").json["data"]
    assert {row["model"]: row["cost_usd"] for row in usage} == {"dear": COST, "mini": CHEAP_COST}


def test_a_further_step_leads_to_a_further_model(gateway: Gateway) -> None:
    spend(gateway, "stepped")
    assert model_of(ask(gateway, "stepped")) == "nano"


def test_the_quota_of_a_person_counts_for_all_her_keys(gateway: Gateway) -> None:
    spend(gateway, "laptop")
    answer = ask(gateway, "ci")
    assert model_of(answer) == "mini"
    assert "limit=person:ann;" in answer.headers["x-gateway-model-reason"]
    assert model_of(ask(gateway, "hers")) is None  # another person
    spend(gateway, "eves")
    assert model_of(ask(gateway, "own", "cheapest")) is None


def test_a_person_with_an_empty_list_keeps_her_model(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json({"model": "up", "usage": {"prompt_tokens": 1, "completion_tokens": 0}}))
    for _ in range(2):
        assert model_of(ask(gateway, "eves")) is None


def test_the_quota_of_a_team_counts_for_its_keys(gateway: Gateway) -> None:
    spend(gateway, "one")
    assert model_of(ask(gateway, "two")) == "mini"
    spend(gateway, "third")
    assert "x-gateway-model" not in ask(gateway, "third").headers  # its team has no steps


def test_the_quotas_that_count_are_those_of_the_model_that_serves(gateway: Gateway) -> None:
    spend(gateway, "patterns")
    assert model_of(ask(gateway, "patterns")) == "mini"
    rows = gateway.get("/v1/key", key="patterns").json["quotas"]
    used = {row.get("model"): row["used"] for row in rows if row["unit"] == "usd"}
    assert used == {None: COST + CHEAP_COST, "dear": COST, "mini": CHEAP_COST}


def test_a_stream_has_the_headers_too(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    spend(gateway, "down")
    upstream.answer_with(stream([{"choices": [], "usage": USED}]))
    with gateway.stream("down", model="dear") as raw:
        assert raw.read_head().headers["x-gateway-model"] == "mini"
    upstream.answer_with(always=error_json(400, message="bad", code="bad"))
    assert model_of(gateway.chat("down", model="dear")) == "mini"


@pytest.mark.parametrize(
    ("who", "path", "body"),
    [
        ("kept", "embeddings", {"input": "a"}),  # vectors of another model say something else
        ("kept", "responses", {"input": "a"}),  # OpenAI keeps it by default
        ("kept", "responses", {"input": "a", "store": True}),
        ("kept", "chat/completions", {"store": True}),
        ("limited", "chat/completions", {"n": 2}),  # the limits of the cheaper model refuse it
        ("only-chat", "completions", {"prompt": "a"}),
        ("long", "chat/completions", {"messages": [{"role": "user", "content": "a " * 50}]}),
        ("elsewhere", "chat/completions", {}),  # `model` has another pattern
        ("narrow", "chat/completions", {}),  # the key may not use the cheaper one
        ("shadow", "chat/completions", {}),
        ("own", "chat/completions", {"model": "cheapest"}),  # it costs less already
        ("own", "chat/completions", {"model": "mini"}),
        ("rated", "chat/completions", {}),  # no quota of money per day, week or month
    ],
)
def test_the_model_stays_where_another_one_may_not_serve(
    gateway: Gateway, upstream: ScriptedUpstream, who: str, path: str, body: dict[str, Any]
) -> None:
    if not gateway.calls(who):
        spend(gateway, who)
    upstream.answer_with(always=ok_json({"model": "up", "id": "resp_1", "usage": {"total_tokens": 0}}))
    plain = {"messages": [{"role": "user", "content": "a"}]} if path.startswith("chat") else {}
    hits = len(upstream.requests)
    limit = {"max_output_tokens": 16} if path == "responses" else {} if path == "embeddings" else {"max_tokens": 1}
    answer = gateway.post(f"/v1/{path}", {"model": "dear", **plain, **limit, **body}, key=who)
    assert answer.status in (200, 429), answer
    assert "x-gateway-model" not in answer.headers
    assert {request.json["model"] for request in upstream.requests[hits:]} <= {body.get("model", "dear")}


def test_a_response_that_is_not_kept_changes_its_model(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    spend(gateway, "unkept")
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    upstream.answer_with(always=ok_json({"model": "up", "id": "resp_1", "usage": usage}))
    answer = gateway.post("/v1/responses", {"model": "dear", "input": "a", "store": False}, key="unkept")
    assert (answer.status, model_of(answer)) == (200, "mini")
