"""A store and its model (model.py), side by side.

A `Play` sends the same batches to both and compares them after each step. Its workers keep the rules of the ledger: a
batch is never repeated by them, what they do not know to be delivered is sent again in a later batch, and a draw whose
verdict they never heard is voided. Copies of what they sent may arrive at any time.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Sequence
from typing import Any, Protocol

import pytest

from gateway.quota import ledger_entry
from gateway.quota import windows as limits
from gateway.records import Claim, Granted, Refused, Settlement, Window
from gateway.store import Batch, Item, RateDraw, Reserve, Settle, Store, StoreLostWrites, StoreUnavailable

from .changes import SECOND, Clock
from .model import LateCopy, Line, Model, Verdict, reaped_at_once, sums
from .steps import (
    BEGIN_US,
    FLOWING,
    LIMITS,
    TICK_US,
    Adopt,
    Copy,
    Die,
    End,
    Forget,
    ModelWorker,
    RateWish,
    Remember,
    Reopen,
    Step,
    StepBack,
    Turn,
    Wait,
    Wish,
    opening_of,
    rate_draw_of,
    settlement_of,
)

PORTION = 4
"""Of what a dead worker has left, in one batch."""


class Rig(Protocol):
    """A store to play with."""

    is_monotonic: bool
    """Its clock does not advance while the machine's clock is behind it."""

    async def open(self) -> Store:
        """As another process would."""

    async def remember(self) -> Any:
        """A copy of everything."""

    async def fall_back(self, memory: Any) -> None:
        """Put that copy in the place of everything. No store is open."""


# -------------------------------------------------------------------------------------------------------------- play


class Comparison:
    """A store and its model, side by side."""

    def __init__(self, rig: Rig, clock: Clock) -> None:
        self.rig, self.clock, self.model = rig, clock, Model()
        clock.now_us = self.highest_us = BEGIN_US
        self.stores: list[Store] = []
        self.numbers = itertools.count(1)
        self.senders: list[ModelWorker] = []
        self.dead: list[ModelWorker] = []
        self.gone: list[ModelWorker] = []
        self.sent: list[Batch] = []
        self.memory: tuple[Any, Model, int] | None = None
        self.windows: dict[str, Window] = {}
        self.limits = {name: before for name, (before, _) in LIMITS.items()}
        self.most: dict[str, int] = {}
        """The highest limit that each window ever had."""
        self.admitted: list[tuple[int, Line]] = []
        """Draws that found room since the store last forgot anything, and when."""
        self.drawn: list[tuple[int, Claim]] = []
        """The same of draws without a call."""

    async def begin(self) -> None:
        self.stores = [await self.rig.open() for _ in range(2)]
        self.senders = [self._new_sender() for _ in range(3)]

    async def end(self) -> None:
        for store in self.stores:
            await store.close()

    @property
    def now_us(self) -> int:
        """The store's time."""
        return max(self.highest_us, self.clock.now_us) if self.rig.is_monotonic else self.clock.now_us

    async def step(self, step: Step) -> None:
        """Do it, and see what is true afterwards."""
        if isinstance(step, Turn):
            await self._turn(step)
        elif isinstance(step, Copy):
            await self._copy(step)
        elif isinstance(step, Wait):
            self.clock.now_us += step.ticks * TICK_US
        elif isinstance(step, StepBack):
            await self._note_time()
            self.clock.now_us -= step.ticks * TICK_US
        elif isinstance(step, Die):
            self._die(step.worker)
        elif isinstance(step, Adopt):
            await self._adopt(step)
        elif isinstance(step, Remember):
            await self._note_time()
            self.memory = (await self.rig.remember(), copy.deepcopy(self.model), self.highest_us)
        elif isinstance(step, Forget):
            await self._forget()
        elif isinstance(step, Reopen):
            await self.stores[step.store].close()
            self.stores[step.store] = await self.rig.open()
        else:
            self._change()
        await self._check()

    async def finish(self) -> None:
        """End every call, deliver every journal: then nothing is reserved, and the store has a record of each call."""
        for at, sender in enumerate(self.senders):
            for number in range(2):  # a store that has forgotten says so at the first
                ends = tuple(End(0, 7) for _ in sender.running) if number == 0 else ()
                await self.step(Turn(at, ends=ends))
            assert sender.delivered == len(sender.journal)
        while self.dead:
            await self.step(Adopt(0))
        for window in self.windows.values():
            state = self.model.state(window, self.now_us)
            assert state.reserved == 0, window
            assert window.unit != "parallel" or state.used == 0
        journals = [sender.journal for sender in (*self.senders, *self.gone)]
        received = [item.record for journal in journals for item in journal if isinstance(item, Settle)]
        closed = {record.id: record for record in received}
        assert len(closed) == len(received)
        stands = {record.id: record for record in self.model.records()}
        # A draw whose worker was killed before the reply arrived is known to the store only.
        orphans = {name: record for name, record in stands.items() if name not in closed}
        assert all(record.ended == "lost" for record in orphans.values())
        assert stands == closed | orphans

    # ---------------------------------------------------------------------------------------------------- the steps

    def _new_sender(self) -> ModelWorker:
        return ModelWorker(f"{next(self.numbers):032x}")

    def _store_of(self, worker: int) -> Store:
        return self.stores[worker % len(self.stores)]

    async def _note_time(self) -> None:
        """All stores know what the time is. They may note it now and then only."""
        self.clock.now_us = max(self.highest_us, self.clock.now_us) + 2 * SECOND
        for store in self.stores:
            await store.ping()
        self.highest_us = self.now_us

    async def _turn(self, turn: Turn) -> None:
        sender, store = self.senders[turn.worker], self._store_of(turn.worker)
        for end in turn.ends:
            self._end(sender, end)
        asserted = [item._replace(is_forced=True) for name, item in sender.running.items() if name in sender.to_assert]
        items: list[Item] = [*asserted, *sender.journal[sender.delivered :]]
        plain: list[Reserve] = []
        for wish in turn.wishes:
            opening = self._opening(wish)
            items.append(opening)
            if wish.then == "left":
                items.append(sender.void(opening.record.id))
            elif wish.then == "spent alone":
                items.append(sender.close(settlement_of(opening, End(0, wish.tokens + wish.estimate))))
            else:
                plain.append(opening)
        items += [self._rate_draw(wish) for wish in turn.rates]
        sender.seq += 1
        batch = Batch(sender.name, sender.seq, sender.acked, tuple(items))
        verdicts: Sequence[Granted | Refused | None] = ()
        if turn.fate != "never":
            try:
                verdicts = await self._apply(store, batch)
            except StoreLostWrites as behind:
                sender.acked, sender.delivered = behind.progress
                sender.to_assert = set(sender.running)
                return
        self.sent.append(batch)
        if turn.fate == "told":
            sender.acked, sender.delivered = sender.seq, len(sender.journal)
            sender.to_assert.clear()
            for item, verdict in zip(batch.items, verdicts, strict=True):
                if isinstance(item, Reserve) and item in plain and isinstance(verdict, Granted):
                    sender.running[item.record.id] = item
        elif turn.fate == "dies":
            self._die(turn.worker)
        else:
            for opening in plain:
                sender.void(opening.record.id)

    def _end(self, sender: ModelWorker, end: End) -> None:
        if sender.running:
            name = list(sender.running)[end.call % len(sender.running)]
            sender.close(settlement_of(sender.running.pop(name), end))

    def _die(self, worker: int) -> None:
        self.dead.append(self.senders[worker])
        self.senders[worker] = self._new_sender()

    async def _copy(self, step: Copy) -> None:
        if not self.sent:
            return
        batch = self.sent[-1 - step.which % len(self.sent)]
        if batch.worker in {sender.name for sender in self.gone} and batch.acked == 0:
            return  # it cannot be distinguished from the first batch of a new worker
        try:
            await self._apply(self._store_of(step.which), batch)
        except (StoreUnavailable, StoreLostWrites):
            pass

    async def _adopt(self, step: Adopt) -> None:
        """As gateway/ledger/adoption does."""
        if not self.dead:
            return
        sender, store = self.dead[0], self._store_of(step.by)
        for opening in sender.running.values():
            sender.close(Settlement(opening.record, opening.claims))
        sender.running.clear()
        seq, mark = await store.progress(sender.name)
        portions = _portions(sender.journal[mark:])
        for portion in portions[: step.portions]:
            seq += 1
            batch = Batch(sender.name, seq, seq - 1, portion, is_adopted=True)
            await self._apply(store, batch)
            self.sent.append(batch)
        if len(portions) > step.portions:
            return
        for _ in range(2):
            await store.retire(sender.name)
        self.model.retire(sender.name, self.now_us)
        self.gone.append(self.dead.pop(0))
        self.memory = None  # a journal is kept for longer than a store may fall back

    async def _forget(self) -> None:
        if self.memory is None:
            return
        for store in self.stores:
            await store.close()
        kept, model, self.highest_us = self.memory
        self.model = copy.deepcopy(model)
        await self.rig.fall_back(kept)
        self.stores = [await self.rig.open() for _ in self.stores]
        self.admitted, self.drawn = [], []

    def _change(self) -> None:
        """A rate changes only while no call is open on it: which of the two limits it leaks at is not specified."""
        is_quiet = (
            not any(line.state in ("open", "lost") for line in self.model.lines)
            and not any(sender.running or sender.journal[sender.delivered :] for sender in (*self.senders, *self.dead))
        )  # fmt: skip
        for name in LIMITS:
            if name not in FLOWING or is_quiet:
                self.limits[name] = sum(LIMITS[name]) - self.limits[name]
        if is_quiet:
            self.memory = None

    def _opening(self, wish: Wish) -> Reserve:
        opening = opening_of(wish, f"call-{next(self.numbers)}", self.clock.now, self.limits)
        self._know(opening.claims)
        return opening

    def _rate_draw(self, wish: RateWish) -> RateDraw:
        draw = rate_draw_of(wish, self.clock.now, self.limits)
        self._know(draw.claims)
        return draw

    def _know(self, claims: Sequence[Claim]) -> None:
        for window, _ in claims:
            self.windows[window.id] = window
            self.most[window.id] = max(window.limit, self.most.get(window.id, 0))

    # -------------------------------------------------------------------------------------------------- comparisons

    async def _apply(self, store: Store, batch: Batch) -> Sequence[Granted | Refused | None]:
        """The same to both. Raises what the store must raise."""
        now_us, known = self.now_us, len(self.model.lines)
        time_us = max(self.highest_us, now_us)
        try:
            expected = self.model.apply(batch, now_us)
        except LateCopy:
            with pytest.raises(StoreUnavailable) as late:
                await store.apply(batch)
            raise late.value from None
        except StoreLostWrites as behind:
            with pytest.raises(StoreLostWrites, match=f"^{re.escape(str(behind))}$") as raised:
                await store.apply(batch)
            raise raised.value from None
        silent = self.model.silent(batch.worker, now_us)
        applied = await store.apply(batch)
        assert applied.lost == reaped_at_once(silent), (applied.lost, silent)
        if silent:
            lost = {row["id"] for row in await store.calls(10_000) if row["ended"] == "lost"}
            chosen = [lease for lease in silent if lease in lost]
            assert len(chosen) == applied.lost
            self.model.lose(chosen, now_us)
        assert len(applied.verdicts) == len(batch.items)
        for item, verdict, must in zip(batch.items, applied.verdicts, expected, strict=True):
            if must is None:
                assert verdict is None
            elif must.refused is not None:
                assert verdict == must.refused
            else:
                assert isinstance(verdict, Granted), verdict
                assert isinstance(item, Reserve | RateDraw)
                self._check_standings(item, verdict, must)
                if isinstance(item, RateDraw):
                    self.drawn += [(time_us, claim) for claim in item.claims]
        self.admitted += [(time_us, line) for line in self.model.lines[known:] if line.is_admitted]
        return applied.verdicts

    def _check_standings(self, item: Reserve | RateDraw, granted: Granted, must: Verdict) -> None:
        """As they were right after the draw, or right after the batch."""
        assert [standing.window for standing in granted.window_statuses] == [claim.window for claim in item.claims]
        for standing, state in zip(granted.window_statuses, must.window_statuses, strict=True):
            after = self.model.state(standing.window, self.now_us)
            assert (standing.used, standing.reserved) in ((state.used, state.reserved), (after.used, after.reserved))

    async def _check(self) -> None:
        store, now, model = self.stores[-1], self.clock.now, self.model
        windows = list(self.windows.values())
        found = {standing.window.id: standing for standing in await store.window_statuses(windows, now)}
        for window in windows:
            state = model.state(window, self.clock.now_us)
            assert found[window.id] == limits.window_status(window, state, self.clock.now_us), (found[window.id], state)
            assert state.used >= 0
            if window.period_us:
                self._check_flow(window)
        rows = await store.calls(10_000)
        assert len({row["id"] for row in rows}) == len(rows)
        expected = {record.id: record._asdict() | {"usage": record.usage._asdict()} for record in model.records()}
        found_rows = {row["id"]: {name: row[name] for name in row if name != "position"} for row in rows}
        assert found_rows == expected
        for groups, places in ((("day", "key", "team", "model", "upstream", "endpoint"), range(6)), ((), ())):
            await self._check_sums(groups, places)
        for sender in (*self.senders, *self.dead, *self.gone):
            assert await store.progress(sender.name) == model.progress(sender.name)

    async def _check_sums(self, groups: Sequence[str], places: Sequence[int]) -> None:
        rows = await self.stores[0].usage(groups)
        found = {tuple(row[group] for group in groups): row for row in rows}
        assert len(found) == len(rows)
        must = sums(self.model.records(), places)
        for name, row in found.items():
            total = must.pop(name, (0,) * len(ledger_entry.SUMS))
            expected = dict(zip(ledger_entry.SUMS, total, strict=True))
            cost_nusd = expected.pop("cost_nusd")
            assert {column: row[column] for column in expected} == expected
            if row["cost_usd"] is not None:
                assert row["cost_usd"] == cost_nusd / 1e9
            else:
                assert (cost_nusd, expected["unpriced"]) == (0, expected["requests"])
        assert not must

    def _check_flow(self, window: Window) -> None:
        """Over no span of time did a rate admit more than its limit, and what refilled in that time."""
        taken = [
            (time_us, min(claim.amount, line.charge(claim)) if line.is_charged else claim.amount)
            for time_us, line in self.admitted if line.state != "void"
            for claim in line.claims if claim.window.id == window.id
        ]  # fmt: skip
        taken += [(time_us, claim.amount) for time_us, claim in self.drawn if claim.window.id == window.id]
        taken.sort()
        for first, (since_us, _) in enumerate(taken):
            total = 0
            for time_us, amount in taken[first:]:
                total += amount
                allowed = (window.period_us + time_us - since_us) * self.most[window.id]
                assert total * window.period_us <= allowed, (window, since_us, time_us)


def _portions(items: Sequence[Item]) -> list[Sequence[Item]]:
    return [items[first : first + PORTION] for first in range(0, len(items), PORTION)]
