"""Background responses: their reservations outlive the connection, and are settled once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways, start_pair
from tests.fakes import responses_api as api
from tests.fakes.scripted import error_json, ok_json
from tests.flows import background as scenario
from tests.flows.background import Background

from .gateway_process import Gateway, check, eventually, secret

REPORTED = {
    "usage_source": "reported", "prompt_tokens": 30, "completion_tokens": 12, "cached_tokens": 10,
    "reasoning_tokens": 5, "endpoint": "responses", "status": 200, "ended": "done", "stream": False,
    "returned_model": "gpt-4o-mini-2024", "routed_model": scenario.MODEL, "upstream": "main", "attempts": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def gateways(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> list[Gateway]:
    return start_pair(start_shared_gateway, scenario.config(shared_upstream.url, store_url), store_url)


@pytest.fixture
def upstream_work(upstream: ScriptedUpstream) -> Iterator[Background]:
    work = Background()
    upstream.answer_with(always=work)
    yield work
    for made, response in work.responses.items():
        if response["status"] in ("queued", "in_progress"):
            work.end(made)


def test_it_is_reserved_until_it_ends_and_charged_once(gateways: list[Gateway], upstream_work: Background) -> None:
    gateway = gateways[0]
    used, _ = scenario.held(gateway)
    began, made = scenario.begin(gateway)
    assert scenario.held(gateway)[1] > scenario.OUTPUT_LIMIT
    for each in gateways:
        assert each.get(f"/v1/responses/{made}").json["status"] == "queued"
        assert each.get(f"/v1/responses/{made}", key="bob").status == 404
    polled = upstream_work.polls
    eventually(lambda: upstream_work.polls > polled)
    assert scenario.records(gateway, began) == []
    upstream_work.end(made)
    record = scenario.settled(gateway, began)
    check(record, **REPORTED)
    assert record["cost_usd"] == pytest.approx((16 * 2 + 10 * 1 + 4 * 3 + 12 * 8) / 1e6)
    assert scenario.held(gateway) == (used + 42, 0)
    (line,) = eventually(lambda: [line for each in set(gateways) for line in each.lines() if line["id"] == began])
    assert (line["status"], line["prompt_tokens"]) == (200, 30)
    for each in gateways:
        assert each.get(f"/v1/responses/{made}").json["status"] == "completed"
    later, _ = scenario.begin(gateways[1], previous_response_id=made)
    upstream_work.end(list(upstream_work.responses)[-1], usage=None)
    assert scenario.settled(gateway, later)["prompt_tokens"] > 42  # the estimate has the context


def test_many_are_charged_once_each(gateways: list[Gateway], upstream_work: Background) -> None:
    began = [scenario.begin(gateways[number % 2], "bob") for number in range(12)]
    for _, made in began:
        upstream_work.end(made)
    for request_id, _ in began:
        check(scenario.settled(gateways[1], request_id), **REPORTED, key="bob")
    assert len({row["id"] for row in gateways[0].calls("bob")}) == len(gateways[0].calls("bob"))


def test_a_client_that_leaves_at_once(gateways: list[Gateway], upstream_work: Background) -> None:
    before = {row["id"] for row in gateways[0].calls("bob")}
    upstream_work.answers_after_s = 0.5
    with gateways[0].connect() as raw:
        body = json.dumps({"model": scenario.MODEL, "input": "Hello", "background": True}).encode()
        raw.post("/v1/responses", body, secret("bob"))
        (made,) = eventually(lambda: list(upstream_work.responses))
    upstream_work.end(made)
    new = eventually(lambda: [row for row in gateways[0].calls("bob") if row["id"] not in before])
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in new] == [(30, 12)]


def test_parallel_calls_are_counted_to_the_end(gateways: list[Gateway], upstream_work: Background) -> None:
    began = [scenario.begin(gateways[0]) for _ in range(3)]
    asked = {"model": scenario.MODEL, "input": "Hello", "background": True}
    assert gateways[1].post("/v1/responses", asked).error["code"] == "rate_limit_exceeded"
    upstream_work.end(began[0][1])
    scenario.settled(gateways[0], began[0][0])
    assert gateways[1].post("/v1/responses", asked).status == 200
    for made in list(upstream_work.responses):
        upstream_work.end(made)
    eventually(lambda: scenario.held(gateways[0])[1] == 0)


def test_one_that_is_cancelled_is_estimated(gateways: list[Gateway], upstream_work: Background) -> None:
    began, made = scenario.begin(gateways[0])
    assert gateways[1].post(f"/v1/responses/{made}/cancel", b"", key="bob").status == 404
    assert gateways[1].post(f"/v1/responses/{made}/cancel", b"").json["status"] == "cancelled"
    record = scenario.settled(gateways[0], began)
    check(record, usage_source="estimated", status=499, ended="client_gone", completion_tokens=scenario.OUTPUT_LIMIT)


def test_a_retried_one_is_cancelled_without_the_others(
    gateways: list[Gateway], upstream: ScriptedUpstream, upstream_work: Background
) -> None:
    upstream.answer_with(error_json(503, [("retry-after-ms", "100")]), always=upstream_work)
    began, made = scenario.begin(gateways[0])
    other, goes_on = scenario.begin(gateways[1])
    assert gateways[1].post(f"/v1/responses/{made}/cancel", b"").json["status"] == "cancelled"
    failed = [{"upstream": "main", "fault": "status"}]
    record = scenario.settled(gateways[0], began)
    check(record, attempts=2, failed=failed, status=499, usage_source="estimated")
    first, second = record["timeline"]  # the second until the work had begun
    assert [(each["upstream"], each["fault"]) for each in (first, second)] == [("main", "status"), ("main", None)]
    assert first["began_s"] <= first["ended_s"] <= second["began_s"] <= second["ended_s"] <= record["duration_s"]
    assert scenario.records(gateways[0], other) == []
    assert scenario.held(gateways[0])[1] > scenario.OUTPUT_LIMIT
    upstream_work.end(goes_on)
    check(scenario.settled(gateways[0], other), **REPORTED)
    assert [len(scenario.records(gateways[0], each)) for each in (began, other)] == [1, 1]
    assert scenario.held(gateways[0])[1] == 0


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (api.USAGE, {"prompt_tokens": 30, "completion_tokens": 12, "usage_source": "reported"}),
        (None, {"usage_source": "estimated"}),
    ],
)
def test_one_that_fails(
    gateways: list[Gateway], upstream_work: Background, usage: Any, expected: dict[str, Any]
) -> None:
    began, made = scenario.begin(gateways[0])
    upstream_work.end(made, "failed", usage, error={"code": "server_error", "message": "sorry"})
    check(scenario.settled(gateways[0], began), status=502, ended="error", **expected)


def test_one_that_is_incomplete(gateways: list[Gateway], upstream_work: Background) -> None:
    began, made = scenario.begin(gateways[0])
    upstream_work.end(made, "incomplete", incomplete_details={"reason": "max_output_tokens"})
    check(scenario.settled(gateways[0], began), **REPORTED)


def test_one_that_has_ended_at_once_is_an_ordinary_call(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(api.response(scenario.OUTPUT, background=True)))
    asked = {"model": scenario.MODEL, "input": "Hello", "background": True}
    received = gateways[0].post("/v1/responses", asked, key="bob")
    check(scenario.settled(gateways[0], received.id), **REPORTED)
