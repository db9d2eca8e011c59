"""The servers and the proxy that other tests stand on do what they say."""

from __future__ import annotations

import functools
import os
import socket
import time
from pathlib import Path

import pytest

from tests.fakes import redis_servers
from tests.fakes.redis_groups import Cluster, Sentinels, wait_until_replicated
from tests.fakes.redis_servers import Certificates, MissingServer, RedisServer, servers_to_test, wait_until
from tests.fakes.resp import Refusal, ask
from tests.fakes.wire_proxy import WireProxy

# ------------------------------------------------------------------------------------------------------------ alone


def test_each_kind_of_server_answers_and_runs_scripts(any_redis: RedisServer) -> None:
    assert any_redis.cli("DBSIZE") == "0"
    assert any_redis.call("EVAL", "return redis.call('incrby', KEYS[1], ARGV[1])", 1, "left behind", 7) == 7
    assert any_redis.call("MGET", "left behind", "nothing") == ["7", None]


def test_shared_servers_are_handed_over_empty(any_redis: RedisServer) -> None:
    assert any_redis.cli("DBSIZE") == "0"


def test_what_was_written_with_fsync_survives_a_kill(tmp_path: Path) -> None:
    with RedisServer(tmp_path, appendonly="always") as server:
        port, pid = server.port, server.pid
        server.call("SET", "kept", "yes")
        server.kill()
        with pytest.raises(OSError, match="refused"):
            server.call("PING")
        server.restart()
        assert (server.port, server.cli("GET", "kept")) == (port, "yes")
        assert server.pid != pid
    assert not server.is_running
    assert (tmp_path / "redis.log").exists()


def test_without_a_file_a_killed_server_forgets_everything(redis_server: RedisServer) -> None:
    redis_server.call("SET", "lost", "yes")
    redis_server.kill()
    redis_server.restart()
    assert redis_server.call("GET", "lost") is None


def test_a_stopped_server_takes_connections_and_answers_when_it_goes_on(redis_server: RedisServer) -> None:
    redis_server.stop()
    with pytest.raises(TimeoutError):
        redis_server.call("PING", timeout_s=0.1)
    redis_server.cont()
    assert redis_server.cli("PING") == "PONG"


def test_a_full_server_refuses_to_write(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory="1mb", extra=["maxmemory-policy noeviction"]) as server:
        with pytest.raises(Refusal, match=r"^OOM "):
            server.call("SET", "much", "x" * 2_000_000)
        assert server.cli("PING") == "PONG"


def test_a_taken_port_is_said_when_it_was_asked_for(redis_server: RedisServer, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no port was free"):
        RedisServer(tmp_path / "second", port=redis_server.port)
    assert redis_server.cli("PING") == "PONG"


def test_two_servers_that_want_the_same_port_both_run(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = redis_server.port
    monkeypatch.setattr("random.sample", lambda ports, count: [taken, taken + 1, taken + 2])
    with RedisServer(tmp_path / "second") as second:
        assert second.port in (taken + 1, taken + 2)
        assert second.cli("DBSIZE") == redis_server.cli("DBSIZE") == "0"


def test_tls_with_a_user_of_few_rights(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    user = "gateway on >user-secret ~{gateway}* &* +@all -@dangerous"
    with RedisServer(tmp_path / "redis", tls=certificates, password="owner-secret", acl=[user]) as server:
        server.call("SET", "{gateway}a", "1")
        as_user = functools.partial(ask, server.port, username="gateway", ca_file=certificates.ca_file)
        assert as_user("GET", "{gateway}a", password="user-secret") == "1"
        with pytest.raises(Refusal, match=r"^NOPERM "):
            as_user("GET", "other", password="user-secret")
        with pytest.raises(Refusal, match=r"^NOPERM "):
            as_user("FLUSHALL", password="user-secret")
        with pytest.raises(Refusal, match=r"^WRONGPASS "):
            as_user("PING", password="guessed")
        with pytest.raises(Refusal, match=r"^NOAUTH "):
            ask(server.port, "PING", ca_file=certificates.ca_file)
        with pytest.raises(OSError):
            ask(server.port, "PING")
        assert server.url_for("gateway", "user-secret").startswith("rediss://gateway:user-secret@127.0.0.1:")
        arguments = Path(f"/proc/{server.pid}/cmdline")
        assert not arguments.exists() or b"secret" not in arguments.read_bytes()


# ------------------------------------------------------------------------------------------------------- not there


def test_a_missing_server_is_a_failure_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_servers, "ROOT", tmp_path)
    monkeypatch.delenv("TEST_REDIS_SERVERS", raising=False)
    assert servers_to_test() == ["redis-server"]
    assert redis_servers.name_of("redis-server") == "redis-server"
    with pytest.raises(MissingServer, match="apt-get install redis-server"):
        RedisServer(tmp_path)


def test_each_server_is_tested_once_however_often_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / ".venv" / "servers"
    kept.mkdir(parents=True)
    for name in ("one", "two"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (kept / "redis-server-9").symlink_to(tmp_path / "one")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_servers, "ROOT", tmp_path)
    monkeypatch.setenv("TEST_REDIS_SERVERS", f"{tmp_path}/one:{tmp_path}/two:{tmp_path}/three")
    assert servers_to_test() == [f"{kept}/redis-server-9", f"{tmp_path}/two"]


# -------------------------------------------------------------------------------------------------------- together


@pytest.mark.timeout(240)
def test_sentinels_replace_a_killed_master_and_a_blocked_one(tmp_path: Path) -> None:
    with Sentinels(tmp_path, password="a-secret") as group:
        group.master.call("SET", "before", "1")
        wait_until_replicated(group.master, 2)
        killed = group.failover_by_kill()
        assert group.master is not killed
        assert group.master.cli("GET", "before") == "1"
        group.master.call("SET", "after", "1")
        killed.restart()
        wait_until(lambda: killed.info("role") == "slave", "the killed master was demoted")
        with pytest.raises(Refusal, match=r"^READONLY "):
            killed.call("SET", "after", "2")
        stopped = group.failover_by_stop()
        assert group.master is not stopped
        stopped.cont()
        wait_until(lambda: stopped.info("role") == "slave", "the stopped master was demoted")


@pytest.mark.timeout(240)
def test_a_cluster_answers_moved_and_replaces_a_killed_master(tmp_path: Path) -> None:
    with Cluster(tmp_path, has_replicas=True) as group:
        keys = ["{gateway}a", "{other}a", "{third}a", "{fourth}a"]
        owners = [group.node_of(key) for key in keys]
        assert len(set(owners)) > 1
        for key, owner in zip(keys, owners, strict=True):
            owner.call("SET", key, "1")
            other = next(node for node in group.nodes[:3] if node is not owner)
            with pytest.raises(Refusal, match=f"^MOVED .* 127.0.0.1:{owner.port}$"):
                other.call("GET", key)
        with pytest.raises(Refusal, match=r"^CROSSSLOT "):
            owners[0].call("MGET", *keys)
        wait_until_replicated(owners[0], 1)
        former = group.failover_by_kill(keys[0])
        assert former is owners[0]
        assert group.node_of(keys[0]).cli("GET", keys[0]) == "1"


# --------------------------------------------------------------------------------------------------------- the wire


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def until_the_end(wire: socket.socket) -> bytes:
    """All that still comes; a connection that is reset ends too."""
    got = b""
    try:
        while data := wire.recv(1000):
            got += data
    except ConnectionResetError:
        pass
    return got


def test_the_proxy_passes_and_counts(redis_server: RedisServer) -> None:
    with WireProxy(redis_server.port) as proxy:
        assert ask(proxy.port, "SET", "a", "x" * 300_000) == "OK"
        assert ask(proxy.port, "GET", "a") == "x" * 300_000
        assert proxy.connections == 2
        assert proxy.request_bytes > 300_000 < proxy.reply_bytes


@pytest.mark.parametrize("after_bytes", [0, 1])
def test_a_request_arrives_and_its_reply_is_lost(redis_server: RedisServer, after_bytes: int) -> None:
    with WireProxy(redis_server.port) as proxy, connect(proxy.port) as wire:
        proxy.lose_reply(of=b"INCR", after_bytes=after_bytes)
        wire.sendall(b"PING\r\n")
        assert wire.recv(100) == b"+PONG\r\n"
        wire.sendall(b"INCR a\r\n")
        assert until_the_end(wire) == b":1\r\n"[:after_bytes]
        assert proxy.cuts == 1
        assert ask(proxy.port, "INCR", "a") == 2


@pytest.mark.parametrize("after_bytes", [0, 10])
def test_a_request_that_is_cut_is_never_carried_out(redis_server: RedisServer, after_bytes: int) -> None:
    with WireProxy(redis_server.port) as proxy:
        proxy.cut_request(of=b"INCR", after_bytes=after_bytes)
        with pytest.raises(ConnectionError):
            ask(proxy.port, "INCR", "a")
        assert proxy.cuts == 1
        assert ask(proxy.port, "INCR", "a") == 1


def test_a_delayed_reply_comes_later(redis_server: RedisServer) -> None:
    with WireProxy(redis_server.port) as proxy:
        proxy.delay(0.3)
        began = time.monotonic()
        assert ask(proxy.port, "INCR", "a") == 1
        assert time.monotonic() - began > 0.29


def test_what_a_black_hole_has_swallowed_arrives_late(redis_server: RedisServer) -> None:
    with WireProxy(redis_server.port) as proxy:
        proxy.hold()
        with pytest.raises(TimeoutError):
            ask(proxy.port, "INCR", "a", timeout_s=0.2)
        assert redis_server.call("GET", "a") is None
        proxy.heal()
        wait_until(lambda: redis_server.call("GET", "a") == "1", "the late request had arrived")


def test_a_black_hole_opens_under_connections_that_stand(redis_server: RedisServer) -> None:
    with WireProxy(redis_server.port) as proxy, connect(proxy.port) as wire:
        wire.sendall(b"PING\r\n")
        assert wire.recv(100) == b"+PONG\r\n"
        proxy.hold()
        wire.sendall(b"PING\r\n")
        wire.settimeout(0.2)
        with pytest.raises(TimeoutError):
            wire.recv(100)
        wire.settimeout(5)
        proxy.heal()
        assert wire.recv(100) == b"+PONG\r\n"


def test_a_proxy_that_refuses_is_back_on_the_same_port(redis_server: RedisServer) -> None:
    with WireProxy(redis_server.port) as proxy:
        port = proxy.port
        with connect(port) as wire:
            wire.sendall(b"PING\r\n")
            assert wire.recv(100) == b"+PONG\r\n"
            proxy.refuse()
            assert until_the_end(wire) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(port)
        proxy.heal()
        assert ask(port, "PING") == "PONG"


def test_a_cut_ends_what_stands_and_nothing_else(redis_server: RedisServer) -> None:
    with WireProxy(redis_server.port) as proxy, connect(proxy.port) as wire:
        wire.sendall(b"PING\r\n")
        assert wire.recv(100) == b"+PONG\r\n"
        proxy.hold()
        proxy.cut()
        assert until_the_end(wire) == b""
        proxy.heal()
        assert ask(proxy.port, "PING") == "PONG"


def test_a_proxy_before_a_dead_server_hangs_up(redis_server: RedisServer) -> None:
    with WireProxy(redis_server.port) as proxy:
        redis_server.kill()
        with pytest.raises(ConnectionError):
            ask(proxy.port, "PING")


def test_only_its_own_processes_are_ended(redis_server: RedisServer, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "second") as second:
        pid = second.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert redis_server.cli("PING") == "PONG"
