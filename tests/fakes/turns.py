"""How long the event loop is held: counted, not timed, in the functions that are called in one of its turns, and in the
longest JSON that is read or written at once by any thread, because that holds all of them. A slow machine changes
neither."""

from __future__ import annotations

import asyncio
import asyncio.events
import json
import sys
import threading
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
        self.longest_json = 0
        self._calls = 0
        self._thread = threading.get_ident()

    def count(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Calls of what measures here are none of the gateway's."""
        self._calls += event in ("call", "c_call") and frame.f_code.co_filename != __file__

    def is_here(self) -> bool:
        """Whether this is the thread whose turns are counted: others have loops of their own."""
        return threading.get_ident() == self._thread

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
        if not turns.is_here():
            plain(handle)
            return
        sys.setprofile(turns.count)
        try:
            plain(handle)
        finally:
            sys.setprofile(None)
            turns.ended(handle)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", run)
        _measure_json(turns, patch)
        yield turns


def _measure_json(turns: Turns, patch: pytest.MonkeyPatch) -> None:
    decode, raw_decode, encode = json.JSONDecoder.decode, json.JSONDecoder.raw_decode, json.JSONEncoder.encode

    def decoded(self: json.JSONDecoder, text: str, *more: Any) -> Any:
        turns.longest_json = max(turns.longest_json, len(text))
        return decode(self, text, *more)

    def raw_decoded(self: json.JSONDecoder, text: str, idx: int = 0) -> tuple[Any, int]:
        value, end = raw_decode(self, text, idx)
        turns.longest_json = max(turns.longest_json, end - idx)
        return value, end

    def encoded(self: json.JSONEncoder, value: Any) -> str:
        text = encode(self, value)
        turns.longest_json = max(turns.longest_json, len(text))
        return text

    patch.setattr(json.JSONDecoder, "decode", decoded)
    patch.setattr(json.JSONDecoder, "raw_decode", raw_decoded)
    patch.setattr(json.JSONEncoder, "encode", encoded)
