"""Every row of the fault catalogue through our own upstream client and through aiohttp's: clients see the same.

Both implement the same interface in the same gateway, in this process: `Pool` in gateway/upstream/pool.py and the one
in upstream/aiohttp_door.py. Where the two read HTTP differently, `DIFFERS` has the row with both results and why ours
is right; a row of it that does not differ fails as well. The expected results are in flows/faults_table.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp.test_utils import TestServer
from prometheus_client import generate_latest

from gateway.config import build
from gateway.observe.metrics import Telemetry
from gateway.records import Failure, Phase, Record
from gateway.records import Fault as Outcome
from gateway.upstream import pool
from gateway.web import app, hot_reload
from gateway.web.access_log import AccessLog
from tests.fakes.faults import FAULTS, Ask, Fault, FaultyUpstreams, Kind
from tests.fakes.scripted import Scripted, answer, silent, until
from tests.upstream import aiohttp_door
from tests.upstream.recorder import Ear, settings

KEY = "sk-test-0123456789abcdefghijkl"
UPSTREAM_KEY = "sk-upstream-0123456789abcdefg"
pytestmark = pytest.mark.timeout(120)
"""The first test of each client runs all rows."""

AT_ONCE = 32
PLAYED_WITHIN_S = 50
CASES = [(fault, kind) for fault in FAULTS for kind in fault.kinds if kind.endpoint in ("completions", "chat")]
"""The clients differ in reading HTTP only, which is the same for all formats."""
HASTY = {"connect_s": 1, "head_s": 1, "idle_s": 1, "total_s": 2.5}
PATIENT = {"connect_s": 10, "head_s": 20, "idle_s": 20, "total_s": 20}
"""For rows that no time limit ends, so that a busy machine fails no test. The other rows run first, while the machine
is idle: nearly all of them wait."""
LIMITED = re.compile("stalled|silent|for ever|without end|flood of chunk|comments|never acc|not read|endless|announced")

BY_CHANCE = {"accepts and closes", "accepts and resets", "greets like a mail server"}
"""Whether the request was sent before the upstream closes or answers is chance: only the error is compared."""
BY_CLOCK = {"an endless stream", "trailers without end", "429 with a date", "503 with a date"}
"""Usage or Retry-After depend on time or on how much of a broken answer arrives: they are not compared."""

SURPLUS = (
    "RFC 9112, 6.3: what comes behind a complete message may be discarded, and is no part of it. aiohttp refuses both "
    "when they come in one read, and takes the answer when they come in two: ours is the same however it is cut"
)
ALREADY_THERE = (
    "What came before the fault was well framed, and is passed on with an error event behind it (RFC 9112, 8: an "
    "incomplete message). aiohttp loses it when both come in one read"
)
NO_LIMIT = "RFC 9110, 17.5: whoever reads ought to limit what it reads. aiohttp waits for the end of chunk extensions"
UNASKED = "RFC 9110, 15.2.2: 101 agrees to an Upgrade, and nobody asked for one. What follows is another protocol"
NOT_OFFERED = (
    "RFC 9110, 10.1.4: a coding that nobody offered to take. aiohttp passes the coded bytes on; in this row they are "
    "plain after all, so that the answer looks whole"
)
LOST = (
    "RFC 9112, 8: a body without a length ends with the connection, unless the connection indicates an error. aiohttp "
    "takes both for its end"
)
TOO_MANY = "RFC 9110, 17.5: the same. All heads of one answer have 64 KiB together; aiohttp counts each by itself"
NOT_HTTP, NOT_HTTP_EVENT = "502 upstream_error, not_http", "event upstream_error, not_http"

DIFFERS: dict[str, tuple[str, str, str]] = {
    "101": (NOT_HTTP, "502 upstream_error, status", UNASKED),
    "status 000": (
        NOT_HTTP, "502 upstream_error, status", "RFC 9110, 15: a status code is a number between 100 and 599"
    ),
    "HTTP/2.0 in the status line": (
        NOT_HTTP, "whole, ok", "RFC 9112, 2.3 and RFC 9113: HTTP/2 has no status line; its syntax is not this one"
    ),
    "a line break before the status line": (
        NOT_HTTP, "whole, ok",
        "RFC 9112, 2.2: only servers are to skip empty lines; to a client they are the rest of another message",
    ),
    "a folded header": (
        NOT_HTTP, "whole, ok", "RFC 9112, 5.2: a gateway may answer with 502 or unfold. No upstream folds in earnest",
    ),
    "a transfer coding nobody knows": (NOT_HTTP, "whole, ok", NOT_OFFERED),
    "until it closes, reset, plain": ("502 upstream_error, cut", "502 upstream_error, not_json", LOST),
    "a flood of interim answers": (NOT_HTTP, "whole, ok", TOO_MANY),
    "trailers without end, streamed": ("whole, ok", NOT_HTTP, ALREADY_THERE),
    "a length that is too short, plain": ("502 upstream_error, not_json", NOT_HTTP, SURPLUS),
    "a length that is too short, streamed": ("event upstream_error, cut", NOT_HTTP, SURPLUS),
    "an empty chunk too early, plain": ("502 upstream_error, not_json", NOT_HTTP, SURPLUS),
    "an empty chunk too early, streamed": ("event upstream_error, cut", NOT_HTTP, SURPLUS),
    "surplus bytes": ("whole, ok", NOT_HTTP, SURPLUS),
    "DONE, then a bad chunk": ("whole, ok", NOT_HTTP, ALREADY_THERE),
    "a chunk size that is no number, streamed": (NOT_HTTP_EVENT, NOT_HTTP, ALREADY_THERE),
    "a chunk size that is negative, streamed": (NOT_HTTP_EVENT, NOT_HTTP, ALREADY_THERE),
    "a chunk size beyond all numbers, streamed": (NOT_HTTP_EVENT, NOT_HTTP, ALREADY_THERE),
    "a chunk longer than it says, streamed": (NOT_HTTP_EVENT, NOT_HTTP, ALREADY_THERE),
    "a chunk extension without end": (NOT_HTTP, "504 upstream_timeout, timeout", NO_LIMIT),
    "a flood of chunk extensions": (NOT_HTTP, "504 upstream_timeout, timeout", NO_LIMIT),
}  # fmt: skip
"""Name of a row (with `, plain` or `, streamed` where only these differ): ours, aiohttp's, why ours is right."""


@dataclass(frozen=True)
class Seen:
    """The outcome of one call: the client's answer, and its record."""

    status: int
    headers: tuple[str, ...]
    body: bytes
    """Repeated events count once: their number depends on time."""
    is_whole: bool
    ended: str
    is_truncated: bool
    usage: tuple[int, int, str]
    outcomes: tuple[str, ...]
    """Of every attempt."""

    @property
    def received(self) -> str:
        """The answer in short, and the result of the last attempt."""
        return f"{self.answer}, {self.outcomes[-1]}"

    @property
    def answer(self) -> str:
        """The answer in short."""
        if not self.is_whole:
            return "cut"
        events = [part.removeprefix(b"data: ") for part in self.body.split(b"\n\n") if part.startswith(b"data: ")]
        last = events[-1] if events else self.body
        if last == b"[DONE]":
            return "whole"
        try:
            document = json.loads(last)
        except ValueError:
            return "neither JSON nor events"
        error = document.get("error") if isinstance(document, dict) else None
        if error:
            return f"{'event' if events else self.status} {error['code'] or error['type']}"
        return "no end" if events else "whole"


@dataclass(frozen=True)
class Scenario:
    """A call at a row, and the next call after the upstream has recovered."""

    seen: Seen
    next: Seen


Scenarios = Mapping[tuple[str, Kind], Scenario]


class RecordingTelemetry(Telemetry):
    """Telemetry that remembers how the attempts at each upstream ended."""

    def __init__(self) -> None:
        super().__init__(("k",), 10)
        self.outcomes = defaultdict[str, list[str]](list)

    def attempted(self, upstream: str, outcome: str) -> None:
        self.outcomes[upstream].append(outcome)
        super().attempted(upstream, outcome)


def name_of(fault: Fault, kind: Kind) -> str:
    return f"{FAULTS.index(fault)}-{kind}"


def upstream_of(gateway: FaultyUpstreams, fault: Fault, kind: Kind) -> dict[str, Any]:
    limits = HASTY if is_hasty(fault) else PATIENT
    return {"base_url": gateway.url(fault, kind), "api_key": UPSTREAM_KEY, "timeouts": limits}


def is_hasty(fault: Fault) -> bool:
    return LIMITED.search(fault.name) is not None


class FaultRun:
    """A gateway in this process, with one upstream and model per row."""

    def __init__(self, gateway: FaultyUpstreams, folder: Path) -> None:
        self._gateway = gateway
        self._records: dict[str, Record] = {}
        self._telemetry = RecordingTelemetry()
        self._values = {
            "server": {"access_log": "off", "max_response_bytes": 200_000},
            "store": {"url": f"embedded:{folder}"},
            "upstreams": {name_of(*case): upstream_of(gateway, *case) for case in CASES},
            "models": {name_of(*case): {"routes": [{"upstream": name_of(*case)}]} for case in CASES},
            "keys": [{"id": "k", "secret": KEY}],
        }

    async def run(self) -> Scenarios:
        """All rows, many in parallel."""

        async def scrape() -> bytes:
            return generate_latest(self._telemetry.registry)

        places = asyncio.Semaphore(AT_ONCE)

        async def run(fault: Fault, kind: Kind) -> Scenario:
            async with places:
                return await self._row(client, fault, kind)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AccessLog, "write_record", lambda _, record, *__: self._records.update({record.id: record}))
            async with (
                app.build(build(self._values), self._telemetry, scrape) as worker,
                TestServer(worker.app) as server,
                aiohttp.ClientSession(server.make_url("/"), connector=aiohttp.TCPConnector(limit=AT_ONCE)) as client,
                asyncio.timeout(PLAYED_WITHIN_S),
            ):
                runs = {}
                for is_first in (True, False):
                    async with asyncio.TaskGroup() as group:
                        for fault, kind in CASES:
                            if is_hasty(fault) is is_first:
                                runs[fault.name, kind] = group.create_task(run(fault, kind))
                await worker.parts.tasks.wait_until_idle(PLAYED_WITHIN_S)
        return {case: run.result() for case, run in runs.items()}

    async def _row(self, client: aiohttp.ClientSession, fault: Fault, kind: Kind) -> Scenario:
        name = name_of(fault, kind)
        if fault.is_primed:
            first = await self._call(client, Ask(kind, f"first {name}"), name)
            assert first.received == "whole, ok", first
        seen = await self._call(client, Ask(kind, f"user {name}"), name)
        self._gateway.heal(fault, kind)
        return Scenario(seen, await self._call(client, Ask(kind, f"next {name}"), name))

    async def _call(self, client: aiohttp.ClientSession, ask: Ask, name: str) -> Seen:
        form = ask.kind.form
        members = {"model": name, "stream": ask.kind.is_streamed, **form.asked(ask.user)}
        body, is_whole = bytearray(), True
        before = len(self._telemetry.outcomes[name])
        async with client.post(form.path, json=members, headers={"Authorization": f"Bearer {KEY}"}) as answer:
            try:
                async for piece in answer.content.iter_any():
                    body += piece
            except aiohttp.ClientPayloadError:
                is_whole = False
        assert answer.headers["x-request-id"] in self._records, f"no record: {answer.status} {bytes(body)!r}"
        record = self._records[answer.headers["x-request-id"]]
        of_the_moment = {"date", "x-request-id", "content-length"}
        headers = sorted(f"{k}: {v}".lower() for k, v in answer.headers.items() if k.lower() not in of_the_moment)
        return Seen(
            status=answer.status,
            headers=tuple(headers),
            body=_once_each(bytes(body)),
            is_whole=is_whole,
            ended=record.ended,
            is_truncated=record.truncated,
            usage=(record.usage.prompt_tokens, record.usage.completion_tokens, record.usage.source),
            outcomes=tuple(self._telemetry.outcomes[name][before:]),
        )


def _once_each(body: bytes) -> bytes:
    blocks = body.split(b"\n\n")
    return b"\n\n".join([block for block, last in zip(blocks, [None, *blocks], strict=False) if block != last])


def run_through(door: type[Any], folder: Path) -> Scenarios:
    """Every row through this client."""
    complaints: list[str] = []
    with (
        FaultyUpstreams() as gateway,
        pytest.MonkeyPatch.context() as patch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        patch.setattr(hot_reload, "pool_of", door)
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(repr(context)))
        scenarios = runner.run(FaultRun(gateway, folder).run())
    assert not complaints
    return scenarios


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Scenarios:
    return run_through(pool.Pool, tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Scenarios:
    return run_through(aiohttp_door.Pool, tmp_path_factory.mktemp("aiohttp"))


def difference(fault: Fault, kind: Kind) -> tuple[str, str, str] | None:
    """The entry of `DIFFERS` for this case."""
    return DIFFERS.get(f"{fault}, {'streamed' if kind.is_streamed else 'plain'}") or DIFFERS.get(fault.name)


@pytest.mark.parametrize(("fault", "kind"), CASES, ids=str)
def test_clients_of_both_see_the_same(ours: Scenarios, theirs: Scenarios, fault: Fault, kind: Kind) -> None:
    ours_here, theirs_here = ours[fault.name, kind], theirs[fault.name, kind]
    # Another attempt, on a connection that was just being closed, is chance.
    assert ours_here.next == replace(theirs_here.next, headers=ours_here.next.headers, outcomes=ours_here.next.outcomes)
    assert ours_here.next.received == "whole, ok"
    mine, other = ours_here.seen, theirs_here.seen
    if found := difference(fault, kind):
        as_ours, as_theirs, why = found
        assert (mine.received, other.received) == (as_ours, as_theirs), why
        assert as_ours != as_theirs
    elif fault.name in BY_CHANCE:
        assert mine.answer == other.answer
    elif fault.name in BY_CLOCK:
        assert mine == replace(other, headers=mine.headers, usage=mine.usage)
    else:
        assert mine == other


# Parts of the interface that no row of the catalogue uses.


@pytest.mark.parametrize("door", [pool.Pool, aiohttp_door.Pool], ids=["ours", "aiohttp"])
async def test_full_pool_is_busy(door: type[Any]) -> None:
    async with Scripted(silent) as upstream:
        both = door("up", settings(upstream.url, connect_s=0.2), 1)
        first = await both.acquire()
        first.send(both.request("/completions", [], b"{}"), Ear())
        await until(lambda: upstream.hits == 1)
        failure = await both.acquire()
        if not isinstance(failure, Failure):
            ear = Ear()
            failure.send(both.request("/completions", [], b"{}"), ear)
            failure = await ear.end()
        assert (failure.phase, failure.fault) == (Phase.CONNECT, Outcome.BUSY)
        first.abort()
        await until(lambda: upstream.open_now == 0)
        await both.close()


@pytest.mark.parametrize("door", [pool.Pool, aiohttp_door.Pool], ids=["ours", "aiohttp"])
async def test_pause_is_no_silence_of_the_upstream(door: type[Any]) -> None:
    body = b"x" * 20_000_000
    async with Scripted(answer(body)) as upstream:
        both = door("up", settings(upstream.url, idle_s=1.0), 1)
        connection, ear = await both.acquire(), Ear()
        connection.send(both.request("/completions", [], b"{}"), ear)
        await until(lambda: ear.pieces)
        connection.pause_reading()
        await asyncio.sleep(1.2)
        assert not ear.has_ended
        assert len(ear.body) < len(body)
        connection.resume_reading()
        assert await ear.end() is None
        assert ear.body == body
        await both.close()


def test_every_difference_is_of_a_row() -> None:
    names = {fault.name for fault in FAULTS}
    cases = {f"{fault}, {'streamed' if kind.is_streamed else 'plain'}" for fault, kind in CASES}
    assert not [name for name in (*DIFFERS, *BY_CHANCE, *BY_CLOCK) if name not in names and name not in cases]
    assert not [name for name, (_, _, why) in DIFFERS.items() if "RFC" not in why]
