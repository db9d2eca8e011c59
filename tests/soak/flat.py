"""What a process holds, over time, and whether it is flat. Decisions only; the looking is in watch.py.

The first third of the time is for warming up. A process is flat when the median of the last third is not above that of
the middle third by more than a share and some room: what an allocator keeps for later is not what a leak takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

MB = 1_000_000
MEMORY_SHARE, MEMORY_ROOM = 0.04, 1.5 * MB
DESCRIPTORS_SHARE, DESCRIPTORS_ROOM = 0.1, 6
FEWEST = 150
"""Samples. In so short a time a process has only warmed up, and nothing can be said."""


class Sample(NamedTuple):
    """One look at one process."""

    at_s: float
    memory: int
    """Bytes."""
    descriptors: int


class Verdict(NamedTuple):
    """The median of each third, and whether it is flat."""

    thirds: tuple[float, float, float]
    is_flat: bool


def judge(values: Sequence[float], share: float, room: float) -> Verdict:
    """Of values in the order in which they were taken, at even distances."""
    third = len(values) // 3
    thirds = (median(values[:third]), median(values[third : 2 * third]), median(values[2 * third :]))
    return Verdict(thirds, thirds[2] <= thirds[1] * (1 + share) + room)


def of_memory(samples: Sequence[Sample]) -> Verdict:
    """In bytes."""
    return judge([sample.memory for sample in samples], MEMORY_SHARE, MEMORY_ROOM)


def of_descriptors(samples: Sequence[Sample]) -> Verdict:
    """Their number."""
    return judge([sample.descriptors for sample in samples], DESCRIPTORS_SHARE, DESCRIPTORS_ROOM)
