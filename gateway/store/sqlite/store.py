"""One SQLite file shared by one node's workers: the default store.

Each worker writes on one connection of its own, one transaction per batch: a small one from the event loop, where the
file is free and nothing slow is due, because two hand-overs to a thread cost as much as the transaction; any other in a
thread. It reads on connections of its own in short transactions: on one for reports, on another what else is read. A
written batch is in the page cache and outlives the process. One that is in memory only (write_behind.py) is lost with
the process, or where it cannot be written; then the worker's journal has it.

A checkpoint copies the write-ahead log into the file, in a thread of its own. SQLite's automatic checkpoint would copy
and sync on the thread of a call's transaction. Here that is done beside the transactions of calls. The write lock is
held for the first frame of the log's next round, with which SQLite syncs the log's head (wal.c, `walFrames`), and where
calls write faster than it is copied, for the rest of the copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gateway.config import StoreSettings
from gateway.config import StoreSettings as Settings
from gateway.quota import windows as limits
from gateway.records import Bond, Record, Window, WindowStatus
from gateway.store import (
    Applied,
    Batch,
    CallFilter,
    Deferred,
    Measures,
    Progress,
    ReportScope,
    StoreMisconfigured,
    StoreUnavailable,
    Where,
)
from gateway.store.clock import MachineClock
from gateway.store.key_store import ChangeFeed, DocumentKind, StoreChange, StoredAudit
from gateway.store.refusals import RefusalEntry, RefusalQuery, StoredRefusal

from .database import NO_PATIENCE, Transaction, connect, describe_error, is_busy, path_of
from .keys import KeyReader
from .ledger import SqliteLedger
from .reader import Reader

EVERY_ITEMS = 3000
"""Draws and ends between two checkpoints. Each writes three to six pages of 4 KiB where it is alone in its transaction,
so that the log holds at most about 50 MB."""

PASSES = 3
"""How often the log is copied beside the writers, which go on meanwhile."""

PORTION = 1000
"""Rows of a usage report that one statement makes, about: others wait for it."""

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


log = logging.getLogger("gateway")

T = TypeVar("T")

OURS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.InterfaceError)
"""Errors of an item, and not of the file."""


WRITE_BEHIND_S = 0.1
"""How long what a lone worker's batches have changed may be in memory only."""

HERE_ITEMS = 20
"""Unwritten items up to this number are written on the event loop; more would take longer than a millisecond."""

SLOW_S = 0.05
CALM_S = 10.0
"""Seconds: if two transactions within `CALM_S` take longer than `SLOW_S`, none is made on the event loop for the next
`CALM_S`."""


class WritePace:
    """Whether transactions are quick enough for the event loop. Times are those of `time.monotonic`."""

    def __init__(self) -> None:
        self._last_slow = float("-inf")
        self.slow_until = float("-inf")
        """Time until which transactions count as slow."""

    def note(self, began: float, ended: float) -> None:
        if ended - began > SLOW_S:
            if ended - self._last_slow < CALM_S:
                self.slow_until = ended + CALM_S
            self._last_slow = ended


class SqliteStore:
    """The `Store` promise over one SQLite file. Raises `StoreMisconfigured` where the file cannot be opened.

    A value that the file cannot hold (a number beyond 64 bits) raises SQLite's error or an `OverflowError`, and nothing
    of its batch is applied.
    """

    may_forget = False

    def __init__(
        self, settings: Settings, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000, *,
        is_alone: bool = False,
    ) -> None:  # fmt: skip
        self.clock = MachineClock()
        self._path = path_of(settings)
        self._is_alone = is_alone
        self._loop: asyncio.AbstractEventLoop | None = None
        """Asked for once: that is a system call before Python 3.12."""
        self._write_timer: asyncio.TimerHandle | None = None
        self._ledger = SqliteLedger(settings, clock_us)
        try:
            self._reader = Reader(settings, clock_us)
            self._key_reader = KeyReader(settings)
            self._checkpoints = Checkpointer(settings)
        except sqlite3.Error as error:
            self._ledger.close()
            raise StoreMisconfigured(f"{self._path}: {describe_error(error)}") from None
        self._writes = threading.Lock()
        """Held while the writing connection is used."""
        self._pace = WritePace()
        self._writing = ThreadPoolExecutor(1, "store-write")
        self._reading = ThreadPoolExecutor(1, "store-read")
        self._reports = WeakValueDictionary[Any, asyncio.Lock]()
        self._finding = ThreadPoolExecutor(1, "store-find")
        self._copying = ThreadPoolExecutor(1, "store-checkpoint")
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path}{', closed' if self._is_closed else ''}>"

    async def apply(self, batch: Batch, sent: Callable[[], None] | None = None) -> Applied:
        if (applied := self._in_memory(batch)) is not None:
            return applied
        requested_at = time.monotonic()
        applied = await self._run(
            self._writing, lambda: self._ledger.apply(batch, requested_at, is_alone=self._is_alone)
        )
        if self._ledger.uncopied >= EVERY_ITEMS:
            self._checkpoint()
        return applied

    def apply_now(self, batch: Batch) -> Applied | None:
        if (applied := self._in_memory(batch)) is not None:
            return applied
        began = time.monotonic()
        if self._is_closed or began < self._pace.slow_until or self._ledger.is_housekeeping_due():
            return None
        if not self._writes.acquire(blocking=False):
            return None
        try:
            applied = self._ledger.apply(batch, NO_PATIENCE, is_alone=self._is_alone)
        except OURS:
            raise
        except sqlite3.Error as error:
            if is_busy(error):
                return None
            raise self._unavailable(error) from None
        finally:
            self._writes.release()
            self._pace.note(began, time.monotonic())
        if self._ledger.uncopied >= EVERY_ITEMS:
            self._checkpoint()
        return applied

    def _in_memory(self, batch: Batch) -> Applied | None:
        """Apply a lone worker's batch in memory. None: that is not possible."""
        if not self._is_alone or self._is_closed:
            return None
        if not self._writes.acquire(blocking=False):
            return None
        try:
            applied = self._ledger.apply_behind(batch)
        except sqlite3.Error as error:
            raise self._unavailable(error) from None
        finally:
            self._writes.release()
        if applied is not None and self._write_timer is None:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._write_timer = self._loop.call_later(WRITE_BEHIND_S, self._write_behind)
        return applied

    def _write_behind(self) -> None:
        """Write what is in memory only: here, or in the thread where that may take long."""
        self._write_timer = None
        if self._is_closed:
            return
        began = time.monotonic()
        is_slow = began < self._pace.slow_until or self._ledger.is_housekeeping_due()
        if is_slow or self._ledger.unwritten > HERE_ITEMS or not self._writes.acquire(blocking=False):
            self._writing.submit(self._write_behind_in_thread)
            return
        try:
            self._ledger.write_behind(NO_PATIENCE)
        except sqlite3.Error as error:
            self._writing.submit(self._write_behind_in_thread)
            if not is_busy(error):
                self._note_unwritten(error)
        finally:
            self._writes.release()
            self._pace.note(began, time.monotonic())
        if self._ledger.uncopied >= EVERY_ITEMS:
            self._checkpoint()

    def _write_behind_in_thread(self) -> None:
        try:
            with self._writes:
                self._ledger.write_behind(time.monotonic())
        except sqlite3.Error as error:
            self._note_unwritten(error)

    def _note_unwritten(self, error: sqlite3.Error) -> None:
        log.warning("%s: %s; what it lacks is sent again from the journal", self._path, describe_error(error))

    async def _all_written(self) -> None:
        """Writes all applied items, because reports use other connections. Afterwards the file has what was applied, or
        cannot be written."""
        if self._ledger.unwritten:
            requested_at = time.monotonic()
            with contextlib.suppress(StoreUnavailable):
                await self._run(self._writing, lambda: self._ledger.write_behind(requested_at))

    def _checkpoint(self) -> None:
        self._ledger.uncopied = 0
        self._copying.submit(self._checkpoints.checkpoint)

    async def progress(self, worker: str) -> Progress:
        return await self._run(self._reading, lambda: self._reader.progress(worker))

    async def void_leases(self, worker: str) -> None:
        await self._run(self._writing, lambda: self._ledger.void_leases(worker))

    async def retire(self, worker: str) -> None:
        await self._run(self._writing, lambda: self._ledger.retire(worker))

    async def claim(self, holder: str, names: Mapping[str, float]) -> dict[str, float]:
        requested_at = time.monotonic()
        return await self._run(self._writing, lambda: self._ledger.claim(holder, names, requested_at))

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> dict[str, str]:
        requested_at = time.monotonic()
        return await self._run(self._writing, lambda: self._ledger.exchange(place, holder, text, for_s, requested_at))

    async def deferred(self, limit: int) -> list[Deferred]:
        return await self._run(self._finding, lambda: self._key_reader.deferred(limit))

    async def find_deferred(self, lease: str) -> Deferred | None:
        return await self._run(self._finding, lambda: self._key_reader.find_deferred(lease))

    async def remove_deferred(self, lease: str) -> None:
        requested_at = time.monotonic()
        await self._run(self._writing, lambda: self._ledger.remove_deferred(lease, requested_at))

    async def ping(self) -> None:
        requested_at = time.monotonic()
        await self._run(self._writing, lambda: self._ledger.ping(requested_at))

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        await self._all_written()
        states = await self._run(self._finding, lambda: self._key_reader.windows([window.id for window in windows]))
        return limits.window_statuses(windows, states, int(now * 1e6))

    async def usage(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None, limit: int | None = None,
        after: Sequence[str] | None = None, only: ReportScope | None = None, where: Where = (),
    ) -> list[dict[str, Any]]:  # fmt: skip
        portions = self._reader.usage(group_by, since, until, min(limit or PORTION, PORTION), after, only, where)
        return await self._report(only, lambda: list(islice(chain.from_iterable(portions), limit)))

    async def usage_portions(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None,
        only: ReportScope | None = None, where: Where = (),
    ) -> AsyncIterator[list[dict[str, Any]]]:  # fmt: skip
        portions = self._reader.usage(group_by, since, until, PORTION, None, only, where)
        while (rows := await self._report(only, lambda: next(portions, None))) is not None:
            yield rows

    async def measures(self, group_by: Sequence[str], since: str | None = None, until: str | None = None) -> Measures:
        return await self._report(None, lambda: self._reader.measures(group_by, since, until))

    async def calls(
        self, limit: int, key: str | None = None, before: str | None = None, only: ReportScope | None = None,
        wanted: CallFilter | None = None,
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        return await self._report(only, lambda: self._reader.calls(limit, key, before, only, wanted))

    async def usage_by_returned_model(self, since: str, until: str) -> list[dict[str, Any]]:
        return await self._run(self._reading, lambda: self._reader.usage_by_returned_model(since, until))

    # -------------------------------------------------------------------------------------------------------- refusals

    async def add_refusals(self, entries: Sequence[RefusalEntry], now: float) -> None:
        requested_at = time.monotonic()
        await self._run(self._writing, lambda: self._ledger.add_refusals(entries, now, requested_at))

    async def refusals(
        self, limit: int, before: str | None = None, wanted: RefusalQuery | None = None
    ) -> list[StoredRefusal]:
        wanted = wanted or RefusalQuery()
        return await self._report(wanted.only, lambda: self._reader.refusals(limit, before, wanted))

    async def find_request(self, request_id: str) -> Record | RefusalEntry | None:
        return await self._run(self._reading, lambda: self._reader.find_request(request_id))

    # ----------------------------------------------------------------------------------------------------------- bonds

    async def add_bond(self, bond: Bond, now: float) -> None:
        requested_at = time.monotonic()
        await self._run(self._writing, lambda: self._ledger.add_bond(bond, now, requested_at))

    async def find_bond(self, bond_id: str, now: float) -> Bond | None:
        return await self._run(self._finding, lambda: self._key_reader.find_bond(bond_id, now))

    async def bonds_of(self, key: str, kind: str, now: float) -> list[Bond]:
        return await self._run(self._finding, lambda: self._key_reader.bonds_of(key, kind, now))

    async def remove_bond(self, bond: Bond) -> None:
        requested_at = time.monotonic()
        await self._run(self._writing, lambda: self._ledger.remove_bond(bond, requested_at))

    # ------------------------------------------------------------------------------------------------------------ keys

    async def find_keys(self, digests: Sequence[str]) -> list[str | None]:
        return await self._run(self._finding, lambda: self._key_reader.find_keys(digests))

    async def read(self, kind: DocumentKind, names: Sequence[str]) -> list[str | None]:
        return await self._run(self._finding, lambda: self._key_reader.read(kind, names))

    async def page(self, kind: DocumentKind, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        return await self._run(self._finding, lambda: self._key_reader.page(kind, after, limit))

    async def change(self, change: StoreChange) -> bool:
        requested_at = time.monotonic()
        return await self._run(self._writing, lambda: self._ledger.change(change, requested_at))

    async def is_used(self, key: str) -> bool:
        return await self._run(self._reading, lambda: self._reader.is_used(key))

    async def is_replicated(self) -> bool | None:
        return None

    async def last_change(self, journal: str) -> int:
        """Every change: each is on the disk before it is acknowledged, so that this store loses none."""
        return sys.maxsize

    async def changes_since(self, since: str | None) -> ChangeFeed:
        return await self._run(self._finding, lambda: self._key_reader.changes_since(since))

    async def audit(self, limit: int, before: str | None = None) -> list[StoredAudit]:
        return await self._run(self._finding, lambda: self._key_reader.audit(limit, before))

    # ------------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._is_closed:
            return
        await self._all_written()
        self._is_closed = True
        if self._write_timer is not None:
            self._write_timer.cancel()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._copying, self._checkpoints.close)
        await loop.run_in_executor(self._writing, self._ledger.close)
        await loop.run_in_executor(self._reading, self._reader.close)
        await loop.run_in_executor(self._finding, self._key_reader.close)
        for thread in (self._writing, self._reading, self._finding, self._copying):
            thread.shutdown()

    async def _report(self, only: Any, work: Callable[[], T]) -> T:
        """Runs one report of each scope in turn: those of one key keep others waiting for one."""
        async with self._reports.setdefault(only, asyncio.Lock()):
            return await self._run(self._reading, work)

    async def _run(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        if thread is self._reading:
            await self._all_written()
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, self._do, thread, work)
        except OURS:
            raise
        except (sqlite3.Error, OSError) as error:
            raise self._unavailable(error) from None

    def _do(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if thread is not self._writing:
            return work()
        with self._writes:
            return work()

    def _unavailable(self, error: sqlite3.Error | OSError) -> StoreUnavailable:
        return StoreUnavailable(f"{self._path}: {describe_error(error)}")
