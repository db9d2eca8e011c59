"""Background responses: their reservations outlive the connection, and are settled once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways, start_pair
from tests.fakes import responses_api as api
from tests.fakes.scripted import error_json, ok_json
from tests.flows import background as scene
from tests.flows.background import Background

from .house import Gateway, check, eventually, secret

REPORTED = {
    "usage_source": "reported", "prompt_tokens": 30, "completion_tokens": 12, "cached_tokens": 10,
    "reasoning_tokens": 5, "endpoint": "responses", "status": 200, "ended": "done", "stream": False,
    "returned_model": "gpt-4o-mini-2024", "routed_model": scene.MODEL, "upstream": "main", "attempts": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def houses(gateways: StartsGateways, theatre: Stage, store_url: str) -> list[Gateway]:
    return start_pair(gateways, scene.config(theatre.url, store_url), store_url)


@pytest.fixture
def upstream_work(upstream: Stage) -> Iterator[Background]:
    work = Background()
    upstream.play(always=work)
    yield work
    for made, response in work.responses.items():
        if response["status"] in ("queued", "in_progress"):
            work.end(made)


def test_it_is_reserved_until_it_ends_and_charged_once(houses: list[Gateway], upstream_work: Background) -> None:
    house = houses[0]
    used, _ = scene.held(house)
    began, made = scene.begin(house)
    assert scene.held(house)[1] > scene.OUTPUT_LIMIT
    for each in houses:
        assert each.get(f"/v1/responses/{made}").json["status"] == "queued"
        assert each.get(f"/v1/responses/{made}", key="bob").status == 404
    polled = upstream_work.polls
    eventually(lambda: upstream_work.polls > polled)
    assert scene.records(house, began) == []
    upstream_work.end(made)
    record = scene.settled(house, began)
    check(record, **REPORTED)
    assert record["cost_usd"] == pytest.approx((16 * 2 + 10 * 1 + 4 * 3 + 12 * 8) / 1e6)
    assert scene.held(house) == (used + 42, 0)
    (line,) = eventually(lambda: [line for each in set(houses) for line in each.lines() if line["id"] == began])
    assert (line["status"], line["prompt_tokens"]) == (200, 30)
    for each in houses:
        assert each.get(f"/v1/responses/{made}").json["status"] == "completed"
    later, _ = scene.begin(houses[1], previous_response_id=made)
    upstream_work.end(list(upstream_work.responses)[-1], usage=None)
    assert scene.settled(house, later)["prompt_tokens"] > 42  # the estimate has the context


def test_many_are_charged_once_each(houses: list[Gateway], upstream_work: Background) -> None:
    began = [scene.begin(houses[number % 2], "bob") for number in range(12)]
    for _, made in began:
        upstream_work.end(made)
    for request_id, _ in began:
        check(scene.settled(houses[1], request_id), **REPORTED, key="bob")
    assert len({row["id"] for row in houses[0].calls("bob")}) == len(houses[0].calls("bob"))


def test_a_client_that_leaves_at_once(houses: list[Gateway], upstream_work: Background) -> None:
    before = {row["id"] for row in houses[0].calls("bob")}
    upstream_work.answers_after_s = 0.5
    with houses[0].connect() as raw:
        body = json.dumps({"model": scene.MODEL, "input": "Hello", "background": True}).encode()
        raw.post("/v1/responses", body, secret("bob"))
        (made,) = eventually(lambda: list(upstream_work.responses))
    upstream_work.end(made)
    new = eventually(lambda: [row for row in houses[0].calls("bob") if row["id"] not in before])
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in new] == [(30, 12)]


def test_parallel_calls_are_counted_to_the_end(houses: list[Gateway], upstream_work: Background) -> None:
    began = [scene.begin(houses[0]) for _ in range(3)]
    asked = {"model": scene.MODEL, "input": "Hello", "background": True}
    assert houses[1].post("/v1/responses", asked).error["code"] == "rate_limit_exceeded"
    upstream_work.end(began[0][1])
    scene.settled(houses[0], began[0][0])
    assert houses[1].post("/v1/responses", asked).status == 200
    for made in list(upstream_work.responses):
        upstream_work.end(made)
    eventually(lambda: scene.held(houses[0])[1] == 0)


def test_one_that_is_cancelled_is_estimated(houses: list[Gateway], upstream_work: Background) -> None:
    began, made = scene.begin(houses[0])
    assert houses[1].post(f"/v1/responses/{made}/cancel", b"", key="bob").status == 404
    assert houses[1].post(f"/v1/responses/{made}/cancel", b"").json["status"] == "cancelled"
    record = scene.settled(houses[0], began)
    check(record, usage_source="estimated", status=499, ended="client_gone", completion_tokens=scene.OUTPUT_LIMIT)


def test_a_retried_one_is_cancelled_without_the_others(
    houses: list[Gateway], upstream: Stage, upstream_work: Background
) -> None:
    upstream.play(error_json(503, [("retry-after-ms", "100")]), always=upstream_work)
    began, made = scene.begin(houses[0])
    other, goes_on = scene.begin(houses[1])
    assert houses[1].post(f"/v1/responses/{made}/cancel", b"").json["status"] == "cancelled"
    failed = [{"upstream": "main", "fault": "status"}]
    record = scene.settled(houses[0], began)
    check(record, attempts=2, failed=failed, status=499, usage_source="estimated")
    first, second = record["timeline"]  # the second until the work had begun
    assert [(each["upstream"], each["fault"]) for each in (first, second)] == [("main", "status"), ("main", None)]
    assert first["began_s"] <= first["ended_s"] <= second["began_s"] <= second["ended_s"] <= record["duration_s"]
    assert scene.records(houses[0], other) == []
    assert scene.held(houses[0])[1] > scene.OUTPUT_LIMIT
    upstream_work.end(goes_on)
    check(scene.settled(houses[0], other), **REPORTED)
    assert [len(scene.records(houses[0], each)) for each in (began, other)] == [1, 1]
    assert scene.held(houses[0])[1] == 0


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (api.USAGE, {"prompt_tokens": 30, "completion_tokens": 12, "usage_source": "reported"}),
        (None, {"usage_source": "estimated"}),
    ],
)
def test_one_that_fails(houses: list[Gateway], upstream_work: Background, usage: Any, expected: dict[str, Any]) -> None:
    began, made = scene.begin(houses[0])
    upstream_work.end(made, "failed", usage, error={"code": "server_error", "message": "sorry"})
    check(scene.settled(houses[0], began), status=502, ended="error", **expected)


def test_one_that_is_incomplete(houses: list[Gateway], upstream_work: Background) -> None:
    began, made = scene.begin(houses[0])
    upstream_work.end(made, "incomplete", incomplete_details={"reason": "max_output_tokens"})
    check(scene.settled(houses[0], began), **REPORTED)


def test_one_that_has_ended_at_once_is_an_ordinary_call(houses: list[Gateway], upstream: Stage) -> None:
    upstream.play(ok_json(api.response(scene.OUTPUT, background=True)))
    asked = {"model": scene.MODEL, "input": "Hello", "background": True}
    told = houses[0].post("/v1/responses", asked, key="bob")
    check(scene.settled(houses[0], told.id), **REPORTED)
