"""The faults of a soak, one after the other, in rounds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.flows.gateway_process import eventually

from .crowd import Crowd
from .market import ILLNESSES
from .place import Place

PATIENCE_S = 60.0


@dataclass
class FaultCounts:
    """The faults so far; `kills`: times on the monotonic clock."""

    kills: list[float] = field(default_factory=list)
    redis_deaths: int = 0
    restarts: int = 0
    reloads: int = 0
    faults: list[str] = field(default_factory=list)


class Faults:
    """See the head of the file. `in_turn` yields the name of each before it begins."""

    def __init__(self, place: Place, callers: Crowd, seconds: float) -> None:
        self.counts = FaultCounts()
        self._place = place
        self._callers = callers
        self._seconds = seconds

    def in_turn(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """The faults of one round: name and function."""
        yield "all is well", self._wait
        for illness in ILLNESSES:
            yield f"upstream {illness}", lambda illness=illness: self._illness(illness)  # type: ignore[misc]
        yield "a worker is killed", self._kill_worker
        if self._place.redis:
            yield "Redis dies and returns", self._restart_redis
            yield "the second gateway is restarted", self._restart_second
        yield "SIGHUP, with a new key", self._reload

    def _wait(self) -> None:
        time.sleep(self._seconds)

    def _illness(self, illness: str) -> None:
        self._place.market.illness = illness
        self._wait()
        self._place.market.illness = ""

    def _kill_worker(self) -> None:
        """Kills the younger of two: the elder runs all the time, so that its memory can be judged."""
        gateway, elder = self._place.gateway, self._place.elder
        for worker in gateway.workers():
            if worker != elder:
                self.counts.kills.append(time.monotonic())
                os.kill(worker, signal.SIGKILL)
                eventually(lambda gone=worker: gone not in gateway.workers(), PATIENCE_S)  # type: ignore[misc]
        eventually(lambda: len(gateway.workers()) == 2, PATIENCE_S)
        self._wait()

    def _restart_redis(self) -> None:
        redis = self._place.redis
        assert redis is not None
        self.counts.redis_deaths += 1
        redis.kill()
        time.sleep(1.0)
        redis.restart()
        self._wait()

    def _restart_second(self) -> None:
        self.counts.restarts += 1
        with self._place.without_second():
            time.sleep(1.0)
        self._wait()

    def _reload(self) -> None:
        """Adds a key and removes the one before, under load."""
        gateway = self._place.gateway
        guest = self._place.invite()
        gateway.kill(signal.SIGHUP)
        eventually(lambda: self._is_served(guest), PATIENCE_S)
        self.counts.reloads += 1
        self._wait()

    def _is_served(self, guest: str) -> bool:
        received = self._callers.call_as(guest, self._place.gateway.port)
        time.sleep(0.1)
        return received.is_served
