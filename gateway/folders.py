"""One gateway for each folder: a lock that the kernel releases, whatever its holder died of."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderInUse(Exception):
    """Another gateway uses this folder."""


@contextmanager
def exclusive(folder: Path, setting: str) -> Iterator[None]:
    """Hold a folder for one gateway; `setting` is where another can be chosen. Where there is none, one is made that
    is this user's alone.

    Raises `FolderInUse`, or `OSError` where the folder cannot be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "gateway.lock").open("a") as lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = f"stop it, or give this one its own {setting}"
            raise FolderInUse(f"another gateway is using {folder}; {hint}") from None
        yield
