"""What drives a store in the tests: a worker that numbers its batches and entries, as the ledger does, and does nothing
else that the ledger does."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from gateway.quota.ledger_entry import encode
from gateway.records import Claim, Granted, Refused, Settlement, WindowStatus
from gateway.store import SIGN_OF_LIFE_S, Applied, Batch, Item, Reserve, Settle, Store, Void

from .changes import SECOND, Clock, draw, settlement

MAX_BATCH = 100


class Worker:
    """One worker of a store. It sends one batch at a time."""

    def __init__(self, store: Store, name: str | None = None) -> None:
        self.store = store
        self.name = name or uuid.uuid4().hex
        self.seq = 0
        self.acked = 0
        self.number = 0

    # ------------------------------------------------------------------------------------------------------- batches

    async def send(self, *items: Item) -> Applied:
        """One batch. Without items, a sign of life."""
        self.seq += 1
        applied = await self.store.apply(Batch(self.name, self.seq, self.acked, items))
        assert len(applied.verdicts) == len(items)
        self.acked = self.seq
        return applied

    def opening(self, wish: Reserve, is_forced: bool = False) -> Reserve:
        return Reserve.of(wish.record, wish.claims, is_forced=is_forced)

    def closing(self, end: Settlement) -> Settle:
        self.number += 1
        return Settle(self.number, *end, encode(*end))

    def voiding(self, wish: Reserve) -> Void:
        self.number += 1
        return Void(self.number, wish.record.id)

    async def listen(self, clock: Clock, seconds: float) -> None:
        """Let this time pass while the store hears this worker alone."""
        while seconds > 0:
            await self.send()
            step_s = seconds % SIGN_OF_LIFE_S or SIGN_OF_LIFE_S
            clock.advance(step_s)
            seconds -= step_s

    # ------------------------------------------------------------------------------------------- messages for tests

    async def draw(self, wish: Reserve, is_forced: bool = False) -> Granted | Refused:
        (verdict,) = (await self.send(self.opening(wish, is_forced))).verdicts
        assert verdict is not None
        return verdict

    async def draw_all(self, wishes: Iterable[Reserve]) -> list[Granted | Refused]:
        """Many, in as few batches as they need."""
        applied = [await self.send(*some) for some in portions([self.opening(wish) for wish in wishes])]
        return [verdict for each in applied for verdict in each.verdicts if verdict is not None]

    async def granted(self, *claims: Claim, **changes: Any) -> Reserve:
        wish = draw(*claims, **changes)
        verdict = await self.draw(wish)
        assert isinstance(verdict, Granted), verdict
        return wish

    async def refused(self, *claims: Claim) -> Refused:
        verdict = await self.draw(draw(*claims))
        assert isinstance(verdict, Refused), verdict
        return verdict

    async def settle(self, wish: Reserve, used: int = 0, **changes: Any) -> None:
        await self.send(self.closing(settlement(wish, used, **changes)))

    async def settle_all(self, ends: Iterable[Settlement]) -> None:
        for some in portions([self.closing(end) for end in ends]):
            await self.send(*some)

    async def void(self, wish: Reserve) -> None:
        await self.send(self.voiding(wish))


def portions(items: Sequence[Item]) -> list[Sequence[Item]]:
    return [items[start : start + MAX_BATCH] for start in range(0, len(items), MAX_BATCH)]


async def standings(store: Store, claims: Sequence[Claim], clock: Clock) -> list[WindowStatus]:
    return await store.window_statuses([claim.window for claim in claims], clock.now)


async def standing(store: Store, claim: Claim, clock: Clock) -> tuple[int, int]:
    """Used and reserved."""
    (found,) = await standings(store, [claim], clock)
    return found.used, found.reserved


async def levels(store: Store, clock: Clock, *claims: Claim) -> list[tuple[int, int]]:
    """Used and reserved of each."""
    return [(found.used, found.reserved) for found in await standings(store, claims, clock)]


def about(time_us: float) -> object:
    """That, or a minute less or more."""
    return pytest.approx(time_us, abs=60 * SECOND)


async def endings(store: Store) -> list[str]:
    """How the calls in the records ended, newest first."""
    return [row["ended"] for row in await store.calls(1000)]


async def pass_days(worker: Worker, clock: Clock, days: int) -> None:
    """Let days pass, with a batch each day: retention advances by one day at each look."""
    for _ in range(days):
        clock.advance(86_400)
        await worker.send()
