"""A journal in good times: what is written, numbered, read back and deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.journal import Journal, JournalEntry, disk, segments
from gateway.journal import journal as under_test
from tests.fakes.scripted import until

from .conftest import JournalFolder

TEXT = '["call",[]]\t' + "x" * 700


def ends(journal: Journal, after: int = 0) -> list[int]:
    return [entry.number for entry in journal.undelivered(after)]


def open_segments(folder: Path) -> list[str]:
    """The segments of a journal that this process has open, deleted ones too."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(f"{folder}/") and re.search(r"/\d{6}(?: \(deleted\))?$", path)]


# ------------------------------------------------------------------------------------------------- writing and reading


async def test_entries_are_numbered_and_read_back_by_the_next(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    assert [journal.append("open", "a", "1"), journal.append("open", "b", "2"), journal.append("open", "c", "3")] == [
        1, 2, 3
    ]  # fmt: skip
    assert [journal.append("close", "b", "4"), journal.append("void", "c")] == [4, 5]
    assert journal.open_entries() == [JournalEntry(1, "open", "a", "1")]
    adopted = await journal_folder.after_death_of(journal)
    assert adopted.last == 5
    assert adopted.open_entries() == [JournalEntry(1, "open", "a", "1")]
    assert list(adopted.undelivered(0)) == [JournalEntry(4, "close", "b", "4"), JournalEntry(5, "void", "c", "")]
    assert ends(adopted, 4) == [5]
    assert adopted.append("close", "a", "6") == 6
    assert ends(adopted, 4) == [5, 6]


async def test_a_turn_of_the_loop_is_one_write(journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, writes = journal_folder.create(), []
    perform = disk.perform
    monkeypatch.setattr(disk, "perform", lambda plan: (writes.append(plan.line_count), perform(plan))[1])
    for number in range(50):
        journal.append("open", f"call-{number}", TEXT)
    await asyncio.sleep(0)
    assert writes == [50]
    await journal.written()
    assert writes == [50]


async def test_written_is_in_the_file_without_a_turn_of_the_loop(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    journal.append("open", "a", TEXT)
    with pytest.raises(StopIteration):
        journal.written().send(None)
    (segment,) = journal_folder.segments(journal)
    assert segment.read_bytes().endswith(b" 1 open a " + TEXT.encode() + b"\n")


async def test_what_is_no_line_takes_no_number(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    with pytest.raises(ValueError, match="one line"):
        journal.append("open", "a", "two\nlines")
    assert journal.append("open", "a", "one") == 1


async def test_numbers_go_on_above_what_the_store_has_seen(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    journal.append("open", "a", TEXT)
    journal.skip_to(41)
    journal.skip_to(7)
    assert journal.append("close", "a", TEXT) == 42
    await journal.written()
    assert ends(await journal_folder.after_death_of(journal)) == [42]


async def test_entries_appended_while_others_are_read_are_found(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    journal.append("close", "a", TEXT)
    journal.append("close", "b", TEXT)  # these two are not in a file yet
    reading = journal.undelivered(0)
    assert next(reading).number == 1
    await journal.written()
    journal.append("close", "c", TEXT)
    await journal.written()
    journal.append("close", "d", TEXT)
    assert [entry.number for entry in reading] == [2, 3, 4]


async def test_reading_goes_on_over_the_end_of_a_segment(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 3000)
    monkeypatch.setattr(segments, "OFFSET_EVERY_BYTES", 1000)
    journal, numbers = journal_folder.create(), []
    for number in range(40):
        journal.append("open", f"call-{number}", TEXT)
        numbers.append(journal.append("close", f"call-{number}", TEXT))
        await journal.written()
    assert len(journal_folder.segments(journal)) > 10
    for after in range(81):
        assert ends(journal, after) == [number for number in numbers if number > after]
    reading = journal.undelivered(0)
    some = [next(reading).number for _ in range(7)]
    for number in range(40, 60):
        numbers.append(journal.append("close", f"call-{number}", TEXT))
        await journal.written()
    assert [*some, *(entry.number for entry in reading)] == numbers
    assert ends(await journal_folder.after_death_of(journal)) == numbers


# ------------------------------------------------------------------------------------------------------------- keeping


@pytest.mark.usefixtures("short_times")
async def test_what_was_delivered_goes_and_what_is_open_stays(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)
    journal = journal_folder.create()
    first = [journal.append("open", f"long-{number}", TEXT) for number in range(5)]
    for number in range(300):
        journal.append("open", f"call-{number}", TEXT)
        last = journal.append("close", f"call-{number}", TEXT)
        await journal.written()
        if number % 20 == 0:
            journal.delivered(last)
    assert len(journal_folder.segments(journal)) > 1
    journal.delivered(last)
    await until(lambda: len(journal_folder.segments(journal)) == 1)
    adopted = await journal_folder.after_death_of(journal)
    assert [entry.number for entry in adopted.open_entries()] == first
    assert adopted.last >= first[-1]


@pytest.mark.usefixtures("short_times")
async def test_what_was_not_delivered_stays(journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 5_000)
    journal = journal_folder.create()
    numbers = []
    for number in range(100):
        numbers.append(journal.append("close", f"call-{number}", TEXT))
        await journal.written()
    before = len(journal_folder.segments(journal))
    journal.delivered(50)
    await until(lambda: len(journal_folder.segments(journal)) < before)
    assert set(numbers[50:]) <= set(ends(journal))
    assert 50 not in ends(journal, 50)


async def test_what_was_delivered_stays_for_a_while(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And longer, where the store has forgotten it meanwhile."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 5_000)
    monkeypatch.setattr(under_test, "LOOK_EVERY_S", 0.002)
    journal, now = journal_folder.create(), 1000.0
    monkeypatch.setattr(segments, "time", SimpleNamespace(monotonic=lambda: now))
    for number in range(50):
        last = journal.append("close", f"call-{number}", TEXT)
        await journal.written()
    journal.delivered(last)
    now += under_test.KEPT_S - 1
    await journal._tidy()
    assert ends(journal) == list(range(1, last + 1))
    journal.delivered(10)
    now += 2
    await journal._tidy()
    assert set(ends(journal)) >= set(range(11, last + 1))
    journal.delivered(last)
    now += 1
    await journal._tidy()
    assert set(ends(journal)) >= set(range(11, last + 1))
    now += under_test.KEPT_S
    await journal._tidy()
    assert len(journal_folder.segments(journal)) == 1


async def test_an_end_is_kept_from_its_own_delivery_on(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from that of an older one in the same segment."""
    monkeypatch.setattr(segments, "SMALL_BYTES", 10)
    journal, now = journal_folder.create(), 1000.0
    monkeypatch.setattr(segments, "time", SimpleNamespace(monotonic=lambda: now))
    for number in range(2):
        last = journal.append("close", f"call-{number}", TEXT)
        await journal.written()
        journal.delivered(last)
        await journal._tidy()
        now += under_test.KEPT_S - 1
    await journal._tidy()
    assert last in ends(journal)
    now += 2
    await journal._tidy()
    assert last not in ends(journal)


@pytest.mark.usefixtures("short_times")
async def test_an_idle_journal_shrinks(journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SMALL_BYTES", 10_000)
    journal = journal_folder.create()
    journal.append("open", "long", TEXT)
    for number in range(100):
        last = journal.append("close", f"call-{number}", TEXT)
    await journal.written()
    await journal._tidy()  # so that all of it is synced
    journal.delivered(last)
    await until(lambda: journal_folder.bytes_of(journal) < 1000)
    await until(lambda: len(journal_folder.segments(journal)) == 1)
    kept = [str(path) for path in journal_folder.segments(journal)]
    assert open_segments(journal_folder.folder / journal.name) == kept, "a deleted segment is still open"
    (entry,) = (await journal_folder.after_death_of(journal)).open_entries()
    assert (entry.number, entry.lease) == (1, "long")


async def test_more_open_entries_than_a_segment_holds_do_not_make_it_begin_ever_anew(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 5_000)
    journal = journal_folder.create()
    for number in range(200):
        journal.append("open", f"call-{number}", TEXT)
        await journal.written()
    assert len(journal_folder.segments(journal)) < 10
    assert len((await journal_folder.after_death_of(journal)).open_entries()) == 200


@pytest.mark.rest
@pytest.mark.usefixtures("short_times")
async def test_memory_does_not_grow_with_entries(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2**20)
    journal = journal_folder.create()

    async def live(calls: int) -> None:
        for number in range(calls):
            journal.append("open", f"call-{number}", TEXT)
            journal.append("close", f"call-{number}", TEXT)
            if number % 50 == 49:
                await asyncio.sleep(0)

    await live(500)
    tracemalloc.start()
    try:
        await live(10_000)
        await asyncio.sleep(0)
        kept, _ = tracemalloc.get_traced_memory()
        assert kept < 200_000  # of 15 MB
        tracemalloc.reset_peak()
        assert sum(1 for _ in journal.undelivered(0)) == 10_500
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 2_000_000
    finally:
        tracemalloc.stop()


# ----------------------------------------------------------------------------------------------------------------- end


async def test_a_removed_journal_leaves_nothing(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    journal.append("close", "a", TEXT)
    await journal.remove()
    assert list(journal_folder.folder.iterdir()) == []
    assert journal_folder.adopt() is None
    await journal.close()


async def test_a_journal_whose_folder_was_deleted_can_be_removed(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    journal.append("close", "a", TEXT)
    await journal.written()
    (journal_folder.folder / journal.name).rename(journal_folder.folder.parent / "elsewhere")
    await journal.remove()
    assert list(journal_folder.folder.iterdir()) == []


async def test_nothing_is_appended_to_a_closed_journal(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    journal.append("open", "a", TEXT)
    await journal.close()
    await journal.close()
    with pytest.raises(RuntimeError, match="closed"):
        journal.append("close", "a", TEXT)


async def test_what_was_appended_before_the_end_is_synced(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, synced = journal_folder.create(), []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), sync(fd))[1])
    journal.append("open", "a", TEXT)
    await journal.close()
    assert len(synced) == 1


async def test_a_sync_that_fails_is_said_once_and_made_again(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_test, "LOOK_EVERY_S", 0.002)
    journal, tries = journal_folder.create(), 0

    def fail(_: int) -> None:
        nonlocal tries
        tries += 1
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(os, "fdatasync", fail)
        journal.append("open", "a", TEXT)
        await until(lambda: tries >= 3)
    assert len(caplog.records) == 1
    assert "power cut" in caplog.text
    await until(lambda: not journal._has_sync_failed)


async def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Journal.create(tmp_path / "file", "origin")
