"""An upstream and clients that each record all calls, around gateways that go through a fault.

with Scenario() as scenario:
    gateway = gateway(settings(scenario.url, **ACCOUNTS))
    running = scenario.begin(gateway, 2)                      # streams, each paused half-way by the upstream
    ...                                                  # the store is stopped, the disk is full
    scenario.end()                                          # the upstream continues; all streams have ended
    scenario.check(gateway)                                   # the gateway's records agree with both
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Self

from tests.fakes.scripted import Scripted

from .books import Callers, ClientCall, Seller, check_books
from .client import TIMEOUT_S
from .gateway_process import Gateway, eventually

JOIN_S = 4 * TIMEOUT_S


class Scenario:
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

    def call(self, gateway: Gateway, who: str = "alice", *, is_stream: bool = False) -> ClientCall:
        """One call to its end."""
        return self.callers.call(gateway.port, who, is_stream=is_stream)

    def serves(self, gateway: Gateway, who: str = "alice") -> bool:
        """Whether a call is served now."""
        return self.call(gateway, who).is_served

    def burst(self, gateways: Gateway | Sequence[Gateway], count: int, who: str = "alice") -> list[ClientCall]:
        """So many calls at once, by turns to each gateway; all of them have ended."""
        ports = itertools.cycle(
            [gateway.port for gateway in ([gateways] if isinstance(gateways, Gateway) else gateways)]
        )
        received = [self.callers.begin(who) for _ in range(count)]
        _join([self._carry(one, next(ports)) for one in received])
        return received

    def begin(
        self, gateway: Gateway, count: int = 1, who: str = "alice", *, is_stream: bool = True, hold: int | None = None
    ) -> list[ClientCall]:
        """Calls that are under way, each held by the upstream half-way, or behind so many pieces of its answer."""
        if not self._running:
            self.seller.hold_again()
        received = [self.callers.begin(who, is_stream=is_stream) for _ in range(count)]
        behind = (3 if is_stream else 1) if hold is None else hold
        self._running += [self._carry(one, gateway.port, hold=behind) for one in received]
        eventually(lambda: {one.number for one in received} <= self.seller.held)
        return received

    def _carry(self, received: ClientCall, port: int, **more: int) -> threading.Thread:
        thread = threading.Thread(target=self.callers.carry, args=(received, port), kwargs=more, daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """Whatever is held goes on, and has ended."""
        self.seller.let_go()
        running, self._running = self._running, []
        _join(running)

    def check(self, gateway: Gateway) -> Counter[str]:
        """Once nothing is reserved: whether all three agree. Returns how many calls ended in which way."""
        return check_books(gateway, self.seller, self.callers.received)


def code(received: ClientCall) -> str | None:
    """What a program reads of an error."""
    error: dict[str, str | None] = json.loads(received.body)["error"]
    return error["code"]


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(JOIN_S)
    assert not any(thread.is_alive() for thread in threads), "a client never heard the end of its call"
