"""Anthropic's message batches before the simulator, through the official SDK: each request checked, reserved as a
whole, charged once by the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import StartsGateways

from .background import records
from .client import Answer
from .gateway_process import SIMULATOR, Gateway, Process, eventually, key, model, secret, settings
from .test_batches import served, windows

if TYPE_CHECKING:  # imported where it is used: importing an SDK costs every collecting process
    import anthropic

MODEL = "claude-sonnet-5"
PRICE = {"input": 2, "output": 8, "variants": {"batch": {"input": 1, "output": 4}}}
BATCHES = "/v1/messages/batches"
ERROR = "invalid_request_error"


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = Process(tmp_path_factory.mktemp("simulator"), SIMULATOR, "--port", "0")
    try:
        yield process.wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    finally:
        process.end()


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, simulator: str, store_url: str) -> Gateway:
    native = {"base_url": simulator, "capabilities": {"messages": True}}
    return start_shared_gateway(
        settings(
            simulator,
            upstreams={"main": native, "chats": {"base_url": simulator, "capabilities": {"messages": "via_chat"}}},
            models={
                MODEL: model("messages", price=PRICE),
                "mine": model("messages", routes=[{"upstream": "main", "model": MODEL}], price=PRICE),
                "by-chat": model("messages", "chats"),
            },
            keys=[
                key("alice", quotas=[{"tokens": 10**6, "per": "day"}, {"usd": 100, "per": "month"}]),
                key("bob", models=["mine"], limits={"max_tokens": 50, "deny": ["top_k"]}),
                key("paced", quotas=[{"requests": 4, "per": "hour"}]),
                key("carol", quotas=[{"tokens": 100, "per": "day"}]),
            ],
            server={"workers": 2, "access_log": "json"},
            store={"url": store_url},
        )
    )


def sdk(gateway: Gateway, who: str = "alice") -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=gateway.url, api_key=secret(who), max_retries=0)


def request(name: str, which: str = MODEL, **members: Any) -> dict[str, Any]:
    params = {"model": which, "max_tokens": 40, "messages": [{"role": "user", "content": f"Hello {name}"}]} | members
    return {"custom_id": name, "params": params}


def create(gateway: Gateway, *requests: Any, who: str = "alice") -> Answer:
    return gateway.post(BATCHES, {"requests": list(requests)}, key=who)


def settled(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer
    eventually(lambda: records(gateway, answer.id), timeout_s=60)
    (record,) = records(gateway, answer.id)
    return record


def test_a_batch_is_charged_once_by_its_results(gateway: Gateway, simulator: str) -> None:
    before, none = windows(gateway)
    assert none == 0
    failing = request("bad", simulate={"status": 500, "delay_s": 1.5})
    began = create(gateway, *[request(f"r-{at}") for at in range(5)], failing)
    assert windows(gateway)[1] > 6 * 40
    record = settled(gateway, began)
    calls = served(simulator, began.json["id"])
    assert len(calls) == 5
    tokens = [sum(call[kind] for call in calls) for kind in ("prompt_tokens", "completion_tokens")]
    assert [record["prompt_tokens"], record["completion_tokens"]] == tokens
    assert (record["endpoint"], record["model"], record["usage_source"]) == ("message_batches", MODEL, "reported")
    assert record["cost_usd"] == pytest.approx((tokens[0] + 4 * tokens[1]) / 1e6, abs=2e-9)
    assert windows(gateway) == (before + sum(tokens), 0)


def test_the_sdk_makes_reads_and_deletes_a_batch(gateway: Gateway, simulator: str) -> None:
    import anthropic

    with sdk(gateway) as client, sdk(gateway, "bob") as others:
        batches, other = client.messages.batches, others.messages.batches
        endless = batches.create(requests=[request("a", simulate={"delay_s": 600})])  # type: ignore[list-item]
        with pytest.raises(anthropic.ConflictError):
            batches.delete(endless.id)
        batches.cancel(endless.id)
        began = batches.create(requests=[request("a"), request("b", simulate={"delay_s": 0.5})])  # type: ignore[list-item]
        done = eventually(lambda: (seen := batches.retrieve(began.id)).processing_status == "ended" and seen)
        assert done.results_url == f"{BATCHES}/{began.id}/results"
        assert [each.custom_id for each in batches.results(began.id)] == ["a", "b"]
        assert next(iter(batches.list(limit=1))).id == began.id
        for ask in (other.retrieve, other.cancel, other.delete):
            with pytest.raises(anthropic.NotFoundError):
                ask(began.id)
        assert gateway.get(f"{BATCHES}/{began.id}/results", key="bob").status == 404
        assert list(other.list()) == []

        def deleted() -> bool:
            try:
                return batches.delete(began.id).id == began.id
            except anthropic.ConflictError:
                return False

        assert eventually(deleted, timeout_s=60)
        with pytest.raises(anthropic.NotFoundError):
            batches.retrieve(began.id)


def test_a_cancelled_batch_is_charged_what_it_has_answered(gateway: Gateway, simulator: str) -> None:
    began = create(gateway, request("a", simulate={"delay_s": 600}))
    assert gateway.post(f"{BATCHES}/{began.json['id']}/cancel", b"").json["processing_status"] == "ended"
    record = settled(gateway, began)
    assert (record["status"], record["prompt_tokens"], record["completion_tokens"]) == (499, 0, 0)


@pytest.mark.parametrize("padding", [0, 100_000])
def test_the_model_is_mapped_in_each_request(gateway: Gateway, simulator: str, padding: int) -> None:
    began = create(gateway, request("a", "mine", system="x" * padding), request("b", "mine"), who="bob")
    record = settled(gateway, began)
    assert (record["model"], record["routed_model"], record["returned_model"]) == ("mine", MODEL, MODEL)
    assert len(served(simulator, began.json["id"])) == 2


def test_each_request_counts_in_requests_per_time(gateway: Gateway) -> None:
    import anthropic

    with sdk(gateway, "paced") as client:
        batches = client.messages.batches
        began = batches.create(requests=[request("a", simulate={"delay_s": 60})])  # type: ignore[list-item]
        assert batches.list().data[0].id == began.id
        with pytest.raises(anthropic.ConflictError):
            batches.delete(began.id)
        assert batches.cancel(began.id).processing_status == "ended"
        for ask in (batches.retrieve, batches.cancel, batches.results, batches.delete):
            with pytest.raises(anthropic.RateLimitError) as refused:
                ask(began.id)
            assert refused.value.response.json()["error"]["type"] == "rate_limit_error"
            assert refused.value.response.headers["anthropic-ratelimit-requests-limit"] == "4"


@pytest.mark.parametrize(
    ("requests", "param"),
    [
        ([], "requests"),
        ([request("a"), request("a")], "requests.1.custom_id"),
        ([request("a b")], "requests.0.custom_id"),
        ([request("a") | {"more": 1}], "requests.0"),
        ([{"custom_id": "a", "params": []}], "requests.0.params"),
        ([request("a", max_tokens=None)], "requests.0.params"),
        ([request("a", stream=True)], "requests.0.params.stream"),
        ([request("a"), request("b", "mine")], "requests.1.params.model"),
        ([request("a", fallbacks=[{"model": "mine"}])], "requests.0.params"),
    ],
)
def test_a_faulty_request_is_refused_by_its_place(gateway: Gateway, requests: list[Any], param: str) -> None:
    refused = create(gateway, *requests)
    assert refused.status == 400
    assert refused.json["error"]["type"] == ERROR
    assert refused.json["error"]["message"].startswith(f"{param}:")


def test_what_a_key_may_not_do_it_may_not_do_in_a_batch(gateway: Gateway) -> None:
    assert create(gateway, request("a"), who="bob").status == 404
    assert create(gateway, request("a", "by-chat")).status == 404
    for members in ({"max_tokens": 51}, {"top_k": 5}, {"max_tokens": 51, "system": "x" * 100_000}):
        refused = create(gateway, request("a", "mine"), request("b", "mine", **members), who="bob")
        assert refused.status == 400
        assert refused.json["error"]["message"].startswith("requests.1.params:")
    assert create(gateway, *[request(str(at)) for at in range(3)], who="carol").status == 400
    assert gateway.post(BATCHES, json.dumps({"requests": 5}).encode()).status == 400
    assert gateway.post(BATCHES, b"no json").json["error"]["type"] == ERROR
    assert gateway.get(f"{BATCHES}/msgbatch_0").json["error"]["type"] == "not_found_error"
