"""Full, broken and slow disks."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.journal import Journal, disk, segments
from gateway.journal import journal as under_test
from tests.fakes.scripted import until
from tests.patience import at_least

from .conftest import ORIGIN, JournalFolder

TEXT = '["call",[]]\t' + "x" * 700
DISK_BYTES = 256 * 1024


@contextmanager
def files_no_longer_than(size_bytes: int) -> Iterator[None]:
    """Writes beyond this size fail; a write across it is done in part."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on a file system of 256 KiB; without the right to mount, a folder with a limit checked at each write."""
    folder = tmp_path / "small"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={DISK_BYTES}".encode()) == 0:
        yield folder
        assert libc.umount2(str(folder).encode(), 2) == 0  # MNT_DETACH
        return
    pwrite = os.pwrite

    def counted(descriptor: int, data: bytes, offset: int) -> int:
        used = 0
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # housekeeping may delete it meanwhile
                used += path.stat().st_blocks * 512
        if (room := DISK_BYTES - used) <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data[:room], offset)

    monkeypatch.setattr(os, "pwrite", counted)
    yield folder


# ----------------------------------------------------------------------------------------------------------- full disk


async def test_what_did_not_fit_is_written_when_there_is_room(
    journal_folder: JournalFolder, caplog: pytest.LogCaptureFixture
) -> None:
    journal = journal_folder.create()
    journal.append("open", "a", TEXT)
    await journal.written()
    with files_no_longer_than(1800):
        for lease in "bcd":
            journal.append("open", lease, TEXT)
        with pytest.raises(OSError, match="large"):
            await journal.written()
        assert journal.is_full
        (segment,) = journal_folder.segments(journal)
        assert segment.stat().st_size == 1800, "the write did not fail half-way"
        assert journal.append("close", "a", TEXT) == 5
        with pytest.raises(OSError, match="large"):
            await journal.written()
        assert [entry.number for entry in journal.undelivered(0)] == [5]
    assert journal.is_full
    await journal.written()
    assert not journal.is_full
    assert [entry.number for entry in journal.undelivered(0)] == [5]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    adopted = await journal_folder.after_death_of(journal)
    assert adopted.damaged == 0
    assert [entry.lease for entry in adopted.open_entries()] == ["b", "c", "d"]


async def test_a_worker_killed_with_a_full_disk_leaves_complete_entries(journal_folder: JournalFolder) -> None:
    journal = journal_folder.create()
    with files_no_longer_than(1800):
        for lease in "abcd":
            journal.append("open", lease, TEXT)
        with pytest.raises(OSError, match="large"):
            await journal.written()
        adopted = None
        await journal.close()
    adopted = journal_folder.adopt()
    assert adopted is not None
    assert [entry.lease for entry in adopted.open_entries()] == []  # a failed segment is deleted
    assert journal_folder.segments(adopted) == []


async def test_it_is_tried_again_without_being_asked(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "LOOK_EVERY_S", 0.002)
    journal = journal_folder.create()
    with files_no_longer_than(100):
        journal.append("open", "a", TEXT)
        await until(lambda: journal.is_full)
    await until(lambda: not journal.is_full)
    assert len((await journal_folder.after_death_of(journal)).open_entries()) == 1


async def test_the_ends_of_running_calls_fit_on_a_full_disk(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_test, "LOOK_EVERY_S", 0.002)
    journal, running = Journal.create(small_disk, ORIGIN), 0
    while not journal.is_full:
        journal.append("open", f"call-{running}", TEXT)
        running += 1
        await journal.written()
    assert 50 < running < 400
    for number in range(50):
        journal.append("close", f"call-{number}", TEXT)
        await journal.written()
    assert journal.is_full
    await at_least(0.05)
    assert journal.is_full, "there is no room for a new reserve"
    assert not [record for record in caplog.records if "cannot be written" in record.getMessage()]
    await journal.close()
    adopted = Journal.adopt(small_disk, ORIGIN)
    assert adopted is not None
    assert len(adopted.open_entries()) == running - 50
    assert len(list(adopted.undelivered(0))) == 50
    await adopted.remove()


async def test_when_there_is_room_again_new_calls_may_begin(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_test, "LOOK_EVERY_S", 0.002)
    journal, running = Journal.create(small_disk, ORIGIN), 0
    other = small_disk / "other"
    other.write_bytes(bytes(100_000))
    while not journal.is_full:
        journal.append("open", f"call-{running}", TEXT)
        running += 1
        await journal.written()
    other.unlink()
    await until(lambda: not journal.is_full)
    assert (small_disk / journal.name / "reserve").stat().st_size == disk.RESERVE_BYTES
    assert "has room again" in caplog.text
    await journal.remove()


async def test_a_disk_without_room_for_a_reserve_is_said_at_once(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(DISK_BYTES - disk.RESERVE_BYTES // 2))
    # Without a mounted disk only the length of the file shows that the disk is full.
    with files_no_longer_than(disk.RESERVE_BYTES - 1), pytest.raises(OSError, match=r"space|large"):
        Journal.create(small_disk, ORIGIN)
    assert Journal.adopt(small_disk, ORIGIN) is None


async def test_a_segment_grows_where_no_new_one_can_be_begun(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.journal.segments.SEGMENT_BYTES", 3000)
    journal = journal_folder.create()
    journal.append("open", "long", TEXT)
    await journal.written()
    blocker = journal_folder.segments(journal)[0].with_name("000002")
    blocker.mkdir()
    for number in range(20):
        journal.append("close", f"call-{number}", TEXT)
        await journal.written()
    assert not journal.is_full
    assert 1 <= caplog.text.count("the old one grows") < 5
    blocker.rmdir()
    while len(journal_folder.segments(journal)) < 2:
        number += 1
        assert number < 100
        journal.append("close", f"call-{number}", TEXT)
        await journal.written()
    adopted = await journal_folder.after_death_of(journal)
    assert len(list(adopted.undelivered(0))) == number + 1
    assert [entry.lease for entry in adopted.open_entries()] == ["long"]


# ----------------------------------------------------------------------------------------------------------- slow disk


class SlowDisk:
    """Each write advances the disk's clock, and is recorded with its thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.takes_s = 2 * disk.SLOW_S
        self.threads: list[threading.Thread] = []
        self._now = 0.0
        self._pwrite = os.pwrite
        for module in (disk, segments):
            patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self._now))
        patch.setattr(os, "pwrite", self._write)

    def _write(self, descriptor: int, data: bytes, offset: int) -> int:
        self.threads.append(threading.current_thread())
        self._now += self.takes_s
        time.sleep(0.002)
        return self._pwrite(descriptor, data, offset)

    @property
    def are_in_loop(self) -> list[bool]:
        return [thread is threading.main_thread() for thread in self.threads]


def slowed(journal: Journal) -> Journal:
    """A journal with two slow writes a moment ago."""
    for _ in range(2):
        journal._pace.note(2 * disk.SLOW_S, time.monotonic())
    assert journal._pace.is_slow
    return journal


async def test_a_slow_disk_is_written_by_a_thread(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal, slow = journal_folder.create(), SlowDisk(monkeypatch)
    numbers = []
    for number in range(5):
        numbers.append(journal.append("close", f"call-{number}", TEXT))
        await journal.written()
        (segment,) = journal_folder.segments(journal)
        assert segment.read_bytes().count(b"\n") == number + 1
    assert slow.are_in_loop == [True, True, False, False, False]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    monkeypatch.setattr(disk, "CALM_S", 0)
    slow.takes_s = 0
    for number in range(5, 8):
        numbers.append(journal.append("close", f"call-{number}", TEXT))
        await journal.written()
    assert slow.are_in_loop[5:] == [False, True, True]
    assert [entry.number for entry in (await journal_folder.after_death_of(journal)).undelivered(0)] == numbers


async def test_order_is_kept_by_a_thread_and_one_write_is_made_at_a_time(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.journal.segments.SEGMENT_BYTES", 10_000)
    journal, slow = slowed(journal_folder.create()), SlowDisk(monkeypatch)

    async def call(number: int) -> None:
        for turn in range(5):
            journal.append("open", f"call-{number}-{turn}", TEXT)
            await journal.written()
            last = journal.append("close", f"call-{number}-{turn}", TEXT)
            assert last in [entry.number for entry in journal.undelivered(0)]
            await asyncio.sleep(0)

    await asyncio.gather(*[call(number) for number in range(30)])
    assert not any(slow.are_in_loop)
    assert len(slow.threads) < 60, "what is gathered while one write is made goes with the next"
    adopted = await journal_folder.after_death_of(journal)
    assert (adopted.last, adopted.open_entries(), adopted.damaged) == (300, [], 0)
    found = [entry.number for entry in adopted.undelivered(0)]
    assert found == sorted(found)
    assert len(found) == 150


async def test_who_waits_for_a_slow_disk_may_leave(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, slow = slowed(journal_folder.create()), SlowDisk(monkeypatch)
    journal.append("open", "a", TEXT)
    waiting = asyncio.ensure_future(journal.written())
    await asyncio.sleep(0)
    waiting.cancel()
    journal.append("open", "b", TEXT)
    await journal.written()
    assert slow.are_in_loop == [False, False]
    assert len((await journal_folder.after_death_of(journal)).open_entries()) == 2


async def test_a_slow_disk_that_is_full_says_so_to_all_who_wait(
    journal_folder: JournalFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = slowed(journal_folder.create())
    caplog.set_level(logging.ERROR)
    with files_no_longer_than(100):
        journal.append("open", "a", TEXT)
        waiting = await asyncio.gather(journal.written(), journal.written(), return_exceptions=True)
    assert [type(error) for error in waiting] == [OSError, OSError]
    assert journal.is_full
    await journal.written()
    assert not journal.is_full


def test_one_slow_write_is_no_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SLOW_S", 0.02)
    watch = disk.SlowDisk()
    times = [(0.0, 0.1, False), (61.0, 0.1, False), (121.0, 0.1, True), (150.0, 0.0, True), (181.0, 0.0, True)]
    for now, took_s, is_slow in [*times, (182.0, 0.0, False), (183.0, 0.1, False), (184.0, 0.0, False)]:
        watch.note(took_s, now)
        assert watch.is_slow is is_slow, now
