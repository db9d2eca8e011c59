"""A clock that a test moves, for the time limits of connections: they end when the test says so, however busy the
machine is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.upstream import connection


class Timer:
    """As much of `asyncio.TimerHandle` as a connection uses."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class MovedClock:
    """The running event loop for the connections of a test, but for its time and its timers."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._timers: list[Timer] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def time(self) -> float:
        return self._now_s

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when, callback)
        self._timers.append(timer)
        return timer

    def move(self, seconds: float) -> None:
        """Let so much time pass, with what is due in it."""
        end = self._now_s + seconds
        while due := [timer for timer in self._timers if not timer.is_cancelled and timer.when <= end + 1e-9]:
            first = min(due, key=lambda timer: timer.when)
            self._timers.remove(first)
            self._now_s = max(self._now_s, first.when)
            first.callback()
        self._now_s = max(self._now_s, end)


class _Asyncio:
    """The module `asyncio`, whose running loop has this clock."""

    def __init__(self, clock: MovedClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def get_running_loop(self) -> MovedClock:
        return self._clock


def move_clock_of_connections(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    """The clock of the connections that are made from now on, in one test."""
    clock = MovedClock()
    monkeypatch.setattr(connection, "asyncio", _Asyncio(clock))
    return clock
