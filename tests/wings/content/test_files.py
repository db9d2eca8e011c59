"""Files of kept calls, with a clock that is moved: a new one each day and after so many bytes, and an end for each."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from gateway.wings.content.files import EXPIRE_EVERY_S, Files, FileWriter
from gateway.wings.content.settings import FileStore

DAY_S = 86400.0
NOON = 1795953600.0  # 2026-11-29T12:00:00Z


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def files(folder: Path, clock: Clock, **more: int) -> Files:
    return Files(FileStore(folder=str(folder), **more), clock)


def days(folder: Path) -> list[str]:
    return sorted(each.name[len("content-") :][:10] for each in folder.iterdir())


def test_each_day_and_each_so_many_bytes_begin_a_file(tmp_path: Path) -> None:
    clock = Clock()
    written = files(tmp_path / "kept", clock, max_bytes=10)
    for line in (b"four\n", b"five\n", b"six\n"):
        written.write(line)
    clock.now += DAY_S / 2 + 1
    written.write(b"next\n")
    written.write(b"longer than a file may be\n")
    written.close()
    texts = {each.name[8:18] + each.name[-11:-6]: each.read_bytes() for each in (tmp_path / "kept").iterdir()}
    assert texts == {
        "2026-11-29-0001": b"four\nfive\n", "2026-11-29-0002": b"six\n", "2026-11-30-0001": b"next\n",
        "2026-11-30-0002": b"longer than a file may be\n",
    }  # fmt: skip


def test_a_file_is_deleted_so_many_days_after_its_day(tmp_path: Path) -> None:
    clock = Clock()
    written = files(tmp_path, clock, keep_days=2)
    (tmp_path / "notes.jsonl").write_text("of somebody else")
    (tmp_path / "content-2020-01-01-of-somebody.jsonl").write_text("too")
    for _ in range(5):
        written.write(b"line\n")
        written.expire()
        clock.now += DAY_S
    written.close()
    others = {"notes.jsonl", "content-2020-01-01-of-somebody.jsonl"}
    kept = sorted(each.name[8:18] for each in tmp_path.iterdir() if each.name not in others)
    assert kept == ["2026-12-01", "2026-12-02", "2026-12-03"]
    assert all((tmp_path / each).exists() for each in others)


def test_old_files_are_looked_for_at_most_once_an_hour(tmp_path: Path) -> None:
    clock = Clock()
    written = files(tmp_path, clock, keep_days=1)
    written.expire()
    old = tmp_path / "content-2026-01-01-0123abcd-0001.jsonl"
    old.write_text("")
    written.expire()
    assert old.exists()
    clock.now += EXPIRE_EVERY_S
    written.expire()
    assert not old.exists()


def test_a_clock_that_is_years_ahead_for_an_hour_deletes_one_day(tmp_path: Path) -> None:
    clock = Clock()
    written = files(tmp_path, clock, keep_days=30)
    for _ in range(3):
        written.write(b"line\n")
        clock.now += DAY_S
    written.close()
    clock.now += 3650 * DAY_S
    for expected in (["2026-11-30", "2026-12-01"], ["2026-11-30", "2026-12-01"], ["2026-12-01"]):
        written.expire()
        assert days(tmp_path) == expected
        clock.now += EXPIRE_EVERY_S / 2


def test_a_folder_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    noted: list[tuple[int, bool]] = []
    there = threading.Event()

    def note(size: int, is_written: bool) -> None:
        noted.append((size, is_written))
        if len(noted) == 3:
            there.set()

    writer = FileWriter(files(tmp_path / "file" / "below", Clock()), note)
    with caplog.at_level(logging.ERROR, "gateway"):
        for _ in range(3):
            writer.put(b"line\n")
        assert there.wait(30)
    writer.end()
    assert noted == [(5, False)] * 3
    assert len([each for each in caplog.messages if each.startswith("content cannot be written")]) == 1


def test_a_name_that_is_no_date_ends_no_deletion(tmp_path: Path) -> None:
    """The thread that writes would end, and no content come to a file any more."""
    clock = Clock()
    for name in ("content-2026-99-99-00000000-0001.jsonl", "content-2025-02-30-00000000-0001.jsonl"):
        (tmp_path / name).touch()
    files(tmp_path, clock, keep_days=1).expire()
    assert days(tmp_path) == ["2026-99-99"]
