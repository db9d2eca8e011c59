"""Checkpoints of the embedded store: what the write-ahead log holds goes into the file, in a thread of its own.

SQLite's automatic checkpoint would copy and sync on the thread of a call's transaction. Here that is done beside the
transactions of calls. The write lock is held for the first frame of the log's next round, with which SQLite syncs the
log's head (wal.c, `walFrames`), and where calls write faster than it is copied, for the rest of the copy.
"""

from __future__ import annotations

import logging
import sqlite3
import time

from gateway.config import StoreSettings

from .database import Transaction, connect, describe_error, path_of

log = logging.getLogger("gateway")

EVERY_ITEMS = 3000
"""Draws and ends between two checkpoints. Each writes three to six pages of 4 KiB where it is alone in its transaction,
so that the log holds at most about 50 MB."""

PASSES = 3
"""How often the log is copied beside the writers, which go on meanwhile."""

TRIES, PAUSE_S = 20, 0.002
"""How often it is then tried to copy the rest, while readers use it."""


class Checkpointer:
    """A connection of its own for checkpoints. Used from one thread."""

    def __init__(self, settings: StoreSettings) -> None:
        self._db = connect(path_of(settings))
        self._db.execute("PRAGMA busy_timeout = 0")

    def checkpoint(self) -> None:
        """Copy the log into the file, and begin the log's next round; where readers or writers are in the way for too
        long, a later checkpoint does."""
        try:
            if any(self._copy("PASSIVE") for _ in range(PASSES)) or any(self._copy_rest() for _ in range(TRIES)):
                with Transaction(self._db):
                    self._db.execute("UPDATE meta SET value = value WHERE name = 'now_us'")
        except sqlite3.Error as error:
            log.warning("the embedded store's log cannot be copied into its file, and grows: %s", describe_error(error))

    def _copy_rest(self) -> bool:
        time.sleep(PAUSE_S)
        return self._copy("RESTART")

    def _copy(self, mode: str) -> bool:
        """Whether all of the log is copied now."""
        is_busy, frames, copied = self._db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return not is_busy and frames == copied

    def close(self) -> None:
        self._db.close()
