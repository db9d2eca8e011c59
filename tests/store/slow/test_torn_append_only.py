"""A Redis that was killed while it wrote its append-only file, and its state after each restart.

Such a file ends in the middle of a transaction. Redis truncates it after the last complete command and keeps the
incomplete transaction in the file: the next commands are appended to it, and the next restart executes both. (Valkey
truncates the file before the transaction, as of 2026.) The stored sums have to be right in both cases.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import StoreSettings as Settings
from gateway.quota.ledger_entry import encode
from gateway.records import Settlement
from gateway.store import Defer, StoreChange
from gateway.store.redis import store as redis
from gateway.store.redis.store import RedisStore
from tests.fakes.redis_servers import RedisServer, name_of, servers_to_test
from tests.store.changes import daily, draw, parallel, settlement, slow, tokens
from tests.store.test_contract_keys import digest, put
from tests.store.worker import Worker

CUTS = 12

KEY_CUTS = 6


@pytest.fixture(params=servers_to_test(), ids=name_of)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", binary=request.param, appendonly="always") as server:
        yield server


def last_file(server: RedisServer) -> Path:
    """The one to which the server appends."""
    return max(server.folder.rglob("*.aof"), key=lambda path: path.stat().st_mtime_ns)


def cuts(path: Path, since: int) -> Iterator[int]:
    """Offsets in bytes in the middle of each command that an append-only file has from an offset on: a file that is cut
    between two commands loses its incomplete transaction at the first restart."""
    data, end = path.read_bytes(), since

    def number() -> int:
        nonlocal end
        begin, end = end + 1, data.index(b"\r\n", end) + 2
        return int(data[begin : end - 2])

    while end < len(data):
        begin = end
        for _ in range(number()):
            length = number()
            end += length + 2
        yield (begin + end) // 2


class Torn:
    """A server whose append-only file ends with one batch, which no worker knows the end of."""

    def __init__(self, server: RedisServer, kept: Path, since: int) -> None:
        """Ends the server, and keeps its files in the folder `kept`; `since`: the size of the file before the batch."""
        server.kill()
        self._server, self._kept = server, kept
        shutil.copytree(server.folder, kept)
        self.cuts = list(cuts(last_file(server), since))

    def restart(self, cut: int) -> None:
        """Start the server with its file as it was, cut at this offset."""
        self._server.kill()
        shutil.rmtree(self._server.folder)
        shutil.copytree(self._kept, self._server.folder)
        with last_file(self._server).open("r+b") as file:
            file.truncate(cut)
        self._server.restart()

    async def restore(self, cut: int, between: Callable[[RedisStore], Awaitable[object]]) -> RedisStore:
        """The same, something done, and another restart, which executes the piece of the batch; the store then."""
        self.restart(cut)
        store = await RedisStore.open(Settings(url=self._server.url))
        await between(store)
        await store.close()
        self._server.kill()
        self._server.restart()
        return await RedisStore.open(Settings(url=self._server.url))


async def state(url: str, claims: tuple[Any, ...], worker: Worker, server: RedisServer) -> dict[str, Any]:
    """All that can be read from the store."""
    store = await RedisStore.open(Settings(url=url))
    try:
        return {
            "windows": [standing[1:3] for standing in await store.window_statuses([each.window for each in claims], 0)],
            "calls": await store.calls(100),
            "records": server.call("XLEN", "{gateway}:1:records"),
            "sums": await store.usage(["key", "model"]),
            "progress": await store.progress(worker.name),
            "leases": server.cli("HKEYS", f"{{gateway}}:1:leases:{worker.name}"),
        }
    finally:
        await store.close()


async def test_half_a_batch_in_the_file_counts_for_nothing(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "BATCH_WITHIN_S", 20)
    claims = tokens(1000, 40), slow(1000, 40), parallel(10)
    store = await RedisStore.open(Settings(url=server.url))
    worker = Worker(store)
    first = await worker.granted(*claims)
    await worker.settle(first, 5)
    running = await worker.granted(*claims)
    before, number = last_file(server).stat().st_size, worker.number
    # This batch is in the air when the power fails: the end of one call, and the draw of another.
    end, wish = settlement(running, 7), draw(*claims, call="never answered")
    await worker.send(worker.closing(end), worker.opening(wish))
    whole = last_file(server).stat().st_size
    server.kill()
    await store.close()
    kept, worker.acked = tmp_path / "kept", worker.acked - 1
    shutil.copytree(server.folder, kept)
    step, seq = (whole - before) // CUTS, worker.seq
    for cut in [whole, *range(before + step // 2, whole, step), whole - 1]:
        shutil.rmtree(server.folder)
        shutil.copytree(kept, server.folder)
        with last_file(server).open("r+b") as file:
            file.truncate(cut)
        server.restart()
        worker.store = await RedisStore.open(Settings(url=server.url))
        worker.seq, worker.number, worker.acked = seq, number, seq - 1
        # The bookkeeper repeats these after a lost answer.
        closing, voiding = worker.closing(end), worker.voiding(wish)
        await worker.send(closing)
        await worker.send(worker.opening(wish, is_forced=True), voiding)
        await worker.store.close()
        received = await state(server.url, claims, worker, server)
        assert received["windows"] == [(12, 0), (12, 0), (0, 0)], f"cut at {cut - before} of {whole - before}"
        assert [call["id"] for call in received["calls"]] == [running.record.id, first.record.id]
        server.kill()
        server.restart()
        assert await state(server.url, claims, worker, server) == received, f"cut at {cut - before} of {whole - before}"
        server.kill()


@pytest.mark.timeout(120)
async def test_half_a_batch_that_a_second_restart_executes_is_applied_once(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker whose batch it is sends it again behind the second restart, another one has sent between the two."""
    monkeypatch.setattr(redis, "BATCH_WITHIN_S", 20)
    claims, own = (tokens(1000, 40), slow(1000, 40), parallel(10)), tokens(1000, 40, scope="key:own")
    store = await RedisStore.open(Settings(url=server.url))
    worker = Worker(store)
    running = [await worker.granted(*claims, own) for _ in range(3)]
    before, number = last_file(server).stat().st_size, worker.number
    ends, wish = [settlement(each, 7) for each in running], draw(*claims, call="never answered")
    await worker.send(*map(worker.closing, ends), worker.opening(wish))
    await store.close()
    torn, seq = Torn(server, tmp_path / "kept", before), worker.seq

    async def call(store: RedisStore) -> None:
        other = Worker(store)
        await other.settle(await other.granted(*claims), 3)

    for cut in torn.cuts:
        worker.store = await torn.restore(cut, call)
        worker.seq, worker.number, worker.acked = seq, number, seq - 1
        await worker.send(*map(worker.closing, ends))
        voiding = worker.voiding(wish)
        await worker.send(worker.opening(wish, is_forced=True), voiding)
        received = await state(server.url, (*claims, own), worker, server)
        await worker.store.close()
        place = f"cut at {cut - before} in {[each - before for each in torn.cuts]}"
        assert received["windows"] == [(24, 0), (24, 0), (0, 0), (21, 0)], place
        assert [row["requests"] for row in received["sums"]] == [4], place
        assert received["records"] == len(received["calls"]) == 4, place
        assert {row["id"] for row in received["calls"]} > {each.record.id for each in running}, place


Scenario = Callable[[Worker, Worker, RedisServer], Awaitable[Callable[[], Awaitable[object]]]]
"""Prepares a store for two workers; the batch that it returns is torn."""


async def calls(worker: Worker, other: Worker, server: RedisServer) -> Callable[[], Awaitable[object]]:
    """Draws, and ends with users and tags, of keys that the store knows and of new ones."""
    running = [await worker.granted(daily(10), tokens(1000, 40), slow(1000, 40), parallel(10)) for _ in range(3)]
    await worker.settle(await worker.granted(daily(10)), 5, user="ada", tags="project=atlas")
    new = draw(daily(10, scope="key:new"), slow(1000, 40, scope="key:new"))
    more = settlement(running[1], 7, user="zoe", key="new", model="another")
    ends = [settlement(running[0], 7, user="ada", tags="project=atlas"), more]
    return lambda: worker.send(
        *map(worker.closing, ends),
        worker.voiding(running[2]),
        worker.opening(draw(tokens(1000, 40))),
        worker.opening(new),
    )


async def retirement(worker: Worker, other: Worker, server: RedisServer) -> Callable[[], Awaitable[object]]:
    for _ in range(3):
        await worker.granted(tokens(1000, 40), slow(1000, 40), parallel(10))
    return lambda: worker.store.retire(worker.name)


async def silence(worker: Worker, other: Worker, server: RedisServer) -> Callable[[], Awaitable[object]]:
    """A silent worker's calls are closed as lost by the batch of another one."""
    for _ in range(3):
        await worker.granted(tokens(1000, 40), slow(1000, 40), parallel(10))
    await other.send()
    server.cli("ZADD", "{gateway}:1:alive", 1, worker.name)
    return other.send


async def noise(worker: Worker, other: Worker, server: RedisServer) -> Callable[[], Awaitable[object]]:
    """A worker returns whose calls were closed as lost: one ends, the others are open again."""
    ends = [settlement(await worker.granted(tokens(1000, 40), slow(1000, 40), parallel(10)), 5) for _ in range(3)]
    await (await silence(worker, other, server))()
    return lambda: worker.send(worker.closing(ends[0]))


async def deferral(worker: Worker, other: Worker, server: RedisServer) -> Callable[[], Awaitable[object]]:
    """Of a lease that the store knows, and of one that it does not."""
    wishes = [await worker.granted(tokens(1000, 40), parallel(10)), draw(tokens(1000, 40), slow(1000, 40))]
    estimates = [Settlement(each.record, each.claims) for each in wishes]
    return lambda: worker.send(*[
        Defer(number, *each, encode(*each), "note") for number, each in enumerate(estimates, 1)
    ])  # fmt: skip


def kept_of(server: RedisServer, other: Worker) -> dict[str, Any]:
    """All fields and records, but for what a sign of life of the other worker changes."""
    found: dict[str, Any] = {}
    ignored = ("alive", "gaps", "sent", "days", "ages", "probe", "retention", other.name)
    for key in server.cli("KEYS", "*").split():
        if key.endswith(ignored) or ":sums:groups-" in key:  # a group that the index alone has is in no report
            continue
        kind = server.cli("TYPE", key)
        if kind == "stream":
            entries: Any = server.call("XRANGE", key, "-", "+")
            if entries:
                found[key] = [text for _, (_, text) in entries]
        elif kind == "hash":
            lines = server.call("HGETALL", key)
            assert isinstance(lines, list)
            fields = {name: text for name, text in zip(lines[::2], lines[1::2], strict=True) if name not in ("?", b"?")}
            if fields:
                found[key] = fields
        else:
            found[key] = server.cli("GET", key)
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("scenario", [calls, retirement, silence, noise, deferral])
async def test_half_a_batch_that_a_second_restart_executes_changes_nothing(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Scenario
) -> None:
    """No worker sends it again. A record that the batch deletes cannot come back: that is its last command, and only a
    file with all of it but for its EXEC has lost the record."""
    monkeypatch.setattr(redis, "BATCH_WITHIN_S", 20)
    store = await RedisStore.open(Settings(url=server.url))
    worker, other = Worker(store), Worker(store)
    torn_batch = await scenario(worker, other, server)
    before, right = last_file(server).stat().st_size, kept_of(server, other)
    await torn_batch()
    assert kept_of(server, other) != right
    await store.close()
    torn = Torn(server, tmp_path / "kept", before)

    async def connect(store: RedisStore) -> None:
        await store.ping()

    for cut in torn.cuts[:-1] if scenario is noise else torn.cuts:
        store = await torn.restore(cut, connect)
        assert kept_of(server, other) == right, f"cut at {cut - before} in {[each - before for each in torn.cuts]}"
        assert server.cli("ZRANGE", "{gateway}:1:alive", 0, -1).split()
        await store.close()


async def test_half_a_change_in_the_file_revives_no_revoked_key(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("BATCH_WITHIN_S", "FIND_WITHIN_S", "READ_WITHIN_S"):
        monkeypatch.setattr(redis, limit, 20)
    claim, first, second = tokens(1000, 40), digest("first"), digest("second")
    store = await RedisStore.open(Settings(url=server.url))
    worker = Worker(store)
    await worker.settle(await worker.granted(claim), 30)
    await put(store, "a", "1", secrets_added=(first,))
    before = last_file(server).stat().st_size
    # The power fails during this change, and its client does not repeat it.
    await put(store, "a", "2", before="1", secrets_added=(second,), secrets_removed=(first,), resets=(claim.window,))
    whole = last_file(server).stat().st_size
    server.kill()
    await store.close()
    kept = tmp_path / "kept"
    shutil.copytree(server.folder, kept)
    for cut in [*range(before + 1, whole, (whole - before) // KEY_CUTS), whole - 1]:
        shutil.rmtree(server.folder)
        shutil.copytree(kept, server.folder)
        with last_file(server).open("r+b") as file:
            file.truncate(cut)
        server.restart()
        store = await RedisStore.open(Settings(url=server.url))
        assert await store.find_keys([first, second]) == ["1", None]
        assert await put(store, "a", "revoked", before="1", secrets_removed=(first,))
        await store.close()
        server.kill()
        server.restart()
        store = await RedisStore.open(Settings(url=server.url))
        found = await store.find_keys([first, second])
        assert found in ([None, None], [None, "revoked"]), f"cut at {cut - before} of {whole - before}"
        assert await store.page("key") == [("a", "revoked")]
        assert await store.change(StoreChange("key", "a", "revoked", None, "removed"))
        await store.close()
        server.kill()
