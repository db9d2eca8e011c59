"""The changed windows of a worker: noted when the store has the change; their number is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.accounting import LedgerClient
from gateway.accounting.changed_windows import ChangedWindows
from gateway.journal import Journal
from gateway.records import Claim, Refused, WindowStatus
from gateway.store import Settle, Void
from gateway.store.sqlite.store import SqliteStore
from tests.fakes.scripted import until
from tests.patience import at_least
from tests.store.changes import daily, draw, parallel, rate, settlement, slow, tokens

from .fake_store import ORIGIN, FakeStore, settings


def closing(*claims: Claim, **of_record: str) -> Settle:
    changes: dict[str, Any] = {name.removeprefix("record_"): value for name, value in of_record.items()}
    return Settle(1, *settlement(draw(*claims), **changes), "")


def refused(claim: Claim, retry_after_us: int | None = None) -> Refused:
    return Refused(WindowStatus(claim.window, 9, 0, 1), claim.amount, retry_after_us)


def test_only_what_is_charged_to_calendar_windows_is_noted() -> None:
    touched = ChangedWindows()
    touched.note([closing(daily(1), rate(), parallel()), Void(2, "x"), closing(daily(1), tokens(5))], [None])
    windows, spent = touched.take(10)
    assert windows == [daily(1).window, tokens(5).window]
    assert spent == set()
    assert touched.take(10) == ([], set())


def test_of_refusals_only_those_for_good() -> None:
    touched = ChangedWindows()
    touched.note([], [refused(daily(1)), refused(tokens(5), 1_000_000), refused(parallel(1), 1_000_000)])
    assert touched.take(10) == ([daily(1).window], {daily(1).window.id})
    touched.note([closing(daily(1))], [])
    assert touched.take(10) == ([daily(1).window], set())


def test_of_each_key_and_model_the_last_call_counts() -> None:
    """All calls of a key and model draw on the same windows, except those of a new day."""
    touched = ChangedWindows()
    tomorrow = daily(5, starts="2026-11-21")
    touched.note([closing(daily(5), tokens(5)), closing(tomorrow), closing(slow(), record_key="j")], [])
    touched.note([closing(daily(5, model="m*"), record_model="m")], [])
    assert touched.take(10)[0] == [tomorrow.window, daily(5, model="m*").window]


def test_the_longest_known_is_taken_first_and_what_is_put_back_last() -> None:
    touched = ChangedWindows()
    windows = [daily(1, scope=f"key:{number}") for number in range(4)]
    for number, window in enumerate(windows):
        touched.note([closing(window, record_key=str(number))], [])
    touched.note([closing(windows[0], record_key="0")], [refused(windows[1])])
    first, spent = touched.take(2)
    assert (first, spent) == ([windows[1].window, windows[0].window], {windows[1].window.id})
    touched.put_back(first, spent)
    assert touched.take(1) == ([windows[2].window], set())
    touched.put_back([windows[2].window], set())
    assert touched.take(9) == ([windows[3].window, *first, windows[2].window], spent)


def test_what_is_taken_at_once_is_bounded() -> None:
    touched = ChangedWindows()
    for number in range(10):
        claims = [daily(1, scope=f"key:{number}"), tokens(1, scope=f"key:{number}")]
        touched.note([closing(*claims, record_key=str(number))], [])
    sizes = [len(touched.take(3)[0]) for _ in range(8)]
    assert sizes == [3, 3, 3, 3, 3, 3, 2, 0]


def test_models_that_a_client_makes_up_do_not_pile_up() -> None:
    touched = ChangedWindows()
    for number in range(50):
        touched.note([closing(daily(1), record_model=f"made-up-{number}")], [])
    assert touched.take(2) == ([daily(1).window], set())
    assert touched.take(2) == ([], set())


async def test_a_bookkeeper_notes_when_the_store_has_it(tmp_path: Path) -> None:
    store, touched = FakeStore(), ChangedWindows()
    made = settings(tmp_path)
    journal = Journal.create(Path(made.journal_dir), ORIGIN)
    books = LedgerClient(store, journal, made, changed_windows=touched)
    wish = draw(daily(5), parallel())
    await books.draw(wish)
    assert touched.take(9) == ([], set())  # reserved is not used
    store.gate.clear()
    books.settle(*settlement(wish))
    await at_least(0.02)
    assert touched.take(9) == ([], set())
    store.gate.set()
    await until(lambda: touched.take(9) == ([daily(5).window], set()))
    await books.close(5)


async def test_a_bookkeeper_notes_refusals_for_good(tmp_path: Path) -> None:
    made, touched = settings(tmp_path), ChangedWindows()
    journal = Journal.create(Path(made.journal_dir), ORIGIN)
    books = LedgerClient(SqliteStore(made), journal, made, changed_windows=touched)
    wish = draw(daily(1))
    await books.draw(wish)
    in_the_way: Any = await books.draw(draw(daily(1)))
    assert isinstance(in_the_way, Refused)
    assert touched.take(9) == ([], set())
    await books.settle(*settlement(wish))
    assert isinstance(await books.draw(draw(daily(1))), Refused)
    assert touched.take(9) == ([daily(1).window], {daily(1).window.id})
    await books.close(5)
