"""The segments of a journal: which is written, which are to be synced or deleted, and their entries.

It has no event loop, and blocks for reads and for the write of `append`. The caller writes and deletes the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .codec import JournalEntry, Position, encode, read
from .disk import Segment, WritePlan, WriteResult, found

SEGMENT_BYTES = 16 * 2**20
"""A segment that has become as long as this is the last but one. More where the open entries alone are longer."""

SMALL_BYTES = 256 * 1024
"""An idle journal shrinks to less than this."""

OFFSET_EVERY_BYTES = 2**20


class Cursor:
    """How far the ends in the segments have been read."""

    def __init__(self, after: int) -> None:
        self.after = after
        """The number of the last end that was found; only higher ones are looked for."""
        self.index = 0
        self.place: Position | None = None
        """Where in it; None before it was begun."""


class Segments:
    """The segments of one journal, and the entries of the leases that are open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments: list[Segment] = []
        self._current: Segment | None = None
        """The one that is written; those that were found are not, for they may end anyhow."""
        self._unsynced: list[Segment] = []
        self._mark = 0
        self.open: dict[str, bytes] = {}
        """The lines of the leases that are open, oldest first; also those that are not written yet."""

    # ------------------------------------------------------------------------------------------------------ writing

    def append(self, lines: list[bytes], last: int) -> float | None:
        """Write these to the segment that is written, as long as it stays the same: what is done with nearly every
        write, in one step. Returns how many seconds it took; None where not all of them are written: a plan for them
        writes them at the same place, and its result has the error. `last` as in `WritePlan`."""
        blob, target = b"".join(lines), self._current
        size_bytes = len(blob)
        if target is None or target.fresh_bytes + size_bytes >= SEGMENT_BYTES:
            return None
        began = time.monotonic()
        try:
            if os.pwrite(target.descriptor, blob, target.size_bytes) != size_bytes:
                return None
        except OSError:
            return None
        took_s = time.monotonic() - began
        self._note_growth(target, size_bytes, last)
        return took_s

    def plan(self, lines: list[bytes], number: int, last: int) -> WritePlan:
        """How to write these; `number` and `last` as in `WritePlan`. `open` is the state after them."""
        blob, target = b"".join(lines), self._current
        is_last = target is not None and _is_long(target, len(blob))
        carried: tuple[bytes, ...] = ()
        if is_last:
            carried = tuple(self.open.values())
        elif target is None:
            new = set(lines)
            carried = tuple(line for line in self.open.values() if line not in new)
        return WritePlan(self._folder, target, self._next_index(), blob, len(lines), number, last, is_last, carried)

    def plan_to_shrink(self, kept_s: float) -> WritePlan | None:
        """How to begin a new segment, where the current one is mostly what was delivered long ago."""
        current = self._current
        if current is None or not _was_delivered_before(current, time.monotonic() - kept_s):
            return None
        carried = tuple(self.open.values())
        if current.fresh_bytes <= max(SMALL_BYTES, 2 * sum(map(len, carried))):
            return None
        return WritePlan(self._folder, None, self._next_index(), carried=carried)

    def _next_index(self) -> int:
        return self._segments[-1].index + 1 if self._segments else 1

    def note(self, plan: WritePlan, outcome: WriteResult) -> None:
        if (target := plan.target) is not None:
            self._note_growth(target, len(plan.blob), plan.last)
            if plan.is_last_of_target and outcome.begun is None:
                target.fresh_bytes = 0  # so that it is tried again, but not at each write
        if outcome.begun is not None:
            if self._current is not None and self._current not in self._unsynced:
                self._unsynced.append(self._current)  # the next sync shuts it
            self._current = outcome.begun
            self._segments.append(outcome.begun)
            self._unsynced.append(outcome.begun)

    def _note_growth(self, target: Segment, blob_bytes: int, last: int) -> None:
        size_bytes = target.size_bytes
        if size_bytes // OFFSET_EVERY_BYTES > len(target.offsets):
            target.offsets.append((target.last, size_bytes))
        target.size_bytes = size_bytes + blob_bytes
        target.fresh_bytes += blob_bytes
        if last > target.last:
            target.last, target.delivered_at = last, None
        if target not in self._unsynced:
            self._unsynced.append(target)

    # ------------------------------------------------------------------------------------------------------ keeping

    def take_unsynced(self) -> list[Segment]:
        taken, self._unsynced = self._unsynced, []
        return taken

    def note_sync(self, segments: list[Segment], *, is_done: bool) -> None:
        """Such a list was synced; or was not, and has to be again."""
        if not is_done:
            self._unsynced = [*(s for s in segments if s not in self._unsynced), *self._unsynced]
            return
        for segment in segments:
            if segment is not self._current and segment not in self._unsynced:
                segment.shut()

    def delivered(self, number: int) -> None:
        """The store has everything up to this number, and nothing above."""
        if number < self._mark:
            for segment in self._segments:
                if segment.last > number:
                    segment.delivered_at = None
        self._mark = number

    def note_delivered(self) -> None:
        """Mark the segments of which the store has everything by now. `plan_to_shrink` and `outlived` go by this: what
        is delivered is kept from the next mark on."""
        now = time.monotonic()
        for segment in self._segments:
            if segment.last <= self._mark and segment.delivered_at is None:
                segment.delivered_at = now

    def outlived(self, kept_s: float) -> list[Segment]:
        """The segments that were delivered over `kept_s` ago, except the current one; none without a current one."""
        until = time.monotonic() - kept_s
        return [s for s in self._segments if self._current not in (None, s) and _was_delivered_before(s, until)]

    def forget(self, segments: list[Segment]) -> None:
        self._segments = [segment for segment in self._segments if segment not in segments]

    def shut(self) -> None:
        for segment in [*self._unsynced, *self._segments]:
            segment.shut()

    # ------------------------------------------------------------------------------------------------------ reading

    def ends(self, cursor: Cursor) -> Iterator[JournalEntry]:
        """The close and void entries behind a cursor, in order, from the files. Raises `OSError`."""
        while (segment := next((s for s in self._segments if s.index >= cursor.index), None)) is not None:
            if segment.index > cursor.index or cursor.place is None:
                before = [offset for number, offset in segment.offsets if number <= cursor.after]
                cursor.index, cursor.place = segment.index, Position(max(before, default=0))
            if segment.last > cursor.after:
                yield from _ends_of(segment, cursor, cursor.place)
            if segment is self._segments[-1]:
                return
            cursor.index, cursor.place = segment.index + 1, None

    def take_in(self) -> tuple[int, int, int]:
        """Read what a dead worker has left. Raises `OSError`.

        Returns the highest number, how many segments end within an entry, and how many other places are unreadable.
        """
        highest = torn = damaged = 0
        for segment in found(self._folder):
            self._segments.append(segment)
            before = highest
            for entry in read(segment.path, Position(), _size_of(segment)):
                if isinstance(entry, str):
                    torn += entry == "torn"
                    damaged += entry == "damaged"
                    continue
                if entry.number <= before:
                    continue  # carried over from a segment that still exists and has its end
                highest = max(highest, entry.number)
                if entry.kind == "open":
                    self.open[entry.lease] = encode(*entry)
                else:
                    self.open.pop(entry.lease, None)
                    segment.last = max(segment.last, entry.number)
        return highest, torn, damaged


def _is_long(target: Segment, more_bytes: int) -> bool:
    """Whether a segment with `more_bytes` more is long enough to begin a new one."""
    return target.fresh_bytes + more_bytes >= max(SEGMENT_BYTES, target.size_bytes - target.fresh_bytes)


def _was_delivered_before(segment: Segment, moment: float) -> bool:
    return segment.delivered_at is not None and segment.delivered_at <= moment


def _ends_of(segment: Segment, cursor: Cursor, place: Position) -> Iterator[JournalEntry]:
    try:
        for entry in read(segment.path, place, _size_of(segment)):
            if isinstance(entry, JournalEntry) and entry.kind != "open" and entry.number > cursor.after:
                cursor.after = entry.number
                yield entry
    except FileNotFoundError:
        pass  # it was delivered long ago


def _size_of(segment: Segment) -> Callable[[], int]:
    return lambda: segment.size_bytes
