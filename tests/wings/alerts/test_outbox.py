"""The outbox: retries messages to the webhook, is bounded, and does not block the worker."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.wings.alerts import outbox, policy
from gateway.wings.alerts.outbox import Outbox
from gateway.wings.alerts.webhook import PostResult
from tests.fakes.scripted import until
from tests.patience import at_least

TAKEN = PostResult(200, "it answers 200")
BUSY = PostResult(503, "it answers 503")
WRONG = PostResult(404, "it answers 404")
SILENT = PostResult(None, "no answer within 10 s")


class FakeWebhook:
    """A webhook: answers from the script, then 200 to everything; keeps all bodies."""

    def __init__(self, *script: PostResult) -> None:
        self.script = list(script)
        self.posted: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = self.most = 0

    async def __call__(self, body: bytes) -> PostResult:
        self.posted.append(json.loads(body)["text"])
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1
        return self.script.pop(0) if self.script else TAKEN


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "PAUSES_S", (0.001,) * 11)


@pytest.fixture
async def made() -> AsyncIterator[tuple[FakeWebhook, Outbox]]:
    webhook = FakeWebhook()
    box = Outbox(webhook)
    yield webhook, box
    await box.close(0)


def put(box: Outbox, *names: str) -> None:
    for name in names:
        box.put(name, {"text": name})


async def test_what_is_taken_is_done(made: tuple[FakeWebhook, Outbox]) -> None:
    webhook, box = made
    put(box, "a", "b")
    assert box.waiting == ("a", "b")
    await until(lambda: not box.waiting)
    assert (webhook.posted, box.take_done(), box.take_done()) == (["a", "b"], {"a", "b"}, set())


@pytest.mark.parametrize(
    "failure", [BUSY, SILENT, PostResult(429, "it answers 429"), PostResult(500, "it answers 500")]
)
async def test_what_may_pass_is_tried_again(
    made: tuple[FakeWebhook, Outbox], failure: PostResult, caplog: pytest.LogCaptureFixture
) -> None:
    webhook, box = made
    webhook.script = [failure] * 3
    put(box, "a")
    await until(lambda: not box.waiting)
    assert webhook.posted == ["a"] * 4
    assert box.take_done() == {"a"}
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the alert webhook fails ({failure.detail})", "the alert webhook takes what is posted again"]


async def test_what_would_be_said_again_is_given_up_at_once(
    made: tuple[FakeWebhook, Outbox], caplog: pytest.LogCaptureFixture
) -> None:
    webhook, box = made
    webhook.script = [WRONG]
    put(box, "a")
    await until(lambda: not box.waiting)
    assert webhook.posted == ["a"]
    assert box.take_done() == {"a"}
    (last,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "does not take it (it answers 404)" in last.getMessage()


async def test_attempts_are_bounded(made: tuple[FakeWebhook, Outbox]) -> None:
    webhook, box = made
    webhook.script = [BUSY] * 100
    put(box, "a")
    await until(lambda: not box.waiting)
    assert webhook.posted == ["a"] * 12
    assert box.take_done() == {"a"}


async def test_a_webhook_that_hangs_holds_only_a_few_attempts(made: tuple[FakeWebhook, Outbox]) -> None:
    webhook, box = made
    webhook.gate.clear()
    put(box, *map(str, range(20)))
    await until(lambda: len(webhook.posted) == outbox.AT_ONCE)
    await at_least(0.01)
    assert (len(webhook.posted), len(box.waiting)) == (outbox.AT_ONCE, 20)
    webhook.gate.set()
    await until(lambda: not box.waiting)
    assert webhook.most == outbox.AT_ONCE
    assert sorted(webhook.posted, key=int) == [str(number) for number in range(20)]


async def test_of_too_many_the_oldest_is_dropped(
    made: tuple[FakeWebhook, Outbox], caplog: pytest.LogCaptureFixture
) -> None:
    webhook, box = made
    webhook.gate.clear()
    names = [str(number) for number in range(outbox.MAX_WAITING + 3)]
    put(box, *names)
    assert box.waiting == tuple(names[3:])
    assert box.take_done() == {"0", "1", "2"}  # other workers do not send them either
    assert len([record for record in caplog.records if "is not posted" in record.getMessage()]) == 3


async def test_messages_sent_by_another_worker_are_dropped(made: tuple[FakeWebhook, Outbox]) -> None:
    webhook, box = made
    webhook.gate.clear()
    put(box, *"abcde")
    await until(lambda: len(webhook.posted) == outbox.AT_ONCE)
    box.drop("e")
    box.drop("unknown")
    webhook.gate.set()
    await until(lambda: not box.waiting)
    assert box.take_done() == set("abcd")
    assert "e" not in webhook.posted


async def test_a_message_that_cannot_be_written_keeps_no_others_from_being_posted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken: list[str] = []

    async def post(body: bytes) -> PostResult:
        text = json.loads(body)["text"]
        text.encode()  # a lone surrogate raises
        taken.append(text)
        return TAKEN

    box = Outbox(post)
    put(box, "\ud800", "b")
    await until(lambda: not box.waiting)
    assert (taken, box.take_done()) == (["b"], {"\ud800", "b"})
    (record,) = caplog.records
    assert record.getMessage().startswith("an alert is not posted: ")
    await box.close(0)


async def test_the_end_is_one_more_try_for_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "PAUSES_S", (600,) * 11)
    webhook = FakeWebhook(BUSY, BUSY, BUSY)
    box = Outbox(webhook)
    put(box, "a", "b")
    await until(lambda: len(webhook.posted) == 2)
    await box.close(5)
    assert sorted(webhook.posted) == ["a", "a", "b", "b"]
    assert len(box.waiting) == 1  # the third refusal
    assert box.take_done() == {"a", "b"} - set(box.waiting)


async def test_the_end_does_not_wait_for_a_webhook_that_hangs(made: tuple[FakeWebhook, Outbox]) -> None:
    webhook, box = made
    webhook.gate.clear()
    put(box, "a")
    await until(lambda: webhook.posted)
    async with asyncio.timeout(5):
        await box.close(0.01)
    assert box.waiting == ("a",)
    assert box.take_done() == set()


async def test_a_message_keeps_its_text_from_when_it_was_put(made: tuple[FakeWebhook, Outbox]) -> None:
    webhook, box = made
    message: dict[str, Any] = {"text": "Zoë"}
    box.put("a", message)
    message["text"] = "other"
    await until(lambda: not box.waiting)
    assert webhook.posted == ["Zoë"]
