"""The promises of every store about bonds (gateway/store/bonds.py)."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.records import Bond
from gateway.store import Store
from gateway.store import bonds as under_test
from gateway.store.redis import bonds as redis_bonds
from gateway.store.redis.store import RedisStore
from gateway.store.sqlite import bonds as sqlite_bonds

from .changes import Clock
from .conftest import OpensStores
from .worker import Worker, pass_days

NOW = time.time()


def bond(number: int = 1, **more: object) -> Bond:
    values = {
        "id": f"resp_{number}", "key": "alice", "team": "réd", "upstream": "main", "account": "1f", "model": "m",
        "tokens": 7, "made": NOW, **more,
    }  # fmt: skip
    return Bond(**values)  # type: ignore[arg-type]


async def test_every_instance_finds_a_bond_until_it_is_removed(store: Store, open_store: OpensStores) -> None:
    await store.add_bond(bond(), NOW)
    other = await open_store()
    assert await other.find_bond("resp_1", NOW) == bond()
    assert await other.find_bond("resp_2", NOW) is None
    await other.remove_bond(bond())
    assert await store.find_bond("resp_1", NOW) is None


async def test_its_own_key_may_write_it_again_and_no_other(store: Store) -> None:
    await store.add_bond(bond(), NOW)
    await store.add_bond(bond(tokens=9), NOW)
    await store.add_bond(bond(key="bob", team=None), NOW)
    assert await store.find_bond("resp_1", NOW) == bond(tokens=9)
    await store.remove_bond(bond(key="bob"))


async def test_tokens_of_a_conversation_add_up(store: Store, open_store: OpensStores) -> None:
    """Also those that several workers add at once, of the same state; no less than none is left."""
    first, other = bond(kind="conversation", tokens=50, made=NOW // 1), await open_store()
    await store.add_bond(first, NOW)
    more = [first._replace(tokens=tokens) for tokens in (10, 20, 0, -15)]
    await asyncio.gather(*[each.add_bond(one, NOW) for each in (store, other) for one in more])
    assert await other.find_bond("resp_1", NOW) == first._replace(tokens=80)
    await store.add_bond(first._replace(key="bob", tokens=100), NOW)
    assert await store.find_bond("resp_1", NOW) == first._replace(tokens=80)
    await store.add_bond(first._replace(tokens=-100), NOW)
    assert await store.find_bond("resp_1", NOW) == first._replace(tokens=0)
    await store.remove_bond(first)


@pytest.mark.parametrize("deleted_by", ["alice", "bob"])
async def test_it_ends_after_its_time(store: Store, worker: Worker, clock: Clock, deleted_by: str) -> None:
    """It is deleted when it is old by the clock of retention, too, in Redis also if its key has no new ones."""
    now = clock.now
    await worker.send()
    await store.add_bond(bond(), now)
    assert await store.find_bond("resp_1", now + under_test.BOND_KEPT_S - 2)
    assert await store.find_bond("resp_1", now + under_test.BOND_KEPT_S + 2) is None
    await store.add_bond(bond(2, key="bob"), now + under_test.BOND_KEPT_S + 2)
    assert await store.find_bond("resp_1", now)
    await pass_days(worker, clock, under_test.BOND_KEPT_S // 86_400 + 2)
    await store.add_bond(bond(3, key=deleted_by), clock.now)
    assert await store.find_bond("resp_1", now) is None
    assert await store.find_bond("resp_2", now)


async def test_redis_deletes_many_bonds_some_at_a_time(store: Store, worker: Worker, clock: Clock) -> None:
    for number in range(230):
        await store.add_bond(bond(number), clock.now)
    await pass_days(worker, clock, under_test.BOND_KEPT_S // 86_400 + 4)
    if isinstance(store, RedisStore):
        (keys,) = await store._reading.ask(("KEYS", f"{store._base}bond*"))
        assert keys == []


async def test_only_the_newest_of_a_key_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (redis_bonds, sqlite_bonds):
        monkeypatch.setattr(place, "BONDS_KEPT", 3)
    await store.add_bond(bond(100, key="bob"), NOW)
    for number in range(6):
        await store.add_bond(bond(number), NOW + number)
    found = [number for number in (*range(6), 100) if await store.find_bond(f"resp_{number}", NOW)]
    assert found == [3, 4, 5, 100]


async def test_a_key_has_a_list_of_each_kind(store: Store) -> None:
    for number in range(4):
        await store.add_bond(bond(number, kind="file", note="{}", made=NOW + number), NOW + number)
    await store.add_bond(bond(9, kind="batch"), NOW)
    await store.add_bond(bond(10), NOW)
    await store.add_bond(bond(11, key="bob", kind="file"), NOW)
    await store.remove_bond(bond(2))
    found = await store.bonds_of("alice", "file", NOW)
    assert [each.id for each in found] == ["resp_3", "resp_1", "resp_0"]
    assert found[0] == bond(3, kind="file", note="{}", made=NOW + 3)
    assert [each.id for each in await store.bonds_of("alice", "", NOW)] == ["resp_10"]
    assert await store.bonds_of("alice", "file", NOW + under_test.BOND_KEPT_S + 9) == []
    assert await store.bonds_of("carol", "file", NOW) == []


async def test_items_of_answers_do_not_displace_responses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (redis_bonds, sqlite_bonds):
        monkeypatch.setattr(place, "BONDS_KEPT", 3)
    for number in range(6):
        await store.add_bond(bond(number), NOW + number)
        for item in under_test.item_bonds(bond(number), [f"msg_{number}", f"rs_{number}"], 9):
            await store.add_bond(item, NOW + number)
    assert await store.find_bond("msg_5", NOW) == bond(5)._replace(id="msg_5", tokens=4, kind="item")
    assert [number for number in range(6) if await store.find_bond(f"resp_{number}", NOW)] == [3, 4, 5]
    assert [number for number in range(6) if await store.find_bond(f"rs_{number}", NOW)] == [4, 5]
    await store.remove_bond(bond(5)._replace(id="msg_5", kind="item"))
    assert await store.find_bond("msg_5", NOW) is None


@pytest.mark.parametrize("text", ["", "a b", "resp/1", "x" * 257, "ré", "a\n"])
def test_what_is_no_id(text: str) -> None:
    assert not under_test.is_bond_id(text)
    assert under_test.is_bond_id("resp_68af4030592c81938ec0a5fbab4a3e9f05438e46b5f69a3b")
