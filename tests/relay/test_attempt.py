"""Bugs of the gateway and ends at unusual moments: the call is settled in each case."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway import relay
from gateway.api.capabilities import Adaptation
from gateway.config import Price
from gateway.formats.gemini.reader import TIER_HEADER
from gateway.formats.table import FORMATS
from gateway.records import Endpoint, Fault, Granted, Record, Usage
from gateway.relay.attempt import Attempt
from gateway.relay.charge import SentRequest
from gateway.relay.client_stream import ClientStream
from gateway.relay.disconnect import client_left
from gateway.relay.exchange import KEPT_SPACE, Exchange, ReadExchange, no_client, read_plain, read_whole
from gateway.tasks import Tasks
from gateway.upstream.connection import Head
from gateway.wings.stored.layers import KeptAnswer
from tests.accounting.test_call_log import ScriptedLedger, a_call, books_of, log_of
from tests.fakes import responses_api as api

ALL = Usage(3, 14, source="estimated")
"""The reservation: the prompt and 7 tokens for each of two candidates."""


class Scenario:
    """A call with a price, before the upstream answers."""

    def __init__(self) -> None:
        self.ledger = ScriptedLedger(Granted(()))
        self.records: list[Record] = []
        self.tasks = Tasks()
        call = a_call()
        price = Price.model_validate({"input": 1, "output": 2})
        self.call = call._replace(model=call.model.model_copy(update={"price": price}))
        self.log = log_of(books_of(self.ledger, self.records), self.call)
        self.client = ClientStream(cast(Any, None), tuple, 0)

    def attempt(self, **facts: Any) -> Attempt:
        """An instance with these attributes only: access to any other fails."""
        return cast(
            Attempt,
            SimpleNamespace(
                call=self.call,
                riders=(),
                upload=None,
                sent=SentRequest(self.call),
                log=self.log,
                client=self.client,
                tasks=self.tasks,
                **{"readers": (), **facts},
            ),
        )

    @property
    def received(self) -> tuple[Any, ...]:
        (record,) = self.records
        assert len(self.ledger.settled) == 1
        return record.status, record.ended, record.usage, record.cost_nusd


@pytest.fixture
async def scenario() -> Scenario:
    return Scenario()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_call_that_cannot_be_read_on_is_closed(
    scenario: Scenario, caplog: pytest.LogCaptureFixture, *, is_cancelled: bool
) -> None:
    """The task is cancelled before its first step, or fails."""
    this = scenario.attempt()
    async with scenario.log:
        exchange = Exchange(this)
        client_left(exchange)
    assert scenario.records == []
    if not is_cancelled:
        exchange.ended(None)
        await scenario.tasks.wait_until_idle(5)
    await scenario.tasks.cancel_all()
    assert scenario.received == (499, "client_gone", ALL, 31_000)


async def test_after_an_error_of_the_gateway_a_sent_call_is_charged_its_reservation(scenario: Scenario) -> None:
    class Connection:
        def send(self, request: Any, receiver: Exchange, upload: Any = None) -> None:
            raise RuntimeError("a fault of ours")

        def abort(self) -> None:
            self.is_aborted = True

    connection = Connection()

    async def acquire(*, is_fresh: bool) -> Connection:
        return connection

    this = scenario.attempt(pool=SimpleNamespace(acquire=acquire))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        async with scenario.log:
            await relay.attempt(this)
    assert connection.is_aborted
    assert scenario.received == (500, "error", ALL, 31_000)


async def test_nothing_of_a_kept_answer_is_passed_on_before_it_is_bound(scenario: Scenario) -> None:
    output = [api.message("All is said, and much of it twice.")]
    text = api.written(api.events(output, api.response(output)))
    passed, bound, may_bind = bytearray(), list[tuple[str, int | None]](), asyncio.Event()

    class Client:
        is_congested = False

        def write(self, data: bytes) -> bool:
            passed.extend(data)
            return False

    class Kept(KeptAnswer):
        async def bind(self, kept_id: str, usage: Usage | None, items: Sequence[str] = ()) -> None:
            await may_bind.wait()
            bound.append((kept_id, usage and usage.total_tokens))

    call = scenario.call._replace(endpoint="responses", params=scenario.call.params._replace(stream=True))
    spec = FORMATS["responses"]
    call = call._replace(params=call.params._replace(is_kept=True))
    kept = Kept(cast(Any, SimpleNamespace(way=Adaptation.PLAIN)), cast(Any, None))
    upstream = cast(Any, SimpleNamespace(timeouts=SimpleNamespace(idle_s=60)))
    pool, route = cast(Any, SimpleNamespace(hidden=())), call.model.routes[0]
    this = kept.request(
        Attempt(
            call, route, pool, upstream, SentRequest(call), scenario.log, scenario.client, scenario.tasks, spec,
            cast(Any, None), 10_000, answered=lambda: None,
        )
    )  # fmt: skip
    this = this._replace(client=ClientStream(lambda headers: cast(Any, Client()), tuple, 0))
    exchange = Exchange(this)
    exchange.head_received(Head(200, (("content-type", "text/event-stream"),)))
    for at in range(0, len(text), 100):
        exchange.body_received(text[at : at + 100])
        await asyncio.sleep(0)
    assert (bytes(passed), bound) == (b"", [])
    may_bind.set()
    await exchange.until_bound()
    assert bound == [("resp_1", None)]
    assert text == bytes(passed) + exchange.scan.last(Usage())  # type: ignore[union-attr]
    await kept.streamed(cast(Any, exchange.scan), Usage(30, 12))
    await scenario.tasks.wait_until_idle(5)
    assert bound[-1] == ("resp_1", 42)


@pytest.mark.parametrize(
    ("named", "header", "served"),
    [
        ({}, "flex", "flex"),
        ({}, "Standard", "standard"),
        ({"serviceTier": "standard"}, "priority", "standard"),  # the body's own word wins
        ({"serviceTier": "priority"}, None, "priority"),
        ({}, None, ""),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_tier_of_a_head_is_charged_where_the_usage_names_none(
    scenario: Scenario, named: dict[str, str], header: str | None, served: str, *, is_stream: bool
) -> None:
    """ai.google.dev, "Priority inference": `x-gemini-service-tier` names it."""
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 2, **named}
    candidate = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP", "index": 0}
    said = json.dumps({"candidates": [candidate], "usageMetadata": usage}).encode()
    params = scenario.call.params._replace(stream=is_stream)
    call = scenario.call._replace(endpoint="generate_content", params=params)
    this = scenario.attempt(
        format=FORMATS["generate_content"], route=None, max_response_bytes=10_000, hidden=(),
        answered=lambda: None,
        upstream=SimpleNamespace(timeouts=SimpleNamespace(idle_s=60)),
    )  # fmt: skip
    this.call, this.sent = call, SentRequest(call)  # type: ignore[misc]
    this.client = ClientStream(lambda headers: no_client(()), tuple, 0)  # type: ignore[misc]
    exchange = Exchange(this)
    of_tier = () if header is None else ((TIER_HEADER, header),)
    kind = "text/event-stream" if is_stream else "application/json"
    exchange.head_received(Head(200, (("content-type", kind), *of_tier)))
    exchange.body_received(b"data: " + said + b"\n\n" if is_stream else said)
    exchange.ended(None)
    exchange.pass_rest()
    charged = exchange.charge_stream() if is_stream else read_plain(exchange, exchange.take_body(), None).charged
    assert (charged.usage.variant, charged.usage.source) == (served, "reported")


@pytest.mark.parametrize(("status", "encoding"), [(200, ""), (200, "gzip"), (500, "")])
async def test_readers_get_the_bytes_of_a_good_answer(scenario: Scenario, status: int, encoding: str) -> None:
    body, read = b'{"object": "chat.completion", "choices": []}', bytearray()
    exchange = ReadExchange(scenario.attempt(readers=(read.extend,), format=FORMATS["chat"], max_response_bytes=1000))
    exchange.head_received(Head(status, (("content-encoding", encoding),) if encoding else ()))
    sent = gzip.compress(body) if encoding else body
    for at in range(0, len(sent), 10):
        exchange.body_received(sent[at : at + 10])
    assert bytes(read) == (body if status == 200 else b"")
    assert exchange.take_body() == body


def events(*values: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def chunk(text: str, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **more}


LONG = "word " * 50
EARLY = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
TRUE = {"prompt_tokens": 30, "completion_tokens": 60, "total_tokens": 90}
OF_MESSAGE = (
    {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": LONG}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    {"type": "message_stop"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("endpoint", "answer", "at_least", "source"),
    [
        ("chat", events(chunk("a", usage=EARLY), chunk(LONG, "stop")), 50, "estimated"),
        ("chat", events(chunk(LONG, "stop", usage=TRUE), {"choices": [], "usage": EARLY}), 60, "reported"),
        ("chat", events(chunk(LONG), {"error": {"message": "no", "type": "invalid_request_error"}}), 50, "estimated"),
        ("chat", events({"error": {"message": "no", "type": "invalid_request_error"}}), 0, "none"),
        ("chat", events(chunk(LONG, "stop"), {"choices": [], "usage": TRUE}), 60, "reported"),
        ("messages", events(*OF_MESSAGE), 50, "estimated"),
    ],
)
async def test_a_stream_for_a_plain_call_is_charged_as_a_stream(
    scenario: Scenario, endpoint: Endpoint, answer: bytes, at_least: int, source: str
) -> None:
    """A report counts at the end of an answer only, and output before an error costs."""
    this = scenario.attempt(
        format=FORMATS[endpoint], max_response_bytes=10_000, hidden=(), route=SimpleNamespace(upstream="u")
    )
    params = scenario.call.params._replace(n=1, best_of=1)
    this.call = scenario.call._replace(endpoint=endpoint, params=params)  # type: ignore[misc]
    this.sent = SentRequest(this.call)  # type: ignore[misc]
    exchange = Exchange(this)
    exchange.head_received(Head(200, (("content-type", "text/event-stream"),)))
    for at in range(0, len(answer), 7):
        exchange.body_received(answer[at : at + 7])
    exchange.ended(None)
    usage = read_whole(exchange, exchange.take_body(), None).charged.usage
    assert (usage.source, usage.completion_tokens >= at_least) == (source, True)


async def made_here(key: str, make: Callable[..., Any], body: bytes, *arguments: Any) -> Any:
    return make(body, *arguments)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("body", [b'{"choices": []}', events(chunk("Hi", "stop"))])
async def test_much_blank_space_before_an_answer_is_not_kept(
    scenario: Scenario, body: bytes, *, is_stream: bool
) -> None:
    """Upstreams send it to keep connections open; a copy of all of it for each piece took more time with each."""
    this = scenario.attempt(
        format=FORMATS["chat"], max_response_bytes=10_000, hidden=(), answered=lambda: None,
        upstream=SimpleNamespace(timeouts=SimpleNamespace(idle_s=60)), route=SimpleNamespace(upstream="u"),
        make=made_here,
    )  # fmt: skip
    params = scenario.call.params._replace(stream=is_stream)
    this.call = scenario.call._replace(endpoint="chat", params=params)  # type: ignore[misc]
    this.client = ClientStream(lambda headers: no_client(()), tuple, 0)  # type: ignore[misc]
    exchange, endless = Exchange(this), Exchange(this)
    for each in (exchange, endless):
        each.head_received(Head(200, (("content-type", "application/json"),)))
    for _ in range(5):
        exchange.body_received(b" \n" * 500)
        assert len(exchange.body) <= KEPT_SPACE
    for at in range(len(body)):
        exchange.body_received(body[at : at + 1])
    exchange.ended(None)
    assert (exchange.scan is not None) == (is_stream and body.startswith(b"data"))
    if exchange.scan is None:
        whole = exchange.take_body()
        whole = whole if exchange.gathered is None else await exchange.put_together(whole)
        assert json.loads(whole)["choices"] is not None
    for _ in range(100):
        endless.body_received(b" \n" * 500)
    assert endless.problem is not None
    assert endless.problem.fault is Fault.TOO_LARGE


@pytest.mark.parametrize("at_once", [7000, 10_000_000])
async def test_a_long_answer_is_read_while_it_arrives(scenario: Scenario, at_once: int) -> None:
    """Built at its end, the probabilities of 16,000 tokens held up all other calls for two seconds."""
    built = list[int]()

    def facts(body: bytes) -> Any:
        built.append(len(body))
        return chat.facts(body)

    chat = FORMATS["chat"]
    this = scenario.attempt(format=replace(chat, facts=facts), max_response_bytes=10_000_000, hidden=())
    this.call = scenario.call._replace(endpoint="chat")  # type: ignore[misc]
    exchange = Exchange(this)
    choice = {"message": {"content": "w"}, "logprobs": {"content": [{"token": "w"}] * 20_000}, "finish_reason": "stop"}
    body = json.dumps({"model": "m", "choices": [choice], "usage": TRUE}).encode()
    exchange.head_received(Head(200, (("content-type", "application/json"),)))
    for at in range(0, len(body), at_once):
        exchange.body_received(body[at : at + at_once])
    exchange.ended(None)
    await exchange.wait_until_over()
    read = read_whole(exchange, exchange.take_body(), None)
    assert (read.charged.usage[:2], read.charged.usage.source, read.model) == ((30, 60), "reported", "m")
    assert (built, exchange.take_body()) == ([], body)


async def test_text_of_a_long_answer_is_counted_elsewhere_without_a_client_too(scenario: Scenario) -> None:
    made = list[int]()

    async def make(key: str, function: Callable[..., Any], body: bytes, *arguments: Any) -> Any:
        made.append(len(body))
        return function(body, *arguments)

    this = scenario.attempt(format=FORMATS["chat"], max_response_bytes=10_000_000, hidden=(), make=make, leave=bool)
    this.call = scenario.call._replace(endpoint="chat")  # type: ignore[misc]
    this.sent = SentRequest(this.call)  # type: ignore[misc]
    exchange = Exchange(this)
    choice = {"message": {"content": "word " * 30_000}, "finish_reason": "stop"}
    body = json.dumps({"model": "m", "choices": [choice]}).encode()
    exchange.head_received(Head(200, (("content-type", "application/json"),)))
    async with scenario.log:
        exchange.body_received(body)
        client_left(exchange)
    exchange.ended(None)
    assert await scenario.tasks.wait_until_idle(5)
    assert made == [len(body)]
    status, ended, usage, _ = scenario.received
    assert (status, ended, usage.source, usage.completion_tokens) == (499, "client_gone", "estimated", 60_001)
