"""Several processes run the files of one collection (`--processes`), and the first of them reports all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rest
ROOT = Path(__file__).parent.parent
CONFTEST = """
import pytest
from tests.processes import Processes
def pytest_configure(config):
    config.pluginmanager.register(Processes(2))
@pytest.fixture(scope="session", autouse=True)
def of_the_session():
    yield
    print("ended", file=open("sessions", "a"))
"""
FILES = {
    "conftest.py": CONFTEST,
    "test_one.py": """
import os, warnings, pytest
@pytest.fixture(scope="module")
def of_the_file():
    yield os.getpid()
    print("ended", file=open("files", "a"))
def test_good(of_the_file, tmp_path):
    print("a line of test_good")
    assert os.getpid() == of_the_file != os.getppid()
def test_bad(of_the_file):
    print("a line of test_bad")
    os.write(1, b"another line")
    assert os.getpid() != of_the_file
def test_skipped():
    pytest.skip("no reason")
def test_warning():
    warnings.warn("a warning of a test")
""",
    "test_other.py": "def test_other(capfd): assert capfd.readouterr().out == ''",
    "test_third.py": "def test_third(tmp_path): (tmp_path / 'file').touch()",
    "test_killed.py": "import os\ndef test_killed(): os.kill(os.getpid(), 9)",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    options = ["-c", "/dev/null", "--rootdir", str(folder), "--basetemp", str(folder / "temporary"), "--color=no"]
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *arguments], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_all_is_reported_by_the_first(tmp_path: Path) -> None:
    done = run(tmp_path, "test_one.py", "test_other.py", "test_third.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^=+ 1 failed, 4 passed, 1 skipped, 1 warning in ", done.stdout, re.MULTILINE), done.stdout
    assert "a line of test_bad" in done.stdout
    assert "another line" in done.stdout
    assert "a line of test_good" not in done.stdout
    assert "UserWarning: a warning of a test" in done.stdout
    assert (tmp_path / "files").read_text() == "ended\n", "the fixture of a file was made once"
    assert (tmp_path / "sessions").read_text() == "ended\n" * 2, "once in each process"
    assert {each.name for each in (tmp_path / "temporary").glob("process-*/*0")} == {"test_good0", "test_third0"}


def test_the_run_ends_at_the_first_failure_if_it_should(tmp_path: Path) -> None:
    done = run(tmp_path, "-x", "test_one.py", "test_other.py")
    assert done.returncode == 1
    assert "stopping after 1 failures" in done.stdout
    assert (tmp_path / "files").read_text() == "ended\n"


def test_a_process_that_is_killed_interrupts_the_run_and_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "test_killed.py", "test_third.py")
    assert done.returncode == 2
    assert "a process of the tests ended with -9; its last test: test_killed.py::test_killed" in done.stdout
