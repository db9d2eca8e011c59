"""What dead workers left behind: their journals are delivered by whoever finds their locks free.

The entry of a call that was begun and never ended is its settlement at the estimate, marked as lost: all that is to be
done is to append it as the call's end. Whoever dies while doing this leaves a journal that can be adopted again, and
the numbers of its entries make repeats harmless.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import islice

from gateway.journal import KEPT_S, Journal, JournalEntry
from gateway.quota import ledger_entry
from gateway.records import Record
from gateway.store import SILENT_S, Batch, Item, Progress, Settle, Store, StoreLostWrites, StoreUnavailable, Void
from gateway.tasks import Tasks

log = logging.getLogger("gateway")

LOOK_EVERY_S = 5.0
TRY_AGAIN_S = 0.5
"""While the store is away."""
PORTION = 50
"""Entries in one batch: the living have their turns in between."""


def item_of(entry: JournalEntry) -> Item | None:
    """What the store is sent for a `close` or `void` entry; None where it cannot be read, which is said in the log."""
    if entry.kind == "void":
        return Void(entry.number, entry.lease)
    try:
        return Settle(entry.number, ledger_entry.decode(entry.text), entry.text)
    except ValueError:
        log.exception("the journal's entry %d, of call %s, cannot be read", entry.number, entry.lease)
        return None


class Recovery:
    """Looks for journals of the dead, and delivers them."""

    def __init__(self, store: Store, adopt: Callable[[], Journal | None], note_lost: Callable[[Record], None]) -> None:
        self.has_looked = asyncio.Event()
        """Whatever was there at the beginning has been delivered, or cannot be for now."""
        self._store = store
        self._adopt = adopt
        self._note_lost = note_lost
        self._tasks = Tasks()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
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
                    told = await self._take_over(journal)
                except BaseException:
                    await journal.close()
                    raise
                self._tasks.spawn(self._see_off(journal, told), f"journal-{journal.name[:8]}")
        except OSError as error:
            log.warning("the journals of other workers cannot be seen to: %s", error)

    async def _take_over(self, journal: Journal) -> int:
        """Deliver a journal, however long the store is away. Raises `OSError` where it cannot be written."""
        while True:
            try:
                told = await deliver(self._store, journal, self._note_lost)
                if journal.is_whole:
                    await self._store.void_leases(journal.name)
            except StoreUnavailable:
                self.has_looked.set()
                await asyncio.sleep(TRY_AGAIN_S)
            else:
                return told

    async def _see_off(self, journal: Journal, told: int) -> None:
        """Remove a journal that was delivered up to the entry `told`."""
        try:
            if self._store.may_forget:
                await self._keep(journal, told)
            await journal.remove()  # first, or whoever finds it after us would tell all of it again
            if journal.is_whole:
                await self._store.retire(journal.name)
        except BaseException as error:
            await journal.close()
            if not isinstance(error, StoreUnavailable):
                raise

    async def _keep(self, journal: Journal, told: int) -> None:
        """Until the store has had time to lose what it was told, and to be told again."""
        until = time.monotonic() + KEPT_S
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            if (await self._store.progress(journal.name)).mark < told:
                told = await deliver(self._store, journal, self._note_lost)
                until = time.monotonic() + KEPT_S


async def deliver(store: Store, journal: Journal, note_lost: Callable[[Record], None]) -> int:
    """Tell the store everything it does not know of this journal. Returns the number of the last entry that it has.

    Calls that never ended are lost, and each of them is noted once. Where a part of the journal is missing, some of
    them may have ended all the same: there the store itself closes what it still holds of them, when the worker has
    been silent for long enough.

    Raises `StoreUnavailable`, or `OSError` where the journal cannot be written.
    """
    progress = await store.progress(journal.name)
    journal.skip_to(progress.mark)
    lost = journal.open_entries() if journal.is_whole else []
    for entry in lost:
        journal.append("close", entry.lease, entry.text)
    await journal.written()
    if lost:
        for entry in lost:
            if isinstance(item := item_of(entry._replace(kind="close")), Settle):
                note_lost(item.settlement.record)
        log.warning("%d calls of a killed worker are charged at their estimates and recorded as lost", len(lost))
    if not journal.is_whole:
        log.warning("a part of the journal %s is missing: its open calls will be lost in %d s", journal.name, SILENT_S)
    while True:
        try:
            await _deliver_after(store, journal, progress)
            return (await store.progress(journal.name)).mark
        except StoreLostWrites as behind:
            progress = behind.progress


async def _deliver_after(store: Store, journal: Journal, progress: Progress) -> None:
    seq, undelivered = progress.seq, journal.undelivered(progress.mark)
    while portion := list(islice(undelivered, PORTION)):
        items = [item for entry in portion if (item := item_of(entry)) is not None]
        seq = await _send(store, journal.name, seq, items)
        journal.delivered(portion[-1].number)


async def _send(store: Store, worker: str, seq: int, items: list[Item]) -> int:
    """Send a batch after the one numbered `seq`; returns the number of the last one that was applied.

    What the store cannot take at all, which would be our bug, is left out and logged.
    """
    try:
        await store.apply(Batch(worker, seq + 1, seq, items))
    except (StoreUnavailable, StoreLostWrites):
        raise
    except Exception as error:
        try:
            await store.ping()
        except Exception:
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from None  # a server that takes nothing at all
        if len(items) == 1:
            log.exception("the store cannot take %s of the journal %s", items[0], worker)
            return seq
        for item in items:
            seq = await _send(store, worker, seq, [item])
        return seq
    return seq + 1
