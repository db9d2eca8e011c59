"""The format of a comparison: unknown values, zeros, and the sign of a difference."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from gateway.wings.billing.compare import Pair, RecordedUsage
from gateway.wings.billing.comparison import COLUMNS, format_csv, format_table, notes, rows_of
from gateway.wings.billing.invoice import Tally

DAY = "2026-11-20"
ALL = Tally(0, 0, 0, 0, 0, 0)
TOKENS = Tally(0, 0, 0, None, 0, None)
"""The totals of a file without caches and costs."""

PAIRS = [
    Pair(DAY, "gpt-4o", ("gpt-4o", "gpt-4o-2024-08-06"),
         RecordedUsage(1204, 3, 1_000_000, 50_000, 7, 10_000, 1_500_000_000),
         Tally(1200, 990_000, 50_000, 7, 1_040_000, 1_490_000_000)),
    Pair(DAY, "m", (), RecordedUsage(2, 0, 10, 5, 0, 15, 0, 2), None),
    Pair("2026-11-21", "search", (), None, Tally(1, 0, 0, 0, 0, 10_000_000)),
]  # fmt: skip

TABLE = """
day         model   only    requests  theirs     tokens     theirs  difference      %  estimated  cost USD  theirs  difference        %
----------  ------  ------  --------  ------  ---------  ---------  ----------  -----  ---------  --------  ------  ----------  -------
2026-11-20  gpt-4o             1,201   1,200  1,050,000  1,040,000     +10,000  +0.96     10,000    1.5000  1.4900     +0.0100    +0.67
2026-11-20  m       ours           2       0         15          0         +15      -         15         -  0.0000           -        -
2026-11-21  search  theirs         0       1          0          0           0   0.00          0    0.0000  0.0100     -0.0100  -100.00
----------  ------  ------  --------  ------  ---------  ---------  ----------  -----  ---------  --------  ------  ----------  -------
total                          1,203   1,201  1,050,015  1,040,000     +10,015  +0.96     10,015    1.5000  1.5000      0.0000     0.00
"""  # noqa: E501


def test_table() -> None:
    received = format_table(PAIRS, ALL)
    assert received == TABLE.strip("\n")


def only(pair: Pair, received: Tally = ALL) -> dict[str, Any]:
    (row,) = rows_of([pair], received)
    assert tuple(row) == COLUMNS
    return row


def received(row: dict[str, Any], measure: str) -> tuple[Any, ...]:
    return tuple(row[f"{measure}_{what}"] for what in ("ours", "theirs", "difference", "percent"))


def test_row_says_what_each_side_knows() -> None:
    row = only(PAIRS[0])
    assert (row["names"], row["only"]) == (["gpt-4o", "gpt-4o-2024-08-06"], None)
    assert received(row, "requests") == (1201, 1200, 1, 0.08)  # 3 of 1204 calls failed
    assert received(row, "prompt_tokens") == (1_000_000, 990_000, 10_000, 1.01)
    assert received(row, "cached_tokens") == (7, 7, 0, 0.0)
    assert received(row, "cost_usd") == (1.5, 1.49, 0.01, 0.67)
    assert (row["errors"], row["estimated_tokens"], row["estimated_percent"], row["unpriced"]) == (3, 10_000, 0.95, 0)


def test_what_the_file_does_not_contain_is_unknown_and_not_0() -> None:
    row = only(Pair(DAY, "m", (), RecordedUsage(1, 0, 10, 5), Tally(1, 10, 5, None, 15)), TOKENS)
    assert received(row, "cached_tokens") == (0, None, None, None)
    assert received(row, "cost_usd") == (0.0, None, None, None)
    assert received(row, "total_tokens") == (15, 15, 0, 0.0)


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_what_only_one_side_has(side: str) -> None:
    ours, theirs = RecordedUsage(1, 0, 10, 5, cost_nusd=7), Tally(1, 10, 5, 0, 15, 7)
    row = only(Pair(DAY, "m", (), ours, None) if side == "ours" else Pair(DAY, "m", (), None, theirs))
    assert row["only"] == side
    assert received(row, "total_tokens") == ((15, 0, 15, None) if side == "ours" else (0, 15, -15, -100.0))
    assert row["cost_usd_difference"] == (7e-9 if side == "ours" else -7e-9)


def test_unknown_cost_has_no_difference() -> None:
    row = only(Pair(DAY, "m", (), RecordedUsage(2, unpriced=2), Tally(2, 0, 0, 0, 0, 5)))
    assert received(row, "cost_usd") == (None, 5e-9, None, None)
    assert row["unpriced"] == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        (10, 10, 0.0), (0, 0, 0.0), (1, 0, None), (0, 10, -100.0), (15, 10, 50.0), (40, 10, 300.0),
        (10**9 - 1, 10**9, -0.01), (1, 10**9, -99.99),  # rounded away from 0 and from 100
    ],
)  # fmt: skip
def test_percent_of_theirs(ours: int, theirs: int, shown: float | None) -> None:
    assert only(Pair(DAY, "m", (), RecordedUsage(1, 0, ours), Tally(1, theirs)))["prompt_tokens_percent"] == shown


def test_csv() -> None:
    text = format_csv(rows_of(PAIRS, TOKENS))
    assert "\r" not in text
    first, second, third = csv.DictReader(io.StringIO(text))
    assert tuple(first) == COLUMNS
    assert (first["names"], first["cost_usd_ours"], first["only"]) == ("gpt-4o gpt-4o-2024-08-06", "1.5", "")
    assert (second["cost_usd_ours"], second["cost_usd_theirs"], second["total_tokens_percent"]) == ("", "", "")
    assert (third["only"], third["cost_usd_theirs"]) == ("theirs", "0.01")


def test_notes() -> None:
    assert notes(PAIRS) == [
        "gpt-4o is also reported as gpt-4o, gpt-4o-2024-08-06.",
        "The cost of 2 of our requests is unknown, and in no sum.",
    ]
    assert notes(PAIRS[2:]) == []


def test_a_name_cannot_draw_on_the_terminal() -> None:
    """Names of models in upstreams and files are arbitrary text."""
    pair = Pair(DAY, "m\n\x1b[2J", ("m\n\x1b[2J", "n\r"), RecordedUsage(1, 0, 1, 1), None)
    assert "m\\n\\x1b[2J  ours" in format_table([pair], ALL)
    assert notes([pair]) == ["m\\n\\x1b[2J is also reported as m\\n\\x1b[2J, n\\r."]


def test_snapshots_of_several_days_are_noted_together() -> None:
    pairs = [
        Pair(day, "m", names, RecordedUsage(1), Tally(1)) for day, names in (("1", ("m-0613",)), ("2", ("m", "m-0314")))
    ]
    assert notes(pairs) == ["m is also reported as m, m-0314, m-0613."]
