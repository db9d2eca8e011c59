"""Disk operations of a journal. They may block, run in any thread, and change no other state.

A journal is a row of files, `Segment`s, each begun when the one before it has become long. A write is made at a known
place: one that failed half-way is repeated at the same place.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .directory import sync_folder

log = logging.getLogger("gateway")

RESERVE_BYTES = 64 * 1024
"""Kept aside for the ends of running calls, when a disk has no room for new ones."""

SLOW_S = 0.02
CALM_S = 60
"""Two writes longer than `SLOW_S` within this time mean a slow disk; it is fast again after as long without one."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True, eq=False)
class Segment:
    path: Path
    descriptor: int = -1
    """-1 for one that is not written any more."""
    size_bytes: int = 0
    """Size of the segment's complete entries in bytes."""
    fresh_bytes: int = 0
    """The part of `size_bytes` in bytes that was not carried over from the previous segment."""
    last: int = 0
    """No close or void in it has a higher number."""
    delivered_at: float | None = None
    """When the store was found to have everything in it, on the monotonic clock; None: it was not."""

    offsets: list[tuple[int, int]] = field(default_factory=list)
    """(number, offset): what begins at this offset in bytes has a higher number. Not from each entry to the next, but
    from time to time."""

    @property
    def index(self) -> int:
        return int(self.path.name)

    def shut(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class WritePlan(NamedTuple):
    folder: Path
    target: Segment | None
    """Where to; None for a new segment."""
    next_index: int
    blob: bytes = b""
    line_count: int = 0
    number: int = 0
    """The highest number given so far."""
    last: int = 0
    """The highest number of a close or void so far."""
    is_last_of_target: bool = False
    """Whether the target is long enough after this, and a new one is to be begun."""
    carried: tuple[bytes, ...] = ()
    """The beginning of a new segment: the entries that are open after this write, except those in it."""


class WriteResult(NamedTuple):
    error: OSError | None
    took_s: float
    begun: Segment | None = None
    is_short: bool = False
    """Whether the reserve had to be given up."""


def perform(plan: WritePlan) -> WriteResult:
    """Write. Where a disk has no room left the reserve is given up, once."""
    began = time.monotonic()
    is_short = False
    while True:
        try:
            begun = _written(plan)
        except OSError as error:
            if error.errno in _NO_ROOM and _give_up_reserve(plan.folder):
                is_short = True
                continue
            return WriteResult(error, time.monotonic() - began, None, is_short)
        return WriteResult(None, time.monotonic() - began, begun, is_short)


def _written(plan: WritePlan) -> Segment | None:
    if plan.target is None:
        return _begun(plan, plan.blob, plan.last)
    _write_at(plan.target.descriptor, plan.blob, plan.target.size_bytes)
    if plan.is_last_of_target:
        try:
            return _begun(plan, b"", 0)
        except OSError as error:
            log.warning("no new segment of the journal can be begun, the old one grows: %s", error)
    return None


def _begun(plan: WritePlan, blob: bytes, last: int) -> Segment:
    path = plan.folder / f"{plan.next_index:06}"
    content = b"".join(plan.carried) + blob
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_at(descriptor, content, 0)
    except OSError:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return Segment(path, descriptor, len(content), len(blob), last)


def _write_at(descriptor: int, blob: bytes, offset: int) -> None:
    rest = memoryview(blob)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count


def sync(segments: Iterable[Segment], folder: Path) -> None:
    """Have these survive a power cut. Raises `OSError`."""
    for segment in segments:
        os.fdatasync(segment.descriptor)
    sync_folder(folder)


def unlink(segments: Iterable[Segment]) -> None:
    """Raises `OSError` if a file cannot be removed; a missing file is no error."""
    for segment in segments:
        segment.path.unlink(missing_ok=True)


def make_reserve(folder: Path) -> None:
    """Raises `OSError` where there is no room for it."""
    path = folder / "reserve"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _write_at(descriptor, bytes(RESERVE_BYTES), 0)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        os.close(descriptor)


def _give_up_reserve(folder: Path) -> bool:
    try:
        (folder / "reserve").unlink()
    except OSError:
        return False
    return True


def found(folder: Path) -> list[Segment]:
    """The segments that a dead worker has left, oldest first. Raises `OSError`."""
    paths = sorted((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    return [Segment(path, size_bytes=path.stat().st_size) for path in paths]


class SlowDisk:
    """Whether the disk is too slow for the event loop to wait for its writes."""

    def __init__(self) -> None:
        self.is_slow = False
        self._slow_at = float("-inf")

    def note(self, took_s: float, now: float) -> bool:
        """A write ended at the monotonic time `now`. Returns whether that changes `is_slow`."""
        before = self.is_slow
        is_calm = now - self._slow_at > CALM_S
        if took_s > SLOW_S:
            self._slow_at = now
            self.is_slow = before or not is_calm
        elif is_calm:
            self.is_slow = False
        return self.is_slow != before
