"""Cohere's official SDK, as people have it, on both versions of its rerank through a gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import Wire, error_json, ok_json
from tests.flows.gateway_process import Gateway, key, secret, settings

PACKAGE = ROOT / ".venv" / "servers" / "cohere"
SCRIPT = Path(__file__).parent.parent / "cohere_client.py"
MODEL = "rerank-v3.5"
ASKED: dict[str, Any] = {"model": MODEL, "query": "capital", "documents": ["Oslo", "rain", "Bergen"], "top_n": 2}
WITHIN_S = 90.0
"""For the calls of one process, which imports for seconds."""
pytestmark = pytest.mark.timeout(150)


async def reranked(wire: Wire) -> None:
    """As Cohere answers (its API reference, v2/rerank)."""
    results = [{"index": 0, "relevance_score": 0.9}, {"index": 2, "relevance_score": 0.4}]
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    await ok_json({"id": "r-1", "results": results, "meta": meta})(wire)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    price = {"search_units_per_1000": 2}
    model = {"endpoints": ["rerank"], "routes": [{"upstream": "main", "model": "theirs"}], "price": price}
    keys = [key("alice", quotas=[{"usd": 10, "per": "month"}]), key("spent", quotas=[{"requests": 1, "per": "month"}])]
    return start_shared_gateway(settings(shared_upstream.url, models={MODEL: model}, keys=keys))


def ask(gateway: Gateway, *tasks: tuple[int, str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One process that makes these calls: each of a version, by a key."""
    assert (PACKAGE / "cohere").exists(), f"{PACKAGE} has no cohere, and this test needs it: run `make servers`."
    asked = [
        {"url": gateway.url, "key": secret(who) if who else "wrong", "version": version, "asked": {**ASKED, **changes}}
        for version, who, changes in tasks
    ]
    done = subprocess.run(
        [sys.executable, SCRIPT], input=json.dumps(asked), capture_output=True, text=True, timeout=WITHIN_S,
        check=False, env={**os.environ, "PYTHONPATH": str(PACKAGE), "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def test_both_versions(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=reranked)
    before = len(gateway.calls("alice"))
    received = ask(gateway, (2, "alice", {}), (1, "alice", {"return_documents": False}))
    assert received == [{"results": [[0, 0.9], [2, 0.4]], "search_units": 1}] * 2
    assert [each.json["model"] for each in upstream.requests] == ["theirs", "theirs"]
    records = gateway.calls("alice")[: len(gateway.calls("alice")) - before]
    assert [(each["endpoint"], each["units"], each["cost_usd"]) for each in records] == [
        ("rerank", {"search_units": 1}, 0.002)
    ] * 2


def test_refusals(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """By the SDK's own classes; what cannot succeed reaches no upstream."""
    upstream.answer_with(always=reranked)
    received = ask(
        gateway, (2, "", {}), (2, "alice", {"model": "unknown"}), (2, "alice", {"documents": []}),
        (1, "alice", {"top_n": 0}), (2, "spent", {}), (2, "spent", {}),
    )  # fmt: skip
    assert [each.get("error") for each in received] == [
        "UnauthorizedError", "NotFoundError", "BadRequestError", "BadRequestError", None, "TooManyRequestsError",
    ]  # fmt: skip
    assert len(upstream.requests) == 1


def test_an_upstream_that_fails_at_first(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(error_json(503), always=reranked)
    (received,) = ask(gateway, (2, "alice", {}))
    assert received["search_units"] == 1
    assert len(upstream.requests) == 2
