"""The promises of every store about refusals and requests by their ids (gateway/store/refusals.py)."""

from __future__ import annotations

import json
import time

import pytest

from gateway.records import KeyInTeam, Settlement
from gateway.store import RefusalEntry, RefusalQuery, ReportScope, Store
from gateway.store import refusals as under_test
from gateway.store.redis import refusals as redis_refusals
from gateway.store.sqlite import ledger as sqlite_ledger

from .changes import daily, draw, record
from .conftest import OpensStores
from .worker import Worker

NOW = time.time()


def entry(number: int, **more: object) -> RefusalEntry:
    values = {
        "id": f"req_{number}", "time": NOW + number, "key": "alice", "team": "red", "endpoint": "chat",
        "path": "/v1/chat/completions", "model": "m", "status": 429, "code": "insufficient_quota", "param": None,
        "message": "Zoë's quota is spent: \"10\" of 10 🦊", "limit": "tokens/day", "remote": "10.0.0.1",
        "requested_model": None, **more,
    }  # fmt: skip
    return RefusalEntry(**values)  # type: ignore[arg-type]


async def ids(store: Store, limit: int = 1000, before: str | None = None, **wanted: object) -> list[str]:
    found = await store.refusals(limit, before, RefusalQuery(**wanted))  # type: ignore[arg-type]
    return [each.entry.id for each in found]


async def test_the_newest_come_first_and_are_whole(store: Store, open_store: OpensStores) -> None:
    assert await store.refusals(10) == []
    entries = [entry(number) for number in range(5)]
    await store.add_refusals(entries[:3], NOW)
    await store.add_refusals(entries[3:], NOW)
    for each in (store, await open_store()):
        found = await each.refusals(10)
        assert [row.entry for row in found] == entries[::-1]
        assert len({row.position for row in found}) == 5
    assert await ids(store, 2) == ["req_4", "req_3"]
    assert await ids(store, 2, found[1].position) == ["req_2", "req_1"]
    assert await ids(store, 2, found[4].position) == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["req_3", "req_2", "req_1", "req_0"]),
        ({"key": "bob"}, ["req_1"]),
        ({"code": "model_not_found"}, ["req_2"]),
        ({"since": NOW + 2}, ["req_3", "req_2"]),
        ({"only": ReportScope(teams=frozenset({"blue"}))}, ["req_1"]),
        ({"until": NOW + 1}, ["req_1", "req_0"]),
        ({"id": "req_1"}, ["req_1"]),
        ({"team": "red", "model": "m"}, ["req_2", "req_0"]),
        ({"model": "n"}, []),
        ({"model": "m-typo"}, ["req_2"]),
        ({"status": (400, 428)}, []),
        ({"status": (429, 429), "team": "blue"}, ["req_1"]),
        ({"only": ReportScope(keys=frozenset({KeyInTeam("alice", "red")}))}, ["req_2", "req_0"]),
        ({"only": ReportScope()}, []),
        ({"key": "alice", "only": ReportScope(teams=frozenset({"blue"}))}, []),
    ],
)
async def test_only_those_that_are_wanted(store: Store, wanted: dict[str, object], found: list[str]) -> None:
    unknown = entry(3, key=None, team=None, code="invalid_api_key")
    some = [
        entry(0),
        entry(1, key="bob", team="blue"),
        entry(2, code="model_not_found", requested_model="m-typo"),
        unknown,
    ]
    await store.add_refusals(some, NOW)
    assert await ids(store, **wanted) == found


async def test_rare_ones_are_found_among_very_many(store: Store) -> None:
    await store.add_refusals([entry(0, key="bob"), *[entry(number) for number in range(1, 2500)]], NOW)
    assert await ids(store, 3, key="bob") == ["req_0"]


@pytest.mark.parametrize("before", ["", "x", "-1", "1-", "5' OR 1"])
async def test_what_is_no_position(store: Store, before: str) -> None:
    with pytest.raises(ValueError, match="position"):
        await store.refusals(10, before)


async def test_old_ones_and_too_many_are_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_ledger, redis_refusals):
        monkeypatch.setattr(module, "REFUSALS_KEPT", 1000)
    for start in range(0, 3000, 500):
        await store.add_refusals([entry(number) for number in range(start, start + 500)], NOW)
    found = await ids(store, 5000)
    assert found[:2] == ["req_2999", "req_2998"]
    assert 1000 <= len(found) <= 1200  # Redis deletes whole nodes of a stream
    await store.add_refusals([entry(9000 + 8 * 86400)], NOW + under_test.REFUSALS_KEPT_S + 8000)
    # The embedded store goes by the times of the entries, Redis by its own clock.
    assert len(await ids(store)) <= 1


async def test_a_request_is_found_by_its_id(store: Store) -> None:
    worker = Worker(store)
    wish = draw(daily())
    await worker.draw(wish)
    await worker.send(worker.closing(Settlement(record(wish.record.id, 7), wish.claims)))
    await store.add_refusals([entry(1)], NOW)
    assert await store.find_request("req_1") == entry(1)
    call = await store.find_request(wish.record.id)
    assert call is not None
    assert (call.id, hasattr(call, "usage")) == (wish.record.id, True)
    for unknown in ("req_2", "", "req_", "' OR 1=1"):
        assert await store.find_request(unknown) is None


def test_an_entry_of_an_older_gateway_names_no_requested_model() -> None:
    older = json.dumps(entry(1)[:-1])
    assert under_test.decode_refusal(older) == entry(1)
    assert under_test.decode_refusal(under_test.encode_refusal(entry(1))[:-1] + ',"more"]') == entry(1)
