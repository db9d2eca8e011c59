"""Whatever happens, and in whatever order: a store does what the model says (model.py, play.py).

What fails is printed as a list of steps, the shortest that was found; `replay` takes it as it is. More examples, new
ones each time: SCHEDULES=2000 pytest tests/store/slow/test_schedules.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from gateway.config import StoreSettings as Settings
from gateway.store import SILENT_S, Store
from gateway.store.redis.connection import Script
from gateway.store.redis.store import RedisStore
from gateway.store.sqlite.database import path_of
from gateway.store.sqlite.store import SqliteStore
from tests.fakes.redis_servers import RedisServer
from tests.store.changes import Clock
from tests.store.comparison import Comparison, Rig
from tests.store.steps import (
    FLOWING,
    LIMITS,
    Adopt,
    Change,
    Copy,
    Die,
    End,
    Forget,
    RateWish,
    Remember,
    Reopen,
    Step,
    StepBack,
    Turn,
    Wait,
    Wish,
)

ASKED = int(os.environ.get("SCHEDULES", "0"))
PATIENCE_S = 0 if ASKED else 400
"""Making a failure short takes up to five minutes, and without it there is nothing to read."""

SECOND = 64
"""Ticks."""


class EmbeddedRig:
    """SQLite in a folder of its own."""

    is_monotonic = True

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._settings = Settings(url=f"embedded:{folder}")
        self._clock = clock

    async def open(self) -> Store:
        return SqliteStore(self._settings, self._clock)

    async def remember(self) -> bytes:
        with contextlib.closing(sqlite3.connect(self._file)) as db:
            return db.serialize()

    async def fall_back(self, memory: bytes) -> None:
        for path in self._settings.folder.glob(f"{self._file.name}-*"):
            path.unlink()
        self._file.write_bytes(memory)

    @property
    def _file(self) -> Path:
        return path_of(self._settings)


class FrozenStore(RedisStore):
    """Its time is the test's, and does not run while a script does. Nothing else is changed, but for its patience."""

    TIME = "local now = time[1] * 1000000 + time[2] + offset_us\n"

    def __init__(self, settings: Settings, clock: Clock) -> None:
        super().__init__(settings, clock)
        assert self._script.text.count(self.TIME) == 1
        self._script = Script.of(self._script.text.replace(self.TIME, "local now = offset_us\n"))
        self._writing._limit_s = self._reading._limit_s = 30


class RedisRig:
    """A server that holds nothing else."""

    is_monotonic = False

    def __init__(self, url: str, clock: Clock) -> None:
        self._settings = Settings(url=url, namespace="played")
        self._clock = clock
        self._server = redis.Redis.from_url(url)
        self._server.flushall()

    async def open(self) -> Store:
        return FrozenStore(self._settings, self._clock)

    async def remember(self) -> dict[bytes, tuple[int, bytes | None]]:
        self._server.script_flush()
        return {key: (max(0, self._server.pttl(key)), self._server.dump(key)) for key in self._server.scan_iter()}

    async def fall_back(self, memory: dict[bytes, tuple[int, bytes | None]]) -> None:
        self._server.flushall()
        for key, (ttl_ms, text) in memory.items():
            assert text is not None
            self._server.restore(key, ttl_ms, text)

    def close(self) -> None:
        self._server.close()


# -------------------------------------------------------------------------------------------------------- strategies

few = st.integers(0, 5)
wishes = st.builds(
    Wish, st.integers(0, 1), st.lists(st.sampled_from(sorted(LIMITS)), unique=True, max_size=5).map(tuple),
    st.sampled_from((1, 10, 33, 70, 150)), st.sampled_from((0, 0, 3, 40)),
    st.sampled_from(("", "", "", "", "spent alone", "left")),
)  # fmt: skip
ends = st.builds(
    End, few, st.sampled_from((0, 1, 9, 10, 30, 70, 200)), st.sampled_from(("done", "done", "error", "client_gone")),
    st.booleans(),
)  # fmt: skip


rate_wishes = st.builds(
    RateWish, st.integers(0, 1), st.lists(st.sampled_from(FLOWING), unique=True, min_size=1).map(tuple),
    st.sampled_from((1, 10, 33, 70)),
)  # fmt: skip


def turns(workers: st.SearchStrategy[int]) -> st.SearchStrategy[Turn]:
    return st.builds(
        Turn, workers, st.lists(wishes, max_size=4).map(tuple), st.lists(ends, max_size=3).map(tuple),
        st.sampled_from(("told", "told", "told", "told", "lost", "never", "dies")),
        st.lists(rate_wishes, max_size=2).map(tuple),
    )  # fmt: skip


def heard(turn: Turn) -> Turn:
    return turn._replace(fate="told")


whoever = turns(st.integers(0, 2))
waits = st.builds(Wait, st.sampled_from((1, 20, SECOND, 7 * SECOND, 21 * SECOND, 65 * SECOND)))
copies = st.builds(Copy, few)
backward = st.builds(StepBack, st.sampled_from((5, 9 * SECOND, 100 * SECOND)))
others = st.one_of(backward, st.builds(Reopen, st.integers(0, 1)), st.just(Change()), copies, st.just(Remember()))


@st.composite
def scenarios(draw: st.DrawFn) -> Sequence[Step]:
    """What one worker goes through, with others about."""
    worker = draw(st.integers(0, 2))
    mine = turns(st.just(worker))
    said = draw(mine)
    fall_back = (st.just(Forget()), whoever, mine.map(heard), mine)
    silence = st.just((Turn((worker + 1) % 3), Wait(5 * SECOND)) * (SILENT_S // 5 + 1))  # while another worker is heard
    found = draw(
        st.one_of(
            st.tuples(st.just(said), whoever),
            st.tuples(st.just(said), waits, mine),
            st.tuples(st.just(said), silence, whoever, mine),
            st.tuples(st.just(said), st.just(Die(worker)), waits, whoever, adoptions),
            st.tuples(st.just(heard(said)), st.just(Remember()), mine.map(heard), whoever, *fall_back),
            st.tuples(st.just(said), silence, whoever, *fall_back),
            st.tuples(st.just(said), copies, mine, copies),
            st.tuples(st.just(said), others, mine),
            st.tuples(crowds(worker), silence, whoever, whoever, mine),
        )
    )
    return [step for part in found for step in (part if type(part) is tuple else (part,))]


def crowds(worker: int) -> st.SearchStrategy[Turn]:
    """More calls than one batch closes."""
    windows = st.lists(st.sampled_from(("shadow", "usd", "day")), unique=True).map(tuple)
    return st.builds(lambda names, number: Turn(worker, (Wish(0, names, 1),) * number), windows, st.integers(15, 30))


adoptions = st.builds(Adopt, few, st.sampled_from((0, 1, 99, 99)))
schedules = st.lists(st.none() | scenarios(), min_size=8, max_size=12).map(
    lambda found: [step for scenario in found for step in scenario or ()]
)
"""A scene that does not matter becomes None when a failure is made short, and is left out."""


CALL = Wish(0, ("minute",), 1)

CREDIT = [Turn(0, (CALL,), fate="lost"), Wait(5 * SECOND), Turn(0, (CALL,) * 6), Wait(5 * SECOND), Turn(0, (CALL,))]
"""A rate that becomes empty in the middle of a batch keeps no credit for the part of a unit that had leaked."""

OTHER_RATE = [Turn(0, (CALL,) * 3), Turn(0, (), (End(0, 1),) * 3), Wait(SECOND), Change(), Turn(0, (CALL,) * 4)]
"""A rate keeps its level under another limit."""


POLL = RateWish(0, ("minute", "odd"), 10)

POLLS = [Turn(0, (CALL,), rates=(POLL,) * 4), Turn(1, rates=(POLL,) * 4), Wait(21 * SECOND), Turn(0, rates=(POLL,))]
"""Requests that are no calls draw on the same rates as calls, all or none, and give nothing back."""


def bounded(examples: int) -> settings:
    """The same examples each time, unless more are asked for."""
    return settings(
        max_examples=ASKED or examples, derandomize=not ASKED, database=None, deadline=None, print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip


async def replay(rig: Rig, clock: Clock, schedule: Sequence[Step]) -> None:
    """Play these steps, and end everything."""
    comparison = Comparison(rig, clock)
    await comparison.begin()
    try:
        for step in schedule:
            await comparison.step(step)
        await comparison.finish()
    finally:
        await comparison.end()


# -------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.timeout(PATIENCE_S)
@bounded(40)
@example(schedule=CREDIT)
@example(schedule=OTHER_RATE)
@example(schedule=POLLS)
@given(schedule=schedules)
def test_the_embedded_store_does_what_the_model_says(schedule: list[Step]) -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(replay(EmbeddedRig(Path(folder), clock), clock, schedule))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.mark.timeout(PATIENCE_S)
@bounded(30)
@example(schedule=CREDIT)
@example(schedule=OTHER_RATE)
@example(schedule=POLLS)
@given(schedule=schedules)
def test_redis_does_what_the_model_says(server: RedisServer, schedule: list[Step]) -> None:
    clock = Clock()
    with contextlib.closing(RedisRig(server.url, clock)) as rig:
        asyncio.run(replay(rig, clock, schedule))
