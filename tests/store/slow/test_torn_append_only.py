"""A Redis that was killed while it wrote its append-only file, and its state after each restart.

Such a file ends in the middle of a transaction. Redis truncates it after the last complete command and keeps the
incomplete transaction in the file: the next commands are appended to it, and the next restart executes both. (Valkey
truncates the file before the transaction, as of 2026.) The stored sums have to be right in both cases.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import StoreSettings as Settings
from gateway.store import StoreChange
from gateway.store.redis import store as redis
from gateway.store.redis.store import RedisStore
from tests.fakes.redis_servers import RedisServer, name_of, servers_to_test
from tests.store.changes import draw, parallel, settlement, slow, tokens
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


async def state(url: str, claims: tuple[Any, ...], worker: Worker, server: RedisServer) -> dict[str, Any]:
    """All that can be read from the store."""
    store = await RedisStore.open(Settings(url=url))
    try:
        return {
            "windows": [standing[1:3] for standing in await store.standings([each.window for each in claims], 0)],
            "calls": await store.calls(100),
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
        told = await state(server.url, claims, worker, server)
        assert told["windows"] == [(12, 0), (12, 0), (0, 0)], f"cut at {cut - before} of {whole - before}"
        assert [call["id"] for call in told["calls"]] == [running.record.id, first.record.id]
        server.kill()
        server.restart()
        assert await state(server.url, claims, worker, server) == told, f"cut at {cut - before} of {whole - before}"
        server.kill()


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
