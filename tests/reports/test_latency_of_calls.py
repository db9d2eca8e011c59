"""Percentiles of the calls of a key, a team or a person."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.quota.measures import DURATION, FAILED, FIRST_TOKEN, count_of, percentile
from gateway.records import Usage
from gateway.reports.latency import bounds, measures_of_calls
from gateway.store.report_rows import call_row
from tests.flows.planted import record

DAY = "2026-11-20"


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_calls_are_measured_as_the_store_measures_them() -> None:
    usage = Usage(10, 100, source="reported")
    good = [
        record(DAY, "a", stream=True, first_byte_s=0.5, duration_s=2.5, usage=usage, failed="spare:timeout")
        for _ in range(4)
    ]
    rows = [call_row(each, "") for each in (*good, record(DAY, "a", status=502, ended="error"))]
    found = measures_of_calls(["upstream", "day"], rows)
    (of_main,) = [counters for (upstream, day), counters in found.items() if upstream != "spare" and day == DAY]
    assert count_of(of_main, FIRST_TOKEN) == count_of(of_main, DURATION) == 4
    assert percentile(of_main, FIRST_TOKEN, 50) == pytest.approx(0.5, rel=0.19)
    assert found["spare", DAY] == {FAILED: 4}
    assert set(measures_of_calls([], rows)) == {()}


@pytest.mark.parametrize(
    ("since", "until", "begins", "ends"),
    [
        (DAY, DAY, "2026-11-20T00:00", "2026-11-21T00:00"),
        (f"{DAY}T14", f"{DAY}T15", "2026-11-20T14:00", "2026-11-20T16:00"),
        (f"{DAY}T14", "2026-11-21", "2026-11-20T14:00", "2026-11-22T00:00"),
    ],
)
def test_a_range_has_its_last_day_or_hour(since: str, until: str, begins: str, ends: str) -> None:
    first, last = bounds(since, until)
    assert first == moment(begins)
    assert last is not None
    assert moment(ends) - 1 < last < moment(ends)
    assert bounds(None, None) == (None, None)


def test_the_last_day_of_all_is_one_too() -> None:
    assert [bounds(None, last)[1] for last in ("9999-12-31", "9999-12-31T23")] == [253_402_300_799.999] * 2
