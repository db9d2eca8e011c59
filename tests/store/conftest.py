"""The stores that the promises are checked on. To add one: another name in `STORES`, and how to open it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Store
from gateway.store import Ledger
from gateway.store.embedded import EmbeddedLedger

from .wishes import Clock

OpensLedgers = Callable[..., Ledger]


def open_embedded(folder: Path, clock: Clock, **settings: Any) -> Ledger:
    return EmbeddedLedger(Store(url=f"embedded:{folder}", **settings), clock)


STORES: dict[str, Callable[..., Ledger]] = {"embedded": open_embedded}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(params=STORES)
async def open_ledger(request: pytest.FixtureRequest, folder: Path, clock: Clock) -> AsyncIterator[OpensLedgers]:
    """Opens ledgers on one store, each as another worker would; what is still open is closed at the end."""
    opened: list[Ledger] = []

    def open_one(**settings: Any) -> Ledger:
        ledger = STORES[request.param](folder, clock, **settings)
        opened.append(ledger)
        return ledger

    yield open_one
    for ledger in opened:
        await ledger.close(1)


@pytest.fixture
async def ledger(open_ledger: OpensLedgers) -> Ledger:
    return open_ledger()
