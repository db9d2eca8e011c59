"""Answers that an upstream compresses although the gateway asks for identity, through a whole gateway.

That every kind of answer is served whole or is a 502 is a part of the fault catalogue (test_faults.py)."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from functools import partial

import brotli
import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, DEFAULT_JSON, Behaviour, Wire, answer, chunk, event

from .client import events
from .gateway_process import Gateway, settings

MAX_BYTES = 300_000
GZIP = (("Content-Encoding", "gzip"),)
HEAD_OF_STREAM = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
CHUNK = {"id": "c", "object": "text_completion", "created": 1, "model": "up"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
EVENTS = [
    CHUNK | {"choices": [{"text": "Hello", "index": 0, "finish_reason": None}]},
    CHUNK | {"choices": [{"text": " you", "index": 0, "finish_reason": "stop"}]},
    CHUNK | {"choices": [], "usage": USAGE},
    "[DONE]",
]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(settings(shared_upstream.url, server={"max_response_bytes": MAX_BYTES}))


COMPRESS = {"gzip": gzip.compress, "br": partial(brotli.compress, quality=1)}


def compressed(data: bytes, encoding: str) -> Behaviour:
    return answer(COMPRESS[encoding](data), headers=(("Content-Encoding", encoding),))


@pytest.mark.parametrize("encoding", COMPRESS)
def test_plain_answer(gateway: Gateway, upstream: ScriptedUpstream, encoding: str) -> None:
    upstream.answer_with(compressed(json.dumps(DEFAULT_JSON | {"usage": USAGE}).encode(), encoding))
    served = gateway.complete(prompt="Hi", max_tokens=9)
    assert (served.status, served.json["choices"]) == (200, DEFAULT_JSON["choices"])
    assert "content-encoding" not in served.headers
    record = gateway.call(served.id)
    assert (record["usage_source"], record["prompt_tokens"], record["completion_tokens"]) == ("reported", 3, 5)


def test_events_of_a_stream_arrive_as_they_are_sent(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    has_arrived = threading.Event()

    async def behaviour(wire: Wire) -> None:
        compressor = zlib.compressobj(wbits=31)

        def flushed(item: object) -> bytes:
            return chunk(compressor.compress(event(item)) + compressor.flush(zlib.Z_SYNC_FLUSH))

        await wire.write(HEAD_OF_STREAM + flushed(EVENTS[0]))
        await asyncio.to_thread(has_arrived.wait, 30)
        for item in EVENTS[1:]:
            await wire.write(flushed(item))
        await wire.write(chunk(compressor.flush()) + b"0\r\n\r\n")

    upstream.answer_with(behaviour)
    with gateway.stream() as client:
        head = client.read_head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        assert "content-encoding" not in head.headers
        assert client.read_chunk() == event(EVENTS[0])
        has_arrived.set()
        assert events(client.read_chunks()) == [EVENTS[1], "[DONE]"]
    record = gateway.call(head.id)
    assert (record["usage_source"], record["prompt_tokens"], record["completion_tokens"]) == ("reported", 3, 5)


LONG = [EVENTS[0]] * (250_000 // len(event(EVENTS[0])))
"""Events that are decoded in several turns of the event loop."""


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_stream_whose_message_ends_before_it_is_decoded(
    gateway: Gateway, upstream: ScriptedUpstream, *, is_cut: bool
) -> None:
    """All that came is passed on and charged, and the end then."""
    data = gzip.compress(b"".join(map(event, [*LONG, *EVENTS[1:]])))

    async def behaviour(wire: Wire) -> None:
        await wire.write(HEAD_OF_STREAM + chunk(data) + (b"" if is_cut else b"0\r\n\r\n"))
        wire.close()

    upstream.answer_with(behaviour)
    with gateway.stream() as client:
        head = client.read_head()
        assert events(client.read_chunks()) == [*LONG, EVENTS[1], "[DONE]"]
    record = gateway.call(head.id)
    assert (record["usage_source"], record["prompt_tokens"], record["completion_tokens"]) == ("reported", 3, 5)


def test_a_long_plain_answer_that_is_cut(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    whole = gzip.compress(json.dumps(DEFAULT_JSON | {"x": [1] * 80_000, "usage": USAGE}).encode())

    async def behaviour(wire: Wire) -> None:
        await wire.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 99999\r\n\r\n" + whole)
        wire.close()

    upstream.answer_with(behaviour, compressed(json.dumps(DEFAULT_JSON | {"x": [1] * 80_000}).encode(), "gzip"))
    served = gateway.complete(max_tokens=9)
    assert (served.status, served.error["code"]) == (502, "upstream_error")
    assert gateway.call(served.id)["completion_tokens"] == 9
    assert gateway.complete(max_tokens=9).json["x"] == [1] * 80_000


def test_error_of_an_upstream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    error = {"error": {"message": "Too long.", "type": "invalid_request_error", "param": "prompt", "code": "long"}}
    upstream.answer_with(answer(gzip.compress(json.dumps(error).encode()), 400, GZIP), answer(b"{", 429, GZIP))
    served = gateway.complete()
    assert (served.status, served.error["message"], served.error["code"]) == (400, "Too long.", "long")
    served = gateway.complete()
    assert (served.status, served.error["code"]) == (429, "upstream_rate_limited")


@pytest.mark.parametrize("encoding", COMPRESS)
def test_bomb(gateway: Gateway, upstream: ScriptedUpstream, encoding: str) -> None:
    """The limit is that of the decoded bytes, and one reads no more of them."""
    upstream.answer_with(compressed(bytes(100 * MAX_BYTES), encoding))
    served = gateway.complete()
    assert (served.status, served.error["code"]) == (502, "upstream_error")
    assert "longer answer than the gateway takes" in served.error["message"]
    assert gateway.line(id=served.id)["upstream_error"] == f"too_large: more than {MAX_BYTES} bytes"


def test_bomb_inside_a_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    piece = event(EVENTS[0])
    bomb = gzip.compress(piece * (100 * MAX_BYTES // len(piece)))

    async def behaviour(wire: Wire) -> None:
        await wire.write(HEAD_OF_STREAM + chunk(bomb))
        await wire.until_gone()

    upstream.answer_with(behaviour)
    with gateway.stream() as client:
        head = client.read_head()
        body = client.read_chunks()
    assert len(body) < MAX_BYTES + 10_000
    assert events(body)[-1]["error"]["code"] == "upstream_error"
    assert gateway.call(head.id)["ended"] == "error"


def test_unknown_encoding_is_named(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"?", headers=(("Content-Encoding", "x-none"),)))
    served = gateway.complete()
    assert (served.status, served.error["code"]) == (502, "upstream_error")
    assert "compressed its answer in a way that the gateway cannot decode" in served.error["message"]
    assert (
        "content_encoding: content-encoding 'x-none' cannot be decoded" in gateway.line(id=served.id)["upstream_error"]
    )
