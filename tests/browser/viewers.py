"""People who look at the dashboard, without a browser: the requests of the page at the page's own pace.

`VIEWS` is what the page asks for in each view; test_viewers.py holds the real page against it. Started as
`python -m tests.browser.viewers URL KEY TEAM NUMBER SECONDS` it reads lines from its standard input, `open` and
`close`, and answers each with a line of JSON: what was asked since, and how long the slowest took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import aiohttp

from gateway.web.dashboard import FOLDER
from gateway.web.static_page import CONTENT_TYPES, INDEX
from tests.flows.house import ADMIN_TOKEN

CONNECTIONS = 6
"""Of one browser to one server."""


class Poll(NamedTuple):
    """A request that a view repeats while it is open. `{1}`, `{2}`: the day so long ago; `{first}`: the first
    day of the month before, or 59 days ago; `{key}`, `{team}`: one."""

    path: str
    every_s: float


ALWAYS = (Poll("live", 2),)
"""In every view."""


def _subject(narrowed: str, split: str) -> tuple[Poll, ...]:
    """What the report about one key, team, model or upstream asks for."""
    groups = (split, f"day%2C{split}")
    latency = ("model", "day", "%2C")
    return (
        Poll(f"usage?group_by=day&since={{59}}&until={{2}}&{narrowed}", 600),
        Poll(f"usage?group_by=day&since={{1}}&until={{0}}&{narrowed}", 60),
        *[Poll(f"usage?group_by={group}&since={{29}}&until={{2}}&{narrowed}", 600) for group in groups],
        *[Poll(f"usage?group_by={group}&since={{1}}&until={{0}}&{narrowed}", 60) for group in groups],
        *[Poll(f"latency?group_by={group}&since={{29}}&until={{0}}&{narrowed}", 60) for group in latency],
        Poll(f"refusals?{narrowed}&since={{29}}&limit=200", 60),
    )


VIEWS: Mapping[str, tuple[Poll, ...]] = {
    "overview": (
        Poll("usage?group_by=day&since={first}&until={2}", 600), Poll("usage?group_by=day&since={1}&until={0}", 60),
        Poll("usage?group_by=model&since={29}&until={2}", 600), Poll("usage?group_by=model&since={1}&until={0}", 60),
        Poll("usage?group_by=day%2Cmodel&since={29}&until={2}", 600),
        Poll("usage?group_by=day%2Cmodel&since={1}&until={0}", 60),
        Poll("latency?group_by=model&since={29}&until={0}", 60), Poll("latency?group_by=day&since={29}&until={0}", 60),
        Poll("latency?group_by=%2C&since={29}&until={0}", 60), Poll("quotas", 60),
    ),
    "calls": (Poll("calls?limit=100", 10), Poll("refusals?limit=100", 10)),
    "quotas": (Poll("quotas", 15),),
    "keys": (Poll("keys?limit=500", 30),),
    "keys/{key}": (Poll("keys?limit=500", 30), Poll("keys/{key}", 3), Poll("quotas?key={key}", 3),
                   *_subject("key={key}", "model")),
    "teams": (Poll("teams?limit=500", 30),),
    "teams/{team}": (
        Poll("teams?limit=500", 30), Poll("teams/{team}", 5), Poll("quotas?team={team}", 5),
        Poll("keys?team={team}&limit=500", 5), *_subject("team={team}", "key"),
    ),
    "models": (Poll("models", 15), Poll("upstreams", 15)),
}  # fmt: skip
"""What each view asks for besides. A list of keys or teams goes on with `after` until it is whole."""


def paths(view: str, key: str, team: str) -> Iterator[Poll]:
    """The requests of a view, of this key, of this team, and of today."""
    today = datetime.now(UTC)
    month_before = (today.replace(day=1) - timedelta(days=1)).replace(day=1)
    first = min(month_before, today - timedelta(days=59)).strftime("%Y-%m-%d")
    days = [(datetime.now(UTC) - timedelta(days=ago)).strftime("%Y-%m-%d") for ago in range(60)]
    for path, every_s in VIEWS[view]:
        yield Poll(path.format(*days, first=first, key=key, team=team), every_s)


class Viewer:
    """One page that is open: on the overview, or in every view for a while."""

    def __init__(
        self, url: str, key: str, team: str, told: dict[str, list[float]], stay_s: float, *, is_walking: bool
    ) -> None:
        self._url = url
        self._key = key
        self._team = team
        self._is_walking = is_walking
        self._stay_s = stay_s
        self._told = told

    async def look(self) -> None:
        """Until it is cancelled."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS), headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
        ) as session:
            await self._fetch(session, "dashboard", "the page")
            files = [path.name for path in FOLDER.iterdir() if path.suffix in CONTENT_TYPES and path.name != INDEX]
            async with asyncio.TaskGroup() as loading:
                for name in files:
                    loading.create_task(self._fetch(session, f"dashboard/{name}", "the page"))
            await self._ask(session, "session")
            async with asyncio.TaskGroup() as polling:
                for poll in ALWAYS:
                    polling.create_task(self._repeat(session, poll))
                polling.create_task(self._walk(session))

    async def _walk(self, session: aiohttp.ClientSession) -> None:
        if not self._is_walking:
            await self._stay(session, "overview")
        while True:
            for view in VIEWS:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._stay_s):
                        await self._stay(session, view)

    async def _stay(self, session: aiohttp.ClientSession, view: str) -> None:
        async with asyncio.TaskGroup() as polling:
            for poll in paths(view, self._key, self._team):
                polling.create_task(self._repeat(session, poll))

    async def _repeat(self, session: aiohttp.ClientSession, poll: Poll) -> None:
        while True:
            after = await self._ask(session, poll.path)
            while after:
                after = await self._ask(session, f"{poll.path}&after={after}")
            await asyncio.sleep(poll.every_s)

    async def _ask(self, session: aiohttp.ClientSession, path: str) -> str | None:
        body = await self._fetch(session, f"admin/api/{path}", path.partition("&after")[0])
        # Not read as JSON: this process has to leave the cores to those who are measured.
        end = body[-200:].rpartition(b'"next": ')[2].rstrip(b"}")
        return json.loads(end) if path.startswith(("keys?", "teams?")) else None

    async def _fetch(self, session: aiohttp.ClientSession, path: str, name: str) -> bytes:
        began = time.monotonic()
        async with session.get(f"{self._url}/{path}") as answer:
            body = await answer.read()
            assert answer.status == 200, f"{path}: {answer.status} {body[:300]!r}"
        self._told.setdefault(name, []).append(time.monotonic() - began)
        return body


async def main(url: str, key: str, team: str, number: int, stay_s: float) -> None:
    """Obey until the standard input ends."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    told: dict[str, list[float]] = {}
    looking: list[asyncio.Task[None]] = []
    while line := await lines.readline():
        if line == b"open\n":
            told.clear()
            viewers = [Viewer(url, key, team, told, stay_s, is_walking=place > 0) for place in range(number)]
            looking = [asyncio.create_task(viewer.look()) for viewer in viewers]
        else:
            for task in looking:
                task.cancel()
            for ended in await asyncio.gather(*looking, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), repr(ended)
            looking = []
        slowest = {name: [len(took), max(took)] for name, took in sorted(told.items())}
        print(json.dumps(slowest), flush=True)


if __name__ == "__main__":
    _, url, key, team, number, stay_s = sys.argv
    asyncio.run(main(url, key, team, int(number), float(stay_s)))
