"""`gateway restore`: what it says, and what it does to the file."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from gateway.commands.backup import back_up
from gateway.config import StoreSettings as Settings
from gateway.files import exclusive
from gateway.store import StoreChange
from gateway.store.sqlite.store import SqliteStore
from tests.store.changes import Clock, daily
from tests.store.test_upgrade import WRITTEN
from tests.store.worker import Worker

MODEL = {"base_url": "http://127.0.0.1:9/v1", "api_key": "none"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    settings: dict[str, Any] = {
        "upstreams": {"main": MODEL},
        "models": {"m": {"routes": [{"upstream": "main"}], "max_output_tokens": 10}},
        "store": {"url": f"embedded:{tmp_path / 'data'}"},
    }
    path.write_text(yaml.safe_dump(settings))
    return path


async def put(store: SqliteStore, name: str, before: str | None, after: str | None, what: str) -> None:
    assert await store.change(StoreChange("key", name, before, after, what))


async def two_states(tmp_path: Path) -> tuple[Settings, Path]:
    """A store, and a backup that lacks what came later."""
    settings, clock = Settings(url=f"embedded:{tmp_path / 'data'}"), Clock()
    store = SqliteStore(settings, clock)
    worker = Worker(store)
    for name in ("alice", "bob", "carol"):
        await put(store, name, None, "{}", "made")
    await worker.settle(await worker.granted(daily()), 5)
    backup = tmp_path / "backup.sqlite"
    back_up(settings, backup)
    await put(store, "bob", "{}", '{"revoked":true}', "revoked")
    await put(store, "carol", "{}", None, "deleted")
    await put(store, "dave", None, "{}", "made")
    for _ in range(2):
        await worker.settle(await worker.granted(daily()), 5, cost_nusd=10**9)
    await store.close()
    return settings, backup


async def keys_in(settings: Settings) -> list[tuple[str, str]]:
    store = SqliteStore(settings, Clock())
    try:
        return await store.page("key")
    finally:
        await store.close()


def restore(config: Path, backup: Path, *more: str) -> int:
    return main(["restore", "--config", str(config), str(backup), *more])


async def in_thread(*arguments: Any) -> int:
    return await asyncio.to_thread(restore, *arguments)


async def test_it_says_what_would_be_lost_and_changes_nothing(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, backup = await two_states(tmp_path)
    before = await keys_in(settings)
    assert await in_thread(config, backup) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == [
        "  made since: key dave",
        "  changed since: key bob",
        "  deleted since, and there again: key carol",
        "  usage of 2 requests, $2.00, from sums and quotas",
        "  3 entries in the audit log",
        "  2 usage records",
    ]
    assert err == "gateway: nothing is changed; with --yes it is restored, and this is gone\n"
    assert await keys_in(settings) == before


async def test_agreed_to_it_restores_and_keeps_the_former_file(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, backup = await two_states(tmp_path)
    before = await keys_in(settings)
    assert await in_thread(config, backup, "--yes") == 0
    assert [name for name, _ in await keys_in(settings)] == ["alice", "bob", "carol"]
    (kept,) = (tmp_path / "data").glob("gateway.sqlite.before-restore-*")
    other = tmp_path / "other"
    other.mkdir()
    kept.rename(other / "gateway.sqlite")
    assert await keys_in(Settings(url=f"embedded:{other}")) == before
    assert await in_thread(config, backup) == 0  # there is nothing newer now
    capsys.readouterr()


async def test_a_gateway_that_runs_or_a_file_that_is_no_backup_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, backup = await two_states(tmp_path)
    monkeypatch.setattr("gateway.files.FREED_WITHIN_S", 0)
    with exclusive(settings.folder, "store.url"):
        assert await in_thread(config, backup) == 1
    assert "another gateway is using" in capsys.readouterr().err
    damaged = tmp_path / "no.sqlite"
    damaged.write_text("not a database, only text\n" * 100)
    assert await in_thread(config, damaged, "--yes") == 1
    assert f"{damaged} cannot be restored" in capsys.readouterr().err
    assert await in_thread(config, tmp_path / "absent") == 2
    assert "there is no" in capsys.readouterr().err
    assert len(await keys_in(settings)) == 3


async def test_a_file_without_a_gateways_tables_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy that was broken off at once is empty, which is an empty database."""
    settings, _ = await two_states(tmp_path)
    before, other = await keys_in(settings), tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE something (name TEXT)")
    (tmp_path / "empty.sqlite").touch()
    for path in (other, tmp_path / "empty.sqlite"):
        assert await in_thread(config, path, "--yes") == 1
        assert "no backup" in capsys.readouterr().err
    assert await keys_in(settings) == before


async def test_a_backup_of_the_oldest_release_is_named_as_one(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await two_states(tmp_path)
    old = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(old)) as db:
        db.executescript(WRITTEN.read_text())
    assert await in_thread(config, old, "--yes") == 1
    assert "written by an older gateway" in capsys.readouterr().err
