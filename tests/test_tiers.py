"""The tiers of tests are folders: every test file belongs to exactly one of them, and together they are all."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import DAY_S, HOUR_S, LONGEST, TIERS, pytest_ignore_collect, tier_of, wait_s

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "tests").rglob("test_*.py"))


class Chosen:
    """As much of pytest's configuration as the choice of files reads."""

    rootpath = ROOT

    def __init__(self, tier: str) -> None:
        self.tier = tier

    def getoption(self, name: str) -> str:
        assert name == "tier"
        return self.tier


def collected(tier: str) -> list[Path]:
    chosen = cast("pytest.Config", Chosen(tier))
    return [path for path in FILES if not pytest_ignore_collect(path, chosen)]


def test_the_tiers_add_up_to_all_files() -> None:
    of = {tier: collected(tier) for tier in TIERS}
    assert of["all"] == FILES
    assert sorted(of["fast"] + of["slow"] + of["alone"]) == FILES
    assert all(of.values())


def test_the_folders_of_a_file_name_its_tier() -> None:
    assert tier_of(Path("tests/flows/slow/test_kills.py")) == "slow"
    assert tier_of(Path("tests/flows/slow/alone/test_memory.py")) == "alone"
    assert tier_of(Path("tests/flows/test_slow.py")) == "fast"


def test_the_longest_files_are_of_the_slow_tier() -> None:
    assert {ROOT / name for name in LONGEST} <= set(collected("slow"))


def test_slow_folders_are_packages() -> None:
    """Without it two files of the same name could not be collected together."""
    assert [path.parent for path in FILES if not (path.parent / "__init__.py").exists()] == []


def test_fast_test_files_import_large_packages_inside_the_tests_that_use_them() -> None:
    """Every process of the fast tier imports every test file: one such import costs each of them 0.5 to 2 s of CPU."""
    large = re.compile(
        r"^(?:import|from) (?:anthropic|cohere|google|langchain\w*|litellm|openai|schemathesis)\b", re.MULTILINE
    )
    assert [str(path) for path in FILES if tier_of(path) == "fast" and large.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("clock", "limit", "waits"),
    [("12:00:00", 180, 0), ("23:56:59", 180, 0), ("23:57:00", 180, 181), ("23:59:59", 180, 2), ("23:59:59", 30, 2),
     ("00:00:00", 180, 0)],
)  # fmt: skip
def test_no_test_runs_at_midnight(clock: str, limit: float, waits: float) -> None:
    now = datetime.fromisoformat(f"2026-11-30T{clock}+00:00").timestamp()
    assert wait_s(now, DAY_S, limit) == waits
    assert (now + waits) // DAY_S == (now + waits + limit) // DAY_S


def test_a_test_within_an_hour_waits_for_the_next() -> None:
    assert wait_s(3599 + 7200, HOUR_S, 60) == 2
    assert wait_s(3500 + 7200, HOUR_S, 60) == 0
