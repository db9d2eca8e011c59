"""Memory and descriptors of a process over time, and whether they are flat. Samples are taken by watch.py.

The first third of the time is for warming up. A process is flat when the median of the last third exceeds that of the
middle third by no more than a share and a constant: allocators keep some memory, which is no leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

MB = 1_000_000
MEMORY_SHARE, MEMORY_ROOM = 0.04, 1.5 * MB
DESCRIPTORS_SHARE, DESCRIPTORS_ROOM = 0.1, 6
FEWEST = 150
"""Minimum number of samples: with fewer the process has only warmed up."""


class Sample(NamedTuple):
    """One sample of one process."""

    at_s: float
    memory: int
    """Bytes."""
    descriptors: int


class Verdict(NamedTuple):
    """The median of each third, and whether it is flat."""

    thirds: tuple[float, float, float]
    is_flat: bool


def judge(values: Sequence[float], share: float, room: float) -> Verdict:
    """From values at equal distances in time."""
    third = len(values) // 3
    thirds = (median(values[:third]), median(values[third : 2 * third]), median(values[2 * third :]))
    return Verdict(thirds, thirds[2] <= thirds[1] * (1 + share) + room)


def of_memory(samples: Sequence[Sample]) -> Verdict:
    """From bytes of memory."""
    return judge([sample.memory for sample in samples], MEMORY_SHARE, MEMORY_ROOM)


def of_descriptors(samples: Sequence[Sample]) -> Verdict:
    """From numbers of descriptors."""
    return judge([sample.descriptors for sample in samples], DESCRIPTORS_SHARE, DESCRIPTORS_ROOM)
