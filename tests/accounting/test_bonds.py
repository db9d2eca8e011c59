"""Tokens that are added to a conversation while its bond is being written are neither lost nor added twice."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.accounting.bonds import LOOKED_UP_AT_ONCE, Bonds
from gateway.config import Upstream
from gateway.errors import NotFound
from gateway.records import Bond, KeyInTeam
from gateway.store import BondStore

CONVERSATION = Bond("conv_1", "alice", None, "main", "", "", 0, 1.0, "conversation")


class Sums:
    """A store that writes when it may."""

    def __init__(self) -> None:
        self.tokens: int | None = None
        self.gate = asyncio.Semaphore(0)

    async def add_bond(self, bond: Bond, now: float) -> None:
        await self.gate.acquire()
        self.tokens = (self.tokens or 0) + bond.tokens

    async def find_bond(self, bond_id: str, now: float) -> Bond | None:
        return None if self.tokens is None else CONVERSATION._replace(tokens=self.tokens)


async def test_tokens_that_wait_for_the_store_count_once() -> None:
    store = Sums()
    bonds, owner = Bonds(cast(BondStore, store)), KeyInTeam("alice", None)

    async def known() -> Any:
        found = await bonds.find(owner, "conv_1")
        return None if found is None else found.tokens

    assert await known() is None
    keeping = []
    for number, tokens in enumerate((100, 20, 3)):
        keeping.append(asyncio.ensure_future(bonds.keep(CONVERSATION._replace(tokens=tokens))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await known() == (100, 120, 123)[number]
    store.gate.release()
    store.gate.release()
    await asyncio.gather(*keeping)
    assert bonds._writing is not None
    await bonds._writing
    assert (store.tokens, await known()) == (123, 123)
    await bonds.close()


class Shelf:
    """A store with an item of `bob` under each id that begins with b, and of `alice` under the others."""

    running = most = asked = 0

    async def find_bond(self, bond_id: str, now: float) -> Bond | None:
        self.running, self.asked = self.running + 1, self.asked + 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return Bond(bond_id, "bob" if bond_id.startswith("b") else "alice", None, "up", "", "", 1, 1.0, "item")


async def test_many_ids_are_looked_up_in_portions() -> None:
    """In one turn of the event loop 8,000 of them held up other calls for 600 ms."""
    shelf, ids = Shelf(), [f"a{place}" for place in range(1000)]
    bonds, alice = Bonds(cast(BondStore, shelf)), KeyInTeam("alice", None)
    assert await bonds.of_another(alice, [*ids, "b1", *ids, "b2", "b1"]) == ["b1", "b2"]
    assert (shelf.most, shelf.asked) == (LOOKED_UP_AT_ONCE, 1002)
    upstreams = {"up": Upstream.model_validate({"base_url": "https://x.example/v1"})}
    found = await bonds.require_all(alice, ids, "item", upstreams)
    assert ([each.id for each in found], shelf.most) == (ids, LOOKED_UP_AT_ONCE)
    with pytest.raises(NotFound):
        await bonds.require_all(alice, [*ids, "b1"], "item", upstreams)
    await bonds.close()
