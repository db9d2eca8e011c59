"""The keys of an owner or a team are found without reading the others, on every store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from gateway.keys.key_index import KeyGroup, KeyIndex
from gateway.keys.registry import Registry
from gateway.store import ChangeFeed, DocumentKind, Store
from gateway.store.key_store import CHANGES_AT_ONCE
from tests.amounts import amount
from tests.keys.conftest import settings

BY = "a test"
OWNERS = amount(400, 40)
MANY = 3 * OWNERS


class CountedReads:
    """A store that counts the documents it hands out."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.documents = 0
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def page(self, kind: DocumentKind, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        rows = await self._store.page(kind, after, limit)
        self.documents += len(rows)
        self.requests += 1
        return rows

    async def read(self, kind: DocumentKind, names: Sequence[str]) -> list[str | None]:
        self.documents += len(names)
        self.requests += 1
        return await self._store.read(kind, names)

    async def changes_since(self, since: str | None) -> ChangeFeed:
        self.requests += 1
        return await self._store.changes_since(since)


def registry_of(store: Any) -> Registry:
    config = settings(teams={"red": {}, "blue": {}})
    return Registry(store, lambda: config)


async def found(registry: Registry, groups: Collection[KeyGroup], is_meant: Any) -> list[str]:
    return [key.id async for some in registry.every_key(is_meant=is_meant, groups=groups) for key in some]


async def of_owner(registry: Registry, owner: str) -> list[str]:
    return await found(registry, [("owner", owner)], lambda key: key.owner == owner)


async def of_team(registry: Registry, team: str) -> list[str]:
    return await found(registry, [("team", team)], lambda key: key.team == team)


async def test_it_follows_every_change_of_every_process(store: Store) -> None:
    here, there = registry_of(store), registry_of(store)
    await there.create_key({"id": "before", "owner": "ann"}, BY)
    assert await of_owner(here, "ann") == ["before"]
    for registry in (here, there):
        name = f"k{id(registry)}"
        await registry.create_key({"id": name, "owner": "ann", "team": "red"}, BY)
        assert await of_owner(here, "ann") == sorted(["before", name])
        assert await of_team(here, "red") == [name]
        await registry.rotate_key(name, 0, BY)
        assert await of_team(here, "red") == [name]
        await registry.update_key(name, {"owner": "bob", "team": "blue"}, BY)
        assert (await of_owner(here, "ann"), await of_team(here, "red")) == (["before"], [])
        assert await of_owner(here, "bob") == await of_team(here, "blue") == [name]
        await registry.update_key(name, {"owner": "ann", "team": None}, BY)
        assert await of_owner(here, "ann") == sorted(["before", name])
        await registry.delete_key(name, BY)
        assert await of_owner(here, "ann") == ["before"]
        await registry.create_key({"id": name, "owner": "bob"}, BY)
        assert (await of_owner(here, "ann"), await of_owner(here, "bob")) == (["before"], [name])
        await registry.delete_key(name, BY)
    assert [row["id"] for row in (await here.list_keys(groups=[("id", "before")])).rows] == ["before", "ci-bot"]


@pytest.mark.shortened
async def test_the_others_are_read_once(store: Store) -> None:
    counted = CountedReads(store)
    registry, other = registry_of(counted), registry_of(store)
    for number in range(MANY):
        await other.create_key({"id": f"k{number:04}", "owner": f"o{number % OWNERS}"}, BY)
    assert await of_owner(registry, "o7") == keys_of(7)
    assert counted.documents == MANY + 3
    counted.documents = counted.requests = 0
    assert await of_owner(registry, "o8") == keys_of(8)
    page = await registry.list_keys("k0007", 1, None, lambda key: key.owner == "o7", [("owner", "o7")])
    assert [row["id"] for row in page.rows] == keys_of(7)[1:2]
    assert (counted.documents, counted.requests) == (3 + 2, 2 * 2)
    await other.update_key("k0009", {"owner": "o7"}, BY)
    counted.documents = 0
    assert await of_owner(registry, "o7") == sorted([*keys_of(7), "k0009"])
    assert counted.documents == 1 + 4


def keys_of(owner: int) -> list[str]:
    return [f"k{number:04}" for number in range(owner, MANY, OWNERS)]


@pytest.mark.rest
async def test_more_changes_than_are_returned(store: Store) -> None:
    index, registry = KeyIndex(store), registry_of(store)
    assert await index.candidates([("owner", "ann")]) == []
    for number in range(CHANGES_AT_ONCE + 5):
        await registry.create_key({"id": f"k{number:04}", "owner": "ann"}, BY)
    assert len(await index.candidates([("owner", "ann")])) == CHANGES_AT_ONCE + 5
    assert await index.candidates([("owner", "ann"), ("id", "z")], "k0503") == ["k0504", "z"]
    assert await index.candidates([]) == []
