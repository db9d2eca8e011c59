"""A store with many keys in it, made once and copied."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

from gateway.api import auth
from gateway.config import KeySettings
from gateway.config import StoreSettings as Settings
from gateway.quota.issued import IssuedKey, SecretOf
from gateway.store import StoreChange
from gateway.store.sqlite.store import SqliteStore

from . import cases, ours

AT_ONCE = 1000


def place(seeds: Path, folder: Path, count: int, windows: int) -> None:
    """Put a store with so many keys where a gateway of the bench looks for it."""
    made = seeds / f"keys-{count}-{windows}"
    if not made.exists():
        asyncio.run(_make(made, count, windows))
    shutil.copytree(made, folder / "data")


async def _make(folder: Path, count: int, windows: int) -> None:
    store = SqliteStore(Settings(url=f"embedded:{folder}"))
    now = time.time()
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(
            store.change(issue(number, windows, now)) for number in range(first, min(first + AT_ONCE, count))
        ))  # fmt: skip
    await store.close()


def issue(number: int, windows: int, now: float) -> StoreChange:
    """A key that is made now, as the admin API would write it."""
    digest = auth.digest(cases.secret(number)).hex()
    settings = KeySettings.model_validate({"id": cases.key(number), "quotas": ours.quotas(windows)})
    key = IssuedKey(settings, (SecretOf(digest, now),), created_at=now, updated_at=now)
    return StoreChange("key", settings.id, None, key.encode(), "{}", (digest,))
