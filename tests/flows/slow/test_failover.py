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
from tests.flows.gateway_process import Gateway, eventually, key, settings
from tests.flows.scenario import Scenario, code

PASSWORD = "a-password-that-nobody-may-see"
KEYS = [
    key("alice", quotas=QUOTAS),
    key("bob", quotas=QUOTAS),
    key("ten", quotas=[{"requests": 10, "per": "day"}]),
    key("twenty", quotas=[{"requests": 20, "per": "day"}]),
]


@pytest.fixture
def scenario() -> Iterator[Scenario]:
    with Scenario() as made:
        yield made


def opened(start_shared_gateway: StartsGateways, scenario: Scenario, url: str) -> Gateway:
    return start_shared_gateway(settings(scenario.url, store={"url": url}, **(ACCOUNTS | {"keys": KEYS})))


def check_secrets(gateway: Gateway) -> None:
    assert PASSWORD not in gateway.stdout + gateway.stderr


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
        # On a busy machine a replica may become the master before it has been emptied.
        return (
            master.cli("INFO", "replication").count("state=online") == 2
            and master.call("FLUSHALL") == "OK"
            and not any(server.call("DBSIZE") for server in sentinels.servers)
        )

    for server in sentinels.servers:
        if not server.is_running:
            server.restart()
        server.cont()
    wait_until(is_restored, "both replicas were fed again")
    return sentinels


@pytest.mark.parametrize("how", [Sentinels.failover_by_kill, Sentinels.failover_by_stop])
def test_calls_go_on_with_the_next_master(
    how: Callable[[Sentinels], RedisServer], start_gateway: StartsGateways, scenario: Scenario, group: Sentinels
) -> None:
    gateway = opened(start_gateway, scenario, group.url)
    running = scenario.begin(gateway, 2)
    with scenario.callers.at_work(lambda: gateway.port, count=2):
        eventually(lambda: len(scenario.callers.received) > 30)
        former = how(group)
        eventually(lambda: scenario.serves(gateway))
        more = len(scenario.callers.received) + 30
        eventually(lambda: len(scenario.callers.received) > more)
    if former.is_running:
        former.cont()  # it takes itself for the master for a while
    scenario.end()
    assert all(received.is_served for received in running)
    assert {received.status for received in scenario.callers.received} == {200, 503}
    scenario.check(gateway)
    check_secrets(gateway)


def test_writes_that_the_next_master_lacks_are_sent_again(
    start_gateway: StartsGateways, scenario: Scenario, group: Sentinels
) -> None:
    gateway = opened(start_gateway, scenario, group.url)
    known = [scenario.call(gateway, who) for who in ("alice", "ten", "ten", "ten")]
    running = scenario.begin(gateway, who="ten")
    wait_until_replicated(group.master, 2)

    group.stop_replication()
    forgotten = [scenario.call(gateway, who) for who in ("alice", "bob", "ten", "ten")]
    running += scenario.begin(gateway, who="ten")  # the fourth, and the seventh of its ten
    running += scenario.begin(gateway)
    recorded = gateway.calls(limit=100)
    assert len(recorded) == len(known + forgotten)
    group.failover_by_kill()
    eventually(lambda: scenario.serves(gateway))
    assert {record["id"] for record in recorded} <= {record["id"] for record in gateway.calls(limit=100)}
    rest = [scenario.call(gateway, "ten").status for _ in range(5)]
    assert rest == [200] * 3 + [429] * 2  # open calls, too, count with a master that has never seen them
    scenario.end()
    assert all(received.is_served for received in known + forgotten + running)
    assert scenario.check(gateway) == {"done": 4 + 4 + 3 + 1 + 3}
    (window,) = [row for row in gateway.get("/v1/key", key="ten").json["quotas"] if row["scope"] == "key:ten"]
    assert (window["used"], window["reserved"]) == (10, 0)
    assert "the store has lost acknowledged entries" in gateway.stderr


# --------------------------------------------------------------------------------------------------------- a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters with a replica each, which go on where a part of the slots is away."""
    with Cluster(tmp_path_factory.mktemp("cluster"), has_replicas=True) as made:
        for node in made.nodes:
            node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        yield made


def test_a_cluster_keeps_the_quota_whichever_node_is_killed(
    start_gateway: StartsGateways, scenario: Scenario, cluster: Cluster
) -> None:
    gateway = opened(start_gateway, scenario, cluster.url)
    assert sorted(received.status for received in scenario.burst(gateway, 40, "twenty")) == [200] * 20 + [429] * 20

    ours = cluster.node_of("{gateway}")
    other = next(name for name in map(str, range(100)) if cluster.node_of(name) is not ours)
    begun = len(scenario.callers.received)
    with scenario.callers.at_work(lambda: gateway.port, count=2):
        cluster.failover_by_kill(other)
    assert {received.status for received in scenario.callers.received[begun:]} == {200}

    running = scenario.begin(gateway, 2)
    with scenario.callers.at_work(lambda: gateway.port, count=2):
        assert cluster.failover_by_kill("{gateway}") is ours
        eventually(lambda: scenario.serves(gateway))
    scenario.end()
    assert all(received.is_served for received in running)
    assert spent(scenario, gateway)

    last = cluster.node_of("{gateway}")  # it has no replica any more
    for setting in (("appendonly", "yes"), ("appendfsync", "always")):
        last.call("CONFIG", "SET", *setting)
    last.call("CONFIG", "REWRITE")
    wait_until(lambda: last.info("aof_rewrite_in_progress") == "0" == last.info("aof_rewrite_scheduled"), "it was kept")
    running = scenario.begin(gateway, 2)
    last.kill()
    assert {(received.status, code(received)) for received in scenario.burst(gateway, 10)} == {
        (503, "store_unavailable")
    }
    scenario.end()
    assert all(received.is_served for received in running)
    last.restart()
    eventually(lambda: scenario.serves(gateway))
    assert spent(scenario, gateway)
    scenario.check(gateway)


def spent(scenario: Scenario, gateway: Gateway) -> bool:
    """Whether the quota of twenty calls is remembered."""
    return {(received.status, code(received)) for received in scenario.burst(gateway, 3, "twenty")} == {
        (429, "insufficient_quota")
    }


# --------------------------------------------------------------------------------------------------------------- TLS


RIGHTS = "~{gateway}:* +@read +@write +@scripting +@connection +time -@dangerous +info"
"""What gateway/store/redis/store.py says that its user needs."""

TAKEN_AND_GIVEN = [("off", "on"), ("-evalsha", "+evalsha"), ("-hset", "+hset"), ("resetkeys", "~{gateway}:*")]


def test_a_user_of_few_rights_over_tls_is_enough(
    start_gateway: StartsGateways, scenario: Scenario, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path / "certificates")
    user = f"gateway on >{PASSWORD} {RIGHTS}"
    with RedisServer(tmp_path / "redis", tls=certificates, password="owner-secret", acl=[user]) as redis:

        def change(rule: str) -> None:
            redis.call("ACL", "SETUSER", "gateway", rule)
            redis.call("CLIENT", "KILL", "USER", "gateway")

        gateway = opened(start_gateway, scenario, redis.url_for("gateway", PASSWORD))
        assert sorted(received.status for received in scenario.burst(gateway, 15, "ten")) == [200] * 10 + [429] * 5
        assert gateway.get("/readyz", key=None).status == 200
        for taken, given in TAKEN_AND_GIVEN:
            running = scenario.begin(gateway, 2)
            change(taken)
            assert {(received.status, code(received)) for received in scenario.burst(gateway, 5)} == {
                (503, "store_unavailable")
            }
            scenario.end()
            assert all(received.is_served for received in running)
            change(given)
            eventually(lambda: scenario.serves(gateway))
        scenario.check(gateway)
        check_secrets(gateway)
