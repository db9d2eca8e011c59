"""The package: built from this tree and installed elsewhere, it is whole and works with no repository around."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

import gateway
from tests.flows.client import request
from tests.flows.gateway_process import eventually

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLASSIFIED = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
"""The minor versions of Python that it is for, as 3.11."""
BUILD_S = 120
INSTALL_S = 400
START_S = 45


def run(*command: str | Path, cwd: Path, timeout_s: float = BUILD_S) -> str:
    """What it says; fails the test where the command fails. Nothing of this repository is on its path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    received = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, timeout=timeout_s, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert received.returncode == 0, received.stdout
    return received.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the package is built from, and nothing else: what is built leaves its traces there."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "PACKAGE.md", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "gateway", folder / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def built(source: Path) -> Path:
    """The folder with a source distribution, and with the wheel that was built from it."""
    received = run(sys.executable, "-m", "build", "--no-isolation", source, cwd=source)
    assert "warning" not in received.lower(), received
    assert "deprecat" not in received.lower(), received
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_the_wheel_holds_every_file_of_the_package(source: Path, wheel: Path) -> None:
    taken = {str(path.relative_to(source)) for path in (source / "gateway").rglob("*") if path.is_file()}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gateway/")}
    assert held == taken
    assert {Path(name).suffix for name in held} >= {".py", ".lua"}


def test_the_source_distribution_holds_what_it_is_built_from(source: Path, built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "PACKAGE.md", "LICENSE"} <= held
    assert {str(path.relative_to(source)) for path in (source / "gateway").rglob("*.lua")} <= held


def test_the_registrys_own_checks_have_no_complaint(built: Path, wheel: Path) -> None:
    programs = Path(sys.executable).parent
    checked = run(programs / "twine", "check", "--strict", *built.iterdir(), cwd=built)
    assert checked.count("PASSED") == 2, checked
    assert wheel.name in run(programs / "check-wheel-contents", "--toplevel", "gateway", wheel, cwd=built)


def test_the_metadata_says_who_what_and_on_which_terms(wheel: Path) -> None:
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode())
    assert metadata["Version"] == gateway.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert "The Completions Gateway authors" in (ROOT / "LICENSE").read_text()
    text = str(metadata.get_payload())
    assert text.startswith("# Completions gateway")
    assert re.findall(r"\]\((?!https?://)[^)]*\)|src=", text) == []  # an index has none of the repository's files
    assert min(CLASSIFIED, key=lambda version: int(version.partition(".")[2])) == metadata["Requires-Python"][2:]


def test_the_version_is_the_same_wherever_it_is_named() -> None:
    """In the package it is named once; tests/deploy compares the chart and the manifests with it."""
    assert PROJECT["dynamic"] == ["version"]
    assert f"\n## {gateway.__version__} - " in (ROOT / "CHANGELOG.md").read_text()
    images = re.findall(r"completions-gateway:(\d[\d.]*)", (ROOT / "deploy" / "README.md").read_text())
    assert set(images) == {gateway.__version__}


# -------------------------------------------------------------------------------------------------------- installed


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `gateway` of an environment that has the wheel and this one's packages, and cannot see this tree."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    here = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # Names on the path, so that .pth files there, of an editable installation for one, are not obeyed.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (here / "packages.pth").write_text("\n".join(sorted(places)) + "\n")
    run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home / "bin" / "python",
        "install", "--no-deps", "--no-index", "--force-reinstall", wheel, cwd=home,
    )  # fmt: skip
    return home / "bin" / "gateway"


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """An empty folder."""
    return tmp_path


def test_it_is_the_installed_one_that_runs(installed: Path, nowhere: Path) -> None:
    received = run(installed.with_name("python"), "-c", "import gateway; print(gateway.__file__)", cwd=nowhere)
    assert Path(received.strip()).is_relative_to(installed.parent.parent)
    assert run(installed, "--version", cwd=nowhere) == f"gateway {gateway.__version__}\n"
    named_as_package = installed.with_name(PROJECT["name"])  # what pipx run and uvx start
    assert run(named_as_package, "--version", cwd=nowhere) == f"gateway {gateway.__version__}\n"


def test_it_checks_a_configuration(installed: Path, nowhere: Path) -> None:
    settings = {
        "upstreams": {"main": {"base_url": "https://api.example.com/v1"}},
        "models": {"*": {"routes": [{"upstream": "main"}]}},
    }
    (nowhere / "gateway.yaml").write_text(json.dumps(settings))
    assert "is good" in run(installed, "check", "--config", "gateway.yaml", cwd=nowhere)


@contextlib.contextmanager
def demo_of(program: Path, folder: Path, *more: str) -> Iterator[str]:
    """Runs the demonstration; yields what it says when it is ready."""
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [program, "demo", "--port", "0", *more], cwd=folder, stdout=said, stderr=said, start_new_session=True,
            env={**os.environ, "PYTHONPATH": "", "TMPDIR": str(folder)},
        )  # fmt: skip

    def welcome() -> str:
        text = (folder / "said").read_text()
        assert process.poll() is None, text
        return text if "Ctrl-C ends the demo" in text else ""

    try:
        yield eventually(welcome, START_S)
        process.terminate()
        assert process.wait(START_S) == 0
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its session: only what it has started itself
        process.wait()


def check_call(demo: str) -> None:
    """Makes a call with what the demonstration has printed."""
    port, key = re.findall(r"http://127\.0\.0\.1:(\d+)/v1", demo)[0], re.findall(r"sk-gw-demo-[\w-]+", demo)[0]
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello!"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    answer = request(int(port), "POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
    assert answer.status == 200, answer
    assert answer.json["choices"][0]["message"]["content"]


def test_its_demo_answers_a_call(installed: Path, nowhere: Path) -> None:
    with demo_of(installed, nowhere) as demo:
        check_call(demo)


# ------------------------------------------------------------------------------------------- on other interpreters


def interpreters() -> dict[str, Path]:
    """One for each other minor version of the classifiers that is on this machine, from the path and from pyenv."""
    versions = os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")
    folders = [*map(Path, os.environ["PATH"].split(os.pathsep)), *sorted(Path(versions).glob("versions/*/bin"))]
    found = {}
    for minor in set(CLASSIFIED) - {f"{sys.version_info.major}.{sys.version_info.minor}"}:
        for program in (folder / f"python{minor}" for folder in folders):
            if "shims" not in program.parts and os.access(program, os.X_OK):
                found[minor] = program
                break
    return dict(sorted(found.items()))


@pytest.mark.timeout(600)  # it downloads twenty packages
@pytest.mark.parametrize(("minor", "python"), interpreters().items(), ids=interpreters())
def test_it_installs_and_serves_on_each_other_interpreter_of_this_machine(
    minor: str, python: Path, wheel: Path, nowhere: Path
) -> None:
    """With the dependencies that a user gets, from the registry. The tests' names say which interpreters are here."""
    run(python, "-m", "venv", nowhere / "environment", cwd=nowhere)
    programs = nowhere / "environment" / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-compile", wheel, cwd=nowhere, timeout_s=INSTALL_S)
    assert run(programs / "python", "--version", cwd=nowhere).startswith(f"Python {minor}.")
    assert run(programs / "gateway", "--version", cwd=nowhere) == f"gateway {gateway.__version__}\n"
    with demo_of(programs / "gateway", nowhere, "--empty") as demo:
        check_call(demo)
