"""Wings can be taken away: without their folders, their tests and their names in the list, the trunk works as before.

All are taken away, and one half of them after the other (`HALVES`): so each wing is missed beside each other one in ten
runs, in place of one run for each wing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

import pytest
import yaml

from gateway import wings
from gateway.config.faults import format_faults
from gateway.config.wings import WingNames, WingRows, WingSection
from tests.fakes.scripted import dead_port
from tests.flows.gateway_process import settings
from tests.test_wings import LATER

ROOT = Path(__file__).parent.parent.parent.parent
COPIED = ("gateway", "tests", "docs", "pyproject.toml")

TOUCHED = (
    "tests/test_pipeline.py", "tests/config/test_config.py", "tests/config/test_changes.py",
    "tests/config/test_probable_mistakes.py", "tests/observe/test_metrics.py", "tests/commands/test_online.py",
    "tests/formats/test_bridges.py", "tests/reports/test_csv_text.py", "tests/web/test_app.py",
    "tests/web/test_admin.py", "tests/web/test_hot_reload.py", "tests/web/test_openapi.py", "tests/wings/test_parts.py",
)  # fmt: skip
"""Tests of what wings touch: they run without each half of the wings."""

TRUNK = (
    *TOUCHED, "tests/test_floors.py", "tests/test_wings.py", "tests/upstream/test_router.py",
    "tests/flows/test_stream.py",
)  # fmt: skip
"""These run without any wing: calls and streams of gateways in their own processes among them."""

SHOWS_ALL = "tests/config/test_config.py::test_example_file"
"""The example file has the sections of all wings."""

TAKES_LONG = tuple(
    f"tests/web/test_openapi.py::test_{name}"
    for name in ("document_is_valid_openapi", "a_document_that_is_not_valid_would_be_found")
)
"""Whether the document is valid is asked with all wings and without any: each adds paths of its own. These take a third
of the time of all these tests."""

HALVES = {
    f"bit-{bit}-is-{value}": tuple(wing for place, wing in enumerate(wings.WINGS) if place >> bit & 1 == value)
    for bit in range((len(wings.WINGS) - 1).bit_length())
    for value in (0, 1)
}
"""The wings whose places in the list have the same digit in binary. Two places differ in at least one digit."""

HALF_WRITTEN = shutil.ignore_patterns("*.pyc.*")
"""Byte code that another process is writing now. All other byte code is copied: each copy would compile it again."""

RUN_S = 900
"""For all of them, on the slowest of machines."""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A module of the copy; nothing is imported from this tree."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=env | {"PYTHONPATH": str(folder)}, timeout=RUN_S, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip


def without(gone: Collection[str], folder: Path) -> Path:
    """A copy of this tree in which these wings never were."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=HALF_WRITTEN)
        else:
            shutil.copy(ROOT / name, folder / name)
    for wing in gone:
        for place in ("gateway", "tests"):
            shutil.rmtree(folder / place / "wings" / wing)
    for file, names, known in (
        ("gateway/wings/__init__.py", "WINGS", wings.WINGS),
        ("tests/test_wings.py", "LATER", LATER),
    ):
        left = tuple(name for name in known if name not in gone)
        text, number = re.subn(
            rf"^{names}(: .*?)? = \(.*?\)(?:  # fmt: skip)?$", f"{names}: tuple[str, ...] = {left!r}",
            (folder / file).read_text(), flags=re.MULTILINE | re.DOTALL,
        )  # fmt: skip
        assert number == 1, file
        (folder / file).write_text(text)
    # Gateways that tests start have this folder on their path, and no other one before that of the installed package.
    (folder / "tests" / "fakes" / "without_tokens" / "gateway").symlink_to(folder / "gateway")
    return folder


def check_tests(copy: Path, tests: Sequence[str], *left_out: str) -> None:
    options = ["-q", "--tier", "fast", "-p", "no:cacheprovider", "--processes", "1"]
    done = run(copy, "pytest", *options, *[f"--deselect={name}" for name in (SHOWS_ALL, *left_out)], *tests)
    assert done.returncode == 0, done.stdout[-20_000:]


def of_wings(value: object, gone: Collection[str]) -> bool:
    """Whether this is a value of the settings of these wings."""
    modules = (name for wing in gone if find_spec(name := f"gateway.wings.{wing}.settings") is not None)
    return any(each is value for name in modules for each in vars(import_module(name)).values())


@pytest.fixture(scope="module", params=HALVES)
def cut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Path]]:
    """The wings that are gone, and the tree without them."""
    gone, folder = HALVES[request.param], tmp_path_factory.mktemp(request.param)
    yield [*gone], without(gone, folder)
    shutil.rmtree(folder)


def test_each_wing_is_gone_beside_each_other_one() -> None:
    for wing, other in permutations(wings.WINGS, 2):
        assert any(wing in gone and other not in gone for gone in HALVES.values()), (wing, other)


@pytest.mark.timeout(RUN_S + 60)
def test_the_trunk_works_without_any_wing(tmp_path: Path) -> None:
    check_tests(without(wings.WINGS, tmp_path), TRUNK)


@pytest.mark.timeout(RUN_S + 60)
def test_the_trunk_works_without_some_wings(cut: tuple[list[str], Path]) -> None:
    check_tests(cut[1], TOUCHED, *TAKES_LONG)


def test_settings_of_wings_that_are_gone_do_not_exist(cut: tuple[list[str], Path], tmp_path: Path) -> None:
    (gone, copy), file = cut, tmp_path / "gateway.yaml"
    values = settings(f"http://127.0.0.1:{dead_port()}/v1")
    values["store"] = {"url": f"embedded:{tmp_path / 'data'}", "journal_dir": str(tmp_path / "journal")}
    file.write_text(yaml.safe_dump(values))
    done = run(copy, "gateway", "check", "--config", str(file))
    assert done.returncode == 0, done.stdout
    places = tuple(f"gateway.wings.{wing}." for wing in gone)
    sections = [each for each in wings.parts(WingSection, "settings") if each.kind.__module__.startswith(places)]
    (model, of_model), *_ = values["models"].items()
    rows = [each.name for each in wings.parts(WingRows, "settings") if of_wings(each, gone)]
    of_gateway = [*rows, *[each.name for each in sections if not each.is_of_models]]
    of_models = [name for each in sections if each.is_of_models for name in each.kind.model_fields]
    names = [name for each in wings.parts(WingNames, "settings") if of_wings(each, gone) for name in each.endpoints]
    assert of_gateway
    given: dict[str, dict[str, str]] = {name: {} for name in of_gateway}
    listed = {"endpoints": names} if names else {}
    models = {**values["models"], model: {**of_model, **dict.fromkeys(of_models), **listed}}
    file.write_text(yaml.safe_dump({**values, **given, "models": models}))
    done = run(copy, "gateway", "check", "--config", str(file))
    assert done.returncode == 2, done.stdout
    for place in (*of_gateway, *[format_faults(("models", model, name)) for name in of_models]):
        assert f"{place}: there is no such setting" in done.stdout, done.stdout
    for number, name in enumerate(names):
        assert f"{format_faults(('models', model, 'endpoints', number))}: expected 'completions'" in done.stdout
        assert f"'{name}'" not in done.stdout
