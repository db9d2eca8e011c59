"""Faults of ours, and ends in awkward moments: the call is accounted for all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway import relay
from gateway.accounting.lease import Lease
from gateway.config import Price
from gateway.records import Granted, Record, Usage
from gateway.relay.attempt import Attempt
from gateway.relay.client_stream import ClientStream
from gateway.relay.disconnect import client_left
from gateway.relay.exchange import Exchange
from gateway.relay.sent_request import SentRequest
from gateway.tasks import Tasks
from tests.accounting.test_lease import CLAIM, ScriptedLedger, a_call, books_of

ALL = Usage(3, 14, source="estimated")
"""What the call may use: its prompt, and 7 tokens for each of two candidates."""


class Scene:
    """A priced call at an upstream that has not answered yet."""

    def __init__(self) -> None:
        self.ledger = ScriptedLedger(Granted(()))
        self.records: list[Record] = []
        self.tasks = Tasks()
        call = a_call()
        price = Price.model_validate({"input": 1, "output": 2})
        self.call = call._replace(model=call.model.model_copy(update={"price": price}))
        self.lease = Lease(books_of(self.ledger, self.records), self.call, (CLAIM,))
        self.outlet = ClientStream(cast(Any, None), tuple, 0)

    def attempt(self, **facts: Any) -> Attempt:
        """One without what is not named, so that asking for it is a fault."""
        return cast(
            Attempt, SimpleNamespace(call=self.call, request=[], upload=None, sent=SentRequest(self.call), **facts)
        )

    @property
    def told(self) -> tuple[Any, ...]:
        (record,) = self.records
        assert len(self.ledger.settled) == 1
        return record.status, record.ended, record.usage, record.cost_nusd


@pytest.fixture
async def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_call_that_cannot_be_read_on_is_closed(
    scene: Scene, caplog: pytest.LogCaptureFixture, *, is_cancelled: bool
) -> None:
    """Be it that the task was cancelled before its first step, or that it dies."""
    this = scene.attempt()
    async with scene.lease as lease:
        exchange = Exchange(this, scene.outlet, lease, scene.tasks)
        client_left(this, exchange, lease, scene.tasks)
    assert scene.records == []
    if not is_cancelled:
        exchange.ended(None)
        await scene.tasks.wait_until_idle(5)
    await scene.tasks.cancel_all()
    assert scene.told == (499, "client_gone", ALL, 31_000)


async def test_after_an_error_of_the_gateway_a_sent_call_is_charged_its_reservation(scene: Scene) -> None:
    class Connection:
        def send(self, request: Any, receiver: Exchange, upload: Any = None) -> None:
            raise RuntimeError("a fault of ours")

        def abort(self) -> None:
            self.is_aborted = True

    connection = Connection()

    async def acquire(*, is_fresh: bool) -> Connection:
        return connection

    this = scene.attempt(pool=SimpleNamespace(acquire=acquire))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        async with scene.lease as lease:
            await relay.attempt(this, lease, scene.outlet, scene.tasks)
    assert connection.is_aborted
    assert scene.told == (500, "error", ALL, 31_000)
