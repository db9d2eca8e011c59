"""The embedded store's file: its tables, and how it is opened and written.

WAL with synchronous=NORMAL: a killed process loses nothing, a power cut may lose the last transactions but never the
file. Every writing transaction is `BEGIN IMMEDIATE`, so that what is read inside it is what is written.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from gateway.config import Store

SCHEMA_VERSION = 2
BUSY_TIMEOUT_S = 0.7
"""Longest wait for another worker's transaction; then the store counts as away."""

LOOK_AGAIN_S = (0.0002, 0.001)
"""Between two looks whether another worker's transaction has ended; by chance, so that nobody is always second."""

META = "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID"

_RECORD = """
    id TEXT NOT NULL, time REAL NOT NULL, key TEXT NOT NULL, team TEXT, endpoint TEXT NOT NULL, model TEXT NOT NULL,
    label_model TEXT NOT NULL, routed_model TEXT NOT NULL, returned_model TEXT, upstream TEXT NOT NULL,
    status INTEGER NOT NULL, stream INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
    usage_source TEXT NOT NULL, ended TEXT NOT NULL, first_byte_s REAL, duration_s REAL NOT NULL,
    attempts INTEGER NOT NULL, truncated INTEGER NOT NULL, client_request_id TEXT"""

# A window stands with all that is needed to settle a claim on it. A lease is the record that will stand if nobody
# settles, and what was drawn: pairs of a window and an amount.
TABLES = f"""
CREATE TABLE IF NOT EXISTS windows (
    id TEXT PRIMARY KEY, scope TEXT NOT NULL, unit TEXT NOT NULL, per TEXT NOT NULL, model TEXT,
    "limit" INTEGER NOT NULL, period_us INTEGER NOT NULL, starts TEXT NOT NULL, resets_us INTEGER NOT NULL,
    is_enforced INTEGER NOT NULL, used INTEGER NOT NULL, reserved INTEGER NOT NULL,
    at_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    {_RECORD}, worker TEXT NOT NULL, drawn_us INTEGER NOT NULL, claims TEXT NOT NULL, PRIMARY KEY (id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (seq INTEGER PRIMARY KEY, {_RECORD});
CREATE INDEX IF NOT EXISTS records_by_key ON records (key, seq);
CREATE TABLE IF NOT EXISTS sums (
    day TEXT, key TEXT, team TEXT, model TEXT, upstream TEXT, endpoint TEXT,
    requests INTEGER NOT NULL, errors INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
    estimated_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key, team, model, upstream, endpoint)) WITHOUT ROWID;
"""

_STATE = ("used", "reserved", "at_us")

WINDOW = (
    "id", "scope", "unit", "per", "model", '"limit"', "period_us", "starts", "resets_us", "is_enforced", *_STATE,
)  # fmt: skip

SET_WINDOW = 'ON CONFLICT (id) DO UPDATE SET "limit" = excluded."limit", ' + ", ".join(
    f"{name} = excluded.{name}" for name in _STATE
)

RECORD = (
    "id", "time", "key", "team", "endpoint", "model", "label_model", "routed_model", "returned_model", "upstream",
    "status", "stream", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "usage_source",
    "ended", "first_byte_s", "duration_s", "attempts", "truncated", "client_request_id",
)  # fmt: skip

LEASE = (*RECORD, "worker", "drawn_us", "claims")

SUM_GROUP = ("day", "key", "team", "model", "upstream", "endpoint")

SUMS = (
    "requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "estimated_tokens",
)  # fmt: skip

ADD_SUMS = f"ON CONFLICT ({', '.join(SUM_GROUP)}) DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in SUMS
)

STATEMENTS_KEPT = 1000
"""Prepared statements; one for each table and number of rows that a batch may write (`insert`)."""


def insert(
    db: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], end: str = ""
) -> None:
    """Insert all rows by one statement, or by as few as SQLite's limit on values in one allows.

    `executemany` would let go of the interpreter and fight for it again with every row, while the event loop runs.
    """
    most = db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // len(columns)
    for start in range(0, len(rows), most):
        some = rows[start : start + most]
        marks = ", ".join([f"({', '.join('?' * len(columns))})"] * len(some))
        text = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {marks} {end}"  # noqa: S608 - constants only
        db.execute(text, list(chain.from_iterable(some)))


def path_of(settings: Store) -> Path:
    return settings.folder / f"{settings.namespace}.sqlite"


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_KEPT,
    )
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        db.close()
        raise
    return db


def create(settings: Store) -> sqlite3.Connection:
    """Open the file, its tables made where there are none. A newer gateway's file is refused and left as it is.

    Raises `sqlite3.Error`, or `OSError` for the folder.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    db = connect(path_of(settings))
    try:
        with transaction(db):
            db.execute(META)
            db.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (SCHEMA_VERSION,))
            (version,) = db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
            if version != SCHEMA_VERSION:
                age = "a newer" if version > SCHEMA_VERSION else "an older"
                raise sqlite3.DatabaseError(
                    f"written by {age} gateway (schema {version}, not {SCHEMA_VERSION}); "
                    "use that one, or move the file away"
                )
            for table in TABLES.split(";"):
                db.execute(table)
        db.execute("PRAGMA busy_timeout = 0")  # `transaction` has a patience of its own
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection, wished_at: float | None = None) -> Iterator[None]:
    """All of the block or nothing. Its patience runs from `wished_at`, on the clock of `time.monotonic`: from now, or
    from when it was put into a queue."""
    _begin(db, (time.monotonic() if wished_at is None else wished_at) + BUSY_TIMEOUT_S)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _begin(db: sqlite3.Connection, deadline: float) -> None:
    """Wait for the right to write until the deadline; look once, if it has passed.

    SQLite's own way of waiting sleeps for up to a tenth of a second between two looks. Among several busy workers,
    whose transactions take a millisecond, that leaves the unlucky one without its turn for longer than it may wait.
    """
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(*LOOK_AGAIN_S))  # noqa: S311 - no secret
