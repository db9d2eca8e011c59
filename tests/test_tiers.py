"""The tiers of tests are folders: every test file belongs to exactly one of them, and together they are all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import TIERS, pytest_ignore_collect, tier_of

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


def test_slow_folders_are_packages() -> None:
    """Without it two files of the same name could not be collected together."""
    assert [path.parent for path in FILES if not (path.parent / "__init__.py").exists()] == []


def test_fast_test_files_import_large_packages_inside_the_tests_that_use_them() -> None:
    """Every process of the fast tier imports every test file: one such import costs each of them 0.5 to 2 s of CPU."""
    large = re.compile(
        r"^(?:import|from) (?:anthropic|cohere|google|langchain\w*|litellm|openai|schemathesis)\b", re.MULTILINE
    )
    assert [str(path) for path in FILES if tier_of(path) == "fast" and large.search(path.read_text())] == []
