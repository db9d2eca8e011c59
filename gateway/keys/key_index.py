"""Which keys of the store belong to an owner or a team, kept in memory by the process that asks.

The first question reads all keys once. Later ones read the changes since from the audit log, which every gateway on the
store writes, older ones too. So the store needs no index, and a store made before needs no migration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from heapq import nsmallest
from typing import Literal

from gateway.chunked import in_chunks, portions
from gateway.config.sections import folded_name
from gateway.quota.issued import IssuedKey
from gateway.store import KeyStore

PAGE = 500
"""Documents that are fetched at once."""

READ_AT_ONCE = 25
"""Keys that are decoded in one go; half a millisecond, more or less."""

KeyGroup = tuple[Literal["owner", "team", "id"], str]
"""The keys with this owner, of this team, or the one with this id."""


class KeyIndex:
    """See the head of the file. About 300 bytes for each key with an owner and a team."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._position: str | None = None
        """Up to where the audit log is known; None: the keys were not read yet."""
        self._ids: dict[KeyGroup, set[str]] = {}
        """May contain keys that have left the group since, and lacks none."""
        self._turn = asyncio.Lock()

    async def candidates(self, groups: Collection[KeyGroup], after: str = "") -> list[str]:
        """Ids behind `after`, sorted: all stored keys of these groups, and perhaps others that were in them before.
        Raises `StoreUnavailable`."""
        async with self._turn:
            await self._follow()
            found = {name for kind, name in groups if kind == "id"}
            found.update(*[self._ids.get(group, ()) for group in groups])
        return sorted(name for name in found if name > after)

    async def owners(self, after: str, limit: int) -> list[str]:
        """The first owners of stored keys behind `after`, sorted, and perhaps some who have no key now. Raises
        `StoreUnavailable`."""
        async with self._turn:
            await self._follow()
            return nsmallest(limit, [name for kind, name in self._ids if kind == "owner" and name > after])

    async def _follow(self) -> None:
        feed = await self._store.changes_since(self._position)
        if self._position is None or not feed.is_complete:
            self._ids, self._position = {}, None
            after = ""
            while rows := await self._store.page("key", after, PAGE):
                await self._note(rows)
                after = rows[-1][0]
        else:
            for names in portions([name for kind, name in feed.changed if kind == "key"], PAGE):
                texts = await self._store.read("key", names)
                await self._note([(name, text) for name, text in zip(names, texts, strict=True) if text is not None])
        self._position = feed.position

    async def _note(self, rows: list[tuple[str, str]]) -> None:
        for name, groups in await asyncio.to_thread(_groups_of, rows):
            for group in groups:
                self._ids.setdefault(group, set()).add(name)


def _groups_of(rows: list[tuple[str, str]]) -> list[tuple[str, list[KeyGroup]]]:
    found: list[tuple[str, list[KeyGroup]]] = []
    for name, text in in_chunks(rows, READ_AT_ONCE):
        settings = IssuedKey.decode(text).settings
        groups: list[KeyGroup] = []
        if settings.owner is not None:
            groups.append(("owner", folded_name(settings.owner)))
        if settings.team is not None:
            groups.append(("team", settings.team))
        found.append((name, groups))
    return found
