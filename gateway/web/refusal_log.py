"""Writes the refusal log of one worker: after the answer, some entries a second at most.

A flood of refusals must neither delay calls nor push out the entries of known keys, so entries beyond `AT_ONCE` are
dropped, and of unknown keys those beyond `UNKNOWN_AT_ONCE`. The metric of rejected requests counts all of them.
"""

from __future__ import annotations

import asyncio
import logging

from gateway.store import Clock, RefusalEntry, RequestStore, StoreUnavailable

log = logging.getLogger("gateway")

EVERY_S = 1.0

AT_ONCE = 200
UNKNOWN_AT_ONCE = 50
"""Entries of one write: `AT_ONCE` limits all of them, `UNKNOWN_AT_ONCE` those of unknown keys."""

MAX_MESSAGE = 500
"""Characters of a message that are kept."""


class RefusalLog:
    """Collects refusals: `run` is started as a task, `write` is called once more at the end, and `add` costs an
    append."""

    def __init__(self, store: RequestStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entries: list[RefusalEntry] = []
        self._unknown = 0
        self._has_failed = False

    def add(self, entry: RefusalEntry) -> None:
        """Write an entry soon, unless there are too many."""
        if len(self._entries) >= AT_ONCE or (entry.key is None and self._unknown >= UNKNOWN_AT_ONCE):
            return
        self._unknown += entry.key is None
        self._entries.append(entry._replace(message=entry.message[:MAX_MESSAGE]))

    async def run(self) -> None:
        """Write what was added, again and again."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Write the added entries. Those that the store does not take are dropped: metrics have counted them."""
        if not self._entries:
            return
        entries, self._entries, self._unknown = self._entries, [], 0
        try:
            await self._store.add_refusals(entries, self._clock.now())
        except StoreUnavailable as error:
            if not self._has_failed:
                log.warning("refusals are missing in the refusal log: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False
