"""Clients in many threads with a limited rate, which record their answers.

An answer that no client may get under any circumstances is a fault at once; the others are compared with the records
later.
"""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from abc import ABC, abstractmethod

from .observed import ObservedCall

PATIENCE_S = 60.0
THREADS = 16
AFTER_TROUBLE_S = 0.2


class Callers(ABC):
    """Calls until it is stopped; can be paused. `rate`: maximum calls per second."""

    def __init__(self, seed: int, rate: float) -> None:
        self.received: list[ObservedCall] = []
        self.faults: list[str] = []
        self._rate = rate
        self._dice = random.Random(seed)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._due = time.monotonic()
        self._may_call, self._is_over = threading.Event(), threading.Event()
        self._busy = 0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(THREADS)]

    @abstractmethod
    def one(self) -> None:
        """Makes one call of the next kind."""

    @abstractmethod
    def carry(self, received: ObservedCall) -> None:
        """Makes this call. Raises OSError and HTTPException if its connection breaks."""

    @abstractmethod
    def unheard_of(self, received: ObservedCall) -> str:
        """Why no client may get this answer under any circumstances; empty if permitted."""

    def go_on(self) -> None:
        for thread in self._threads:
            if thread.ident is None:
                thread.start()
        self._may_call.set()

    def rest(self) -> None:
        """Pauses; returns when running calls have ended."""
        self._may_call.clear()
        end = time.monotonic() + 2 * PATIENCE_S
        while self._busy:
            if time.monotonic() > end:
                self.faults.append(f"{self._busy} clients never heard the end of their calls")
                return
            time.sleep(0.02)

    def stop(self) -> None:
        self.rest()
        self._is_over.set()
        self._may_call.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(PATIENCE_S)

    def number(self) -> int:
        """The next number."""
        return next(self._numbers)

    def call(self, received: ObservedCall) -> ObservedCall:
        """Makes this call now, and records its answer."""
        self.received.append(received)
        received.began = time.monotonic()
        try:
            self.carry(received)
        except (OSError, http.client.HTTPException):
            pass  # cut: judged later
        received.ended = time.monotonic()
        received.truth = received.truth._replace(heard="")  # a long answer is not kept
        received.fault = received.fault or ("" if received.is_cut or received.has_left else self.unheard_of(received))
        if received.fault:
            self.faults.append(
                f"call {received.number} ({received.kind} of {received.who}, {received.endpoint}): {received.fault}"
            )
        return received

    def _work(self) -> None:
        while not self._is_over.is_set():
            self._may_call.wait()
            with self._lock:
                self._busy += 1
                self._due = max(self._due, time.monotonic() - 0.1) + 1 / self._rate
                wait_s = self._due - time.monotonic()
            try:
                time.sleep(max(0.0, wait_s))
                if self._may_call.is_set() and not self._is_over.is_set():
                    self.one()
            except Exception as error:
                self.faults.append(f"a client has died: {error!r}")
                raise
            finally:
                with self._lock:
                    self._busy -= 1
