"""Delays the end of an answer until its settlement is stored, or journalled if the store is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.tasks import Tasks


class CommitWaiters:
    """Settlements whose callers wait, by their numbers. `write_journal` returns when all of them are written, if they
    can be."""

    def __init__(self, write_journal: Callable[[], Awaitable[object]], tasks: Tasks) -> None:
        self._loop = asyncio.get_running_loop()
        self._write_journal = write_journal
        self._tasks = tasks
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._is_store_slow = False

    def of(self, number: int, *, is_store_behind: bool) -> asyncio.Future[None]:
        """Done when this settlement is safe: in the store, if it is neither slow nor behind."""
        done = self._waiting.get(number)
        if done is None:
            done = self._waiting[number] = self._loop.create_future()
        if self._is_store_slow or is_store_behind:
            self.wait_no_longer()
        return done

    def store_has(self, number: int) -> None:
        """The store has this settlement."""
        done = self._waiting.pop(number, None)
        if done is not None and not done.done():
            done.set_result(None)

    def store_is_slow(self) -> None:
        """Waiting settlements, and new ones, need only the journal from now on."""
        self._is_store_slow = True
        self.wait_no_longer()

    def store_is_well(self, number: int) -> None:
        """The store has answered in time, and has all settlements up to this number."""
        self._is_store_slow = False
        if self._waiting:
            for each in [waiting for waiting in self._waiting if waiting <= number]:
                self.store_has(each)

    def wait_no_longer(self) -> None:
        """Settlements that wait now need only the journal."""
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = self._tasks.spawn(self._acknowledge_written(), "acknowledge")

    async def _acknowledge_written(self) -> None:
        while self._waiting:
            numbers = list(self._waiting)
            await self._write_journal()  # on a full disk the answer ends as well
            for number in numbers:
                self.store_has(number)
