"""One SQLite file shared by one node's workers: the default store.

Each worker writes through one thread of its own, one transaction per batch (`BEGIN IMMEDIATE`, so that what is read
inside is what is written); WAL with synchronous=NORMAL survives a killed process without loss. Reports read on a
connection of their own in short transactions.

Lost workers. A lease belongs to a worker, and a worker holds a lock on a file of its own as long as it lives, which
the kernel releases whatever it dies of. A worker that starts takes over every lease whose owner's lock is free:
parallel slots are freed, estimates are charged, and a record says that the call was lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from gateway.config import Store
from gateway.records import (
    Claim,
    Draw,
    Granted,
    Record,
    Refused,
    Settlement,
    Standing,
    Window,
    WindowState,
)
from gateway.rules import limits

from . import StoreAway
from .batch import MAX_BATCH, Batcher
from .presence import Presence
from .reports import Reader, read_record, record_row, sum_rows
from .sqlite import (
    ADD_SUMS,
    LEASE,
    RECORD,
    SET_WINDOW,
    SUM_GROUP,
    SUMS,
    WINDOW,
    create,
    insert,
    path_of,
    transaction,
)

log = logging.getLogger("gateway")

TRIM_EVERY = 1000
"""Settlements between two looks at what may be forgotten."""

NOTE_CLOCK_US = 1_000_000
"""How much of the ledger's time a restart may forget."""

T = TypeVar("T")


@dataclass(slots=True)
class _Batch:
    """What one transaction has read and will write."""

    now_us: int
    states: dict[str, WindowState]
    """Of every window that the batch touches, leaked up to now."""
    drawn_us: dict[str, int]
    """When each open lease was drawn that the batch may settle: those of the file, and those drawn in the batch."""
    changed: dict[str, Window] = field(default_factory=dict)
    leases: list[Draw] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


class _File:
    """The SQLite side: one connection, used from one thread."""

    def __init__(self, settings: Store, clock_us: Callable[[], int]) -> None:
        self._settings = settings
        self._clock_us = clock_us
        self._since_trim = 0
        self._noted_us = 0
        self.db = create(settings)
        self.presence = Presence(settings.folder)

    def apply(self, wishes: Sequence[Draw | Settlement], wished_at: float) -> list[Granted | Refused | None]:
        """One batch, in the order of arrival, all of it or nothing."""
        with transaction(self.db, wished_at):
            settled = [wish.record.id for wish in wishes if isinstance(wish, Settlement)]
            batch = self._begin_batch(wishes, settled)
            answers: list[Granted | Refused | None] = []
            for wish in wishes:
                if isinstance(wish, Draw):
                    answers.append(self._draw(batch, wish))
                else:
                    self._settle(batch, wish)
                    answers.append(None)
            self._write(batch)
        return answers

    def take_over(self) -> int:
        """Close the leases of workers that are gone, at their estimates. Returns how many calls were lost."""
        workers = [row[0] for row in self.db.execute("SELECT DISTINCT worker FROM leases")]
        gone = [worker for worker in workers if self.presence.is_gone(worker)]
        lost = 0
        for worker in gone:
            while portion := self._take_from(worker):
                lost += portion
            self.presence.forget(worker)
        for path in self._settings.folder.glob("workers/*.lock"):  # of workers that left no lease behind
            if self.presence.is_gone(path.stem):
                path.unlink(missing_ok=True)
        return lost

    def close(self) -> None:
        self.db.close()
        self.presence.leave()

    def _take_from(self, worker: str) -> int:
        """Close some leases of a worker that is gone; how many. There may be thousands, and others want to write."""
        with transaction(self.db):
            draws = self._leases_of(worker)
            batch = self._begin_batch(draws, [draw.record.id for draw in draws])
            for draw in draws:
                self._settle(batch, Settlement(*draw))
            self._write(batch)
        return len(draws)

    def _leases_of(self, worker: str) -> list[Draw]:
        """What a worker has drawn and not settled, `MAX_BATCH` of it at most."""
        columns = ", ".join((*RECORD, "claims"))
        text = f"SELECT {columns} FROM leases WHERE worker = ? LIMIT {MAX_BATCH}"  # noqa: S608 - constants only
        rows = self.db.execute(text, (worker,)).fetchall()
        drawn = [(read_record(row[:-1]), json.loads(row[-1])) for row in rows]
        names = {name for _, claims in drawn for name, _ in claims}
        columns = ", ".join(WINDOW)
        found = self.db.execute(_among(f"SELECT {columns} FROM windows", names), [*names])  # noqa: S608 - constants only
        windows = {row[0]: Window(*row[: len(Window._fields)]) for row in found}
        return [
            Draw(record, tuple(Claim(windows[name], amount) for name, amount in claims if name in windows))
            for record, claims in drawn
        ]

    def _begin_batch(self, wishes: Sequence[Draw | Settlement], settled: Sequence[str]) -> _Batch:
        """The ledger's clock never runs backwards, whatever the machine's does."""
        now_us = self._clock_us()
        if now_us > self._noted_us + NOTE_CLOCK_US:
            row = self.db.execute("SELECT value FROM meta WHERE name = 'now_us'").fetchone()
            self._noted_us = max(row[0] if row else 0, now_us)
            self.db.execute("INSERT OR REPLACE INTO meta VALUES ('now_us', ?)", (self._noted_us,))
        now_us = max(self._noted_us, now_us)
        windows = {claim.window.id: claim.window for wish in wishes for claim in wish.claims}
        states = dict.fromkeys(windows, WindowState(0, 0, now_us))
        if windows:
            found = self.db.execute(_among("SELECT id, used, reserved, at_us FROM windows", windows), [*windows])
            for name, *state in found:
                states[name] = limits.leaked(windows[name], WindowState(*state), now_us)
        drawn_us: dict[str, int] = {}
        if settled:
            drawn_us.update(self.db.execute(_among("SELECT id, drawn_us FROM leases", settled), settled))
        return _Batch(now_us, states, drawn_us)

    def _draw(self, batch: _Batch, draw: Draw) -> Granted | Refused:
        refused: Refused | None = None
        states, now_us = batch.states, batch.now_us
        for claim in draw.claims:
            if (short := limits.shortage(claim, states[claim.window.id], now_us)) is not None:
                refused = limits.worse(refused, short)
        if refused is not None:
            return refused
        standings = []
        for claim in draw.claims:
            window = claim.window
            state = states[window.id] = limits.drawn(claim, states[window.id])
            batch.changed[window.id] = window
            standings.append(limits.standing(window, state, now_us))
        batch.leases.append(draw)
        batch.drawn_us[draw.record.id] = now_us
        return Granted(tuple(standings))

    def _settle(self, batch: _Batch, settlement: Settlement) -> None:
        """Once: a settlement whose lease is not open has been applied already."""
        record, claims = settlement
        drawn_us = batch.drawn_us.pop(record.id, None)
        if drawn_us is None:
            return
        for claim in claims:
            window = claim.window
            actual = limits.actual_units(window.unit, record)
            batch.states[window.id] = limits.settled(claim, batch.states[window.id], actual, batch.now_us - drawn_us)
            batch.changed[window.id] = window
        batch.records.append(record)

    def _write(self, batch: _Batch) -> None:
        settled = {record.id for record in batch.records}
        if batch.changed:
            rows = [(*window, *batch.states[name]) for name, window in batch.changed.items()]
            insert(self.db, "windows", WINDOW, rows, SET_WINDOW)
        if opened := [draw for draw in batch.leases if draw.record.id not in settled]:
            drawn = (self.presence.worker, batch.now_us)
            insert(self.db, "leases", LEASE, [(*record_row(d.record), *drawn, _claimed(d.claims)) for d in opened])
        if not batch.records:
            return
        self.db.execute(_among("DELETE FROM leases", settled), [*settled])
        insert(self.db, "records", RECORD, [record_row(record) for record in batch.records])
        insert(self.db, "sums", SUM_GROUP + SUMS, sum_rows(batch.records), ADD_SUMS)
        self._since_trim += len(batch.records)
        if self._since_trim >= min(TRIM_EVERY, self._settings.usage_records_max):
            self._trim(batch.now_us)

    def _trim(self, now_us: int) -> None:
        self._since_trim = 0
        oldest = datetime.fromtimestamp(now_us / 1e6, UTC) - timedelta(days=self._settings.sums_days)
        self.db.execute(
            "DELETE FROM records WHERE seq <= (SELECT max(seq) FROM records) - ?", (self._settings.usage_records_max,)
        )
        self.db.execute("DELETE FROM sums WHERE day < ?", (oldest.strftime("%Y-%m-%d"),))
        self.db.execute("DELETE FROM windows WHERE resets_us > 0 AND resets_us < ?", (int(oldest.timestamp() * 1e6),))


class EmbeddedLedger:
    """The `Ledger` promise over one SQLite file. Raises `StoreAway` where the file cannot be opened."""

    def __init__(self, settings: Store, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._clock_us = clock_us
        self.errors = 0
        """Batches and reads that failed, since the start of this worker."""
        self._writer = ThreadPoolExecutor(1, "store-write")
        self._reading = ThreadPoolExecutor(1, "store-read")
        try:
            with ExitStack() as opened:
                self._file = _File(settings, clock_us)
                opened.callback(self._file.close)
                self._reader = Reader(settings)
                opened.callback(self._reader.close)
                self.lost_calls = self._file.take_over()
                """Calls of workers that died, recorded at this start."""
                opened.pop_all()
        except (sqlite3.Error, OSError) as error:
            raise StoreAway(f"{path_of(settings)}: {error}") from None
        self._is_closed = False
        if self.lost_calls:
            log.warning(
                "%d calls of a worker that died are charged at their estimates and recorded as lost", self.lost_calls
            )
        self._batcher = Batcher(self._apply, self._count_error)

    def __repr__(self) -> str:
        return f"<EmbeddedLedger worker {self._file.presence.worker[:8]}, {self._batcher!r}>"

    @property
    def pending(self) -> int:
        return self._batcher.pending

    def draw(self, draw: Draw) -> asyncio.Future[Granted | Refused]:
        return cast("asyncio.Future[Granted | Refused]", self._batcher.submit(draw))

    def settle(self, settlement: Settlement) -> asyncio.Future[None]:
        return cast("asyncio.Future[None]", self._batcher.submit(settlement))

    async def ping(self) -> None:
        await self._apply(())

    async def standings(self, windows: Sequence[Window], now: float) -> list[Standing]:
        states = await self._read(lambda: self._reader.windows([window.id for window in windows]))
        now_us = int(now * 1e6)
        empty = WindowState(0, 0, now_us)
        return [
            limits.standing(window, limits.leaked(window, states.get(window.id, empty), now_us), now_us)
            for window in windows
        ]

    async def usage(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        return await self._read(lambda: self._reader.usage(group_by, since, until, limit))

    async def calls(self, limit: int, key: str | None = None) -> list[Mapping[str, Any]]:
        return await self._read(lambda: self._reader.calls(limit, key))

    async def close(self, timeout_s: float) -> int:
        if self._is_closed:
            return self.pending
        self._is_closed = True
        left = await self._batcher.close(timeout_s)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self._file.close)
        await loop.run_in_executor(self._reading, self._reader.close)
        self._writer.shutdown()
        self._reading.shutdown()
        return left

    async def _apply(self, wishes: Sequence[Draw | Settlement]) -> Sequence[Granted | Refused | None]:
        apply, wished_at = self._file.apply, time.monotonic()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._writer, apply, wishes, wished_at)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # what was to be written is at fault, not the file
        except (sqlite3.Error, OSError) as error:
            raise StoreAway(str(error)) from None

    async def _read(self, read: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreAway("the ledger is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reading, read)
        except (sqlite3.Error, OSError) as error:
            self._count_error()
            raise StoreAway(str(error)) from None

    def _count_error(self) -> None:
        self.errors += 1


def _among(statement: str, ids: Collection[str]) -> str:
    return f"{statement} WHERE id IN ({', '.join('?' * len(ids))})"


def _claimed(claims: Iterable[Claim]) -> str:
    return json.dumps([(claim.window.id, claim.amount) for claim in claims])
