"""Calls during a failover from one Redis to another; and a Redis behind TLS.

Batches that the old master acknowledged but did not replicate are sent again: nothing is lost or counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import StartsGateways
from tests.fakes.redis_groups import Cluster, Sentinels, wait_until_replicated
from tests.fakes.redis_servers import Certificates, RedisServer, wait_until
from tests.flows.books import ACCOUNTS, QUOTAS
from tests.flows.house import Gateway, eventually, key, settings
from tests.flows.scene import Scene, code

PASSWORD = "a-password-that-nobody-may-see"
KEYS = [
    key("alice", quotas=QUOTAS),
    key("bob", quotas=QUOTAS),
    key("ten", quotas=[{"requests": 10, "per": "day"}]),
    key("twenty", quotas=[{"requests": 20, "per": "day"}]),
]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as made:
        yield made


def opened(gateways: StartsGateways, scene: Scene, url: str) -> Gateway:
    return gateways(settings(scene.url, store={"url": url}, **(ACCOUNTS | {"keys": KEYS})))


def check_secrets(house: Gateway) -> None:
    assert PASSWORD not in house.stdout + house.stderr


# -------------------------------------------------------------------------------------------------------- Sentinels


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentinels]:
    with Sentinels(tmp_path_factory.mktemp("sentinels"), password=PASSWORD) as group:
        yield group


@pytest.fixture
def group(sentinels: Sentinels) -> Sentinels:
    """A master with two replicas that have all it has, and nothing in them."""

    def is_restored() -> bool:
        for server in sentinels.servers:
            server.call("CONFIG", "SET", "masterauth", PASSWORD)
        master = sentinels.master
        return master.cli("INFO", "replication").count("state=online") == 2 and master.call("FLUSHALL") == "OK"

    for server in sentinels.servers:
        if not server.is_running:
            server.restart()
        server.cont()
    wait_until(is_restored, "both replicas were fed again")
    return sentinels


@pytest.mark.parametrize("how", [Sentinels.failover_by_kill, Sentinels.failover_by_stop])
def test_calls_go_on_with_the_next_master(
    how: Callable[[Sentinels], RedisServer], gateway: StartsGateways, scene: Scene, group: Sentinels
) -> None:
    house = opened(gateway, scene, group.url)
    running = scene.begin(house, 2)
    with scene.callers.at_work(lambda: house.port, count=2):
        eventually(lambda: len(scene.callers.told) > 30)
        former = how(group)
        eventually(lambda: scene.serves(house))
        more = len(scene.callers.told) + 30
        eventually(lambda: len(scene.callers.told) > more)
    if former.is_running:
        former.cont()  # it takes itself for the master for a while
    scene.end()
    assert all(told.is_served for told in running)
    assert {told.status for told in scene.callers.told} == {200, 503}
    scene.check(house)
    check_secrets(house)


def test_writes_that_the_next_master_lacks_are_sent_again(
    gateway: StartsGateways, scene: Scene, group: Sentinels
) -> None:
    house = opened(gateway, scene, group.url)
    known = [scene.call(house, who) for who in ("alice", "ten", "ten", "ten")]
    running = scene.begin(house, who="ten")
    wait_until_replicated(group.master, 2)

    group.stop_replication()
    forgotten = [scene.call(house, who) for who in ("alice", "bob", "ten", "ten")]
    running += scene.begin(house, who="ten")  # the fourth, and the seventh of its ten
    running += scene.begin(house)
    recorded = house.calls(limit=100)
    assert len(recorded) == len(known + forgotten)
    group.failover_by_kill()
    eventually(lambda: scene.serves(house))
    assert {record["id"] for record in recorded} <= {record["id"] for record in house.calls(limit=100)}
    rest = [scene.call(house, "ten").status for _ in range(5)]
    assert rest == [200] * 3 + [429] * 2  # open calls, too, count with a master that has never seen them
    scene.end()
    assert all(told.is_served for told in known + forgotten + running)
    assert scene.check(house) == {"done": 4 + 4 + 3 + 1 + 3}
    (window,) = [row for row in house.get("/v1/key", key="ten").json["quotas"] if row["scope"] == "key:ten"]
    assert (window["used"], window["reserved"]) == (10, 0)
    assert "the store has lost acknowledged entries" in house.stderr


# --------------------------------------------------------------------------------------------------------- a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters with a replica each, which go on where a part of the slots is away."""
    with Cluster(tmp_path_factory.mktemp("cluster"), has_replicas=True) as made:
        for node in made.nodes:
            node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        yield made


def test_a_cluster_keeps_the_quota_whichever_node_is_killed(
    gateway: StartsGateways, scene: Scene, cluster: Cluster
) -> None:
    house = opened(gateway, scene, cluster.url)
    assert sorted(told.status for told in scene.burst(house, 40, "twenty")) == [200] * 20 + [429] * 20

    ours = cluster.node_of("{gateway}")
    other = next(name for name in map(str, range(100)) if cluster.node_of(name) is not ours)
    begun = len(scene.callers.told)
    with scene.callers.at_work(lambda: house.port, count=2):
        cluster.failover_by_kill(other)
    assert {told.status for told in scene.callers.told[begun:]} == {200}

    running = scene.begin(house, 2)
    with scene.callers.at_work(lambda: house.port, count=2):
        assert cluster.failover_by_kill("{gateway}") is ours
        eventually(lambda: scene.serves(house))
    scene.end()
    assert all(told.is_served for told in running)
    assert spent(scene, house)

    last = cluster.node_of("{gateway}")  # it has no replica any more
    for setting in (("appendonly", "yes"), ("appendfsync", "always")):
        last.call("CONFIG", "SET", *setting)
    last.call("CONFIG", "REWRITE")
    wait_until(lambda: last.info("aof_rewrite_in_progress") == "0" == last.info("aof_rewrite_scheduled"), "it was kept")
    running = scene.begin(house, 2)
    last.kill()
    assert {(told.status, code(told)) for told in scene.burst(house, 10)} == {(503, "store_unavailable")}
    scene.end()
    assert all(told.is_served for told in running)
    last.restart()
    eventually(lambda: scene.serves(house))
    assert spent(scene, house)
    scene.check(house)


def spent(scene: Scene, house: Gateway) -> bool:
    """Whether the quota of twenty calls is remembered."""
    return {(told.status, code(told)) for told in scene.burst(house, 3, "twenty")} == {(429, "insufficient_quota")}


# --------------------------------------------------------------------------------------------------------------- TLS


RIGHTS = "~{gateway}:* +@read +@write +@scripting +@connection +time -@dangerous +info"
"""What gateway/store/redis/store.py says that its user needs."""

TAKEN_AND_GIVEN = [("off", "on"), ("-evalsha", "+evalsha"), ("-hset", "+hset"), ("resetkeys", "~{gateway}:*")]


def test_a_user_of_few_rights_over_tls_is_enough(gateway: StartsGateways, scene: Scene, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    user = f"gateway on >{PASSWORD} {RIGHTS}"
    with RedisServer(tmp_path / "redis", tls=certificates, password="owner-secret", acl=[user]) as redis:

        def change(rule: str) -> None:
            redis.call("ACL", "SETUSER", "gateway", rule)
            redis.call("CLIENT", "KILL", "USER", "gateway")

        house = opened(gateway, scene, redis.url_for("gateway", PASSWORD))
        assert sorted(told.status for told in scene.burst(house, 15, "ten")) == [200] * 10 + [429] * 5
        assert house.get("/readyz", key=None).status == 200
        for taken, given in TAKEN_AND_GIVEN:
            running = scene.begin(house, 2)
            change(taken)
            assert {(told.status, code(told)) for told in scene.burst(house, 5)} == {(503, "store_unavailable")}
            scene.end()
            assert all(told.is_served for told in running)
            change(given)
            eventually(lambda: scene.serves(house))
        scene.check(house)
        check_secrets(house)
