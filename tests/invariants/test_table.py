"""The table of docs/security.md names a test for each rule at each door, or the reason why there is none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = "## What holds at every door"


def cells() -> list[list[str]]:
    """The rows of the table, without its head."""
    section = (ROOT / "docs/security.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def path_of(name: str) -> Path:
    """Of a file, or of a test in it: `file::test`."""
    name = name.partition("::")[0]
    if name.startswith("tests/"):
        return ROOT / name
    folder, _, last = name.rpartition("/")
    return ROOT / "tests/invariants" / folder / f"test_{last}.py"


def names_in(door: str) -> list[str]:
    return re.findall(r"`([^`]+)`", door)


@cache
def collected_from(path: Path) -> frozenset[str]:
    """The tests that pytest collects from a file of any tier: functions of the module, or of a class `Test...`."""
    if not path.is_file() or not path.name.startswith("test_"):
        return frozenset()
    body = ast.parse(path.read_text()).body
    inside = [
        each for node in body if isinstance(node, ast.ClassDef) and node.name.startswith("Test") for each in node.body
    ]
    functions = [each for each in (*body, *inside) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(each.name for each in functions if each.name.startswith("test"))


def test_every_cell_has_tests_that_are_collected_or_a_reason() -> None:
    rows = cells()
    assert len(rows) == 10
    for rule, *doors in rows:
        assert len(doors) == 5, rule
        for door in doors:
            names = names_in(door)
            assert names or door == "no price", (rule, door)
            for name in names:
                found, (_, _, test) = collected_from(path_of(name)), name.partition("::")
                assert found if not test else test in found, (rule, name)


def test_each_file_of_several_rules_is_named_by_its_tests() -> None:
    """So that a rule does not lose its test while the file stays for another."""
    rules: dict[Path, set[str]] = {}
    for rule, *doors in cells():
        for name in (each for door in doors for each in names_in(door) if "::" not in each):
            rules.setdefault(path_of(name), set()).add(rule)
    assert {path.name for path, of in rules.items() if len(of) > 1} == set()


def test_what_is_collected_is_what_pytest_collects(request: pytest.FixtureRequest) -> None:
    """Of this file, which is there in each run."""
    collected = {item.name for item in request.session.items if item.path == Path(__file__)}
    assert collected <= collected_from(Path(__file__))
    assert request.node.name in collected


def test_what_is_no_test_is_not_found() -> None:
    assert collected_from(ROOT / "tests/conftest.py") == collected_from(path_of("nothing")) == frozenset()
    assert "path_of" not in collected_from(Path(__file__))


def test_every_test_of_a_rule_is_in_the_table() -> None:
    named = {path_of(name) for row in cells() for door in row[1:] for name in names_in(door)}
    there = {path for path in (ROOT / "tests/invariants").rglob("test_*.py") if path != Path(__file__)}
    assert sorted(path.name for path in there - named) == []
