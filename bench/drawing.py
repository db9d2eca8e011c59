"""A draw and its settlement alone: a bookkeeper with its journal over a store, in this process."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gateway.accounting import LedgerClient
from gateway.accounting.changed_windows import ChangedWindows
from gateway.config import StoreSettings as Settings
from gateway.journal import Journal, disk
from gateway.records import Usage
from gateway.store.opening import open_store
from gateway.store.sqlite import store as sqlite_store

from .counter import Function, Functions
from .ledger import Keys

HERE = "tests."


async def count(
    folder: Path, calls: int, at_once: int, windows: int = 3, *, is_alone: bool = False, redis_url: str = ""
) -> list[Function]:
    """What is entered for so many calls, of which so many draw, and then settle, in the same moment.

    `is_alone`: as in a gateway with one worker. The store is the embedded one without the URL of a Redis.
    """
    counter = Functions()
    with ExitStack() as quick:
        for module in (disk, sqlite_store):  # a busy machine is slow at times, and then threads write
            quick.enter_context(patch.object(module, "SLOW_S", 600))
        url = redis_url or f"embedded:{folder / 'data'}"
        return await _count(counter, folder, url, calls, at_once, windows, is_alone=is_alone)


async def _count(
    counter: Functions, folder: Path, url: str, calls: int, at_once: int, windows: int, *, is_alone: bool
) -> list[Function]:
    try:
        settings = Settings(url=url, journal_dir=str(folder), namespace="counts")
        store, journal = await open_store(settings, is_alone=is_alone), Journal.create(folder, "counts")
        client = LedgerClient(store, journal, settings, changed_windows=ChangedWindows(), is_alone=is_alone)
        keys = Keys(10, windows)
        await _carry(client, keys, at_once * 2, at_once)  # warm
        counter.begin()
        await _carry(client, keys, calls, at_once)
        counted = counter.end()
        await client.close(5)
    finally:
        counter.close()
    return [each for each in counted if not each.module.startswith(HERE)]


async def _carry(client: Any, keys: Keys, calls: int, at_once: int) -> None:
    for _ in range(calls // at_once):
        reserves = [keys.draw() for _ in range(at_once)]
        await asyncio.gather(*(client.draw(reserve) for reserve in reserves))
        await asyncio.gather(*(
            client.settle(reserve.record._replace(usage=Usage(210, 34, source="reported")), reserve.claims)
            for reserve in reserves
        ))  # fmt: skip
