"""The Grafana dashboard, without Prometheus: its shape, and that its queries use existing series.

Its queries are run against a real Prometheus in tests/flows/slow/test_prometheus.py.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from tests.fakes.redis_servers import ROOT

from .names import OF_PROMETHEUS, complaints, exported

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "gateway.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES: list[tuple[str, str]] = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
"""Title and expression."""
KNOWN = {**exported(), **OF_PROMETHEUS}


@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_panel_asks_for_what_there_is(title: str, expression: str) -> None:
    assert list(complaints(expression, KNOWN)) == []


def test_every_metric_is_on_the_dashboard() -> None:
    everything = " ".join(expression for _, expression in QUERIES)
    families = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in exported()}
    assert [name for name in families if name not in everything] == []


def test_dashboard_can_be_provisioned() -> None:
    assert DASHBOARD["uid"] == "completions-gateway"
    assert "id" not in DASHBOARD  # the id belongs to the database of its author
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    source = {"type": "prometheus", "uid": "${datasource}"}
    for part in (*PANELS, *[target for panel in PANELS for target in panel["targets"]], variables["key"]):
        assert part["datasource"] == source
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS)))
    assert used - {"__rate_interval", "__range"} == {"key", "model", "datasource"} == set(variables)


def test_panels_have_ids_titles_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_check_itself() -> None:
    known = {"gateway_a_total": {"key"}, "x:y:z": {"key"}}
    assert list(complaints('sum by (key) (rate(gateway_a_total{key=~"a|b{}"}[5m])) / x:y:z', known)) == []
    for wrong, says in {
        "rate(gateway_b_total[5m])": "nobody exports gateway_b_total",
        "x:y:other": "nobody exports x:y:other",
        'gateway_a_total{team="x"}': "has no label team",
        "sum by (team) (gateway_a_total)": "has a label team",
        "vector(1)": "no series at all",
    }.items():
        assert says in "".join(complaints(wrong, known))
