"""Metrics of a gateway with many keys: whose labels they bear, whichever worker is asked."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json

from .gateway_process import ADMIN_TOKEN, COMPLETIONS, EMBEDDINGS, Gateway, eventually, key, model, settings

QUOTAS = [{"requests": 100, "per": "day"}, {"tokens": 5000, "per": "minute"}]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """Two workers, 200 keys of the file, and room for six labels."""
    keys = [key(f"file-{number}", quotas=QUOTAS) for number in range(200)]
    models: dict[str, Any] = {"*": {"routes": [{"upstream": "main"}], "max_output_tokens": 16}}
    models[EMBEDDINGS] = model("embeddings")
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            server={"workers": 2},
            keys=keys,
            models=models,
            metrics={"max_keys": 6, "max_models": 5},
        )
    )


def at_once(calls: int, what: Any) -> list[Any]:
    """So many calls of several clients, each on a connection of its own, so that all workers get some."""
    with ThreadPoolExecutor(8) as clients:
        return list(clients.map(what, range(calls)))


def test_however_many_keys_and_names_there_are_the_metrics_are_few(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=ok_json())
    at_once(60, lambda number: gateway.complete(f"file-{number}", model=f"made-up-{number}"))
    samples = [(name, dict(labels), value) for name, labels, value in gateway.metrics()]
    mine = {f"file-{number}" for number in range(6)}
    assert {labels["key"] for _, labels, _ in samples if "key" in labels} == mine | {"other"}
    models = {labels["model"] for name, labels, _ in samples if name == "gateway_requests_total"}
    assert models - {"other"} < {f"made-up-{number}" for number in range(60)}
    assert len(models) == 3  # three labels are for the configured names
    assert len(samples) < 400
    assert gateway.metric("gateway_requests_total", status="200") == 60
    assert gateway.metric("gateway_requests_total", key="other") == 54
    limits = {labels["key"] for name, labels, _ in samples if name == "gateway_quota_limit"}
    assert limits == mine
    for name in mine:
        assert gateway.metric("gateway_quota_used", key=name, unit="requests", per="day") == 1


def test_keys_made_at_run_time_have_labels_that_all_workers_agree_on(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=ok_json())
    gateway = start_gateway(settings(upstream.url, server={"workers": 2}, keys=[key("alice")], metrics={"max_keys": 3}))
    admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    gateway.send("POST", "/admin/api/teams", {"name": "crew"}, key=None, headers=admin)
    made: dict[str, str] = {}
    for number in range(6):
        wish = {"id": f"made-{number}", "team": "crew", "quotas": [{"requests": 500, "per": "day"}]}
        made[f"made-{number}"] = gateway.send("POST", "/admin/api/keys", wish, key=None, headers=admin).json["secret"]

    def ask(method: str, path: str, name: str, body: Any = None) -> int:
        return gateway.send(method, path, body, key=None, headers={"Authorization": f"Bearer {made[name]}"}).status

    for name in made:  # as soon as all workers have heard of the team
        eventually(lambda name=name: {ask("GET", "/v1/key", name) for _ in range(8)} == {200})
    names = list(made) * 10
    body = {"model": COMPLETIONS, "prompt": "Hello"}
    assert set(at_once(60, lambda number: ask("POST", "/v1/completions", names[number], body))) == {200}
    rows = [(labels["key"], int(n)) for name, labels, n in gateway.metrics() if name == "gateway_requests_total"]
    counted: Counter[str] = Counter()
    for label, calls in rows:
        counted[label] += calls
    labelled = sorted(counted.keys() - {"other"})
    assert len(labelled) == 2  # the third label is that of the file's key
    assert counted == {labelled[0]: 10, labelled[1]: 10, "other": 40}
    for _ in range(8):  # of whichever worker
        for name in labelled:
            assert gateway.metric("gateway_quota_limit", key=name, unit="requests", per="day") == 500
            assert gateway.metric("gateway_key_info", key=name, team="crew") == 1
        assert gateway.metric("gateway_key_info", team="crew") == 2
    eventually(lambda: gateway.metric("gateway_quota_used", key=labelled[0], unit="requests", per="day") == 10)


def test_live_numbers_are_those_of_the_metrics_whichever_worker_is_asked(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=ok_json())
    at_once(16, lambda number: gateway.complete(f"file-{number}"))

    def is_the_same() -> bool:
        live = gateway.admin("live").json
        counted = [int(n) for name, _, n in gateway.metrics() if name == "gateway_requests_total"]
        prompt = [n for name, of, n in gateway.metrics() if name == "gateway_tokens_total" and of["type"] == "prompt"]
        return bool(live["requests"] == sum(counted) >= 16 and live["tokens"]["prompt"] == sum(prompt) > 0)

    for _ in range(2):
        eventually(is_the_same)
