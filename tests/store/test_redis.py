"""What can happen with a Redis and with nothing else: a script that is forgotten, a memory that is full, a user of few
rights, a restart. Each on every server that is at hand (see `servers_to_test`)."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis.exceptions import ResponseError

from gateway import tasks
from gateway.config import StoreSettings as Settings
from gateway.records import Bond, Granted
from gateway.store import Batch, Progress, Reserve, StoreLostWrites, StoreMisconfigured, StoreUnavailable
from gateway.store.redis import connection as redis_link
from gateway.store.redis import store as redis
from gateway.store.redis.connection import RedisConnection, Script
from gateway.store.redis.store import RedisStore, warnings
from tests.fakes.redis_servers import RedisServer, name_of, servers_to_test, wait_until

from .changes import daily, draw, money, parallel, rate, settlement, slow, tokens
from .worker import Worker

PATIENCE_S = 20
PASSWORD = "secret of ours: /@?#"
Opens = Callable[..., Awaitable[RedisStore]]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(redis, "BATCH_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(redis, "FIND_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(redis, "READ_WITHIN_S", PATIENCE_S)


@pytest.fixture(params=servers_to_test(), ids=name_of)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", binary=request.param) as server:
        yield server


@pytest.fixture
async def opens() -> AsyncIterator[Opens]:
    opened: list[RedisStore] = []

    async def open_one(server: RedisServer | str, **settings: Any) -> RedisStore:
        url = server if isinstance(server, str) else server.url
        opened.append(await RedisStore.open(Settings(url=url, **settings)))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


async def hang_up(server: RedisServer, store: RedisStore) -> None:
    """The server ends its connections, and the store has heard of it."""
    server.cli("CLIENT", "KILL", "TYPE", "normal")
    connection = store._writing._connection
    assert connection is not None
    async with asyncio.timeout(PATIENCE_S):
        while not await connection.can_read():  # noqa: ASYNC110 - redis-py has no event for it
            await asyncio.sleep(0.01)


def everything(server: RedisServer) -> dict[str, str]:
    """All keys, and what they hold; but for batches as they are sent, whatever becomes of them."""
    keys = set(server.cli("KEYS", "*").split()) - {"{gateway}:1:sent"}
    return {key: str(server.call("DUMP", key)) for key in keys}


async def books(store: RedisStore) -> tuple[list[str], int]:
    """The records' calls, and how many the daily sums know."""
    rows = await store.usage(["key"])
    return [row["id"] for row in await store.calls(100)], sum(row["requests"] for row in rows)


# ------------------------------------------------------------------------------------------------ scripts and versions


async def test_a_script_that_was_flushed_is_loaded_again(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(tokens(100, 40))
    server.cli("SCRIPT", "FLUSH")
    await worker.settle(wish, 5)
    server.cli("SCRIPT", "FLUSH")
    await store.ping()
    assert await books(store) == ([wish.record.id], 1)


async def test_two_versions_of_the_script_share_one_store(server: RedisServer, opens: Opens) -> None:
    old, new = await opens(server), await opens(server)
    new._script = Script.of(f"-- another version\n{new._script.text}")
    workers = [Worker(old), Worker(new)]
    wishes = [await workers[number % 2].granted(daily(10), parallel(10)) for number in range(10)]
    assert {store.sha for store in (old._script, new._script)} <= set(_scripts(server, old, new))
    for number, wish in enumerate(wishes):
        await workers[number % 2].settle(wish, 1)
    assert (await workers[0].refused(daily(10))).window_status.used == 10
    assert await books(new) == ([wish.record.id for wish in reversed(wishes)], 10)


def _scripts(server: RedisServer, *stores: RedisStore) -> list[str]:
    return [store._script.sha for store in stores if server.cli("SCRIPT", "EXISTS", store._script.sha) == "1"]


async def test_all_keys_of_a_store_have_its_tag(server: RedisServer, opens: Opens) -> None:
    store = await opens(server, namespace="books.of-ours_1")
    worker, other = Worker(store), Worker(store)
    await worker.settle(await worker.granted(daily(), rate(), parallel()), 5)
    await other.granted()
    await store.ping()
    keys = server.cli("KEYS", "*").split()
    assert len(keys) == 17
    assert all(key.startswith("{books.of-ours_1}:") for key in keys)


def test_the_only_lifetimes_are_those_of_posts() -> None:
    """Redis deletes by its own clock, of which one wrong moment may be years ahead, and of a full memory it evicts keys
    with a lifetime first. What is kept by age is deleted by retention (apply_retention.lua)."""
    lifetime = re.compile(r"P?EXPIRE(?:AT)?\b|P?EXAT\b|SETEX\b|GETEX\b|['\"][EP]X['\"]")
    folder = Path(redis.__file__).parent
    found = {file.name: lifetime.findall(file.read_text()) for file in folder.iterdir() if file.is_file()}
    assert {name for name, some in found.items() if some} - {"apply_retention.lua"} == {"exchange.lua"}


async def test_a_lifetime_that_an_older_gateway_gave_ends_with_the_next_write(
    server: RedisServer, opens: Opens
) -> None:
    store = await opens(server)
    worker, silent = Worker(store), Worker(store)
    bond = Bond("resp_1", "k", None, "up", "", "m", 0, time.time())

    async def write(lost: int) -> None:
        await worker.send()
        await store.add_bond(bond, time.time())
        await store.claim("one", {"a": 60})
        opening = worker.opening(draw(daily()))
        await store.apply(Batch(silent.name, lost, lost - 1, [opening], is_adopted=True))  # opens nothing lost again
        server.cli("ZADD", "{gateway}:1:alive", 1, silent.name)
        assert (await worker.send()).lost == 1

    await write(1)
    kept = re.compile(":(worker|lost|bond|bonds|claim):")
    keys = {key for key in server.cli("KEYS", "*").split() if kept.search(key)}
    assert len(keys) == 6
    for key in keys:
        server.cli("EXPIRE", key, 1000)
    await write(2)
    assert {server.cli("TTL", key) for key in keys} == {"-1"}


async def test_large_hashes_are_no_lists(server: RedisServer, opens: Opens) -> None:
    worker = Worker(await opens(server))
    await worker.settle(await worker.granted(daily(), rate()), 5)
    await worker.granted()
    for key in server.cli("KEYS", "*").split():
        if server.cli("TYPE", key) == "hash" and ":latency-" not in key:  # it is one while it has few counters
            assert server.cli("OBJECT", "ENCODING", key) == "hashtable", key


@pytest.mark.parametrize("long", ["64 bits", "32 bits"])
async def test_large_numbers_are_kept_to_the_last_unit(server: RedisServer, opens: Opens, long: str) -> None:
    """Also where the server's `long` is too short for %d; the script finds that out."""
    store = await opens(server)
    if long == "32 bits":
        asked = "if format('%d', EXACT) ~= '9007199254740992'"
        assert store._script.text.count(asked) == 1
        store._script = Script.of(store._script.text.replace(asked, "if true"))
    worker, most = Worker(store), 2**53 - 1
    claims = tokens(most, 2**52 + 1), money(most, 2**52 + 3)
    wish = await worker.granted(*claims)
    await worker.settle(wish, 2**52 + 5, cost_nusd=2**51 + 1)
    found = await store.window_statuses([claim.window for claim in claims], 0)
    assert [standing.used for standing in found] == [2**52 + 5, 2**51 + 1]
    (row,) = await store.usage(["key"])
    assert row["prompt_tokens"] == 2**52 + 5
    assert (await store.calls(1))[0]["cost_nusd"] == 2**51 + 1
    refused = await worker.refused(tokens(most, 2**52))
    assert refused.window_status.used == 2**52 + 5
    assert isinstance(await worker.draw(draw(tokens(most, most - 2**52 - 5))), Granted)


async def test_a_batch_that_cannot_be_applied_leaves_no_trace(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily(), slow())
    await worker.settle(await worker.granted(daily()), 5)
    for kind in (
        "windows",
        "windows:2026-11-20",
        f"leases:{worker.name}",
        "records",
        "alive",
        "days",
        "sums:2026-11-20",
    ):
        key = f"{{gateway}}:1:{kind}"
        server.cli("RENAME", key, "aside")
        server.cli("SET", key, "of somebody else")
        before = everything(server)
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await worker.send(worker.closing(settlement(wish, 5)), worker.opening(draw(daily(), slow())))
        assert everything(server) == before, kind
        server.cli("RENAME", "aside", key)
    worker.number = 1
    await worker.settle(wish, 5)
    assert (await books(store))[1] == 2


# ------------------------------------------------------------------------------------------ a server that has forgotten


async def test_a_server_that_lost_everything_is_behind(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily())
    await worker.send()
    server.cli("FLUSHALL")
    with pytest.raises(StoreLostWrites) as caught:
        await worker.send(worker.closing(settlement(wish)))
    assert caught.value.progress == Progress(0, 0)
    assert everything(server) == {}
    worker.acked = 0
    await worker.send(worker.closing(settlement(wish)), worker.opening(draw(daily()), is_forced=True))
    assert await store.progress(worker.name) == Progress(worker.seq, 2)
    assert server.cli("GET", "{gateway}:schema") == "1"


@pytest.mark.parametrize("appendonly", ["no", "always"])
@pytest.mark.parametrize("binary", servers_to_test(), ids=name_of)
async def test_a_restart_is_noticed(binary: str, appendonly: Any, tmp_path: Path, opens: Opens) -> None:
    with RedisServer(tmp_path, binary=binary, appendonly=appendonly) as server:
        store = await opens(server)
        worker = Worker(store)
        wish = await worker.granted(daily(10, 3))
        server.kill()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await worker.send()
        server.restart()
        if appendonly == "no":
            with pytest.raises(StoreLostWrites):
                await worker.settle(wish)
        else:
            await worker.settle(wish)
            assert await books(store) == ([wish.record.id], 1)
            (found,) = await store.window_statuses([daily(10).window], 0)
            assert (found.used, found.reserved) == (1, 0)


async def test_a_connection_that_was_closed_meanwhile_is_made_anew(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily())
    await hang_up(server, store)
    await worker.settle(wish)


async def test_a_store_is_opened_before_its_server(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    server.kill()
    store = await RedisStore.open(Settings(url=server.url))
    assert "away" in caplog.text
    with pytest.raises(StoreUnavailable):
        await store.ping()
    with pytest.raises(StoreUnavailable):
        await store.usage([])
    server.restart()
    await Worker(store).granted(daily())
    await store.close()


# ------------------------------------------------------------------------------------- a server that takes no writes


async def refuses(store: RedisStore, worker: Worker, server: RedisServer, why: str) -> None:
    """Nothing is applied, and it says why."""
    before = everything(server)
    progress = server.cli("GET", f"{{gateway}}:1:worker:{worker.name}")
    for attempt in (worker.granted(daily(), parallel()), store.ping(), store.retire(worker.name)):
        with pytest.raises(StoreUnavailable, match=why):
            await attempt
    assert everything(server) == before
    assert server.cli("GET", f"{{gateway}}:1:worker:{worker.name}") == progress


async def test_a_full_memory_is_away(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily())
    server.cli("CONFIG", "SET", "maxmemory", "1")
    await refuses(store, worker, server, "its memory is full")
    (found,) = await store.window_statuses([daily().window], 0)
    assert found.reserved == 1
    server.cli("CONFIG", "SET", "maxmemory", "0")
    await worker.settle(wish)


async def test_a_disk_that_fails_is_away(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily())
    server.cli("CONFIG", "SET", "save", "3600 1")
    shutil.rmtree(server.folder)
    server.cli("BGSAVE")
    wait_until(lambda: server.info("rdb_last_bgsave_status") == "err", "saving had failed")
    await refuses(store, worker, server, "cannot save to its disk")
    server.cli("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
    await worker.settle(wish)


async def test_a_replica_is_away(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily())
    server.cli("REPLICAOF", "127.0.0.1", "1")
    await refuses(store, worker, server, "it is a replica")
    server.cli("REPLICAOF", "NO", "ONE")
    await worker.settle(wish)


async def test_too_few_replicas_are_away(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily())
    server.cli("CONFIG", "SET", "min-replicas-to-write", "1")
    await refuses(store, worker, server, "too few replicas")
    server.cli("CONFIG", "SET", "min-replicas-to-write", "0")
    await worker.settle(wish)


async def test_an_endless_script_of_another_client_is_an_outage(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily())
    server.cli("CONFIG", "SET", "lua-time-limit", "1")

    def run_for_ever() -> None:
        with pytest.raises(Exception, match=r"(?i)killed"):
            server.call("EVAL", "while true do end", 0, timeout_s=PATIENCE_S)

    thread = threading.Thread(target=run_for_ever)
    thread.start()
    try:
        await asyncio.to_thread(wait_until, lambda: "BUSY" in _refusal(server), "the script ran")
        with pytest.raises(StoreUnavailable, match="busy with a script"):
            await worker.send()
    finally:
        server.cli("SCRIPT", "KILL")
        thread.join()
    await worker.settle(wish)


def _refusal(server: RedisServer) -> str:
    try:
        return server.cli("PING")
    except Exception as refusal:
        return str(refusal)


async def test_a_blocked_server_times_out_and_applies_once_what_it_got(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wish = await worker.granted(daily(10, 3))
    unknown = draw(daily(10, 3))
    store._writing._limit_s = 0.3
    server.stop()
    try:
        with pytest.raises(StoreUnavailable, match=r"has not answered within 0\.3 s"):
            await worker.send(worker.closing(settlement(wish)), worker.opening(unknown))
    finally:
        server.cont()
    store._writing._limit_s = PATIENCE_S
    worker.acked = worker.seq - 1
    again = worker.closing(settlement(wish))
    await worker.send(again._replace(number=1), worker.voiding(unknown))
    (found,) = await store.window_statuses([daily(10).window], 0)
    assert (found.used, found.reserved) == (1, 0)
    assert await books(store) == ([wish.record.id], 1)


@pytest.fixture(params=["before it is sent", "after it was sent"])
async def held_up(request: pytest.FixtureRequest, server: RedisServer, opens: Opens) -> RedisStore:
    """A store with a timeout of 0.3 s; each send blocks the event loop for 0.5 s."""
    store = await opens(server)
    await store.ping()
    store._writing._limit_s = 0.3
    connection = store._writing._connection
    assert connection is not None
    send = connection.send_packed_command

    async def send_and_stand_still(*arguments: Any, **more: Any) -> None:
        if request.param == "after it was sent":
            await send(*arguments, **more)
        time.sleep(0.5)  # noqa: ASYNC251 - this is what the test is about
        if request.param == "before it is sent":
            await send(*arguments, **more)

    connection.send_packed_command = send_and_stand_still  # type: ignore[method-assign]
    return store


async def test_an_answer_that_came_while_the_event_loop_stood_still_counts(
    held_up: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "LOOK_S", PATIENCE_S)
    worker = Worker(held_up)
    wish = await worker.granted(daily())
    await worker.settle(wish)
    assert await books(held_up) == ([wish.record.id], 1)


async def test_a_second_blocked_server_times_out_too(held_up: RedisStore, server: RedisServer) -> None:
    server.stop()
    try:
        with pytest.raises(StoreUnavailable, match=r"has not answered within 0\.3 s"):
            await Worker(held_up).send()
    finally:
        server.cont()


async def test_the_time_limit_of_a_request_includes_connecting(server: RedisServer) -> None:
    store = RedisStore(Settings(url=server.url))
    store._writing._limit_s = 0.3
    server.stop()
    try:
        with pytest.raises(StoreUnavailable, match=r"has not answered within 0\.3 s"):
            await store.ping()
    finally:
        server.cont()
    await store.close()


async def test_a_late_copy_does_nothing(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    await worker.granted(daily())
    await worker.granted(daily())
    before = everything(server)
    late: Reserve = draw(daily())
    with pytest.raises(StoreUnavailable, match="later batch"):
        await store.apply(Batch(worker.name, 1, 0, [late]))
    assert everything(server) == before


# ----------------------------------------------------------------------------------------------- who may do what


def acl() -> str:
    """What gateway/store/redis/store.py says that its user needs."""
    found = re.search(r"^    (~\{gateway\}:\* .*)$", redis.__doc__ or "", re.MULTILINE)
    assert found
    return found[1]


@pytest.fixture(params=servers_to_test(), ids=name_of)
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    users = [
        f"gateway on >user-secret {acl()}",
        f"quiet on >user-secret {acl()} -info",
        f"reader on >user-secret {acl()} -@write",
        f"timeless on >user-secret {acl()} -time",
        f"unstreamed on >user-secret {acl()} -xdel",
        f"scriptless on >user-secret {acl()} -evalsha",
        f"elsewhere on >user-secret {acl().replace('{gateway}', '{other}')}",
    ]
    with RedisServer(tmp_path / "redis", binary=request.param, password="owner-secret", acl=users) as server:
        yield server


async def test_the_documented_rights_are_enough(guarded: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(url=guarded.url_for("gateway", "user-secret"))
    store = await RedisStore.open(settings)
    assert "append-only" in caplog.text
    worker, other = Worker(store), Worker(store)
    wish, left = await worker.granted(daily(), rate(), parallel()), await worker.granted(daily())
    await other.send()
    guarded.cli("ZADD", "{gateway}:1:alive", 1, worker.name)
    assert (await other.send()).lost == 2
    await worker.settle(wish, 5)
    await worker.void(left)
    await worker.granted(daily())
    assert await books(store) == ([wish.record.id], 1)
    await store.window_statuses([daily().window], 0)
    await store.calls(1, "k")
    await store.ping()
    await store.retire(worker.name)
    assert await store.progress(worker.name) == Progress()
    assert len(await warnings(settings)) == 1
    await store.close()
    assert "WARN" not in guarded.cli("ACL", "LOG").upper()
    assert guarded.cli("ACL", "LOG") == ""


def test_the_probe_does_what_a_batch_and_a_change_do() -> None:
    parts = [Script.read("probe.lua"), Script.read(*redis.APPLY, "reassert.lua", "change.lua")]
    probed, used = (set(re.findall(r"\b(?:call|write)\('([A-Z]+)'", part.text)) for part in parts)
    assert probed == used


async def test_without_a_look_at_the_server_there_is_no_warning(guarded: RedisServer) -> None:
    assert await warnings(Settings(url=guarded.url_for("quiet", "user-secret"))) == []


@pytest.mark.parametrize("user", ["reader", "timeless", "unstreamed", "scriptless", "elsewhere"])
async def test_a_user_who_may_not_do_all_is_refused_before_anything_is_written(guarded: RedisServer, user: str) -> None:
    settings = Settings(url=guarded.url_for(user, "user-secret"))
    with pytest.raises(StoreMisconfigured, match="the user may not do all that the gateway does"):
        await (await RedisStore.open(settings)).close()
    with pytest.raises(StoreMisconfigured):
        await warnings(settings)
    assert set(guarded.cli("KEYS", "*").split()) <= {"{gateway}:1:probe"}


@pytest.mark.parametrize("user", ["", "gateway", "nobody"])
async def test_a_wrong_password_is_refused(guarded: RedisServer, user: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(url=guarded.url_for(user, quote(PASSWORD, safe="")))
    with pytest.raises(StoreMisconfigured) as caught:
        await RedisStore.open(settings)
    with pytest.raises(StoreMisconfigured):
        await warnings(settings)
    assert PASSWORD not in f"{caught.value}{caught.value!r}{caplog.text}"
    assert str(guarded.port) in str(caught.value)


async def test_a_password_that_is_missing_is_refused(guarded: RedisServer) -> None:
    with pytest.raises(StoreMisconfigured, match=r"(?i)authentication required"):
        await RedisStore.open(Settings(url=guarded.url_for()))


async def test_a_password_with_every_kind_of_sign_works(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        server.cli("ACL", "SETUSER", "the@user", "on", f">{PASSWORD}", *acl().split())
        url = f"redis://the%40user:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/0"
        store = await RedisStore.open(Settings(url=url))
        await store.ping()
        shown = f"{store!r}{store._writing!r}{store._reading!r}{store._settings!r}{vars(store)}"
        await store.close()
    assert "secret of ours" not in shown
    assert PASSWORD not in shown
    assert quote(PASSWORD, safe="") not in shown


async def test_a_changed_password_is_used_at_the_next_connection(guarded: RedisServer, opens: Opens) -> None:
    store = await opens(guarded.url_for("gateway", "user-secret"))
    worker = Worker(store)
    await worker.granted(daily())
    guarded.cli("ACL", "SETUSER", "gateway", "resetpass", ">another-secret")
    await hang_up(guarded, store)
    with pytest.raises(StoreUnavailable, match=r"(?i)invalid username-password pair"):
        await worker.send()


# --------------------------------------------------------------------------------------- a server that will not do


@pytest.fixture(params=["no such database", "no such command"])
def unfit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RedisServer, str, str]]:
    """One on which no batch can ever be applied; the address for it, and what it says."""
    if request.param == "no such database":
        with RedisServer(tmp_path / "redis", extra=["databases 2"]) as server:
            yield server, f"redis://127.0.0.1:{server.port}/5", "out of range"
    else:
        with RedisServer(tmp_path / "redis", extra=['rename-command HRANDFIELD ""']) as server:
            yield server, server.url, "(?i)unknown.* command"


async def test_a_server_that_will_not_do_is_refused(unfit: tuple[RedisServer, str, str]) -> None:
    _, url, says = unfit
    for attempt in (RedisStore.open, warnings):
        with pytest.raises(StoreMisconfigured, match=says) as caught:
            await attempt(Settings(url=url))
        assert str(caught.value).startswith(url)


async def test_a_server_that_will_not_do_is_no_fault_of_the_batch(
    unfit: tuple[RedisServer, str, str], opens: Opens
) -> None:
    server, url, says = unfit
    server.kill()
    store = await opens(url)
    server.restart()
    for attempt in (Worker(store).granted(daily()), store.ping(), store.progress("w")):
        with pytest.raises(StoreUnavailable, match=says):
            await attempt


# ------------------------------------------------------------------------------------------------ schema, warnings


async def test_the_data_of_a_newer_gateway_is_refused(server: RedisServer, opens: Opens) -> None:
    store = await opens(server, namespace="ours")
    await store.ping()
    server.cli("SET", "{ours}:schema", 2)
    settings = Settings(url=server.url, namespace="ours")
    with pytest.raises(StoreMisconfigured, match="namespace ours was written by a newer gateway"):
        await RedisStore.open(settings)
    await store.ping()  # an open connection stays usable until it is closed
    await hang_up(server, store)
    with pytest.raises(StoreUnavailable, match="newer gateway"):
        await store.ping()
    await (await opens(server, namespace="theirs")).ping()


async def test_warnings_are_logged_once_per_opening(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    server.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    settings = Settings(url=server.url)
    store = await RedisStore.open(settings)
    await store.ping()
    await hang_up(server, store)
    await store.ping()
    await store.close()
    received = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert received == await warnings(settings)
    no_file, policy = received
    assert "appendonly no" in no_file
    assert "maxmemory-policy allkeys-lru" in policy
    server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.cli("CONFIG", "SET", "appendonly", "yes")
    assert await warnings(settings) == []


async def test_a_server_that_is_not_there_is_a_warning(server: RedisServer) -> None:
    server.kill()
    (received,) = await warnings(Settings(url=server.url))
    assert "cannot be reached" in received
    assert "start all the same" in received


# --------------------------------------------------------------------------------------------------------- reports


@pytest.mark.rest
async def test_a_large_report_lets_others_have_their_turns(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    fill = """
    local group, numbers = '\\31team\\31gpt\\31up\\31chat', '1 0 2 3 0 0 0 0 1'
    for i = 1, 20000 do
      redis.call('HSET', KEYS[1], 'key-' .. i .. group, numbers)
    end
    redis.call('ZADD', KEYS[2], 2^50, '2026-11-20')
    for i = 0, 799 do
      local day = string.format('%04d-%02d-%02d', 2020 + math.floor(i / 336), 1 + math.floor(i / 28) % 12, 1 + i % 28)
      redis.call('ZADD', KEYS[2], 2^50, day)
      redis.call('HSET', '{gateway}:1:sums:' .. day, 'key-1' .. group, numbers, '?', 'about')
    end
    """
    server.call("EVAL", fill, 2, "{gateway}:1:sums:2026-11-20", "{gateway}:1:days", timeout_s=PATIENCE_S)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count())
    rows = await store.usage(["key"])
    counting.cancel()
    assert len(rows) == 20_000
    assert sum(row["requests"] for row in rows) == 20_800
    assert turns > 80
    assert sum(row["completion_tokens"] for row in await store.usage(["month"], since="2026-01-01")) == 60_000


async def test_the_calls_of_one_key_are_found_among_many(server: RedisServer, opens: Opens) -> None:
    store = await opens(server)
    worker = Worker(store)
    wishes = [draw(key=f"key-{number % 50}") for number in range(600)]
    await worker.draw_all(wishes)
    await worker.settle_all(settlement(wish, 1, key=wish.record.key) for wish in wishes)
    of_one = [wish.record.id for wish in reversed(wishes) if wish.record.key == "key-7"]
    assert [row["id"] for row in await store.calls(100, "key-7")] == of_one
    assert [row["id"] for row in await store.calls(5, "key-7")] == of_one[:5]
    assert await store.calls(5, "key-") == []
    assert [row["id"] for row in await store.calls(450)] == [wish.record.id for wish in reversed(wishes)][:450]


async def test_a_closed_store_is_away(server: RedisServer) -> None:
    store = await RedisStore.open(Settings(url=server.url))
    await store.close()
    for attempt in (store.ping(), store.calls(1), store.progress("w")):
        with pytest.raises(StoreUnavailable, match="closed"):
            await attempt
    await store.close()


async def greet(_: redis_link.Ask) -> None:
    """Nothing has to be true of this server."""


async def test_a_link_says_when_a_script_is_on_its_way(server: RedisServer) -> None:
    link, other = (RedisConnection(Settings(url=server.url).redis, PATIENCE_S, greet) for _ in range(2))
    script = redis_link.Script.of("return redis.call('INCR', KEYS[1])")
    assert await link.run(script, ["sent"], []) == 1
    await other.ask(("CLIENT", "PAUSE", 60_000, "WRITE"))
    sent = asyncio.Event()
    running = asyncio.ensure_future(link.run(script, ["sent"], [], ("SET", "before", 1), sent=sent.set))
    await sent.wait()
    assert not running.done()
    await other.ask(("CLIENT", "UNPAUSE"))
    assert await running == 2
    for each in (link, other):
        await each.close()


async def test_requests_of_one_link_wait_for_each_other(server: RedisServer) -> None:
    link = RedisConnection(Settings(url=server.url).redis, PATIENCE_S, greet)
    replies = await asyncio.gather(*(link.ask(("ECHO", f"{number} ü"), ("INCR", "n")) for number in range(50)))
    assert replies == [[f"{number} ü", number + 1] for number in range(50)]
    with pytest.raises(ResponseError, match="unknown command"):
        await link.ask(("NONSENSE",), ("INCR", "n"))
    assert await link.ask(("GET", "n")) == ["51"]
    await link.close()


async def test_a_server_that_forgets_each_script_is_away(server: RedisServer) -> None:
    """As one whose scripts are flushed all the time, or several behind a balancer. An error that is no outage would
    cost the settlement of the batch."""
    link = RedisConnection(Settings(url=server.url).redis, PATIENCE_S, greet)
    loaded = Script.of("return 7")
    assert await link.run(loaded, [], []) == 7
    with pytest.raises(StoreUnavailable, match="it forgets scripts"):
        await link.run(loaded._replace(sha="0" * 40), [], [])
    assert await link.run(loaded, [], []) == 7
    await link.close()


WITHOUT_CODE = {
    "Lua script attempted to access a non local key in a cluster node": "slot is being moved",  # 6.2
    "Script attempted to access a non local key in a cluster node": "slot is being moved",
    "Unable to execute command 'hmget' in script because undeclared keys were accessed during rehashing of the slot": (
        "slot is being moved"
    ),
    "Script attempted to access a slot not served": "its cluster is down",
    "Script attempted to execute a command while the cluster is down": "its cluster is down",
    "Script attempted to execute a write command while the cluster is down and readonly": "its cluster is down",
    "Script attempted to access keys that do not hash to the same slot": "use redis.cluster://",
    "Command 'hmget' in script attempted to access keys that don't hash to the same slot": "use redis.cluster://",
    "Can not execute the command on a stale replica": "its master is down",
    "ACL failure in script: User gateway has no permissions": "may not do all that the gateway does",
    "max number of clients + cluster connections reached": "too many clients",
}
"""All that scriptVerifyClusterState, scriptVerifyAllowStale, scriptVerifyACL (src/script.c of Redis 7.4 and Valkey 8)
and acceptCommonHandler (src/networking.c) answer."""


@pytest.mark.parametrize("text", WITHOUT_CODE)
async def test_a_server_that_cannot_serve_a_script_now_is_away(server: RedisServer, text: str) -> None:
    """An error that is no outage would cost the settlement of the batch."""
    link = RedisConnection(Settings(url=server.url).redis, PATIENCE_S, greet)
    with pytest.raises(StoreUnavailable, match=WITHOUT_CODE[text]):
        await link.run(Script.of("return redis.error_reply(ARGV[1])"), [], [f"ERR {text}"])
    await link.close()


async def test_a_script_that_an_administrator_has_ended_was_not_carried_out(server: RedisServer) -> None:
    link, other = (RedisConnection(Settings(url=server.url).redis, PATIENCE_S, greet) for _ in range(2))
    (limit,) = await other.ask(("CONFIG", "GET", "lua-time-limit"))
    await other.ask(("CONFIG", "SET", "lua-time-limit", 1))
    running = asyncio.ensure_future(link.run(Script.of("while true do end"), [], []))
    while True:
        try:
            await other.ask(("SCRIPT", "KILL"))
        except ResponseError:  # it has not begun
            continue
        break
    with pytest.raises(StoreUnavailable, match="it is busy with a script"):
        await running
    await other.ask(("CONFIG", "SET", *limit))
    for each in (link, other):
        await each.close()
