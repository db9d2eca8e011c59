"""Long work in small portions, so that the calls of the same worker get the interpreter in between.

A busy thread yields the interpreter lock every 5 ms (`sys.getswitchinterval`), and one C function over many items
yields it only at its end. A chunk of a stream must not wait for either.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE_S = 0.0005
SORTED_AT_ONCE = 1000
"""Half a millisecond, more or less."""


BYTES_AT_ONCE = 65_536
"""Bytes that a coroutine reads before other calls have their turn."""


class Turns:
    """Counts what a coroutine reads, of which each item takes as long as `each` bytes, however short it is."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._since = 0

    def __repr__(self) -> str:
        return f"<Turns {self._since} of {BYTES_AT_ONCE} bytes>"

    def is_over(self, size: int) -> bool:
        """Count an item of this size. Returns whether other calls are to have their turn now."""
        self._since += size + self._each
        if self._since <= BYTES_AT_ONCE:
            return False
        self._since = 0
        return True


def in_chunks(things: Iterable[T], at_once: int) -> Iterator[T]:
    """Yields the items, with a pause after each portion. Only for threads."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % at_once == 0:
            time.sleep(PAUSE_S)


def portions(things: Sequence[T], at_once: int) -> Iterator[Sequence[T]]:
    """Yields the items in portions. The caller may do other work between them."""
    for first in range(0, len(things), at_once):
        yield things[first : first + at_once]


def in_order(things: Sequence[Any]) -> Iterator[Any]:
    """The items sorted, a few at a time. Only for threads."""
    starts = in_chunks(range(0, len(things), SORTED_AT_ONCE), 1)
    runs = [sorted(things[start : start + SORTED_AT_ONCE]) for start in starts]
    return iter(runs[0]) if len(runs) == 1 else merge(*runs)
