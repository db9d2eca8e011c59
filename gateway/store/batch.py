"""Many draws and settlements in one round trip.

One batch is in flight at a time; what arrives meanwhile goes with the next. So batches grow with the load by
themselves, and a single call waits for no timer. When a batch fails, every draw that waits raises `StoreAway` at once,
for nothing of a failed batch was applied and the next would only wait as long; settlements stay at the head of the
queue and are tried again, in order, until they are delivered.

A batch can also fail for what is in it, which would be our bug. Then its wishes go one by one, and the one that fails
alone is given up with a line in the log: a poisoned settlement must not keep all others from the store for ever.

A draw whose future was cancelled is carried out nevertheless, because it may be under way already, and then taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.records import Draw, Granted, Refused, Settlement
from gateway.tasks import Tasks

from . import StoreAway

log = logging.getLogger("gateway")

MAX_BATCH = 100
"""Keeps one transaction short enough that other workers get their turn in a few milliseconds."""

RETRY_S = 0.2
"""Pause after a failed batch. A draw that arrives meanwhile does not wait for it: it makes the next try itself."""


@dataclass(slots=True)
class Entry:
    """One wish on its way, and who waits for the answer."""

    wish: Draw | Settlement
    answer: asyncio.Future[Granted | Refused | None]


Apply = Callable[[Sequence[Draw | Settlement]], Awaitable[Sequence[Granted | Refused | None]]]


class Batcher:
    """The queue in front of one store, for one event loop."""

    def __init__(self, apply: Apply, on_error: Callable[[], None]) -> None:
        self._apply = apply
        self._on_error = on_error
        self._waiting: list[Entry] = []
        self._in_flight = 0
        self._size = MAX_BATCH
        self._wake = asyncio.Event()
        self._tasks = Tasks()
        self._tasks.spawn(self._run(), "store-batches")
        self._is_closing = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Batcher {len(self._waiting)} waiting, {self._in_flight} in flight>"

    @property
    def pending(self) -> int:
        """Settlements that are not delivered."""
        return self._in_flight + sum(isinstance(entry.wish, Settlement) for entry in self._waiting)

    def submit(self, wish: Draw | Settlement) -> asyncio.Future[Granted | Refused | None]:
        """Put a wish into the next batch."""
        answer: asyncio.Future[Granted | Refused | None] = asyncio.get_running_loop().create_future()
        if self._is_closed and isinstance(wish, Draw):
            answer.set_exception(StoreAway("the ledger is closed"))
        else:
            self._waiting.append(Entry(wish, answer))
            self._wake.set()
        return answer

    async def close(self, timeout_s: float) -> int:
        """Deliver what waits, for at most this long. Returns how many settlements were left.

        One that was under way at the last moment counts as left, though it may yet arrive.
        """
        self._is_closing = True
        self._wake.set()
        await self._tasks.wait_until_idle(timeout_s)
        await self._tasks.cancel_all()
        self._is_closed = True
        self._fail_draws(StoreAway("the ledger is closed"))
        return self.pending

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._is_closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            self._in_flight = sum(isinstance(entry.wish, Settlement) for entry in batch)
            try:
                answers = await self._apply([entry.wish for entry in batch])
            except StoreAway as away:
                self._on_error()
                self._waiting[:0] = batch
                self._fail_draws(away)
                await self._pause(away)
            except asyncio.CancelledError:
                self._waiting[:0] = batch
                raise
            except Exception as error:
                self._on_error()
                self._single_out(batch, error)
            else:
                self._size = MAX_BATCH
                for entry, answer in zip(batch, answers, strict=True):
                    if not entry.answer.done():
                        entry.answer.set_result(answer)
                    elif isinstance(answer, Granted) and isinstance(entry.wish, Draw):
                        self.submit(entry.wish.taken_back())  # whoever asked has left
            finally:
                self._in_flight = 0

    def _fail_draws(self, away: StoreAway) -> None:
        draws = [entry for entry in self._waiting if isinstance(entry.wish, Draw)]
        self._waiting = [entry for entry in self._waiting if not isinstance(entry.wish, Draw)]
        for entry in draws:
            if not entry.answer.done():
                entry.answer.set_exception(away)

    def _single_out(self, batch: list[Entry], error: Exception) -> None:
        if len(batch) > 1:
            self._size = 1
            self._waiting[:0] = batch
            return
        (entry,) = batch
        log.error("the store cannot take call %s", entry.wish.record.id, exc_info=error)
        if not entry.answer.done():
            entry.answer.set_exception(StoreAway(f"{type(error).__name__}: {error}"))
            if isinstance(entry.wish, Settlement):
                entry.answer.exception()  # nobody has to ask for it

    async def _pause(self, away: StoreAway) -> None:
        log.warning("the store is away (%s); %d settlements wait for it", away, len(self._waiting))
        if not self._waiting:
            return
        self._in_flight = 0
        self._wake.clear()
        try:
            async with asyncio.timeout(RETRY_S):
                await self._wake.wait()
        except TimeoutError:
            pass
