"""A call is closed exactly once, however the block that holds its log is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gateway.accounting.admission import Admission
from gateway.accounting.call_log import Accounting, CallLog
from gateway.accounting.reservation import limit_failure
from gateway.api.json_document import parse
from gateway.config import Model, Price, Route
from gateway.errors import InvalidRequest, QuotaSpent, RateLimited, Unavailable, UpstreamFailed
from gateway.observe.metrics import Telemetry
from gateway.records import (
    Call,
    Claim,
    Fault,
    Granted,
    Key,
    Params,
    Record,
    Refused,
    Settlement,
    Usage,
    Window,
    WindowStatus,
)
from gateway.store import JournalFull, Ledger, Reserve, StoreUnavailable
from gateway.upstream.limits import Place
from tests.fakes.scripted import until

WINDOW = Window("w", "key:k", "requests", "day", None, 10, starts="2026-11-20", resets_us=1)
CLAIM = Claim(WINDOW, 1)
SPENT = WindowStatus(WINDOW, used=10, reserved=0, reset_us=3_600_000_000)


@dataclass
class ScriptedLedger:
    """Answers each draw with what the test put in, and keeps every settlement."""

    verdict: Granted | Refused | StoreUnavailable | None
    settled: list[Settlement] = field(default_factory=list)
    drawing: asyncio.Future[Any] | None = None
    voided: list[Reserve] = field(default_factory=list)

    def draw(self, draw: Reserve) -> asyncio.Future[Any]:
        self.drawing = asyncio.get_running_loop().create_future()
        if isinstance(self.verdict, StoreUnavailable):
            self.drawing.set_exception(self.verdict)
        elif self.verdict is not None:
            self.drawing.set_result(self.verdict)
        return self.drawing

    def extend(self, draw: Reserve) -> asyncio.Future[Any]:
        assert draw.held < len(draw.claims)
        return self.draw(draw)

    def void(self, granted: Reserve) -> None:
        self.voided.append(granted)

    def settle(self, record: Record, claims: tuple[Claim, ...]) -> asyncio.Future[None]:
        self.settled.append(Settlement(record, claims))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def books_of(ledger: ScriptedLedger, lines: list[Record]) -> Accounting:
    return Accounting(cast(Ledger, ledger), Telemetry(["k"], 10), lambda record, _: lines.append(record))


def a_call() -> Call:
    document = parse(b'{"model": "m", "prompt": "hi", "max_tokens": 7}')
    params = Params(document, "m", prompt_tokens=3, output_limit=7, n=2)
    model = Model(routes=(Route(upstream="up"),))
    return Call("req_1", 1795200000.0, Key("k"), "completions", params, model, label_model="m", arrived=0.0)


def log_of(books: Accounting, call: Call, places: Sequence[Place] = (), **how: Any) -> CallLog:
    return CallLog(books, call, Admission(books.ledger, call, (CLAIM,), places=places, **how))


async def leave(ledger: ScriptedLedger, how: Callable[[Any], None]) -> list[Record]:
    lines: list[Record] = []
    async with log_of(books_of(ledger, lines), a_call()) as log:
        how(log)
    return lines


def raising(error: BaseException) -> Callable[[Any], None]:
    def raise_it(_: Any) -> None:
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("error", "status", "ended"),
    [
        (InvalidRequest("no"), 400, "error"),
        (RuntimeError("bug"), 500, "error"),
        (asyncio.CancelledError(), 499, "client_gone"),
    ],
)
async def test_every_exit_settles_once_and_charges_nothing(error: BaseException, status: int, ended: str) -> None:
    ledger = ScriptedLedger(Granted())
    with pytest.raises(type(error)):
        await leave(ledger, raising(error))
    (settlement,) = ledger.settled
    assert (settlement.record.id, settlement.record.status, settlement.record.ended) == ("req_1", status, ended)
    assert settlement.record.usage == Usage()
    assert settlement.claims == (CLAIM,)


async def test_second_closing_is_ignored() -> None:
    ledger = ScriptedLedger(Granted())

    def close_twice(log: Any) -> None:
        log.close(status=200, usage=Usage(3, 9, source="reported"), ended="done")
        log.close(status=500, usage=Usage(), ended="error")

    lines = await leave(ledger, close_twice)
    assert [settlement.record.status for settlement in ledger.settled] == [200]
    assert [line.usage.total_tokens for line in lines] == [12]


async def test_what_the_upstream_calls_its_model_is_kept_within_bounds() -> None:
    ledger = ScriptedLedger(Granted())
    await leave(ledger, lambda log: log.close(status=200, usage=Usage(), ended="done", returned_model="x" * 10**6))
    (settlement,) = ledger.settled
    assert settlement.record.returned_model == "x" * 256


async def test_handed_over_call_stays_open() -> None:
    ledger = ScriptedLedger(Granted())
    await leave(ledger, lambda log: log.hand_over())
    assert ledger.settled == []


async def test_refused_draw_settles_nothing() -> None:
    ledger = ScriptedLedger(Refused(SPENT, 1, None))
    with pytest.raises(QuotaSpent, match="quota of your key of requests per day: Limit 10, Used 10"):
        await leave(ledger, raising(AssertionError("entered")))
    ledger = ScriptedLedger(Refused(SPENT, 1, 1_500_000))
    with pytest.raises(RateLimited) as caught:
        await leave(ledger, raising(AssertionError("entered")))
    assert (caught.value.headers["Retry-After-Ms"], caught.value.headers["Retry-After"]) == ("1500", "2")
    assert ledger.settled == []


async def test_store_away_is_said_and_nothing_settled() -> None:
    ledger = ScriptedLedger(StoreUnavailable("disk"))
    with pytest.raises(Unavailable) as caught:
        await leave(ledger, raising(AssertionError("entered")))
    assert (caught.value.code, caught.value.status, ledger.settled) == ("store_unavailable", 503, [])


async def test_client_that_leaves_during_the_draw_cancels_it() -> None:
    """The ledger takes back a draw that was cancelled (tests/store)."""
    ledger = ScriptedLedger(None)
    caller = asyncio.ensure_future(leave(ledger, raising(AssertionError("entered"))))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ledger.drawing is not None
    assert ledger.drawing.cancelled()
    assert ledger.settled == []


async def test_client_that_leaves_in_the_turn_of_its_grant_gets_it_back() -> None:
    ledger = ScriptedLedger(None)
    caller = asyncio.ensure_future(leave(ledger, raising(AssertionError("entered"))))
    await asyncio.sleep(0)
    assert ledger.drawing is not None
    ledger.drawing.set_result(Granted())
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    (settlement,) = ledger.settled
    assert (settlement.record.ended, settlement.record.usage) == ("client_gone", Usage())


async def test_a_call_that_may_never_be_has_no_record_where_its_client_leaves_during_the_draw() -> None:
    ledger = ScriptedLedger(None)
    reservation = Admission(cast(Ledger, ledger), a_call(), (CLAIM,), is_in_advance=True)
    caller = asyncio.ensure_future(reservation.make())
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    assert ledger.drawing is not None
    ledger.drawing.set_result(Granted())
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (ledger.voided, ledger.settled, reservation.is_open) == ([reservation.held], [], False)


async def test_a_full_journal_is_distinguished_from_a_store_outage() -> None:
    with pytest.raises(Unavailable, match="journal") as caught:
        await leave(ScriptedLedger(JournalFull("disk")), raising(AssertionError("entered")))
    assert (caught.value.code, caught.value.status) == ("journal_full", 503)


async def test_draw_says_what_a_lost_call_may_have_cost() -> None:
    drawn: list[Reserve] = []

    class Ledgerlike(ScriptedLedger):
        def draw(self, draw: Reserve) -> asyncio.Future[Any]:
            drawn.append(draw)
            return super().draw(draw)

    await leave(Ledgerlike(Granted()), lambda log: None)
    record = drawn[0].record
    assert (record.ended, record.usage) == ("lost", Usage(3, 14, source="estimated"))


# --------------------------------------------------------------------------------------------------------------- money

PRICED = Model(routes=(Route(upstream="up"),), price=Price.model_validate({"input": 1.5, "output": 2}))


async def costs(how: Callable[[Any], None], model: Model = PRICED) -> tuple[int | None, int | None]:
    """What a call of 3 prompt and 2 x 7 output tokens costs if it is lost, and what it costs in the end."""
    drawn: list[Reserve] = []

    class Ledgerlike(ScriptedLedger):
        def draw(self, draw: Reserve) -> asyncio.Future[Any]:
            drawn.append(draw)
            return super().draw(draw)

    ledger = Ledgerlike(Granted())
    async with log_of(books_of(ledger, []), a_call()._replace(model=model)) as log:
        how(log)
    (settlement,) = ledger.settled
    return drawn[0].record.cost_nusd, settlement.record.cost_nusd


@dataclass
class Cost:
    """What an attempt may have cost."""

    usage: Usage
    doubts: tuple[str, ...] = ()


def closing(usage: Usage, *spent: Usage) -> Callable[[Any], None]:
    def close(log: Any) -> None:
        for each in spent:
            log.add_cost(Cost(each))
        log.close(status=200, usage=usage, ended="done")

    return close


REPORTED, ESTIMATED = Usage(3, 5, source="reported"), Usage(2, 7, source="estimated")


@pytest.mark.parametrize(
    ("usage", "spent", "charged", "cost_nusd"),
    [
        (REPORTED, (), REPORTED, 14_500),
        (Usage(3, 5, source="estimated"), (), Usage(3, 5, source="estimated"), 14_500),
        (Usage(), (), Usage(), 0),
        # Several attempts are several costs.
        (REPORTED, (Usage(),), REPORTED, 14_500),
        (REPORTED, (ESTIMATED,), Usage(5, 12, source="estimated"), 31_500),
        (REPORTED, (ESTIMATED, ESTIMATED), Usage(7, 19, source="estimated"), 48_500),
        (Usage(), (ESTIMATED,), ESTIMATED, 17_000),
        (REPORTED, (REPORTED,), Usage(6, 10, source="reported"), 29_000),
    ],
)
async def test_cost_of_what_was_used(
    usage: Usage, spent: tuple[Usage, ...], charged: Usage, cost_nusd: int | None
) -> None:
    assert await costs(closing(usage, *spent)) == (32_500, cost_nusd)
    assert await costs(closing(usage, *spent), a_call().model) == (None, None)
    lines: list[Record] = []
    books = books_of(ScriptedLedger(Granted()), lines)
    async with log_of(books, a_call()) as log:
        closing(usage, *spent)(log)
    assert [line.usage for line in lines] == [charged]
    counted = books.telemetry.registry.get_sample_value("gateway_usage_unknown_total")
    assert counted == (charged.source == "estimated")


async def test_a_call_without_an_answer_is_charged_its_attempts() -> None:
    ledger = ScriptedLedger(Granted())

    def fail(log: Any) -> None:
        log.add_cost(Cost(ESTIMATED))
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        await leave(ledger, fail)
    assert ledger.settled[0].record.usage == ESTIMATED


async def test_counts_that_cannot_be_true_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    books = books_of(ScriptedLedger(Granted()), [])
    for _ in range(2):
        async with log_of(books, a_call()) as log:
            log.doubt(("prompt", "cached"))
    assert [message.split(":")[1].split("(")[0] for message in caplog.messages] == [
        " its usage report has more prompt tokens than the call can have used ",
        " its usage report has more cached tokens than prompt tokens, of which they are a part ",
    ]
    labels = {"upstream": "", "model": "m", "type": "prompt"}
    assert books.telemetry.registry.get_sample_value("gateway_usage_implausible_total", labels) == 2


def test_a_draw_that_is_taken_back_cost_nothing() -> None:
    call = a_call()
    for model, cost_nusd in ((PRICED, 0), (call.model, None)):
        draw = log_of(books_of(ScriptedLedger(Granted()), []), call._replace(model=model)).reservation.held
        assert draw.taken_back().cost_nusd == cost_nusd


def test_a_lost_call_is_counted_where_it_was_likely_to_go() -> None:
    books, route = books_of(ScriptedLedger(Granted()), []), Route(upstream="other", model="its-own-name")
    record = log_of(books, a_call(), likely=route).reservation.held.record
    assert (record.upstream, record.routed_model, record.ended) == ("other", "its-own-name", "lost")
    assert log_of(books, a_call()).reservation.held.record.upstream == a_call().model.routes[0].upstream


# ------------------------------------------------------------------------------------------------ limits of upstreams


def place(upstream: str) -> Place:
    window = Window(f"upstream:{upstream}|requests|minute||", f"upstream:{upstream}", "requests", "minute", None, 5, 60)
    return Place(Route(upstream=upstream), None, (Claim(window, 1),))


def full(where: Place | Claim, after_us: int) -> Refused:
    claim = where.claims[0] if isinstance(where, Place) else where
    standing = WindowStatus(claim.window, used=5, reserved=0, reset_us=after_us)
    return Refused(standing, 1, after_us, (SPENT, standing))


ONE, TWO = place("one"), place("two")


class Turns(ScriptedLedger):
    """Answers one draw after the other."""

    def __init__(self, *verdicts: Granted | Refused | StoreUnavailable) -> None:
        super().__init__(None)
        self.verdicts = list(verdicts)
        self.draws: list[Reserve] = []

    def draw(self, draw: Reserve) -> asyncio.Future[Any]:
        self.draws.append(draw)
        self.verdict = self.verdicts.pop(0)
        return super().draw(draw)


async def test_the_first_place_with_room_is_taken() -> None:
    ledger, lines = Turns(full(ONE, 9), Granted((SPENT, SPENT))), list[Record]()
    async with log_of(books_of(ledger, lines), a_call(), places=[ONE, TWO]) as log:
        assert cast(Admission, log.reservation).place is TWO
        assert log.reservation.window_statuses == (SPENT,)  # what an upstream has left is not the caller's concern
    assert [draw.claims for draw in ledger.draws] == [(CLAIM, *ONE.claims), (CLAIM, *TWO.claims)]
    assert [draw.record.upstream for draw in ledger.draws] == ["one", "two"]
    assert ledger.settled[0].claims == (CLAIM, *TWO.claims)


async def test_with_no_room_anywhere_the_first_to_have_some_decides_the_wait() -> None:
    ledger = Turns(full(ONE, 7_000_000), full(TWO, 2_500_000))
    with pytest.raises(UpstreamFailed) as raised:
        async with log_of(books_of(ledger, []), a_call(), places=[ONE, TWO]):
            raise AssertionError
    error = raised.value
    assert (error.status, error.code, error.reason) == (429, "upstream_rate_limited", "upstream_limit")
    assert error.headers["Retry-After-Ms"] == "2500"
    assert error.limit == "upstream:two|requests|minute||"
    assert error.headers["x-gateway-limit"] == "upstream:two; unit=requests; per=minute; raised-by=operator"
    assert not any(name.lower().startswith("x-ratelimit") for name in error.headers)
    assert not ledger.settled


async def test_a_limit_of_the_caller_ends_the_search() -> None:
    spent = Refused(SPENT, 1, None, (SPENT, full(ONE, 1).window_status))
    ledger = Turns(spent, Granted())
    with pytest.raises(QuotaSpent) as raised:
        async with log_of(books_of(ledger, []), a_call(), places=[ONE, TWO]):
            raise AssertionError
    assert len(ledger.draws) == 1
    assert raised.value.headers["x-ratelimit-limit-requests"] == "10"


async def test_another_attempt_draws_on_what_is_not_held() -> None:
    ledger = Turns(Granted((SPENT, SPENT)), Granted(), full(ONE, 3))
    async with log_of(books_of(ledger, []), a_call(), places=[ONE]) as log:
        assert await log.reservation.extend(TWO.claims) is None
        refused = await log.reservation.extend(ONE.claims)
        assert refused is not None
        assert limit_failure(refused).fault is Fault.LIMIT
    assert ledger.settled[0].claims == (CLAIM, *ONE.claims, *TWO.claims)


def with_output(limit: int) -> Call:
    call = a_call()
    return call._replace(params=call.params._replace(output_limit=limit))


class Smaller:
    """A fit that always has a smaller output."""

    def largest(self, statuses: Sequence[WindowStatus] = ()) -> Call:
        return with_output(5)

    def claims(self, smaller: Call) -> tuple[Claim, ...]:
        return (CLAIM,)


class NoQueue:
    """A ticket of a call that asks at once."""

    has_waited = False

    async def admit(self, attempt: Callable[[], Any]) -> Sequence[Refused]:
        refusals: Sequence[Refused] = await attempt()
        return refusals

    def granted(self, statuses: object) -> None: ...

    def ended(self, tokens: int, windows: object) -> None: ...

    def taken_back(self, windows: object) -> None: ...


async def test_a_call_that_waits_again_keeps_its_output_or_is_refused() -> None:
    """Its attempts send the output limit of the first draw."""
    spent = Refused(SPENT, 1, None, (SPENT, full(ONE, 1).window_status))
    given_back = Granted()
    ledger = Turns(Granted((SPENT, SPENT)), given_back, spent, Granted((SPENT, SPENT)))
    call = with_output(10)
    fit, ticket = cast(Any, Smaller()), cast(Any, NoQueue())
    reservation = Admission(cast(Ledger, ledger), call, (CLAIM,), places=[ONE], ticket=ticket, fit=fit)
    async with CallLog(books_of(ledger, []), call, reservation):
        with pytest.raises(QuotaSpent):
            await reservation.admit_again([ONE], ticket, lambda place: None)
        assert reservation.call is call


async def test_no_client_repeats_a_call_for_which_no_money_is_left() -> None:
    """Also within two minutes of the window's end, when an SDK would wait for it: the same as after an attempt."""
    window = ONE.claims[0].window._replace(unit="usd", per="day", starts="2026-01-01")
    spent = Refused(WindowStatus(window, window.limit, 0, 60_000_000), 1, None)
    with pytest.raises(UpstreamFailed) as raised:
        async with log_of(books_of(Turns(spent), []), a_call(), places=[ONE]):
            raise AssertionError
    assert raised.value.code == "upstream_quota_spent"
    assert raised.value.headers["X-Should-Retry"] == "false"
    assert raised.value.headers["Retry-After"] == "60"


async def test_a_fallback_draws_on_its_upstream_where_the_first_model_had_no_route() -> None:
    """All of its routes have an open circuit, so the call is reserved without a place."""
    ledger = Turns(Granted((SPENT,)), full(TWO, 3))
    async with log_of(books_of(ledger, []), a_call()) as log:
        refused = await log.reservation.extend(TWO.claims)
        assert refused is not None
        assert limit_failure(refused).fault is Fault.LIMIT


async def test_what_an_unavailable_store_may_have_granted_is_held() -> None:
    ledger = Turns(Granted((SPENT, SPENT)), StoreUnavailable("away"))
    with pytest.raises(Unavailable):
        async with log_of(books_of(ledger, []), a_call(), places=[ONE]) as log:
            await log.reservation.extend(TWO.claims)
    assert ledger.settled[0].claims == (CLAIM, *ONE.claims, *TWO.claims)


async def test_a_client_that_leaves_while_a_lease_is_extended_leaves_nothing_behind() -> None:
    ledger = ScriptedLedger(Granted((SPENT, SPENT)))

    async def call() -> None:
        async with log_of(books_of(ledger, []), a_call(), places=[ONE]) as log:
            ledger.verdict = None
            await log.reservation.extend(TWO.claims)

    calling = asyncio.ensure_future(call())
    await until(lambda: ledger.verdict is None)
    for _ in range(2):
        calling.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not ledger.settled  # what is held is not known yet
    assert ledger.drawing is not None
    ledger.drawing.set_result(Granted())
    await asyncio.wait([calling])
    assert calling.cancelled()
    assert ledger.settled[0].claims == (CLAIM, *ONE.claims, *TWO.claims)
