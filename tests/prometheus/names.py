"""The metrics and labels that the gateway exports, and those that a PromQL expression uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric

from gateway.observe.exposition import Reloads, SupervisorMetrics
from gateway.observe.metrics import KeyCollector, QuotaRow, Telemetry

OF_PROMETHEUS = {"up": {"job", "instance"}}
EVERYWHERE = {"job", "instance"}
"""Labels that a scrape adds."""


def exported() -> dict[str, set[str]]:
    """Labels by the name of a series in queries."""
    made = Telemetry(["k"], 1)
    wings = [made._of_wings, made._gauges_of_wings, made._histograms_of_wings]
    every = [*vars(made).values(), *[each for some in wings for each in some.values()]]
    metrics = [each for each in every if hasattr(each, "_labelnames")]
    labels = {metric._name: set(metric._labelnames) for metric in metrics}
    registry = CollectorRegistry()
    registry.register(KeyCollector([QuotaRow(name, "usd", "day", 1, 2) for name in ("k", "team:t")], {"k": None}))
    registry.register(SupervisorMetrics(Reloads(1, {"applied": 0})))
    for family in registry.collect():
        labels[family.name] = {name for sample in family.samples for name in sample.labels}
    kinds = {family.name: family for registry in (made.registry, registry) for family in registry.collect()}
    return {name: found | EVERYWHERE for base, of in labels.items() for name, found in _series(kinds[base], of)}


def _series(family: Metric, labels: set[str]) -> Iterator[tuple[str, set[str]]]:
    match family.type:
        case "counter":
            yield f"{family.name}_total", labels
        case "histogram":
            yield f"{family.name}_bucket", labels | {"le"}
            yield f"{family.name}_sum", labels
            yield f"{family.name}_count", labels
        case _:
            yield family.name, labels


def complaints(expression: str, known: Mapping[str, set[str]]) -> Iterator[str]:
    """Names of series and labels in an expression that the gateway does not export.

    A label after `by` or `on` must belong to any series of the expression.
    """
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    series = set(re.findall(r"(?<![\w:])(?:gateway|up)(?:_\w+)?(?![\w:(])|\w+(?::\w+)+", text))
    if not series:
        yield f"no series at all in {expression}"
    for name in sorted(series - set(known)):
        yield f"nobody exports {name}"
    for name, matchers in re.findall(r"([\w:]+)\{([^}]*)\}", text):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            if name in known and label not in known[name]:
                yield f"{name} has no label {label}"
    offered = set().union(*[known[name] for name in series & set(known)])
    for listed in re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)", text):
        for label in filter(None, map(str.strip, listed.split(","))):
            if label not in offered:
                yield f"no series of {expression} has a label {label}"
