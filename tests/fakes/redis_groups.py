"""Real Redis servers that belong together: a master with replicas and sentinels, and a cluster.

with Sentinels(tmp_path) as group:
    ...                                                  # group.url is what `store.url` takes
    former = group.failover_by_kill()
    former.restart()                                     # the sentinels make a replica of it
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self
from urllib.parse import quote

from .redis_servers import RedisServer, wait_until
from .resp import Refusal, flat


class _Several:
    """Servers that are ended together."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _keep(self, server: RedisServer) -> RedisServer:
        return self._stack.enter_context(server)


def wait_until_replicated(master: RedisServer, replicas: int) -> None:
    """Until this number of replicas has all that was written so far.

    WAIT is not sufficient: it covers only the writes of its own connection.
    """
    written = int(master.info("master_repl_offset"))

    def is_so() -> bool:
        acknowledged = re.findall(r"^slave\d+:.*offset=(\d+)", master.cli("INFO", "replication"), re.MULTILINE)
        return sum(int(offset) >= written for offset in acknowledged) >= replicas

    wait_until(is_so, f"{replicas} replicas had what {master!r} has")


class Sentinels(_Several):
    """A master, two replicas, and three sentinels that replace the master when it has been silent for half a second.

    They forget the master's data as real ones do: what was not replicated is lost.
    """

    NAME = "mymaster"

    def __init__(
        self,
        folder: Path,
        *,
        password: str | None = None,
        down_after_ms: int = 500,
        failover_timeout_ms: int = 2000,
        extra: Iterable[str] = (),
        binary: str = "redis-server",
    ) -> None:
        super().__init__()
        self.password = password
        common = ["repl-diskless-sync yes", "repl-diskless-sync-delay 0", *extra]
        common += [f"masterauth {password}"] if password else []
        with contextlib.ExitStack() as undo:
            undo.push(self.__exit__)
            first = self._keep(RedisServer(folder / "server-0", password=password, extra=common, binary=binary))
            common = [*common, f"replicaof 127.0.0.1 {first.port}"]
            self.servers = [first] + [
                self._keep(RedisServer(folder / f"server-{i}", password=password, extra=common, binary=binary))
                for i in (1, 2)
            ]
            # A sentinel that finds the replicas there need not look for them again after ten seconds.
            wait_until(lambda: self._online(first) == 2, "both replicas were fed")
            lines = [
                f"sentinel monitor {self.NAME} 127.0.0.1 {first.port} 2",
                f"sentinel down-after-milliseconds {self.NAME} {down_after_ms}",
                f"sentinel failover-timeout {self.NAME} {failover_timeout_ms}",
                *([f"sentinel auth-pass {self.NAME} {password}"] if password else []),
            ]
            self.sentinels = [
                self._keep(RedisServer(folder / f"sentinel-{i}", is_sentinel=True, extra=lines, binary=binary))
                for i in range(3)
            ]
            for sentinel in self.sentinels:
                self._hurry(sentinel)
            wait_until(lambda: all(self._knows_all(each) for each in self.sentinels), "the sentinels knew one another")
            undo.pop_all()

    @staticmethod
    def _hurry(sentinel: RedisServer) -> None:
        """Let it look around each half a second, where by itself it takes 2 to 10; older ones do not know how."""
        with contextlib.suppress(Refusal):
            sentinel.call("SENTINEL", "DEBUG", "info-period", 500, "publish-period", 500)

    @staticmethod
    def _online(server: RedisServer) -> int:
        return server.cli("INFO", "replication").count("state=online")

    def _knows_all(self, sentinel: RedisServer) -> bool:
        return (
            f"name={self.NAME},status=ok" in (received := sentinel.cli("INFO")) and "slaves=2,sentinels=3" in received
        )

    @property
    def url(self) -> str:
        """As `store.url`."""
        who = f":{quote(self.password, safe='')}@" if self.password else ""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{who}{hosts}/{self.NAME}/0"

    @property
    def master(self) -> RedisServer:
        """The server that most sentinels name. Raises OSError if none answers."""
        named = [flat(sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)) for sentinel in self.sentinels]
        port = int(max(named, key=named.count).split("\n")[1])
        return next(server for server in self.servers if server.port == port)

    def wait_until_master_changed(self, former: RedisServer) -> RedisServer:
        """Until all sentinels name another one, and it takes the part. Returns it."""

        def changed() -> bool:
            return self.master is not former and self.master.info("role") == "master"

        wait_until(changed, f"another master took the place of {former!r}")
        return self.master

    def stop_replication(self) -> None:
        """What is written from now on is forgotten at the next failover: the replicas lose their password."""
        assert self.password is not None, "only where there is a password"
        master = self.master
        for server in self.servers:
            if server is not master:
                server.call("CONFIG", "SET", "masterauth", "forgotten")
        master.call("CLIENT", "KILL", "TYPE", "replica")
        wait_until(lambda: self._online(master) == 0, "no replica was fed any more")

    def failover_by_kill(self) -> RedisServer:
        """Kill the master. Returns it when another one has its place."""
        former = self.master
        former.kill()
        self.wait_until_master_changed(former)
        return former

    def failover_by_stop(self) -> RedisServer:
        """Stop the master with its connections open. Returns it when another one has its place; `cont` wakes it."""
        former = self.master
        former.stop()
        self.wait_until_master_changed(former)
        return former


class Cluster(_Several):
    """Three masters that share the slots; with `has_replicas` one replica for each, which takes its place in time."""

    SLOTS = 16_384

    def __init__(self, folder: Path, *, has_replicas: bool = False, binary: str = "redis-server") -> None:
        super().__init__()
        lines = [
            "cluster-enabled yes", "cluster-node-timeout 1000", "cluster-announce-ip 127.0.0.1",
            "cluster-replica-validity-factor 0", "repl-diskless-sync yes", "repl-diskless-sync-delay 0",
        ]  # fmt: skip
        with contextlib.ExitStack() as undo:
            undo.push(self.__exit__)
            count = 6 if has_replicas else 3
            self.nodes = [
                self._keep(RedisServer(folder / f"node-{i}", extra=lines, binary=binary)) for i in range(count)
            ]
            self._introduce()
            for i, replica in enumerate(self.nodes[3:]):
                replica.call("CLUSTER", "REPLICATE", self.nodes[i].cli("CLUSTER", "MYID"))
            wait_until(lambda: all(self._is_well(node) for node in self.nodes), "the cluster was well")
            wait_until(lambda: all(node.info("connected_slaves") == "1" for node in self.nodes[: count - 3]), "fed")
            undo.pop_all()

    def _introduce(self) -> None:
        bounds = [self.SLOTS * i // 3 for i in range(4)]
        for i, node in enumerate(self.nodes):
            if i < 3:
                node.call("CLUSTER", "ADDSLOTS", *range(bounds[i], bounds[i + 1]))
            node.call("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i:
                self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port)
        everyone = f"cluster_known_nodes:{len(self.nodes)}"
        wait_until(lambda: all(everyone in node.cli("CLUSTER", "INFO") for node in self.nodes), "the nodes had met")

    def _is_well(self, node: RedisServer) -> bool:
        received = node.cli("CLUSTER", "INFO")
        return "cluster_state:ok" in received and f"cluster_slots_ok:{self.SLOTS}" in received

    @property
    def url(self) -> str:
        """As `store.url`."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def node_of(self, key: str) -> RedisServer:
        """The master that keeps this key, as the first node that answers has it."""
        asked = next(node for node in self.nodes if node.is_running)
        slot = int(asked.cli("CLUSTER", "KEYSLOT", key))
        port = next(port for port, slots in _masters(asked.cli("CLUSTER", "NODES")) if slot in slots)
        return next(node for node in self.nodes if node.port == port)

    def failover_by_kill(self, key: str) -> RedisServer:
        """Kill the master of this key. Returns it when its replica has its place everywhere."""
        former = self.node_of(key)
        former.kill()

        def is_replaced() -> bool:
            living = [node for node in self.nodes if node.is_running]
            return self.node_of(key) is not former and all(self._is_well(node) for node in living)

        wait_until(is_replaced, f"a replica took the place of {former!r}")
        return former


def _masters(nodes: str) -> Iterator[tuple[int, range]]:
    """(port, slots) of every master, from lines such as "ID 127.0.0.1:10001@20001 master - 0 0 1 connected 0-5460"."""
    for line in nodes.splitlines():
        _, address, flags, _, _, _, _, _, *slots = line.split()
        if "master" in flags:
            for part in slots:
                first, _, last = part.partition("-")
                yield int(address.partition("@")[0].rpartition(":")[2]), range(int(first), int(last or first) + 1)
