"""Every wing can be taken away: without its folder, its tests and its name in the list, the trunk works as before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gateway import wings
from gateway.config.wings import WingSection
from tests.fakes.scripted import dead_port
from tests.flows.gateway_process import settings
from tests.test_wings import LATER

ROOT = Path(__file__).parent.parent.parent.parent
COPIED = ("gateway", "tests", "docs", "pyproject.toml")

TRUNK = (
    "tests/test_floors.py", "tests/test_wings.py", "tests/config/test_config.py", "tests/config/test_changes.py",
    "tests/config/test_probable_mistakes.py", "tests/observe/test_metrics.py", "tests/commands/test_online.py",
    "tests/reports/test_csv_text.py", "tests/web/test_app.py", "tests/web/test_admin.py",
    "tests/web/test_hot_reload.py", "tests/web/test_openapi.py", "tests/flows/test_stream.py",
    "tests/wings/test_parts.py",
)  # fmt: skip
"""Tests of what wings touch, and of calls, streams and the admin API of gateways in this process and in their own."""

SHOWS_ALL = "tests/config/test_config.py::test_example_file"
"""The example file has the sections of all wings."""

RUN_S = 900
"""For all of them, on the slowest of machines."""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A module of the copy; nothing is imported from this tree."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=env | {"PYTHONPATH": str(folder)}, timeout=RUN_S, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip


def without(wing: str, folder: Path) -> Path:
    """A copy of this tree in which this wing never was."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    for place in ("gateway", "tests"):
        shutil.rmtree(folder / place / "wings" / wing)
    names = folder / "gateway" / "wings" / "__init__.py"
    left = tuple(name for name in wings.WINGS if name != wing)
    text, number = re.subn(r"^WINGS = \(.*?\)$", f"WINGS = {left!r}", names.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert number == 1
    names.write_text(text)
    later = tuple(name for name in LATER if name != wing)
    ceilings = folder / "tests" / "test_wings.py"
    text, number = re.subn(r"^(LATER: .*? = )\(.*?\)$", rf"\g<1>{later!r}", ceilings.read_text(), flags=re.MULTILINE)
    assert number == 1
    ceilings.write_text(text)
    # Gateways that tests start have this folder on their path, and no other one before that of the installed package.
    (folder / "tests" / "fakes" / "without_tokens" / "gateway").symlink_to(folder / "gateway")
    return folder


@pytest.mark.timeout(RUN_S + 60)
@pytest.mark.parametrize("wing", wings.WINGS)
def test_the_trunk_works_without_a_wing(wing: str, tmp_path: Path) -> None:
    copy = without(wing, tmp_path)
    done = run(
        copy,
        "pytest",
        "-q",
        "--tier",
        "fast",
        "-p",
        "no:cacheprovider",
        "--processes",
        "2",
        "--deselect",
        SHOWS_ALL,
        *TRUNK,
    )
    assert done.returncode == 0, done.stdout[-20_000:]


@pytest.mark.parametrize("wing", wings.WINGS)
def test_a_setting_of_a_wing_that_is_gone_does_not_exist(wing: str, tmp_path: Path) -> None:
    copy, file = without(wing, tmp_path / "copy"), tmp_path / "gateway.yaml"
    values = settings(f"http://127.0.0.1:{dead_port()}/v1")
    values["store"] = {"url": f"embedded:{tmp_path / 'data'}", "journal_dir": str(tmp_path / "journal")}
    file.write_text(yaml.safe_dump(values))
    done = run(copy, "gateway", "check", "--config", str(file))
    assert done.returncode == 0, done.stdout
    sections = [
        each.name
        for each in wings.parts(WingSection, "settings")
        if each.kind.__module__.startswith(f"gateway.wings.{wing}.")
    ]
    for name in sections:
        file.write_text(yaml.safe_dump(values | {name: {}}))
        done = run(copy, "gateway", "check", "--config", str(file))
        assert (done.returncode, f"{name}: there is no such setting" in done.stdout) == (2, True), done.stdout
