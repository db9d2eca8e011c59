"""The folder of a journal, with a lock that is free as soon as its worker has ended.

The name of the folder is the name of the journal. A folder is made under another name (`.new`), with the lock held,
and gets its own by renaming; it is unmade the other way round (`.gone`). So a
process that is killed at any point leaves either a journal or a folder that any process may delete. The lock's file
names the store that the journal belongs to.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from gateway.files import network_file_system

log = logging.getLogger("gateway")

SCHEMA = 1
"""Schema version of the journal's files. A newer gateway wrote a journal with a higher version, so this one does not
use it."""

STALE_S = 60
"""A folder that is still being made after this long never will be."""

_NAME = re.compile(r"[0-9a-f]{32}")
_HEAD_BYTES = 4096


class JournalDirectory:
    """The folder of one journal, locked."""

    def __init__(self, path: Path, descriptor: int, boot: str) -> None:
        self.path = path
        self.is_of_this_boot = boot == _boot()
        """Whether only its worker has ended, not its machine, so that every written entry is present."""
        self._descriptor = descriptor

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def make(cls, folder: Path, origin: str) -> JournalDirectory:
        """A new one, named at random. Raises `OSError`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / uuid.uuid4().hex
        making = path.with_suffix(".new")
        making.mkdir(mode=0o700)
        descriptor = -1
        try:
            descriptor = os.open(making / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            boot = _boot()
            head = {"schema": SCHEMA, "origin": origin, "boot": boot}
            os.write(descriptor, json.dumps(head).encode() + b"\n")
            os.fsync(descriptor)
            making.rename(path)
        except BaseException:
            if descriptor >= 0:
                os.close(descriptor)
            shutil.rmtree(making, ignore_errors=True)
            raise
        sync_folder(path)
        sync_folder(folder)
        return cls(path, descriptor, boot)

    @classmethod
    def free(cls, folder: Path, origin: str) -> Iterator[JournalDirectory]:
        """The journals of ended workers with this origin, each locked for the caller. Deletes half made folders."""
        try:
            paths = sorted(folder.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            if _NAME.fullmatch(path.name):
                try:
                    directory = cls._enter(path, origin)
                except FileNotFoundError:
                    continue  # it was removed at this moment
                except OSError as error:
                    warn_unused(str(path), f"it cannot be read ({error.strerror})")
                    continue
                if directory is not None:
                    yield directory
            elif _NAME.fullmatch(path.stem) and (path.suffix == ".gone" or (path.suffix == ".new" and _is_stale(path))):
                shutil.rmtree(path, ignore_errors=True)

    @classmethod
    def _enter(cls, path: Path, origin: str) -> JournalDirectory | None:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed it while we were waiting at the door.
            if not os.path.samestat(os.fstat(descriptor), (path / "lock").stat()):
                raise FileNotFoundError(path)
            reason, boot = _read_head(os.read(descriptor, _HEAD_BYTES), origin)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        if reason:
            warn_unused(str(path), reason)
            os.close(descriptor)
            return None
        return cls(path, descriptor, boot)

    def remove(self) -> None:
        """Delete the folder, and release the lock. Raises `OSError` with the lock still held."""
        going = self.path.with_suffix(".gone")
        try:
            self.path.rename(going)
        except FileNotFoundError:
            pass  # removed by hand
        shutil.rmtree(going, ignore_errors=True)
        self.leave()

    def leave(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def foreign_journals(folder: Path, origin: str) -> dict[str, int]:
    """How many journals in a folder belong to each ledger other than `origin`. None is locked or changed."""
    found: Counter[str] = Counter()
    try:
        heads = [lock for lock in sorted(folder.glob("*/lock")) if _NAME.fullmatch(lock.parent.name)]
    except OSError:
        return {}
    for head in heads:
        try:
            with head.open("rb") as lock:
                whose = json.loads(lock.readline(_HEAD_BYTES))["origin"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # gone meanwhile, or not a journal
        if isinstance(whose, str) and whose != origin:
            found[whose] += 1
    return dict(found)


def sync_folder(path: Path) -> None:
    """Have the names in a folder survive a power cut. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_stale(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > STALE_S
    except OSError:
        return False


def _read_head(head: bytes, origin: str) -> tuple[str, str]:
    """Why a journal with such a head is not for us, nothing where it is; and since which start of which machine."""
    try:
        fields = json.loads(head)
        schema, whose, boot = fields["schema"], fields["origin"], str(fields.get("boot"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "the first line of its lock file was not written by a gateway", ""
    if schema != SCHEMA:
        return f"a newer gateway wrote it (schema {schema})", ""
    return "" if whose == origin else f"it belongs to another ledger, {whose}", boot


def _boot() -> str:
    """The id of this start of the machine; empty where the system has none. Linux has one (man 4 random)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@lru_cache(maxsize=1024)
def warn_unused(path: str, reason: str) -> None:
    """Log why a journal is not used: once, however often it is found."""
    log.warning("the journal %s is not used: %s", path, reason)


def problem_with(folder: Path) -> str | None:
    """Why no journal should be kept in a folder, in plain words; None where one may be. It need not exist yet.

    Network file systems are only known on Linux.
    """
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is not a folder"
    # The second condition is for root, for whom os.access allows every write.
    if not os.access(existing, os.W_OK | os.X_OK) or os.statvfs(existing).f_flag & os.ST_RDONLY:
        return f"{existing} cannot be written by this user"
    if kind := network_file_system(existing):
        return f"{folder} is on a network file system ({kind}), where locks and writes cannot be relied upon"
    return None
