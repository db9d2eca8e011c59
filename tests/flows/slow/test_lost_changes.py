"""What operators decided holds when Redis comes back older or empty: two gateways on one Redis, each with a journal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer, wait_until
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, eventually, key, run, secret, settings
from tests.flows.steering import Operator, until_all_know, until_all_say

USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
QUOTA = [{"requests": 10, "per": "day"}]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def config(shared_upstream: ScriptedUpstream, redis: RedisServer) -> dict[str, Any]:
    shared_upstream.answer_with(always=ok_json({"choices": [], "usage": USAGE}))
    keys = [key("alice", quotas=QUOTA), key("filed")]
    return settings(shared_upstream.url, store={"url": redis.url}, server={"workers": 2}, keys=keys)


@pytest.fixture
def gateways(start_gateway: StartsGateways, config: dict[str, Any]) -> list[Gateway]:
    return [start_gateway(config), start_gateway(config)]


def come_back(redis: RedisServer, snapshot: Path | None) -> None:
    """Redis is killed, and comes back with what it had at the snapshot; None: empty."""
    redis.kill()
    (redis.folder / "dump.rdb").unlink(missing_ok=True)
    if snapshot is not None:
        shutil.copy(snapshot, redis.folder / "dump.rdb")
    redis.restart()


def snapshot_of(redis: RedisServer, place: Path) -> Path:
    redis.call("SAVE")
    return Path(shutil.copy(redis.folder / "dump.rdb", place))


def decide(operator: Operator, issued: str) -> str:
    """One change of each kind. Returns the secret of a new key."""
    operator.done("PATCH", "keys/issued", {"max_parallel": 7})
    operator.done("POST", "keys/alice/top_up", {"requests": 90, "per": "day"})
    operator.create("made", quotas=QUOTA)
    made: str = operator.done("POST", "keys/made/rotate")["secret"]
    operator.done("POST", "keys/alice/reset")
    operator.done("POST", "teams", {"name": "red", "quotas": QUOTA})
    operator.done("POST", "keys", {"id": "paused", "quotas": QUOTA})
    operator.done("POST", "keys/paused/pause")
    operator.done("DELETE", "keys/filed")
    operator.done("DELETE", "keys/issued")
    until_all_say(operator.gateway, issued, 401)
    return made


def check(gateways: list[Gateway], issued: str, made: str) -> None:
    until_all_say(gateways, secret("filed"), 401)
    until_all_say(gateways, issued, 401)
    until_all_say(gateways, made, 200)
    until_all_know(gateways, secret("alice"), lambda received: received["quotas"][0]["limit"] == 100)


@pytest.mark.parametrize("is_empty", [False, True])
def test_changes_are_made_again_when_redis_comes_back_without_them(
    gateways: list[Gateway], redis: RedisServer, tmp_path: Path, is_empty: bool
) -> None:
    one, _ = gateways
    operator = Operator(one)
    issued = operator.create("issued")
    until_all_say(gateways, issued, 200)
    before = snapshot_of(redis, tmp_path / "before.rdb")
    made = decide(operator, issued)
    audit = [(row["name"], row["action"]) for row in operator.rows("audit")]
    come_back(redis, None if is_empty else before)
    check(gateways, issued, made)
    assert sorted((row["name"], row["action"]) for row in operator.rows("audit")) == sorted(audit)
    assert operator.done("GET", "keys/issued")["max_parallel"] == 7
    assert operator.done("GET", "keys/paused")["status"] == "paused"
    assert operator.done("GET", "teams/red")["quotas"] == QUOTA
    assert "came back older or empty" in one.stderr
    assert one.metric("gateway_lost_changes_total", outcome="restored") == len(audit) - (0 if is_empty else 1)
    assert one.metric("gateway_lost_changes_total", outcome="failed") == 0


def test_a_reset_that_is_made_again_leaves_the_calls_that_came_after_it(
    start_gateway: StartsGateways, config: dict[str, Any], redis: RedisServer, tmp_path: Path
) -> None:
    """The gateway that made it comes back when the others' journals have repeated their calls."""
    one = start_gateway(config)
    own = {**config, "store": {**config["store"], "journal_dir": str(tmp_path / "journal")}}
    deciding = start_gateway(own)
    assert [one.complete(key="alice").status for _ in range(4)] == [200] * 4
    before = snapshot_of(redis, tmp_path / "before.rdb")
    Operator(deciding).done("POST", "keys/alice/reset")
    deciding.stop()
    assert [one.complete(key="alice").status for _ in range(3)] == [200] * 3
    come_back(redis, before)
    until_all_know(one, secret("alice"), lambda received: received["quotas"][0]["used"] == 7)
    restored = start_gateway(own)
    eventually(lambda: restored.metric("gateway_lost_changes_total", outcome="restored") == 1)
    until_all_know(one, secret("alice"), lambda received: received["quotas"][0]["used"] == 3)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_deleted_key_stays_deleted(
    gateways: list[Gateway], redis: RedisServer, tmp_path: Path, is_empty: bool
) -> None:
    """Where Redis comes back with an older version of it (the gateway that changed it is gone), or with nothing."""
    gateway, other = gateways
    operator = Operator(gateway)
    secrets = [operator.create(name) for name in ("known", "short-lived")]
    operator.done("POST", "keys/short-lived/delete")
    before = snapshot_of(redis, tmp_path / "before.rdb")
    Operator(other).done("PATCH", "keys/known", {"max_parallel": 7})
    operator.done("POST", "keys/known/delete")
    secrets.append(operator.create("unknown"))
    operator.done("POST", "keys/unknown/delete")
    last = operator.create("last")
    audit = [(row["name"], row["action"]) for row in operator.rows("audit") if row["action"] != "update"]
    other.stop()
    come_back(redis, None if is_empty else before)
    until_all_say(gateway, last, 200)
    assert [operator.use(each).status for each in secrets] == [401] * 3
    assert [row["id"] for row in operator.rows("keys")] == ["alice", "filed", "last"]
    assert sorted((row["name"], row["action"]) for row in operator.rows("audit")) == sorted(audit)


def test_a_revoked_key_of_the_file_stays_revoked_after_an_empty_redis_and_a_restart(
    start_gateway: StartsGateways, config: dict[str, Any], redis: RedisServer
) -> None:
    config["store"]["journal_dir"] = str(redis.folder / "journal")
    gateway = start_gateway(config)
    Operator(gateway).done("DELETE", "keys/filed")
    until_all_say(gateway, secret("filed"), 401)
    gateway.stop()
    come_back(redis, None)
    again = start_gateway(config)
    assert Operator(again).use(secret("filed")).status == 401


NOT_REPLICATED = "is on no replica of the store yet"


def confirms(redis: RedisServer) -> bool:
    """Whether a replica has confirmed something. Online, it may still be loading."""
    return bool(re.search(r"state=online,offset=[1-9]", redis.cli("INFO", "replication")))


def test_the_author_of_a_change_that_no_replica_has_reads_so(
    start_gateway: StartsGateways, config: dict[str, Any], redis: RedisServer, tmp_path: Path
) -> None:
    config["store"]["journal_dir"] = str(tmp_path / "journal")
    gateway = start_gateway(config)
    operator = Operator(gateway)

    def by_command(*arguments: str) -> str:
        done = run("keys", *arguments, env={"GATEWAY_TOKEN": ADMIN_TOKEN})
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "warnings" not in operator.done("POST", "keys", {"id": "without-replica", "quotas": QUOTA})
    with RedisServer(tmp_path / "replica", extra=[f"replicaof 127.0.0.1 {redis.port}"]) as replica:
        wait_until(lambda: confirms(redis), "the replica follows")
        operator.done("POST", "keys", {"id": "on-the-replica", "quotas": QUOTA})
        # On a busy machine a replica may confirm a change later than the gateway waits.
        wait_until(
            lambda: "warnings" not in operator.done("PATCH", "keys/on-the-replica", {"max_parallel": 8}),
            "the replica confirms a change in time",
        )
        wait_until(
            lambda: "on-the-replica" in replica.cli("ZRANGE", "{gateway}:1:names:key", 0, -1), "it has the change"
        )
        late = gateway.stderr.count(NOT_REPLICATED)
        replica.stop()
        (warning,) = operator.done("POST", "keys", {"id": "not-on-the-replica", "quotas": QUOTA})["warnings"]
        assert warning.startswith(f"the change of key not-on-the-replica {NOT_REPLICATED}")
        assert (gateway.stderr.count(warning), gateway.stderr.count(NOT_REPLICATED)) == (1, late + 1)
        for method, path, body in (
            ("PATCH", "keys/not-on-the-replica", {"max_parallel": 7}), ("POST", "keys/alice/reset", None),
            ("POST", "keys/alice/top_up", {"requests": 90, "per": "day"}), ("DELETE", "keys/filed", None),
            ("POST", "keys/alice/pause", None), ("POST", "keys/alice/resume", None),
            ("POST", "keys/not-on-the-replica/rotate", None), ("POST", "keys/on-the-replica/delete", None),
            ("POST", "teams", {"name": "red"}), ("PATCH", "teams/red", {"quotas": QUOTA}),
            ("DELETE", "teams/red", None),
        ):  # fmt: skip
            (warning,) = operator.done(method, path, body)["warnings"]
            assert NOT_REPLICATED in warning
        warning = f"gateway: warning: the change of key by-command {NOT_REPLICATED}"
        assert warning in by_command("create", "by-command", "--config", str(gateway.file))
        assert warning in by_command("rotate", "by-command", "--url", gateway.url)
        assert warning in by_command("revoke", "by-command", "--url", gateway.url)
        replica.cont()
