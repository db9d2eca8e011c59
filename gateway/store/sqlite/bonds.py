"""Bonds in the embedded store's file."""

from __future__ import annotations

import sqlite3

from gateway.records import Bond
from gateway.store.bonds import BOND_KEPT_S, BONDS_KEPT, CONVERSATION, KIND, decode_bond, encode_bond, owner_of

from .database import insert
from .retention import clock_of

COLUMNS = ("id", "key", "until", "text")

_IN_PLACE = "ON CONFLICT (id) DO UPDATE SET until = excluded.until, text = excluded.text WHERE bonds.key = excluded.key"

DELETED_AT_ONCE = 100
"""Bonds that one transaction deletes, so that it stays short."""


def add_bond(db: sqlite3.Connection, bond: Bond, now: float) -> None:
    """Implements `BondStore.add_bond` in a transaction that the caller has begun."""
    if bond.kind == CONVERSATION and (known := find_bond(db, bond.id, now)) is not None:
        bond = bond._replace(tokens=max(0, known.tokens + bond.tokens))
    insert(db, "bonds", COLUMNS, [(bond.id, owner_of(bond), now + BOND_KEPT_S, encode_bond(bond))], _IN_PLACE)
    oldest = min(now, clock_of(db))
    db.execute(
        "DELETE FROM bonds WHERE seq IN (SELECT seq FROM bonds WHERE until < ? LIMIT ?)", (oldest, DELETED_AT_ONCE)
    )
    db.execute(
        "DELETE FROM bonds WHERE seq IN (SELECT seq FROM bonds WHERE key = ? ORDER BY seq DESC LIMIT ? OFFSET ?)",
        (owner_of(bond), DELETED_AT_ONCE, BONDS_KEPT),
    )


def find_bond(db: sqlite3.Connection, bond_id: str, now: float) -> Bond | None:
    row = db.execute("SELECT text FROM bonds WHERE id = ? AND until >= ?", (bond_id, now)).fetchone()
    return decode_bond(row[0]) if row else None


def bonds_of(db: sqlite3.Connection, key: str, kind: str, now: float) -> list[Bond]:
    rows = db.execute(
        "SELECT text FROM bonds WHERE key = ? AND until >= ? AND coalesce(json_extract(text, ?), '') = ? "
        "ORDER BY seq DESC LIMIT ?",
        (key, now, f"$[{KIND}]", kind, BONDS_KEPT),
    )
    return [decode_bond(text) for (text,) in rows]
