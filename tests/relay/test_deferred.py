"""Deferred work: how it is charged at its end, and what ends it where the upstream does not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.accounting.deferral import Deferral, decode_deferral, encode_deferral
from gateway.config import Model, Route, ServerSettings
from gateway.config import UploadSettings as Uploads
from gateway.errors import Unavailable
from gateway.formats import reported_usage
from gateway.formats.format import LONG_ANSWER
from gateway.quota import ledger_entry
from gateway.records import Settlement, Usage
from gateway.relay import deferred as under_test
from gateway.relay.deferred import MAX_BATCH_BYTES, DeferredPoller
from gateway.store import Batch, Deferred, Progress, StoreUnavailable
from gateway.upstream.ask import Fetched
from gateway.upstream.connection import Head
from gateway.web.capacity import Capacity
from gateway.wings.stored.layers import POLLS_AT_ONCE, POLLS_UNDER_WAY
from tests.fakes import responses_api as api
from tests.store.changes import record

LIMIT = 300
ESTIMATE = Settlement(
    record("req_1", model="m", endpoint="responses", usage=Usage(9, LIMIT, source="estimated")), ()
)  # fmt: skip


class Store:
    """Remembers what was settled."""

    def __init__(self, entries: list[Deferred]) -> None:
        self.entries = entries
        self.batches: list[Batch] = []
        self.is_away = False
        self.voided: list[str] = []
        self.claims: list[float] = []
        """For how long the polling was claimed, each time; 0: it was released."""

    async def void_leases(self, worker: str) -> None:
        self.voided.append(worker)

    async def deferred(self, limit: int) -> list[Deferred]:
        return self.entries

    async def claim(self, holder: str, names: dict[str, float]) -> dict[str, float]:
        self.claims += names.values()
        return dict.fromkeys(names, 0.0)

    async def progress(self, worker: str) -> Progress:
        if self.is_away:
            raise StoreUnavailable("away")
        return Progress(len(self.batches), len(self.batches))

    async def apply(self, batch: Batch) -> None:
        self.batches.append(batch)

    async def find_bond(self, bond_id: str, now: float) -> None:
        return None

    async def remove_deferred(self, lease: str) -> None:
        self.entries = [each for each in self.entries if each.lease != lease]


class Telemetry:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def recorded(self, record: Any, **_: Any) -> None:
        self.records.append(record)


class Scenario:
    """A poller of one deferred call that is so old."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        age_s: float,
        status: int,
        body: Any,
        account: str = "",
        estimate: Settlement = ESTIMATE,
        **more: Any,
    ) -> None:
        deferral = Deferral("resp_1", "up", account, None, "m", LIMIT, 500, time.time() - age_s, **more)
        self.store = Store([Deferred("req_1", ledger_entry.encode(*estimate), encode_deferral(deferral))])
        self.telemetry = Telemetry()
        books = SimpleNamespace(telemetry=self.telemetry, write_line=lambda record, extras: None)
        model = SimpleNamespace(model=Model(routes=(Route(upstream="up"),)))
        config = SimpleNamespace(
            upstreams={"up": SimpleNamespace(credentials=(None,) if not account else (None, None))},
            model=lambda name: model,
            server=SimpleNamespace(max_response_bytes=10**6),
        )
        pools = {"up": SimpleNamespace(request=lambda *_, **__: [])}
        self.made: list[Any] = []
        self.limits: list[int] = []
        """How long an answer may be, for each poll."""

        async def make(key: str, function: Any, answer: bytes, *arguments: Any) -> Any:
            self.made.append(function)
            return function(answer, *arguments)

        parts = SimpleNamespace(config=config, accounting=books, pools=pools, find_counter=lambda name: None, make=make)
        self.room = Capacity(ServerSettings(max_buffered_bytes=100, max_request_bytes=10, workers=1), Uploads()).memory
        self.ahead_s = 0.0
        """How far the store's clock is ahead."""
        self.passed_s = 0.0
        """Time that has really passed, in seconds."""
        self.poller = DeferredPoller(
            cast(Any, self.store), lambda: cast(Any, parts), self.room,
            lambda: time.time() + self.ahead_s + self.passed_s, lambda: self.passed_s,
        )  # fmt: skip

        async def fetch(*asked: Any, hold: Callable[[int], None]) -> Fetched:
            self.limits.append(asked[-1])
            return Fetched(Head(status, ()), json.dumps(body).encode())

        monkeypatch.setattr(under_test, "fetch", fetch)

    async def look(self) -> list[Any]:
        await self.poller._look()
        return [item.record for batch in self.store.batches for item in batch.items]  # type: ignore[union-attr]

    async def look_for(self, seconds: float) -> list[Any]:
        """Look every 10 minutes, and at the end."""
        found = await self.look()
        while seconds > 0 and not found:
            self.passed_s += min(seconds, 600)
            seconds -= 600
            self.poller._turns._due.clear()  # type: ignore[attr-defined]
            found = await self.look()
        return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (api.response([api.message("Hi")]), (200, "done", 30, 12, "reported")),
        (api.response(status="incomplete"), (200, "done", 30, 12, "reported")),
        (api.response(status="failed", error={"code": "x", "message": "y"}), (502, "error", 30, 12, "reported")),
        (api.response(usage=None, status="failed", error={"code": "x", "message": "y"}), (502, "error", 0, 0, "none")),
        (api.response(usage=None, status="cancelled"), (499, "client_gone", 9, LIMIT, "estimated")),
        (api.response(status="cancelled"), (499, "client_gone", 30, 12, "reported")),
    ],
)
@pytest.mark.parametrize("age_s", [5, 864_000])  # the gateway was stopped meanwhile
async def test_how_it_ends(monkeypatch: pytest.MonkeyPatch, body: Any, expected: tuple[Any, ...], age_s: float) -> None:
    scenario = Scenario(monkeypatch, age_s, 200, body)
    (made,) = await scenario.look()
    usage = made.usage
    assert (made.status, made.ended, usage.prompt_tokens, usage.completion_tokens, usage.source) == expected
    assert (made.id, made.endpoint) == ("req_1", "responses")
    assert scenario.store.entries == []
    assert scenario.telemetry.records == [made]


async def test_long_text_without_a_report_is_counted_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty megabytes of it held up other calls for 360 ms."""
    body = {"padding": "x" * LONG_ANSWER, **api.response([api.message("Hi")], usage=None)}
    scenario = Scenario(monkeypatch, 5, 200, body)
    (made,) = await scenario.look()
    assert scenario.made == [reported_usage.plain_text]
    assert (made.status, made.usage.source) == (200, "estimated")


@pytest.mark.parametrize(
    ("age_s", "status", "body"),
    [
        (5, 200, api.response(status="queued", usage=None)),
        (5, 200, api.response(status="in_progress", usage=None)),
        (5, 404, {}),
        (3600, 500, {}),
        (3600, 401, {}),
        (3600, 200, []),
    ],
)
async def test_what_may_go_on_is_not_settled(
    monkeypatch: pytest.MonkeyPatch, age_s: float, status: int, body: Any
) -> None:
    scenario = Scenario(monkeypatch, age_s, status, body)
    assert await scenario.look() == []
    assert len(scenario.store.entries) == 1


@pytest.mark.parametrize(
    ("age_s", "status", "account"), [(60, 404, ""), (90_000, 200, ""), (90_000, 500, ""), (90_000, 200, "gone")]
)
async def test_what_never_ends_is_charged_its_reservation(
    monkeypatch: pytest.MonkeyPatch, age_s: float, status: int, account: str
) -> None:
    scenario = Scenario(monkeypatch, age_s, status, api.response(status="in_progress", usage=None), account)
    assert await scenario.look() == []  # a clock may be ahead when a worker begins
    (made,) = await scenario.look_for(31 if status == 404 else 3601)
    assert (made.status, made.ended, made.usage) == (504, "error", Usage(9, LIMIT, source="estimated"))


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("ahead_s", [40, 90_000, 300_000, 10**9])
@pytest.mark.parametrize("known_before_s", [0, 20])
async def test_a_clock_that_is_ahead_for_a_moment_gives_up_nothing(
    monkeypatch: pytest.MonkeyPatch, status: int, ahead_s: float, known_before_s: float
) -> None:
    scenario = Scenario(monkeypatch, 5, status, api.response(status="queued", usage=None))
    assert await scenario.look_for(known_before_s) == []
    scenario.ahead_s = ahead_s
    assert await scenario.look_for(5) == []
    scenario.ahead_s = 0
    assert await scenario.look_for(1) == []


async def test_work_of_which_a_worker_has_seen_all_is_given_up_by_the_time_that_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often its clock is wrong, ahead or behind."""
    scenario = Scenario(monkeypatch, 0, 200, api.response(status="queued", usage=None))
    for ahead_s in (0, 90_000, -90_000, 10**9):
        scenario.ahead_s = ahead_s
        assert await scenario.look_for(20_000) == []
    (made,) = await scenario.look_for(7_000)
    assert (made.status, made.usage.source) == (504, "estimated")
    scenario.store.entries = [of("k", "2")]
    await scenario.look()
    assert scenario.poller._polled.keys() == {"req_2"}


async def test_a_worker_that_stops_leaves_the_lock_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(monkeypatch, 5, 200, api.response(status="queued", usage=None))
    monkeypatch.setattr(under_test, "LOOK_EVERY_S", 0.01)
    run = asyncio.create_task(scenario.poller.run())
    while not scenario.store.claims:  # noqa: ASYNC110 - the store has no event for it
        await asyncio.sleep(0)
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    assert scenario.store.claims[-1] == 0
    other = Scenario(monkeypatch, 5, 200, api.response(status="queued", usage=None))
    other.store.entries = []
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await other.poller.run()
    assert other.store.claims == []


@pytest.mark.parametrize(("age_s", "is_given_up"), [(250_000, False), (260_000, True)])
async def test_a_batch_that_never_ends_is_charged_its_reservation_after_three_days(
    monkeypatch: pytest.MonkeyPatch, age_s: float, is_given_up: bool
) -> None:
    made = record("req_1", model="m", endpoint="batches", usage=Usage(9, LIMIT, source="estimated"))
    batch = {"id": "batch_1", "status": "in_progress"}
    of_batch: dict[str, Any] = {"lines": 2, "lines_endpoint": "chat", "estimate": Settlement(made, ())}
    scenario = Scenario(monkeypatch, age_s, 200, batch, **of_batch)
    charged = [(each.status, each.ended, each.usage) for each in await scenario.look_for(3601)]
    assert charged == ([(504, "error", Usage(9, LIMIT, source="estimated", variant="batch"))] if is_given_up else [])
    assert set(scenario.limits) == {MAX_BATCH_BYTES}  # it is parsed at once


UNKNOWN = [
    ("videos", {}),
    ("images", {}),
    ("batches", {"lines": 2, "lines_endpoint": "images"}),
    ("message_batches", {"lines": 2, "lines_endpoint": "chat"}),
    ("video_batches", {"lines": 2, "lines_endpoint": "videos"}),
]
"""Endpoints and members of work that a newer gateway may have deferred."""


@pytest.mark.parametrize(("endpoint", "more"), UNKNOWN)
async def test_work_of_an_unknown_kind_is_left_to_newer_gateways(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, endpoint: str, more: dict[str, Any]
) -> None:
    """In silence, and with the lock."""
    made = record("req_1", model="m", endpoint=endpoint, usage=Usage(9, LIMIT, source="estimated"))
    scenario = Scenario(monkeypatch, 90_000, 404, {}, **more, estimate=Settlement(made, ()))
    assert await scenario.look() == []
    assert len(scenario.store.entries) == 1
    assert caplog.records == []
    assert scenario.store.claims == [under_test.HELD_FOR_S, 0.0]
    assert await scenario.look() == []  # while another gateway may take the lock
    assert scenario.store.claims == [under_test.HELD_FOR_S, 0.0]
    scenario.poller._aside_until = 0.0
    assert await scenario.look() == []  # there is none: the rest goes on
    assert scenario.store.claims[2:] == [under_test.HELD_FOR_S]


async def test_a_task_is_left_to_gateways_whose_wings_add_apis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "ADDED", None)
    made = record("req_1", model="m", endpoint="videos", usage=Usage(9, LIMIT, source="estimated"))
    scenario = Scenario(monkeypatch, 90_000, 404, {}, path="/videos/7", estimate=Settlement(made, ()))
    assert await scenario.look() == []
    assert len(scenario.store.entries) == 1


async def test_work_of_an_unknown_kind_is_charged_its_reservation_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = record("req_1", model="m", endpoint="videos", usage=Usage(9, LIMIT, source="estimated"))
    scenario = Scenario(monkeypatch, 700_000, 404, {}, estimate=Settlement(made, ()))
    monkeypatch.setattr(under_test, "STEP_ASIDE_S", 0.0)
    (charged,) = await scenario.look_for(3601)
    assert (charged.status, charged.ended, charged.usage) == (504, "error", Usage(9, LIMIT, source="estimated"))
    assert scenario.store.entries == []


async def test_known_work_goes_on_beside_unknown_work(monkeypatch: pytest.MonkeyPatch) -> None:
    made = record("req_0", model="m", endpoint="videos", usage=Usage(9, LIMIT, source="estimated"))
    scenario = Scenario(monkeypatch, 5, 200, api.response([api.message("Hi")]))
    unknown = scenario.store.entries[0]._replace(lease="req_0", entry=ledger_entry.encode(made, ()))
    scenario.store.entries.insert(0, unknown)
    assert [each.id for each in await scenario.look()] == ["req_1"]
    assert scenario.store.entries == [unknown]


async def test_one_that_another_worker_has_settled_is_only_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(monkeypatch, 5, 200, api.response())
    scenario.store.batches.append(Batch("deferred-req_1", 1, 0))
    assert await scenario.look() == []
    assert (scenario.store.entries, scenario.telemetry.records) == ([], [])


@pytest.mark.parametrize("note", ["", "{}", "[1]", "nothing"])
async def test_one_whose_note_cannot_be_read_is_charged_its_reservation(
    monkeypatch: pytest.MonkeyPatch, note: str
) -> None:
    scenario = Scenario(monkeypatch, 5, 200, api.response())
    scenario.store.entries = [each._replace(note=note) for each in scenario.store.entries]
    (made,) = await scenario.look()
    assert (made.status, made.ended, made.usage) == (504, "error", Usage(9, LIMIT, source="estimated"))
    assert scenario.store.entries == []
    assert scenario.telemetry.records == [made]


async def test_one_whose_entry_cannot_be_read_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its entry it is not known whose it is."""
    scenario = Scenario(monkeypatch, 5, 200, api.response())
    scenario.store.entries = [each._replace(entry="") for each in scenario.store.entries]
    assert await scenario.look() == []
    assert (scenario.store.entries, scenario.store.voided) == ([], ["deferred-req_1"])


async def test_a_store_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(monkeypatch, 0, 200, api.response())
    scenario.store.is_away = True
    assert await scenario.look() == []
    scenario.store.is_away = False
    scenario.poller._turns._due.clear()  # type: ignore[attr-defined]
    assert len(await scenario.look()) == 1


def test_a_deferral_is_read_as_it_was_written_and_by_older_gateways() -> None:
    deferral = Deferral("resp_é\t", "up", "", None, "m", None, 1, 2.5, "::1", (3, 4))
    text = encode_deferral(deferral)
    assert "\t" not in text
    read = decode_deferral(text[:-1] + ',"new"]')
    assert read == deferral._replace(spent=[3, 4], ceilings=[0, 0, 0, 0])  # type: ignore[arg-type]
    assert read.spent_usage == Usage(3, 4, source="estimated")


async def test_each_has_its_turn_however_many_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one key do not keep those of others from being settled."""
    scenario = Scenario(monkeypatch, 5, 200, api.response(status="in_progress"))
    monkeypatch.setattr(under_test, "MAX_PAUSE_S", 0.0)
    number = 3 * POLLS_AT_ONCE
    scenario.store.entries = [scenario.store.entries[0]._replace(lease=f"req_{place}") for place in range(number)]
    polled: list[str] = []
    decode = scenario.poller._decode

    async def noted(deferred: Deferred) -> Any:
        polled.append(deferred.lease)
        return await decode(deferred)

    monkeypatch.setattr(scenario.poller, "_decode", noted)
    for _ in range(6):
        await scenario.look()
    assert sorted(polled) == sorted([each.lease for each in scenario.store.entries] * 2)


def of(key: str, kept_id: str, upstream: str = "up") -> Deferred:
    """Deferred work of this key at this upstream."""
    made = record(f"req_{kept_id}", key=key, model="m", endpoint="responses", usage=Usage(9, LIMIT, source="estimated"))
    note = encode_deferral(Deferral(kept_id, upstream, "", None, "m", LIMIT, 500, time.time() - 5))
    return Deferred(made.id, ledger_entry.encode(made, ()), note)


async def test_new_work_of_one_key_goes_before_no_work_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more of it begins in each look than is polled in one."""
    scenario = Scenario(monkeypatch, 5, 200, api.response(status="in_progress", usage=None))
    monkeypatch.setattr(under_test, "MAX_PAUSE_S", 0.0)
    of_bob = [of("bob", f"bob-{place}") for place in range(3 * POLLS_AT_ONCE)]
    of_alice = of("alice", "alice-1")
    polled: list[str] = []
    ask = scenario.poller._ask

    async def noted(deferral: Deferral, *more: Any) -> Any:
        polled.append(deferral.kept_id)
        return await ask(deferral, *more)

    monkeypatch.setattr(scenario.poller, "_ask", noted)
    for place in range(3):
        scenario.store.entries = [
            *of_bob[: (place + 1) * POLLS_AT_ONCE], of_alice,
        ]  # fmt: skip
        await scenario.look()
    assert polled.count("alice-1") == 3


async def test_an_upstream_that_answers_no_poll_delays_that_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor those of another key at the same one."""
    scenario = Scenario(monkeypatch, 5, 200, api.response(status="in_progress", usage=None))
    monkeypatch.setattr(under_test, "LOOK_EVERY_S", 0.0)
    silent = asyncio.Event()
    polled: list[str] = []

    async def poll(deferral: Deferral, *more: Any) -> None:
        polled.append(deferral.kept_id)
        if deferral.kept_id.startswith("bob"):
            await silent.wait()

    monkeypatch.setattr(scenario.poller, "_ask", poll)
    scenario.store.entries = [of("bob", f"bob-{place}") for place in range(2 * POLLS_UNDER_WAY)]
    for _ in range(2 * POLLS_UNDER_WAY // POLLS_AT_ONCE + 1):
        await scenario.look()
    assert len(polled) < POLLS_UNDER_WAY
    scenario.store.entries += [of("alice", "alice-1"), of("bob", "bob-elsewhere", "other")]
    await scenario.look()
    silent.set()
    assert polled[-2:] == ["alice-1", "bob-elsewhere"]


async def test_answers_of_polls_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is read where there is none, because work is not settled otherwise."""
    scenario = Scenario(monkeypatch, 5, 200, api.response([api.message("Hi")]))
    scenario.store.entries = [of("alice", f"resp_{place}") for place in range(3)]
    held, refused, all_asked = list[int](), list[Unavailable](), asyncio.Event()

    async def fetch(*_: Any, hold: Callable[[int], None]) -> Fetched:
        try:
            hold(60)
        except Unavailable as full:
            refused.append(full)
            if len(refused) == 2:
                all_asked.set()
            raise
        held.append(scenario.room.held)
        await all_asked.wait()
        return Fetched(Head(200, ()), json.dumps(api.response([api.message("Hi")])).encode())

    monkeypatch.setattr(under_test, "fetch", fetch)
    assert scenario.room.hold(40, "alice")
    assert len(await scenario.look()) == 1
    assert (held, scenario.room.held) == ([100], 40)
    scenario.room.release(40, "alice")
