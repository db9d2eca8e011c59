"""An upstream and clients that each record all calls, around gateways that go through a fault.

with Scene() as scene:
    house = gateway(settings(scene.url, **ACCOUNTS))
    running = scene.begin(house, 2)                      # streams, each paused half-way by the upstream
    ...                                                  # the store is stopped, the disk is full
    scene.end()                                          # the upstream continues; all streams have ended
    scene.check(house)                                   # the gateway's records agree with both
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Self

from tests.fakes.scripted import Scripted

from .books import Callers, Seller, Told, check_books
from .client import TIMEOUT_S
from .house import Gateway, eventually

JOIN_S = 4 * TIMEOUT_S


class Scene:
    """See the module docstring. For one gateway, or for several that share a store."""

    def __init__(self) -> None:
        self.seller = Seller()
        self.callers = Callers()
        self._upstream = Scripted(always=self.seller)
        self._running: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._upstream.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seller.let_go()
        self._upstream.__exit__(*exc)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """As an upstream's `base_url`."""
        return self._upstream.url

    @property
    def hits(self) -> int:
        return len(self.seller.sales)

    def call(self, house: Gateway, who: str = "alice", *, is_stream: bool = False) -> Told:
        """One call to its end."""
        return self.callers.call(house.port, who, is_stream=is_stream)

    def serves(self, house: Gateway, who: str = "alice") -> bool:
        """Whether a call is served now."""
        return self.call(house, who).is_served

    def burst(self, houses: Gateway | Sequence[Gateway], count: int, who: str = "alice") -> list[Told]:
        """So many calls at once, by turns to each gateway; all of them have ended."""
        ports = itertools.cycle([house.port for house in ([houses] if isinstance(houses, Gateway) else houses)])
        told = [self.callers.begin(who) for _ in range(count)]
        _join([self._carry(one, next(ports)) for one in told])
        return told

    def begin(
        self, house: Gateway, count: int = 1, who: str = "alice", *, is_stream: bool = True, hold: int | None = None
    ) -> list[Told]:
        """Calls that are under way, each held by the upstream half-way, or behind so many pieces of its answer."""
        if not self._running:
            self.seller.hold_again()
        told = [self.callers.begin(who, is_stream=is_stream) for _ in range(count)]
        behind = (3 if is_stream else 1) if hold is None else hold
        self._running += [self._carry(one, house.port, hold=behind) for one in told]
        eventually(lambda: {one.number for one in told} <= self.seller.held)
        return told

    def _carry(self, told: Told, port: int, **more: int) -> threading.Thread:
        thread = threading.Thread(target=self.callers.carry, args=(told, port), kwargs=more, daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """Whatever is held goes on, and has ended."""
        self.seller.let_go()
        running, self._running = self._running, []
        _join(running)

    def check(self, house: Gateway) -> Counter[str]:
        """Once nothing is reserved: whether all three agree. Returns how many calls ended in which way."""
        return check_books(house, self.seller, self.callers.told)


def code(told: Told) -> str | None:
    """What a program reads of an error."""
    error: dict[str, str | None] = json.loads(told.body)["error"]
    return error["code"]


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(JOIN_S)
    assert not any(thread.is_alive() for thread in threads), "a client never heard the end of its call"
