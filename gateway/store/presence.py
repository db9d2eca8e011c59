"""Who is alive: locks that the kernel releases, whatever their holder died of."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.config import Store

from .sqlite import create


class FolderInUse(Exception):
    """Another gateway uses this folder."""


@contextmanager
def exclusive_folder(settings: Store) -> Iterator[None]:
    """Hold the store's folder for one gateway, its tables made before several workers want to make them at once.

    Raises `FolderInUse`; `OSError` or `sqlite3.Error` where the folder or the file cannot be used.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    with (settings.folder / "gateway.lock").open("a") as lock:
        if not _try_lock(lock.fileno()):
            raise FolderInUse(
                f"another gateway is using {settings.folder}; stop it, or give this one its own store.url"
            )
        create(settings).close()
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Presence:
    """A worker's lock on a file of its own: free as soon as the worker is gone, whatever it died of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "workers"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.worker = uuid.uuid4().hex
        # Locked before it has its name, or another worker that starts at this moment would find it free.
        starting = self._folder / f"{self.worker}.starting"
        self._descriptor = os.open(starting, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _try_lock(self._descriptor)
        starting.rename(self._path(self.worker))

    def _path(self, worker: str) -> Path:
        return self._folder / f"{worker}.lock"

    def is_gone(self, worker: str) -> bool:
        """Whether that worker has died."""
        if worker == self.worker:
            return False
        try:
            descriptor = os.open(self._path(worker), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def forget(self, worker: str) -> None:
        self._path(worker).unlink(missing_ok=True)

    def leave(self) -> None:
        self.forget(self.worker)
        os.close(self._descriptor)
