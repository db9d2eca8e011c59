"""The embedded store's file: its tables, and how it is opened and written.

WAL with synchronous=NORMAL: a killed process loses nothing, a power cut may lose the last transactions but never the
file. Every writing transaction is `BEGIN IMMEDIATE`, so that what is read inside it is what is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.config import Store

SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 0.7
"""Longest wait for another worker's transaction; then the store counts as away."""

META = "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID"

TABLES = """
CREATE TABLE IF NOT EXISTS windows (
    id TEXT PRIMARY KEY, used INTEGER NOT NULL, reserved INTEGER NOT NULL, at_us INTEGER NOT NULL,
    resets_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    id TEXT PRIMARY KEY, worker TEXT NOT NULL, drawn_us INTEGER NOT NULL, draw TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS records_by_key ON records (key, seq);
CREATE TABLE IF NOT EXISTS sums (
    day TEXT, key TEXT, team TEXT, model TEXT, upstream TEXT, endpoint TEXT,
    requests INTEGER NOT NULL, errors INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
    estimated_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key, team, model, upstream, endpoint)) WITHOUT ROWID;
"""

SUMS = (
    "requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "estimated_tokens",
)  # fmt: skip

ADD_SUM = (
    f"INSERT INTO sums VALUES ({', '.join('?' * (6 + len(SUMS)))}) "  # noqa: S608 - constants only
    "ON CONFLICT (day, key, team, model, upstream, endpoint) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)
)


def path_of(settings: Store) -> Path:
    return settings.folder / f"{settings.namespace}.sqlite"


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
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
            if version > SCHEMA_VERSION:
                raise sqlite3.DatabaseError(f"written by a newer gateway (schema {version}, not {SCHEMA_VERSION})")
            for table in TABLES.split(";"):
                db.execute(table)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
