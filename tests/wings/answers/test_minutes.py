"""Sums and latency by minute, made of the newest calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gateway.records import Record, Usage
from gateway.store import ReportScope
from gateway.store.report_rows import call_row
from gateway.wings.answers import minutes
from gateway.wings.answers.minutes import MinuteQuery, Minutes, format_minutes_csv, read_groups, read_minute
from tests.flows.planted import record

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


def call(name: str, ago_s: float, key: str = "ci", **more: Any) -> Record:
    return record("2027-01-15", key, id=name, time=NOW - ago_s, duration_s=0.5, **more)


def read(found: Minutes, records: Sequence[Record], page: int = 500, pages: int = 40) -> None:
    """What the endpoint does with a store that holds these records, the newest last."""
    rows: list[Mapping[str, Any]] = [call_row(each, str(place)) for place, each in enumerate(records)]
    rows.reverse()
    is_more = True
    for number in range(pages):
        is_more = found.page(rows[number * page : (number + 1) * page], NOW)
        if not is_more:
            break
    found.join(NOW, is_cut=is_more)


def numbers(found: Minutes, *groups: str, **wanted: Any) -> list[tuple[Any, ...]]:
    return [
        (*[row[name] for name in groups], row["requests"], row["errors"])
        for row in found.rows(MinuteQuery(groups, **wanted))
    ]


CALLS = [
    call("old", 4 * 3600),
    call("a", 130, cost_nusd=5_000_000_000),
    call("b", 125, "bob", team="crew", status=502, ended="error", failed="main:timeout"),
    call("c", 30),
]


def test_calls_are_added_up_by_the_minute_in_which_they_began() -> None:
    found = Minutes()
    read(found, CALLS)
    assert numbers(found, "minute") == [("2027-01-15T07:57", 2, 1), ("2027-01-15T07:59", 1, 0)]
    assert numbers(found, "minute", "key", since="2027-01-15T07:58") == [("2027-01-15T07:59", "ci", 1, 0)]
    assert numbers(found, "key", until="2027-01-15T07:58") == [("bob", 1, 1), ("ci", 1, 0)]
    assert numbers(found, "key", only=ReportScope(teams=frozenset({"crew"}))) == [("bob", 1, 1)]
    assert numbers(found, where=(("key", "ci"), ("model", "m"))) == [(2, 0)]
    (whole,) = found.rows(MinuteQuery(()))
    assert (whole["cost_usd"], whole["unpriced"], whole["prompt_tokens"]) == (5.0, 2, 30)
    assert (whole["duration_count"], whole["failed_attempts"]) == (2, 1)
    assert whole["duration_p95_s"] == pytest.approx(0.5, rel=0.2)
    assert found.whole_from == NOW - 3 * 3600


def test_only_what_ended_since_the_last_reading_is_read_again() -> None:
    found = Minutes()
    read(found, CALLS[:2])
    read(found, CALLS, page=2, pages=2)
    assert sum(row[1] for row in numbers(found, "minute")) == 3
    read(found, CALLS, page=1, pages=1)
    assert sum(row[1] for row in numbers(found, "minute")) == 3


@pytest.mark.parametrize("more", range(4))
def test_a_reading_that_is_cut_says_from_when_on_nothing_is_missing(more: int) -> None:
    found = Minutes()
    many = [call(f"r{number}", 1000 - number) for number in range(10)]
    read(found, many[:more])
    read(found, many, page=2, pages=2)
    assert numbers(found) == [(4, 0)]
    assert found.whole_from == many[6].time + 0.5


def test_a_busy_gateway_keeps_the_newest_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minutes, "CALLS_KEPT", 3)
    found = Minutes()
    many = [call(f"r{number}", 1000 - number) for number in range(5)]
    read(found, many)
    assert numbers(found) == [(3, 0)]
    assert found.whole_from == many[1].time + 0.5


def test_a_failed_attempt_counts_at_its_upstream() -> None:
    found = Minutes()
    read(found, [call("a", 60, upstream="second", failed="first:timeout", usage=Usage(1, 1))])
    rows = {
        row["upstream"]: (row["requests"], row["failed_attempts"]) for row in found.rows(MinuteQuery(("upstream",)))
    }
    assert rows == {"first": (0, 1), "second": (1, 0)}
    text = format_minutes_csv(["upstream"], found.rows(MinuteQuery(("upstream",))))
    assert text.startswith("upstream,requests,errors,")
    assert text.count("\r\n") == 3


def test_what_cannot_be_read_is_named() -> None:
    assert read_groups("minute, key,minute") == ["minute", "key"]
    assert read_minute("2026-11-20T14:05") == "2026-11-20T14:05"
    with pytest.raises(ValueError, match="'day' is not one of minute, key"):
        read_groups("minute,day")
    for text in ("2026-11-20", "2026-11-20T14", "now", "2026-11-20T14:05:00"):
        with pytest.raises(ValueError, match="expected a minute such as"):
            read_minute(text)
