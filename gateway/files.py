"""Folders that belong to one process, by a lock that the kernel releases when the process ends for any reason."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "gateway.lock"

FREED_WITHIN_S = 3.0
"""A gateway that was just killed holds its folders until the last process that it was starting is gone, too."""


class FolderInUse(Exception):
    """Another gateway uses this folder."""


@contextmanager
def exclusive(folder: Path, setting: str) -> Iterator[None]:
    """Hold a folder for one gateway; `setting` is where another can be chosen. Where there is none, one is made that
    is this user's alone.

    Raises `FolderInUse`, or `OSError` where the folder cannot be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        deadline = time.monotonic() + FREED_WITHIN_S
        while True:
            try:
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    hint = f"stop it, or give this one its own {setting}"
                    raise FolderInUse(f"another gateway is using {folder}; {hint}") from None
                time.sleep(0.05)
        yield


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An `OSError` of the block names this path where it names none, as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """A folder of this process among the temporary ones, gone at the end; and what killed ones left goes first."""
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            _remove_if_free(left)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with exclusive(folder, "folder"):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_free(folder: Path) -> None:
    """A folder without a lock file may be one that is being made this moment, and stays."""
    with (folder / LOCK).open("r+") as lock:
        if os.fstat(lock.fileno()).st_uid != os.getuid():
            return
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


MOUNTS = Path("/proc/self/mountinfo")

NETWORK_TYPES = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "pvfs2", "s3fs", "smb3", "smbfs", "sshfs",
})  # fmt: skip
"""9p is not among them: it is how some sandboxes and virtual machines show a disk of their own host."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the network file system that a path lies on or would lie on, such as `nfs4`; None if it is
    local or unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    found, depth = "", -1
    for line in lines:
        fields, _, rest = line.partition(" - ")
        place, kind = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields.split(" ")[4]), rest.split(" ")[0]
        # Of two mounts on one place, the later one hides the other.
        if len(place) >= depth and (place == real or real.startswith(place.rstrip("/") + "/")):
            found, depth = kind, len(place)
    kind = found.removeprefix("fuse.")
    return kind if kind in NETWORK_TYPES else None
