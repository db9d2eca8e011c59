"""Charged is at least what was billed, as far as it arrived, whenever a client leaves or an upstream breaks off.

Each way of a call (tests/field/usage_ways.py) is cut behind each of its upstream's events, and each report is left out,
or counts nothing. What an upstream generated unseen is bounded in docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, Wire
from tests.field.usage_answers import speech_bytes
from tests.field.usage_shapes import Counts, Shape
from tests.field.usage_ways import ALL_WAYS, QUOTAS, Quotas, Way, configured, model_of
from tests.flows.client import Answer, Raw
from tests.flows.gateway_process import Gateway, eventually, key, secret

WORDS = (b"Hi", b"there")
"""The generated text of each way; it may come in two events, and again in the last."""
FREE = frozenset({"moderations"})
"""Formats that are free unless the upstream reports otherwise (openai.com/api/pricing: moderations are free)."""
STREAMED = [
    name for name, way in ALL_WAYS.items() if way.upstream.stream is not None and way.upstream.stream != speech_bytes
]
PLAIN = [name for name, way in ALL_WAYS.items() if way.upstream.plain is not None]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    keys = [key(model_of(name), quotas=QUOTAS, max_parallel=9) for name in ALL_WAYS]
    return start_shared_gateway(configured(shared_upstream.url, keys))


class Sink(Wire):
    """Keeps the pieces that a behaviour writes."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.pieces.append(data)


def events_of(behaviour: Behaviour) -> list[bytes]:
    """The events of a stream, each as one chunk of the body."""
    sink = Sink()
    asyncio.run(behaviour(sink))  # type: ignore[arg-type]
    head, *chunks, end = sink.pieces
    assert head.startswith(b"HTTP/1.1 200"), head
    assert end == b"0\r\n\r\n"
    return chunks


def of_chunk(data: bytes) -> bytes:
    """The data of one chunk."""
    return data.partition(b"\r\n")[2].removesuffix(b"\r\n")


class Leaver:
    """Stands where a way expects a gateway: sends the request on a socket, which stays open."""

    def __init__(self, raw: Raw, name: str) -> None:
        self._raw = raw
        self._secret = secret(name)

    def post(self, path: str, body: Any) -> None:
        self._raw.post(path, json.dumps(body).encode(), self._secret)

    def send(self, _: str, path: str, body: bytes, *, headers: Mapping[str, str]) -> None:
        self._raw.post(path, body, self._secret, kind=headers["Content-Type"])


class Asker:
    """Stands where a way expects a gateway: sends whole requests with a key of the way's own."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self._gateway, self._key = gateway, name

    def post(self, path: str, body: Any) -> Answer:
        return self._gateway.post(path, body, key=self._key)

    def send(self, method: str, path: str, body: bytes, *, headers: Mapping[str, str]) -> Answer:
        return self._gateway.send(method, path, body, headers=headers, key=self._key)


class Books:
    """What the calls of a way are recorded and charged, one after another."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self._gateway, self._key = gateway, name
        self._quotas = Quotas(gateway, name)
        self._quotas.charged()
        self._known = len(gateway.calls(name, limit=1000))

    def next(self) -> dict[str, Any]:
        """The record of the next call, whose tokens and cost are what its quotas were charged."""
        self._known += 1
        rows = eventually(lambda: self._enough(self._gateway.calls(self._key, limit=1000)))
        record, charged = rows[0], self._quotas.charged()
        assert charged.tokens == record["prompt_tokens"] + record["completion_tokens"]
        assert charged.nusd == round(record["cost_usd"] * 1e9)
        return record

    def _enough(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        return rows if len(rows) >= self._known else None


def reported(way: Way) -> Shape:
    """The first report that streams of a way have, and that means something."""
    return next(each for each in way.upstream.shapes if each.stream is not None and each.counts is not None)


def billed(way: Way, shape: Shape, events: Sequence[bytes], arrived: int) -> Counts:
    """What an upstream has reported in the events that arrived, or else what these show."""
    assert way.upstream.stream is not None
    assert shape.stream is not None
    assert shape.counts is not None
    bare = events_of(way.upstream.stream([(place, {}) for place, _ in shape.stream]))
    last = max(number for number, each in enumerate(events) if each not in bare)
    if arrived > last:
        return shape.counts.times(way.requests)
    shown = sum([any(word in each for word in WORDS) for each in events[:arrived]])
    return Counts(1, min(shown, len(WORDS)))


def first(events: Sequence[bytes], count: int, *, then_leaves: bool, written: threading.Event) -> Behaviour:
    """These events of a stream; then the upstream breaks off, or waits until the gateway has hung up."""

    async def behaviour(wire: Wire) -> None:
        await wire.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for each in events[:count]:
            await wire.write(each)
        written.set()
        if then_leaves:
            await wire.until_gone()
        else:
            wire.close()

    return behaviour


def check(record: Mapping[str, Any], least: Counts, where: object) -> None:
    """Tokens of a call whose model has a price for seconds or characters alone are not counted."""
    found = {name: record[name] for name in ("prompt_tokens", "completion_tokens", "units", "cost_usd", "usage_source")}
    if record["endpoint"] in FREE:
        return
    if not record["units"]:
        assert record["prompt_tokens"] >= least.prompt, (where, found)
    if not record["units"].keys() & {"audio_ms", "characters", "images"}:
        assert record["completion_tokens"] >= least.output, (where, found)
    assert record["cost_usd"] > 0, (where, found)


@pytest.mark.parametrize("name", STREAMED, ids=model_of)
def test_a_stream_that_breaks_off(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    way, books = ALL_WAYS[name], Books(gateway, model_of(name))
    shape = reported(way)
    events = events_of(way.upstream.stream(shape.stream))  # type: ignore[misc]
    for arrived in range(len(events)):
        behaviour = first(events, arrived, then_leaves=False, written=threading.Event())
        upstream.answer_with(*[behaviour] * way.requests)
        with contextlib.suppress(http.client.HTTPException, ValueError):  # sound that breaks off cannot say so
            way.ask(Asker(gateway, model_of(name)), model_of(name), is_stream=True)
        check(books.next(), billed(way, shape, events, arrived), (name, arrived))


@pytest.mark.parametrize("name", STREAMED, ids=model_of)
def test_a_client_that_leaves(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    way, books = ALL_WAYS[name], Books(gateway, model_of(name))
    shape = reported(way)
    events = events_of(way.upstream.stream(shape.stream))  # type: ignore[misc]
    for arrived in range(len(events) + 1):
        written = [threading.Event() for _ in range(way.requests)]
        upstream.answer_with(*[first(events, arrived, then_leaves=True, written=each) for each in written])
        with gateway.connect() as client:
            way.ask(Leaver(client, model_of(name)), model_of(name), is_stream=True)
            assert all(each.wait(30) for each in written)
            waits = [of_chunk(each) if way.is_passed else word for each in events[:arrived] for word in WORDS
                     if way.is_passed or word in each]  # fmt: skip
            held = b""
            if waits:
                client.read_head()
                while waits[-1] not in held:
                    held += client.read_chunk()
        least = billed(way, shape, events, arrived if way.is_passed else min(arrived, len(events) - 2))
        check(books.next(), least, (name, arrived))


@pytest.mark.parametrize("name", PLAIN, ids=model_of)
def test_a_client_that_leaves_before_a_plain_answer(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    way, books = ALL_WAYS[name], Books(gateway, model_of(name))
    shape = next(each for each in way.upstream.shapes if each.plain is not None and each.counts is not None)
    answer, has_left = way.upstream.plain(shape.plain), threading.Event()  # type: ignore[misc, arg-type]

    async def late(wire: Wire) -> None:
        await asyncio.to_thread(has_left.wait, 30)
        await answer(wire)

    upstream.answer_with(*[late] * way.requests)
    with gateway.connect() as client:
        way.ask(Leaver(client, model_of(name)), model_of(name), is_stream=False)
        eventually(lambda: upstream.hits == way.requests)
    has_left.set()
    assert shape.counts is not None
    check(books.next(), shape.counts.times(way.requests), name)


def nothing(members: Any) -> Any:
    """The same report, whose counts are all zero."""
    if isinstance(members, Mapping):
        return {name: nothing(value) for name, value in members.items()}
    if isinstance(members, list):
        return [nothing(value) for value in members]
    return 0 if isinstance(members, (int, float)) and not isinstance(members, bool) else members


@pytest.mark.parametrize("how", ["missing", "of nothing"])
@pytest.mark.parametrize("name", ALL_WAYS, ids=model_of)
def test_an_answer_without_a_report(gateway: Gateway, upstream: ScriptedUpstream, name: str, how: str) -> None:
    way, books = ALL_WAYS[name], Books(gateway, model_of(name))
    shapes = [each for each in way.upstream.shapes if each.counts is not None]
    for is_stream in (False, True):
        if is_stream and way.upstream.stream is not None:
            places = next(each.stream for each in shapes if each.stream is not None)
            said = [(place, nothing(members) if how == "of nothing" else {}) for place, members in places]
            behaviour = way.upstream.stream(said)
        elif not is_stream and way.upstream.plain is not None:
            members = next(each.plain for each in shapes if each.plain is not None)
            behaviour = way.upstream.plain(nothing(members) if how == "of nothing" else {})
        else:
            continue
        upstream.answer_with(*[behaviour] * way.requests)
        way.ask(Asker(gateway, model_of(name)), model_of(name), is_stream=is_stream)
        check(books.next(), Counts(1, 0), (name, is_stream))
