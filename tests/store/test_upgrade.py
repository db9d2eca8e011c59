"""A file that gateway 0.1.0 wrote (four calls, and one that ran when it was killed), opened by this gateway."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.config import StoreSettings
from gateway.quota.ledger_entry import SUMS
from gateway.store import StoreMisconfigured
from gateway.store.sqlite.database import create, path_of
from gateway.store.sqlite.folder import exclusive_folder

WRITTEN = Path(__file__).parent / "gateway-0.1.0.sql"
"""`sqlite3 FILE .dump` of the file, which the released code wrote."""

PLAIN = ("alice", "crew", "gpt-3.5-turbo-instruct", "main", "completions")
STREAM = ("alice", "crew", "gpt-4o-mini", "main", "chat")
OF_BOB = ("bob", "", "gpt-3.5-turbo-instruct", "main", "completions")
LOST = ("alice", "crew", "quiet", "silent", "completions")


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    found = StoreSettings(url=f"embedded:{tmp_path}")
    with closing(sqlite3.connect(path_of(found))) as db:
        db.executescript(WRITTEN.read_text())
    return found


def test_nothing_of_the_file_is_lost(settings: StoreSettings) -> None:
    with exclusive_folder(settings), closing(create(settings)) as db:
        records = db.execute(
            "SELECT key, team, model, upstream, endpoint, stream, prompt_tokens, completion_tokens, usage_source, "
            "ended, client_request_id, cost_nusd, tags FROM records ORDER BY seq"
        ).fetchall()
        plain = ("gpt-3.5-turbo-instruct", "main", "completions", 0, 1, 20, "reported", "done", None, None, "")
        assert records == [
            ("alice", "crew", *plain),
            ("alice", "crew", *plain),
            ("bob", None, *plain),
            ("alice", "crew", "gpt-4o-mini", "main", "chat", 1, 2, 28, "reported", "done", "mine", None, ""),
            ("alice", "crew", "quiet", "silent", "completions", 0, 2, 50, "estimated", "lost", None, None, ""),
        ]
        sums = {
            PLAIN: (2, 0, 2, 40, 0, 0, 0, 0, 2),
            STREAM: (1, 0, 2, 28, 0, 0, 0, 0, 1),
            OF_BOB: (1, 0, 1, 20, 0, 0, 0, 0, 1),
            LOST: (1, 0, 2, 50, 0, 0, 52, 0, 1),
        }
        for table, period in (("sums", "2026-11-24"), ("hours", "2026-11-24T03")):
            found = db.execute(f"SELECT * FROM {table}").fetchall()
            assert {row[1:6]: row[6 : 6 + len(SUMS)] for row in found} == sums
            assert {row[0] for row in found} == {period}
        windows = {name: rest for name, *rest in db.execute("SELECT id, starts, used, reserved FROM windows")}
        assert windows == {
            "key:alice|parallel|||": ["", 0, 0],
            "key:alice|requests|day||2026-11-24": ["2026-11-24", 4, 0],
            "key:alice|requests|minute||": ["", 4, 0],
            "key:bob|tokens|day||2026-11-24": ["2026-11-24", 21, 0],
            "team:crew|tokens|month||2026-11": ["2026-11", 124, 0],
        }
        assert db.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_the_upgraded_file_has_the_tables_of_a_new_one(settings: StoreSettings, tmp_path: Path) -> None:
    def shape(of: StoreSettings) -> set[tuple[str, str, str]]:
        with exclusive_folder(of), closing(create(of)) as db:
            return set(db.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))

    assert shape(settings) == shape(StoreSettings(url=f"embedded:{tmp_path / 'new'}"))


def test_a_file_that_cannot_be_upgraded_stays_as_it_was(settings: StoreSettings) -> None:
    with closing(sqlite3.connect(path_of(settings), isolation_level=None)) as db:
        db.execute("UPDATE records SET record = 'no JSON' WHERE seq = 3")
        before = list(db.iterdump())
        with (
            pytest.raises(StoreMisconfigured, match=r"0\.1\.0 cannot be upgraded: .*malformed JSON"),
            exclusive_folder(settings),
        ):
            pytest.fail("it was opened")
        assert list(db.iterdump()) == before


def test_what_does_not_hold_the_folder_does_not_upgrade(settings: StoreSettings) -> None:
    with pytest.raises(StoreMisconfigured, match=r"an older gateway .* `gateway serve` upgrades it"):
        create(settings)
