"""Places for the questions to one hook that are under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.keys.room import most_of_key


class Places:
    """Places for questions under way. The slow questions of one key leave the others a place (`most_of_key`); where
    there is one place alone, they share it."""

    def __init__(self, most: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._most_of_key = most_of_key(most)
        self._by_key: dict[str, tuple[asyncio.Semaphore, int]] = {}
        """Places of a key, and its calls that have or want one."""

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """A place, as soon as there is one for this key."""
        own, calls = self._by_key.get(key) or (asyncio.Semaphore(self._most_of_key), 0)
        self._by_key[key] = own, calls + 1
        try:
            async with own, self._all:
                yield
        finally:
            own, calls = self._by_key.pop(key)
            if calls > 1:
                self._by_key[key] = own, calls - 1
