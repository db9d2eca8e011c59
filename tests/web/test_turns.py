"""No request of the dashboard holds the event loop for long, however much there is to show.

Counted, not timed: how many functions are called in one turn of the loop, which a slow machine does not change.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import http.client
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.browser.stores import days, filled, large
from tests.browser.viewers import ALWAYS, VIEWS, paths
from tests.flows.house import key
from tests.flows.planted import plant, record

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
KEYS = 1000
MOST_CALLS = 4000
"""In one turn: a few milliseconds."""
BACKGROUND = "watch-quotas"
"""A task that goes on whoever looks."""


class Turns:
    """What the longest turn of the loop was, in function calls."""

    def __init__(self) -> None:
        self.most = 0
        self.by = ""
        self._calls = 0

    def count(self, _frame: FrameType, event: str, _argument: Any) -> None:
        self._calls += event in ("call", "c_call")

    def ended(self, handle: asyncio.Handle) -> None:
        owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
        if self._calls > self.most and BACKGROUND not in repr(owner):
            self.most, self.by = self._calls, f"{handle!r} of {owner!r}"
        self._calls = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """Count on this thread; what others do does not hold the loop."""
    turns = Turns()
    plain = asyncio.events.Handle._run

    def run(handle: asyncio.Handle) -> None:
        sys.setprofile(turns.count)
        try:
            plain(handle)
        finally:
            sys.setprofile(None)
            turns.ended(handle)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", run)
        yield turns


def fetch(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", f"/admin/api/{path}", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["embedded", "redis"])
async def test_no_request_of_the_page_holds_the_loop(
    inside: Inside, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = [{"requests": 60, "per": "minute"}, {"tokens": 1000, "per": "day"}]
    keys = [key(f"key-{place:04}", team=f"team-{place % 20}", quotas=quotas) for place in range(KEYS)]
    with filled(kind, tmp_path, large(KEYS, days(3))) as url:
        await asyncio.to_thread(plant, url, [record(days(1)[0], "key-0007") for _ in range(1000)])
        client = await inside(
            NOWHERE, keys=keys, teams={f"team-{place}": {"quotas": quotas} for place in range(20)},
            store={"url": url, "journal_dir": str(tmp_path / "journal")},
        )  # fmt: skip
        asked = {poll.path for view in VIEWS for poll in [*ALWAYS, *paths(view, "key-0007", "team-7")]}
        for path in sorted(asked | {"calls?limit=1000", "calls?limit=1000&key=key-0007"}):
            with counted(monkeypatch) as turns:
                await asyncio.to_thread(fetch, client.port, path)
            assert turns.most <= MOST_CALLS, f"{path}: {turns.by}"
        await client.close()
