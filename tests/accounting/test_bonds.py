"""Tokens that are added to a conversation while its bond is being written are neither lost nor added twice."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gateway.accounting.bonds import Bonds
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
