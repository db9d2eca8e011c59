"""The formats of a usage report: table, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.reports.usage import (
    LabelReport,
    format_csv,
    format_json,
    format_table,
    notes,
    read_day,
    read_groups,
    read_period,
    stored_groups,
)
from gateway.store import USAGE_COLUMNS, USAGE_GROUPS
from gateway.store.report_rows import percent

NOW = datetime(2026, 11, 23, 10, tzinfo=UTC)


def row(key: str = "alice", **more: Any) -> dict[str, Any]:
    """A row of the store's report."""
    return {"key": key, **dict.fromkeys(USAGE_COLUMNS, 0), "cost_usd": None} | more


ALICE = row(
    requests=1204, errors=3, prompt_tokens=1_000_000, completion_tokens=50_000, cached_tokens=7, reasoning_tokens=8,
    estimated_tokens=210_000, estimated_percent=20.0, total_tokens=1_050_000, cost_usd=1.5,
)  # fmt: skip
BOB = row("bob", requests=2, prompt_tokens=10, completion_tokens=1, total_tokens=11, unpriced=2)


TABLE = """
key    requests  errors     prompt  completion  cached  reasoning  estimated      %  total tokens  cost USD  unpriced
-----  --------  ------  ---------  ----------  ------  ---------  ---------  -----  ------------  --------  --------
alice     1,204       3  1,000,000      50,000       7          8    210,000  20.00     1,050,000      1.50         0
bob           2       0         10           1       0          0          0   0.00            11         -         2
-----  --------  ------  ---------  ----------  ------  ---------  ---------  -----  ------------  --------  --------
total     1,206       3  1,000,010      50,001       7          8    210,000  20.00     1,050,011      1.50         2
"""


# ----------------------------------------------------------------------------------------------------------- questions


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("key", ["key"]),
        ("key,team,model,upstream,endpoint,day,month,hour", list(USAGE_GROUPS)),
        ("day, key", ["day", "key"]),
        ("key,key,day,key", ["key", "day"]),
        ("", []),
        (",", []),
    ],
)
def test_groups_stand_as_they_were_asked_for(text: str, groups: list[str]) -> None:
    assert read_groups(text) == groups


@pytest.mark.parametrize("text", ["user,hour", "tag:a,upstream", "user,tag:a", "tag:a,tag:b"])
def test_a_report_by_user_or_tag_has_no_other_groups(text: str) -> None:
    with pytest.raises(ValueError, match="a report is grouped by key, team, model, day, month only"):
        read_groups(text)


@pytest.mark.parametrize(
    "text", ["colour", "key,colour", "Key", "secret", "key;day", "tag:", "label:", "label:a,label:b", "person,label:a"]
)
def test_an_unknown_group(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"not one of key, team, model, upstream, endpoint, day, month, hour, user, tag:NAME, label:NAME, person$",
    ):
        read_groups(text)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-1-1", "20261120", "2026-11-31", "2026-11", "2026-W47-5"])
def test_day_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a day such as 2026-11-20"):
        read_day(text, NOW)


def test_day() -> None:
    assert read_day("2024-02-29", NOW) == "2024-02-29"


@pytest.mark.parametrize(
    ("text", "day"), [("7d", "2026-11-16"), ("24h", "2026-11-22"), ("9h", "2026-11-23"), ("11h", "2026-11-22")]
)
def test_a_duration_is_the_day_of_that_moment(text: str, day: str) -> None:
    assert read_day(text, NOW) == day


def test_period() -> None:
    assert read_period("2024-02-29", NOW) == "2024-02-29"
    assert read_period("2024-02-29T23", NOW) == "2024-02-29T23"
    assert read_period("2d", NOW) == "2026-11-21"
    assert read_period("24h", NOW) == "2026-11-22T10"
    assert read_period("1h30m", NOW) == "2026-11-23T08"


@pytest.mark.parametrize("text", ["", "2026-11-20T24", "2026-11-31T10", "2026-11-20T1", "2026-11-20T10:00", "T10"])
def test_period_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="or an hour such as 2026-11-20T14"):
        read_period(text, NOW)


# -------------------------------------------------------------------------------------------------------------- tables


def test_table_is_aligned_and_adds_up() -> None:
    assert format_table(["key"], [ALICE, BOB]) == TABLE.strip("\n")


def test_table_of_everything_has_one_row() -> None:
    lines = format_table([], [ALICE]).splitlines()
    assert len(lines) == 3
    assert lines[2].split() == [
        "1,204", "3", "1,000,000", "50,000", "7", "8", "210,000", "20.00", "1,050,000", "1.50", "0",
    ]  # fmt: skip


def test_table_leaves_no_name_empty() -> None:
    """A call that reached no upstream; a key without a team."""
    lines = format_table(["team", "upstream", "key"], [ALICE | {"team": "", "upstream": ""}]).splitlines()
    assert lines[2].split()[:3] == ["-", "-", "alice"]
    assert lines[-1].split()[:2] == ["total", "1,204"]
    assert len({len(line) for line in lines}) == 1


def test_share_of_the_totals_is_that_of_all_tokens() -> None:
    """The share of the sums, not the mean of the keys' shares."""
    small = row("bob", requests=1, prompt_tokens=10, total_tokens=10, estimated_tokens=10, estimated_percent=100.0)
    last = format_table(["key"], [row("alice", requests=1, total_tokens=990), small]).splitlines()[-1]
    assert last.split()[6:9] == ["0", "10", "1.00"]


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 0, 0.0), (0, 10, 0.0), (10, 10, 100.0), (1, 3, 33.33), (2, 3, 66.67),
        (1, 10**9, 0.01), (10**9 - 1, 10**9, 99.99),  # rounded away from 0 and from 100
    ],
)  # fmt: skip
def test_percent(part: int, whole: int, shown: float) -> None:
    assert percent(part, whole) == shown


def test_note_says_how_many_costs_are_unknown() -> None:
    assert notes([ALICE, BOB]) == ["The cost of 2 of 1,206 requests is unknown, and in no sum."]
    assert notes([ALICE]) == notes([]) == []


def costs(*amounts: float | None) -> list[str]:
    """The column of costs."""
    rows = [row(requests=1, cost_usd=amount, unpriced=int(amount is None)) for amount in amounts]
    return [line.split()[-2] for line in format_table(["key"], rows).splitlines() if line[:5] in ("alice", "total")]


@pytest.mark.parametrize(
    ("amounts", "shown"),
    [
        ([1234.5, 0.25], ["1,234.50", "0.25", "1,234.75"]),
        ([12.0, 0.0123], ["12.0000", "0.0123", "12.0123"]),
        ([0.000015, 2.0], ["0.000015", "2.000000", "2.000015"]),
        ([0.000000001], ["0.000000001", "0.000000001"]),
        ([0.0], ["0.00", "0.00"]),  # a known cost of 0, unlike
        ([None], ["-", "-"]),
        ([None, 0.5], ["-", "0.50", "0.50"]),
        ([0.1, 0.2], ["0.10", "0.20", "0.30"]),
    ],
)
def test_costs_have_the_decimals_that_they_need(amounts: list[float | None], shown: list[str]) -> None:
    assert costs(*amounts) == shown


# ------------------------------------------------------------------------------------------------------------- scripts


def test_csv() -> None:
    text = format_csv(["key"], [ALICE, BOB | {"key": 'b"o,b'}])
    assert text.splitlines(keepends=True)[0] == ",".join(["key", *USAGE_COLUMNS]) + "\r\n"
    alice, bob = csv.DictReader(io.StringIO(text))
    assert (alice["requests"], alice["total_tokens"], alice["cost_usd"], alice["unpriced"]) == (
        "1204", "1050000", "1.5", "0",
    )  # fmt: skip
    assert (bob["key"], bob["cost_usd"], bob["unpriced"]) == ('b"o,b', "", "2")


def test_csv_for_a_pipe_has_plain_line_ends() -> None:
    assert format_csv(["key"], [ALICE], line_end="\n").count("\r") == 0
    assert format_csv(["key", "day"], [], line_end="\n") == ",".join(["key", "day", *USAGE_COLUMNS]) + "\n"


@pytest.mark.parametrize(
    ("cost", "spelt"), [(1e-9, "0.000000001"), (1.5e-05, "0.000015"), (0.0, "0"), (100.0, "100"), (2.1, "2.1")]
)
def test_csv_has_no_exponents(cost: float, spelt: str) -> None:
    (shown,) = csv.DictReader(io.StringIO(format_csv(["key"], [row(cost_usd=cost)])))
    assert shown["cost_usd"] == spelt


def test_json() -> None:
    assert json.loads(format_json([ALICE, BOB])) == [ALICE, BOB]
    assert json.loads(format_json([])) == []
    assert len(format_json([ALICE, BOB]).splitlines()) == 2


def test_rows_of_keys_are_regrouped_by_a_label() -> None:
    sums = dict.fromkeys(USAGE_COLUMNS, 0) | {"requests": 2, "total_tokens": 10, "cost_usd": 0.5}
    rows = [{"key": key, "day": day} | sums for key in ("a", "b", "c") for day in ("2026-11-20", "2026-11-21")]
    labels = {"a": {"cost-center": "x"}, "b": {"cost-center": "x", "other": "y"}, "c": {}}
    groups = read_groups("label:cost-center,day")
    assert stored_groups(groups) == ["key", "day"]
    report = LabelReport(groups)
    for some in (rows[:3], rows[3:]):
        report.add(some, {key: labels[key] for key in report.without_label(some)})
    found = report.rows()
    assert report.rows(["", "2026-11-21"]) == found[2:]
    assert [(row["label:cost-center"], row["day"], row["requests"], row["cost_usd"]) for row in found] == [
        ("", "2026-11-20", 2, 0.5), ("", "2026-11-21", 2, 0.5),
        ("x", "2026-11-20", 4, 1.0), ("x", "2026-11-21", 4, 1.0),
    ]  # fmt: skip
    assert set(found[0]) == {*groups, *USAGE_COLUMNS}
    assert format_csv(groups, found).startswith("label:cost-center,day,requests")


def test_rows_of_keys_are_regrouped_by_their_owner() -> None:
    """A label of the name `person`, or of none, is another thing."""
    sums = dict.fromkeys(USAGE_COLUMNS, 0) | {"requests": 2, "total_tokens": 10, "cost_usd": 0.1}
    rows = [{"key": key} | sums for key in ("a", "b", "c", "d")]
    facts = {"a": {"": "ann"}, "b": {"": "ann", "person": "x"}, "c": {"": "", "person": "bob"}}
    groups = read_groups("person")
    assert stored_groups(groups) == ["key"]
    report = LabelReport(groups)
    report.add(rows, facts)
    assert [(row["person"], row["requests"], row["cost_usd"]) for row in report.rows()] == [
        ("", 4, 0.2), ("ann", 4, 0.2),
    ]  # fmt: skip


def test_a_person_has_one_row_however_her_name_is_written() -> None:
    """It is written as at the first of her keys. Labels that differ in case are two."""
    sums = dict.fromkeys(USAGE_COLUMNS, 0) | {"requests": 2, "total_tokens": 10, "cost_usd": 0.1}
    names = {"a": "Ann.Mu\u0308ller", "b": "ann.m\u00fcller", "c": "ANN.M\u00dcLLER"}
    facts = {key: {"": name, "cost": name} for key, name in names.items()}
    found = {}
    for group in ("person", "label:cost"):
        report = LabelReport([group])
        for key in names:
            report.add([{"key": key} | sums], {key: facts[key]})
        found[group] = [(row[group], row["requests"]) for row in report.rows()]
    assert found["person"] == [(names["a"], 6)]
    assert sorted(found["label:cost"]) == sorted((name, 2) for name in names.values())
