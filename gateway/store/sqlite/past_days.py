"""Sums of past days without their keys, kept in memory for reports.

Most reports are about no key: of a thousand keys they would read thousands of rows of each day, where a hundred are
left without the keys. A day is added up when a report first reads it. It is read again once its entry in `late` has
changed, which every batch writes that changes a day before its own (ledger.py).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence

from gateway.quota.ledger_entry import SUMS
from gateway.quota.windows import calendar_window

from .schema import SUM_GROUP

DAY_S = 86_400

KEPT_S = 3600.0
"""While gateways are replaced, an older one may change a past day and write no entry in `late`."""

ROWS_KEPT = 100_000
"""Largest number of rows: about fifteen megabytes. Further days are read from the file."""

_NAMES = tuple(name for name in SUM_GROUP if name != "key")
_COLUMNS = ", ".join([*_NAMES, *SUMS])
_ADDED_UP = ", ".join([*_NAMES, *(f"sum({name})" for name in SUMS)])

TABLE = f"CREATE TEMP TABLE past ({_COLUMNS}, PRIMARY KEY ({', '.join(_NAMES)})) WITHOUT ROWID"
ADD_UP = f"INSERT INTO past SELECT {_ADDED_UP} FROM sums WHERE day = ? GROUP BY {', '.join(_NAMES)}"  # noqa: S608 - constants

SOURCE = f"""(
    SELECT {_COLUMNS} FROM past WHERE day IN (SELECT value FROM json_each(?)) UNION ALL
    SELECT {_COLUMNS} FROM sums WHERE day IN (SELECT value FROM json_each(?)))"""  # noqa: S608 - constants only
"""The sums of days without their keys. Its arguments are those that `PastDays.split` gives."""


class PastDays:
    """The table `past` of one connection. All methods raise `sqlite3.Error`."""

    def __init__(self, db: sqlite3.Connection, clock_us: Callable[[], int]) -> None:
        self._db = db
        self._clock_us = clock_us
        self._began = time.monotonic()
        self._read: dict[str, int] = {}
        """The days in the table, with their entries in `late` before they were read."""
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(TABLE)

    def split(self, days: Sequence[str]) -> tuple[str, str]:
        """Add up those of these days that are over. Returns, as JSON, the days in the table, and the others."""
        if time.monotonic() - self._began > KEPT_S:
            self._began = time.monotonic()
            self._read.clear()
            self._db.execute("DELETE FROM past")
        late = dict(self._db.execute("SELECT day, changes FROM late").fetchall())
        yesterday, _ = calendar_window("day", self._clock_us() // 1_000_000 - DAY_S)
        held = [day for day in days if day < yesterday and self._hold(day, late.get(day, 0))]
        return json.dumps(held), json.dumps(sorted(set(days).difference(held)))

    def _hold(self, day: str, changes: int) -> bool:
        """Whether the table has the present sums of a day, after this."""
        if self._read.get(day) == changes:
            return True
        self._db.execute("DELETE FROM past WHERE day = ?", (day,))
        self._read.pop(day, None)
        (rows,) = self._db.execute("SELECT count(*) FROM past").fetchone()
        if rows >= ROWS_KEPT:
            return False
        self._db.execute(ADD_UP, (day,))
        self._read[day] = changes
        return True
