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
from tests.flows.house import Gateway, command, eventually, run, settings
from tests.flows.scene import Scene

DISK_BYTES = 1024 * 1024

AGAIN_WITHIN_S = 10.0
"""It looks once in a second whether there is room."""


class Shortage(Protocol):
    """Something that makes the writing of a journal fail."""

    journal: Path
    """`store.journal_dir`."""

    def begin(self, house: Gateway) -> None:
        """From now on, and again if something had been put aside."""

    def end(self, house: Gateway) -> None:
        """There is room again."""


class FullDisk:
    """A small disk with the journal on it, that is filled to its last page."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        self._ballast = folder / "ballast"

    def begin(self, house: Gateway | None) -> None:
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def end(self, house: Gateway) -> None:
        self._ballast.unlink(missing_ok=True)


class NoGrowth:
    """A worker that may not let any file grow beyond the size of its journal (RLIMIT_FSIZE)."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"

    def begin(self, house: Gateway) -> None:
        (data,) = house.folder.glob("data/*.sqlite") if house.config["store"]["url"].startswith("embedded") else (None,)
        if data is not None:
            with contextlib.closing(sqlite3.connect(data)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the store's own files stay smaller
        size = max(path.stat().st_size for path in self.journal.glob("*/*") if path.name.isdecimal())
        self._limit(house, size)

    def end(self, house: Gateway) -> None:
        self._limit(house, resource.RLIM_INFINITY)

    @staticmethod
    def _limit(house: Gateway, size_bytes: int) -> None:
        for pid in house.workers():
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


def test_nothing_is_begun_and_what_runs_ends_well(shortage: Shortage, url: str, gateway: StartsGateways) -> None:
    with Scene() as scene:
        store = {"url": url, "journal_dir": str(shortage.journal)}
        house = gateway(settings(scene.url, store=store, **ACCOUNTS))
        # So long a journal that the store's log, which may not grow beyond its size, has room for the ends of calls.
        assert all(told.is_served for told in scene.burst(house, 300))
        for has_reserve in (True, False):
            running = scene.begin(house, 2) + scene.begin(house, is_stream=False)
            shortage.begin(house)
            eventually(lambda: scene.call(house).status == 503)  # something may fit into a page that was begun
            if not has_reserve:
                shortage.begin(house)  # it was given up
            for _ in range(3):
                refused = house.complete()
                assert refused.told == (503, "server_error", None, "journal_full")
                assert int(refused.headers["retry-after"]) >= 1
            assert house.get("/readyz", key=None).told == (503, "server_error", None, "journal_full")
            assert house.get("/healthz", key=None).status == 200
            scene.end()
            assert all(told.is_served for told in running)
            assert {house.call(told.id)["ended"] for told in running} == {"done"}  # they are in the store
            shortage.end(house)
            eventually(lambda: house.get("/readyz", key=None).status == 200, AGAIN_WITHIN_S)
            assert scene.serves(house)
        assert house.metric("gateway_rejections_total", reason="journal_full") >= 6
        scene.check(house)
        shortage.begin(house)  # it also stops in good order


def test_what_ends_while_neither_journal_nor_store_can_be_written_is_kept_in_mind(
    gateway: StartsGateways, tmp_path: Path
) -> None:
    with Scene() as scene, RedisServer(tmp_path / "redis", appendonly="always") as redis:
        shortage = NoGrowth(tmp_path)
        house = gateway(settings(scene.url, store={"url": redis.url, "journal_dir": str(shortage.journal)}, **ACCOUNTS))
        assert all(told.is_served for told in scene.burst(house, 60))
        running = scene.begin(house, 3)
        shortage.begin(house)
        eventually(lambda: scene.call(house).status == 503)
        redis.kill()
        scene.end()
        assert all(told.is_served for told in running)
        redis.restart()
        assert {house.call(told.id)["ended"] for told in running} == {"done"}
        shortage.end(house)
        eventually(lambda: scene.serves(house), AGAIN_WITHIN_S)
        scene.check(house)


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
