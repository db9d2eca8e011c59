"""Who may have a dead worker's journal, and what happens to what is no journal."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from gateway.journal import Journal, directory

from .conftest import ORIGIN, JournalFolder

TEXT = '["call",[]]\t' + "x" * 700


async def left(journal_folder: JournalFolder, origin: str = ORIGIN, leases: str = "a") -> Journal:
    """A journal whose worker is gone."""
    journal = journal_folder.create(origin)
    for lease in leases:
        journal.append("open", lease, TEXT)
    await journal.close()
    return journal


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    directory.warn_unused.cache_clear()


async def test_the_living_keep_their_journals(journal_folder: JournalFolder) -> None:
    for _ in range(3):
        journal_folder.create()
    assert journal_folder.adopt() is None


async def test_each_journal_is_adopted_once(journal_folder: JournalFolder) -> None:
    names = {(await left(journal_folder)).name for _ in range(3)}
    adopted = [journal_folder.adopt() for _ in range(4)]
    assert {journal.name for journal in adopted if journal} == names
    assert adopted[3] is None


async def test_many_who_look_at_once_find_it_once(journal_folder: JournalFolder) -> None:
    for _ in range(20):
        await left(journal_folder)
    found = await asyncio.gather(*[asyncio.to_thread(Journal.adopt, journal_folder.folder, ORIGIN) for _ in range(60)])
    journals = [journal for journal in found if journal]
    for journal in journals:
        await journal.close()
    names = [journal.name for journal in journals]
    assert len(names) == len(set(names)) <= 20
    assert len(names) > 0


async def test_a_folder_that_does_not_exist_holds_no_journal(journal_folder: JournalFolder) -> None:
    assert journal_folder.adopt() is None


async def test_journals_that_vanish_while_others_look_are_no_error(journal_folder: JournalFolder) -> None:
    async def come_and_go() -> None:
        for _ in range(20):
            journal = Journal.create(journal_folder.folder, ORIGIN)
            journal.append("open", "a", TEXT)
            await journal.remove()

    async def look() -> None:
        for _ in range(50):
            journal = await asyncio.to_thread(Journal.adopt, journal_folder.folder, ORIGIN)
            assert journal is None, "a journal was found in the moment of its birth or death"

    await asyncio.gather(come_and_go(), come_and_go(), look(), look())
    assert journal_folder.adopt() is None


async def test_journals_of_another_ledger_are_not_touched_and_logged_once(
    journal_folder: JournalFolder, caplog: pytest.LogCaptureFixture
) -> None:
    other = await left(journal_folder, "elsewhere")
    ours = await left(journal_folder)
    for _ in range(3):
        if (journal := journal_folder.adopt()) is not None:
            assert journal.name == ours.name
    assert [record.getMessage() for record in caplog.records] == [
        f"the journal {journal_folder.folder / other.name} is not used: it belongs to another ledger, elsewhere"
    ]
    assert (journal := journal_folder.adopt("elsewhere")) is not None
    assert journal.name == other.name


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (json.dumps({"schema": directory.SCHEMA + 1, "origin": ORIGIN}), "a newer gateway wrote it (schema 2)"),
        ("", "the first line of its lock file was not written by a gateway"),
        ("[]", "the first line of its lock file was not written by a gateway"),
        ("{}", "the first line of its lock file was not written by a gateway"),
        ("\0" * 40, "the first line of its lock file was not written by a gateway"),
    ],
)
async def test_unknown_files_are_not_touched(
    journal_folder: JournalFolder, caplog: pytest.LogCaptureFixture, head: str, reason: str
) -> None:
    journal = await left(journal_folder)
    (journal_folder.folder / journal.name / "lock").write_text(head)
    assert journal_folder.adopt() is None
    assert journal_folder.adopt() is None
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [reason]
    assert len(journal_folder.segments(journal)) == 1


async def test_a_journal_that_cannot_be_read_does_not_hide_the_others(
    journal_folder: JournalFolder, caplog: pytest.LogCaptureFixture
) -> None:
    journals = [await left(journal_folder) for _ in range(3)]
    (journal_folder.folder / journals[0].name / "000002").mkdir()
    (journal_folder.folder / journals[1].name / "lock").unlink()
    assert (adopted := journal_folder.adopt()) is not None
    assert journal_folder.adopt() is None
    assert adopted.name == journals[2].name
    assert "Is a directory" in caplog.text


async def test_what_is_half_made_or_half_unmade_is_swept_away(journal_folder: JournalFolder) -> None:
    dead = journal_folder.folder / ("0" * 32 + ".new")
    young = journal_folder.folder / ("1" * 32 + ".new")
    gone = journal_folder.folder / ("2" * 32 + ".gone")
    strange = journal_folder.folder / "notes.gone"
    for path in (dead, young, gone, strange):
        path.mkdir(parents=True)
        (path / "lock").touch()
    long_ago = time.time() - directory.STALE_S - 1
    os.utime(dead, (long_ago, long_ago))
    assert journal_folder.adopt() is None
    assert {path.name for path in journal_folder.folder.iterdir()} == {young.name, strange.name}


async def test_adopting_again_and_again_adds_no_files(journal_folder: JournalFolder) -> None:
    """While the store is away it is tried every few seconds."""
    journal = await left(journal_folder)
    for _ in range(5):
        adopted = journal_folder.adopt()
        assert adopted is not None
        for entry in adopted.open_entries():
            adopted.append("close", entry.lease, entry.text)
        await adopted.close()
    assert len(journal_folder.segments(journal)) == 2


async def test_what_an_adopter_does_not_close_stays_open(journal_folder: JournalFolder) -> None:
    journal = await left(journal_folder, leases="abc")
    for lease in "abc":
        adopted = journal_folder.adopt()
        assert adopted is not None
        adopted.delivered(adopted.append("void", lease))
        await adopted.close()
    adopted = journal_folder.adopt()
    assert adopted is not None
    assert adopted.open_entries() == []
    assert [entry.number for entry in adopted.undelivered(0)] == [4, 5, 6]
    assert len(journal_folder.segments(journal)) == 4


@pytest.mark.usefixtures("short_times")
async def test_what_is_open_outlives_an_adopter_who_writes_nothing(journal_folder: JournalFolder) -> None:
    journal = await left(journal_folder, leases="abc")
    adopted = journal_folder.adopt()
    assert adopted is not None
    adopted.delivered(adopted.last)
    await adopted._tidy()
    await adopted.close()
    assert (again := journal_folder.adopt()) is not None
    assert again.name == journal.name
    assert [entry.lease for entry in again.open_entries()] == ["a", "b", "c"]


async def test_a_carried_entry_does_not_open_a_lease_that_was_closed(journal_folder: JournalFolder) -> None:
    """A segment that was begun and could be neither finished nor deleted repeats what was true at that time."""
    journal = await left(journal_folder)
    adopted = journal_folder.adopt()
    assert adopted is not None
    first = journal_folder.segments(journal)[0]
    adopted.append("close", "a", TEXT)
    await adopted.close()
    shutil.copy(first, first.with_name("000003"))
    again = journal_folder.adopt()
    assert again is not None
    assert again.open_entries() == []
    assert [entry.number for entry in again.undelivered(0)] == [2]


async def test_a_torn_end_is_left_out(journal_folder: JournalFolder, caplog: pytest.LogCaptureFixture) -> None:
    journal = await left(journal_folder, leases="ab")
    (segment,) = journal_folder.segments(journal)
    segment.write_bytes(segment.read_bytes()[:-100])
    adopted = journal_folder.adopt()
    assert adopted is not None
    assert [entry.lease for entry in adopted.open_entries()] == ["a"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert adopted.append("close", "a", TEXT) == 2
    again = await journal_folder.after_death_of(adopted)
    assert again.open_entries() == []


async def test_damage_is_counted_and_costs_no_more_than_it_must(
    journal_folder: JournalFolder, caplog: pytest.LogCaptureFixture
) -> None:
    journal = await left(journal_folder, leases="abcde")
    (segment,) = journal_folder.segments(journal)
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([lines[0], lines[1][:300] + b"?" + lines[1][301:], lines[2], b"\n", *lines[3:]]))
    adopted = journal_folder.adopt()
    assert adopted is not None
    assert [entry.lease for entry in adopted.open_entries()] == ["a", "c", "d", "e"]
    assert adopted.damaged == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "2 lines" in caplog.text


async def test_a_lock_released_during_an_adoption_is_no_journal(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last holder removes it between our opening the lock's file and our locking it."""
    journal = await left(journal_folder)
    folder: Path = journal_folder.folder / journal.name
    flock = fcntl.flock

    def flock_late(descriptor: int, how: int) -> None:
        shutil.rmtree(folder)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    assert journal_folder.adopt() is None
    assert not caplog.records
