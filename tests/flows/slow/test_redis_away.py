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
from tests.flows.books import ACCOUNTS, QUOTAS, ClientCall, open_windows
from tests.flows.gateway_process import Gateway, children, eventually, key, run, settings, side_by_side
from tests.flows.scenario import Scenario, code

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
def scenario() -> Iterator[Scenario]:
    with Scenario() as made:
        yield made


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, scenario: Scenario, redis: RedisServer, wire: WireProxy) -> Gateway:
    """It denies, and reaches Redis through a wire that can go wrong."""
    return start_shared_gateway(settings(scenario.url, store={"url": redis.url_for(port=wire.port)}, **ACCOUNTS))


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
    name: str, gateway: Gateway, scenario: Scenario, redis: RedisServer
) -> None:
    assert scenario.serves(gateway)
    running = scenario.begin(gateway, 2) + scenario.begin(gateway, is_stream=False)
    with befallen(redis, name):
        began = time.monotonic()
        crowd = scenario.burst(gateway, 50)
        assert time.monotonic() - began < 12  # if each waited for its own 0.8 s, it would take 40
        assert {(received.status, code(received)) for received in crowd} == {(503, "store_unavailable")}
        took_s = []
        for _ in range(20):
            began = time.monotonic()
            refused = gateway.complete()
            took_s.append(time.monotonic() - began)
            assert refused.refusal == (503, "server_error", None, "store_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        assert median(took_s) < 0.25  # nor does each wait for the next look at Redis
        assert sorted(took_s)[-3] < 1  # a slow machine may take longer for one or two of them
        assert gateway.get("/readyz", key=None).refusal == (503, "server_error", None, "store_unavailable")
        assert gateway.get("/healthz", key=None).status == 200
        scenario.end()  # while nothing can be settled
        assert all(received.is_served for received in running)
    eventually(lambda: gateway.get("/readyz", key=None).status == 200, BACK_WITHIN_S)
    eventually(lambda: scenario.serves(gateway), BACK_WITHIN_S)
    assert {gateway.call(received.id)["ended"] for received in running} == {"done"}
    scenario.check(gateway)


def test_stall_of_redis_shorter_than_the_time_limit_of_a_batch_refuses_no_call(
    gateway: Gateway, scenario: Scenario, redis: RedisServer
) -> None:
    eventually(lambda: scenario.serves(gateway), BACK_WITHIN_S)
    for _ in range(20):
        before = len(scenario.callers.received)
        with scenario.callers.at_work(lambda: gateway.port, count=10):
            time.sleep(0.3)
            began = time.monotonic()
            with befallen(redis, "stands still"):
                time.sleep(0.6)
            stalled_s = time.monotonic() - began
            time.sleep(0.3)
        if stalled_s < 0.65:
            break  # otherwise the machine was slow and the stall longer than intended: again
        eventually(lambda: scenario.serves(gateway), BACK_WITHIN_S)
    assert {received.status for received in scenario.callers.received[before:]} == {200}
    scenario.check(gateway)


def test_a_key_that_reads_its_limits_is_answered_within_a_second(gateway: Gateway, redis: RedisServer) -> None:
    took_s = []
    with befallen(redis, "stands still"):
        for _ in range(3):
            began = time.monotonic()
            assert gateway.get("/v1/key").refusal == (503, "server_error", None, "store_unavailable")
            took_s.append(time.monotonic() - began)
    assert median(took_s) < 1.6  # on a slow machine; reports wait for two seconds, the first two times
    eventually(lambda: gateway.get("/v1/key").status == 200, BACK_WITHIN_S)


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
    gateway: Gateway, scenario: Scenario, wire: WireProxy
) -> None:
    for cut in CUTS:
        eventually(lambda: scenario.serves(gateway), BACK_WITHIN_S)
        before = wire.cuts
        cut(wire, DRAW)
        refused = scenario.call(gateway)
        assert (refused.status, code(refused)) == (503, "store_unavailable")
        assert wire.cuts == before + 1

        eventually(lambda: scenario.serves(gateway), BACK_WITHIN_S)
        running = scenario.begin(gateway) + scenario.begin(gateway, is_stream=False)
        cut(wire, END)
        scenario.end()
        assert all(received.is_served for received in running)
        eventually(lambda before=before: wire.cuts == before + 2)
    scenario.check(gateway)


def test_what_arrives_too_late_changes_nothing(gateway: Gateway, scenario: Scenario, wire: WireProxy) -> None:
    """After a pause of the connection Redis gets batches that have timed out, before or after newer ones."""
    running = scenario.begin(gateway, 2)
    for _ in range(3):
        wire.hold()
        assert {received.status for received in scenario.burst(gateway, 5)} == {503}
        scenario.end()
        wire.heal()
        eventually(lambda: scenario.serves(gateway), BACK_WITHIN_S)
    assert all(received.is_served for received in running)
    scenario.check(gateway)


def test_sums_agree_after_faults_of_redis_and_the_network(
    gateway: Gateway, scenario: Scenario, redis: RedisServer, wire: WireProxy
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    calls = len(scenario.callers.received)

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
    with scenario.callers.at_work(lambda: gateway.port, count=4):
        end = time.monotonic() + 5
        while time.monotonic() < end:
            dice.choice(events)()
            time.sleep(dice.uniform(0.0, 0.2))
        wire.heal()
    eventually(lambda: scenario.serves(gateway), BACK_WITHIN_S)
    assert {received.status for received in scenario.callers.received[calls:]} == {200, 503}
    scenario.check(gateway)


def test_no_call_notices_that_redis_forgot_the_scripts_or_began_anew(
    gateway: Gateway, scenario: Scenario, redis: RedisServer
) -> None:
    eventually(lambda: scenario.serves(gateway))
    redis.call("SCRIPT", "FLUSH")
    assert scenario.serves(gateway)
    redis.restart()
    assert scenario.serves(gateway)
    scenario.check(gateway)


# ----------------------------------------------------------------------------------------------------------- allow


def test_calls_go_on_with_a_share_and_are_settled_later(start_gateway: StartsGateways, redis: RedisServer) -> None:
    accounts = ACCOUNTS | {
        "keys": [
            key("alice", quotas=[{"requests": 100, "per": "day"}, *QUOTAS]),
            key("bob", max_parallel=1),
            key("single", quotas=QUOTAS),
        ]
    }
    with Scenario() as scenario:
        store = {"url": redis.url, "namespace": "allow", "on_outage": "allow", "outage_share": 0.1}
        gateway = start_gateway(settings(scenario.url, store=store, **accounts))

        def pending() -> float:
            return gateway.metric("gateway_journal_pending_records")

        assert [scenario.serves(gateway) for _ in range(3)] == [True] * 3
        running = scenario.begin(gateway) + scenario.begin(gateway, who="bob")
        with befallen(redis, "is killed"):
            assert scenario.call(gateway, "bob").status == 429  # all of max_parallel counts, and what has begun before
            alone = [scenario.call(gateway) for _ in range(10)]
            assert [received for received in alone if not received.is_served] == []
            for _ in range(3):
                refused = gateway.complete()
                assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
                assert int(refused.headers["retry-after"]) >= 1
            assert scenario.serves(gateway, "single")  # the first call of this key
            scenario.end()
            assert all(received.is_served for received in running)
            assert scenario.serves(gateway, "bob")
            assert gateway.get("/readyz", key=None).status == 200
            eventually(lambda: pending() == 14)
            returns = time.time()
        eventually(lambda: pending() == 0)
        assert [row for row in gateway.calls("alice") if row["time"] > returns] == []
        (window,) = [row for row in gateway.get("/v1/key").json["quotas"] if row["limit"] == 100]
        assert (window["used"], window["reserved"]) == (14, 0)
        received = scenario.burst(gateway, 120)
        assert sorted(one.status for one in received) == [200] * 86 + [429] * 34
        scenario.check(gateway)


def test_requests_that_are_no_calls_have_the_share_of_a_rate_and_are_not_charged_later(
    start_gateway: StartsGateways, redis: RedisServer
) -> None:
    accounts = ACCOUNTS | {"keys": [key("alice", quotas=[{"requests": 100, "per": "hour"}])]}
    with Scenario() as scenario:
        store = {"url": redis.url, "namespace": "counted", "on_outage": "allow", "outage_share": 0.1}
        gateway = start_gateway(settings(scenario.url, store=store, **accounts))

        def asked() -> tuple[int, str]:
            answer = gateway.get("/v1/responses/resp_unknown")
            return answer.status, answer.error["code"]

        def used() -> int:
            (window,) = [row for row in gateway.get("/v1/key").json["quotas"] if row["limit"] == 100]
            return int(window["used"])

        assert [asked()[0] for _ in range(3)] == [404] * 3
        assert used() == 3
        with befallen(redis, "is killed"):
            # They count in the share, and who made a response is known to Redis alone.
            assert [asked() for _ in range(10)] == [(503, "store_unavailable")] * 10
            assert asked() == (429, "rate_limit_exceeded")
            assert gateway.complete().status == 429  # calls draw on the same share
        eventually(lambda: asked()[0] == 404)
        assert 3 < used() < 13


def test_a_quota_is_exceeded_by_one_share_of_each_worker_however_often_redis_stalls(
    start_gateway: StartsGateways, redis: RedisServer
) -> None:
    names, requests = ("alice", "bob"), [{"requests": 100, "per": "day"}]
    accounts = ACCOUNTS | {"keys": [key(name, quotas=requests) for name in names]}
    with Scenario() as scenario, WireProxy(redis.port) as wire:
        store = {"url": redis.url_for(port=wire.port), "namespace": "flaps", "on_outage": "allow"}
        gateway = start_gateway(settings(scenario.url, server={"workers": 2}, store=store, **accounts))
        with scenario.callers.at_work(lambda: gateway.port, count=6):
            for _ in range(12):
                wire.hold()
                time.sleep(1.3)  # a batch is lost, and the next as well
                wire.heal()
                time.sleep(0.5)
        eventually(lambda: gateway.metric("gateway_journal_pending_records") == 0, BACK_WITHIN_S)
        eventually(lambda: all(scenario.call(gateway, name).status == 429 for name in names), 30)
        scenario.check(gateway)
        for name in names:
            (window,) = [row for row in gateway.get("/v1/key", key=name).json["quotas"] if row["limit"] == 100]
            assert 100 <= window["used"] <= 100 + 2 * 10


def test_one_lost_batch_is_no_outage(start_gateway: StartsGateways, redis: RedisServer) -> None:
    """Its calls are sent again, and the share of the worker, which is spent, is not needed for them."""
    accounts = ACCOUNTS | {"keys": [key("alice", quotas=[{"requests": 20, "per": "day"}])]}
    with Scenario() as scenario, WireProxy(redis.port) as wire:
        store = {"url": redis.url_for(port=wire.port), "namespace": "single", "on_outage": "allow"}
        gateway = start_gateway(settings(scenario.url, store=store, **accounts))
        for of in range(10):
            wire.lose_reply(of=DRAW)
            assert scenario.serves(gateway), of
        assert wire.cuts == 10
        scenario.check(gateway)


def test_a_worker_that_is_replaced_during_an_outage_refuses_no_call(
    start_gateway: StartsGateways, redis: RedisServer
) -> None:
    """It accepts calls only when its key store answers; until then the other worker serves them."""
    with Scenario() as scenario, WireProxy(redis.port) as wire:
        store = {"url": redis.url_for(port=wire.port), "namespace": "replaced", "on_outage": "allow"}
        keys = {"keys": [key("alice")]}
        gateway = start_gateway(settings(scenario.url, server={"workers": 2}, store=store, **ACCOUNTS | keys))
        assert scenario.serves(gateway)
        wire.hold()
        assert scenario.serves(gateway)
        killed = children(gateway.process.pid)[0]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: killed not in children(gateway.process.pid))
        received: list[ClientCall] = []
        end = time.monotonic() + 8  # it takes half of that to start without Redis
        while time.monotonic() < end:
            received.append(scenario.call(gateway))
        assert [code(one) for one in received if one.status != 200] == []
        assert len(children(gateway.process.pid)) == 2
        wire.heal()
        eventually(lambda: gateway.metric("gateway_journal_pending_records") == 0, BACK_WITHIN_S)
        scenario.check(gateway)


PATIENT = {"main": {"timeouts": {"head_s": 300, "idle_s": 300}}}
"""Upstreams whose calls may be held for longer than a partition."""


def test_partitions_of_a_minute(start_gateway: StartsGateways, redis: RedisServer) -> None:
    side_by_side(
        lambda: calls_of_living_workers_are_not_lost_when_redis_returns(start_gateway, redis),
        lambda: a_gateway_alone_cannot_reach_redis(start_gateway, redis),
    )


def calls_of_living_workers_are_not_lost_when_redis_returns(start_gateway: StartsGateways, redis: RedisServer) -> None:
    accounts = ACCOUNTS | {"keys": [key("alice", max_parallel=8)]}
    with Scenario() as scenario, WireProxy(redis.port) as wire:
        store = {"url": redis.url_for(port=wire.port), "namespace": "returns"}
        gateways = [start_gateway(settings(scenario.url, upstreams=PATIENT, store=store, **accounts)) for _ in range(2)]
        running = [received for gateway in gateways for received in scenario.begin(gateway, 4)]
        wire.hold()
        time.sleep(SILENT_S + 5)
        wire.heal()
        for gateway in gateways:
            eventually(lambda gateway=gateway: gateway.get("/readyz", key=None).status == 200, BACK_WITHIN_S)
        assert {scenario.call(gateway).status for gateway in gateways for _ in range(3)} == {
            429
        }  # all 8 slots are taken
        time.sleep(2 * SIGN_OF_LIFE_S)
        assert {scenario.call(gateway).status for gateway in gateways} == {429}
        assert [row["ended"] for row in gateways[0].calls()] == []
        scenario.end()
        assert all(received.is_served for received in running)
        assert scenario.check(gateways[0]) == {"done": 8}


def a_gateway_alone_cannot_reach_redis(start_gateway: StartsGateways, redis: RedisServer) -> None:
    """For less than `SILENT_S` it keeps its calls and their slots. Then the other gateway closes its calls as lost, and
    what is served beyond `max_parallel` is at most those calls; when it is back they are open again."""
    accounts = ACCOUNTS | {"keys": [key("alice", quotas=QUOTAS, max_parallel=8)]}
    with Scenario() as scenario, WireProxy(redis.port) as wire:
        urls = (redis.url_for(port=wire.port), redis.url)
        alone, other = (
            start_gateway(
                settings(scenario.url, upstreams=PATIENT, store={"url": url, "namespace": "alone"}, **accounts)
            )
            for url in urls
        )
        running = [received for gateway in (alone, other) for received in scenario.begin(gateway, 4)]
        wire.hold()
        eventually(lambda: code(scenario.call(alone)) == "store_unavailable")
        time.sleep(SILENT_S / 2)
        assert scenario.call(other).status == 429  # all 8 slots are taken
        wire.heal()
        eventually(lambda: scenario.call(alone).status == 429, BACK_WITHIN_S)

        wire.hold()
        eventually(lambda: other.metric("gateway_closed_calls_total") == 4, SILENT_S + 20)
        assert [row["ended"] for row in other.calls()] == ["lost"] * 4
        running += scenario.begin(other, 4)
        assert scenario.call(other).status == 429  # 8 of the other gateway, and 4 that it cannot know to run
        wire.heal()
        eventually(lambda: [row["ended"] for row in other.calls()] == [], BACK_WITHIN_S)
        eventually(lambda: scenario.call(alone).status == 429, BACK_WITHIN_S)
        assert {scenario.call(gateway).status for gateway in (alone, other) for _ in range(3)} == {429}
        assert "key:alice: 12 parallel per None, 0 reserved" in open_windows(other)
        scenario.end()
        assert all(received.is_served for received in running)
        assert scenario.check(other) == {"done": 12}


def test_after_a_while_alone_calls_are_denied(start_gateway: StartsGateways, redis: RedisServer) -> None:
    with Scenario() as scenario:
        store = {"url": redis.url, "namespace": "brief", "on_outage": "allow", "outage_max_s": 1}
        gateway = start_gateway(settings(scenario.url, store=store, **ACCOUNTS))
        with befallen(redis, "stands still"):
            assert scenario.serves(gateway)  # the first one finds out, and is not to suffer for it
            eventually(
                lambda: (received := scenario.call(gateway)).status == 503 and code(received) == "store_unavailable"
            )
            assert gateway.get("/readyz", key=None).status == 503
        eventually(lambda: scenario.serves(gateway), BACK_WITHIN_S)
        scenario.check(gateway)


# ----------------------------------------------------------------------------------------------- what is left behind


def test_what_redis_lost_or_never_got_is_sent_by_the_next_gateway(
    start_gateway: StartsGateways, redis_server: RedisServer, tmp_path: Path
) -> None:
    """This Redis keeps nothing when it is killed."""
    with Scenario() as scenario:
        store = {"url": redis_server.url, "journal_dir": str(tmp_path / "journal")}
        config = settings(scenario.url, store=store, **ACCOUNTS)
        first = start_gateway(config)
        assert all(received.is_served for received in scenario.burst(first, 5))
        redis_server.kill()
        redis_server.restart()
        eventually(lambda: scenario.serves(first), BACK_WITHIN_S)
        assert scenario.check(first) == {"done": 6}

        running = scenario.begin(first, 3)
        redis_server.kill()
        scenario.end()
        assert all(received.is_served for received in running)
        first.stop()
        assert "3 usage records wait in the journal for the store" in first.stderr
        redis_server.restart()
        second = start_gateway(config)
        assert scenario.serves(second)
        assert scenario.check(second) == {"done": 10}


# ------------------------------------------------------------------------------------------------------- the start


def test_gateway_that_starts_without_redis_waits_for_it(
    start_gateway: StartsGateways, redis_server: RedisServer
) -> None:
    with Scenario() as scenario:
        redis_server.kill()
        gateway = start_gateway(settings(scenario.url, store={"url": redis_server.url}, **ACCOUNTS))
        assert gateway.get("/readyz", key=None).refusal == (503, "server_error", None, "store_unavailable")
        assert gateway.complete().refusal == (503, "server_error", None, "store_unavailable")
        assert scenario.hits == 0
        redis_server.restart()
        eventually(lambda: gateway.get("/readyz", key=None).status == 200, BACK_WITHIN_S)
        assert scenario.serves(gateway)
        assert scenario.check(gateway) == {"done": 1}
        assert open_windows(gateway) == []


def test_store_that_a_person_has_to_mend_ends_the_start(tmp_path: Path) -> None:
    """The one with a wrong password, and the one that a newer gateway has written to."""
    with RedisServer(tmp_path / "redis", password="the-right-password") as redis:
        received = start(tmp_path, url=redis.url_for(password="a-wrong-password"))
        assert "WRONGPASS" in received or "password" in received.replace("a-wrong-password", "")
        assert "a-wrong-password" not in received
        assert "the-right-password" not in received
        redis.call("SET", "{later}:schema", 1000)
        received = start(tmp_path, url=redis.url, namespace="later")
        assert "newer gateway" in received
        assert "the-right-password" not in received


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
