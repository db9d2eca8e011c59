"""Recovery: delivers the journals of dead workers to the store. Any worker adopts a journal whose lock is free.

The `open` entry of a call without an end is its settlement at the estimate, marked as lost; recovery appends it as the
call's end. A worker that is killed during a recovery leaves a journal that can be adopted again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from gateway.journal import KEPT_S, Journal, JournalEntry
from gateway.quota import ledger_entry
from gateway.records import Record
from gateway.store import SILENT_S, Batch, Defer, Item, Progress, Settle, Store, StoreLostWrites, StoreUnavailable, Void
from gateway.tasks import Tasks

log = logging.getLogger("gateway")

LOOK_EVERY_S = 5.0
TRY_AGAIN_S = 0.5
"""Pause between attempts while the store is unavailable."""
DOUBTED_FOR_S = 1.0
"""How long after it failed alone an item is sent again, once: what kept the server from it may be over then."""
PORTION = 50
"""Entries in one batch, so that other workers get their turns in between."""


class RecoveredCalls(Protocol):
    """The metrics of this gateway: which calls of a dead worker they have already."""

    def counted(self, journal: str) -> int | None:
        """Up to which entry the calls of a journal are counted; None: the journal is not of this gateway's workers."""

    def recovered(self, journal: str, number: int, record: Record | None) -> None:
        """Count the call that ended with this entry, if it is one, and that the calls up to it are counted."""


class NoMetrics:
    def counted(self, journal: str) -> int | None:
        return None

    def recovered(self, journal: str, number: int, record: Record | None) -> None:
        pass


def item_of(entry: JournalEntry) -> Item | None:
    """The item for a `close`, `void` or `defer` entry; None, and a log line, where the entry cannot be read."""
    if entry.kind == "void":
        return Void(entry.number, entry.lease)
    try:
        if entry.kind == "defer":
            text, _, note = entry.text.rpartition("\t")
            return Defer(entry.number, *ledger_entry.decode(text), text, note)
        return Settle(entry.number, *ledger_entry.decode(entry.text), entry.text)
    except ValueError:
        log.exception("the journal's entry %d, of call %s, cannot be read", entry.number, entry.lease)
        return None


class Recovery:
    def __init__(self, store: Store, adopt: Callable[[], Journal | None], metrics: RecoveredCalls) -> None:
        self.has_looked = asyncio.Event()
        """Set when the journals found at the start are delivered, or cannot be delivered now."""
        self._store = store
        self._adopt = adopt
        self._metrics = metrics
        self._tasks = Tasks()

    async def run(self) -> None:
        """Look every `LOOK_EVERY_S`, until cancelled."""
        try:
            while True:
                await self._look()
                self.has_looked.set()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self.has_looked.set()
            await self._tasks.cancel_all()

    async def _look(self) -> None:
        try:
            while (journal := await asyncio.to_thread(self._adopt)) is not None:
                try:
                    delivered = await self._take_over(journal)
                except BaseException:
                    await journal.close()
                    raise
                self._tasks.spawn(self._see_off(journal, delivered), f"journal-{journal.name[:8]}")
        except OSError as error:
            log.warning("the journals of other workers cannot be seen to: %s", error)

    async def _take_over(self, journal: Journal) -> int:
        """Deliver a journal, however long the store is unavailable. Raises `OSError` where it cannot be written."""
        while True:
            try:
                delivered = await deliver(self._store, journal, self._metrics)
                if journal.is_whole:
                    await self._store.void_leases(journal.name)
            except StoreUnavailable:
                self.has_looked.set()
                await asyncio.sleep(TRY_AGAIN_S)
            else:
                return delivered

    async def _see_off(self, journal: Journal, delivered: int) -> None:
        """Remove a journal that was delivered up to the entry `delivered`."""
        try:
            if self._store.may_forget:
                await self._keep(journal, delivered)
            await journal.remove()  # first; otherwise the next worker to find it would deliver all of it again
            if journal.is_whole:
                await self._store.retire(journal.name)
        except BaseException as error:
            await journal.close()
            if not isinstance(error, StoreUnavailable):
                raise

    async def _keep(self, journal: Journal, delivered: int) -> None:
        """Keep a journal for as long as the store may lose its entries, and deliver those again."""
        until = time.monotonic() + KEPT_S
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            if (await self._store.progress(journal.name)).mark < delivered:
                delivered = await deliver(self._store, journal, self._metrics)
                until = time.monotonic() + KEPT_S


async def deliver(store: Store, journal: Journal, metrics: RecoveredCalls) -> int:
    """Deliver what the store does not have of this journal. Returns the number of the last entry that it has.

    Calls without an end are lost. These, and what else has ended and is not counted, are counted once. Where a part of
    the journal is missing, some of them may have
    ended: then the store closes those that are still open, when the worker has been silent for `SILENT_S`.

    Raises `StoreUnavailable`, or `OSError` where the journal cannot be written.
    """
    progress = await store.progress(journal.name)
    journal.skip_to(progress.mark)
    counted = metrics.counted(journal.name)
    if counted is None:  # counted by the gateway of its time, but for the calls that it has lost
        counted = journal.last
        metrics.recovered(journal.name, counted, None)
    lost = journal.open_entries() if journal.is_whole else []
    lost = _deferred(journal, lost)
    for entry in lost:
        journal.append("close", entry.lease, entry.text)
    await journal.written()
    if lost:
        log.warning("%d calls of a killed worker are charged at their estimates and recorded as lost", len(lost))
    _count(journal, counted, metrics)
    if not journal.is_whole:
        log.warning("a part of the journal %s is missing: its open calls will be lost in %d s", journal.name, SILENT_S)
    while True:
        try:
            await _deliver_after(store, journal, progress)
            return (await store.progress(journal.name)).mark
        except StoreLostWrites as behind:
            progress = behind.progress


def _deferred(journal: Journal, lost: list[JournalEntry]) -> list[JournalEntry]:
    """Defer the calls whose work goes on at an upstream. Returns the other ones."""
    others = []
    for entry in lost:
        try:
            note = ledger_entry.note_of(entry.text)
        except ValueError:
            note = None
        if note is None:
            others.append(entry)
        else:
            journal.append("defer", entry.lease, f"{ledger_entry.without_note(entry.text)}\t{note}")
    return others


def _count(journal: Journal, counted: int, metrics: RecoveredCalls) -> None:
    for entry in journal.undelivered(counted):
        item = item_of(entry)
        metrics.recovered(journal.name, entry.number, item.record if isinstance(item, Settle) else None)


async def _deliver_after(store: Store, journal: Journal, progress: Progress) -> None:
    seq, undelivered = progress.seq, journal.undelivered(progress.mark)
    while portion := list(islice(undelivered, PORTION)):
        items = [item for entry in portion if (item := item_of(entry)) is not None]
        seq = await _send(store, journal.name, seq, items)
        journal.delivered(portion[-1].number)


async def _send(store: Store, worker: str, seq: int, items: list[Item], *, is_doubted: bool = False) -> int:
    """Send a batch after the one numbered `seq`; returns the number of the last one that was applied.

    An item that the store rejects twice, which would be a bug here, is skipped and logged.
    """
    try:
        await store.apply(Batch(worker, seq + 1, seq, items, is_adopted=True))
    except (StoreUnavailable, StoreLostWrites):
        raise
    except Exception as error:
        try:
            await store.ping()
        except Exception:
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from None  # a server that rejects everything
        if len(items) == 1 and not is_doubted:
            await asyncio.sleep(DOUBTED_FOR_S)
            return await _send(store, worker, seq, items, is_doubted=True)
        if len(items) == 1:
            log.exception("the store cannot take %s of the journal %s", items[0], worker)
            return seq
        for item in items:
            seq = await _send(store, worker, seq, [item])
        return seq
    return seq + 1
