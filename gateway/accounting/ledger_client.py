"""One worker's accounts: many draws and settlements in one round trip, the journal before the store.

One batch is in flight at a time; what arrives meanwhile goes with the next. A single call waits for no timer; where
several wait, the next batch leaves some space behind the last, because a batch of one costs as much as one of ten. A
draw that comes alone is sent within its own turn of the event loop, where the store can apply it at once.

Where no other worker or gateway writes to the store, a settlement waits up to `LINGER_S` for the batch of another call,
and its answer ends when the journal has it. No draw is refused for that, because every batch carries what waits, and
before its draws; reports of this worker are read after it was sent.

A draw is granted when the store confirms it, which may write it a little later, and the journal has the call's `open`
entry. A settlement is handed to the journal first; delivering the entry is what settles.

The store is unavailable as soon as one batch fails. With `on_outage: deny`, calls are then refused at once. With
`allow`, one lost batch is no outage: its calls and new ones wait for `HOLD_S` while the next batch tests the store, and
are sent again if it answers; otherwise they are decided from the worker's share of the limits (offline_quota.py). One
batch at a time tests whether the store is back. Of a batch that failed nothing is known. It is never sent again; the
next one, with a higher number, carries its settlements again, and for each of its reservations the order to void it.

When the store has forgotten what it had applied (`StoreLostWrites`), the journal is read again from the store's
last entry, and the open leases are reserved again, even beyond the limit. The same reading catches up when more
settlements gathered during an outage than are kept in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from gateway.config import StoreSettings as Settings
from gateway.journal import Journal
from gateway.quota import ledger_entry
from gateway.records import Claim, Granted, Record, Refused, Window, WindowStatus
from gateway.store import (
    SIGN_OF_LIFE_S,
    Applied,
    Batch,
    Item,
    JournalFull,
    Progress,
    RateDraw,
    Reserve,
    Settle,
    Store,
    StoreLostWrites,
    StoreUnavailable,
)
from gateway.tasks import Tasks

from .changed_windows import ChangedWindows
from .offline_quota import OfflineQuota, TimeAway
from .recovery import NoMetrics, RecoveredCalls, Recovery
from .send_queue import CommitWaiters, End, SendQueue, take_first

log = logging.getLogger("gateway")

MAX_BATCH = 100
"""Keeps one batch short enough that other workers get their turn in a few milliseconds."""

GATHER_S = 0.002
"""Minimum time between the beginnings of two batches if more than one request waits."""

AT_ONCE = 20
"""Items that may be sent within a turn of the event loop; more would delay other calls by more than a millisecond."""

FEW_DRAWS = 2
"""With more draws a batch than this, on average, calls come so close together that gathering them costs less."""

LATEST = 0.2
"""The share of the latest batch in that average."""

LINGER_S = 0.05
"""How long a settlement may wait for a batch to go with."""

ACKNOWLEDGED_WITHIN_S = 0.05
"""How long the end of an answer waits for the store; after that the journal is enough."""

TRY_AGAIN_S = (0.0, 0.1, 0.2, 0.4)
"""Pauses between the batches that test whether the store is back."""

HOLD_S = 0.15
"""With `on_outage: allow`: how long calls wait after a lost batch before the worker decides from its share. With the
time limit of a batch it is less than a second."""

AFTER_BUG_S = 0.5
"""Pause after a batch that could not even be made."""

NO_METRICS = NoMetrics()

T = TypeVar("T")


class _PendingReserve(NamedTuple):
    """A draw that waits for its verdict."""

    opening: Reserve | RateDraw
    answer: asyncio.Future[Granted | Refused]


_OPENING_OF = attrgetter("opening")


class _SentBatch(NamedTuple):
    """The contents of one batch, in the order of its items."""

    forced: list[Reserve]
    ends: list[End]
    draws: list[_PendingReserve]

    @property
    def items(self) -> list[Item]:
        return [*self.forced, *self.ends, *map(_OPENING_OF, self.draws)]


_Drawn = Sequence[tuple[_PendingReserve, Any]]
"""Draws, and the verdict or the error of each."""


class LedgerClient:
    """The `Ledger` promise over a store and a journal. Used from one event loop.

    `adopt` finds journals of dead workers, whose calls `metrics` counts, as far as it does not have them.
    `changed_windows` gets the changed windows. `is_alone`: no other worker or gateway uses the store's windows.
    `acknowledged_within_s` is for tests that check the store's state.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        settings: Settings,
        adopt: Callable[[], Journal | None] = lambda: None,
        *,
        changed_windows: ChangedWindows,
        is_alone: bool = False,
        metrics: RecoveredCalls = NO_METRICS,
        acknowledged_within_s: float = ACKNOWLEDGED_WITHIN_S,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.errors = 0
        """Batches and reads that failed, since the start of this worker."""
        self.closed_calls = 0
        """Calls of silent workers that this worker closed at their estimates, since its start."""
        self._store = store
        self._journal = journal
        self._settings = settings
        self._changed_windows = changed_windows
        self._acknowledged_within_s = acknowledged_within_s
        self._clock_us = clock_us
        self._is_alone = is_alone
        self._loop = asyncio.get_running_loop()
        self._seq = self._acked = 0
        self._draws: deque[_PendingReserve] = deque()
        self._ends = SendQueue(journal)
        self._forced: dict[str, Reserve] = {}
        """Leases that have to be sent to the store again."""
        self._open: dict[str, Reserve] = {}
        """Leases that were granted and are not settled."""
        self._away: str | None = None
        """Why the store is away."""
        self._away_since = 0.0
        self._tries = 0
        self._offline: OfflineQuota | None = None
        """The quota that this worker may grant during outages; None with `on_outage: deny`."""
        if settings.on_outage == "allow":
            self._offline = OfflineQuota(settings.outage_share)
        self._time_away = TimeAway(settings.outage_max_s)
        self._lost: list[_PendingReserve] = []
        """Calls of a lost batch, while it is not clear whether an outage begins."""
        self._held: list[_PendingReserve] = []
        """Calls that came since."""
        self._hold_timer: asyncio.TimerHandle | None = None
        self._size = MAX_BATCH
        self._wake = asyncio.Event()
        self._is_sending = False
        """Whether the task that sends batches has one under way."""
        self._sent_at = self._loop.time()
        """When the last batch was begun, on the loop's clock."""
        self._has_sent = False
        """Whether a batch was sent within this turn of the event loop."""
        self._draws_a_batch = 0.0
        """A moving average."""
        self._failed: tuple[_SentBatch, Exception] | None = None
        """A batch that was sent within a turn and could not be applied."""
        self._linger: asyncio.TimerHandle | None = None
        """Ends may wait until then; None: they are to be sent."""
        self._journalled: asyncio.Future[None] = self._loop.create_future()
        self._journalled.set_result(None)
        self._is_closing = self._is_closed = False
        self._tasks = Tasks()
        self._commit_waiters = CommitWaiters(self._write_journal, self._tasks)
        self._batches = self._tasks.spawn(self._run(), "store-batches")
        self._adoption = Recovery(store, adopt, metrics)
        self._adopting = self._tasks.spawn(self._adoption.run(), "adoption")

    def __repr__(self) -> str:
        state = "away" if self._away else "behind" if self._ends.is_behind else "well"
        return f"<LedgerClient {self._journal.name[:8]}: store {state}, {len(self._open)} open, {self.pending} pending>"

    async def wait_until_heir(self, timeout_s: float) -> None:
        """Until what dead workers have left is delivered, so that what they held is free; but not for long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._adoption.has_looked.wait()
        except TimeoutError:
            pass

    # --------------------------------------------------------------------------------------------------- the promise

    @property
    def pending(self) -> int:
        return self._ends.pending

    def last_end(self) -> tuple[str, int]:
        """The journal's name, and the number of the last end that was appended to it; written by now, unless the disk
        is slow or full."""
        self._journal.write_now()
        return self._journal.name, self._ends.last

    def draw(self, wanted: Reserve | RateDraw) -> asyncio.Future[Granted | Refused]:
        answer: asyncio.Future[Granted | Refused] = self._loop.create_future()
        if self._is_closing:
            answer.set_exception(StoreUnavailable("the ledger is closed"))
        elif self._journal.is_full:
            answer.set_exception(JournalFull("the journal cannot be written"))
        elif self._hold_timer is not None:
            self._held.append(_PendingReserve(wanted, answer))
        elif self._away is not None:
            drawing = _PendingReserve(wanted, answer)
            verdict = self._decide_alone(drawing)
            if isinstance(verdict, StoreUnavailable):
                answer.set_exception(verdict)
            else:
                self._tasks.spawn(self._answer([(drawing, verdict)]), "answer-alone")
        else:
            self._draws.append(_PendingReserve(wanted, answer))
            self._send()
        return answer

    def extend(self, wanted: Reserve) -> asyncio.Future[Granted | Refused]:
        answer: asyncio.Future[Granted | Refused] = self._loop.create_future()
        drawing = _PendingReserve(wanted, answer)
        if self._is_closing or self._away is not None or self._journal.is_full:
            self._hold_unanswered(drawing)
        else:
            self._draws.append(drawing)
            self._send()
        return answer

    def settle(self, record: Record, claims: tuple[Claim, ...]) -> asyncio.Future[None]:
        self._forget(record, claims)
        is_lingering = self._is_alone and self._away is None
        number = self._ends.close(record, claims, is_written_now=is_lingering)
        if is_lingering and self._journal.write_now() and not self._ends.is_behind:
            if self._linger is None:
                self._linger = self._loop.call_later(LINGER_S, self._send_ends)
            return self._journalled
        done = self._commit_waiters.of(number, is_store_behind=self._ends.is_behind)
        self._send_ends()
        return done

    def defer(self, record: Record, claims: tuple[Claim, ...], note: str) -> asyncio.Future[None]:
        self._forget(record, claims)
        number = self._ends.defer(record, claims, note)
        done = self._commit_waiters.of(number, is_store_behind=self._ends.is_behind)
        self._send_ends()
        return done

    def _forget(self, record: Record, claims: tuple[Claim, ...]) -> None:
        """A call has ended: its lease is open no longer."""
        self._open.pop(record.id, None)
        self._forced.pop(record.id, None)
        if self._offline is not None:
            self._offline.settle(record, claims, self._clock_us())

    def note_deferral(self, record: Record, claims: tuple[Claim, ...], note: str) -> None:
        entry = ledger_entry.with_note(ledger_entry.encode(record, claims), note)
        self._journal.append("open", record.id, entry)

    async def ping(self) -> None:
        if self._journal.is_full:
            raise JournalFull("the journal cannot be written")
        if self._may_go_on_alone():
            return
        if self._away is not None:
            raise StoreUnavailable(self._away)
        if self._batches.done():
            raise StoreUnavailable("the task that sends batches to the store has ended")
        await self._store.ping()

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        await self.deliver()
        return await self._read(self._store.window_statuses(windows, now))

    async def deliver(self) -> None:
        """Wait until the store has what has ended so far, so that a report has it; not while the store is away."""
        if self._is_alone and self._away is None and self._ends.mark < self._ends.last:
            done = self._commit_waiters.of(self._ends.last, is_store_behind=self._ends.is_behind)
            self._send_ends()
            await asyncio.wait([done])  # which does not cancel it

    def note_error(self) -> None:
        self.errors += 1

    async def claim(self, holder: str, names: Mapping[str, float]) -> dict[str, float]:
        return await self._read(self._store.claim(holder, names))

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> dict[str, str]:
        return await self._read(self._store.exchange(place, holder, text, for_s))

    async def close(self, timeout_s: float) -> int:
        if self._is_closed:
            return self.pending
        self._is_closing = True
        self._send_ends()
        self._wake.set()
        self._adopting.cancel()
        await asyncio.wait([self._batches], timeout=timeout_s)
        self._is_closed = True
        await self._tasks.cancel_all()
        lost, held = self._release()
        for drawing in (*self._draws, *lost, *held):
            _fail(drawing.answer, StoreUnavailable("the ledger is closed"))
        await self._leave()
        await self._store.close()
        return self.pending

    async def _leave(self) -> None:
        """Delete the journal if it is no longer needed; else another worker adopts it."""
        if not (self.pending or self._open or self._away or self._store.may_forget):
            try:
                if (await self._store.progress(self._journal.name)).mark < self._ends.mark:
                    raise StoreUnavailable("the store could not write all of it")
                await self._journal.remove()  # first, or its next adopter would deliver all of it again
                await self._store.retire(self._journal.name)
                return
            except (StoreUnavailable, OSError) as error:
                log.warning("the journal cannot be put away: %s", error)
        await self._journal.close()

    async def _read(self, reading: Awaitable[T]) -> T:
        try:
            return await reading
        except StoreUnavailable:
            self.note_error()
            raise

    # -------------------------------------------------------------------------------------------------------- batches

    def _send_ends(self) -> None:
        """Send what waits, lingering ends with it."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._has_work():
            self._send()

    def _send(self) -> None:
        """Send what waits: in this turn of the event loop, or by the task that sends batches."""
        is_under_way = self._is_sending or self._has_sent
        if is_under_way or self._draws_a_batch > FEW_DRAWS or not self._send_now():
            self._wake.set()

    def _send_now(self) -> bool:
        """Send a small batch, where the store can apply it at once. Returns whether it did, or has failed."""
        has_problem = self._away is not None or self._failed or self._forced or self._ends.is_behind
        is_small = 0 < len(self._draws) + len(self._ends) <= min(AT_ONCE, self._size)
        if has_problem or not is_small or not self._journal.write_now():
            return False
        sent = self._gather()
        try:
            applied = self._store.apply_now(Batch(self._journal.name, self._seq + 1, self._acked, sent.items))
        except Exception as error:
            self._seq += 1
            self._failed = (sent, error)
            self._wake.set()
            return True
        if applied is None:
            self._put_back(sent)
            return False
        self._seq += 1
        self._has_sent = True
        self._loop.call_soon(self._begin_turn)
        try:
            drawn = self._note(sent, applied)
            self._open_granted(drawn)
            if self._journal.write_now():
                self._resolve(drawn, is_written=True)
            else:
                self._tasks.spawn(self._answer_when_written(drawn), "answer-when-written")
        except Exception as bug:
            self._give_up_answers(sent, bug)
        return True

    def _begin_turn(self) -> None:
        self._has_sent = False

    async def _run(self) -> None:
        while True:
            is_heartbeat = False
            if not (self._is_due() or self._away or self._is_closing):
                self._wake.clear()
                try:
                    async with asyncio.timeout_at(self._sent_at + SIGN_OF_LIFE_S):
                        await self._wake.wait()
                except TimeoutError:
                    is_heartbeat = self._loop.time() >= self._sent_at + SIGN_OF_LIFE_S
            if self._is_closing and not self._has_work():
                return
            space_s = self._sent_at + GATHER_S - self._loop.time()
            if space_s > 0 and len(self._draws) + len(self._ends) > 1:
                await asyncio.sleep(space_s)
            if not (is_heartbeat or self._is_due() or self._away or self._is_closing):
                continue  # it was sent meanwhile
            if self._draws_a_batch <= FEW_DRAWS and self._send_now():
                continue
            sent: _SentBatch | None = None
            self._is_sending = True
            try:
                if self._failed is not None:
                    (sent, error), self._failed = self._failed, None
                    await self._deal_with(sent, error)
                else:
                    sent = self._gather()
                    await self._carry(sent)
            except Exception as bug:
                self._give_up_answers(sent, bug)
                await asyncio.sleep(AFTER_BUG_S)
            finally:
                self._is_sending = False

    def _give_up_answers(self, sent: _SentBatch | None, bug: Exception) -> None:
        """After a bug: end each wait for an answer of this batch."""
        log.error("a batch could not be built, or its answer not be delivered", exc_info=bug)
        for drawing in sent.draws if sent else ():
            if drawing.answer.done():
                continue
            if drawing.opening.held:
                self._hold_unanswered(drawing)
                continue
            self._void(drawing.opening)
            _fail(drawing.answer, StoreUnavailable("its answer could not be delivered"))

    def _is_due(self) -> bool:
        """Whether something has to be sent now."""
        return bool(self._draws or self._forced or self._failed or (self._ends and self._linger is None))

    def _has_work(self) -> bool:
        return bool(self._draws or self._ends or self._forced or self._failed)

    def _gather(self) -> _SentBatch:
        """The next batch. Ends come before draws, because they may make room for a draw of the same batch."""
        forced = list(islice(self._forced.values(), self._size)) if self._forced else []
        room = self._size - len(forced)
        room_for_ends = room - min(len(self._draws), room // 2)
        ends = self._ends.take(room_for_ends)
        room -= len(ends)
        draws = take_first(self._draws, room)
        self._sent_at = self._loop.time()
        self._draws_a_batch += LATEST * (len(draws) - self._draws_a_batch)
        return _SentBatch(forced, ends, draws)

    async def _carry(self, sent: _SentBatch) -> None:
        self._seq += 1
        timer = self._loop.call_later(self._acknowledged_within_s, self._commit_waiters.store_is_slow)
        try:
            await self._write_journal()
            applied = await self._store.apply(Batch(self._journal.name, self._seq, self._acked, sent.items))
        except asyncio.CancelledError:
            self._put_back(sent)
            raise
        except Exception as error:
            await self._deal_with(sent, error)
        else:
            await self._answer(self._note(sent, applied))
        finally:
            timer.cancel()

    async def _deal_with(self, sent: _SentBatch, error: Exception) -> None:
        """A batch was not applied, or it is unknown whether it was."""
        match error:
            case StoreUnavailable():
                await self._lose(sent, error)
            case StoreLostWrites():
                self._put_back(sent)
                self._begin_again(error.progress)
            case _:
                await self._single_out(sent, error)

    async def _write_journal(self) -> bool:
        """Whether everything is written. With a full disk what is running is settled straight to the store."""
        try:
            await self._journal.written()
        except OSError:
            return False
        return True

    def _note(self, sent: _SentBatch, applied: Applied) -> _Drawn:
        """A batch was applied. Returns what is to be answered."""
        self._acked = self._seq
        self._size = MAX_BATCH
        if self._away is not None:
            log.warning("the store is back after %.1f s", time.monotonic() - self._away_since)
            self._away = None
            self._time_away.end(time.monotonic())
            lost, held = self._release()  # of a single lost batch, which was no outage
            self._draws.extend([*lost, *held])
        self.closed_calls += applied.lost
        if applied.lost:
            log.warning("%d calls of a silent worker are charged at their estimates and lost", applied.lost)
        for opening in sent.forced:
            self._forced.pop(opening.record.id, None)
        if sent.ends:
            self._ends.delivered(sent.ends)
        self._commit_waiters.store_is_well(self._ends.mark)
        verdicts = applied.verdicts[len(applied.verdicts) - len(sent.draws) :]
        self._changed_windows.note(sent.ends, verdicts)
        if self._offline is not None and verdicts:
            now_us = self._clock_us()
            for verdict in verdicts:
                if verdict is not None:
                    self._offline.note(verdict.window_statuses, now_us)
        return [*zip(sent.draws, verdicts, strict=True)]

    async def _answer(self, drawn: _Drawn) -> None:
        """Answer reservations when the journal has their entries: a verdict each, or the error."""
        self._open_granted(drawn)
        await self._answer_when_written(drawn)

    def _open_granted(self, drawn: _Drawn) -> None:
        for (opening, _), verdict in drawn:
            if isinstance(verdict, Granted) and isinstance(opening, Reserve):
                self._open[opening.record.id] = opening
                self._journal.append("open", opening.record.id, opening.text, is_written_now=True)

    async def _answer_when_written(self, drawn: _Drawn) -> None:
        try:
            is_written = await self._write_journal()
        except asyncio.CancelledError:
            for drawing, _ in drawn:
                _fail(drawing.answer, StoreUnavailable("the ledger is closed"))
            raise
        self._resolve(drawn, is_written=is_written)

    def _resolve(self, drawn: _Drawn, *, is_written: bool) -> None:
        for (opening, answer), verdict in drawn:
            if isinstance(verdict, StoreUnavailable):
                _fail(answer, verdict)
            elif isinstance(verdict, Granted) and not is_written and not opening.held:
                self._void(opening)
                _fail(answer, JournalFull("the journal cannot be written"))
            elif not answer.done():
                answer.set_result(verdict)
            elif isinstance(verdict, Granted) and isinstance(opening, Reserve):
                self.settle(opening.taken_back(), opening.claims)  # the requester has left

    async def _single_out(self, sent: _SentBatch, error: Exception) -> None:
        """The content of the batch is at fault, which would be a bug: send the items one by one, and skip an item that
        fails alone.

        A faulty settlement must not block all others for ever. But a server that refuses every item counts as
        unavailable.
        """
        if not await self._is_store_sound():
            await self._lose(sent, StoreUnavailable(f"{type(error).__name__}: {error}"))
            return
        self.errors += 1
        if len(sent.items) > 1:
            self._put_back(sent)
            self._size = 1
            return
        for opening in sent.forced:
            self._forced.pop(opening.record.id, None)
        for end in sent.ends:
            self._ends.give_up(end)
            self._commit_waiters.store_has(end.number)
            if isinstance(end, Settle):
                self._ends.void(end.record.id)  # or it would hold what it has drawn for ever
        for drawing in sent.draws:
            if drawing.opening.held:
                _fail(drawing.answer, StoreUnavailable(f"{type(error).__name__}: {error}"))
                continue  # the call goes on; what its lease holds ends with it
            self._void(drawing.opening)
            _fail(drawing.answer, StoreUnavailable(f"{type(error).__name__}: {error}"))
        log.error("the store cannot take %s", sent.items, exc_info=error)

    async def _is_store_sound(self) -> bool:
        try:
            await self._store.ping()
        except Exception:
            return False
        return True

    # ------------------------------------------------------------------------------------------------ store and trouble

    async def _lose(self, sent: _SentBatch, away: StoreUnavailable) -> None:
        """A batch has failed."""
        is_first = self._away is None
        self._store_is_away(away)
        if is_first and self._offline is not None:
            self._hold(sent)
        else:
            await self._begin_outage()
            await self._give_up(sent)
        await self._pause()

    def _hold(self, sent: _SentBatch) -> None:
        """Let the calls of a lost batch, and new ones, wait while the next batch tests the store."""
        self._put_back_all_but_draws(sent)
        self._lost, self._held, self._draws = sent.draws, [*self._draws], deque()
        self._hold_timer = self._loop.call_later(
            HOLD_S, lambda: self._tasks.spawn(self._begin_outage(), "begin-outage")
        )

    def _release(self) -> tuple[list[_PendingReserve], list[_PendingReserve]]:
        """The calls that wait: those of the lost batch, and new ones."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        lost, held, self._lost, self._held = self._lost, self._held, [], []
        return lost, held

    async def _begin_outage(self) -> None:
        """The store is unavailable for longer than one batch: what waits is decided from the worker's share."""
        if self._hold_timer is not None and self._offline is not None:
            self._time_away.begin(self._away_since)
            self._offline.begin(self._open.values(), self._clock_us())
            await self._decide_all_alone(*self._release())

    def _store_is_away(self, away: StoreUnavailable) -> None:
        self.errors += 1
        if self._away is None:
            self._away_since = time.monotonic()
            log.warning("the store is away (%s); %d settlements wait for it", away, self.pending)
            self._tries = 0
            self._away = str(away)
        self._commit_waiters.store_is_slow()

    async def _pause(self) -> None:
        """Before the next test whether the store is back."""
        pause_s = TRY_AGAIN_S[min(self._tries, len(TRY_AGAIN_S) - 1)]
        self._tries += 1
        if self._has_work() or not self._is_closing:
            await asyncio.sleep(pause_s)

    def _begin_again(self, progress: Progress) -> None:
        """The store has lost data: send it the journal's entries and the open leases again."""
        log.error(
            "the store has lost acknowledged entries: its last one is %d, not %d; later ones are sent again",
            progress.mark, self._ends.mark,
        )  # fmt: skip
        self._acked = progress.seq
        self._seq = max(self._seq, progress.seq)
        self._journal.delivered(progress.mark)
        self._forced = {lease: opening._replace(is_forced=True) for lease, opening in self._open.items()}
        self._ends.read_again(progress.mark)

    async def _give_up(self, sent: _SentBatch) -> None:
        """The fate of this batch will never be known: decide its draws, and those that wait, without the store."""
        self._put_back_all_but_draws(sent)
        waiting, self._draws = [*self._draws], deque()
        await self._decide_all_alone(sent.draws, waiting)

    def _put_back_all_but_draws(self, sent: _SentBatch) -> None:
        self._put_back(sent._replace(draws=[]))
        for opening in sent.forced:
            if (lease := opening.record.id) not in self._open:
                self._ends.void(lease)  # it is sent again, and after it a void that was not applied yet

    def _hold_unanswered(self, drawing: _PendingReserve) -> None:
        """An extension that the store may have or not: the lease holds all of it from now on, whatever its answer."""
        opening = drawing.opening
        assert isinstance(opening, Reserve), "an extension is of a lease"
        lease = opening.record.id
        self._open[lease] = opening
        self._forced[lease] = opening._replace(is_forced=True)
        self._journal.append("open", lease, opening.text)
        if self._may_go_on_alone() and not drawing.answer.done():
            drawing.answer.set_result(Granted())
        else:
            _fail(drawing.answer, StoreUnavailable(self._away or "the ledger cannot be written to"))

    async def _decide_all_alone(self, lost: list[_PendingReserve], waiting: list[_PendingReserve]) -> None:
        """Answer the calls of lost batches, which the store may have, and those that were never sent."""
        for drawing in (*lost, *waiting):
            if drawing.opening.held:
                self._hold_unanswered(drawing)
        lost = [drawing for drawing in lost if not drawing.opening.held]
        waiting = [drawing for drawing in waiting if not drawing.opening.held]
        unknown = [(drawing, self._decide_alone(drawing)) for drawing in lost]
        for drawing, verdict in unknown:
            if not isinstance(verdict, Granted):
                self._void_unknown(drawing.opening)
        await self._answer([*unknown, *[(drawing, self._decide_alone(drawing)) for drawing in waiting]])

    def _void_unknown(self, opening: Reserve | RateDraw) -> None:
        """Void a reservation that a lost batch carried."""
        self._void(opening)
        if self._store.may_forget and isinstance(opening, Reserve):
            # Reserved in any case before it is voided: this overwrites what a server kept of half a batch.
            self._forced[opening.record.id] = opening._replace(is_forced=True)

    def void(self, granted: Reserve) -> None:
        self._void(granted)

    def _void(self, opening: Reserve | RateDraw) -> None:
        if isinstance(opening, RateDraw):
            return
        lease = opening.record.id
        if self._open.pop(lease, None) is not None and self._offline is not None:
            self._offline.settle(opening.taken_back(), opening.claims, self._clock_us(), is_void=True)
        self._forced.pop(lease, None)
        self._ends.void(lease)
        self._send_ends()

    def _put_back(self, sent: _SentBatch) -> None:
        self._draws.extendleft(reversed(sent.draws))
        self._ends.put_back(sent.ends)

    # ------------------------------------------------------------------------------------------------- without a store

    def _may_go_on_alone(self) -> bool:
        return self._away is not None and self._offline is not None and not self._time_away.is_spent(time.monotonic())

    def _decide_alone(self, drawing: _PendingReserve) -> Granted | Refused | StoreUnavailable:
        """The verdict on a draw while the store is away."""
        assert self._away is not None
        if self._offline is None or not self._may_go_on_alone():
            return StoreUnavailable(self._away)
        verdict = self._offline.draw(drawing.opening, self._clock_us())
        opening = drawing.opening
        if isinstance(verdict, Granted) and isinstance(opening, Reserve):
            lease = opening.record.id
            self._open[lease] = opening
            self._forced[lease] = opening._replace(is_forced=True)
        return verdict


def _fail(answer: asyncio.Future[Any], away: StoreUnavailable) -> None:
    if not answer.done():
        answer.set_exception(away)
        answer.exception()  # the requester may have left
