"""One worker's accounts: what draws, settlements and the batches of both mean; the journal before the store.

`batcher.py` decides when a batch is sent, `outage.py` what follows where one fails.

A draw is granted when the store confirms it, which may write it a little later, and the journal has the call's `open`
entry. A settlement is handed to the journal first; delivering the entry is what settles.

Of a batch that failed nothing is known. It is never sent again; the next one, with a higher number, carries its
settlements again, and for each of its reservations the order to void it.

When the store has forgotten what it had applied (`StoreLostWrites`), the journal is read again from the store's
last entry, and the open leases are reserved again, even beyond the limit. The same reading catches up when more
settlements gathered during an outage than are kept in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from gateway.config import StoreSettings as Settings
from gateway.journal import Journal
from gateway.quota import ledger_entry
from gateway.records import Claim, Granted, Record, Refused, Window, WindowStatus
from gateway.store import (
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

from .batcher import Batcher, PendingReserve, SentBatch
from .changed_windows import ChangedWindows
from .offline_quota import OfflineQuota
from .outage import HOLD_S, Outage, OutageAction, OutageEvent
from .recovery import DOUBTED_FOR_S, NoMetrics, RecoveredCalls, Recovery
from .send_queue import CommitWaiters

log = logging.getLogger("gateway")

ACKNOWLEDGED_WITHIN_S = 0.05
"""How long the end of an answer waits for the store; after that the journal is enough."""

NO_METRICS = NoMetrics()

T = TypeVar("T")

_Drawn = Sequence[tuple[PendingReserve, Any]]
"""Draws, and the verdict or the error of each."""


class _HeldCalls(NamedTuple):
    """The calls that wait while it is not clear whether an outage begins."""

    lost: list[PendingReserve]
    """Those of the lost batch."""
    since: list[PendingReserve]
    """Calls that came after the batch was lost."""
    timer: asyncio.TimerHandle


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
        self._changed_windows = changed_windows
        self._acknowledged_within_s = acknowledged_within_s
        self._clock_us = clock_us
        self._is_alone = is_alone
        self._loop = asyncio.get_running_loop()
        self._outage = Outage(settings.on_outage, settings.outage_max_s)
        self._batcher = Batcher(store, journal, self._outage, self)
        self._ends = self._batcher.ends
        self._open: dict[str, Reserve] = {}
        """Leases that were granted and are not settled."""
        self._offline: OfflineQuota | None = None
        """The quota that this worker may grant during outages; None with `on_outage: deny`."""
        if settings.on_outage == "allow":
            self._offline = OfflineQuota(settings.outage_share)
        self._held: _HeldCalls | None = None
        self._doubted: list[Item] = []
        """The item that the store has rejected alone, once."""
        self._journalled: asyncio.Future[None] = self._loop.create_future()
        self._journalled.set_result(None)
        self._is_closed = False
        self._tasks = Tasks()
        self._commit_waiters = CommitWaiters(self._write_journal, self._tasks)
        self._batches = self._tasks.keep(self._batcher.run, "store-batches")
        self._adoption = Recovery(store, adopt, metrics)
        self._adopting = self._tasks.keep(self._adoption.run, "adoption")

    def __repr__(self) -> str:
        state = "behind" if self._outage.is_up and self._ends.is_behind else self._outage.state.value
        return f"<LedgerClient {self._journal.name[:8]}: store {state}, {len(self._open)} open, {self.pending} pending>"

    async def wait_until_heir(self, timeout_s: float) -> None:
        """Waits until the journals of dead workers are delivered, so that their reservations are released. Returns
        after `timeout_s` seconds at the latest."""
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
        drawing = PendingReserve(wanted, answer)
        if self._batcher.is_closing:
            answer.set_exception(StoreUnavailable("the ledger is closed"))
        elif self._journal.is_full:
            answer.set_exception(JournalFull("the journal cannot be written"))
        elif self._outage.is_up:
            self._batcher.draws.append(drawing)
            self._batcher.send()
        elif self._held is not None:
            self._held.since.append(drawing)
        else:
            verdict = self._decide_alone(drawing)
            if isinstance(verdict, StoreUnavailable):
                answer.set_exception(verdict)
            else:
                self._tasks.spawn(self._answer([(drawing, verdict)]), "answer-alone")
        return answer

    def extend(self, wanted: Reserve) -> asyncio.Future[Granted | Refused]:
        answer: asyncio.Future[Granted | Refused] = self._loop.create_future()
        drawing = PendingReserve(wanted, answer)
        if self._batcher.is_closing or not self._outage.is_up or self._journal.is_full:
            self._hold_unanswered(drawing)
        else:
            self._batcher.draws.append(drawing)
            self._batcher.send()
        return answer

    def settle(self, record: Record, claims: tuple[Claim, ...]) -> asyncio.Future[None]:
        self._forget(record, claims)
        is_lingering = self._is_alone and self._outage.is_up
        number = self._ends.close(record, claims, is_written_now=is_lingering)
        if is_lingering and self._journal.write_now() and not self._ends.is_behind:
            if self._batcher.lingering is None:
                self._batcher.linger()
            return self._journalled
        done = self._commit_waiters.of(number, is_store_behind=self._ends.is_behind)
        self._batcher.send_ends()
        return done

    def defer(self, record: Record, claims: tuple[Claim, ...], note: str) -> asyncio.Future[None]:
        self._forget(record, claims)
        number = self._ends.defer(record, claims, note)
        done = self._commit_waiters.of(number, is_store_behind=self._ends.is_behind)
        self._batcher.send_ends()
        return done

    def _forget(self, record: Record, claims: tuple[Claim, ...]) -> None:
        """A call has ended: its lease is open no longer."""
        self._open.pop(record.id, None)
        self._batcher.forced.pop(record.id, None)
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
        if not self._outage.is_up:
            raise StoreUnavailable(self._outage.why)
        if self._batches.done():
            raise StoreUnavailable("the task that sends batches to the store has ended")
        await self._store.ping()

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        await self.deliver()
        return await self._read(self._store.window_statuses(windows, now))

    async def deliver(self) -> None:
        """Wait until the store has what has ended so far, so that a report has it; not while the store is away."""
        if self._is_alone and self._outage.is_up and self._ends.mark < self._ends.last:
            done = self._commit_waiters.of(self._ends.last, is_store_behind=self._ends.is_behind)
            self._batcher.send_ends()
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
        self._batcher.close()
        self._adopting.cancel()
        await asyncio.wait([self._batches], timeout=timeout_s)
        self._is_closed = True
        await self._tasks.cancel_all()
        lost, held = self._release()
        for drawing in (*self._batcher.draws, *lost, *held):
            _fail(drawing.answer, StoreUnavailable("the ledger is closed"))
        await self._leave()
        await self._store.close()
        return self.pending

    async def _leave(self) -> None:
        """Delete the journal if it is no longer needed; else another worker adopts it."""
        if self._outage.is_up and not (self.pending or self._open or self._store.may_forget):
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

    def answer_now(self, sent: SentBatch, applied: Applied) -> None:
        try:
            drawn = self._note(sent, applied)
            self._open_granted(drawn)
            if self._journal.write_now():
                self._resolve(drawn, is_written=True)
            else:
                self._tasks.spawn(self._answer_when_written(drawn), "answer-when-written")
        except Exception as bug:
            self.give_up_answers(sent, bug)

    def give_up_answers(self, sent: SentBatch | None, bug: Exception) -> None:
        log.error("a batch could not be built, or its answer not be delivered", exc_info=bug)
        for drawing in sent.draws if sent else ():
            if drawing.answer.done():
                continue
            if drawing.opening.held:
                self._hold_unanswered(drawing)
            else:
                self.void(drawing.opening)
                _fail(drawing.answer, StoreUnavailable("its answer could not be delivered"))

    async def carry(self, sent: SentBatch, batch: Batch) -> None:
        timer = self._loop.call_later(self._acknowledged_within_s, self._commit_waiters.store_is_slow)
        try:
            is_written = self._journal.write_now() or await self._write_journal()
            of_ends = partial(self._commit_waiters.are_safe, sent.ends[-1].number) if is_written and sent.ends else None
            applied = await self._store.apply(batch, of_ends)
        except asyncio.CancelledError:
            self._batcher.put_back(sent)
            raise
        except Exception as error:
            await self.deal_with(sent, error)
        else:
            self._batcher.note_applied()
            await self._answer(self._note(sent, applied))
        finally:
            timer.cancel()

    async def deal_with(self, sent: SentBatch, error: Exception) -> None:
        match error:
            case StoreUnavailable():
                await self._lose(sent, error)
            case StoreLostWrites():
                self._batcher.put_back(sent)
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

    def _note(self, sent: SentBatch, applied: Applied) -> _Drawn:
        """A batch was applied. Returns what is to be answered."""
        if not self._outage.is_up:
            self._resume()
        self.closed_calls += applied.lost
        if applied.lost:
            log.warning("%d calls of a silent worker are charged at their estimates and lost", applied.lost)
        for opening in sent.forced:
            self._batcher.forced.pop(opening.record.id, None)
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
        if self._journal.write_now():
            self._resolve(drawn, is_written=True)
        else:
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
                self.void(opening)
                _fail(answer, JournalFull("the journal cannot be written"))
            elif not answer.done():
                answer.set_result(verdict)
            elif isinstance(verdict, Granted) and isinstance(opening, Reserve):
                self.settle(opening.taken_back(), opening.claims)  # the requester has left

    async def _single_out(self, sent: SentBatch, error: Exception) -> None:
        """The content of the batch is at fault, which would be a bug: send the items one by one, and skip an item that
        fails alone twice, the second time `DOUBTED_FOR_S` after the store has answered a ping. A draw fails at once:
        its caller waits.

        A faulty settlement must not block all others for ever. A server that refuses every item counts as away.
        """
        if not await self._is_store_sound():
            await self._lose(sent, StoreUnavailable(f"{type(error).__name__}: {error}"))
            return
        self.errors += 1
        if len(sent.items) > 1:
            self._batcher.put_back(sent)
            self._batcher.send_singly()
            return
        if not sent.draws and sent.items != self._doubted:
            self._doubted = sent.items
            self._batcher.put_back(sent)
            self._commit_waiters.store_is_slow()
            await asyncio.sleep(DOUBTED_FOR_S)
            return
        for opening in sent.forced:
            self._batcher.forced.pop(opening.record.id, None)
        for end in sent.ends:
            self._ends.give_up(end)
            self._commit_waiters.store_has(end.number)
            if isinstance(end, Settle):
                self._ends.void(end.record.id)  # or it would hold what it has drawn for ever
        for drawing in sent.draws:
            if not drawing.opening.held:  # else the call goes on; what its lease holds ends with it
                self.void(drawing.opening)
            _fail(drawing.answer, StoreUnavailable(f"{type(error).__name__}: {error}"))
        log.error("the store cannot take %s", sent.items, exc_info=error)

    async def _is_store_sound(self) -> bool:
        try:
            await self._store.ping()
        except Exception:
            return False
        return True

    # ------------------------------------------------------------------------------------------------ store and trouble

    async def _lose(self, sent: SentBatch, away: StoreUnavailable) -> None:
        """Handles a failed batch: runs the actions that the outage requires, then pauses unless the batcher closes
        without work."""
        self.errors += 1
        actions = self._outage.lose(str(away), time.monotonic())
        self._commit_waiters.store_is_slow()
        for action in actions:
            match action:
                case OutageAction.REPORT:
                    log.warning("the store is away (%s); %d settlements wait for it", away, self.pending)
                case OutageAction.HOLD:
                    self._hold(sent)
                case OutageAction.GO_ALONE:
                    await self._go_alone()
                case OutageAction.GIVE_UP:
                    await self._give_up(sent)
        pause_s = self._outage.next_pause_s()
        if self._batcher.has_work() or not self._batcher.is_closing:
            await asyncio.sleep(pause_s)

    def _hold(self, sent: SentBatch) -> None:
        """Let the calls of a lost batch, and new ones, wait while the next batch tests the store."""
        self._put_back_all_but_draws(sent)
        timer = self._loop.call_later(HOLD_S, lambda: self._tasks.spawn(self._end_hold(), "end-hold"))
        self._held = _HeldCalls(sent.draws, self._batcher.take_draws(), timer)

    async def _end_hold(self) -> None:
        if OutageAction.GO_ALONE in self._outage.move(OutageEvent.HOLD_OVER, time.monotonic()):
            await self._go_alone()

    def _release(self) -> tuple[list[PendingReserve], list[PendingReserve]]:
        """The calls that wait: those of the lost batch, and new ones."""
        if self._held is None:
            return [], []
        (lost, since, timer), self._held = self._held, None
        timer.cancel()
        return lost, since

    async def _go_alone(self) -> None:
        """The store is unavailable for longer than one batch: what waits is decided from the worker's share."""
        assert self._offline is not None, "`on_outage: deny` has no such move"
        self._offline.begin(self._open.values(), self._clock_us())
        await self._decide_all_alone(*self._release())

    def _resume(self) -> None:
        """The store is back. Where a single batch was lost, which was no outage, its calls are sent again."""
        now = time.monotonic()
        log.warning("the store is back after %.1f s", now - self._outage.since)
        self._outage.move(OutageEvent.APPLIED, now)
        for waiting in self._release():
            self._batcher.draws.extend(waiting)

    def _begin_again(self, progress: Progress) -> None:
        """The store has lost data: send it the journal's entries and the open leases again."""
        log.error(
            "the store has lost acknowledged entries: its last one is %d, not %d; later ones are sent again",
            progress.mark, self._ends.mark,
        )  # fmt: skip
        self._journal.delivered(progress.mark)
        forced = {lease: opening._replace(is_forced=True) for lease, opening in self._open.items()}
        self._batcher.begin_again(progress.seq, forced)
        self._ends.read_again(progress.mark)

    async def _give_up(self, sent: SentBatch) -> None:
        """The fate of this batch will never be known: decide its draws, and those that wait, without the store."""
        self._put_back_all_but_draws(sent)
        await self._decide_all_alone(sent.draws, self._batcher.take_draws())

    def _put_back_all_but_draws(self, sent: SentBatch) -> None:
        self._batcher.put_back(sent._replace(draws=[]))
        for opening in sent.forced:
            if (lease := opening.record.id) not in self._open:
                self._ends.void(lease)  # it is sent again, and after it a void that was not applied yet

    def _hold_unanswered(self, drawing: PendingReserve) -> None:
        """An extension that the store may have or not: the lease holds all of it from now on, whatever its answer."""
        opening = drawing.opening
        assert isinstance(opening, Reserve), "an extension is of a lease"
        lease = opening.record.id
        self._open[lease] = opening
        self._batcher.forced[lease] = opening._replace(is_forced=True)
        self._journal.append("open", lease, opening.text)
        if self._may_go_on_alone() and not drawing.answer.done():
            drawing.answer.set_result(Granted())
        else:
            _fail(drawing.answer, StoreUnavailable(self._outage.why or "the ledger cannot be written to"))

    async def _decide_all_alone(self, lost: list[PendingReserve], waiting: list[PendingReserve]) -> None:
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
        self.void(opening)
        if self._store.may_forget and isinstance(opening, Reserve):
            # Reserved in any case before it is voided: this overwrites what a server kept of half a batch.
            self._batcher.forced[opening.record.id] = opening._replace(is_forced=True)

    def void(self, opening: Reserve | RateDraw) -> None:
        if isinstance(opening, RateDraw):
            return
        lease = opening.record.id
        if self._open.pop(lease, None) is not None and self._offline is not None:
            self._offline.settle(opening.taken_back(), opening.claims, self._clock_us(), is_void=True)
        self._batcher.forced.pop(lease, None)
        self._ends.void(lease)
        self._batcher.send_ends()

    # ------------------------------------------------------------------------------------------------- without a store

    def _may_go_on_alone(self) -> bool:
        return self._outage.may_go_on_alone(time.monotonic())

    def _decide_alone(self, drawing: PendingReserve) -> Granted | Refused | StoreUnavailable:
        """The verdict on a draw while the store is away."""
        if self._offline is None or not self._may_go_on_alone():
            return StoreUnavailable(self._outage.why)
        verdict = self._offline.draw(drawing.opening, self._clock_us())
        opening = drawing.opening
        if isinstance(verdict, Granted) and isinstance(opening, Reserve):
            lease = opening.record.id
            self._open[lease] = opening
            self._batcher.forced[lease] = opening._replace(is_forced=True)
        return verdict


def _fail(answer: asyncio.Future[Any], away: StoreUnavailable) -> None:
    if not answer.done():
        answer.set_exception(away)
        answer.exception()  # the requester may have left
