"""The deletions of the embedded store, and when it looks: the oldest usage records by their number, everything else by
age.

`store/rules/retention.py` has the rule for the age. One look an hour is taken for all workers of a file; every worker
deletes what is due when it starts and when the day of retention changes.
"""

from __future__ import annotations

import logging
import sqlite3
from datetime import UTC, datetime, timedelta

from gateway.records import WindowState
from gateway.store import HOURS_KEPT_DAYS
from gateway.store.rules.retention import HOUR_S, RetentionLook, is_idle, next_look

from .database import among

log = logging.getLogger("gateway")

TRIM_EVERY = 1000
"""Records between two deletions of the oldest ones."""

WORKERS_KEPT = timedelta(days=800)
"""How long the progress of a silent worker is kept. A journal that is found after that would be counted again."""

JUMP_H = 48
"""A wall clock that advances by more hours between two looks of a running worker was or is wrong."""

_NAMES = ("retention_wall_h", "retention_clock_h")
"""Where `meta` has the last look."""


def clock_of(db: sqlite3.Connection) -> int:
    """The Unix time in seconds by the clock of retention; 0 where it has not looked yet."""
    found = db.execute("SELECT value FROM meta WHERE name = ?", _NAMES[1:]).fetchone()
    return found[0] * HOUR_S if found else 0


class Trimmer:
    """Deletes the oldest records and days of one file. Private to a worker."""

    def __init__(self, records_max: int, sums_days: int) -> None:
        self._records_max = records_max
        self._sums_days = sums_days
        self._records = 0
        self._wall_h = 0
        self._done_before = ""

    def count(self, records: int) -> None:
        self._records += records

    def is_due(self, wall_us: int) -> bool:
        """Whether `trim` would delete or look for anything."""
        return self._records >= min(TRIM_EVERY, self._records_max) or wall_us // (HOUR_S * 1_000_000) != self._wall_h

    @property
    def due_us(self) -> int:
        """When the next look is due, in microseconds of the wall clock; a deletion of records may be due before."""
        return (self._wall_h + 1) * HOUR_S * 1_000_000 - 1

    def trim(self, db: sqlite3.Connection, wall_us: int) -> None:
        """Delete what is due at this time of the wall clock (not of the store, which never runs backwards). To be
        called in a transaction."""
        if self._records >= min(TRIM_EVERY, self._records_max):
            self._records = 0
            db.execute("DELETE FROM records WHERE seq <= (SELECT max(seq) FROM records) - ?", (self._records_max,))
        if (wall_h := wall_us // (HOUR_S * 1_000_000)) != self._wall_h:
            self._warn_of_jump(wall_h)
            self._wall_h = wall_h
            self._look(db, wall_h)

    def _warn_of_jump(self, wall_h: int) -> None:
        if self._wall_h and wall_h - self._wall_h > JUMP_H:
            log.warning(
                "this machine's clock went forward %d days within an hour: quotas of a day, week or month count in"
                " other windows since then; retention follows by one day an hour. If it is wrong now, correct it",
                (wall_h - self._wall_h) // 24,
            )

    def _look(self, db: sqlite3.Connection, wall_h: int) -> None:
        found = dict(db.execute(among("SELECT name, value FROM meta", len(_NAMES), "name"), _NAMES).fetchall())
        last = RetentionLook(*[found[name] for name in _NAMES]) if len(found) == len(_NAMES) else None
        look = next_look(last, wall_h, None if last else self._first_due_h(db))
        if look is not None:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [*zip(_NAMES, look, strict=True)])
        clock_h = (look or last or RetentionLook(wall_h, wall_h)).clock_h
        oldest = datetime.fromtimestamp(clock_h * HOUR_S, UTC) - timedelta(days=self._sums_days)
        if (before := oldest.strftime("%Y-%m-%d")) != self._done_before:  # reads every window: once a day
            self._done_before = before
            _delete_before(db, before, clock_h, self._sums_days)

    def _first_due_h(self, db: sqlite3.Connection) -> int | None:
        (day,) = db.execute("SELECT min(day) FROM sums").fetchone()
        if day is None:
            return None
        due = datetime.fromisoformat(f"{day}T00:00:00+00:00") + timedelta(days=self._sums_days)
        return int(due.timestamp()) // HOUR_S


def _delete_before(db: sqlite3.Connection, day: str, clock_h: int, sums_days: int) -> None:
    clock_us, kept_us = clock_h * HOUR_S * 1_000_000, sums_days * 86_400_000_000
    db.execute("DELETE FROM sums WHERE day < ?", (day,))
    db.execute("DELETE FROM late WHERE day < ?", (day,))
    db.execute("DELETE FROM attributed WHERE day < ?", (day,))
    kept_days = min(HOURS_KEPT_DAYS, sums_days)
    first = datetime.fromtimestamp(clock_h * HOUR_S, UTC) - timedelta(days=kept_days)
    db.execute("DELETE FROM hours WHERE hour < ?", (first.strftime("%Y-%m-%d"),))
    hourly = "period < ? AND length(period) > length('2026-11-20')"
    db.execute(f"DELETE FROM measures WHERE period < ? OR {hourly}", (day, first.strftime("%Y-%m-%d")))  # noqa: S608 - a constant
    db.execute("DELETE FROM lost WHERE drawn_us < ?", (clock_us - kept_us,))
    # A month is named by the first letters of its days, a week by its number (2026-W47).
    week = datetime.fromisoformat(day).strftime("%G-W%V")
    db.execute("DELETE FROM windows WHERE starts LIKE '%W%' AND starts < ?", (week,))
    db.execute(
        "DELETE FROM windows WHERE starts != '' AND starts NOT LIKE '%W%' AND starts < substr(?, 1, length(starts))",
        (day,),
    )
    old = db.execute(
        "SELECT id, used, reserved, at_us FROM windows WHERE starts = '' AND at_us < ?", (clock_us - kept_us,)
    )
    idle = [(name,) for name, *state in old.fetchall() if is_idle(name, WindowState(*state), kept_us, clock_us)]
    db.executemany("DELETE FROM windows WHERE id = ?", idle)
    alive_us = clock_us - WORKERS_KEPT // timedelta(microseconds=1)
    db.execute("DELETE FROM workers WHERE alive_us < ?", (alive_us,))
