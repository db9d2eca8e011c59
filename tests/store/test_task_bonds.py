"""Whose a task is, on every store: ids are unique in a row, and bonds of earlier versions are found."""

from __future__ import annotations

import time

import pytest

from gateway.accounting.bonds import Bonds, task_id
from gateway.config import Upstream
from gateway.errors import NotFound
from gateway.records import Bond, KeyInTeam
from gateway.store import Store
from gateway.upstream.credentials import account_of

NOW = time.time()
MAIN = Upstream(base_url="http://127.0.0.1:1")
UPSTREAMS = {"main": MAIN}
ALICE, BOB = KeyInTeam("alice", None), KeyInTeam("bob", None)


def bond(name: str, owner: str, model: str) -> Bond:
    return Bond(name, owner, None, "main", account_of(MAIN, 0), model, 0, NOW, "task", "req_1")


async def is_of(bonds: Bonds, key: KeyInTeam, given: str, *rows: str) -> bool:
    try:
        found = await bonds.require_task(key, rows, "main", given, UPSTREAMS)
    except NotFound:
        return False
    return found.in_team == key


async def test_an_id_is_of_a_row(store: Store) -> None:
    bonds = Bonds(store)
    await bonds.keep(bond(task_id("kling", "main", "7"), "alice", "kling/kling-v1"))
    await bonds.keep(bond(task_id("suno", "main", "7"), "bob", "suno/music"))
    assert [await is_of(bonds, ALICE, "7", row) for row in ("kling", "suno", "flux")] == [True, False, False]
    assert [await is_of(bonds, BOB, "7", row) for row in ("kling", "suno", "flux")] == [False, True, False]
    await bonds.close()


async def test_an_unknown_task_is_named_as_it_was_asked_for(store: Store) -> None:
    with pytest.raises(NotFound, match="'models/a:b'") as raised:
        await Bonds(store).require_task(ALICE, ("veo",), "main", "models/a:b", UPSTREAMS)
    assert raised.value.code == "task_not_found"


OLD = bond("main:7", "alice", "kling/kling-v1")
"""As version 0.2.0 wrote it: without the row in its id."""


async def test_an_earlier_versions_bond_is_found_by_its_row(store: Store) -> None:
    await store.add_bond(OLD, NOW)
    bonds = Bonds(store)
    assert await bonds.require_task(ALICE, ("kling",), "main", "7", UPSTREAMS) == OLD
    assert await is_of(bonds, ALICE, "7", "midjourney", "kling")  # a row with the tasks of another
    assert not await is_of(bonds, ALICE, "7", "suno")
    assert not await is_of(bonds, BOB, "7", "kling")
    assert not await is_of(bonds, ALICE, "8", "kling")
    await bonds.close()


async def test_an_earlier_versions_bond_hides_no_other_rows(store: Store) -> None:
    """Its id used to be taken: the second key had no bond, and the first one read the second's task."""
    await store.add_bond(OLD, NOW)
    bonds = Bonds(store)
    await bonds.keep(bond(task_id("suno", "main", "7"), "bob", "suno/music"))
    assert await is_of(bonds, ALICE, "7", "kling")
    assert await is_of(bonds, BOB, "7", "suno")
    assert not await is_of(bonds, ALICE, "7", "suno")
    await bonds.close()


@pytest.mark.parametrize("given", ["models/veo-3.0-generate-001/operations/a:b", "~7E", "a b", "%7E", "ü"])
async def test_any_id_has_a_bond(store: Store, given: str) -> None:
    bonds = Bonds(store)
    await bonds.keep(bond(task_id("veo", "main", given), "alice", "veo/veo-3.0-generate-001"))
    assert await is_of(bonds, ALICE, given, "veo")
    assert not await is_of(bonds, BOB, given, "veo")
    await bonds.close()
