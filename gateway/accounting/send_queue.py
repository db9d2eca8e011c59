"""The send queue: settlements and voids that wait for the store, in the order of the journal, which has each first; and
the answers that wait for their settlements.

Up to `MAX_KEPT` of them are kept in memory. After a long outage, or when the store lost writes, they are read from the
journal again, until none is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from gateway.journal import Journal, JournalEntry
from gateway.quota import ledger_entry, windows
from gateway.records import Claim, Record
from gateway.store import Defer, Settle, Void
from gateway.tasks import Tasks

from .recovery import item_of

End = Settle | Void | Defer

MAX_KEPT = 10_000
"""Ends kept in memory; later ones are read from the journal again."""

CROWD = 100
"""More than this do not fit into the next batch."""


T = TypeVar("T")


def take_first(waiting: deque[T], most: int) -> list[T]:
    if len(waiting) > most:
        return [waiting.popleft() for _ in range(most)]
    taken = list(waiting)
    waiting.clear()
    return taken


class SendQueue:
    """The ends that the store does not have, the first one first."""

    def __init__(self, journal: Journal) -> None:
        self.mark = 0
        """The last end that the store is known to have."""
        self.last = 0
        self._journal = journal
        self.waiting: deque[End] = deque()
        """Ends that wait in memory."""
        self._replay: Iterator[JournalEntry] | None = None
        """If set, ends are taken from here instead of `waiting`."""
        self._settled = self._delivered = self._counted = 0
        """Settlements in all, those that were delivered, and the number of the last of these."""

    def __bool__(self) -> bool:
        return bool(self.waiting) or self._replay is not None

    @property
    def is_behind(self) -> bool:
        """Whether an end that is added now waits behind many."""
        return self._replay is not None or len(self.waiting) > CROWD

    @property
    def pending(self) -> int:
        """Settlements of this worker that the store does not have."""
        return self._settled - self._delivered

    def close(self, record: Record, claims: tuple[Claim, ...], *, is_written_now: bool = False) -> int:
        """A call has ended. Returns the number of the end. `is_written_now` as of `Journal.append`."""
        charged = windows.charges(record, claims)
        text = ledger_entry.encode(record, claims, charged)
        number = self._journal.append("close", record.id, text, is_written_now=is_written_now)
        self._settled += 1
        self._add(Settle(number, record, claims, text, charged))
        return number

    def defer(self, record: Record, claims: tuple[Claim, ...], note: str) -> int:
        """A call has ended, and its lease goes on. Returns the number of the end."""
        text = ledger_entry.encode(record, claims)
        number = self._journal.append("defer", record.id, f"{text}\t{note}")
        self._settled += 1
        self._add(Defer(number, record, claims, text, note))
        return number

    def void(self, lease: str) -> None:
        """Cancel a reservation that the store may have applied."""
        self._add(Void(self._journal.append("void", lease), lease))

    def take(self, most: int) -> list[End]:
        """The next ends, to be `delivered` or `put_back`. Raises `OSError` if the journal cannot be read."""
        if self._replay is None:
            return take_first(self.waiting, most)
        try:
            read = list(islice(self._replay, most))
        except OSError:
            self.read_again()
            raise
        if len(read) < most:
            self._replay = None  # that was the last one; new ends wait in memory
        if not any(taken := [item_of(entry) for entry in read]) and read:
            self.mark = read[-1].number  # an unreadable entry must not be read again and again
        return [item for item in taken if isinstance(item, End)]

    def put_back(self, ends: list[End]) -> None:
        if self._replay is None:
            self.waiting.extendleft(reversed(ends))
        else:
            self.read_again()

    def delivered(self, ends: Sequence[End]) -> None:
        for end in ends:
            self.mark = max(self.mark, end.number)
            if end.number > self._counted:
                self._counted = end.number
                self._delivered += isinstance(end, Settle | Defer)
        self._journal.delivered(self.mark)

    def give_up(self, end: End) -> None:
        """The store cannot take this one at all. It still counts as pending."""
        self.mark = max(self.mark, end.number)

    def read_again(self, mark: int | None = None) -> None:
        """Take the ends from the journal: those after `mark`, or after the last one that the store is known to have."""
        if mark is not None:
            self.mark = mark
        self.waiting.clear()
        self._replay = self._journal.undelivered(self.mark)

    def _add(self, end: End) -> None:
        self.last = end.number
        if self._replay is None:
            self.waiting.append(end)
            if len(self.waiting) > MAX_KEPT:
                self.read_again()


class CommitWaiters:
    """Delay the end of an answer until its settlement is stored or on its way to the store, or journalled if the store
    is slow.

    `write_journal` returns when all settlements are written, if they can be.
    """

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
        self.are_safe(number)

    def are_safe(self, number: int) -> None:
        """All settlements up to this number are in the journal, and on their way to the store: what a client does when
        its answer has ended comes there after them."""
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
