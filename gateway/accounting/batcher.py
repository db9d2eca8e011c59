"""When one worker sends a batch to the store, and what goes with it.

One batch is in flight at a time; what arrives meanwhile goes with the next. A single call waits for no timer; where
several wait, the next batch leaves some space behind the last, because a batch of one costs as much as one of ten. A
draw that comes alone is sent within its own turn of the event loop, where the store can apply it at once.

Where no other worker or gateway writes to the store, a settlement waits up to `LINGER_S` for the batch of another call,
and its answer ends when the journal has it. No draw is refused for that, because every batch carries what waits, and
before its draws; reports of this worker are read after it was sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, Protocol

from gateway.journal import Journal
from gateway.records import Granted, Refused
from gateway.store import SIGN_OF_LIFE_S, Applied, Batch, Item, RateDraw, Reserve, Store

from .outage import Outage
from .send_queue import End, SendQueue, take_first

MAX_BATCH = 100
"""Keeps one batch short enough that other workers get their turn in a few milliseconds."""

GATHER_S = 0.002
"""Minimum time between the beginnings of two batches if more than one request waits."""

AT_ONCE = 20
"""Items that may be sent within a turn of the event loop; more would delay other calls by more than a millisecond."""

FEW_DRAWS = 2
"""Average draws per batch above which calls are gathered: they then come so close together that gathering them costs
less than sending each at once."""

LATEST = 0.2
"""The share of the latest batch in that average."""

LINGER_S = 0.05
"""How long a settlement may wait for a batch to go with."""

AFTER_BUG_S = 0.5
"""Pause after a batch that could not even be made."""


class PendingReserve(NamedTuple):
    """A draw that waits for its verdict."""

    opening: Reserve | RateDraw
    answer: asyncio.Future[Granted | Refused]


_OPENING_OF = attrgetter("opening")


class SentBatch(NamedTuple):
    """The contents of one batch, in the order of its items."""

    forced: list[Reserve]
    ends: list[End]
    draws: list[PendingReserve]

    @property
    def items(self) -> list[Item]:
        return [*self.forced, *self.ends, *map(_OPENING_OF, self.draws)]


class BatchCarrier(Protocol):
    """The worker that gives a batch its meaning."""

    async def carry(self, sent: SentBatch, batch: Batch) -> None:
        """Have the store apply a batch, and answer it."""

    def answer_now(self, sent: SentBatch, applied: Applied) -> None:
        """The store has applied a batch within this turn of the event loop. Raises nothing."""

    async def deal_with(self, sent: SentBatch, error: Exception) -> None:
        """A batch was not applied, or it is unknown whether it was."""

    def give_up_answers(self, sent: SentBatch | None, bug: Exception) -> None:
        """Ends each wait for an answer of this batch, because `bug` kept it from being answered."""


class Batcher:
    """The queue of what waits for the store, and the task that sends it. Used from one event loop."""

    def __init__(self, store: Store, journal: Journal, outage: Outage, carrier: BatchCarrier) -> None:
        self.draws: deque[PendingReserve] = deque()
        self.ends = SendQueue(journal)
        self.forced: dict[str, Reserve] = {}
        """Leases that have to be sent to the store again."""
        self.lingering: asyncio.TimerHandle | None = None
        """Timer of the next send; None: ends are sent at once."""
        self.is_closing = False
        self._store = store
        self._is_elsewhere = store.apply_now is None
        """Whether no batch can be applied within this turn of the event loop."""
        self._journal = journal
        self._outage = outage
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        self._seq = self._acked = 0
        self._size = MAX_BATCH
        self._wake = asyncio.Event()
        self._is_sending = False
        """Whether the task that sends batches has one under way."""
        self._sent_at = self._loop.time()
        """When the last batch was begun, on the loop's clock."""
        self._has_sent = False
        """Whether a batch was sent within this turn of the event loop."""
        self._draws_a_batch = 0.0
        self._failed: tuple[SentBatch, Exception] | None = None
        """A batch that was sent within a turn and could not be applied."""

    def send(self) -> None:
        """Send what waits: in this turn of the event loop, or by the task that sends batches."""
        is_under_way = self._is_sending or self._has_sent
        if is_under_way or self._is_elsewhere or self._draws_a_batch > FEW_DRAWS or not self._send_now():
            self._wake.set()

    def send_ends(self) -> None:
        """Send what waits, lingering ends with it."""
        if self.lingering is not None:
            self.lingering.cancel()
            self.lingering = None
        self.send()

    def linger(self) -> None:
        """Let ends wait for `LINGER_S`, unless a batch takes them along."""
        self.lingering = self._loop.call_later(LINGER_S, self._end_linger)

    def _end_linger(self) -> None:
        self.lingering = None
        if self.has_work():
            self.send()

    def close(self) -> None:
        """Send what waits, and then no more: `run` returns."""
        self.is_closing = True
        self.send_ends()
        self._wake.set()

    def has_work(self) -> bool:
        return bool(self.draws or self.ends or self.forced or self._failed)

    def _send_now(self) -> bool:
        """Send a small batch, where the store can apply it at once. Returns whether it did, or has failed."""
        has_problem = not self._outage.is_up or self._failed or self.forced or self.ends.is_behind
        is_small = 0 < len(self.draws) + len(self.ends.waiting) <= min(AT_ONCE, self._size)
        if has_problem or not is_small or not self._journal.write_now():
            return False
        sent = self._gather()
        try:
            assert self._store.apply_now is not None
            applied = self._store.apply_now(Batch(self._journal.name, self._seq + 1, self._acked, sent.items))
        except Exception as error:
            self._seq += 1
            self._failed = (sent, error)
            self._wake.set()
            return True
        if applied is None:
            self.put_back(sent)
            return False
        self._seq = self._acked = self._seq + 1
        self._size = MAX_BATCH
        self._has_sent = True
        self._loop.call_soon(self._begin_turn)
        self._carrier.answer_now(sent, applied)
        return True

    def _begin_turn(self) -> None:
        self._has_sent = False

    async def run(self) -> None:
        """Send batches until `close`: what is due, signs of life, and tests of a store that is away."""
        while True:
            is_heartbeat = False
            if not self._must_send():
                self._wake.clear()
                try:
                    async with asyncio.timeout_at(self._sent_at + SIGN_OF_LIFE_S):
                        await self._wake.wait()
                except TimeoutError:
                    is_heartbeat = self._loop.time() >= self._sent_at + SIGN_OF_LIFE_S
            if self.is_closing and not self.has_work():
                return
            space_s = self._sent_at + GATHER_S - self._loop.time()
            if space_s > 0 and len(self.draws) + len(self.ends.waiting) > 1:
                await asyncio.sleep(space_s)
            if not (is_heartbeat or self._must_send()):
                continue  # it was sent meanwhile
            if not self._is_elsewhere and self._draws_a_batch <= FEW_DRAWS and self._send_now():
                continue
            sent: SentBatch | None = None
            self._is_sending = True
            try:
                if self._failed is not None:
                    (sent, error), self._failed = self._failed, None
                    await self._carrier.deal_with(sent, error)
                else:
                    sent = self._gather()
                    self._seq += 1
                    await self._carrier.carry(sent, Batch(self._journal.name, self._seq, self._acked, sent.items))
            except Exception as bug:
                self._carrier.give_up_answers(sent, bug)
                await asyncio.sleep(AFTER_BUG_S)
            finally:
                self._is_sending = False

    def _must_send(self) -> bool:
        """Whether something has to be sent now, or whether the store is back to be tested."""
        is_due = self.draws or self.forced or self._failed or (self.ends and self.lingering is None)
        return bool(is_due or self.is_closing or not self._outage.is_up)

    def _gather(self) -> SentBatch:
        """The next batch. Ends come before draws, because they may make room for a draw of the same batch."""
        forced = list(islice(self.forced.values(), self._size)) if self.forced else []
        room = self._size - len(forced)
        room_for_ends = room - min(len(self.draws), room // 2)
        ends = self.ends.take(room_for_ends)
        room -= len(ends)
        draws = take_first(self.draws, room) if self.draws else []
        self._sent_at = self._loop.time()
        self._draws_a_batch += LATEST * (len(draws) - self._draws_a_batch)
        return SentBatch(forced, ends, draws)

    def put_back(self, sent: SentBatch) -> None:
        self.draws.extendleft(reversed(sent.draws))
        self.ends.put_back(sent.ends)

    def take_draws(self) -> list[PendingReserve]:
        taken, self.draws = [*self.draws], deque()
        return taken

    def note_applied(self) -> None:
        self._acked = self._seq
        self._size = MAX_BATCH

    def send_singly(self) -> None:
        """Send each item alone until a batch is applied."""
        self._size = 1

    def begin_again(self, seq: int, forced: Mapping[str, Reserve]) -> None:
        """The store has lost the batches above this number: these leases have to be sent to it again."""
        self._acked = seq
        self._seq = max(self._seq, seq)
        self.forced = {**forced}
