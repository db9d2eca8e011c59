"""The tiers of tests are folders: every test file belongs to exactly one of them, and together they are all."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.amounts import FEW_EXAMPLES, amount
from tests.conftest import (
    DAY_S,
    HOUR_S,
    INTERPRETERS,
    LONGEST,
    TIERS,
    is_run_again,
    left_to_the_rest,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
    tier_of,
    twins,
    wait_s,
)
from tests.fakes.redis_servers import SERVERS_VARIABLE

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


def test_files_that_are_listed_exist_in_their_tiers() -> None:
    assert {ROOT / name for name in LONGEST} <= {*collected("fast"), *collected("slow")}
    assert {ROOT / name for name in INTERPRETERS} <= set(collected("slow"))


def test_slow_folders_are_packages() -> None:
    """Without it two files of the same name could not be collected together."""
    assert [path.parent for path in FILES if not (path.parent / "__init__.py").exists()] == []


def test_fast_test_files_import_large_packages_inside_the_tests_that_use_them() -> None:
    """All test files are imported before the first test runs: one such import costs 0.5 to 2 s of CPU."""
    large = re.compile(
        r"^(?:import|from) (?:anthropic|cohere|google|langchain\w*|litellm|openai|schemathesis)\b", re.MULTILINE
    )
    assert [str(path) for path in FILES if tier_of(path) == "fast" and large.search(path.read_text())] == []


def test_make_test_all_runs_what_make_test_leaves_out_or_shortens() -> None:
    class Item:
        """As much of an item as the choice reads."""

        def __init__(self, name: str, *, has_examples: bool = False, is_shortened: bool = False) -> None:
            self.name, self._is_shortened = name, is_shortened
            self.obj = SimpleNamespace(is_hypothesis_test=has_examples)

        def get_closest_marker(self, name: str) -> object:
            assert name == "shortened"
            return self._is_shortened or None

    others = {"valkey-8.0.1"}
    for item, is_run in (
        (Item("test_x[redis-7.0.15]"), False),
        (Item("test_x[valkey-8.0.1-y]"), True),
        (Item("test_x", has_examples=True), True),
        (Item("test_x", is_shortened=True), True),
    ):
        assert is_run_again(cast("pytest.Item", item), others) is is_run, item.name


class Item:
    """As much of an item as the choice of tests reads."""

    path = ROOT / "tests" / "test_x.py"
    obj = None

    def __init__(self, name: str, *marked: str, **params: object) -> None:
        self.nodeid = self.name = name
        self.callspec, self._marked = SimpleNamespace(params=params), marked

    def get_closest_marker(self, name: str) -> object:
        return name in self._marked or None


STAY = [
    Item("test_x[embedded-1]", store_url="embedded", n=1),
    Item("test_of_stores[embedded]", open_store="embedded"),
    Item("test_of_stores[redis-7.0.15]", open_store="redis-7.0.15"),
    Item("test_on_redis_alone[redis]", store_url="redis"),
    Item("test_of_servers[redis-7.0.15]", any_redis="/usr/bin/redis-server"),
    Item("test_of_loops[uvloop]", loop=uvloop.new_event_loop),
    Item("test_of_any_loop[asyncio]", loop=asyncio.new_event_loop),
    Item("test_without_a_store"),
    Item("test_that_is_long", "shortened"),
]
TWINS_OF_THEM = [
    Item("test_x[redis-1]", store_url="redis", n=1),
    Item("test_of_stores[written behind]", open_store="written behind"),
    Item("test_of_loops[asyncio]", loop=asyncio.new_event_loop),
]
MARKED = [Item("test_of_an_interpreter", "rest")]
EVERY = cast("list[pytest.Item]", [*STAY, *TWINS_OF_THEM, *MARKED])


def test_make_test_leaves_out_twins_and_what_is_marked() -> None:
    assert twins(EVERY) == set(TWINS_OF_THEM)
    assert left_to_the_rest(EVERY) == {*TWINS_OF_THEM, *MARKED}


class Run:
    """As much of pytest's configuration as the choice of tests reads, behind a run that left this in the cache."""

    rootpath = ROOT
    hook = SimpleNamespace(pytest_deselected=lambda items: None)

    def __init__(self, is_rest: bool, **cached: object) -> None:
        self.cache = SimpleNamespace(get=lambda name, _: cached.get(name.removeprefix("tiers/")))
        self.items = list(EVERY)
        self._is_rest = is_rest
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SERVERS_VARIABLE, "all" if is_rest else "first")
            pytest_collection_modifyitems(cast("pytest.Config", self), self.items)

    def getoption(self, name: str) -> bool:
        assert name == "rest"
        return self._is_rest


def test_what_make_test_leaves_out_is_run_by_make_test_rest() -> None:
    left = {*TWINS_OF_THEM, *MARKED, STAY[-1]}
    assert set(Run(False).items) == set(STAY)
    assert set(Run(True, redis="redis-7.0.15", skipped=[]).items) == left
    skipped = cast("Item", STAY[0])
    assert set(Run(True, redis="redis-7.0.15", skipped=[skipped.nodeid]).items) == {*left, skipped}
    assert set(Run(True).items) == set(EVERY)  # make test was not run


def test_tests_that_start_interpreters_are_left_to_the_rest() -> None:
    """Half a second of CPU and more each: `make test` has 12,000 tests and three minutes."""
    starting = {path: path.read_text() for path in FILES if tier_of(path) == "fast" and path != Path(__file__)}
    starting = {path: text for path, text in starting.items() if "sys.executable" in text}
    assert [str(path) for path, text in starting.items() if "pytest.mark.rest\n" not in text + "\n"] == []
    assert len(starting) > 5


@given(st.just(1))
def test_a_hypothesis_test_is_known_as_one(number: int) -> None:
    assert number
    assert test_a_hypothesis_test_is_known_as_one.is_hypothesis_test  # type: ignore[attr-defined]


def test_what_depends_on_the_amount_is_marked() -> None:
    """`make test-rest` runs it whole. Other tiers have no part, and nothing but `amount` decides."""
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)}
    using = {path for path, text in texts.items() if "import amount\n" in text}
    assert {path for path, text in texts.items() if "default.max_examples" in text} == {ROOT / "tests" / "amounts.py"}
    assert using <= {path for path in FILES if tier_of(path) == "fast"}
    assert [str(path) for path in using if "pytest.mark.shortened" not in texts[path]] == []
    assert len(using) > 10


def test_an_amount_is_a_part_in_the_fast_profile_alone() -> None:
    assert settings.get_profile("full").max_examples > FEW_EXAMPLES
    with_profile = settings.default
    try:
        for profile, found in (("fast", "part"), ("full", "whole")):
            settings.load_profile(profile)
            assert amount("whole", "part") == found
    finally:
        settings.load_profile("fast" if with_profile.max_examples == FEW_EXAMPLES else "full")  # type: ignore[union-attr]


def test_ci_runs_both_parts_of_the_suite() -> None:
    """`make test` and `make test-rest` name all tiers, and the second runs what the first shortens."""
    assert {"make test", "make test-rest || {"} <= set((ROOT / ".ci" / "run").read_text().splitlines())
    recipes = dict(re.findall(r"^(test|test-rest):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    tiers = {name: re.findall(r"pytest --tier (\w+)( --all-redis --rest)?", text) for name, text in recipes.items()}
    assert tiers == {
        "test": [("fast", "")],
        "test-rest": [("fast", " --all-redis --rest"), ("slow", ""), ("alone", "")],
    }


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
