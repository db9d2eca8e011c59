"""The ledger client of one worker: one batch in flight, the journal before the store, each request answered once."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.accounting import LedgerClient, batcher, ledger_client, recovery
from gateway.accounting import send_queue as ledger_ends
from gateway.accounting.batcher import MAX_BATCH
from gateway.accounting.delivered_reports import DeliveredReports
from gateway.config import StoreSettings as Settings
from gateway.journal import Journal, directory
from gateway.records import Granted, Record, Refused, Usage
from gateway.store import Batch, JournalFull, RateDraw, Reserve, Settle, StoreUnavailable, Void
from gateway.store.sqlite import store as sqlite_store
from gateway.store.sqlite.store import SqliteStore
from tests.patience import at_least
from tests.store.changes import NOON, daily, draw, parallel, settlement, slow

from .fake_store import ORIGIN, FakeStore, OpensClients, lease_of, leases


async def until(is_true: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - there is no event for most of what tests wait for
            await asyncio.sleep(0.002)


async def drawn(books: LedgerClient, call: str, *claims: Any) -> Any:
    wish = draw(*claims, call=call)
    assert await books.draw(wish) == Granted()
    return wish


async def in_flight(store: FakeStore, books: LedgerClient, call: str) -> asyncio.Future[Any]:
    """Send a draw and block the store while it processes it."""
    store.gate.clear()
    store.called.clear()
    answer = books.draw(draw(call=call))
    await store.called.wait()
    return answer


def left_behind(folder: Path) -> dict[str, list[str]]:
    """For each journal without an owner: its undelivered ends and its open leases."""
    found = {}
    while (journal := Journal.adopt(folder / "journal", ORIGIN)) is not None:
        ends = [f"{entry.kind} {entry.lease}" for entry in journal.undelivered(0)]
        found[journal.name] = ends + [f"open {entry.lease}" for entry in journal.open_entries()]
        (folder / "journal" / journal.name).rename(folder / journal.name)  # adoption would open it again
    return found


# ----------------------------------------------------------------------------------------------------------- batches


async def test_a_single_request_is_sent_at_once(store: FakeStore, books: LedgerClient) -> None:
    wish = await drawn(books, "a")
    await books.settle(*settlement(wish))
    assert [leases(batch) for batch in store.batches] == [["a"], ["a"]]
    assert (store.applied, store.open, books.pending) == (["a"], {}, 0)


async def test_batches_grow_while_one_is_in_flight(store: FakeStore, books: LedgerClient) -> None:
    first = await in_flight(store, books, "first")
    rest = [books.draw(draw(call=f"{number}")) for number in range(MAX_BATCH + 20)]
    store.gate.set()
    await asyncio.gather(first, *rest)
    assert [len(batch.items) for batch in store.batches] == [1, MAX_BATCH, 20]
    assert [batch.seq for batch in store.batches] == [1, 2, 3]
    assert [batch.acked for batch in store.batches] == [0, 1, 2]


async def test_what_gives_back_goes_before_what_draws(store: FakeStore, books: LedgerClient) -> None:
    wish = await drawn(books, "a")
    first = await in_flight(store, books, "first")
    second = books.draw(draw(call="b"))
    end = books.settle(*settlement(wish))
    store.gate.set()
    await asyncio.gather(first, second, end)
    assert leases(store.batches[-1]) == ["a", "b"]


async def test_draws_are_not_kept_waiting_by_a_crowd_of_settlements(store: FakeStore, books: LedgerClient) -> None:
    wishes = [await drawn(books, f"{number}") for number in range(3)]
    first = await in_flight(store, books, "first")
    ends = [books.settle(*settlement(wishes[0])) for _ in range(5 * MAX_BATCH)]
    second = books.draw(draw(call="second"))
    store.gate.set()
    await asyncio.gather(first, second, *ends)
    (place,) = [number for number, batch in enumerate(store.batches) if leases(batch)[-1] == "second"]
    assert place == 4  # the batch after the one in flight


async def test_a_silent_worker_gives_signs_of_life(
    store: FakeStore, open_one: OpensClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "SIGN_OF_LIFE_S", 0.01)
    open_one()
    await until(lambda: len(store.batches) >= 3)
    assert [batch.items for batch in store.batches[:3]] == [[], [], []]


# ------------------------------------------------------------------------------------------------- within one turn


async def test_a_lone_draw_is_answered_within_its_turn(store: FakeStore, books: LedgerClient) -> None:
    store.is_quick = True
    answer = books.draw(draw(call="a"))
    assert answer.done()
    assert answer.result() == Granted()
    await asyncio.sleep(0)
    assert books.settle(*settlement(draw(call="a"))).done()
    assert (store.applied, store.open, books.pending) == (["a"], {}, 0)


async def test_draws_of_the_same_turn_are_gathered(store: FakeStore, books: LedgerClient) -> None:
    store.is_quick = True
    answers = [books.draw(draw(call=f"{number}")) for number in range(10)]
    assert [answer.done() for answer in answers] == [True] + [False] * 9
    await asyncio.gather(*answers)
    assert [len(batch.items) for batch in store.batches] == [1, 9]


async def test_draws_that_come_in_crowds_leave_the_event_loop(store: FakeStore, books: LedgerClient) -> None:
    store.is_quick = True
    for crowd in range(10):
        await asyncio.gather(*[books.draw(draw(call=f"{crowd}-{number}")) for number in range(20)])
    assert not books.draw(draw(call="one more")).done()


async def test_a_batch_that_fails_within_its_turn_is_an_outage_like_any_other(
    store: FakeStore, books: LedgerClient
) -> None:
    wish = await drawn(books, "a")
    store.is_quick = store.is_away = True
    with pytest.raises(StoreUnavailable, match="away on request"):
        await books.draw(draw(call="b"))
    await books.settle(*settlement(wish))
    store.is_away = False
    await until(lambda: books.pending == 0)
    assert (store.applied, store.voided) == (["a"], ["b"])


async def test_what_cannot_be_stored_within_a_turn_is_singled_out(store: FakeStore, books: LedgerClient) -> None:
    store.is_quick = True
    store.poison = {"bad"}
    with pytest.raises(StoreUnavailable, match="OverflowError"):
        await books.draw(draw(call="bad"))
    await until(lambda: store.voided == ["bad"])
    await drawn(books, "good")


async def test_lost_writes_are_sent_again_within_a_turn(store: FakeStore, books: LedgerClient) -> None:
    store.is_quick = True
    wish = await drawn(books, "a")
    await asyncio.sleep(0)
    store.known.clear()
    store.open.clear()
    await drawn(books, "b")
    assert store.open.keys() == {"a", "b"}
    await books.settle(*settlement(wish))
    assert store.applied == ["a"]


# ------------------------------------------------------------------------------------------ settlements that wait


@pytest.fixture
async def lone(open_one: OpensClients) -> LedgerClient:
    """The ledger client of a gateway with a single worker."""
    return open_one(is_alone=True)


async def test_a_settlement_waits_for_company_and_its_answer_for_the_journal(
    store: FakeStore, lone: LedgerClient, tmp_path: Path
) -> None:
    wish = await drawn(lone, "a")
    assert lone.settle(*settlement(wish)).done()
    (journal,) = (tmp_path / "journal").glob("*/0*")
    assert "close a" in journal.read_text()
    assert (store.applied, lone.pending) == ([], 1)
    await drawn(lone, "b")
    assert [leases(batch) for batch in store.batches] == [["a"], ["a", "b"]]
    assert (store.applied, lone.pending) == (["a"], 0)


async def test_a_settlement_without_company_goes_alone(
    store: FakeStore, open_one: OpensClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "SIGN_OF_LIFE_S", 600)
    lone = open_one(is_alone=True)
    await lone.settle(*settlement(await drawn(lone, "a")))
    await until(lambda: store.applied == ["a"])
    assert [leases(batch) for batch in store.batches] == [["a"], ["a"]]


async def test_a_report_has_what_ended_before_it(store: FakeStore, lone: LedgerClient) -> None:
    await lone.settle(*settlement(await drawn(lone, "a")))
    with pytest.raises(StoreUnavailable):
        await DeliveredReports(store, lone).calls(10)  # type: ignore[arg-type]
    assert store.applied == ["a"]


async def test_a_settlement_that_waits_is_delivered_by_the_end_of_its_worker(
    store: FakeStore, lone: LedgerClient
) -> None:
    await lone.settle(*settlement(await drawn(lone, "a")))
    assert await lone.close(5) == 0
    assert store.applied == ["a"]


async def test_a_settlement_that_waits_is_in_the_journal_of_a_killed_worker(
    store: FakeStore, lone: LedgerClient, tmp_path: Path
) -> None:
    await lone.settle(*settlement(await drawn(lone, "a")))
    await lone._tasks.cancel_all()
    await lone._journal.close()
    assert list(left_behind(tmp_path).values()) == [["close a"]]


async def test_a_settlement_does_not_wait_where_the_journal_cannot_be_written(
    store: FakeStore, lone: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = await drawn(lone, "a")

    def full(descriptor: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    await lone.settle(*settlement(wish))
    assert store.applied == ["a"]
    monkeypatch.undo()


async def lone_sqlite(tmp_path: Path) -> SqliteStore:
    store = SqliteStore(Settings(url=f"embedded:{tmp_path / 'data'}"), is_alone=True)
    await store.apply(Batch("first", 1, 0, []))  # silent workers were looked for
    await store.retire("first")
    return store


async def end_in_memory(books: LedgerClient, store: SqliteStore) -> None:
    """A call that ends in memory, and one that runs."""
    for call in ("first", "a", "b"):
        wish = draw(daily(9), call=call)
        assert isinstance(await books.draw(wish), Granted)
        if call != "b":
            await books.settle(*settlement(wish))
    assert store._ledger.unwritten


async def test_what_a_lone_workers_store_could_not_write_is_sent_again(
    open_one: OpensClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "WRITE_BEHIND_S", 600)
    store = await lone_sqlite(tmp_path)
    books = open_one(store, is_alone=True)
    await end_in_memory(books, store)
    store._ledger.db.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError):
        store._ledger.write_behind(0)
    store._ledger.db.execute("PRAGMA query_only = OFF")
    assert isinstance(await books.draw(draw(daily(9), call="c")), Granted)
    assert [(each.used, each.reserved) for each in await books.window_statuses([daily(9).window], NOON / 1e6)] == [
        (2, 2)
    ]
    assert sorted(row["id"] for row in await store.calls(9)) == ["a", "first"]


async def test_a_journal_is_kept_where_a_lone_workers_store_lacks_some_of_it(
    open_one: OpensClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "WRITE_BEHIND_S", 600)
    store = await lone_sqlite(tmp_path)
    books = open_one(store, is_alone=True)
    await end_in_memory(books, store)
    await books.settle(*settlement(books._open["b"]))
    books._batcher.send_ends()
    monkeypatch.setattr(store._ledger, "_write_all", Mock(side_effect=sqlite3.OperationalError("disk I/O error")))
    await books.close(5)
    assert list(left_behind(tmp_path).values()) == [["close first", "close a", "close b"]]


# ----------------------------------------------------------------------------------------------------------- journal


async def test_the_journal_knows_a_call_before_it_is_granted_and_its_end_before_the_store(
    store: FakeStore, books: LedgerClient, tmp_path: Path
) -> None:
    def written() -> str:
        return "".join(path.read_text() for path in sorted((tmp_path / "journal").glob("*/0*")))

    drawing = books.draw(draw(call="a"))
    drawing.add_done_callback(lambda _: seen.append("open" in written()))
    seen: list[bool] = []
    await drawing
    await asyncio.sleep(0)
    assert seen == [True]
    store.gate.clear()
    store.called.clear()
    end = books.settle(*settlement(draw(call="a")))
    await store.called.wait()
    assert "close" in written()
    store.gate.set()
    await end


async def test_a_journal_that_is_delivered_is_taken_away(store: FakeStore, books: LedgerClient, tmp_path: Path) -> None:
    await books.settle(*settlement(await drawn(books, "a")))
    assert await books.close(5) == 0
    assert len(store.retired) == 1
    assert left_behind(tmp_path) == {}
    assert store.is_closed


async def test_a_journal_is_kept_where_the_store_may_forget(
    store: FakeStore, books: LedgerClient, tmp_path: Path
) -> None:
    store.may_forget = True
    await books.settle(*settlement(await drawn(books, "a")))
    assert await books.close(5) == 0
    assert store.retired == []
    assert list(left_behind(tmp_path).values()) == [["close a"]]


async def test_full_disk_stops_new_calls_and_settles_running_ones_straight(
    store: FakeStore, books: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await drawn(books, "running")

    def full(descriptor: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    unlucky = books.draw(draw(call="unlucky"))
    with pytest.raises(JournalFull):
        await unlucky
    with pytest.raises(JournalFull):
        await books.ping()
    with pytest.raises(JournalFull):
        await books.draw(draw(call="later"))
    await until(lambda: store.voided == ["unlucky"])
    store.is_server, books._acknowledged_within_s = True, 3600
    store.gate.clear()
    ended = books.settle(*settlement(running))
    await until(lambda: leases(store.batches[-1]) == ["running"])
    await asyncio.sleep(0)
    assert not ended.done()  # it is on its way, but the journal does not have it
    store.gate.set()
    await ended
    assert store.applied == ["running"]
    monkeypatch.undo()
    await until(lambda: not books._journal.is_full)
    await drawn(books, "again")
    await books.ping()


# ------------------------------------------------------------------------------------------------------- store away


async def test_draws_fail_at_once_and_settlements_are_kept_in_order(
    store: FakeStore, books: LedgerClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    wishes = [await drawn(books, name) for name in "abcd"]
    first = await in_flight(store, books, "first")
    draws = [books.draw(draw()) for _ in range(3 * MAX_BATCH)]
    ends = [books.settle(*settlement(wish)) for wish in wishes]
    batches = len(store.batches)
    store.is_away = True
    store.gate.set()
    for answer in (first, *draws):
        with pytest.raises(StoreUnavailable):
            await answer
    assert len(store.batches) == batches  # later draws failed without a time-out of their own
    await asyncio.gather(*ends)  # settled: the journal has them
    assert books.pending == 4
    assert books.errors >= 1
    with pytest.raises(StoreUnavailable, match="away on request"):
        await books.draw(draw())
    with pytest.raises(StoreUnavailable):
        await books.ping()
    store.is_away = False
    await until(lambda: books.pending == 0)
    assert store.applied == ["a", "b", "c", "d"]
    assert store.voided == ["first"]
    await books.ping()
    await drawn(books, "again")
    assert caplog.text.count("the store is away") == 1
    assert caplog.text.count("the store is back") == 1


async def test_entries_sent_again_have_a_new_number(store: FakeStore, books: LedgerClient) -> None:
    wish = await drawn(books, "a")
    store.loses_replies = True
    await books.settle(*settlement(wish))
    unknown = books.draw(draw(call="b"))
    with pytest.raises(StoreUnavailable):
        await unknown
    store.loses_replies = False
    await until(lambda: books.pending == 0)
    await until(lambda: store.voided == ["b"] or "b" not in store.open)
    assert store.applied == ["a"]
    assert store.open == {}
    seqs = [batch.seq for batch in store.batches]
    assert seqs == sorted(set(seqs))


async def test_a_draw_without_an_answer_is_drawn_and_given_back(store: FakeStore, open_one: OpensClients) -> None:
    store.may_forget = True  # its file may have half of the batch
    books = open_one()
    store.is_away = True
    unknown = books.draw(draw(call="a"))
    with pytest.raises(StoreUnavailable):
        await unknown
    store.is_away = False
    await until(lambda: store.voided == ["a"])
    received = store.batches[-1].items
    assert [(type(item), lease_of(item)) for item in received] == [(Reserve, "a"), (Void, "a")]
    assert [item.is_forced for item in received if isinstance(item, Reserve)] == [True]
    assert store.open == {}


async def test_an_answer_does_not_wait_for_a_slow_store(store: FakeStore, books: LedgerClient) -> None:
    wish = await drawn(books, "a")
    store.gate.clear()
    await books.settle(*settlement(wish))
    await books.settle(*settlement(wish))
    assert store.applied == []
    assert books.pending == 2
    store.gate.set()
    await until(lambda: books.pending == 0)


async def test_an_answer_waits_for_one_round_trip_to_a_server_only(store: FakeStore, books: LedgerClient) -> None:
    """Its settlement is on its way before it ends: what the client does next comes to the server after that."""
    books._acknowledged_within_s = 3600
    wish = await drawn(books, "a")
    store.is_server = True
    store.gate.clear()
    await books.settle(*settlement(wish))
    assert lease_of(store.batches[-1].items[0]) == "a"
    assert (store.applied, books.pending) == ([], 1)
    assert [entry.lease for entry in books._journal.undelivered(0)] == ["a"]
    later = books.settle(*settlement(draw(call="b")))
    await asyncio.sleep(0)
    assert not later.done()  # it waits for a batch of its own, which is not sent yet
    store.gate.set()
    await later
    await until(lambda: books.pending == 0)


async def test_after_a_long_outage_what_is_not_in_memory_comes_from_the_journal(
    store: FakeStore, books: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_ends, "MAX_KEPT", 10)
    wishes = [await drawn(books, f"{number}") for number in range(300)]
    store.is_away = True
    ends = [books.settle(*settlement(wish)) for wish in wishes]
    await asyncio.gather(*ends)
    assert len(books._ends.waiting) <= 10
    store.is_away = False
    await until(lambda: store.applied)
    await books.settle(*settlement(draw(call="late")))
    await until(lambda: books.pending == 0)
    assert store.applied == [wish.record.id for wish in wishes] + ["late"]
    assert not books._ends


async def test_recovery_is_noticed_without_a_call(store: FakeStore, books: LedgerClient) -> None:
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await books.draw(draw())
    store.is_away = False
    await until(lambda: books._outage.is_up)


# ---------------------------------------------------------------------------------------------- a store that forgets


async def test_lost_entries_are_sent_again(store: FakeStore, books: LedgerClient) -> None:
    wishes = [await drawn(books, name) for name in "abcdef"]
    worker = store.batches[0].worker
    for wish in wishes[:2]:
        await books.settle(*settlement(wish))
    then = store.known[worker]
    for wish in wishes[2:4]:
        await books.settle(*settlement(wish))
    store.applied, store.open = ["a", "b"], {}
    store.forget(worker, then)
    await books.settle(*settlement(wishes[4]))
    await until(lambda: books.pending == 0)
    await until(lambda: "f" in store.open)
    assert store.applied == ["a", "b", "c", "d", "e"]
    assert set(store.open) == {"f"}
    forced = [item for item in store.batches[-1].items if isinstance(item, Reserve)]
    assert all(item.is_forced for item in forced)
    await drawn(books, "g")


async def test_an_empty_server_gets_all_kept_entries(store: FakeStore, books: LedgerClient) -> None:
    wishes = [await drawn(books, name) for name in "abc"]
    for wish in wishes[:2]:
        await books.settle(*settlement(wish))
    store.known.clear()
    store.open.clear()
    store.applied.clear()
    await drawn(books, "d")
    assert store.applied == ["a", "b"]
    await until(lambda: set(store.open) == {"c", "d"})


# -------------------------------------------------------------------------------------------------------- offline quota


async def test_offline_calls_use_a_share_and_are_settled_later(store: FakeStore, open_one: OpensClients) -> None:
    books = open_one(on_outage="allow", outage_share=0.1)
    await drawn(books, "before", daily(100), parallel(3))
    store.is_away = True
    verdicts = [await books.draw(draw(daily(100), call=f"{n}")) for n in range(15)]
    assert [type(verdict).__name__ for verdict in verdicts] == ["Granted"] * 10 + ["Refused"] * 5
    await books.ping()
    await books.settle(*settlement(draw(daily(100), call="3")))
    store.is_away = False
    await until(lambda: books.pending == 0 and len(store.open) == 10)
    assert store.applied == ["3"]
    assert set(store.open) == {"before", *"012456789"}


async def test_parallel_calls_that_began_before_the_outage_count(store: FakeStore, open_one: OpensClients) -> None:
    books = open_one(on_outage="allow", outage_share=0.1)
    first = await drawn(books, "first", parallel(2))
    store.is_away = True
    assert isinstance(await books.draw(draw(parallel(2), call="second")), Granted)
    assert not isinstance(await books.draw(draw(parallel(2), call="third")), Granted)
    await books.settle(*settlement(first))
    assert isinstance(await books.draw(draw(parallel(2), call="fourth")), Granted)


async def test_calls_of_one_lost_batch_are_sent_again(
    store: FakeStore, open_one: OpensClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They use nothing of the offline share: it is one call, and three are admitted."""
    monkeypatch.setattr(ledger_client, "HOLD_S", 600)
    books = open_one(on_outage="allow", outage_share=0.01)
    for name in ("first", "second", "third"):
        store.called.clear()
        store.loses_replies = True
        lost = books.draw(draw(daily(100), call=name))
        await store.called.wait()
        store.loses_replies = False
        assert [await lost, await books.draw(draw(daily(100), call=f"after-{name}"))] == [Granted()] * 2
    assert store.voided == []
    items = [item for batch in store.batches for item in batch.items]
    assert [item for item in items if isinstance(item, Reserve) and item.is_forced] == []


async def test_calls_wait_no_longer_than_the_hold_after_a_lost_batch(
    store: FakeStore, open_one: OpensClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_client, "HOLD_S", 0.01)
    books = open_one(on_outage="allow", outage_share=0.01)
    lost = await in_flight(store, books, "lost")
    store.is_away = True
    store.gate.set()
    await until(lambda: len(store.batches) == 1)
    store.gate.clear()
    held = books.draw(draw(call="held"))
    assert [await lost, await held] == [Granted()] * 2
    store.is_away = False
    store.gate.set()
    await until(lambda: set(store.open) == {"lost", "held"})


async def test_calls_that_wait_after_a_lost_batch_are_answered_when_the_ledger_closes(
    store: FakeStore, open_one: OpensClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_client, "HOLD_S", 600)
    books = open_one(on_outage="allow")
    store.loses_replies = True
    lost = books.draw(draw(call="lost"))
    await store.called.wait()
    store.gate.clear()
    held = books.draw(draw(call="held"))
    await books.close(0.01)
    for answer in (lost, held):
        with pytest.raises(StoreUnavailable):
            await answer


async def test_alone_only_for_so_long(store: FakeStore, open_one: OpensClients) -> None:
    books = open_one(on_outage="allow", outage_share=1, outage_max_s=0)
    store.is_away = True
    await asyncio.gather(books.draw(draw()), return_exceptions=True)  # granted before the outage was known
    await at_least(0.01)
    with pytest.raises(StoreUnavailable):
        await books.draw(draw())
    with pytest.raises(StoreUnavailable):
        await books.ping()


# ---------------------------------------------------------------------------------------------- draws without a lease


async def test_a_count_has_no_end(store: FakeStore, books: LedgerClient, tmp_path: Path) -> None:
    assert await books.draw(RateDraw((slow(),))) == Granted()
    store.gate.clear()
    cancelled = books.draw(RateDraw((slow(),)))
    cancelled.cancel()
    store.gate.set()
    await drawn(books, "a")
    await books.close(5)
    assert (store.applied, store.voided) == ([], [])
    assert left_behind(tmp_path) == {next(iter(store.known)): ["open a"]}


async def test_a_count_of_a_lost_batch_is_not_given_back(store: FakeStore, books: LedgerClient) -> None:
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await books.draw(RateDraw((slow(),)))
    store.is_away = False
    await until(lambda: "well" in repr(books))
    assert (store.voided, books.pending) == ([], 0)


async def test_counts_go_on_with_a_share(store: FakeStore, open_one: OpensClients) -> None:
    books = open_one(on_outage="allow", outage_share=0.1)
    store.is_away = True
    verdicts = [await books.draw(RateDraw((slow(20),))) for _ in range(3)]
    assert [type(verdict) for verdict in verdicts] == [Granted, Granted, Refused]
    store.is_away = False
    await until(lambda: "well" in repr(books))
    assert store.open == {}


# -------------------------------------------------------------------------------------------------- clients that leave


async def test_a_cancelled_draw_is_carried_out_and_taken_back(store: FakeStore, books: LedgerClient) -> None:
    first = await in_flight(store, books, "a")
    later = books.draw(draw(call="b"))
    last = books.draw(draw(call="d"))
    for answer in (first, later):
        answer.cancel()
    store.gate.set()
    assert await last == Granted()
    await until(lambda: sorted(store.applied) == ["a", "b"])
    closings = [item.record for batch in store.batches for item in batch.items if isinstance(item, Settle)]
    assert [(record.ended, record.usage) for record in closings] == [("client_gone", Usage())] * 2
    assert set(store.open) == {"d"}


async def test_cancelling_is_harmless_when_the_store_is_away(store: FakeStore, books: LedgerClient) -> None:
    wish = await drawn(books, "b")
    first = await in_flight(store, books, "a")
    end = books.settle(*settlement(wish))
    first.cancel()
    end.cancel()
    store.is_away = True
    store.gate.set()
    await until(lambda: books.errors)
    store.is_away = False
    await until(lambda: books.pending == 0)
    assert (store.applied, store.voided, store.open) == (["b"], ["a"], {})


# --------------------------------------------------------------------------------------------------- bugs, and the end


async def test_one_bad_request_does_not_block_the_others(
    store: FakeStore, books: LedgerClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that the store rejects is a bug of the gateway; it must not block other requests."""
    wishes = [await drawn(books, name) for name in ("b", "worse")]
    store.poison = {"bad", "worse"}
    first = await in_flight(store, books, "a")
    answers: list[asyncio.Future[Any]] = [books.draw(draw(call="bad")), books.draw(draw(call="c"))]
    answers += [books.settle(*settlement(wish)) for wish in wishes]
    store.gate.set()
    results = await asyncio.gather(first, *answers, return_exceptions=True)
    assert [type(result) for result in results] == [Granted, StoreUnavailable, Granted, type(None), type(None)]
    assert store.applied == ["b"]
    await until(lambda: sorted(store.voided) == ["bad", "worse"])  # both reservations are released
    assert books.pending == 1  # the undelivered end is kept in the journal
    received = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(received) == 2
    assert all(message.startswith("the store cannot take") for message in received)
    await asyncio.gather(*(books.draw(draw()) for _ in range(3)))
    assert len(store.batches[-1].items) == 3  # one batch again


@pytest.mark.parametrize("is_quick", [False, True])
async def test_a_settlement_that_failed_for_a_moment_alone_is_sent_again(
    store: FakeStore, books: LedgerClient, monkeypatch: pytest.MonkeyPatch, *, is_quick: bool
) -> None:
    """The server is well again when it is asked, as after a move of its keys."""
    wish = await drawn(books, "a")
    store.is_quick, store.poison = is_quick, {"a"}
    monkeypatch.setattr(store, "ping", healing(store))
    await books.settle(*settlement(wish))
    await until(lambda: books.pending == 0)
    assert (store.applied, store.voided) == (["a"], [])


def healing(store: FakeStore) -> Any:
    async def ping() -> None:
        store.poison.clear()

    return ping


async def test_a_server_that_takes_nothing_is_away_and_nothing_is_thrown_away(
    store: FakeStore, books: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wishes = [await drawn(books, name) for name in "abc"]

    async def refuse(*_: Any) -> Any:
        raise ValueError("unknown command")

    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", refuse)
        patch.setattr(store, "ping", refuse)
        await asyncio.gather(*(books.settle(*settlement(wish)) for wish in wishes))
        with pytest.raises(StoreUnavailable):
            await books.draw(draw())
        assert books.pending == 3
    await until(lambda: books.pending == 0)
    assert store.applied == ["a", "b", "c"]


async def test_an_unreadable_journal_blocks_no_call(
    store: FakeStore, books: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "AFTER_BUG_S", 0.01)
    wish = await drawn(books, "a")
    await books.settle(*settlement(wish))

    def unreadable(after: int) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")
        yield  # a generator, like the real method

    with monkeypatch.context() as patch:
        patch.setattr(books._journal, "undelivered", unreadable)
        store.known.clear()
        store.applied.clear()
        waiting = books.draw(draw(call="b"))
        await at_least(0.1)
        assert not waiting.done()
    assert await waiting == Granted()
    assert store.applied == ["a"]


async def test_the_end_of_an_answer_does_not_wait_for_a_backlog(
    store: FakeStore, books: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wishes = [await drawn(books, f"{number}") for number in range(500)]
    store.is_away = True
    await asyncio.gather(*(books.settle(*settlement(wish)) for wish in wishes))
    store.is_away = False
    while not store.applied:  # noqa: ASYNC110 - to be there with the first of them, however long a turn takes
        await asyncio.sleep(0)
    late = books.settle(*settlement(draw(call="late")))
    await late
    assert books.pending > 0  # it did not wait for earlier settlements
    await until(lambda: books.pending == 0)


async def test_draws_under_way_are_answered_when_the_ledger_closes(
    store: FakeStore, books: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has granted the draw; the journal's disk is slow."""
    disk = asyncio.Event()
    store.called.clear()

    async def slow() -> None:
        if store.called.is_set():
            await disk.wait()

    monkeypatch.setattr(books._journal, "written", slow)
    monkeypatch.setattr(books._journal, "write_now", lambda: False)
    waiting = books.draw(draw(call="a"))
    await until(lambda: store.open)
    closing = asyncio.ensure_future(books.close(0.05))
    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting
    disk.set()
    await closing


async def test_close_delivers_what_waits(store: FakeStore, books: LedgerClient) -> None:
    wishes = [await drawn(books, name) for name in "ab"]
    ends = [books.settle(*settlement(wish)) for wish in wishes]
    assert await books.close(5) == 0
    assert all(end.done() for end in ends)
    assert store.applied == ["a", "b"]
    with pytest.raises(StoreUnavailable, match="closed"):
        await books.draw(draw())


async def test_what_cannot_be_delivered_at_the_end_stays_in_the_journal(
    store: FakeStore, books: LedgerClient, tmp_path: Path
) -> None:
    wishes = [await drawn(books, name) for name in "abc"]
    store.is_away = True
    for wish in wishes[:2]:
        books.settle(*settlement(wish))
    assert await books.close(0.05) == 2
    assert await books.close(0.05) == 2
    assert list(left_behind(tmp_path).values()) == [["close a", "close b", "open c"]]


async def test_what_was_under_way_when_time_ran_out_counts_as_left(store: FakeStore, books: LedgerClient) -> None:
    wish = await drawn(books, "a")
    store.gate.clear()
    store.called.clear()
    books.settle(*settlement(wish))
    await store.called.wait()
    waiting = books.draw(draw())
    assert await books.close(0.01) == 1
    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting


async def test_failed_reads_are_counted(store: FakeStore, books: LedgerClient) -> None:
    reports = DeliveredReports(store, books)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        await reports.calls(1)
    assert books.errors == 1


async def test_repr(store: FakeStore, books: LedgerClient) -> None:
    wish = await drawn(books, "a")
    store.gate.clear()
    books.settle(*settlement(wish))
    assert repr(books).endswith(": store well, 0 open, 1 pending>")
    store.gate.set()


# ---------------------------------------------------------------------------------------------------------- adoption


class Metrics:
    """The metrics of a gateway, as far as recovery uses them."""

    def __init__(self) -> None:
        self.calls: list[Record] = []
        self.marks: dict[str, int] = {}

    def counted(self, journal: str) -> int | None:
        return self.marks.get(journal)

    def recovered(self, journal: str, number: int, record: Record | None) -> None:
        self.marks[journal] = number
        if record is not None:
            self.calls.append(record)


async def test_what_a_dead_worker_left_is_delivered_by_another(
    store: FakeStore, open_one: OpensClients, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    books = open_one()
    wishes = [await drawn(books, name) for name in "abc"]
    store.is_away = True
    books.settle(*settlement(wishes[0]))
    await books.close(0.01)
    store.is_away = False
    metrics = Metrics()
    open_one(adopts=True, metrics=metrics)
    await until(lambda: store.retired)
    assert store.applied == ["a", "b", "c"]
    assert [(record.id, record.ended) for record in metrics.calls] == [("b", "lost"), ("c", "lost")]
    await until(lambda: "2 calls of a killed worker" in caplog.text)
    dead = [item for batch in store.batches for item in batch.items if isinstance(item, Settle)]
    assert [item.record.ended for item in dead][-2:] == ["lost", "lost"]
    await until(lambda: len([*(tmp_path / "journal").iterdir()]) == 1)


async def test_a_worker_killed_while_adopting_is_adopted_in_turn(store: FakeStore, open_one: OpensClients) -> None:
    books = open_one()
    wishes = [await drawn(books, name) for name in "ab"]
    store.is_away = True
    books.settle(*settlement(wishes[0]))
    await books.close(0.01)
    store.is_away = False
    store.loses_replies = True
    metrics = Metrics()
    second = open_one(adopts=True, metrics=metrics)
    await until(lambda: "b" in store.applied)
    await second.close(0.01)
    store.loses_replies = False
    open_one(adopts=True, metrics=metrics)
    await until(lambda: store.retired)
    assert store.applied == ["a", "b"]
    assert [record.id for record in metrics.calls] == ["b"]  # counted once


async def test_calls_that_ended_without_being_counted_are_counted_by_who_recovers_them(
    store: FakeStore, open_one: OpensClients
) -> None:
    books = open_one()
    wishes = [await drawn(books, name) for name in "abcd"]
    metrics = Metrics()
    books.settle(*settlement(wishes[0]))
    journal, mark = books.last_end()
    metrics.marks[journal] = mark
    assert mark == 5
    store.is_away = True
    books.settle(*settlement(wishes[1]))
    books.settle(*settlement(wishes[2]))
    await books.close(0.01)
    store.is_away = False
    open_one(adopts=True, metrics=metrics)
    await until(lambda: store.retired)
    assert [(record.id, record.ended) for record in metrics.calls] == [("b", "done"), ("c", "done"), ("d", "lost")]
    assert metrics.marks == {journal: 8}


async def test_a_void_of_a_dead_worker_is_delivered(store: FakeStore, open_one: OpensClients) -> None:
    books = open_one()
    await drawn(books, "a")
    store.loses_replies = True
    with pytest.raises(StoreUnavailable):
        await books.draw(draw(call="b"))
    store.is_away = True
    await books.close(0.01)
    store.is_away = store.loses_replies = False
    if "b" in store.voided:
        return  # delivered by the first retry
    open_one(adopts=True)
    await until(lambda: store.retired)
    assert "b" in store.voided
    assert store.applied == ["a"]


async def test_a_truncated_journal_charges_no_call_twice(
    store: FakeStore, open_one: OpensClients, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut lost the last entries of the journal; the store has them."""
    books = open_one()
    wishes = [await drawn(books, name) for name in "abc"]
    (segment,) = (tmp_path / "journal").glob("*/0*")
    size = segment.stat().st_size
    store.may_forget = True  # close() keeps the journal
    for wish in wishes[:2]:
        await books.settle(*settlement(wish))
    await books.close(5)
    os.truncate(segment, size)
    store.may_forget = False
    open_one(adopts=True)
    await until(lambda: "is missing" in caplog.text)
    await until(lambda: len([*(tmp_path / "journal").iterdir()]) == 1)
    assert store.applied == ["a", "b"]
    assert set(store.open) == {"c"}  # the store closes it as lost after the worker time-out
    assert store.retired == []


async def test_calls_that_a_power_cut_has_taken_from_the_journal_are_not_voided(
    store: FakeStore, open_one: OpensClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_boot", lambda: "the last start")
    books = open_one()
    await drawn(books, "a")
    await books.close(0.01)
    monkeypatch.setattr(directory, "_boot", lambda: "this start")
    open_one(adopts=True)
    await until(lambda: len([*(tmp_path / "journal").iterdir()]) == 1)
    assert (set(store.open), store.applied, store.voided_of) == ({"a"}, [], [])


async def test_an_entry_that_cannot_be_taken_does_not_keep_a_journal_for_ever(
    store: FakeStore, open_one: OpensClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "KEPT_S", 0.1)
    books = open_one()
    wishes = [await drawn(books, name) for name in ("a", "bad")]
    store.is_away = True
    for wish in wishes:
        books.settle(*settlement(wish))
    await books.close(0.01)
    store.is_away, store.may_forget, store.poison = False, True, {"bad"}
    open_one(adopts=True)
    await until(lambda: store.retired)
    assert store.applied == ["a"]


async def test_an_entry_that_failed_for_a_moment_is_delivered_again(
    store: FakeStore, open_one: OpensClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = open_one()
    wish = await drawn(books, "a")
    store.is_away = True
    books.settle(*settlement(wish))
    await books.close(0.01)
    store.is_away, store.poison = False, {"a"}
    monkeypatch.setattr(store, "ping", healing(store))
    open_one(adopts=True)
    await until(lambda: store.retired)
    assert store.applied == ["a"]


async def test_an_empty_store_gets_everything_from_the_adopter(store: FakeStore, open_one: OpensClients) -> None:
    books = open_one()
    wishes = [await drawn(books, name) for name in "ab"]
    await books.settle(*settlement(wishes[0]))
    store.is_away = True
    await books.close(0.01)
    store.known.clear()
    store.applied.clear()
    store.is_away = False
    open_one(adopts=True)
    await until(lambda: store.retired)
    assert store.applied == ["a", "b"]


# -------------------------------------------------------------------------------------------------------- extensions


async def test_an_extended_lease_is_journalled_as_it_is_then(store: FakeStore, books: LedgerClient) -> None:
    wish = await drawn(books, "a", daily())
    more = Reserve.of(wish.record, (*wish.claims, parallel(scope="upstream:up")), held=1)
    assert await books.extend(more) == Granted()
    (entry,) = books._journal.open_entries()
    assert "upstream:up" in entry.text
    assert "upstream:up" in store.open["a"]
    await books.settle(*settlement(more))
    assert books._open == {}


async def test_an_extension_that_the_store_may_have_is_sent_again_and_ends_with_its_call(
    store: FakeStore, books: LedgerClient
) -> None:
    wish = await drawn(books, "a", daily())
    more = Reserve.of(wish.record, (*wish.claims, parallel(scope="upstream:up")), held=1)
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await books.extend(more)
    with pytest.raises(StoreUnavailable):  # the outage is known
        await books.extend(more)
    store.is_away = False
    await until(lambda: books._outage.is_up)
    assert "upstream:up" in store.open["a"]
    assert store.voided == []
    await books.settle(*settlement(more))
    assert (store.applied, store.open) == (["a"], {})
