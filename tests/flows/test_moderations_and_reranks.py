"""Moderations and reranks through a whole gateway: checked, forwarded as they are, charged exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json

from .gateway_process import Gateway, settings

ROUTES = [{"upstream": "main"}]
MODELS: dict[str, Any] = {
    "omni-moderation-latest": {"endpoints": ["moderations"], "price": {"input": 0}},
    "rerank-v3.5": {"endpoints": ["rerank"], "price": {"search_units_per_1000": 2}},
    "jina-reranker": {"endpoints": ["rerank"], "price": {"input": 0.02}},
}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    models = {name: {"routes": ROUTES, **rest} for name, rest in MODELS.items()}
    return start_shared_gateway(settings(shared_upstream.url, models=models))


def charged(gateway: Gateway, got: Any) -> tuple[int, int, dict[str, int], str, float | None]:
    row = gateway.call(got.headers["x-request-id"])
    return row["prompt_tokens"], row["completion_tokens"], row["units"], row["usage_source"], row["cost_usd"]


MODERATED = {"id": "modr-1", "model": "omni", "results": [{"flagged": False}]}
RANKED = {"results": [{"index": 1, "relevance_score": 0.9}]}
RERANK = {"query": "which?", "documents": ["a"] * 250}


@pytest.mark.parametrize(
    ("path", "upstream_path", "body", "said", "expected"),
    [
        ("/v1/moderations", "/moderations", {"input": "be nice"}, MODERATED, (0, 0, {}, "reported", 0)),
        ("/v1/moderations", "/moderations",
         {"model": "omni-moderation-latest", "input": [{"type": "text", "text": "x"}]},
         MODERATED, (0, 0, {}, "reported", 0)),
        ("/v2/rerank", "/rerank", {"model": "rerank-v3.5", **RERANK},
         RANKED | {"meta": {"billed_units": {"search_units": 3}}}, (0, 0, {"search_units": 3}, "reported", 0.006)),
        ("/v1/rerank", "/rerank", {"model": "jina-reranker", **RERANK}, RANKED | {"usage": {"total_tokens": 5000}},
         (5000, 0, {}, "reported", 0.0001)),
        ("/rerank", "/rerank", {"model": "jina-reranker", **RERANK}, RANKED, (563, 0, {}, "estimated", 563 * 2e-8)),
    ],
)  # fmt: skip
def test_is_forwarded_as_it_is_and_charged(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, upstream_path: str, body: Any, said: Any, expected: Any
) -> None:
    upstream.answer_with(ok_json(said))
    given = json.dumps(body, indent=1)
    got = gateway.post(path, given.encode())
    assert (got.status, got.json) == (200, said)
    assert upstream.requests[0].path == f"/v1{upstream_path}"
    assert upstream.requests[0].body.decode() == given
    found = charged(gateway, got)
    assert found[:4] == expected[:4]
    assert found[4] == pytest.approx(expected[4])


def test_large_bodies_are_forwarded_as_they_are_and_charged(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    documents = [f"{number}: " + "wörd " * 40 for number in range(1000)]
    ranked = RANKED | {"meta": {"billed_units": {"search_units": 10}}}
    upstream.answer_with(ok_json(ranked), ok_json(RANKED), ok_json(MODERATED))
    for model, expected in (("rerank-v3.5", {"search_units": 10}), ("jina-reranker", {})):
        given = json.dumps({"model": model, "query": "which?", "documents": documents}, ensure_ascii=False).encode()
        got = gateway.post("/v1/rerank", given)
        assert got.status == 200
        assert upstream.requests[-1].body == given
        assert charged(gateway, got)[2] == expected
    assert charged(gateway, got)[0] > 50_000
    got = gateway.post("/v1/moderations", {"input": documents})
    assert charged(gateway, got) == (0, 0, {}, "reported", 0)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/moderations", {}, "input"),
        ("/v1/moderations", {"input": []}, "input"),
        ("/v1/moderations", {"input": 5}, "input"),
        ("/v1/rerank", {"model": "rerank-v3.5", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"model": "rerank-v3.5", "query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"model": "rerank-v3.5", "query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
    ],
)
def test_ranges_are_checked_before_money_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, body: Any, param: str
) -> None:
    got = gateway.post(path, body)
    assert (got.status, got.error["param"]) == (400, param)
    assert upstream.requests == []
