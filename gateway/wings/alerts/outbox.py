"""Alerts that wait for delivery to one receiver: each is retried on its own, until it is accepted or given up.

Nothing waits for a slow receiver: a few attempts run in parallel, a limited number waits, the oldest is dropped.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.tasks import Tasks

from . import policy
from .webhook import PostResult

log = logging.getLogger("gateway")

AT_ONCE = 4
"""The maximum number of attempts that run in parallel."""

MAX_WAITING = 200
"""Alerts that wait: a few hundred kilobytes, and more than a person reads."""

Post = Callable[[bytes], Awaitable[PostResult]]


class Outbox:
    """The alerts of one worker for one receiver, by name. Private to the worker."""

    def __init__(self, post: Post, name: str = "the alert webhook") -> None:
        self._post = post
        self._name = name
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._done: set[str] = set()
        self._is_failing = False
        self._room = asyncio.Semaphore(AT_ONCE)
        self._is_closing = asyncio.Event()
        self._tasks = Tasks()

    def __repr__(self) -> str:
        return f"<Outbox {len(self._waiting)} waiting>"

    @property
    def waiting(self) -> tuple[str, ...]:
        """Alerts that are neither accepted nor given up, the oldest first."""
        return tuple(self._waiting)

    def put(self, name: str, message: Mapping[str, Any]) -> None:
        """Add an alert to be posted."""
        if len(self._waiting) >= MAX_WAITING:
            oldest = next(iter(self._waiting))
            log.error("%s is too slow: an alert is not posted, because %d wait", self._name, MAX_WAITING)
            self.drop(oldest)
            self._done.add(oldest)
        body = json.dumps(message).encode()
        self._waiting[name] = self._tasks.spawn(self._deliver(name, body), "alert-webhook")

    def drop(self, name: str) -> None:
        """Remove it: another worker delivers it."""
        if (task := self._waiting.pop(name, None)) is not None:
            task.cancel()

    def take_done(self) -> set[str]:
        """The alerts accepted or given up since the last call."""
        done, self._done = self._done, set()
        return done

    async def close(self, timeout_s: float) -> None:
        """Try every waiting alert once more, for at most this long; those that remain in `waiting` are undelivered."""
        self._is_closing.set()
        await self._tasks.wait_until_idle(timeout_s)
        await self._tasks.cancel_all()

    async def _deliver(self, name: str, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        began, attempts = loop.time(), 0
        while True:
            is_last = self._is_closing.is_set()
            try:
                async with self._room:
                    answer = await self._post(body)
            except Exception:
                log.exception("an alert is not posted: %s failed", self._name)
                break
            attempts += 1
            self._note(answer)
            if answer.is_taken:
                break
            elapsed_s = loop.time() - began
            pause_s = policy.next_pause_s(answer.status, answer.retry_after_s, attempts, elapsed_s)
            if pause_s is None or answer.is_final:
                log.error("an alert is not posted: %s does not take it (%s)", self._name, answer.detail)
                break
            if is_last:
                return
            try:
                async with asyncio.timeout(pause_s):
                    await self._is_closing.wait()
            except TimeoutError:
                pass
        self._waiting.pop(name, None)
        self._done.add(name)

    def _note(self, answer: PostResult) -> None:
        """Log it once, not for each alert."""
        if self._is_failing == answer.is_taken:
            self._is_failing = not answer.is_taken
            what = f"fails ({answer.detail})" if self._is_failing else "takes what is posted again"
            log.warning("%s %s", self._name, what)
