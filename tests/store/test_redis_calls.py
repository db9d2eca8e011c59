"""Calls of a key in a Redis are sought where its sums are: none is missed, whatever is older, late or not indexed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from bench.growth import FIRST_DAY, NUMBERS, Size, entry_of, fill_redis
from gateway.config import StoreSettings as Settings
from gateway.quota import ledger_entry
from gateway.quota.ledger_entry import SEPARATOR
from gateway.records import KeyInTeam
from gateway.store import CallFilter, ReportScope
from gateway.store.redis import reports
from gateway.store.redis.store import RedisStore
from tests.fakes.redis_servers import RedisServer, servers_to_test

SIZE = Size(4, 5)
DAY_S = 86_400
BEFORE_ALL, LAST = -1, 40
"""Numbers of records: one before the first day, and the next behind those of `SIZE`."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), binary=servers_to_test()[0]) as running:
        yield running


@pytest.fixture
async def store(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisStore]:
    """One with a record that is older than all sums, of the key `early`, and two at the end: the key `new` has begun on
    the last day, and the record of the key `late` was written three days after its call."""
    monkeypatch.setattr(reports, "PASSED_AT_ONCE", 1)
    name = uuid.uuid4().hex
    before = RedisStore(Settings(url=server.url, namespace=name))
    await add_record(before, "early", BEFORE_ALL, -1.5)
    await before.close()
    filled = await fill_redis(server, SIZE, name)
    await add_record(filled, "new", LAST, 4.9)
    await add_sums(filled, "new", 4)
    await add_record(filled, "late", LAST + 1, 1.5, written=4.99)
    await add_sums(filled, "late", 1)
    for number in range(LAST + 2, LAST + 8):
        await add_record(filled, "key-0000000", number, 4.995)
    try:
        yield filled
    finally:
        await filled.close()


async def add_record(store: RedisStore, key: str, number: int, days: float, written: float | None = None) -> None:
    began = FIRST_DAY.timestamp() + days * DAY_S
    record = SIZE.record(max(number, 0))._replace(id=f"req-{number}", key=key, time=began)
    _, *fields = entry_of(record, 0)
    at = began if written is None else FIRST_DAY.timestamp() + written * DAY_S
    await store._reading.ask(("XADD", f"{store._base}records", f"{int(at * 1000)}-{number + 1}", *fields))


async def add_sums(store: RedisStore, key: str, day: int) -> None:
    group = SEPARATOR.join((key, *SIZE.group(0, day)[1:]))
    await store._reading.ask(("HSET", f"{store._base}sums:{SIZE.names[day]}", group, " ".join(map(str, NUMBERS))))


async def make_index(store: RedisStore) -> None:
    await store.usage(["key"])


async def ids(store: RedisStore, key: str, **wanted: Any) -> list[str]:
    """Those of its calls, one page after another, each with less than the key has."""
    found: list[str] = []
    before: str | None = None
    while rows := await store.calls(3, key, before, wanted=CallFilter(**wanted)):
        found += [row["id"] for row in rows]
        before = rows[-1]["position"]
    return found


def counting(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[Any, Sequence[str]]], list[str]]:
    """The scripts that a store runs from now on with their arguments, and the texts of the records that it decodes."""
    turns: list[tuple[Any, Sequence[str]]] = []
    decoded: list[str] = []
    run, decode = store._reading.run, ledger_entry.decode_record

    async def counted(script: Any, *rest: Any) -> Any:
        turns.append((script, rest[1]))
        return await run(script, *rest)

    monkeypatch.setattr(store._reading, "run", counted)
    monkeypatch.setattr(ledger_entry, "decode_record", lambda text: (decoded.append(text), decode(text))[1])
    return turns, decoded


KEYS = ("early", "new", "late", "nobody", *[f"key-{key:07}" for key in range(SIZE.keys)])


async def test_every_call_of_a_key_is_found(store: RedisStore) -> None:
    one_by_one = {key: await ids(store, key) for key in KEYS}
    assert {key: len(found) for key, found in one_by_one.items()} == {
        "early": 1, "new": 1, "late": 1, "nobody": 0, **dict.fromkeys(KEYS[4:], 10), "key-0000000": 16,
    }  # fmt: skip
    await make_index(store)
    for key, found in one_by_one.items():
        assert await ids(store, key) == found, key
        assert await ids(store, key, status=(500, 599)) == []
        assert await ids(store, key, status=(200, 299)) == found
    teams = {key: f"team-{int(key[-1])}" for key in KEYS[4:]}
    scope = ReportScope(keys=frozenset({KeyInTeam("early", "team-0"), KeyInTeam(KEYS[5], teams[KEYS[5]])}))
    assert [row["id"] for row in await store.calls(99, only=scope)] == [*one_by_one[KEYS[5]], "req--1"]


async def test_what_is_not_in_the_sums_of_a_key_is_passed_over(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, _ = counting(store, monkeypatch)

    async def turns_of(key: str) -> int:
        turns.clear()
        await store.calls(100, key)
        return len([script for script, _ in turns if script is reports.NEWEST])

    every = SIZE.keys * 10 + 3 + 6 + 1
    assert await turns_of("nobody") == every  # without the index
    await make_index(store)
    # Behind the newest four: the oldest record, the one within an hour of the oldest sums, and the end.
    assert await turns_of("nobody") == reports.SOUGHT_BEHIND + 3
    # And those of the last day, and the next one.
    assert await turns_of("new") == 6 + 2 + 8 + 1 + 3
    assert await turns_of("key-0000001") == every


@pytest.mark.parametrize(
    ("wanted", "passed"),
    [({}, 3), ({"since": FIRST_DAY.timestamp()}, 4), ({"until": 2e9}, 16), ({"team": "team-0"}, 16)],
)
async def test_a_page_that_is_filled_reads_no_further(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any], passed: int
) -> None:
    monkeypatch.setattr(reports, "PASSED_AT_ONCE", 16)
    monkeypatch.setattr(reports, "CALLS_AT_ONCE", 4)
    turns, decoded = counting(store, monkeypatch)
    assert len(await store.calls(3, wanted=CallFilter(**wanted))) == 3
    assert [arguments[1] for _, arguments in turns] == [str(passed)]
    assert len(decoded) == min(passed, 4)


@pytest.mark.parametrize("status", [100, 200, 299, 304, 400, 499, 503, 599])
def test_a_class_of_status_is_sought_by_a_text_that_its_records_have(status: int) -> None:
    lowest = status - status % 100
    (text,) = reports.Sought.of(CallFilter(status=(lowest, lowest + 99))).texts
    assert text in entry_of(SIZE.record(1)._replace(status=status), 1)[2]


async def test_sums_by_returned_model_pass_over_earlier_records_and_read_no_later_ones(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = await store.usage_by_returned_model(SIZE.names[0], SIZE.names[-1])
    assert sum(row["requests"] for row in every) == SIZE.keys * 10 + 8
    turns, decoded = counting(store, monkeypatch)
    day = SIZE.names[3]
    assert await store.usage_by_returned_model(day, day) == [row for row in every if row["day"] == day]
    assert len(turns) == 8 + 8 + 8 + 1  # at the end, on the day behind it, on it, and the one before
    assert len(decoded) == 8 + 1 + 1  # that one, and the late one


async def test_an_older_gateway_that_writes_without_the_index_hides_no_call(store: RedisStore) -> None:
    await make_index(store)
    await add_record(store, "older", LAST + 10, 4.999)
    for number in range(LAST + 11, LAST + 17):
        await add_record(store, "key-0000000", number, 4.9995)
    await add_sums(store, "older", 4)
    await store._reading.ask(("HSET", f"{store._base}sums:{SIZE.names[4]}", "?", "sums; last written by an older one"))
    assert await ids(store, "older") == [f"req-{LAST + 10}"]
    await make_index(store)
    assert await ids(store, "older") == [f"req-{LAST + 10}"]
