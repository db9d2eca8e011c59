"""`.ci/release.py`: the same commit gives the same bytes wherever it is built, and a signature shows a changed file.

The image is left out: it needs root, a base image and minutes. `.ci/image` builds and asks one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gateway
from tests.deploy.programs import PATH, run

ROOT = Path(__file__).parent.parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "dist", "build", "site")
COMMITTED = {
    **{f"GIT_{who}_{what}": "test@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_AUTHOR_DATE": "2026-05-04T03:02:01Z",
    "GIT_COMMITTER_DATE": "2026-05-04T03:02:01Z",
}
LIMIT_S = 900
FILES = {
    f"completions_gateway-{gateway.__version__}-py3-none-any.whl",
    f"completions_gateway-{gateway.__version__}.tar.gz",
    f"completions-gateway-{gateway.__version__}.tgz",
    f"completions-gateway-{gateway.__version__}.cdx.json",
}


def git(folder: Path, *arguments: str) -> None:
    run("git", "-C", folder, *arguments, env={**os.environ, **COMMITTED}).check_returncode()


def committed(folder: Path) -> Path:
    """A repository with this tree as its only commit."""
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "everything")
    return folder


def release(tree: Path, *arguments: str | Path, umask: int = 0o022, zone: str = "UTC") -> tuple[int, str]:
    """Its exit code and its output."""
    done = subprocess.run(
        [sys.executable, ".ci/release.py", "--without-image", *map(str, arguments)], cwd=tree, umask=umask, check=False,
        env={**os.environ, "PATH": PATH, "TZ": zone}, stdin=subprocess.DEVNULL, timeout=LIMIT_S, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return committed(tmp_path_factory.mktemp("one") / "tree")


@pytest.mark.timeout(2 * LIMIT_S)
def test_two_builds_of_a_commit_are_the_same_and_signed(tree: Path, tmp_path: Path) -> None:
    public, secret = tmp_path / "minisign.pub", tmp_path / "minisign.key"
    run("minisign", "-G", "-W", "-p", public, "-s", secret).check_returncode()
    first, second = tmp_path / "first", tmp_path / "second"
    code, output = release(tree, "--key", secret, "--output", first)
    assert code == 0, output
    other = tmp_path / "a place with another name"
    git(tmp_path, "clone", "--quiet", str(tree), str(other))
    code, output = release(other, "--output", second, umask=0o077, zone="Asia/Tokyo")
    assert code == 0, output
    assert "not signed" in output

    assert {path.name for path in first.iterdir()} == FILES | {"SHA256SUMS", "SHA256SUMS.minisig"}
    assert {name for name in FILES if (first / name).read_bytes() != (second / name).read_bytes()} == set()
    materials = json.loads((first / f"completions-gateway-{gateway.__version__}.cdx.json").read_text())
    assert {"aiohttp", "pydantic", "redis", "joserfc"} <= {each["name"] for each in materials["components"]}

    verify = ("minisign", "-V", "-p", public, "-m", first / "SHA256SUMS")
    assert f"Trusted comment: completions-gateway {gateway.__version__}" in run(*map(str, verify)).stdout
    check = (shutil.which("sha256sum") or "sha256sum", "--check", "--strict", "SHA256SUMS")
    assert run(*check, cwd=first).returncode == 0
    wheel = next(first.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
    assert f"{wheel.name}: FAILED" in run(*check, cwd=first).stdout
    sums = first / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("a", "b", 1))
    assert run(*map(str, verify)).returncode != 0


def test_what_it_refuses_has_a_remedy(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert release(tree, "--output", tmp_path / "full") == (
        1, f"release: {tmp_path / 'full'} is not empty: name another folder with --output, or delete it\n",
    )  # fmt: skip
    (tree / "README.md").write_text("changed")
    try:
        assert release(tree, "--output", tmp_path / "out") == (
            1, "release: there are changes that are not committed: commit or stash them first\n",
        )  # fmt: skip
    finally:
        git(tree, "checkout", "--quiet", "README.md")
    assert not (tmp_path / "out").exists()
