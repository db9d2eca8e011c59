"""A copy of the embedded store's file, made while gateways write to it.

SQLite's backup reads all of it in one transaction. In WAL mode that is a picture of one moment, which keeps no writer
waiting and is not begun anew for what is written meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from gateway.config import StoreSettings
from gateway.store import StoreMisconfigured

from .database import describe_error, path_of

PART = ".part"


class NotBackedUp(Exception):
    """There is no copy; the text has the reason, and what to do."""


def back_up(settings: StoreSettings, to: Path) -> int:
    """Write a checked copy, readable by this user only. Returns its size in bytes. Raises `NotBackedUp`;
    after any fault `to` is either absent or whole."""
    source = path_of(settings)
    if not source.exists():
        raise NotBackedUp(f"there is no {source.absolute()}")
    if to.exists():
        raise NotBackedUp(f"{to} is there already; name another file, or move it away")
    part = to.with_name(to.name + PART)
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise NotBackedUp(f"{part} is there: another backup is under way, or was broken off; remove it then") from None
    except OSError as error:
        raise NotBackedUp(f"{to}: {describe_error(error)}") from None
    try:
        _copy(source, part)
        _keep(part, to)
        return to.stat().st_size
    except FileExistsError:
        raise NotBackedUp(f"{to} is there already; name another file, or move it away") from None
    except (sqlite3.Error, OSError, StoreMisconfigured) as error:
        why = describe_error(error) if isinstance(error, sqlite3.Error | OSError) else str(error)
        raise NotBackedUp(f"cannot copy {source} to {to}: {why}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _copy(source: Path, part: Path) -> None:
    # Opened for writing, though nothing is written: a read-only connection would leave the two files of WAL behind.
    with (
        contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as original,
        contextlib.closing(sqlite3.connect(part)) as copy,
    ):
        original.backup(copy)  # all pages in one step, which is one transaction
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StoreMisconfigured(f"the copy is damaged: {found}")
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without others beside it


def _keep(part: Path, to: Path) -> None:
    """Give it its name, durably, unless another process has taken the name meanwhile."""
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.link(part, to)
