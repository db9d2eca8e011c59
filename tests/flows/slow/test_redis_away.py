"""Calls while Redis is blocked, is stopped, answers with errors, or its answers are lost.

With `on_outage: deny` they are refused at once; with `allow` they are served from a share of the quota. Calls that have
begun end normally. When Redis is back, the gateway's records agree with those of the clients and the upstream.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest
import yaml

from gateway.store import SIGN_OF_LIFE_S, SILENT_S
from tests.conftest import StartsGateways
from tests.fakes.redis_servers import RedisServer, wait_until
from tests.fakes.wire_proxy import WireProxy
from tests.flows.books import ACCOUNTS, QUOTAS, Told, open_windows
from tests.flows.house import Gateway, children, eventually, key, run, settings, side_by_side
from tests.flows.scene import Scene, code

BACK_WITHIN_S = 8.0
"""Twice what is promised, for slow machines."""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), appendonly="unsynced") as server:
        yield server


@pytest.fixture(scope="module")
def wire(redis: RedisServer) -> Iterator[WireProxy]:
    with WireProxy(redis.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Scene() as made:
        yield made


@pytest.fixture(scope="module")
def house(gateways: StartsGateways, scene: Scene, redis: RedisServer, wire: WireProxy) -> Gateway:
    """It denies, and reaches Redis through a wire that can go wrong."""
    return gateways(settings(scene.url, store={"url": redis.url_for(port=wire.port)}, **ACCOUNTS))


# ------------------------------------------------------------------------------------------------------------ deny


class Trouble(NamedTuple):
    """What befalls Redis, and what ends it."""

    begin: Callable[[RedisServer], None]
    end: Callable[[RedisServer], None]


def cannot_save(redis: RedisServer) -> None:
    """MISCONF: where its snapshot should be put, something else is in the way."""
    (redis.folder / "dump.rdb").unlink(missing_ok=True)
    (redis.folder / "dump.rdb").mkdir()
    redis.call("CONFIG", "SET", "save", "3600 1000000")
    redis.call("BGSAVE")
    wait_until(lambda: redis.info("rdb_last_bgsave_status") == "err", "a snapshot failed")


def can_save(redis: RedisServer) -> None:
    (redis.folder / "dump.rdb").rmdir()
    redis.call("BGSAVE")
    wait_until(lambda: redis.info("rdb_last_bgsave_status") == "ok", "a snapshot was made")
    redis.call("CONFIG", "SET", "save", "")


def is_full(redis: RedisServer) -> None:
    """OOM."""
    redis.call("CONFIG", "SET", "maxmemory", 1)


def has_memory(redis: RedisServer) -> None:
    redis.call("CONFIG", "SET", "maxmemory", 0)


TROUBLES = {
    "stands still": Trouble(RedisServer.stop, RedisServer.cont),
    "is killed": Trouble(RedisServer.kill, RedisServer.restart),
    "cannot save": Trouble(cannot_save, can_save),
    "memory is full": Trouble(is_full, has_memory),
}


@contextmanager
def befallen(redis: RedisServer, name: str) -> Iterator[None]:
    trouble = TROUBLES[name]
    trouble.begin(redis)
    try:
        yield
    finally:
        trouble.end(redis)


@pytest.mark.parametrize("name", TROUBLES)
def test_calls_are_refused_at_once_and_nothing_is_lost(
    name: str, house: Gateway, scene: Scene, redis: RedisServer
) -> None:
    assert scene.serves(house)
    running = scene.begin(house, 2) + scene.begin(house, is_stream=False)
    with befallen(redis, name):
        began = time.monotonic()
        crowd = scene.burst(house, 50)
        assert time.monotonic() - began < 12  # if each waited for its own 0.8 s, it would take 40
        assert {(told.status, code(told)) for told in crowd} == {(503, "store_unavailable")}
        took_s = []
        for _ in range(20):
            began = time.monotonic()
            refused = house.complete()
            took_s.append(time.monotonic() - began)
            assert refused.told == (503, "server_error", None, "store_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        assert median(took_s) < 0.25  # nor does each wait for the next look at Redis
        assert sorted(took_s)[-3] < 1  # a slow machine may take longer for one or two of them
        assert house.get("/readyz", key=None).told == (503, "server_error", None, "store_unavailable")
        assert house.get("/healthz", key=None).status == 200
        scene.end()  # while nothing can be settled
        assert all(told.is_served for told in running)
    eventually(lambda: house.get("/readyz", key=None).status == 200, BACK_WITHIN_S)
    eventually(lambda: scene.serves(house), BACK_WITHIN_S)
    assert {house.call(told.id)["ended"] for told in running} == {"done"}
    scene.check(house)


def test_stall_of_redis_shorter_than_the_time_limit_of_a_batch_refuses_no_call(
    house: Gateway, scene: Scene, redis: RedisServer
) -> None:
    eventually(lambda: scene.serves(house), BACK_WITHIN_S)
    for _ in range(20):
        before = len(scene.callers.told)
        with scene.callers.at_work(lambda: house.port, count=10):
            time.sleep(0.3)
            began = time.monotonic()
            with befallen(redis, "stands still"):
                time.sleep(0.6)
            stalled_s = time.monotonic() - began
            time.sleep(0.3)
        if stalled_s < 0.65:
            break  # otherwise the machine was slow and the stall longer than intended: again
        eventually(lambda: scene.serves(house), BACK_WITHIN_S)
    assert {told.status for told in scene.callers.told[before:]} == {200}
    scene.check(house)


def test_a_key_that_reads_its_limits_is_answered_within_a_second(house: Gateway, redis: RedisServer) -> None:
    took_s = []
    with befallen(redis, "stands still"):
        for _ in range(3):
            began = time.monotonic()
            assert house.get("/v1/key").told == (503, "server_error", None, "store_unavailable")
            took_s.append(time.monotonic() - began)
    assert median(took_s) < 1.6  # on a slow machine; reports wait for two seconds, the first two times
    eventually(lambda: house.get("/v1/key").status == 200, BACK_WITHIN_S)


DRAW, END, VOID = b'["o",', b'["c",', b'["v",'
"""How they begin on the wire."""

CUTS: list[Callable[[WireProxy, bytes], None]] = [
    lambda wire, of: wire.cut_request(of=of),
    lambda wire, of: wire.cut_request(of=of, after_bytes=300),
    lambda wire, of: wire.lose_reply(of=of),
    lambda wire, of: wire.lose_reply(of=of, after_bytes=5),
]
"""Nothing of a request arrives, or half of it; all of it, and of the reply nothing or half."""


def test_what_is_cut_off_on_the_wire_is_charged_once_or_not_at_all(
    house: Gateway, scene: Scene, wire: WireProxy
) -> None:
    for cut in CUTS:
        eventually(lambda: scene.serves(house), BACK_WITHIN_S)
        before = wire.cuts
        cut(wire, DRAW)
        refused = scene.call(house)
        assert (refused.status, code(refused)) == (503, "store_unavailable")
        assert wire.cuts == before + 1

        eventually(lambda: scene.serves(house), BACK_WITHIN_S)
        running = scene.begin(house) + scene.begin(house, is_stream=False)
        cut(wire, END)
        scene.end()
        assert all(told.is_served for told in running)
        eventually(lambda before=before: wire.cuts == before + 2)
    scene.check(house)


def test_what_arrives_too_late_changes_nothing(house: Gateway, scene: Scene, wire: WireProxy) -> None:
    """After a pause of the connection Redis gets batches that have timed out, before or after newer ones."""
    running = scene.begin(house, 2)
    for _ in range(3):
        wire.hold()
        assert {told.status for told in scene.burst(house, 5)} == {503}
        scene.end()
        wire.heal()
        eventually(lambda: scene.serves(house), BACK_WITHIN_S)
    assert all(told.is_served for told in running)
    scene.check(house)


def test_sums_agree_after_faults_of_redis_and_the_network(
    house: Gateway, scene: Scene, redis: RedisServer, wire: WireProxy
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    calls = len(scene.callers.told)

    def cut() -> None:
        how = dice.choice([wire.cut_request, wire.lose_reply])
        how(of=dice.choice([DRAW, END, VOID, b"EVALSHA"]), after_bytes=dice.choice([0, 1, 50, 300, 700]))

    def hold() -> None:
        wire.hold()
        time.sleep(dice.uniform(0.0, 0.8))
        wire.heal()

    def befall(name: str) -> None:
        with befallen(redis, name):
            time.sleep(dice.uniform(0.0, 0.8))

    events: list[Callable[[], object]] = [
        cut, cut, wire.cut, hold, lambda: befall("stands still"), lambda: befall("is killed"),
    ]  # fmt: skip
    with scene.callers.at_work(lambda: house.port, count=4):
        end = time.monotonic() + 5
        while time.monotonic() < end:
            dice.choice(events)()
            time.sleep(dice.uniform(0.0, 0.2))
        wire.heal()
    eventually(lambda: scene.serves(house), BACK_WITHIN_S)
    assert {told.status for told in scene.callers.told[calls:]} == {200, 503}
    scene.check(house)


def test_no_call_notices_that_redis_forgot_the_scripts_or_began_anew(
    house: Gateway, scene: Scene, redis: RedisServer
) -> None:
    eventually(lambda: scene.serves(house))
    redis.call("SCRIPT", "FLUSH")
    assert scene.serves(house)
    redis.restart()
    assert scene.serves(house)
    scene.check(house)


# ----------------------------------------------------------------------------------------------------------- allow


def test_calls_go_on_with_a_share_and_are_settled_later(gateway: StartsGateways, redis: RedisServer) -> None:
    accounts = ACCOUNTS | {
        "keys": [
            key("alice", quotas=[{"requests": 100, "per": "day"}, *QUOTAS]),
            key("bob", max_parallel=1),
            key("single", quotas=QUOTAS),
        ]
    }
    with Scene() as scene:
        store = {"url": redis.url, "namespace": "allow", "on_outage": "allow", "outage_share": 0.1}
        house = gateway(settings(scene.url, store=store, **accounts))

        def pending() -> float:
            return house.metric("gateway_journal_pending_records")

        assert [scene.serves(house) for _ in range(3)] == [True] * 3
        running = scene.begin(house) + scene.begin(house, who="bob")
        with befallen(redis, "is killed"):
            assert scene.call(house, "bob").status == 429  # all of max_parallel counts, and what has begun before
            alone = [scene.call(house) for _ in range(10)]
            assert [told for told in alone if not told.is_served] == []
            for _ in range(3):
                refused = house.complete()
                assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
                assert int(refused.headers["retry-after"]) >= 1
            assert scene.serves(house, "single")  # the first call of this key
            scene.end()
            assert all(told.is_served for told in running)
            assert scene.serves(house, "bob")
            assert house.get("/readyz", key=None).status == 200
            eventually(lambda: pending() == 14)
            returns = time.time()
        eventually(lambda: pending() == 0)
        assert [row for row in house.calls("alice") if row["time"] > returns] == []
        (window,) = [row for row in house.get("/v1/key").json["quotas"] if row["limit"] == 100]
        assert (window["used"], window["reserved"]) == (14, 0)
        told = scene.burst(house, 120)
        assert sorted(one.status for one in told) == [200] * 86 + [429] * 34
        scene.check(house)


def test_requests_that_are_no_calls_have_the_share_of_a_rate_and_are_not_charged_later(
    gateway: StartsGateways, redis: RedisServer
) -> None:
    accounts = ACCOUNTS | {"keys": [key("alice", quotas=[{"requests": 100, "per": "hour"}])]}
    with Scene() as scene:
        store = {"url": redis.url, "namespace": "counted", "on_outage": "allow", "outage_share": 0.1}
        house = gateway(settings(scene.url, store=store, **accounts))

        def asked() -> tuple[int, str]:
            answer = house.get("/v1/responses/resp_unknown")
            return answer.status, answer.error["code"]

        def used() -> int:
            (window,) = [row for row in house.get("/v1/key").json["quotas"] if row["limit"] == 100]
            return int(window["used"])

        assert [asked()[0] for _ in range(3)] == [404] * 3
        assert used() == 3
        with befallen(redis, "is killed"):
            # They count in the share, and who made a response is known to Redis alone.
            assert [asked() for _ in range(10)] == [(503, "store_unavailable")] * 10
            assert asked() == (429, "rate_limit_exceeded")
            assert house.complete().status == 429  # calls draw on the same share
        eventually(lambda: asked()[0] == 404)
        assert 3 < used() < 13


def test_a_quota_is_exceeded_by_one_share_of_each_worker_however_often_redis_stalls(
    gateway: StartsGateways, redis: RedisServer
) -> None:
    names, requests = ("alice", "bob"), [{"requests": 100, "per": "day"}]
    accounts = ACCOUNTS | {"keys": [key(name, quotas=requests) for name in names]}
    with Scene() as scene, WireProxy(redis.port) as wire:
        store = {"url": redis.url_for(port=wire.port), "namespace": "flaps", "on_outage": "allow"}
        house = gateway(settings(scene.url, server={"workers": 2}, store=store, **accounts))
        with scene.callers.at_work(lambda: house.port, count=6):
            for _ in range(12):
                wire.hold()
                time.sleep(1.3)  # a batch is lost, and the next as well
                wire.heal()
                time.sleep(0.5)
        eventually(lambda: house.metric("gateway_journal_pending_records") == 0, BACK_WITHIN_S)
        eventually(lambda: all(scene.call(house, name).status == 429 for name in names), 30)
        scene.check(house)
        for name in names:
            (window,) = [row for row in house.get("/v1/key", key=name).json["quotas"] if row["limit"] == 100]
            assert 100 <= window["used"] <= 100 + 2 * 10


def test_one_lost_batch_is_no_outage(gateway: StartsGateways, redis: RedisServer) -> None:
    """Its calls are sent again, and the share of the worker, which is spent, is not needed for them."""
    accounts = ACCOUNTS | {"keys": [key("alice", quotas=[{"requests": 20, "per": "day"}])]}
    with Scene() as scene, WireProxy(redis.port) as wire:
        store = {"url": redis.url_for(port=wire.port), "namespace": "single", "on_outage": "allow"}
        house = gateway(settings(scene.url, store=store, **accounts))
        for of in range(10):
            wire.lose_reply(of=DRAW)
            assert scene.serves(house), of
        assert wire.cuts == 10
        scene.check(house)


def test_a_worker_that_is_replaced_during_an_outage_refuses_no_call(
    gateway: StartsGateways, redis: RedisServer
) -> None:
    """It accepts calls only when its key store answers; until then the other worker serves them."""
    with Scene() as scene, WireProxy(redis.port) as wire:
        store = {"url": redis.url_for(port=wire.port), "namespace": "replaced", "on_outage": "allow"}
        keys = {"keys": [key("alice")]}
        house = gateway(settings(scene.url, server={"workers": 2}, store=store, **ACCOUNTS | keys))
        assert scene.serves(house)
        wire.hold()
        assert scene.serves(house)
        killed = children(house.process.pid)[0]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: killed not in children(house.process.pid))
        told: list[Told] = []
        end = time.monotonic() + 8  # it takes half of that to start without Redis
        while time.monotonic() < end:
            told.append(scene.call(house))
        assert [code(one) for one in told if one.status != 200] == []
        assert len(children(house.process.pid)) == 2
        wire.heal()
        eventually(lambda: house.metric("gateway_journal_pending_records") == 0, BACK_WITHIN_S)
        scene.check(house)


PATIENT = {"main": {"timeouts": {"head_s": 300, "idle_s": 300}}}
"""Upstreams whose calls may be held for longer than a partition."""


def test_partitions_of_a_minute(gateway: StartsGateways, redis: RedisServer) -> None:
    side_by_side(
        lambda: calls_of_living_workers_are_not_lost_when_redis_returns(gateway, redis),
        lambda: a_gateway_alone_cannot_reach_redis(gateway, redis),
    )


def calls_of_living_workers_are_not_lost_when_redis_returns(gateway: StartsGateways, redis: RedisServer) -> None:
    accounts = ACCOUNTS | {"keys": [key("alice", max_parallel=8)]}
    with Scene() as scene, WireProxy(redis.port) as wire:
        store = {"url": redis.url_for(port=wire.port), "namespace": "returns"}
        houses = [gateway(settings(scene.url, upstreams=PATIENT, store=store, **accounts)) for _ in range(2)]
        running = [told for house in houses for told in scene.begin(house, 4)]
        wire.hold()
        time.sleep(SILENT_S + 5)
        wire.heal()
        for house in houses:
            eventually(lambda house=house: house.get("/readyz", key=None).status == 200, BACK_WITHIN_S)
        assert {scene.call(house).status for house in houses for _ in range(3)} == {429}  # all 8 slots are taken
        time.sleep(2 * SIGN_OF_LIFE_S)
        assert {scene.call(house).status for house in houses} == {429}
        assert [row["ended"] for row in houses[0].calls()] == []
        scene.end()
        assert all(told.is_served for told in running)
        assert scene.check(houses[0]) == {"done": 8}


def a_gateway_alone_cannot_reach_redis(gateway: StartsGateways, redis: RedisServer) -> None:
    """For less than `SILENT_S` it keeps its calls and their slots. Then the other gateway closes its calls as lost, and
    what is served beyond `max_parallel` is at most those calls; when it is back they are open again."""
    accounts = ACCOUNTS | {"keys": [key("alice", quotas=QUOTAS, max_parallel=8)]}
    with Scene() as scene, WireProxy(redis.port) as wire:
        urls = (redis.url_for(port=wire.port), redis.url)
        alone, other = (
            gateway(settings(scene.url, upstreams=PATIENT, store={"url": url, "namespace": "alone"}, **accounts))
            for url in urls
        )
        running = [told for house in (alone, other) for told in scene.begin(house, 4)]
        wire.hold()
        eventually(lambda: code(scene.call(alone)) == "store_unavailable")
        time.sleep(SILENT_S / 2)
        assert scene.call(other).status == 429  # all 8 slots are taken
        wire.heal()
        eventually(lambda: scene.call(alone).status == 429, BACK_WITHIN_S)

        wire.hold()
        eventually(lambda: other.metric("gateway_closed_calls_total") == 4, SILENT_S + 20)
        assert [row["ended"] for row in other.calls()] == ["lost"] * 4
        running += scene.begin(other, 4)
        assert scene.call(other).status == 429  # 8 of the other gateway, and 4 that it cannot know to run
        wire.heal()
        eventually(lambda: [row["ended"] for row in other.calls()] == [], BACK_WITHIN_S)
        eventually(lambda: scene.call(alone).status == 429, BACK_WITHIN_S)
        assert {scene.call(house).status for house in (alone, other) for _ in range(3)} == {429}
        assert "key:alice: 12 parallel per None, 0 reserved" in open_windows(other)
        scene.end()
        assert all(told.is_served for told in running)
        assert scene.check(other) == {"done": 12}


def test_after_a_while_alone_calls_are_denied(gateway: StartsGateways, redis: RedisServer) -> None:
    with Scene() as scene:
        store = {"url": redis.url, "namespace": "brief", "on_outage": "allow", "outage_max_s": 1}
        house = gateway(settings(scene.url, store=store, **ACCOUNTS))
        with befallen(redis, "stands still"):
            assert scene.serves(house)  # the first one finds out, and is not to suffer for it
            eventually(lambda: (told := scene.call(house)).status == 503 and code(told) == "store_unavailable")
            assert house.get("/readyz", key=None).status == 503
        eventually(lambda: scene.serves(house), BACK_WITHIN_S)
        scene.check(house)


# ----------------------------------------------------------------------------------------------- what is left behind


def test_what_redis_lost_or_never_got_is_sent_by_the_next_gateway(
    gateway: StartsGateways, redis_server: RedisServer, tmp_path: Path
) -> None:
    """This Redis keeps nothing when it is killed."""
    with Scene() as scene:
        store = {"url": redis_server.url, "journal_dir": str(tmp_path / "journal")}
        config = settings(scene.url, store=store, **ACCOUNTS)
        first = gateway(config)
        assert all(told.is_served for told in scene.burst(first, 5))
        redis_server.kill()
        redis_server.restart()
        eventually(lambda: scene.serves(first), BACK_WITHIN_S)
        assert scene.check(first) == {"done": 6}

        running = scene.begin(first, 3)
        redis_server.kill()
        scene.end()
        assert all(told.is_served for told in running)
        first.stop()
        assert "3 usage records wait in the journal for the store" in first.stderr
        redis_server.restart()
        second = gateway(config)
        assert scene.serves(second)
        assert scene.check(second) == {"done": 10}


# ------------------------------------------------------------------------------------------------------- the start


def test_gateway_that_starts_without_redis_waits_for_it(gateway: StartsGateways, redis_server: RedisServer) -> None:
    with Scene() as scene:
        redis_server.kill()
        house = gateway(settings(scene.url, store={"url": redis_server.url}, **ACCOUNTS))
        assert house.get("/readyz", key=None).told == (503, "server_error", None, "store_unavailable")
        assert house.complete().told == (503, "server_error", None, "store_unavailable")
        assert scene.hits == 0
        redis_server.restart()
        eventually(lambda: house.get("/readyz", key=None).status == 200, BACK_WITHIN_S)
        assert scene.serves(house)
        assert scene.check(house) == {"done": 1}
        assert open_windows(house) == []


def test_store_that_a_person_has_to_mend_ends_the_start(tmp_path: Path) -> None:
    """The one with a wrong password, and the one that a newer gateway has written to."""
    with RedisServer(tmp_path / "redis", password="the-right-password") as redis:
        told = start(tmp_path, url=redis.url_for(password="a-wrong-password"))
        assert "WRONGPASS" in told or "password" in told.replace("a-wrong-password", "")
        assert "a-wrong-password" not in told
        assert "the-right-password" not in told
        redis.call("SET", "{later}:schema", 1000)
        told = start(tmp_path, url=redis.url, namespace="later")
        assert "newer gateway" in told
        assert "the-right-password" not in told


def start(folder: Path, **store: Any) -> str:
    """The one line with which a gateway ends that cannot start."""
    file = folder / "gateway.yaml"
    store = {"journal_dir": str(folder / "journal"), **store}
    file.write_text(yaml.safe_dump(settings("http://127.0.0.1:9/v1", store=store)))
    ended = run("serve", "--config", str(file))
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("gateway: ")
    return line
