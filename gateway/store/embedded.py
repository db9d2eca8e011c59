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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from gateway.config import Store
from gateway.records import Claim, Draw, Granted, Record, Refused, Settlement, Standing, Usage, WindowState
from gateway.rules import limits

from . import StoreAway
from .batch import Batcher
from .presence import Presence
from .reports import Reader
from .sqlite import ADD_SUM, create, path_of, transaction

log = logging.getLogger("gateway")

TRIM_EVERY = 1000
"""Settlements between two looks at what may be forgotten."""

T = TypeVar("T")


@dataclass(slots=True)
class _Batch:
    """What one transaction has read and will write."""

    now_us: int
    windows: dict[str, WindowState] = field(default_factory=dict)
    changed: dict[str, Claim] = field(default_factory=dict)
    leases: dict[str, tuple[int, Draw]] = field(default_factory=dict)
    """Drawn inside this batch, so that a settlement in the same batch finds them."""
    settled: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


class _File:
    """The SQLite side: one connection, used from one thread."""

    def __init__(self, settings: Store, clock_us: Callable[[], int]) -> None:
        self._settings = settings
        self._clock_us = clock_us
        self._since_trim = 0
        self.db = create(settings)
        self.presence = Presence(settings.folder)

    def apply(self, wishes: Sequence[Draw | Settlement]) -> list[Granted | Refused | None]:
        """One batch, in the order of arrival, all of it or nothing."""
        with transaction(self.db):
            batch = self._begin_batch()
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
            with transaction(self.db):
                batch = self._begin_batch()
                rows = self.db.execute("SELECT id, drawn_us, draw FROM leases WHERE worker = ?", (worker,)).fetchall()
                for lease, drawn_us, text in rows:
                    draw = _load_draw(text)
                    self._close_lease(batch, lease, draw.claims, drawn_us, draw.record)
                lost += len(rows)
                self._write(batch)
            self.presence.forget(worker)
        for path in self._settings.folder.glob("workers/*.lock"):  # of workers that left no lease behind
            if self.presence.is_gone(path.stem):
                path.unlink(missing_ok=True)
        return lost

    def close(self) -> None:
        self.db.close()
        self.presence.leave()

    def _begin_batch(self) -> _Batch:
        """The ledger's clock never runs backwards, whatever the machine's does."""
        row = self.db.execute("SELECT value FROM meta WHERE name = 'now_us'").fetchone()
        now_us = max(row[0] if row else 0, self._clock_us())
        self.db.execute("INSERT OR REPLACE INTO meta VALUES ('now_us', ?)", (now_us,))
        return _Batch(now_us)

    def _state(self, batch: _Batch, claim: Claim) -> WindowState:
        window = claim.window
        if (state := batch.windows.get(window)) is None:
            row = self.db.execute("SELECT used, reserved, at_us FROM windows WHERE id = ?", (window,)).fetchone()
            state = WindowState(*row) if row else WindowState(0, 0, batch.now_us)
        state = batch.windows[window] = limits.leaked(claim, state, batch.now_us)
        return state

    def _draw(self, batch: _Batch, draw: Draw) -> Granted | Refused:
        states = [self._state(batch, claim) for claim in draw.claims]
        refused: Refused | None = None
        for claim, state in zip(draw.claims, states, strict=True):
            if (short := limits.shortage(claim, state, batch.now_us)) is not None:
                refused = limits.worse(refused, short)
        if refused is not None:
            return refused
        for claim in draw.claims:
            batch.windows[claim.window] = limits.drawn(claim, batch.windows[claim.window])
            batch.changed[claim.window] = claim
        batch.leases[draw.record.id] = (batch.now_us, draw)
        standings = tuple(limits.standing(c, batch.windows[c.window], batch.now_us) for c in draw.claims)
        return Granted(standings)

    def _settle(self, batch: _Batch, settlement: Settlement) -> None:
        lease = settlement.record.id
        if (fresh := batch.leases.pop(lease, None)) is not None:
            drawn_us: int | None = fresh[0]
        else:
            row = self.db.execute("SELECT drawn_us FROM leases WHERE id = ?", (lease,)).fetchone()
            drawn_us = row[0] if row else None
        if drawn_us is not None and lease not in batch.settled:
            self._close_lease(batch, lease, settlement.claims, drawn_us, settlement.record)

    def _close_lease(self, batch: _Batch, lease: str, claims: Sequence[Claim], drawn_us: int, record: Record) -> None:
        for claim in claims:
            state = self._state(batch, claim)
            actual = limits.actual_units(claim.unit, record)
            batch.windows[claim.window] = limits.settled(claim, state, actual, batch.now_us - drawn_us)
            batch.changed[claim.window] = claim
        batch.settled.append(lease)
        batch.records.append(record)

    def _write(self, batch: _Batch) -> None:
        self.db.executemany(
            "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?)",
            [
                (window, (state := batch.windows[window]).used, state.reserved, state.at_us, claim.resets_us)
                for window, claim in batch.changed.items()
            ],
        )
        if batch.leases:
            self.db.executemany(
                "INSERT INTO leases VALUES (?, ?, ?, ?)",
                [(lease, self.presence.worker, us, _dump_draw(draw)) for lease, (us, draw) in batch.leases.items()],
            )
        if not batch.records:
            return
        self.db.executemany("DELETE FROM leases WHERE id = ?", [(lease,) for lease in batch.settled])
        self.db.executemany(
            "INSERT INTO records (id, key, record) VALUES (?, ?, ?)",
            [(record.id, record.key, json.dumps(_plain_record(record))) for record in batch.records],
        )
        self.db.executemany(ADD_SUM, [_sum_row(record) for record in batch.records])
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

    async def standings(self, claims: Sequence[Claim], now: float) -> list[Standing]:
        states = await self._read(lambda: self._reader.windows([claim.window for claim in claims]))
        now_us = int(now * 1e6)
        empty = WindowState(0, 0, now_us)
        return [
            limits.standing(claim, limits.leaked(claim, states.get(claim.window, empty), now_us), now_us)
            for claim in claims
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
        try:
            return await asyncio.get_running_loop().run_in_executor(self._writer, self._file.apply, wishes)
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


def _plain(record: Record | Claim | Usage) -> dict[str, Any]:
    """The fields of one record; `dataclasses.asdict` would copy every value, at ten times the cost."""
    return {name: getattr(record, name) for name in record.__slots__}


def _plain_record(record: Record) -> dict[str, Any]:
    return {**_plain(record), "usage": _plain(record.usage)}


def _dump_draw(draw: Draw) -> str:
    return json.dumps({"record": _plain_record(draw.record), "claims": [_plain(claim) for claim in draw.claims]})


def _load_draw(text: str) -> Draw:
    values = json.loads(text)
    record = Record(**{**values["record"], "usage": Usage(**values["record"]["usage"])})
    return Draw(record, tuple(Claim(**claim) for claim in values["claims"]))


def _sum_row(record: Record) -> tuple[str | int, ...]:
    usage = record.usage
    day = datetime.fromtimestamp(record.time, UTC).strftime("%Y-%m-%d")
    return (
        day, record.key, record.team or "", record.label_model, record.upstream, record.endpoint,
        1, int(record.ended == "error"), usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens,
        usage.reasoning_tokens, usage.total_tokens if usage.source == "estimated" else 0,
    )  # fmt: skip
