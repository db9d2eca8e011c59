"""How long the event loop is held: counted, not timed, in the functions that are called in one of its turns, which a
slow machine does not change."""

from __future__ import annotations

import asyncio
import asyncio.events
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

MOST_CALLS = 4000
"""In one turn: a few milliseconds."""


class Turns:
    """What the longest turn of the loop was, in function calls."""

    def __init__(self) -> None:
        self.most = 0
        self.by = ""
        self._calls = 0

    def count(self, _frame: FrameType, event: str, _argument: Any) -> None:
        self._calls += event in ("call", "c_call")

    def ended(self, handle: asyncio.Handle) -> None:
        if self._calls > self.most:
            owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
            self.most, self.by = self._calls, f"{handle!r} of {owner!r}"
        self._calls = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """Count on this thread; what others do does not hold the loop."""
    turns = Turns()
    plain = asyncio.events.Handle._run

    def run(handle: asyncio.Handle) -> None:
        sys.setprofile(turns.count)
        try:
            plain(handle)
        finally:
            sys.setprofile(None)
            turns.ended(handle)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", run)
        yield turns
