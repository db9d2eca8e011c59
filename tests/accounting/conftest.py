from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting import LedgerClient, ledger_client, outage, recovery
from gateway.journal import disk

from .fake_store import FakeStore, OpensClients, open_client


@pytest.fixture(autouse=True)
def no_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the machine may be slow, and then a thread would write the journals."""
    monkeypatch.setattr(disk, "SLOW_S", 600)


@pytest.fixture
async def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
async def open_one(store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpensClients]:
    """Opens bookkeepers in front of the same store, each with a journal of its own in the same folder."""
    monkeypatch.setattr(outage, "TRY_AGAIN_S", (0.0, 0.01))
    for place in (ledger_client, recovery):
        monkeypatch.setattr(place, "DOUBTED_FOR_S", 0.01)
    opened: list[LedgerClient] = []

    def open_it(of: Any = None, **changes: Any) -> LedgerClient:
        opened.append(open_client(of or store, tmp_path, **changes))
        return opened[-1]

    yield open_it
    store.is_away = store.loses_replies = False
    store.gate.set()
    for each in opened:
        await each.close(5)


@pytest.fixture
async def books(open_one: OpensClients) -> LedgerClient:
    return open_one()
