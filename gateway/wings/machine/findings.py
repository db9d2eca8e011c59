"""Findings about the machine that a configuration is checked on, each with its place and its remedy."""

from __future__ import annotations

import os
import re
import resource
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gateway.config import Config
from gateway.config.probable_mistakes import secrets_of

MOUNTS = Path("/proc/self/mountinfo")
PLANNED = Path("/etc/fstab")
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "proc", "sysfs")
FOR_VOLUMES = ("/mnt/", "/media/", "/Volumes/")
"""Folders in which other file systems are mounted by habit."""
FEW_DESCRIPTORS = 1024
"""The gateway refuses clients at a few hundred connections if it has fewer."""

SHORTEST = 16
"""Characters of a secret that is worth a warning."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def folders_of(config: Config) -> Iterator[tuple[str, Path]]:
    """The settings with folders that have to outlive a restart of the machine."""
    if config.store.is_embedded:
        yield "store.url", Path(config.store.url.removeprefix("embedded:"))
    yield "store.journal_dir", Path(config.store.journal_dir)


def of_folders(
    folders: Iterable[tuple[str, Path]], mounts: Path = MOUNTS, planned: Path = PLANNED
) -> Iterator[tuple[str, str]]:
    """Folders in memory, and below mount points at which nothing is mounted. Only known on Linux."""
    mounted = dict(_mounts(mounts))
    wanted = {fields[1] for line in _lines(planned) if len(fields := line.split()) > 2 and not line.startswith("#")}
    for setting, folder in folders:
        real = os.path.realpath(folder)
        above = [place for place in mounted if _is_below(real, place)]
        place = max(above, key=len, default="/")
        if mounted.get(place) in IN_MEMORY:
            yield setting, f"{real} is in memory ({mounted[place]} at {place}): a restart of the machine empties it"
        missing = [each for each in wanted - mounted.keys() if each.startswith("/") and _is_below(real, each)]
        habit = next((each for each in FOR_VOLUMES if real.startswith(each)), None)
        if missing:
            yield setting, f"{real} is below {missing[0]}, which {planned} mounts and which is not mounted now"
        elif mounted and habit is not None and len(place) < len(habit):
            yield setting, f"{real} is on the file system of {place}: nothing is mounted below {habit.rstrip('/')}"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _mounts(path: Path) -> Iterator[tuple[str, str]]:
    """Each mount point with its type; of two on one place, the later one hides the other."""
    for line in _lines(path):
        fields, _, rest = line.partition(" - ")
        yield _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields.split(" ")[4]), rest.split(" ")[0]


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def of_files(files: Iterable[str], config: Config) -> Iterator[tuple[str, str]]:
    """Files with secrets that every user of the machine can read, and files that every user can change."""
    texts = [secret.get_secret_value() for _, secret in secrets_of(config)]
    secrets = [text for text in texts if len(text) >= SHORTEST]  # a shorter one is a sample's
    for file in files:
        try:
            mode, text = Path(file).stat().st_mode, Path(file).read_text(errors="replace")
        except OSError:
            continue
        text_of = f"every user of this machine can {{}} it (mode {mode & 0o777:o}): chmod 600 {file}"
        if mode & stat.S_IWOTH:
            yield file, text_of.format("change")
        elif mode & stat.S_IROTH and any(secret in text for secret in secrets):
            yield file, f"has secrets, and {text_of.format('read')}, or write them as ${{NAME}}"


def of_descriptors(limits: tuple[int, int] | None = None) -> Iterator[tuple[str, str]]:
    """A hard limit of open files that is low; the gateway raises the soft one to it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE) if limits is None else limits
    if 0 <= hard < FEW_DESCRIPTORS:
        yield "ulimit -n", f"{hard} open files are few: a call needs two; set LimitNOFILE or ulimits to 65536"


def findings(config: Config, files: Sequence[str]) -> list[str]:
    """Returns all findings, each as a line."""
    found = [*of_folders(folders_of(config)), *of_files(files, config), *of_descriptors()]
    return [f"{place}: {text}" for place, text in found]
