"""Everything in this folder runs on asyncio's own loop and on uvloop, and leaves no complaint on either."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.fakes.scripted import Authority

from .moved_clock import MovedClock, move_clock_of_connections


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
async def quiet_loop(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """The event loop reports no error for any behaviour of the peer: no traceback, no unretrieved exception."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(repr(context)))
    yield
    await asyncio.sleep(0)
    assert not complaints
    assert not [r for r in caplog.records if r.name == "asyncio" and r.levelno >= logging.WARNING]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(Path(tmp_path_factory.mktemp("authority")))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    """The clock of this test's connections, which only the test moves."""
    return move_clock_of_connections(monkeypatch)
