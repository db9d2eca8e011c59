"""What the embedded store may forget, and when it looks."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta

LOOK_EVERY = 1000
"""Records between two looks."""

WORKERS_KEPT = timedelta(days=800)
"""For how long the progress of a worker is kept that gives no sign of life. If its journal came to light after that, it
would be counted again."""


class Trimmer:
    """Forgets the oldest records and daily sums of one file, and what belongs to days that are forgotten."""

    def __init__(self, records_max: int, sums_days: int) -> None:
        self._records_max = records_max
        self._sums_days = sums_days
        self._since = 0
        self._done_on = ""

    def count(self, records: int) -> None:
        """So many records have been written."""
        self._since += records

    def trim(self, db: sqlite3.Connection, now_us: int) -> None:
        """Forget what is too many or too old, if it is time to look. To be called in a transaction."""
        if self._since < min(LOOK_EVERY, self._records_max):
            return
        self._since = 0
        db.execute("DELETE FROM records WHERE seq <= (SELECT max(seq) FROM records) - ?", (self._records_max,))
        now = datetime.fromtimestamp(now_us / 1e6, UTC)
        if (today := now.strftime("%Y-%m-%d")) != self._done_on:  # to look through every window is for once a day
            self._done_on = today
            _forget_before(db, now - timedelta(days=self._sums_days))
            db.execute("DELETE FROM workers WHERE alive_us < ?", (int((now - WORKERS_KEPT).timestamp() * 1e6),))


def _forget_before(db: sqlite3.Connection, oldest: datetime) -> None:
    day, oldest_us = oldest.strftime("%Y-%m-%d"), int(oldest.timestamp() * 1e6)
    db.execute("DELETE FROM sums WHERE day < ?", (day,))
    db.execute("DELETE FROM lost WHERE drawn_us < ?", (oldest_us,))
    # A month is named by the first letters of its days.
    db.execute("DELETE FROM windows WHERE starts != '' AND starts < substr(?, 1, length(starts))", (day,))
    # An empty window is as good as none.
    db.execute("DELETE FROM windows WHERE used = 0 AND reserved = 0 AND at_us < ?", (oldest_us,))
