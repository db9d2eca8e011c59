"""The table of docs/security.md names a test for each rule at each door, or the reason why there is none."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTION = "## What holds at every door"


def cells() -> list[list[str]]:
    """The rows of the table, without its head."""
    section = (ROOT / "docs/security.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def path_of(name: str) -> Path:
    if name.startswith("tests/"):
        return ROOT / name
    folder, _, last = name.rpartition("/")
    return ROOT / "tests/invariants" / folder / f"test_{last}.py"


def test_every_cell_has_a_test_that_exists_or_a_reason() -> None:
    rows = cells()
    assert len(rows) == 9
    for rule, *doors in rows:
        assert len(doors) == 5, rule
        for door in doors:
            names = re.findall(r"`([^`]+)`", door)
            assert names or door in ("no price", "open: long values that a row reads"), (rule, door)
            assert [name for name in names if not path_of(name).is_file()] == [], rule


def test_every_test_of_a_rule_is_in_the_table() -> None:
    named = {path_of(name) for row in cells() for door in row[1:] for name in re.findall(r"`([^`]+)`", door)}
    there = {path for path in (ROOT / "tests/invariants").rglob("test_*.py") if path != Path(__file__)}
    assert sorted(path.name for path in there - named) == []
