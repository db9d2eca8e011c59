"""Any life of a journal, against a list."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.journal import Journal, JournalEntry
from tests.amounts import amount

ORIGIN = "redis://store:6379 gateway"

Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["open", "open", "close", "close", "void", "turn", "written", "deliver", "tidy", "die", "read"]
        ),
        st.integers(0, 1000),
    ),
    max_size=60,
)


class Life:
    """A journal and what it should hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal.create(folder, ORIGIN)
        self.entries: list[JournalEntry] = []
        self.mark = 0
        self.may_be_gone = 0
        """Nothing above this was delivered when old segments were deleted."""
        self.leases = 0

    @property
    def open(self) -> list[JournalEntry]:
        ended = {entry.lease for entry in self.entries if entry.kind != "open"}
        return [entry for entry in self.entries if entry.kind == "open" and entry.lease not in ended]

    @property
    def ends(self) -> list[JournalEntry]:
        return [entry for entry in self.entries if entry.kind != "open"]

    async def do(self, what: str, amount: int) -> None:
        match what:
            case "open":
                self.leases += 1
                self._append("open", f"call-{self.leases}", "x" * amount)
            case "close" | "void" if self.open:
                self._append(what, self.open[amount % len(self.open)].lease, "" if what == "void" else "y" * amount)
            case "turn":
                await asyncio.sleep(0)
            case "written":
                await self.journal.written()
            case "deliver" if self.ends:
                self.mark = self.ends[amount % len(self.ends)].number  # perhaps lower than before
                self.journal.delivered(self.mark)
            case "tidy":
                self.may_be_gone = max(self.may_be_gone, self.mark)
                await self.journal._tidy()
            case "die":
                await self._die(amount)
        self.check(amount)

    def _append(self, kind: str, lease: str, text: str) -> None:
        number = self.journal.append(kind, lease, text)  # type: ignore[arg-type]
        self.entries.append(JournalEntry(number, kind, lease, text))  # type: ignore[arg-type]

    async def _die(self, amount: int) -> None:
        """What was not written is lost; perhaps half an entry is left where the last write was going on."""
        dead, unwritten = self.journal, self.journal._gathered[:]
        dead._is_closed = True
        await dead._tasks.cancel_all()
        if unwritten and amount % 2 and (segment := dead._segments._current) is not None:
            with segment.path.open("ab") as file:
                file.write(unwritten[0][: amount % (len(unwritten[0]) - 1)])
        await asyncio.to_thread(dead._threads.shutdown)
        dead._segments.shut()
        dead._directory.leave()
        self.entries = self.entries[: len(self.entries) - len(unwritten)]
        adopted = Journal.adopt(self.folder, ORIGIN)
        assert adopted is not None
        assert adopted.damaged == 0
        self.journal = adopted
        adopted.skip_to(max(self.mark, self.entries[-1].number if self.entries else 0))
        adopted.delivered(self.mark)

    def check(self, amount: int) -> None:
        assert self.journal.open_entries() == self.open
        ends, gone = self.ends, self.may_be_gone
        after = max(gone, ends[amount % len(ends)].number if ends else 0)
        assert list(self.journal.undelivered(after)) == [entry for entry in ends if entry.number > after]
        kept = list(self.journal.undelivered(0))
        assert [entry for entry in kept if entry.number > gone] == [entry for entry in ends if entry.number > gone]
        assert [entry for entry in kept if entry not in ends] == []


async def live(folder: Path, life_steps: list[Step]) -> None:
    life = Life(folder)
    try:
        for what, amount in [*life_steps, ("written", 0), ("die", 0)]:
            await life.do(what, amount)
    finally:
        await life.journal.remove()
    assert Journal.adopt(folder, ORIGIN) is None


@pytest.mark.shortened
@given(steps)
@settings(deadline=None, max_examples=amount(100, 25))
def test_any_life_of_a_journal_is_that_of_a_list(life_steps: list[Step]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("os.fsync"),  # which take their time, and only matter for power cuts
        patch("os.fdatasync"),
        patch("gateway.journal.journal.KEPT_S", 0),
        patch("gateway.journal.journal.LOOK_EVERY_S", 60),
        patch("gateway.journal.segments.SEGMENT_BYTES", 1500),
        patch("gateway.journal.segments.SMALL_BYTES", 600),
        patch("gateway.journal.segments.OFFSET_EVERY_BYTES", 300),
    ):
        asyncio.run(live(Path(folder), life_steps))
