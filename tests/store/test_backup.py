"""A copy of the embedded store, and what becomes of a store that was made of one."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.backup import PART, NotBackedUp, back_up
from gateway.config import StoreSettings as Settings
from gateway.store import SILENT_S, StoreLostWrites
from gateway.store.sqlite.database import path_of
from gateway.store.sqlite.store import SqliteStore

from .changes import Clock, daily, draw, settlement
from .worker import Worker, endings, levels


def settings_of(folder: Path, **more: Any) -> Settings:
    return Settings(url=f"embedded:{folder}", **more)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def restored(copy: Path, folder: Path) -> Settings:
    """A store in an empty folder, made of a copy."""
    settings = settings_of(folder)
    folder.mkdir()
    shutil.copy(copy, path_of(settings))
    return settings


async def test_a_copy_holds_what_was_there_and_is_one_private_file(tmp_path: Path, folder: Path, clock: Clock) -> None:
    store = SqliteStore(settings_of(folder), lambda: clock.now_us)
    worker = Worker(store)
    await worker.settle(await worker.granted(daily(1000, 7)))
    to = tmp_path / "copy.sqlite"
    assert back_up(settings_of(folder), to) == to.stat().st_size
    await worker.settle(await worker.granted(daily(1000, 5)))
    await store.close()
    assert to.stat().st_mode & 0o777 == 0o600
    assert names_in(tmp_path) == ["copy.sqlite", "data"]
    again = SqliteStore(restored(to, tmp_path / "again"), lambda: clock.now_us)
    assert await levels(again, clock, daily(1000)) == [(1, 0)]
    assert [row["requests"] for row in await again.usage([])] == [1]
    await again.close()


async def test_a_copy_of_a_store_that_is_not_open(tmp_path: Path, folder: Path, clock: Clock) -> None:
    store = SqliteStore(settings_of(folder), lambda: clock.now_us)
    await Worker(store).granted()
    await store.close()
    assert back_up(settings_of(folder), tmp_path / "copy.sqlite") > 0
    assert names_in(folder) == ["gateway.sqlite"]


async def test_calls_under_way_at_the_time_are_closed_at_their_estimates(
    tmp_path: Path, folder: Path, clock: Clock
) -> None:
    store = SqliteStore(settings_of(folder), lambda: clock.now_us)
    worker = Worker(store)
    done, running = draw(daily(1000, 3)), draw(daily(1000, 4))
    await worker.draw_all([done, running])
    await worker.settle(done)
    back_up(settings_of(folder), tmp_path / "copy.sqlite")
    await store.close()

    again = SqliteStore(restored(tmp_path / "copy.sqlite", tmp_path / "again"), lambda: clock.now_us)
    assert await levels(again, clock, daily(1000)) == [(1, 4)]
    heir = Worker(again)
    await heir.listen(clock, SILENT_S + 1)
    assert (await heir.send()).lost == 1
    assert await endings(again) == ["lost", "done"]
    ((used, reserved),) = await levels(again, clock, daily(1000))
    (row,) = await again.usage([])
    assert (reserved, row["requests"], len(await again.calls(10))) == (0, 2, 2)
    assert used == row["requests"]
    await again.close()


async def test_a_journal_that_knows_more_is_delivered_to_the_restored_store(
    tmp_path: Path, folder: Path, clock: Clock
) -> None:
    """A worker that was killed behind the backup: its journal says what the copy does not have."""
    store = SqliteStore(settings_of(folder), lambda: clock.now_us)
    worker = Worker(store)
    await worker.settle(await worker.granted(daily(1000, 3)))
    back_up(settings_of(folder), tmp_path / "copy.sqlite")
    wish = await worker.granted(daily(1000, 4))
    await worker.settle(wish)
    await store.close()

    worker.store = again = SqliteStore(restored(tmp_path / "copy.sqlite", tmp_path / "again"), lambda: clock.now_us)
    with pytest.raises(StoreLostWrites) as behind:
        await worker.send()
    worker.acked, worker.number = behind.value.progress.seq, behind.value.progress.mark
    await worker.send(worker.closing(settlement(wish, 4)))
    (row,) = await again.usage([])
    assert (row["requests"], len(await again.calls(10))) == (2, 2)
    await again.close()


async def test_copies_made_while_others_write_are_whole_each_time(tmp_path: Path, folder: Path, clock: Clock) -> None:
    """Windows, sums and records are written together, so in no copy do they differ."""
    store = SqliteStore(settings_of(folder), lambda: clock.now_us)
    worker = Worker(store)
    await worker.settle(await worker.granted(daily(10**6, 1)))
    copies: list[Path] = []
    is_over = threading.Event()

    def copy_again_and_again() -> None:
        while not is_over.is_set() or len(copies) < 3:
            to = tmp_path / f"copy-{len(copies)}.sqlite"
            back_up(settings_of(folder), to)
            copies.append(to)

    copying = threading.Thread(target=copy_again_and_again)
    copying.start()
    try:
        for _ in range(20):
            wishes = [draw(daily(10**6, 1)) for _ in range(50)]
            await worker.draw_all(wishes)
            await worker.settle_all(settlement(wish, 1) for wish in wishes)
    finally:
        is_over.set()
        copying.join()
        await store.close()
    for copy in copies:
        db = sqlite3.connect(copy)
        (used,) = db.execute("SELECT used FROM windows").fetchone()
        (requests,) = db.execute("SELECT sum(requests) FROM sums").fetchone()
        (records,) = db.execute("SELECT count(*) FROM records").fetchone()
        db.close()
        assert used == requests == records
    assert len(copies) >= 3


def test_nothing_is_overwritten(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    path = path_of(settings_of(folder))
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()
    to = tmp_path / "copy.sqlite"
    to.write_text("precious")
    with pytest.raises(NotBackedUp, match="is there already; name another file"):
        back_up(settings_of(folder), to)
    assert to.read_text() == "precious"
    (tmp_path / f"other.sqlite{PART}").write_text("half")
    with pytest.raises(NotBackedUp, match="another backup is under way, or was broken off"):
        back_up(settings_of(folder), tmp_path / "other.sqlite")
    assert (tmp_path / f"other.sqlite{PART}").read_text() == "half"


def test_what_cannot_be_copied_leaves_nothing_behind(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(NotBackedUp, match="there is no "):
        back_up(settings_of(folder), tmp_path / "copy.sqlite")
    folder.mkdir()
    path_of(settings_of(folder)).write_bytes(b"This is no database, and it is long enough to be looked at. " * 100)
    with pytest.raises(NotBackedUp, match="it is no database"):
        back_up(settings_of(folder), tmp_path / "copy.sqlite")
    with pytest.raises(NotBackedUp, match="no such file or directory"):
        back_up(settings_of(folder), tmp_path / "nowhere" / "copy.sqlite")
    assert names_in(tmp_path) == ["data"]
