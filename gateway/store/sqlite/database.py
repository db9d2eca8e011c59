"""The embedded store's file: how it is opened and written.

WAL with synchronous=NORMAL: a killed process loses nothing, a power cut may lose the last transactions but never the
file. A change by an operator is on the disk before it is acknowledged (`synced`).

Every writing transaction is `BEGIN IMMEDIATE`, so that what is read inside it is what is written.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from gateway.config import StoreSettings
from gateway.files import network_file_system
from gateway.store import StoreMisconfigured

from .schema import ADDED, FIRST_SCHEMA, LATER, SCHEMA_VERSION, TABLES

BUSY_TIMEOUT_S = 0.7
"""Longest wait for another worker's transaction; then the store counts as unavailable.

A transaction takes a millisecond, with two exceptions that sync the log while they hold the write lock: an operator's
change, and the first transaction in a new log after a checkpoint (SQLite's wal.c, `walFrames`). On a slow disk other
workers find the file locked meanwhile, and their settlements wait in the journal.
"""

NO_PATIENCE = float("-inf")
"""Passed as the time of its request, it makes the transaction try for the write lock once."""

LOOK_AGAIN_S = (0.0002, 0.001)
"""Pause between two attempts to get the write lock; random, so that no worker is always second."""

FEW_ROWS = 20
"""Rows that fit into one statement, whatever its table (at most 999 values in the oldest SQLite)."""

STATEMENTS_KEPT = 1000
"""Prepared statements; one for each table and number of rows that a batch may read or write."""

_WORDS = {
    sqlite3.SQLITE_BUSY: "another program keeps it locked",
    sqlite3.SQLITE_LOCKED: "another program keeps it locked",
    sqlite3.SQLITE_FULL: "its disk is full",
    sqlite3.SQLITE_IOERR: "its disk cannot be read or written",
    sqlite3.SQLITE_READONLY: "it may not be written",
    sqlite3.SQLITE_PERM: "it may not be used",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_NOTADB: "it is no database",
}


def describe_error(error: sqlite3.Error | OSError) -> str:
    """An error of the file in plain words, followed by SQLite's name of it."""
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    words = _WORDS.get((getattr(error, "sqlite_errorcode", None) or 0) & 0xFF)
    return f"{words} ({error.sqlite_errorname})" if words else str(error)


def is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF == sqlite3.SQLITE_BUSY


def insert(
    db: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: Sequence[Sequence[Any]], end: str = ""
) -> None:
    """Insert all rows by one statement, or by as few as SQLite's limit on values in one allows.

    `executemany` would release and acquire the interpreter lock for every row, while the event loop runs.
    """
    if 0 < len(rows) <= FEW_ROWS:
        db.execute(_insertion(table, columns, len(rows), end), [*chain.from_iterable(rows)])
        return
    most = db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // len(columns)
    for start in range(0, len(rows), most):
        some = rows[start : start + most]
        db.execute(_insertion(table, columns, len(some), end), [*chain.from_iterable(some)])


# Formatting a statement costs as much as executing it.


@lru_cache(maxsize=STATEMENTS_KEPT)
def _insertion(table: str, columns: tuple[str, ...], rows: int, end: str) -> str:
    marks = ", ".join([f"({', '.join('?' * len(columns))})"] * rows)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {marks} {end}"  # noqa: S608 - constants only


@lru_cache(maxsize=STATEMENTS_KEPT)
def among(statement: str, number: int, column: str = "id") -> str:
    """The statement, on rows whose ids are among `number` values."""
    return f"{statement} WHERE {column} IN ({', '.join('?' * number)})"


def path_of(settings: StoreSettings) -> Path:
    return settings.folder / f"{settings.namespace}.sqlite"


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_KEPT
    )
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        db.close()
        raise
    return db


class OpenedFile:
    """Finds out whether the file at a path is still the one that was opened: SQLite writes on to a file that was
    deleted, and a worker that starts later makes another one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = self._identity()

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def check(self) -> None:
        """Raises `sqlite3.OperationalError` if it is not."""
        if self._identity() != self._opened:
            raise sqlite3.OperationalError("it was deleted or replaced; put it back, or restart the gateway")


def check_place(settings: StoreSettings) -> None:
    """Raises `StoreMisconfigured` where the folder is no place for this file."""
    if any(each.is_file() for each in (settings.folder, *settings.folder.parents)):
        raise StoreMisconfigured(f"{settings.folder} is not a folder")
    if (kind := network_file_system(settings.folder)) is not None:
        raise StoreMisconfigured(
            f"{settings.folder} is on a network file system ({kind}), where SQLite's locks cannot be relied on; "
            "put the embedded store on a local disk, or use a Redis"
        )


def create(settings: StoreSettings) -> sqlite3.Connection:
    """Open the file, its tables made where there are none. Another version's file is refused and left as it is.

    Raises `StoreMisconfigured`.
    """
    path = path_of(settings)
    check_place(settings)
    try:
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(path)
        db = connect(path)
        try:
            _make_tables(db, path)
            db.execute("PRAGMA busy_timeout = 0")  # `Transaction` has a patience of its own
        except BaseException:
            db.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise StoreMisconfigured(f"{path}: {describe_error(error)}") from None
    return db


def _make_private(path: Path) -> None:
    """Make the file where there is none, for this user alone; SQLite makes those beside it alike. Raises `OSError`."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass  # not opened: closing it again would free every lock that this process has on it (man 2 fcntl)


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    if (version := schema_of(db)) is None:
        with Transaction(db):
            if (version := schema_of(db)) is None:  # no other process was faster
                version = SCHEMA_VERSION
                for table in TABLES.split(";"):
                    db.execute(table)
                db.execute("INSERT INTO meta VALUES ('schema', ?), ('now_us', 0)", (version,))
    if version != SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an older"
        raise StoreMisconfigured(
            f"{path}: written by {age} gateway (schema {version}, not {SCHEMA_VERSION}); "
            f"{'`gateway serve` upgrades it' if version == FIRST_SCHEMA else 'use that one, or move the file away'}"
        )
    for table in LATER:
        db.execute(table)
    if _lacking(db):
        with Transaction(db):
            for column in _lacking(db):  # again, because another process may have been faster
                db.execute(f"ALTER TABLE {column}")


def _lacking(db: sqlite3.Connection) -> list[str]:
    """The columns that this file lacks, in the form of ALTER TABLE."""
    return [
        f"{table} ADD COLUMN {name} {kind}"
        for table, columns in ADDED.items()
        for name, kind in columns.items()
        if not db.execute("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, name)).fetchone()
    ]


def schema_of(db: sqlite3.Connection) -> int | None:
    """The version of the file's tables; None of an empty file."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return None
    row = db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    return int(row[0]) if row else 0


@contextmanager
def synced(db: sqlite3.Connection) -> Iterator[None]:
    """Transactions of the block, and all before them, are on the disk when they end. Raises `sqlite3.Error`."""
    db.execute("PRAGMA synchronous = FULL")
    try:
        yield
    finally:
        db.execute("PRAGMA synchronous = NORMAL")


class Transaction:
    """All of the block or nothing. Its patience runs from `requested_at`, on the clock of `time.monotonic`: from now,
    or from when it was put into a queue. Raises `sqlite3.Error`.

    SQLite's own busy handler sleeps for up to a tenth of a second between two attempts. With several busy workers,
    whose transactions take a millisecond, one worker could miss the lock for longer than its time limit.
    """

    __slots__ = ("_db", "_deadline")

    def __init__(self, db: sqlite3.Connection, requested_at: float | None = None) -> None:
        self._db = db
        self._deadline = (time.monotonic() if requested_at is None else requested_at) + BUSY_TIMEOUT_S

    def __enter__(self) -> None:
        """Wait for the write lock until the deadline; try once if it has passed."""
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > self._deadline:
                    raise
            time.sleep(random.uniform(*LOOK_AGAIN_S))  # noqa: S311 - no secret

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        db = self._db
        try:
            if kind is None:
                db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
