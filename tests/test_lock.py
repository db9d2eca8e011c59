"""The image's dependencies: locked by version and hash, and within what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
EXTRAS = ("tokens", "otel", "oidc", "brotli", "aws", "google", "azure")
WANTED = {
    "requirements.lock": PROJECT["dependencies"],
    "requirements-extras.lock": [
        *PROJECT["dependencies"],
        *(each for extra in EXTRAS for each in PROJECT["optional-dependencies"][extra]),
    ],
    "requirements-release.lock": GROUPS["release"],
}


def locked(name: str) -> dict[str, tuple[Version, Marker | None, int]]:
    """By package: its version, on which systems, and how many hashes it has."""
    found = {}
    text = "\n".join(line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#"))
    for entry in re.split(r"\n(?=\S)", text.strip()):
        requirement = Requirement(entry.partition("--hash")[0].replace("\\", "").strip())
        (pin,) = requirement.specifier
        assert pin.operator == "==", entry
        assert canonicalize_name(requirement.name) not in found, f"{requirement.name} is there twice"
        hashes = len(re.findall(r"--hash=sha256:[0-9a-f]{64}", entry))
        found[canonicalize_name(requirement.name)] = (Version(pin.version), requirement.marker, hashes)
    return found


@pytest.mark.parametrize("name", WANTED)
def test_the_lock_satisfies_pyproject(name: str) -> None:
    lock = locked(name)
    for requirement in map(Requirement, WANTED[name]):
        version, marker, _ = lock[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}, but {name} has {version}: run `make lock`"
        assert str(marker or None) == str(requirement.marker or None).replace(
            "python_version", "python_full_version"
        ), f"{requirement.name} is for other systems than pyproject says"


@pytest.mark.parametrize("name", WANTED)
def test_every_locked_package_has_hashes(name: str) -> None:
    assert [package for package, (_, _, hashes) in locked(name).items() if hashes == 0] == []


def test_both_locks_agree() -> None:
    small, large = locked("requirements.lock"), locked("requirements-extras.lock")
    assert {name: large[name][0] for name in small} == {name: version for name, (version, _, _) in small.items()}


def test_the_image_installs_them_by_hash_and_nothing_beside() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert '--require-hashes -r "requirements${EXTRAS:+-extras}.lock"' in dockerfile
    installs = re.findall(r"pip install ([^\n]*)", dockerfile)
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs), installs
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert set(bases) == {"python:${PYTHON}"}
    (base,) = re.findall(r"^ARG PYTHON=(\S+)", dockerfile, re.MULTILINE)
    assert re.fullmatch(r"3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", base)
