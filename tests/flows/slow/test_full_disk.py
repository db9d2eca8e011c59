"""What callers live through while the disk of the journal has no room: nothing new is begun, and what runs ends well.

The disk is a small one of its own (tmpfs). Where this user may not mount one, the worker may not let any file grow.
That is looked at everywhere, because to the gateway it is not the same: a journal that cannot be written at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from tests.conftest import StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.flows.books import ACCOUNTS
from tests.flows.gateway_process import Gateway, command, eventually, key, run, settings
from tests.flows.scenario import Scenario

DISK_BYTES = 1024 * 1024

AGAIN_WITHIN_S = 10.0
"""It looks once in a second whether there is room."""


class Shortage(Protocol):
    """Something that makes the writing of a journal fail."""

    journal: Path
    """`store.journal_dir`."""

    def begin(self, gateway: Gateway) -> None:
        """From now on, and again if something had been put aside."""

    def end(self, gateway: Gateway) -> None:
        """There is room again."""


class FullDisk:
    """A small disk with the journal on it, that is filled to its last page."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        self._ballast = folder / "ballast"

    def begin(self, gateway: Gateway | None) -> None:
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def end(self, gateway: Gateway) -> None:
        self._ballast.unlink(missing_ok=True)


class NoGrowth:
    """A worker that may not let any file grow beyond the size of its journal (RLIMIT_FSIZE)."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"

    def begin(self, gateway: Gateway) -> None:
        (data,) = (
            gateway.folder.glob("data/*.sqlite") if gateway.config["store"]["url"].startswith("embedded") else (None,)
        )
        if data is not None:
            with contextlib.closing(sqlite3.connect(data)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the store's own files stay smaller
        size = max(path.stat().st_size for path in self.journal.glob("*/*") if path.name.isdecimal())
        self._limit(gateway, size)

    def end(self, gateway: Gateway) -> None:
        self._limit(gateway, resource.RLIM_INFINITY)

    @staticmethod
    def _limit(gateway: Gateway, size_bytes: int) -> None:
        for pid in gateway.workers():
            _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, most))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[FullDisk | None]:
    """None where this user may not mount one."""
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        is_mounted = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield FullDisk(folder) if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(params=["full disk", "no growth"])
def shortage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shortage]:
    folder = tmp_path / "disk"
    with small_disk(folder) as disk:
        yield disk if disk is not None and request.param == "full disk" else NoGrowth(folder)


@pytest.fixture(params=["embedded", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield f"embedded:{tmp_path / 'gateway-0' / 'data'}"
        return
    with RedisServer(tmp_path / "redis") as redis:
        yield redis.url


def test_nothing_is_begun_and_what_runs_ends_well(shortage: Shortage, url: str, start_gateway: StartsGateways) -> None:
    with Scenario() as scenario:
        store = {"url": url, "journal_dir": str(shortage.journal)}
        gateway = start_gateway(settings(scenario.url, store=store, **ACCOUNTS))
        # So long a journal that the store's log, which may not grow beyond its size, has room for the ends of calls.
        assert all(received.is_served for received in scenario.burst(gateway, 300))
        for has_reserve in (True, False):
            running = scenario.begin(gateway, 2) + scenario.begin(gateway, is_stream=False)
            shortage.begin(gateway)
            eventually(lambda: scenario.call(gateway).status == 503)  # something may fit into a page that was begun
            if not has_reserve:
                shortage.begin(gateway)  # it was given up
            for _ in range(3):
                refused = gateway.complete()
                assert refused.refusal == (503, "server_error", None, "journal_full")
                assert int(refused.headers["retry-after"]) >= 1
            assert gateway.get("/readyz", key=None).refusal == (503, "server_error", None, "journal_full")
            assert gateway.get("/healthz", key=None).status == 200
            scenario.end()
            assert all(received.is_served for received in running)
            assert {gateway.call(received.id)["ended"] for received in running} == {"done"}  # they are in the store
            shortage.end(gateway)
            eventually(lambda: gateway.get("/readyz", key=None).status == 200, AGAIN_WITHIN_S)
            assert scenario.serves(gateway)
        assert gateway.metric("gateway_rejections_total", reason="journal_full") >= 6
        scenario.check(gateway)
        shortage.begin(gateway)  # it also stops in good order


def test_what_ends_while_neither_journal_nor_store_can_be_written_is_kept_in_mind(
    start_gateway: StartsGateways, tmp_path: Path
) -> None:
    with Scenario() as scenario, RedisServer(tmp_path / "redis", appendonly="always") as redis:
        shortage = NoGrowth(tmp_path)
        gateway = start_gateway(
            settings(scenario.url, store={"url": redis.url, "journal_dir": str(shortage.journal)}, **ACCOUNTS)
        )
        assert all(received.is_served for received in scenario.burst(gateway, 60))
        running = scenario.begin(gateway, 3)
        shortage.begin(gateway)
        eventually(lambda: scenario.call(gateway).status == 503)
        redis.kill()
        scenario.end()
        assert all(received.is_served for received in running)
        redis.restart()
        assert {gateway.call(received.id)["ended"] for received in running} == {"done"}
        shortage.end(gateway)
        eventually(lambda: scenario.serves(gateway), AGAIN_WITHIN_S)
        scenario.check(gateway)


def test_gateway_does_not_start_where_it_cannot_keep_a_journal(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    store = {"url": "redis://127.0.0.1:9/0", "journal_dir": str(tmp_path / "journal")}  # away, which is no reason
    file.write_text(yaml.safe_dump(settings("http://127.0.0.1:9/v1", store=store)))
    serve = shlex.join(command("serve", "--config", str(file)))
    asked = ["sh", "-c", f"ulimit -f 16; exec {serve}"]  # 8 KiB, or 16
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # compiled modules would be kept cut off
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    # The files of metrics come first.
    assert re.fullmatch(r"gateway: cannot use /\S+: File too large", ended.stderr.splitlines()[-1])


def test_a_start_with_a_full_disk_names_the_journal(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    with small_disk(tmp_path / "disk") as disk:
        journal = tmp_path / "disk" / "journal"
        if disk is not None:
            disk.begin(None)
        else:  # nor may a full disk be written
            journal = Path("/proc/journal")
        store = {"url": "redis://127.0.0.1:9/0", "journal_dir": str(journal)}
        file.write_text(yaml.safe_dump(settings("http://127.0.0.1:9/v1", store=store)))
        ended = run("serve", "--config", str(file))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith(f"gateway: cannot use {journal}")


def test_a_full_temporary_folder_ends_no_worker(start_gateway: StartsGateways, tmp_path: Path) -> None:
    """The metrics are in files there. Those that find no room are in memory until there is some."""
    with Scenario() as scenario, small_disk(tmp_path / "disk") as disk:
        names = [f"k{number}" for number in range(60)]
        keys = [*ACCOUNTS["keys"], *map(key, names)]
        gateway = start_gateway(
            settings(scenario.url, server={"workers": 2}, **{**ACCOUNTS, "keys": keys}),
            env={"TMPDIR": str(tmp_path / "disk")},
        )
        assert all(received.is_served for received in scenario.burst(gateway, 10))
        workers = gateway.workers()
        if disk is not None:
            disk.begin(gateway)
        assert all(scenario.call(gateway, name).is_served for name in names * 2)
        if disk is not None:
            disk.end(gateway)
        assert all(scenario.call(gateway, name).is_served for name in names * 2)
        assert gateway.workers() == workers
