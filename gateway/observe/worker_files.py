"""The metrics files of one worker, written in one go; and what makes them complete after the worker was killed.

Values are plain numbers in memory. A write first puts all new values, and up to which entry of each journal the calls
are counted (the marks), into a log beside the files: one of two slots in turns, with a checksum. Only then does it
change the files, which are those of prometheus-client. The log holds sums and no differences, so the supervisor can
repeat the last write of a killed worker: either all of it is in the files then, or nothing of it, and the marks show
which.

All private names of prometheus-client that the gateway uses are in this module (`tests/test_private_names.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import uuid
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

log = logging.getLogger("gateway")

_SUMMED = ("counter", "histogram")
"""The files that outlive their worker, by how their names begin. Gauges end with it."""

_SLOT_BYTES = 1 << 20
_MOST = 50_000
"""Values in a slot, at 12 bytes each."""

_HEAD = Struct("<QII")
"""Number of the write, length of its body in bytes, its CRC-32."""
_VALUE = Struct("dd")
"""A value in the files of prometheus-client (mmap_dict.py), and a time, which is always 0 here."""


class _WholeFile(MmapedDict):
    """A file of values that has all of its bytes before they are mapped, or raises `OSError`: where the disk is full a
    write to a hole in a file kills the process (SIGBUS)."""

    def __init__(self, filename: str) -> None:
        if not os.path.exists(filename):  # noqa: PTH110 - another process may have had the same id
            _fill(f"{filename}.new", 1 << 16)
            os.rename(f"{filename}.new", filename)  # noqa: PTH104
        super().__init__(filename)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        if self._used + len(key.encode()) + 2 * _VALUE.size > self._capacity:
            _fill(self._fname, 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


def _fill(path: str, size: int) -> None:
    with Path(path).open("ab", buffering=0) as file:
        while (missing := size - file.seek(0, os.SEEK_END)) > 0:
            file.write(bytes(missing))


class WorkerFiles:
    """Made before the first metric of the process, in the folder that the supervisor has named."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"counted-{os.getpid()}"
        self._log = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._number = 0
        self._marks: Mapping[str, int] = {}
        self._changed: dict[Any, None] = {}
        self.on_change: Callable[[], object] = lambda: None
        """Called when a value differs from its file for the first time since the last write."""
        self._is_full = False
        """Whether it was logged that a value has no room in its file."""
        values.MmapedDict = _WholeFile  # type: ignore[assignment, misc]
        values.ValueClass = self._value_class()

    def _value_class(self) -> Any:
        # prometheus-client would ask for the process id with each value that it writes; a worker is never forked.
        base: Any = values.MultiProcessValue(itertools.repeat(os.getpid()).__next__)  # type: ignore[no-untyped-call]
        changed, files = self._changed, self

        class GatheredValue(base):  # type: ignore[misc]
            """A value whose file is written later, and which is in memory alone where its file has no room."""

            def __init__(self, typ: str, *args: Any, **kwargs: Any) -> None:
                self.kind, self._args, self._value, self.place = typ, (args, kwargs), 0.0, 0
                self.has_place()

            def has_place(self) -> bool:
                """Whether it is in its file, at `place` in bytes, at last."""
                if not self.place:
                    value, (args, kwargs) = self._value, self._args
                    try:
                        super().__init__(self.kind, *args, **kwargs)
                    except OSError as error:
                        files._note_full(error)
                        return False
                    self._value += value
                    self.place = self._file._positions[self._key]  # noqa: SLF001
                return True

            def inc(self, amount: float) -> None:
                if not changed:
                    files.on_change()
                self._value += amount
                changed[self] = None

            def set(self, value: float, timestamp: float | None = None) -> None:
                if not changed:
                    files.on_change()
                self._value = value
                changed[self] = None

            def get(self) -> float:
                value: float = self._value
                return value

        return GatheredValue

    def write(self, marks: Mapping[str, int]) -> None:
        """Write what has changed. `marks`: by the name of a journal, the last entry whose call is counted."""
        if not self._changed and marks == self._marks:
            return
        every = [value for value in self._changed if value.place or value.has_place()]
        self._changed.clear()
        summed = [value for value in every if value.kind in _SUMMED]
        for start in range(0, len(summed) or 1, _MOST):
            portion = summed[start : start + _MOST]
            self._write_log(portion, marks if start + _MOST >= len(summed) else self._marks)
            _write_files(portion)
        _write_files([value for value in every if value.kind not in _SUMMED])
        self._marks = marks

    def _note_full(self, error: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            log.warning("new metrics are kept in memory, and missing at /metrics: %s: %s", self._folder, error.strerror)

    def _write_log(self, changed: list[Any], marks: Mapping[str, int]) -> None:
        by_kind = [[value for value in changed if value.kind == kind] for kind in _SUMMED]
        head = json.dumps({"marks": marks, "values": [len(some) for some in by_kind]})
        places = array("I", [value.place for some in by_kind for value in some])
        numbers = array("d", [value._value for some in by_kind for value in some])  # noqa: SLF001
        body = b"\n".join([head.encode(), places.tobytes() + numbers.tobytes()])
        self._number += 1
        with contextlib.suppress(OSError):  # a full disk: a kill may then cost the counts of one write
            os.pwrite(
                self._log,
                _HEAD.pack(self._number, len(body), crc32(body)) + body,
                _SLOT_BYTES * (self._number % 2),
            )

    def counted(self, journal: str) -> int | None:
        """Up to which entry of a journal its calls are in the metrics of this gateway, by whichever worker; None: it
        is not a journal of this gateway's workers."""
        found = [last.marks.get(journal) for path in self._folder.glob("counted-*") if (last := _last_write(path))]
        return max((mark for mark in found if mark is not None), default=None)

    def close(self) -> None:
        """All is written, and this worker ends in good order: its journal holds nothing that is not counted."""
        self._path.unlink(missing_ok=True)
        os.close(self._log)


def observe_all(histogram: Any, amounts: Sequence[float]) -> None:
    """Many observations at once, which prometheus-client takes one by one only.

    tests/observe/test_metrics.py compares the outcome with that of its own `observe`.
    """
    histogram._sum.inc(sum(amounts))  # noqa: SLF001
    bounds = histogram._upper_bounds  # noqa: SLF001
    for place, number in Counter([bisect_left(bounds, amount) for amount in amounts]).items():
        histogram._buckets[place].inc(number)  # noqa: SLF001


def _write_files(changed: Iterable[Any]) -> None:
    for value in changed:
        place = value.place
        value._file._m[place : place + _VALUE.size] = _VALUE.pack(value._value, 0.0)  # noqa: SLF001


class _Write(NamedTuple):
    number: int
    marks: Mapping[str, int]
    values: list[tuple[str, int, float]]
    """Kind of file, place in bytes, number."""


def _last_write(path: Path) -> _Write | None:
    """The last whole write of a log; None where there is none."""
    try:
        with path.open("rb") as file:
            found = [_read_slot(file.read(_SLOT_BYTES)) for _ in range(2)]
    except FileNotFoundError:
        return None
    return max((write for write in found if write is not None), key=lambda write: write.number, default=None)


def _read_slot(slot: bytes) -> _Write | None:
    if len(slot) < _HEAD.size:
        return None
    number, length, checksum = _HEAD.unpack_from(slot)
    body = slot[_HEAD.size : _HEAD.size + length]
    if not number or len(body) != length or crc32(body) != checksum:
        return None
    line, _, packed = body.partition(b"\n")
    head = json.loads(line)
    kinds = list(itertools.chain.from_iterable(map(itertools.repeat, _SUMMED, head["values"])))
    places, numbers = array("I"), array("d")
    places.frombytes(packed[: len(kinds) * places.itemsize])
    numbers.frombytes(packed[len(kinds) * places.itemsize :])
    return _Write(number, head["marks"], list(zip(kinds, places, numbers, strict=True)))


def complete(folder: Path, pid: int) -> None:
    """Repeat the last write of a worker that has ended: all of it is in the files then. Its log stays, under another
    name, for the sake of its marks; there is none of a worker that has ended in good order. Raises `OSError`."""
    log = folder / f"counted-{pid}"
    if not log.exists():
        return
    if (last := _last_write(log)) is not None:
        with contextlib.ExitStack() as opened:
            for kind, numbers in _by_kind(last):
                file = opened.enter_context((folder / f"{kind}_{pid}.db").open("r+b"))
                for place, number in numbers:
                    file.seek(place)
                    file.write(_VALUE.pack(number, 0.0))
    log.rename(folder / f"counted-{uuid.uuid4().hex}")


def _by_kind(write: _Write) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    for kind in _SUMMED:
        if found := [(place, number) for each, place, number in write.values if each == kind]:
            yield kind, found
