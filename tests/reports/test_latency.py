"""Percentiles from histograms, and the rows of the report."""

from __future__ import annotations

import random

import pytest

from gateway.quota.measures import DURATION, FAILED, FIRST_TOKEN, SPEED, measures_of, percentile
from gateway.records import Usage
from gateway.reports.latency import COLUMNS, format_latency_csv, latency_rows, read_measure_groups
from tests.store.changes import record


def counters(values: list[float]) -> dict[int, int]:
    """Durations, as they are counted."""
    found: dict[int, int] = {}
    for value in values:
        for _, counter in measures_of(record(duration_s=value)):
            found[counter] = found.get(counter, 0) + 1
    return found


@pytest.mark.parametrize("percent", [5, 50, 95, 99])
def test_percentile_is_off_by_less_than_the_width_of_a_bucket(percent: float) -> None:
    chance = random.Random(7)
    values = sorted(chance.lognormvariate(0.5, 1.1) for _ in range(5000))
    truth = values[int(len(values) * percent / 100)]
    found = percentile(counters(values), DURATION, percent)
    assert found is not None
    assert abs(found - truth) / truth < 0.19


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0, 0.001), (0.0004, 0, 0.001), (0.001, 0.001, 0.0012)])
def test_short_durations(value: float, low: float, high: float) -> None:
    found = percentile(counters([value]), DURATION, 99)
    assert found is not None
    assert low <= found <= high


def test_long_durations_are_in_the_last_bucket() -> None:
    assert percentile(counters([5000.0]), DURATION, 100) == pytest.approx(1050, rel=0.01)


def test_nothing_was_measured() -> None:
    assert percentile({}, SPEED, 50) is None
    assert percentile({FAILED: 3}, FIRST_TOKEN, 50) is None


def test_speed_of_a_stream_is_that_behind_its_first_byte() -> None:
    found = record(stream=True, first_byte_s=9.0, duration_s=10.0, usage=Usage(1, 50, source="reported"))
    speed = percentile(dict.fromkeys([counter for _, counter in measures_of(found)], 1), SPEED, 50)
    assert speed == pytest.approx(50, rel=0.19)


def test_rows_have_what_either_report_has() -> None:
    usage = [{"upstream": "a", "requests": 4, "errors": 1}, {"upstream": "b", "requests": 2, "errors": 0}]
    rows = latency_rows(["upstream"], usage, {("a",): counters([1.0]), ("c",): {FAILED: 5}})
    assert [(row["upstream"], row["requests"], row["errors"], row["failed_attempts"]) for row in rows] == [
        ("a", 4, 1, 0), ("b", 2, 0, 0), ("c", 0, 0, 5),
    ]  # fmt: skip
    assert [row["duration_count"] for row in rows] == [1, 0, 0]
    assert rows[1]["duration_p50_s"] is None
    lines = format_latency_csv(["upstream"], rows).splitlines()
    assert lines[0] == ",".join(("upstream", *COLUMNS))
    assert lines[2] == "b,2,0,0,0,0,0" + "," * 10


def test_groups() -> None:
    assert read_measure_groups("model, hour,model") == ["model", "hour"]
    with pytest.raises(ValueError, match="'key' is not one of model, upstream, day, month, hour"):
        read_measure_groups("key")
