"""Moves between all kinds of stores: whole, in passes, broken off, and into a store with usage of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.config import StoreSettings as Settings
from gateway.quota import ledger_entry
from gateway.records import Bond
from gateway.store import Store, StoreChange
from gateway.store.opening import open_store
from gateway.store.refusals import RefusalEntry
from gateway.wings.transfer import file
from gateway.wings.transfer.rows import KINDS, StoreRow
from gateway.wings.transfer.tables import Tables, open_tables
from gateway.wings.transfer.taking import Compared, compare, take
from tests.fakes.redis_servers import RedisServer, servers_to_test
from tests.store.changes import Clock, daily, money, parallel, record, settlement, slow, tokens
from tests.store.worker import Worker, endings, levels

NAMES = ("embedded", "redis")
PAIRS = [(one, other) for one in NAMES for other in NAMES]
CLAIMS = (
    daily(),
    tokens(1000, 30),
    money(10**9, 10**6),
    slow(1000, 50),
    daily(unit="requests", per="month", starts="2026-11"),
)
FURTHER = daily(scope="team:red", per="week", starts="2026-W47")


class Side:
    """One store with what an import needs, and a worker that uses it."""

    def __init__(self, settings: Settings, store: Store, tables: Tables) -> None:
        self.settings, self.store, self.tables = settings, store, tables
        self.worker = Worker(store)

    async def call(self, tokens: int = 20, **changes: Any) -> None:
        drawn = await self.worker.granted(*CLAIMS, FURTHER)
        usage = record(tokens=tokens).usage
        ended = settlement(
            drawn, tokens, cost_nusd=500_000, user="ann", tags="app=web", timeline="", usage=usage, **changes
        )
        await self.worker.send(self.worker.closing(ended))

    async def put(self, name: str, text: str | None, before: str | None = None, **more: Any) -> None:
        assert await self.store.change(StoreChange("key", name, before, text, f"{before} -> {text}", **more))

    async def seen(self) -> list[Any]:
        """All that reports and lists show of usage and keys, without the order of the log's positions."""
        rows = await self.store.calls(1000)
        return [
            [await self.store.page(kind) for kind in ("key", "team", "overlay")],
            await self.store.usage(("day", "key", "team", "model", "upstream", "endpoint")),
            await self.store.usage(("hour",), "2026-11-20T00", "2026-11-20T23"),
            await self.store.usage(("user",)),
            await self.store.usage(("tag:app",)),
            await self.store.measures(("day", "model", "upstream")),
            [{**row, "position": None} for row in rows],
            [(entry.kind, entry.name, entry.audit) for entry in await self.store.audit(1000)],
            [each.entry for each in await self.store.refusals(1000)],
            await self.store.find_keys([digest("one"), digest("two")]),
            await self.store.find_bond("resp_1", Clock().now),
            await levels(self.store, Clock(), *CLAIMS, FURTHER),
        ]


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


Opens = Callable[[str, str], Any]


@pytest.fixture
async def opens(
    tmp_path: Path, redis_servers: Callable[[str], RedisServer], request: pytest.FixtureRequest
) -> AsyncIterator[Opens]:
    """Opens one side, by its kind and a name."""
    opened: list[Side] = []

    async def open_side(kind: str, name: str, **more: Any) -> Side:
        if kind == "embedded":
            settings = Settings(url=f"embedded:{tmp_path / name}", **more)
        else:
            namespace = digest(request.node.nodeid)[:16] + name
            settings = Settings(url=redis_servers(servers_to_test()[0]).url, namespace=namespace, **more)
        made = Side(settings, await open_store(settings), open_tables(settings))
        opened.append(made)
        return made

    yield open_side
    for each in opened:
        await each.tables.close()
        await each.store.close()


async def exported(side: Side, path: Path) -> Path:
    head = file.ExportHead(
        await side.tables.id(), side.settings.shown_url, "2026-11-20", *await side.tables.under_way()
    )
    await file.write(path, head, side.tables.rows())
    return path


async def imported(side: Side, path: Path) -> tuple[list[str], list[Compared]]:
    head = file.read_head(path)
    faults = await take(side.tables, side.store, head, path)
    return faults, await compare(side.tables, side.store, head, path, file.checked_totals(path))


async def filled(side: Side) -> None:
    """Some of everything that a store has."""
    await side.put("alice", '{"a":1}', secrets_added=(digest("one"), digest("two")))
    assert await side.store.change(StoreChange("team", "red", None, "{}", "made"))
    assert await side.store.change(StoreChange("overlay", "key:alice", None, '{"top_ups":1}', "topped up"))
    for _ in range(3):
        await side.call()
    await side.call(model="other", label_model="other", key="bob", failed="up:500")
    entry = RefusalEntry("req_9", Clock().now, "alice", None, "chat", "/", "gpt", 429, "c", None, "m", None, None)
    await side.store.add_refusals([entry], Clock().now)
    await side.store.add_bond(Bond("resp_1", "alice", None, "up", "", "gpt", 7, Clock().now), Clock().now)


def differing(compared: Sequence[Compared]) -> list[Compared]:
    return [each for each in compared if not each.is_equal]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", ["tables.jsonl", "tables.jsonl.gz"])
async def test_a_store_moves_whole(pair: tuple[str, str], name: str, opens: Opens, tmp_path: Path) -> None:
    old, new = await opens(pair[0], "old"), await opens(pair[1], "new")
    await filled(old)
    path = await exported(old, tmp_path / name)
    faults, compared = await imported(new, path)
    assert (faults, differing(compared)) == ([], [])
    assert {each.kind for each in compared} == {*KINDS}
    assert await new.seen() == await old.seen()
    (window,) = await new.store.window_statuses([CLAIMS[0].window], Clock().now)
    assert (window.used, window.reserved) == (4, 0)


@pytest.mark.parametrize("pair", PAIRS)
async def test_a_second_pass_brings_what_came_since_and_nothing_twice(
    pair: tuple[str, str], opens: Opens, tmp_path: Path
) -> None:
    """The new store has calls of its own meanwhile, of the same key on the same day."""
    old, new, both = await opens(pair[0], "old"), await opens(pair[1], "new"), await opens("embedded", "both")
    await filled(old)
    first = await exported(old, tmp_path / "1.jsonl")
    await imported(new, first)
    await new.call(7)
    await old.call(9)
    await old.put("carol", "{}", secrets_added=(digest("three"),))
    await old.put("alice", '{"a":2}', '{"a":1}', secrets_removed=(digest("one"),))
    second = await exported(old, tmp_path / "2.jsonl")
    for path in (second, second, first, second):
        faults, compared = await imported(new, path)
        assert differing(compared) == [] or path == first, compared
        assert faults == []
    (row,) = await new.store.usage(())
    assert (row["requests"], row["prompt_tokens"]) == (6, 4 * 20 + 7 + 9)
    assert len(await new.store.calls(100)) == 6
    (window,) = await new.store.window_statuses([CLAIMS[0].window], Clock().now)
    assert window.used == 6
    assert await new.store.find_keys([digest("one"), digest("two"), digest("three")]) == [None, '{"a":2}', "{}"]
    assert both is not new


@pytest.mark.parametrize("pair", PAIRS)
async def test_an_import_that_is_broken_off_anywhere_can_be_repeated(
    pair: tuple[str, str], opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = await opens(pair[0], "old"), await opens(pair[1], "new")
    await filled(old)
    path = await exported(old, tmp_path / "tables.jsonl")
    head, steps = file.read_head(path), 0

    class BrokenOff(Exception):
        pass

    def breaking(name: str, does: Any, is_before: bool) -> Any:
        async def step(*arguments: Any) -> Any:
            nonlocal steps
            steps -= 1
            if steps == 0 and is_before:
                raise BrokenOff
            done = await does(*arguments)
            if steps == 0:
                raise BrokenOff
            return done

        return step

    for is_before in (True, False):
        for name in ("add", "append", "put_rates", "note_taken"):
            with monkeypatch.context() as patched:
                patched.setattr(new.tables, name, breaking(name, getattr(new.tables, name), is_before))
                steps = 1
                try:
                    await take(new.tables, new.store, head, path)
                except BrokenOff:
                    pass
    faults, compared = await imported(new, path)
    assert (faults, differing(compared)) == ([], [])
    assert await new.seen() == await old.seen()


@pytest.mark.parametrize("name", NAMES)
async def test_what_was_changed_at_the_new_store_stays_and_is_said(name: str, opens: Opens, tmp_path: Path) -> None:
    old, new = await opens("embedded", "old"), await opens(name, "new")
    await old.put("alice", "{}")
    await old.put("bob", "{}", secrets_added=(digest("b"),))
    await old.put("dave", "{}")
    await imported(new, await exported(old, tmp_path / "1.jsonl"))
    await new.put("alice", '{"here":1}', "{}")
    await old.put("alice", '{"there":1}', "{}")
    await old.put("dave", None, "{}")
    await old.put("carol", "{}", secrets_added=(digest("c"),))
    await new.put("other", "{}", secrets_added=(digest("c"),))
    faults, compared = await imported(new, await exported(old, tmp_path / "2.jsonl"))
    assert faults == [
        "key alice was changed here, and stays as it is; its state in the file is not taken",
        "key carol has a secret that leads to another key here; rename or delete that one first",
    ]
    (different,) = differing(compared)
    assert (different.kind, different.faults) == ("document", ("key alice", "key carol"))
    assert await new.store.read("key", ["alice", "dave"]) == ['{"here":1}', None]


@pytest.mark.parametrize("name", NAMES)
async def test_a_call_under_way_comes_with_a_later_pass(name: str, opens: Opens, tmp_path: Path) -> None:
    old, new = await opens(name, "old"), await opens("embedded", "new")
    drawn = await old.worker.granted(daily(), parallel())
    first = await exported(old, tmp_path / "1.jsonl")
    assert file.read_head(first)[3:] == (1, 0)
    await imported(new, first)
    assert await levels(new.store, Clock(), daily(), parallel()) == [(0, 0), (0, 0)]
    await old.worker.settle(drawn, 20)
    await imported(new, await exported(old, tmp_path / "2.jsonl"))
    assert await levels(new.store, Clock(), daily(), parallel()) == [(1, 0), (0, 0)]
    assert await endings(new.store) == ["done"]


@pytest.mark.parametrize("kind", ["day", "window", "record", "secret", "document", "audit", "refusal"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_row_that_is_not_there_makes_the_comparison_fail(
    name: str, kind: str, opens: Opens, tmp_path: Path
) -> None:
    old, new = await opens("embedded", "old"), await opens(name, "new")
    await filled(old)
    path = await exported(old, tmp_path / "tables.jsonl")
    await imported(new, path)
    more = {
        "day": StoreRow("day", ("2026-11-20", "zoe", "", "gpt-x", "up", "chat"), (1, 0, 0, 0, 0, 0, 0, 0, 0)),
        "window": StoreRow("window", ("2026-11-20", "key:zoe|requests|day||2026-11-20"), (5,)),
        "record": StoreRow(
            "record", ("9" * 20, "req_x"), (), ledger_entry.encode(record("req_x"), ()).partition("\t")[2]
        ),
        "secret": StoreRow("secret", (digest("zoe"), "zoe")),
        "document": StoreRow("document", ("key", "zoe"), (), "{}"),
        "audit": StoreRow("audit", ("9" * 20, "key", "zoe"), (), "zoe made"),
        "refusal": StoreRow("refusal", ("9" * 20,), (), json.dumps(["req_y", 9e9])),
    }[kind]

    async def rows() -> AsyncIterator[StoreRow]:
        for row in [*file.read_rows(path), more]:
            yield row

    changed = tmp_path / "changed.jsonl"
    head = file.read_head(path)
    await file.write(changed, head, rows())
    compared = await compare(new.tables, new.store, head, changed, file.checked_totals(changed))
    assert [each.kind for each in differing(compared)] == [kind]
