"""The write-ahead log of one worker: every reservation and end is in it before the store has it.

Entries are gathered and written once in each turn of the event loop, by the loop itself; the page
cache survives the worker. The loss by a power cut is bounded by a sync each second, in a thread. If the disk is slow,
the writes go to a thread too, and callers wait for them.

Delivered entries stay for another `KEPT_S`, in case the store loses them; then their segments are deleted. Memory has
the entries of open leases, and unwritten ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gateway.tasks import Tasks

from . import disk
from .codec import EntryKind, JournalEntry, decode, encode
from .directory import JournalDirectory, warn_unused
from .disk import SlowDisk, WriteResult
from .segments import Cursor, Segments

log = logging.getLogger("gateway")

KEPT_S = 30
"""How long what was delivered stays, for a store that comes back without it."""

LOOK_EVERY_S = 1.0
"""How often what is dirty is synced, what failed tried again, and what is old deleted."""

T = TypeVar("T")


class Journal:
    """One worker's journal. Used from one event loop, but for `create` and `adopt`, which may run in any thread."""

    def __init__(self, directory: JournalDirectory) -> None:
        self.name = directory.name
        """32 hexadecimal digits, random: the worker's incarnation."""
        self.last = 0
        """The highest number that was given."""
        self.damaged = 0
        """Places in the files, as they were adopted, where entries cannot be read."""
        self.is_whole = directory.is_of_this_boot
        """Whether all entries of its worker are in it. Entries lost by a power cut, a full disk or damage may have
        reached the store."""
        self._directory = directory
        self._segments = Segments(directory.path)
        self._open = self._segments.open
        self._gathered: list[bytes] = []
        self._appended = self._last_end = self._on_disk = 0
        self._is_called = self._has_failed = self._is_short = self._has_sync_failed = self._is_closed = False
        self._pace = SlowDisk()
        self._round: asyncio.Future[WriteResult] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that uses it, from the first entry on: asking for it is a system call before Python 3.12."""
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="journal")
        self._tasks = Tasks()
        self._upkeep: asyncio.Task[None] | None = None
        self._tidying = asyncio.Lock()

    # ----------------------------------------------------------------------------------------- beginning and end

    @classmethod
    def create(cls, folder: Path, origin: str) -> Journal:
        """A new journal in a folder that many share; `origin` names the ledger it belongs to. Raises `OSError`."""
        directory = JournalDirectory.make(folder, origin)
        try:
            disk.make_reserve(directory.path)
        except OSError:
            directory.remove()
            raise
        return cls(directory)

    @classmethod
    def adopt(cls, folder: Path, origin: str) -> Journal | None:
        """A dead worker's journal, of this origin; None where there is none.

        Cheap where there is none. Else all that is there is read, which takes seconds for a million entries.
        """
        for directory in JournalDirectory.free(folder, origin):
            try:
                journal = cls(directory)
                journal._take_in()
            except OSError as error:
                warn_unused(str(directory.path), f"it cannot be read ({error.strerror})")
                directory.leave()
            else:
                return journal
        return None

    def _take_in(self) -> None:
        self.last, torn, self.damaged = self._segments.take_in()
        self._appended = self._on_disk = self.last
        if torn:
            log.warning("the journal %s ends in the middle of an entry, which is left out", self.name)
        if self.damaged:
            self.is_whole = False
            log.error("the journal %s is damaged: %d lines cannot be read, and are lost", self.name, self.damaged)

    async def close(self) -> None:
        """Write and sync what is possible, and close: the files stay for adoption by another worker."""
        await self._end()
        self._directory.leave()

    async def remove(self) -> None:
        """Delete the files: everything is delivered. Raises `OSError`, and then it has still to be closed."""
        await self._end()
        await asyncio.to_thread(self._directory.remove)

    async def _end(self) -> None:
        if self._is_closed:
            return
        try:
            await self.written()
        except OSError as error:
            log.error("%d entries of the journal %s were never written: %s", len(self._gathered), self.name, error)
        self._is_closed = True
        async with self._tidying:
            await self._tasks.cancel_all()
            await self._sync()
        await asyncio.to_thread(self._threads.shutdown)
        self._segments.shut()

    # --------------------------------------------------------------------------------------------------- writing

    @property
    def is_full(self) -> bool:
        """Whether nothing new should be begun: the last write failed, or took the reserve of the disk."""
        return self._has_failed or self._is_short

    def skip_to(self, number: int) -> None:
        """Number what follows from above `number`: the store has seen that much of what these files have lost."""
        if number > self.last:
            self.last, self.is_whole = number, False

    def append(self, kind: EntryKind, lease: str, text: str = "", *, is_written_now: bool = False) -> int:
        """Write an entry down at the end of this turn of the event loop. Returns its number. `is_written_now`: the
        caller calls `write_now` or awaits `written` in this turn.

        Raises `ValueError` for what cannot be one line, and then nothing is appended.
        """
        if self._is_closed:
            raise RuntimeError("the journal is closed")
        number = self.last + 1
        line = encode(number, kind, lease, text)
        self.last = self._appended = number
        self._gathered.append(line)
        if kind == "open":
            self._open[lease] = line
        else:
            self._open.pop(lease, None)
            self._last_end = number
        if self._upkeep is None:
            self._begin_upkeep()
        if not (is_written_now or self._is_called):
            self._write_at_end_of_turn()
        return number

    def _write_at_end_of_turn(self) -> None:
        self._is_called = True
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._at_end_of_turn)

    def write_now(self) -> bool:
        """Write everything appended so far, where the disk is quick and no write is under way. Returns whether all of
        it would survive the worker."""
        if self._on_disk < self._appended and self._round is None and not self._pace.is_slow:
            self._write_here()
        if self._on_disk >= self._appended:
            return True
        if not self._is_called:
            self._write_at_end_of_turn()
        return False

    async def written(self) -> None:
        """Waits until everything appended so far would survive the worker; returns at once if the disk is fast.

        Raises `OSError` if the entries cannot be written: the write is retried at least once a second.
        """
        until = self._appended
        while self._on_disk < until:
            if self._round is None and not self._pace.is_slow:
                error = self._write_here()
            else:
                error = (await asyncio.shield(self._round or self._write_in_thread())).error
            if error is not None:
                raise error

    def _at_end_of_turn(self) -> None:
        self._is_called = False
        if self._on_disk == self._appended or self._is_closed or self._round is not None:
            return
        if self._pace.is_slow:
            self._write_in_thread()
        else:
            self._write_here()

    def _write_here(self) -> OSError | None:
        """Write everything on the event loop. Returns why that is impossible."""
        took_s = None if self._has_failed else self._segments.append(self._gathered, self._last_end)
        if took_s is not None:
            self._gathered.clear()
            self._on_disk = self._appended
            if took_s > disk.SLOW_S:
                self._note_pace(took_s)
            return None
        plan = self._segments.plan(self._gathered, self._appended, self._last_end)
        outcome = disk.perform(plan)
        self._note(plan, outcome)
        return outcome.error

    def _write_in_thread(self) -> asyncio.Future[WriteResult]:
        """Only one such round is under way at any time; what is gathered meanwhile goes with the next."""
        plan = self._segments.plan(self._gathered, self._appended, self._last_end)
        loop = asyncio.get_running_loop()
        made: asyncio.Future[WriteResult] = loop.create_future()

        def finish(done: asyncio.Future[WriteResult]) -> None:
            self._round = None
            if (bug := done.exception()) is not None:
                made.set_exception(bug)
                return
            outcome = done.result()
            self._note(plan, outcome)
            made.set_result(outcome)
            if outcome.error is None and self._on_disk < self._appended and not self._is_closed:
                self._write_in_thread()

        self._round = made
        loop.run_in_executor(self._threads, disk.perform, plan).add_done_callback(finish)
        return made

    def _note(self, plan: disk.WritePlan, outcome: WriteResult) -> None:
        """The result of a write, and the state of the disk."""
        if outcome.error is None:
            del self._gathered[: plan.line_count]
            self._on_disk = max(self._on_disk, plan.number)
            self._segments.note(plan, outcome)
            if self._has_failed:
                log.warning("the journal %s can be written again", self.name)
        elif not self._has_failed:
            log.error("the journal %s cannot be written: %s", self.name, outcome.error)
        self._has_failed = outcome.error is not None
        if outcome.is_short and not self._is_short:
            self._is_short = True
            log.error("the disk of the journal %s is full: running calls end on its reserve", self.name)
        self._note_pace(outcome.took_s)

    def _note_pace(self, took_s: float) -> None:
        """Note the duration of a write; log if the disk becomes slow, or quick again."""
        if self._pace.note(took_s, time.monotonic()):
            now = "slow, and answers wait for it" if self._pace.is_slow else "quick again"
            log.warning("the disk of the journal %s is %s", self.name, now)

    # --------------------------------------------------------------------------------------------------- reading

    def open_entries(self) -> list[JournalEntry]:
        """Those that were neither closed nor voided, oldest first: what a dead worker had in flight."""
        return list(_entries(self._open.values()))

    def undelivered(self, after: int) -> Iterator[JournalEntry]:
        """The close and void entries with higher numbers, in order, also those that were delivered and are still kept.

        Read from the files one at a time; what is appended meanwhile is found, what is deleted meanwhile is left out.
        Raises `OSError`.
        """
        cursor = Cursor(after)
        while True:
            before = cursor.after
            yield from self._segments.ends(cursor)
            for entry in _entries(self._gathered[:]):
                if entry.kind != "open" and entry.number > cursor.after:
                    cursor.after = entry.number
                    yield entry
            # While the last of these was looked at, more may have been appended; what is damaged never comes.
            if cursor.after in (before, self._last_end):
                return

    # ----------------------------------------------------------------------------------------------------------- upkeep

    def delivered(self, number: int) -> None:
        """The store has everything up to this number, and nothing above: lower than before if it has lost data."""
        self._segments.delivered(number)
        if self._upkeep is None:
            self._begin_upkeep()

    def _begin_upkeep(self) -> None:
        if not self._is_closed:
            self._upkeep = self._tasks.keep(self._look_after, "journal")

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            async with self._tidying:
                await self._tidy()

    async def _tidy(self) -> None:
        try:
            await self.written()
            if self._is_short:
                await self._in_thread(lambda: disk.make_reserve(self._directory.path))
                self._is_short = False
                log.warning("the disk of the journal %s has room again", self.name)
        except OSError:
            pass  # it was logged when it failed first
        self._segments.note_delivered()
        if self._on_disk == self._appended and (plan := self._segments.plan_to_shrink(KEPT_S)) is not None:
            self._note(plan, disk.perform(plan))
        old = self._segments.outlived(KEPT_S)
        # Only behind a sync: what they have handed on to the segment after them has to be safe there.
        if await self._sync() and old:
            try:
                await self._in_thread(lambda: disk.unlink(old))
            except OSError as error:
                log.warning("old segments of the journal %s cannot be deleted: %s", self.name, error)
            else:
                self._segments.forget(old)

    async def _sync(self) -> bool:
        """Have what was written survive a power cut. Returns whether it would now."""
        segments = self._segments.take_unsynced()
        if not segments:
            return True
        try:
            await self._in_thread(lambda: disk.sync(segments, self._directory.path))
            has_failed = False
        except OSError as error:
            has_failed = True
            if not self._has_sync_failed:
                log.error("the journal %s cannot be synced, and a power cut would take of it: %s", self.name, error)
        self._has_sync_failed = has_failed
        self._segments.note_sync(segments, is_done=not has_failed)
        return not has_failed

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _entries(lines: Iterable[bytes]) -> Iterator[JournalEntry]:
    return (entry for line in lines for entry in decode(line) if entry is not None)
