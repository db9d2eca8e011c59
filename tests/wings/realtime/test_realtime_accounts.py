"""What an upstream has begun is charged also where its client leaves while the ledger is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.config import Route
from gateway.formats import token_rule
from gateway.formats.openai import realtime
from gateway.records import Granted
from gateway.relay.charge import Ending
from gateway.wings.realtime.accounts import NextCall, ResponseAccounts, SessionEnd
from tests.accounting.test_call_log import CLAIM, ScriptedLedger, a_call, books_of
from tests.fakes.scripted import until

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
    accounts.close(SessionEnd(200, "client_gone", Ending.STOPPED))
    assert not ledger.voided
    (settled,) = ledger.settled
    assert settled.record.usage.total_tokens > 0
