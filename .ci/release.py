#!/usr/bin/env python3
"""Builds everything that a release publishes, from the commit that is checked out, and verifies it.

    .ci/release.py [--key FILE] [--without-image] [--output FOLDER]

The folder gets the wheel, the source distribution, the chart's package, the image as an archive for `docker load`, the
bill of materials (CycloneDX) and SHA256SUMS. With `--key`, a secret key of minisign, it gets SHA256SUMS.minisig, too.
The same commit gives the same bytes: every time in the files is that of the commit, files are in order and without an
owner, and the programs that build are pinned by hash (requirements-release.lock).

It needs git and helm, buildah for the image, minisign for a signature. It publishes nothing.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "completions-gateway"
SUMS = "SHA256SUMS"


class Failed(Exception):
    """What was wrong and what to do."""


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] = {}) -> str:
    """Returns its output; raises `Failed` with it where the program fails or is missing."""
    try:
        done = subprocess.run(
            [str(word) for word in command], cwd=cwd, env={**os.environ, **env}, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except FileNotFoundError:
        raise Failed(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(str(word) for word in command)} failed:\n{done.stdout}")
    return done.stdout.strip()


def program(name: str) -> str:
    """The program of the path, or the one that `make servers` has built. Raises `Failed`."""
    found = shutil.which(name) or shutil.which(name, path=str(ROOT / ".venv" / "servers"))
    if found is None:
        raise Failed(f"{name} is not installed")
    return found


def packed_again(archive: Path, time_s: int) -> None:
    """Writes a .tar.gz again with its files in order, of one time and owner, and with the modes that git knows."""
    with tarfile.open(archive) as old:
        members = sorted(old.getmembers(), key=lambda member: member.name)
        contents = [(member, old.extractfile(member)) for member in members]
        with (
            archive.with_suffix(".new").open("wb") as raw,
            gzip.GzipFile("", "wb", 9, raw, time_s) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as new,
        ):
            for member, content in contents:
                plain = tarfile.TarInfo(member.name)
                plain.type, plain.size, plain.mtime = member.type, member.size, time_s
                plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                new.addfile(plain, content)
    archive.with_suffix(".new").replace(archive)


def without_container(archive: Path) -> None:
    """Writes a docker archive again without what buildah made up for this build: the id and the host name of the
    container that it built in. The files of Docker before 1.10 are left out, too."""
    with tarfile.open(archive) as old, tarfile.open(archive.with_suffix(".new"), "w", format=tarfile.GNU_FORMAT) as new:
        (entry,) = json.loads(content(old, "manifest.json"))
        described = json.loads(content(old, entry["Config"]))
        described.pop("container", None)
        for configuration in (described["config"], described.get("container_config", {})):
            configuration.pop("Hostname", None)
        text = json.dumps(described).encode()
        entry["Config"] = f"{hashlib.sha256(text).hexdigest()}.json"
        for name, data in ((entry["Config"], text), ("manifest.json", json.dumps([entry]).encode())):
            added = tarfile.TarInfo(name)
            added.size = len(data)
            new.addfile(added, io.BytesIO(data))
        for layer in entry["Layers"]:
            added = tarfile.TarInfo(layer)
            added.size = old.getmember(layer).size
            new.addfile(added, old.extractfile(layer))
    archive.with_suffix(".new").replace(archive)


def content(archive: tarfile.TarFile, name: str) -> bytes:
    """Returns the bytes of a file of the archive."""
    opened = archive.extractfile(name)
    assert opened is not None
    return opened.read()


class Release:
    """One build of the checked out commit. Its sources are those of git: nothing else of the folder comes in."""

    def __init__(self, output: Path, scratch: Path) -> None:
        if run("git", "status", "--porcelain"):
            raise Failed("there are changes that are not committed: commit or stash them first")
        self.output = output
        self.time_s = int(run("git", "log", "-1", "--format=%ct"))
        self.env = {"SOURCE_DATE_EPOCH": str(self.time_s), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        self.source = scratch / "source"
        self.source.mkdir()
        run("git", "archive", "--output", scratch / "source.tar", "HEAD")
        with tarfile.open(scratch / "source.tar") as sources:
            sources.extractall(self.source)
        text = (self.source / "gateway" / "__init__.py").read_text()
        self.version = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]  # type: ignore[index]
        self.tools = scratch / "tools"

    def install_tools(self) -> None:
        """Installs the pinned programs into an environment of their own."""
        venv.create(self.tools, with_pip=True)
        lock = self.source / "requirements-release.lock"
        run(
            self.tools / "bin" / "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
            "-r",
            lock,
        )

    def build_packages(self) -> None:
        """Builds the source distribution, and the wheel from it."""
        build = (self.tools / "bin" / "python", "-m", "build", "--no-isolation", "--outdir", self.output)
        run(*build, "--sdist", self.source, env=self.env)
        sdist = self.output / f"completions_gateway-{self.version}.tar.gz"
        packed_again(sdist, self.time_s)
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(sdist) as opened:
                opened.extractall(folder)
            run(*build, "--wheel", Path(folder) / sdist.name.removesuffix(".tar.gz"), env=self.env)

    def build_chart(self) -> None:
        """Packages the Helm chart."""
        run(program("helm"), "package", self.source / "deploy" / "helm", "--destination", self.output)
        packed_again(self.output / f"{NAME}-{self.version}.tgz", self.time_s)

    def write_materials(self) -> None:
        """Writes which packages, with versions and hashes, an installation with all extras has."""
        run(
            self.tools / "bin" / "cyclonedx-py", "requirements", "--output-reproducible", "--pyproject",
            self.source / "pyproject.toml", "--output-file", self.output / f"{NAME}-{self.version}.cdx.json",
            self.source / "requirements-extras.lock", env=self.env,
        )  # fmt: skip

    def build_image(self) -> None:
        """Builds the image and writes it as an archive that `docker load` and `podman load` read."""
        archive, name = self.output / f"{NAME}-{self.version}.image.tar", f"localhost/{NAME}:{self.version}"
        buildah = program("buildah")
        # The docker format: the OCI one has no HEALTHCHECK.
        run(buildah, "build", "--format", "docker", "--pull=ifmissing", "--no-cache", "--timestamp", str(self.time_s),
            "--build-arg", f"SOURCE_DATE_EPOCH={self.time_s}", "--tag", name, self.source)  # fmt: skip
        run(buildah, "push", name, f"docker-archive:{archive}:{NAME}:{self.version}")
        without_container(archive)

    def write_sums(self) -> None:
        """Writes SHA256SUMS in the form that `sha256sum --check` reads."""
        files = sorted(self.output.iterdir())
        lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
        (self.output / SUMS).write_text("".join(lines))

    def sign(self, key: Path) -> None:
        """Signs the sums. minisign asks for the password of the key on the terminal."""
        if not key.is_file():
            raise Failed(f"{key}: there is no such key; minisign -G makes one")
        comment = f"{NAME} {self.version}"
        signing = [program("minisign"), "-S", "-s", str(key), "-m", str(self.output / SUMS), "-t", comment]
        if subprocess.run(signing, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            raise Failed(f"minisign did not sign with {key}")

    def verify(self) -> None:
        """Reads what was built as a user would: installs the wheel alone, renders the chart, loads the archive."""
        home = self.tools.with_name("installed")
        venv.create(home, with_pip=True)
        wheel, chart = next(self.output.glob("*.whl")), next(self.output.glob("*.tgz"))
        lock = self.source / "requirements.lock"
        pip = (home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--require-hashes", "-r", lock)
        run(*pip, "--no-deps", "--no-index", wheel)
        if (said := run(home / "bin" / "gateway", "--version", cwd=home)) != f"gateway {self.version}":
            raise Failed(f"the installed wheel calls itself {said}")
        with zipfile.ZipFile(wheel) as opened:
            held = {name for name in opened.namelist() if name.startswith("gateway/")}
        tracked = {*run("git", "ls-tree", "-r", "--name-only", "HEAD", "gateway").splitlines()}
        if held != tracked:
            raise Failed(f"the wheel and git differ in {sorted(held ^ tracked)}")
        run(program("helm"), "lint", "--strict", chart)
        run("sha256sum", "--check", "--strict", SUMS, cwd=self.output)


def main(arguments: Sequence[str]) -> int:
    """Returns 1 and prints what to do where something cannot be built."""
    parser = argparse.ArgumentParser(description="Build everything that a release publishes, and verify it.")
    parser.add_argument("--key", type=Path, help="the secret key of minisign that signs SHA256SUMS")
    parser.add_argument(
        "--without-image", action="store_true", help="leave the image out: it needs buildah and minutes"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "release", help="default: dist/release")
    wanted = parser.parse_args(arguments)
    output = wanted.output.resolve()
    os.umask(0o022)  # the modes of unpacked files come into the archives
    try:
        if output.exists() and any(output.iterdir()):
            raise Failed(f"{output} is not empty: name another folder with --output, or delete it")
        with tempfile.TemporaryDirectory() as folder:
            release = Release(output, Path(folder))
            output.mkdir(parents=True, exist_ok=True)
            release.install_tools()
            release.build_packages()
            release.build_chart()
            release.write_materials()
            if not wanted.without_image:
                release.build_image()
            release.write_sums()
            release.verify()
            if wanted.key is not None:
                release.sign(wanted.key)
    except Failed as reason:
        print(f"release: {reason}", file=sys.stderr)
        return 1
    print((output / SUMS).read_text(), end="")
    print(f"release: {output} holds version {release.version}" + ("" if wanted.key else "; it is not signed (--key)"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
