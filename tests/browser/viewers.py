"""People who look at the dashboard, without a browser: the requests of the page at the page's own pace.

`VIEWS` is what the page asks for in each view, and `MEMBER_VIEWS` what it asks with an API key; test_viewers.py holds
the real page against both. Started as
`python -m tests.browser.viewers URL NUMBER SECONDS KEY TEAM MODEL UPSTREAM` it reads lines from its standard input,
`open` and `close`, and answers each with a line of JSON: what was asked since, and how long the slowest took.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import aiohttp

from tests.flows.gateway_process import ADMIN_TOKEN, secret

CONNECTIONS = 6
"""Of one browser to one server."""
ONCE_S = 86_400
"""Between requests that a view makes once."""


class Poll(NamedTuple):
    """A request that a view repeats while it is open. `{1}`, `{2}`: the day so long ago; `{first}`: the first
    day of the month before, or 59 days ago; `{key}`, `{team}` and so on: one of `Subjects`."""

    path: str
    """Below /admin/api/, or absolute."""
    every_s: float


class Subjects(NamedTuple):
    """Whose pages are opened."""

    key: str
    team: str
    model: str
    upstream: str


Views = Mapping[str, tuple[Poll, ...]]

ALWAYS = (Poll("live", 2),)
"""In every view of an operator."""


def _subject(narrowed: str, split: str, latency: tuple[str, ...] = ("model", "day", "%2C")) -> tuple[Poll, ...]:
    """What the report about one key, team, model or upstream asks for."""
    groups = (split, f"day%2C{split}")
    owner = f"&{narrowed}" if "%2C" in latency else ""
    return (
        Poll(f"usage?group_by=day&since={{59}}&until={{2}}&{narrowed}", 600),
        Poll(f"usage?group_by=day&since={{1}}&until={{0}}&{narrowed}", 60),
        *[Poll(f"usage?group_by={group}&since={{29}}&until={{2}}&{narrowed}", 600) for group in groups],
        *[Poll(f"usage?group_by={group}&since={{1}}&until={{0}}&{narrowed}", 60) for group in groups],
        *[Poll(f"latency?group_by={group}&since={{29}}&until={{0}}{owner}", 60) for group in latency],
        *[
            Poll(f"latency?group_by={group}&since={{59}}&until={{31}}{owner}", 60)
            for group in latency
            if "day" not in group
        ],
        Poll("events", 60),
    )


def _refusals(narrowed: str) -> Poll:
    return Poll(f"refusals?{narrowed}&since={{29}}T00%3A00%3A00Z&limit=200", 60)


def _paces(of: str, every_s: float, narrowed: str = "") -> tuple[Poll, ...]:
    """What forecasts of quotas ask for: the use of each key or team by day."""
    return (
        Poll(f"usage?group_by={of}%2Cday&since={{28}}&until={{2}}{narrowed}", 600),
        Poll(f"usage?group_by={of}%2Cday&since={{1}}&until={{0}}{narrowed}", every_s),
    )


KEYS = (
    Poll("keys?limit=500", 30), Poll("teams?limit=500", 30), Poll("quotas", 30),
    Poll("usage?group_by=key%2Cteam%2Cday&since={29}&until={2}", 600),
    Poll("usage?group_by=key%2Cteam%2Cday&since={1}&until={0}", 30),
    Poll("refusals?since={6}T00%3A00%3A00Z&limit=1000", 30),
)  # fmt: skip
"""What the table of keys, quotas and teams asks for, in each grouping."""


MODELS = (
    Poll("models", 15), Poll("upstreams", 15), Poll("problems", 15),
    *[Poll(f"latency?group_by={of}&since={{{back}}}&until={{{back}}}", 60) for of in ("model", "upstream")
      for back in (0, 1)],
)  # fmt: skip

VIEWS: Views = {
    "overview": (
        Poll("usage?group_by=day&since={59}&until={2}", 600), Poll("usage?group_by=day&since={1}&until={0}", 60),
        Poll("usage?group_by=model&since={29}&until={2}", 600), Poll("usage?group_by=model&since={1}&until={0}", 60),
        Poll("usage?group_by=day%2Cmodel&since={29}&until={2}", 600),
        Poll("usage?group_by=day%2Cmodel&since={1}&until={0}", 60),
        Poll("latency?group_by=model&since={29}&until={0}", 60), Poll("latency?group_by=day&since={29}&until={0}", 60),
        Poll("latency?group_by=%2C&since={29}&until={0}", 60), Poll("quotas", 60),
        *[Poll(f"latency?group_by={of}&since={{59}}&until={{31}}", 60) for of in ("model", "%2C")],
        Poll("refusals?since={29}T00%3A00%3A00Z&limit=1000", 60), Poll("money", 60), Poll("problems", 10),
        Poll("events", 60),
    ),
    "calls": (
        Poll("calls?limit=100", 10), Poll("refusals?limit=100", 10), Poll("refusals?since={1}&limit=1000", 60),
        *[Poll(f"usage?group_by={of}&since={{29}}&limit=500", ONCE_S) for of in ("key", "team", "model", "upstream")],
    ),
    "keys": KEYS,
    "keys/{key}": (*KEYS, Poll("keys/{key}", 3), Poll("quotas?key={key}&binding=true", 3),
                   *_subject("key={key}", "model"), _refusals("key={key}"), *_paces("key", 3, "&key={key}")),
    "teams/{team}": (
        *KEYS, Poll("teams/{team}", 5), Poll("quotas?team={team}", 5),
        Poll("keys?team={team}&limit=500", 5), *_subject("team={team}", "key"), _refusals("team={team}"),
        *_paces("key", 5, "&team={team}"), *_paces("team", 5, "&team={team}"),
    ),
    "models": MODELS,
    "models/{model}": (
        *MODELS, Poll("models", 5), Poll("upstreams", 5), *_subject("model={model}", "key", ("model", "day%2Cmodel")),
        _refusals("model={model}"), Poll("problems", 5),
    ),
    "upstreams/{upstream}": (
        *MODELS, Poll("models", 5), Poll("upstreams", 5), Poll("problems", 5),
        *_subject("upstream={upstream}", "model", ("model%2Cupstream", "day%2Cupstream", "upstream")),
    ),
    "bills": (Poll("bills", 60),),
    "statement": (Poll("statement?month={0:.7}", ONCE_S),),
    "invoice": (Poll("upstreams", ONCE_S),),
    "playground": (),
}  # fmt: skip
"""What each view asks for besides. A list of keys or teams goes on with `after` until it is whole."""

MEMBER_VIEWS: Views = {
    "mine": (*[each._replace(every_s=max(each.every_s, 30)) for each in VIEWS["overview"][1:]
               if each.path not in ("quotas", "money", "problems", "events")],
             Poll("usage?group_by=day&since={first}&until={2}", 600),
             *_paces("key", 30),
             Poll("quotas", 30), Poll("keys", 30), Poll("quotas?key={key}&binding=true", 30),
             Poll("refusals?limit=20", 30), Poll("content", 30), Poll("/v1/models", ONCE_S)),
    "playground": (Poll("/v1/models", ONCE_S),),
}  # fmt: skip
"""The same for a member, who is signed in with an API key."""


def paths(polls: tuple[Poll, ...], of: Subjects) -> Iterator[Poll]:
    """The requests of a view, of these subjects, and of today."""
    today = datetime.now(UTC)
    month_before = (today.replace(day=1) - timedelta(days=1)).replace(day=1)
    first = min(month_before, today - timedelta(days=59)).strftime("%Y-%m-%d")
    days = [(datetime.now(UTC) - timedelta(days=ago)).strftime("%Y-%m-%d") for ago in range(60)]
    for path, every_s in polls:
        yield Poll(path.format(*days, first=first, **of._asdict()), every_s)


class Person(NamedTuple):
    """Who looks on: the credential, and the views that are opened by turns. A single view stays open."""

    token: str
    views: Views
    always: tuple[Poll, ...] = ALWAYS


def people(number: int, of: Subjects) -> list[Person]:
    """An operator on the overview, one who goes through all views, and a member; then again."""
    kinds = (
        Person(ADMIN_TOKEN, {"overview": VIEWS["overview"]}), Person(ADMIN_TOKEN, VIEWS),
        Person(secret(of.key), MEMBER_VIEWS, ()),
    )  # fmt: skip
    return [kinds[place % len(kinds)] for place in range(number)]


class Viewer:
    """One page that is open: on one view, or in every view for a while."""

    def __init__(self, url: str, person: Person, of: Subjects, received: dict[str, list[float]], stay_s: float) -> None:
        self._url = url
        self._person = person
        self._of = of
        self._stay_s = stay_s if len(person.views) > 1 else None
        self._received = received

    async def look(self) -> None:
        """Until it is cancelled."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            headers={"Authorization": f"Bearer {self._person.token}"},
        ) as session:
            page = await self._fetch(session, "/dashboard", "the page")
            async with asyncio.TaskGroup() as loading:
                for path in re.findall(r'(?:src|href)="(dashboard/[^"]+)"', page.decode()):
                    loading.create_task(self._fetch(session, f"/{path}", "the page"))
            await self._ask(session, "session")
            async with asyncio.TaskGroup() as polling:
                for poll in self._person.always:
                    polling.create_task(self._repeat(session, poll))
                polling.create_task(self._walk(session))

    async def _walk(self, session: aiohttp.ClientSession) -> None:
        while True:
            for polls in self._person.views.values():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._stay_s):
                        await self._stay(session, polls)

    async def _stay(self, session: aiohttp.ClientSession, polls: tuple[Poll, ...]) -> None:
        async with asyncio.TaskGroup() as polling:
            for poll in paths(polls, self._of):
                polling.create_task(self._repeat(session, poll))
            polling.create_task(asyncio.sleep(ONCE_S))  # a view without requests is open, too

    async def _repeat(self, session: aiohttp.ClientSession, poll: Poll) -> None:
        while True:
            after = await self._ask(session, poll.path)
            while after:
                after = await self._ask(session, f"{poll.path}&after={after}")
            await asyncio.sleep(poll.every_s)

    async def _ask(self, session: aiohttp.ClientSession, path: str) -> str | None:
        whole = path if path.startswith("/") else f"/admin/api/{path}"
        body = await self._fetch(session, whole, path.partition("&after")[0])
        # Not read as JSON: this process has to leave the cores to those who are measured.
        end = body[-200:].rpartition(b'"next": ')[2].rstrip(b"}")
        return json.loads(end) if path.startswith(("keys?", "teams?")) else None

    async def _fetch(self, session: aiohttp.ClientSession, path: str, name: str) -> bytes:
        began = time.monotonic()
        async with session.get(f"{self._url}{path}") as answer:
            body = await answer.read()
            assert answer.status == 200, f"{path}: {answer.status} {body[:300]!r}"
        self._received.setdefault(name, []).append(time.monotonic() - began)
        return body


async def main(url: str, number: int, stay_s: float, of: Subjects) -> None:
    """Obey until the standard input ends."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    received: dict[str, list[float]] = {}
    looking: list[asyncio.Task[None]] = []
    while line := await lines.readline():
        if line == b"open\n":
            received.clear()
            viewers = [Viewer(url, person, of, received, stay_s) for person in people(number, of)]
            looking = [asyncio.create_task(viewer.look()) for viewer in viewers]
        else:
            for task in looking:
                task.cancel()
            for ended in await asyncio.gather(*looking, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), repr(ended)
            looking = []
        slowest = {name: [len(took), max(took)] for name, took in sorted(received.items())}
        print(json.dumps(slowest), flush=True)


if __name__ == "__main__":
    _, url, number, stay_s, *of = sys.argv
    asyncio.run(main(url, int(number), float(stay_s), Subjects(*of)))
