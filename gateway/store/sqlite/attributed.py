"""Sums by user and tag in the embedded store, with a bounded number of groups."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence

from gateway.quota.ledger_entry import SUMS
from gateway.records import OTHER
from gateway.store import ATTRIBUTED_A_DAY, ATTRIBUTED_OF_KEY

from .database import insert
from .schema import ADD_ATTRIBUTED, ATTRIBUTED_GROUP

Group = tuple[str, str, str, str, str, str]
"""As `ATTRIBUTED_GROUP`: day, key, name, value, team, model."""

_KNOWN = "SELECT 1 FROM attributed WHERE " + " AND ".join(f"{name} = ?" for name in ATTRIBUTED_GROUP)  # noqa: S608 - constants


class AttributedSums:
    """The groups that one worker has seen in the file."""

    def __init__(self) -> None:
        self._known: set[Group] = set()

    def add(self, db: sqlite3.Connection, sums: Mapping[Group, Sequence[int]]) -> None:
        """Add sums; those of groups for which there is no room count under `OTHER`."""
        fresh: Counter[tuple[str, str]] = Counter()
        rows = [(*self._admitted(db, group, fresh), *numbers) for group, numbers in sums.items()]
        insert(db, "attributed", ATTRIBUTED_GROUP + SUMS, rows, ADD_ATTRIBUTED)

    def _admitted(self, db: sqlite3.Connection, group: Group, fresh: Counter[tuple[str, str]]) -> Group:
        if group in self._known:
            return group
        day, key, name, _, team, model = group
        if not db.execute(_KNOWN, group).fetchone():
            (of_key,) = db.execute("SELECT count(*) FROM attributed WHERE day = ? AND key = ?", (day, key)).fetchone()
            (of_day,) = db.execute("SELECT count(*) FROM attributed WHERE day = ?", (day,)).fetchone()
            if of_key + fresh[day, key] >= ATTRIBUTED_OF_KEY or of_day + fresh.total() >= ATTRIBUTED_A_DAY:
                return day, key, name, OTHER, team, model
            fresh[day, key] += 1
        if len(self._known) >= ATTRIBUTED_A_DAY:
            self._known.clear()
        self._known.add(group)
        return group
