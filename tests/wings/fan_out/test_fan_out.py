"""A call carried as several upstream requests is settled once, for every kind of end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.accounting.call_log import CallLog
from gateway.api.json_document import parse
from gateway.records import Call, Granted, Record, Usage
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientStream
from gateway.tasks import Tasks, cut_off
from gateway.wings.fan_out.prompts import PromptByPrompt
from tests.accounting.test_call_log import ScriptedLedger, a_call, books_of, log_of
from tests.fakes.scripted import until

PROMPTS = 3


class Upstream:
    """Answers no prompt; each has a cost when it is cancelled, or when its client leaves."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left: list[tuple[Any, ...]] = []
        self.fault: Exception | None = None

    async def carry_one(self, call: Call, share: CallLog, side: ClientStream) -> Answer | Streamed:
        prompt = call.params.document.members["prompt"]
        self.asked.append(prompt)
        if self.fault is not None and prompt == "a":
            raise self.fault
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            self.left.append(cancelled.args)
            side.hold(1000, lambda: None)  # data that arrived before the cut
            share.close(status=0, usage=Usage(2, 3, source="estimated"), ended="client_gone")
            raise
        raise AssertionError


class Scenario:
    """A call of three prompts under way."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.held: list[int] = []
        self.upstream = Upstream()
        self.tasks = Tasks()
        self.ledger = ScriptedLedger(Granted(()))

    async def run(self) -> None:
        call = a_call()
        document = parse(b'{"model": "m", "prompt": ["a", "b", "c"], "max_tokens": 7}')
        call = call._replace(params=call.params._replace(document=document, prompts=PROMPTS))
        books = books_of(self.ledger, self.records)
        async with log_of(books, call) as log:
            client = ClientStream(cast(Any, None), tuple, 0, hold=lambda size, _: self.held.append(size) is None)
            await PromptByPrompt(call, log, client, self.upstream.carry_one, {}, books, cast(Any, None), 1000).run(
                self.tasks
            )


@pytest.fixture
def scenario() -> Scenario:
    return Scenario()


async def begin(scenario: Scenario) -> asyncio.Task[None]:
    running = scenario.tasks.spawn(scenario.run(), "call")
    await until(lambda: len(scenario.upstream.asked) == PROMPTS)
    return running


def received(scenario: Scenario) -> tuple[Any, ...]:
    (record,) = scenario.records
    assert len(scenario.ledger.settled) == 1
    return record.status, record.ended, record.usage


SPENT = Usage(2 * PROMPTS, 3 * PROMPTS, source="estimated")


async def test_a_client_that_leaves_is_gone_for_every_prompt(scenario: Scenario) -> None:
    running = await begin(scenario)
    running.cancel()
    await asyncio.wait([running])
    await until(lambda: bool(scenario.records))
    assert received(scenario) == (499, "client_gone", SPENT)
    assert scenario.upstream.left == [()] * PROMPTS
    assert scenario.held == [1000] * PROMPTS, "it is given back when the call is closed"


async def test_a_call_that_a_gateway_cuts_off_is_cut_off_in_every_prompt(scenario: Scenario) -> None:
    running = await begin(scenario)
    cut_off(running)
    await asyncio.wait([running])
    await until(lambda: bool(scenario.records))
    assert received(scenario) == (503, "error", SPENT)
    assert len(set(scenario.upstream.left)) == 1
    assert scenario.upstream.left[0] != ()


async def test_a_fault_of_ours_leaves_no_prompt_under_way(scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    scenario.upstream.fault = RuntimeError("a fault of ours")
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await scenario.run()
    assert len(scenario.tasks) == 0
    status, ended, usage = received(scenario)
    assert (status, ended) == (500, "error")
    assert usage == Usage(2 * (PROMPTS - 1), 3 * (PROMPTS - 1), source="estimated")
