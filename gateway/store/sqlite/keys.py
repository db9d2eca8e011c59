"""Keys, teams and overlays in the embedded store's file: how they are read, and what one change does.

The audit log's positions are its rows' numbers. Only the oldest rows ever go, so that no number comes twice.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from gateway.chunked import portions
from gateway.config import StoreSettings
from gateway.records import Bond, Window, WindowState
from gateway.store import Deferred
from gateway.store.key_store import (
    AUDIT_KEPT,
    CHANGES_AT_ONCE,
    READ_AT_ONCE,
    ChangeFeed,
    DocumentKind,
    SecretTaken,
    StoreChange,
    StoredAudit,
)

from .bonds import bonds_of, find_bond
from .database import among, connect, insert, path_of
from .schema import AUDIT, DOCUMENT, SECRET, SET_DOCUMENT

TRIM_EVERY = 100
"""Entries of the audit log between two checks of its length. Counted by their numbers, because a command makes one
change and ends."""

_POSITION = re.compile(r"[0-9]{1,18}")

_FIND = "SELECT digest, text FROM secrets JOIN documents ON kind = 'key' AND name = key"

_READ = "SELECT name, text FROM documents"

_LAST = "SELECT coalesce(max(seq), 0) FROM audit"


class KeyReader:
    """Short reads on a connection of its own, used from one thread. All methods raise `sqlite3.Error`."""

    def __init__(self, settings: StoreSettings) -> None:
        self._db = connect(path_of(settings))
        self._deferred_after = ""
        """The deferred lease behind which the next look begins."""

    def windows(self, ids: Sequence[str]) -> dict[str, WindowState]:
        select = "SELECT used, reserved, at_us FROM windows WHERE id = ?"
        found = {window: self._db.execute(select, (window,)).fetchone() for window in ids}
        return {window: WindowState(*row) for window, row in found.items() if row}

    def find_keys(self, digests: Sequence[str]) -> list[str | None]:
        found: dict[str, str] = {}
        for some in portions(digests, READ_AT_ONCE):
            found.update(self._db.execute(among(_FIND, len(some), "digest"), some))
        return [found.get(digest) for digest in digests]

    def read(self, kind: DocumentKind, names: Sequence[str]) -> list[str | None]:
        found: dict[str, str] = {}
        for some in portions(names, READ_AT_ONCE):
            found.update(self._db.execute(f"{among(_READ, len(some), 'name')} AND kind = ?", (*some, kind)))
        return [found.get(name) for name in names]

    def page(self, kind: DocumentKind, after: str, limit: int) -> list[tuple[str, str]]:
        return self._db.execute(
            "SELECT name, text FROM documents WHERE kind = ? AND name > ? ORDER BY name LIMIT ?", (kind, after, limit)
        ).fetchall()

    def changes_since(self, since: str | None) -> ChangeFeed:
        """Implements `KeyStore.changes_since`. `0` is the position of an empty log."""
        if since is None or not _POSITION.fullmatch(since):
            (last,) = self._db.execute(_LAST).fetchone()
            return ChangeFeed(str(last), is_complete=since is None)
        start = int(since)
        rows = self._db.execute(
            "SELECT seq, kind, name FROM audit WHERE seq >= ? ORDER BY seq LIMIT ?", (start, CHANGES_AT_ONCE + 2)
        ).fetchall()
        is_known = rows[0][0] == (start or 1) if rows else not start
        changed = rows[1:] if start else rows
        if not is_known or len(changed) > CHANGES_AT_ONCE:
            (last,) = self._db.execute(_LAST).fetchone()
            return ChangeFeed(str(last), is_complete=False)
        return ChangeFeed(
            str(rows[-1][0]) if rows else since, tuple(dict.fromkeys((row[1], row[2]) for row in changed))
        )

    def audit(self, limit: int, before: str | None) -> list[StoredAudit]:
        if before is not None and not _POSITION.fullmatch(before):
            raise ValueError(f"{before!r} is no position in the audit log")
        end = 2**63 - 1 if before is None else int(before)
        rows = self._db.execute(
            "SELECT seq, kind, name, text FROM audit WHERE seq < ? ORDER BY seq DESC LIMIT ?", (end, limit)
        )
        return [StoredAudit(str(seq), kind, name, text) for seq, kind, name, text in rows]

    def find_deferred(self, lease: str) -> Deferred | None:
        row = self._db.execute("SELECT text FROM deferred WHERE lease = ?", (lease,)).fetchone()
        return None if row is None else Deferred(lease, *row[0].rsplit("\t", 1))

    def deferred(self, limit: int) -> list[Deferred]:
        wanted = "SELECT lease, text FROM deferred WHERE lease > ? ORDER BY lease LIMIT ?"
        rows = self._db.execute(wanted, (self._deferred_after, limit)).fetchall()
        self._deferred_after = rows[-1][0] if len(rows) == limit else ""
        return [Deferred(lease, *text.rsplit("\t", 1)) for lease, text in rows]

    def find_bond(self, bond_id: str, now: float) -> Bond | None:
        return find_bond(self._db, bond_id, now)

    def bonds_of(self, key: str, kind: str, now: float) -> list[Bond]:
        return bonds_of(self._db, key, kind, now)

    def close(self) -> None:
        self._db.close()


def apply_change(db: sqlite3.Connection, change: StoreChange, now_us: int) -> bool:
    """Apply one change, in a transaction that the caller has begun; False: not applied, because the document differs.

    Raises `SecretTaken`: then the transaction has to be taken back.
    """
    kind, name = change.kind, change.name
    row = db.execute("SELECT text FROM documents WHERE kind = ? AND name = ?", (kind, name)).fetchone()
    if (row and row[0]) != change.before:
        return False
    for digest in change.secrets_added:
        whose = db.execute("SELECT key FROM secrets WHERE digest = ?", (digest,)).fetchone()
        if whose and whose[0] != name:
            raise SecretTaken
    if change.after is None:
        db.execute("DELETE FROM documents WHERE kind = ? AND name = ?", (kind, name))
    else:
        insert(db, "documents", DOCUMENT, [(kind, name, change.after)], SET_DOCUMENT)
    for digest in change.secrets_removed:
        db.execute("DELETE FROM secrets WHERE digest = ? AND key = ?", (digest, name))
    insert(db, "secrets", SECRET, [(digest, name) for digest in change.secrets_added], "ON CONFLICT DO NOTHING")
    for window in change.resets:
        _reset(db, window, now_us)
    if change.audit:
        _add_to_audit_log(db, change)
    return True


def _reset(db: sqlite3.Connection, window: Window, now_us: int) -> None:
    if window.starts:
        db.execute("UPDATE windows SET used = 0 WHERE id = ?", (window.id,))
    elif window.period_us:
        db.execute("UPDATE windows SET used = 0, at_us = ? WHERE id = ?", (now_us, window.id))


def _add_to_audit_log(db: sqlite3.Connection, change: StoreChange) -> None:
    insert(db, "audit", AUDIT, [(change.kind, change.name, change.audit)])
    (seq,) = db.execute(_LAST).fetchone()
    if seq % TRIM_EVERY == 0:
        db.execute("DELETE FROM audit WHERE seq <= ?", (seq - AUDIT_KEPT,))
