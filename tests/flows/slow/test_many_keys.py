"""Reports over thousands of keys."""

from __future__ import annotations

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import EMBEDDINGS, key, model, settings
from tests.flows.test_reports import quotas


def test_limits_of_very_many_keys(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    keys = [key(f"k{number}", quotas=[{"requests": 5, "per": "day"}], max_parallel=2) for number in range(3000)]
    gateway = start_gateway(settings(upstream.url, keys=keys, models={EMBEDDINGS: model("embeddings")}))
    rows = quotas(gateway)
    assert len(rows) == 6000
    assert {row["used"] for row in rows} == {0}
    assert len({(row["key"], row["unit"]) for row in rows}) == 6000
