"""Reports over thousands of keys."""

from __future__ import annotations

from tests.conftest import Stage, StartsGateways
from tests.flows.house import EMBEDDINGS, key, model, settings
from tests.flows.test_reports import quotas


def test_limits_of_very_many_keys(gateway: StartsGateways, upstream: Stage) -> None:
    keys = [key(f"k{number}", quotas=[{"requests": 5, "per": "day"}], max_parallel=2) for number in range(3000)]
    house = gateway(settings(upstream.url, keys=keys, models={EMBEDDINGS: model("embeddings")}))
    rows = quotas(house)
    assert len(rows) == 6000
    assert {row["used"] for row in rows} == {0}
    assert len({(row["key"], row["unit"]) for row in rows}) == 6000
