"""No cell of an exported file begins like a formula, whatever a client has named something."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway
from gateway.reports import latency, registry, usage
from gateway.reports.csv_text import csv_text, unguarded
from gateway.store import USAGE_COLUMNS
from gateway.web.admin.operations import ADMIN_OPERATIONS

ROOT = Path(gateway.__file__).parent
SIGNS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
NAMES = ['=HYPERLINK("https://x.example/"&A1,"open")', "@SUM(1+1)", "+1+1", "-2+3", "\t=1", "\r=1", "\uff1d1", "-"]


def cells(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def runs(cell: str) -> bool:
    return cell[:1] in tuple(SIGNS) and re.fullmatch(r"-?[0-9.]+(?:[eE][+-]?[0-9]+)?", cell) is None


@given(st.text(st.sampled_from([*SIGNS, "a", "1", ".", '"', ",", "'"]), max_size=6) | st.text(max_size=6))
def test_a_text(text: str) -> None:
    for line_end in ("\n", "\r\n"):
        check(text, cells(csv_text(["name", "n"], [{"name": text}], line_end=line_end, has_heading=False)))


def check(text: str, lines: list[list[str]]) -> None:
    [[cell, _]] = lines
    assert not runs(cell)
    if not text.startswith("'"):
        assert unguarded(cell) == text


@pytest.mark.parametrize(
    ("value", "written"),
    [(-1.5, "-1.5"), (-3, "-3"), ("-0.000000001", "-0.000000001"), ("-1e-9", "-1e-9"), (None, ""), (True, "True"),
     ("a=1", "a=1"), ("'x", "'x"), ("-1-1", "'-1-1"), ("--1", "'--1")],
)  # fmt: skip
def test_numbers_and_harmless_texts_stay(value: Any, written: str) -> None:
    assert csv_text(["a", "b"], [{"a": value, "b": 1}], has_heading=False) == f"{written},1\r\n"


@pytest.mark.parametrize("name", NAMES)
def test_each_report(name: str) -> None:
    sums = dict.fromkeys(USAGE_COLUMNS, 0)
    times = dict.fromkeys(latency.COLUMNS, 0)
    texts = [
        usage.format_csv(["user", "model"], [{**sums, "user": name, "model": name}]),
        latency.format_latency_csv(["upstream"], [{**times, "upstream": name}]),
        registry.format_csv([registry.Column("id"), registry.Column("note")], [{"id": name, "note": name}]),
    ]
    for text in texts:
        has_no_formula(text, name)


def has_no_formula(text: str, name: str) -> None:
    """A file with a row of this name."""
    lines = cells(text)
    assert [unguarded(cell) for cell in lines[1]].count(name) >= 1
    assert not [cell for line in lines for cell in line if runs(cell)]


def test_there_is_no_other_writer() -> None:
    """The reports above, the lists of commands, and every operation of the admin API that offers CSV write by it."""
    writers = [path.name for path in ROOT.rglob("*.py") if re.search(r"csv\.(?:writer|DictWriter)", path.read_text())]
    assert writers == ["csv_text.py"]
    trunk = [path for path in ROOT.rglob("*.py") if not path.is_relative_to(ROOT / "wings")]
    users = {path.name for path in trunk if re.search(r"\bcsv_text\(", path.read_text())}
    assert users == {"csv_text.py", "usage.py", "latency.py", "registry.py", "calls.py"}
    offered = {path for (_, path), each in ADMIN_OPERATIONS.items() if "text/csv" in each.answers}
    assert {path.rpartition("/")[2] for path in offered} == {"usage", "latency", "calls"}
    pages = [path.name for path in ROOT.rglob("*.js") if 'type: "text/csv' in path.read_text()]
    assert pages == ["csv.js"]


def test_the_page_has_the_same_rule() -> None:
    source = (ROOT / "web" / "dashboard" / "csv.js").read_text()
    found = re.search(r"^const FORMULA = /\^\[(.*)\]/;$", source, re.MULTILINE)
    assert found is not None
    assert {sign for sign in map(chr, range(0x10000)) if re.match(f"[{found[1]}]", sign)} == set(SIGNS)
    assert source.count("FORMULA.test(") == 1
