"""What an upstream has begun is charged also where its client leaves while the ledger is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config import Route
from gateway.errors import InvalidRequest
from gateway.formats import token_rule
from gateway.pipeline import Services
from gateway.records import Granted, Key, Usage
from gateway.relay.charge import Ending
from gateway.upstream.router import Router
from gateway.wings.realtime import formats as realtime
from gateway.wings.realtime import opening
from gateway.wings.realtime.accounts import MAX_OPEN, NextCall, ResponseAccounts, SessionEnd
from gateway.wings.realtime.transcription import MAX_UNREPORTED
from tests.accounting.test_call_log import CLAIM, ScriptedLedger, a_call, books_of
from tests.fakes.scripted import until
from tests.keys.conftest import Scenario, scenario, settings

__all__ = ["scenario"]

CLIENT_GONE = SessionEnd(200, "client_gone", Ending.STOPPED)
ITEM = {"item_id": "item_1", "delta": "one two"}
DELTA = "conversation.item.input_audio_transcription.delta"
BEGINNINGS: dict[str, Callable[[ResponseAccounts], Awaitable[None]]] = {
    "a response": lambda accounts: accounts.began("resp_1"),
    "a transcription": lambda accounts: accounts.transcriptions.saw(DELTA, ITEM),
    "a response whose beginning was not seen": lambda accounts: accounts.ended(
        realtime.ResponseEnd("resp_1", None, is_failed=False)
    ),
}


@pytest.mark.parametrize("name", BEGINNINGS)
async def test_what_has_begun_is_charged_if_the_client_leaves_during_its_reservation(name: str) -> None:
    ledger, lines = ScriptedLedger(None), []  # type: ignore[var-annotated]

    async def make_call(number: int, *_: Any, **__: Any) -> NextCall:
        return NextCall(a_call()._replace(id=f"req_1-{number}", endpoint="realtime"), (CLAIM,))

    accounts = ResponseAccounts(
        books_of(ledger, lines), Route(upstream="up"), make_call, token_rule.counting(None),
        has_unknown_transcriber=True,
    )  # fmt: skip
    leaving = asyncio.ensure_future(BEGINNINGS[name](accounts))
    await until(lambda: ledger.drawing is not None)
    leaving.cancel()
    await asyncio.sleep(0)
    assert ledger.drawing is not None
    ledger.drawing.set_result(Granted())
    await asyncio.wait([leaving])
    accounts.close(CLIENT_GONE)
    assert not ledger.voided
    (settled,) = ledger.settled
    assert settled.record.usage.total_tokens > 0


async def test_a_speech_whose_answer_was_asked_for_is_one_response() -> None:
    """An upstream has one response at a time in a conversation, so the client's own one is the answer."""
    ledger, lines = ScriptedLedger(Granted()), []  # type: ignore[var-annotated]

    async def make_call(number: int, *_: Any, **__: Any) -> NextCall:
        return NextCall(a_call()._replace(id=f"req_1-{number}", endpoint="realtime"), (CLAIM,))

    accounts = ResponseAccounts(books_of(ledger, lines), Route(upstream="up"), make_call, token_rule.counting(None))
    await accounts.ready()
    accounts.saw({"type": "input_audio_buffer.speech_stopped"})
    await accounts.asked(None, "event_1")
    await accounts.began("resp_1")
    await accounts.ready()
    await accounts.ended(realtime.ResponseEnd("resp_1", Usage(10, 5, source="reported"), is_failed=False))
    accounts.close(CLIENT_GONE)
    assert [settled.record.usage.total_tokens for settled in ledger.settled] == [15]
    assert [held.record.id for held in ledger.voided] == ["req_1-2"]


async def test_an_upstream_that_answers_nothing_is_asked_for_so_much_at_once() -> None:
    """The end of a session deals with all that is open in one turn of the event loop."""
    ledger, lines = ScriptedLedger(Granted()), []  # type: ignore[var-annotated]

    async def make_call(number: int, *_: Any, **__: Any) -> NextCall:
        return NextCall(a_call()._replace(id=f"req_1-{number}", endpoint="realtime"), (CLAIM,))

    accounts = ResponseAccounts(
        books_of(ledger, lines), Route(upstream="up"), make_call, token_rule.counting(None),
        has_unknown_transcriber=True,
    )  # fmt: skip
    sends: dict[str, Callable[[str], Awaitable[None] | None]] = {
        realtime.CREATE: lambda name: accounts.asked(None, name),
        realtime.UPDATE: lambda name: accounts.transcriptions.transcribers.asked(name, None, is_change=False),
        realtime.COMMIT: accounts.transcriptions.commits,
    }
    refused = dict.fromkeys(sends, 0)
    for kind, send in sends.items():
        for number in range(2 * MAX_OPEN):
            try:
                accounts.refuse_unanswered(kind)
            except InvalidRequest:
                refused[kind] += 1
            else:
                sent = send(f"{kind}-{number}")
                await (sent or asyncio.sleep(0))
    assert refused == {realtime.CREATE: MAX_OPEN, realtime.UPDATE: MAX_OPEN, realtime.COMMIT: 0}
    before = len(ledger.settled)
    accounts.close(CLIENT_GONE)
    assert (before, len(ledger.settled)) == (MAX_UNREPORTED, 2 * MAX_UNREPORTED + MAX_OPEN)


async def test_a_tag_has_its_own_window_in_the_month_that_begins_in_a_session(scenario: Scenario) -> None:
    scenario.config = settings(quotas=[{"requests": 5, "per": "month", "label": "project"}])
    cache = scenario.book()
    call = a_call()._replace(started=scenario.now, tags="project=web", endpoint="realtime")
    parts = SimpleNamespace(
        router=Router(scenario.config, lambda *_: None),
        key_cache=cache,
        clock=SimpleNamespace(now=lambda: scenario.now),
    )

    async def admit() -> Key:
        return call.key

    await cache.know(call)
    make = opening._calls(call, call.model.routes[0], 0, cast(Services, parts), admit)
    for has_begun in (False, True):
        made = await make(1, 10, None, has_begun=has_begun)
        assert [claim.window.scope for claim in made.claims] == ["tag:project=web"]
        scenario.now += 31 * 86_400
