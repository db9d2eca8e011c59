"""File modes of the embedded store: only the gateway's user may read it, with any umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import StoreSettings as Settings
from gateway.store.sqlite.folder import exclusive_folder
from gateway.store.sqlite.store import SqliteStore

from .changes import daily
from .worker import Worker


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def modes(folder: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in folder.glob("gateway.sqlite*")}


async def use(folder: Path) -> None:
    """As a gateway does; while it runs, the files beside the store's own are there too."""
    settings = Settings(url=f"embedded:{folder}")
    with exclusive_folder(settings):
        store = SqliteStore(settings)
        await Worker(store).granted(daily())
        files = modes(folder)
        await store.close()
    assert set(files) == {"gateway.sqlite", "gateway.sqlite-wal", "gateway.sqlite-shm"}
    assert len(set(files.values())) == 1, files


async def test_what_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    await use(tmp_path / "new")
    assert (mode(tmp_path / "new"), mode(tmp_path / "new" / "gateway.sqlite")) == (0o700, 0o600)


async def test_a_store_without_a_gateway_is_as_private(tmp_path: Path) -> None:
    store = SqliteStore(Settings(url=f"embedded:{tmp_path / 'new'}"))
    await store.close()
    assert (mode(tmp_path / "new"), mode(tmp_path / "new" / "gateway.sqlite")) == (0o700, 0o600)


async def test_what_is_there_already_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    folder.chmod(0o750)
    file = folder / "gateway.sqlite"
    file.touch()
    file.chmod(0o640)
    await use(folder)
    assert (mode(folder), mode(file)) == (0o750, 0o640)
