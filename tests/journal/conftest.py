"""Journals on a real disk, closed at the end of a test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.journal import Journal, disk
from gateway.journal import journal as under_test

ORIGIN = "redis://store:6379 gateway"


class JournalFolder:
    """A folder of journals; closes every journal that it made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: list[Journal] = []

    def create(self, origin: str = ORIGIN) -> Journal:
        self._made.append(Journal.create(self.folder, origin))
        return self._made[-1]

    def adopt(self, origin: str = ORIGIN) -> Journal | None:
        if (journal := Journal.adopt(self.folder, origin)) is not None:
            self._made.append(journal)
        return journal

    async def after_death_of(self, journal: Journal) -> Journal:
        """The journal, adopted after its owner was killed."""
        await journal.close()
        adopted = self.adopt()
        assert adopted is not None
        assert adopted.name == journal.name
        return adopted

    def segments(self, journal: Journal) -> list[Path]:
        return sorted(path for path in (self.folder / journal.name).iterdir() if path.name.isdecimal())

    def bytes_of(self, journal: Journal) -> int:
        """Bytes on the disk; a segment may be deleted meanwhile."""
        size = 0
        for path in self.segments(journal):
            with contextlib.suppress(FileNotFoundError):
                size += path.stat().st_size
        return size

    async def clear(self) -> None:
        for journal in self._made:
            await journal.close()


@pytest.fixture
async def journal_folder(tmp_path: Path) -> AsyncIterator[JournalFolder]:
    made = JournalFolder(tmp_path / "journal")
    yield made
    await made.clear()


@pytest.fixture(autouse=True)
def no_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's disk may be slow; tests of slow disks simulate one."""
    monkeypatch.setattr(disk, "SLOW_S", 600)


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """No retention, and continuous housekeeping."""
    monkeypatch.setattr(under_test, "KEPT_S", 0)
    monkeypatch.setattr(under_test, "LOOK_EVERY_S", 0.002)
