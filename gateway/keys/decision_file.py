"""The decision journal of one gateway: a file of the changes that operators made here and the store acknowledged.

The first line names the journal; each other line is one change as JSON, with a number that rises. A change whose
outcome is not known has a line with its number alone. All processes of a gateway share the file and write it under a
lock, and so do commands beside it: what root makes here belongs to the user that the file belongs to. It holds no
secrets, only their SHA-256.

The file is bounded: beyond `MAX_CHANGES` the oldest changes go, revocations and deletions of keys last.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gateway.records import Window
from gateway.store import StoreChange, StoreUnavailable

from .restoration import ends_a_key

log = logging.getLogger("gateway")

SCHEMA = 1
MAX_CHANGES = 2000
MAX_ENDS = 50_000
LOCKED_WITHIN_S = 10.0
TRY_AGAIN_S = 0.01


class Decision(NamedTuple):
    """A line of the decision file."""

    number: int
    change: StoreChange | None
    """None: unknown whether it was made; it was not acknowledged to an operator."""


class DecisionFile:
    """One process' view of the file; `open` it. Used from one event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._inode = 0
        self._read_bytes = 0
        self._long = 2 * MAX_CHANGES
        self.journal = ""
        """The name of the journal; empty where there is no file."""
        self.decisions: list[Decision] = []
        """Oldest first, as of the last `refresh`."""

    @classmethod
    def of(cls, folder: Path, origin: str) -> DecisionFile:
        """The file for one store (`StoreSettings.origin`) in a gateway's journal folder."""
        return cls(folder / f"decisions-{hashlib.sha256(origin.encode()).hexdigest()[:16]}")

    @property
    def last(self) -> int:
        """The highest number of a decision; 0 if there is none."""
        return self.decisions[-1].number if self.decisions else 0

    def refresh(self) -> None:
        """Read what other processes have written since. Raises `OSError`."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._inode, self._read_bytes, self.journal, self.decisions = 0, 0, "", []
            return
        if found.st_ino != self._inode:
            self._inode, self._read_bytes, self.decisions = found.st_ino, 0, []
        if found.st_size == self._read_bytes:
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")  # behind it is a line that is still being written
        lines = whole.split(b"\n")
        if not self._read_bytes:
            self.journal = self._read_head(lines.pop(0))
        self.decisions += [decision for line in lines if line and (decision := _decode(line)) is not None]
        self._read_bytes += len(whole) + len(end)

    def _read_head(self, line: bytes) -> str:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            return str(json.loads(line)["journal"])
        raise OSError(errno.EIO, "its first line is damaged; move the file away and restart", str(self._path))

    @property
    def obstacle(self) -> str | None:
        """Why this process cannot add a change; None: it can."""
        path = self._path.absolute()
        if not os.access(path.parent, os.X_OK) or not path.exists():
            return f"{path} is not there, or may not be seen by this user"
        return None if os.access(path, os.R_OK | os.W_OK) else f"{path} may not be written by this user"

    def create(self) -> None:
        """Make the file where there is none. Raises `OSError`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            journal = uuid.uuid4().hex
            making = self._write(self._path.with_suffix(f".{journal}"), journal, ())
            with contextlib.suppress(FileExistsError):  # another worker was faster
                os.link(making, self._path)
            making.unlink()

    @asynccontextmanager
    async def locked(self, within_s: float = LOCKED_WITHIN_S) -> AsyncIterator[None]:
        """Hold the file against other processes, read anew. Raises `OSError`, `StoreUnavailable` if another process
        does not release it in this time."""
        async with self._turn:
            descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._leave_to_owner(descriptor)
                deadline = time.monotonic() + within_s
                while not _is_locked(descriptor):
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(f"another process holds {self._path}")
                    await asyncio.sleep(TRY_AGAIN_S)
                self.refresh()
                yield
            finally:
                os.close(descriptor)

    def append(self, decision: Decision) -> None:
        """Add a change, on the disk when this returns. To be called while locked. Raises `OSError`."""
        # A line that a full disk has cut is ended here: it is skipped when the file is read.
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            end = b"" if file.read(1) == b"\n" else b"\n"
        with self._path.open("ab") as file:
            file.write(end + _encode(decision))
            file.flush()
            os.fsync(file.fileno())
        self.refresh()
        if len(self.decisions) > self._long:
            self._replace(self.journal, _kept(self.decisions))
            self.refresh()
            self._long = len(self.decisions) + MAX_CHANGES

    def _replace(self, journal: str, decisions: Iterable[Decision]) -> None:
        self._write(self._path.with_suffix(".new"), journal, decisions).rename(self._path)

    def _write(self, path: Path, journal: str, decisions: Iterable[Decision]) -> Path:
        with open(path, "wb", opener=partial(os.open, mode=0o600)) as file:
            self._leave_to_owner(file.fileno())
            file.write(json.dumps({"schema": SCHEMA, "journal": journal}).encode() + b"\n")
            file.writelines(_encode(decision) for decision in decisions)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _leave_to_owner(self, descriptor: int) -> None:
        """Give an open file to the owner of the journal, if this process may."""
        if os.geteuid() == 0:
            with contextlib.suppress(FileNotFoundError):
                owner = self._path.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _is_locked(descriptor: int) -> bool:
    """Take the lock; False where another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kept(decisions: list[Decision]) -> list[Decision]:
    """The newest changes, and of older ones those that end a key."""
    older, newest = decisions[:-MAX_CHANGES], decisions[-MAX_CHANGES:]
    ends = [each for each in older if each.change is not None and ends_a_key(each.change)]
    return ends[-MAX_ENDS:] + newest


def _encode(decision: Decision) -> bytes:
    values: dict[str, Any] = {"number": decision.number}
    if decision.change is not None:
        values["change"] = decision.change._asdict()
    return json.dumps(values).encode() + b"\n"


def _decode(line: bytes) -> Decision | None:
    """None for a line that is cut or of another version."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        values = json.loads(line)
        if (change := values.get("change")) is None:
            return Decision(values["number"], None)
        change["resets"] = tuple(Window(*window) for window in change["resets"])
        change["cleared"] = tuple(change.get("cleared", ()))  # which older gateways did not note
        change["secrets_added"], change["secrets_removed"] = (
            tuple(change["secrets_added"]), tuple(change["secrets_removed"])
        )  # fmt: skip
        return Decision(values["number"], StoreChange(**change))
    log.error("a line of the decision journal cannot be read, and is left out: %.80r", line)
    return None
