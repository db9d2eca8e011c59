"""Keys, teams and changes as tables, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from gateway.reports.registry import (
    CHANGES_IN_TABLE,
    KEYS,
    KEYS_IN_TABLE,
    WINDOWS,
    format_csv,
    format_one,
    format_table,
    with_change,
)
from gateway.reports.table import format_json

KEY: dict[str, Any] = {
    "object": "key", "id": "alice", "team": None, "models": ["gpt-4*", "text-*"],
    "expires": "2027-01-01T00:00:00+00:00", "ips": [], "max_parallel": None,
    "limits": {"n": 4, "deny": ["user", "stop"]},
    "quotas": [{"tokens": 1000000, "per": "day"}, {"usd": 0.5, "per": 90, "model": "gpt-4*"}], "on_exceeded": "deny",
    "managed_by": "store", "status": "active", "created_at": "2026-11-22T09:00:00Z", "updated_at": None,
    "revoked_at": None, "secrets": [{"created_at": "2026-11-22T09:00:00Z", "expires_at": None}],
}  # fmt: skip


def test_a_table_is_aligned_and_never_wraps() -> None:
    other = {**KEY, "id": "b", "quotas": [], "models": ["*"], "expires": None}
    assert format_table(KEYS_IN_TABLE, [KEY, other]).splitlines() == [
        "id     status  team  managed by  models         expires               quotas",
        "-----  ------  ----  ----------  -------------  --------------------  -------------------------------------",
        "alice  active  -     store       gpt-4* text-*  2027-01-01T00:00:00Z  1,000,000 tokens/day; $0.5/90s:gpt-4*",
        "b      active  -     store       *              -                     -",
    ]


def test_numbers_stand_on_the_right() -> None:
    rows = [
        {"scope": "key:a", "unit": "usd", "per": "month", "model": None, "limit": 50.5, "used": 0.000000001,
         "reserved": 0, "remaining": 50.499999999, "reset_at": "2026-12-01T00:00:00Z"},
    ]  # fmt: skip
    names, _, line = format_table(WINDOWS, rows).splitlines()
    assert names.split()[-4:] == ["limit", "used", "reserved", "remaining"]
    assert line.split()[-4:] == ["50.5", "0.000000001", "0", "50.499999999"]


def test_what_cannot_be_seen_shifts_no_line() -> None:
    odd = {**KEY, "models": ["a\nb\x1b[2J"]}
    table = format_table(KEYS_IN_TABLE, [odd])
    assert len(table.splitlines()) == 3
    assert "\x1b" not in table + format_one(odd)
    assert "a\\nb" in table


def test_csv_has_every_column_and_no_dashes() -> None:
    (row,) = csv.DictReader(io.StringIO(format_csv(KEYS, [KEY])))
    assert (row["team"], row["limits"], row["updated_at"]) == ("", "n=4 deny=user,stop", "")
    assert row["quotas"] == "1,000,000 tokens/day; $0.5/90s:gpt-4*"


def test_json_is_what_the_api_says() -> None:
    assert json.loads(format_json(KEY)) == KEY
    assert json.loads(format_json([KEY, KEY])) == [KEY, KEY]
    assert format_json([KEY, KEY]).count("\n") == 2


def test_one_key_leaves_out_what_says_nothing() -> None:
    received = format_one(KEY)
    assert "team" not in received
    assert "limits        n=4 deny=user,stop\n" in received
    assert "secrets       1: since 2026-11-22T09:00:00Z\n" in received


def test_a_change_is_described_by_its_differences() -> None:
    row = {"time": "t", "actor": "a", "action": "update", "kind": "key", "name": "alice"}
    changed = with_change({**row, "before": {"n": 1, "same": 2}, "after": {"n": 3, "same": 2, "new": [4]}})
    assert changed["change"] == "n: 1 -> 3; new: null -> [4]"
    assert with_change({**row, "before": None, "after": {"n": 1}})["change"] == '{"n": 1}'
    assert (
        format_table(CHANGES_IN_TABLE, [with_change({**row, "before": [1], "after": None})])
        .splitlines()[2]
        .endswith(" -")
    )
