"""Two routes for one call: whatever happens to them, the call is settled once, for what both have cost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from gateway.accounting.call_log import CallLog
from gateway.api.json_document import parse
from gateway.config import Route
from gateway.errors import InvalidRequest
from gateway.records import Bond, Call, Failure, Fault, FormBody, Granted, Phase, Record, Usage
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientStream, Headers, StreamWriter
from gateway.store import Reserve
from gateway.tasks import Tasks, cut_off
from gateway.wings.hedging.race import Race, may_hedge
from tests.accounting.test_call_log import CLAIM, ScriptedLedger, a_call, books_of, log_of
from tests.fakes.scripted import until

ANSWER = Answer(200, (), b"{}")
FAILED = Failure("a", Phase.REFUSED, Fault.STATUS, status=500)
REPORTED = Usage(10, 5, source="reported")
SPENT = Usage(2, 3, source="estimated")
TOGETHER = (12, 8, "estimated")


class Writer:
    """The client's side; keeps what is written."""

    is_congested = False

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> bool:
        self.written += data
        return False

    def write_last(self, data: bytes) -> None:
        self.write(data)

    async def wait_until_writable(self) -> None:
        pass


class Path:
    """One route: it runs when it is asked to, until it is stopped or has its turn."""

    def __init__(self, name: str, result: Answer | Streamed | Failure | Exception = ANSWER) -> None:
        self.route = Route(upstream=name)
        self.result = result
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.stopped: tuple[Any, ...] | None = None
        self.side: ClientStream | None = None

    async def __call__(self, leg: CallLog, side: ClientStream) -> Answer | Streamed | Failure:
        self.side = side
        leg.attempt_began(self.route)
        self.has_begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError as cancelled:
            self.stopped = cancelled.args
            leg.close(status=499, usage=SPENT, ended="client_gone")
            raise
        if isinstance(self.result, Exception):
            raise self.result
        if not isinstance(self.result, Failure):
            leg.note_first_byte()
            leg.close(status=200, usage=REPORTED, ended="done")
            await leg.acknowledged()
        return self.result


class Scenario:
    """A call with two routes, the second of which begins at once."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.noted: list[str] = []
        self.tasks = Tasks()
        self.ledger = ScriptedLedger(Granted(()))
        self.writer = Writer()
        self.first, self.second = Path("a"), Path("b")
        self.log: CallLog | None = None

    def open(self, headers: Headers) -> StreamWriter:
        return self.writer

    async def run(self) -> Answer | Streamed | Failure:
        call, books = a_call(), books_of(self.ledger, self.records)
        async with log_of(books, call) as self.log:
            side = ClientStream(self.open, tuple, 0)
            race = Race(call, self.log, side, books, self.tasks, lambda route, _: self.noted.append(route.upstream))
            return await race.run(self.first, self.second, 0.0)

    async def begin(self) -> asyncio.Task[Any]:
        running = self.tasks.spawn(self.run(), "call")
        await self.first.has_begun.wait()
        await self.second.has_begun.wait()
        return running

    def settled(self) -> tuple[Any, ...]:
        (record,) = self.records
        assert len(self.ledger.settled) == 1
        usage = record.usage
        return record.status, record.ended, record.upstream, record.failed, (*usage[:2], usage.source)


@pytest.fixture
async def scenario() -> Scenario:
    return Scenario()


@pytest.mark.parametrize(("winner", "loser"), [("first", "second"), ("second", "first")])
async def test_the_one_that_answers_serves_and_the_other_is_stopped_and_charged(
    scenario: Scenario, winner: str, loser: str
) -> None:
    running = await scenario.begin()
    one, other = getattr(scenario, winner), getattr(scenario, loser)
    one.may_end.set()
    assert await running is ANSWER
    assert other.stopped == ()
    served, stopped = one.route.upstream, other.route.upstream
    assert scenario.settled() == (200, "done", served, f"{stopped}:hedged", TOGETHER)
    assert sorted(scenario.noted) == ["a", "b"]  # the stopped one with the time that it had taken
    assert len(scenario.tasks) == 0


async def test_only_one_can_write_to_the_client(scenario: Scenario) -> None:
    running = await scenario.begin()
    assert scenario.first.side is not None
    assert scenario.second.side is not None
    scenario.second.side.open(()).write(b"two")
    scenario.first.side.open(()).write(b"one")
    assert scenario.writer.written == b"two"
    assert (scenario.first.side.writer, scenario.second.side.writer) == (None, scenario.writer)
    scenario.second.may_end.set()
    await running
    assert scenario.settled()[2:4] == ("b", "a:hedged")


async def test_a_failure_of_one_is_not_the_end(scenario: Scenario) -> None:
    scenario.first.result = FAILED
    running = await scenario.begin()
    scenario.first.may_end.set()
    await asyncio.sleep(0)
    scenario.second.may_end.set()
    assert await running is ANSWER
    assert scenario.settled() == (200, "done", "b", "", (10, 5, "reported"))


async def test_of_two_failures_the_first_routes_counts_and_the_call_goes_on(scenario: Scenario) -> None:
    scenario.first.result = FAILED
    scenario.second.result = Failure("b", Phase.WAITING, Fault.CUT)
    running = await scenario.begin()
    assert scenario.log is not None
    scenario.second.may_end.set()
    scenario.first.may_end.set()
    assert await running is FAILED
    assert scenario.log.attempts == 2


async def test_a_refusal_by_the_first_route_is_the_answer(scenario: Scenario) -> None:
    scenario.first.result = InvalidRequest("No.")
    running = await scenario.begin()
    scenario.first.may_end.set()
    with pytest.raises(InvalidRequest):
        await running
    assert scenario.second.stopped == ()
    assert scenario.settled() == (400, "error", "a", "", (2, 3, "estimated"))


async def test_a_refusal_by_the_second_route_waits_for_the_first(scenario: Scenario) -> None:
    scenario.second.result = InvalidRequest("No.")
    running = await scenario.begin()
    scenario.second.may_end.set()
    await until(lambda: len(scenario.tasks) == 2)
    scenario.first.may_end.set()
    assert await running is ANSWER
    assert scenario.settled()[:3] == (200, "done", "a")


async def test_a_bug_beside_an_answer_is_logged(scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    scenario.second.result = RuntimeError("a bug")
    running = await scenario.begin()
    scenario.second.may_end.set()
    await until(lambda: len(scenario.tasks) == 2)
    scenario.first.may_end.set()
    assert await running is ANSWER
    assert "a bug" in caplog.text


@pytest.mark.parametrize("is_gateway_ending", [False, True])
async def test_a_client_that_leaves_is_gone_for_both(scenario: Scenario, is_gateway_ending: bool) -> None:
    running = await scenario.begin()
    (cut_off if is_gateway_ending else asyncio.Task.cancel)(running)
    await asyncio.wait([running])
    await until(lambda: bool(scenario.records))
    assert scenario.settled() == (499, "client_gone", "a", "", (4, 6, "estimated"))
    assert scenario.first.stopped == scenario.second.stopped
    assert (scenario.first.stopped == ()) is not is_gateway_ending


class Cancelling(Tasks):
    """Cancels each attempt before its first step."""

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = super().spawn(coroutine, name)
        task.cancel()
        return task


async def test_an_attempt_that_is_cancelled_before_its_first_step_leaves_a_settled_call(scenario: Scenario) -> None:
    scenario.tasks = Cancelling()
    with pytest.raises(asyncio.CancelledError):
        await scenario.run()
    assert scenario.settled()[:2] == (499, "client_gone")


async def test_a_client_that_leaves_behind_a_failure_is_recorded_as_gone(scenario: Scenario) -> None:
    scenario.first.result = FAILED
    running = await scenario.begin()
    scenario.first.may_end.set()
    await until(lambda: len(scenario.tasks) == 2)
    running.cancel()
    await asyncio.wait([running])
    await until(lambda: bool(scenario.records))
    assert scenario.settled() == (499, "client_gone", "b", "", (2, 3, "estimated"))


def call_with(body: bytes = b'{"model": "m"}', **more: Any) -> Call:
    call = a_call()
    params = {name: more.pop(name) for name in ("is_kept", "is_deferred") if name in more}
    document = parse(body)._replace(form=more.pop("form", None))
    return call._replace(params=call.params._replace(document=document, **params), **more)


BOND = Bond("resp_1", "k", None, "a", "", "m", 0, 0.0)


@pytest.mark.parametrize(
    "call",
    [
        call_with(is_kept=True), call_with(is_deferred=True), call_with(bond=BOND), call_with(affinity=b"x"),
        call_with(form=FormBody(cast(Any, None), {})), call_with(b'{"store": true}'),
        call_with(b'{"tools": [{"type": "function"}, {"type": "mcp"}]}'), call_with(b'{"mcp_servers": [{}]}'),
    ],
    ids=["kept", "deferred", "bound", "sticky", "form", "stored", "acting tool", "acting server"],
)  # fmt: skip
def test_what_is_not_hedged(call: Call) -> None:
    assert not may_hedge(call)


@pytest.mark.parametrize("body", [b"{}", b'{"store": false}', b'{"tools": [{"type": "function"}, 1, {"type": 3}]}'])
def test_what_is(body: bytes) -> None:
    assert may_hedge(call_with(body))


class Extended(ScriptedLedger):
    """Keeps what is drawn for another attempt."""

    draws: list[Reserve]

    def extend(self, draw: Reserve) -> asyncio.Future[Any]:
        self.draws = [draw]
        return self.draw(draw)


async def test_a_killed_worker_leaves_two_reservations_to_be_charged() -> None:
    ledger = Extended(Granted())
    async with log_of(books_of(ledger, []), a_call()) as log:
        assert await log.reservation.extend_for_hedge(()) is None
    (draw,) = ledger.draws
    assert draw.claims == (CLAIM,)
    assert draw.record.usage[:2] == (2 * 3, 2 * 14)
