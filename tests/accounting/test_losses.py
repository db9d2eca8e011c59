"""Ledger clients on a real store that loses requests and replies: all sums are right in the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.accounting import LedgerClient, outage, send_queue
from gateway.accounting.delivered_reports import DeliveredReports
from gateway.records import Granted
from gateway.store import Applied, Batch, StoreUnavailable
from gateway.store.sqlite.store import SqliteStore
from tests.amounts import amount
from tests.store.changes import NOON, SECOND, Clock, daily, draw, parallel, settlement, tokens

from .fake_store import open_client, settings

CALLS = 150
WORKERS = 3


class LossyStore(SqliteStore):
    """The embedded store behind a lossy connection: a request or its reply may be lost."""

    dice: random.Random
    losses = 0.0
    may_forget = False

    def apply_now(self, batch: Batch) -> Applied | None:
        if self.dice.random() < 0.5:
            return None
        if self.dice.random() < self.losses:
            raise StoreUnavailable("the request is lost")
        applied = super().apply_now(batch)
        if applied and self.dice.random() < self.losses:
            raise StoreUnavailable("the reply is lost")
        return applied

    async def apply(self, batch: Batch, sent: Callable[[], None] | None = None) -> Applied:
        await asyncio.sleep(self.dice.random() * 0.002)
        if self.dice.random() < self.losses:
            raise StoreUnavailable("the request is lost")
        applied = await super().apply(batch, sent)
        if self.dice.random() < self.losses:
            raise StoreUnavailable("the reply is lost")
        return applied


@pytest.mark.shortened
@pytest.mark.parametrize("may_forget", [False, True])
@pytest.mark.parametrize("chosen", amount([1, 2, None], [None]), ids=str)
async def test_sums_are_right_behind_a_lossy_connection(
    chosen: int | None, may_forget: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(10**6) if chosen is None else chosen
    print(f"seed {seed}")
    monkeypatch.setattr(outage, "TRY_AGAIN_S", (0.0, 0.002))
    monkeypatch.setattr(send_queue, "MAX_KEPT", 7)
    dice = random.Random(seed)
    clock = Clock()
    served: Counter[str] = Counter()
    stores: list[LossyStore] = []

    def open_one() -> LedgerClient:
        store = LossyStore(settings(tmp_path), clock)
        store.dice = dice
        store.losses = 0.2
        store.may_forget = may_forget
        stores.append(store)
        return open_client(store, tmp_path, adopts=True)

    async def call(books: LedgerClient, number: int) -> None:
        await asyncio.sleep(dice.random() * 0.2)
        wish = draw(tokens(10**9, 50), daily(60), parallel(40), call=f"call-{number}")
        for _ in range(20):
            try:
                verdict = await books.draw(wish)
            except StoreUnavailable:
                await asyncio.sleep(dice.random() * 0.02)
                wish = draw(*wish.claims, call=f"{wish.record.id}+")  # a new call, like a client's retry
                continue
            if isinstance(verdict, Granted):
                served[wish.record.id] = dice.randrange(100)
                await asyncio.sleep(dice.random() * 0.05)
                await books.settle(*settlement(wish, served[wish.record.id]))
            return

    workers = [open_one() for _ in range(WORKERS)]
    await asyncio.gather(*(call(workers[number % WORKERS], number) for number in range(CALLS)))
    for store in stores:
        store.losses = 0.0
    async with asyncio.timeout(20):
        while any(books.pending or books._ends or not books._outage.is_up for books in workers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    found = await workers[0].window_statuses([tokens().window, daily().window, parallel().window], NOON / SECOND)
    reports = DeliveredReports(stores[0], workers[0])
    records = await reports.calls(10_000)
    assert {row["id"]: row["usage"]["prompt_tokens"] for row in records} == served
    assert len(records) == len(served) <= 60
    assert [(each.used, each.reserved) for each in found] == [(served.total(), 0), (len(served), 0), (0, 0)]
    (row,) = await reports.usage([])
    assert (row["requests"], row["total_tokens"]) == (len(served), served.total())
    for books in workers:
        assert await books.close(5) == 0
