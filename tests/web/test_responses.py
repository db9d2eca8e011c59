"""The two response classes: what stands on the wire."""

from __future__ import annotations

import gc
import time
import weakref
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from aiohttp import web

from gateway.web.responses import EventStream, Whole, head


def test_head_cannot_be_split_by_a_value() -> None:
    first, date, *rest = head(200, [("x-a", "one\r\nx-b: two")]).decode().split("\r\n")
    assert (first, rest) == ("HTTP/1.1 200 OK", ["x-a: one  x-b: two", "", ""])
    received = parsedate_to_datetime(date.removeprefix("Date: "))
    assert abs(received.timestamp() - time.time()) < 60


def test_head_of_unknown_status_is_still_a_head() -> None:
    assert head(599, []).startswith(b"HTTP/1.1 599 Unknown\r\n")


async def _client(aiohttp_client: Any, handler: Any) -> Any:
    app = web.Application()
    app.router.add_get("/", handler, allow_head=True)
    return await aiohttp_client(app)


async def test_whole_answers_follow_each_other_on_one_connection(aiohttp_client: Any) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return Whole(200, [("Content-Type", "text/plain")], request.query["say"].encode())

    client = await _client(aiohttp_client, handle)
    for word in ("one", "two"):
        answer = await client.get("/", params={"say": word})
        assert (await answer.text(), answer.headers["Content-Length"]) == (word, "3")
        assert "Connection" not in answer.headers


class Body(bytearray):
    """A body that a test can see go."""


async def test_an_idle_connection_keeps_no_answer(aiohttp_client: Any) -> None:
    """The server keeps the last response of each connection until the next request, which may never come."""
    made: list[weakref.ref[Body]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = Body(100_000)
        made.append(weakref.ref(body))
        return Whole(200, [], body)

    answer = await (await _client(aiohttp_client, handle)).get("/")
    assert len(await answer.read()) == 100_000
    assert "Connection" not in answer.headers
    gc.collect()
    assert [body() for body in made] == [None]


async def test_last_answer_says_that_it_closes(aiohttp_client: Any) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return Whole(413, [], b"no", is_last=True)

    answer = await (await _client(aiohttp_client, handle)).get("/")
    assert (answer.status, answer.headers["Connection"]) == (413, "close")


async def test_head_request_gets_no_body(aiohttp_client: Any) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return Whole(200, [], b"12345")

    answer = await (await _client(aiohttp_client, handle)).head("/")
    assert (answer.headers["Content-Length"], await answer.read()) == ("5", b"")


async def test_finished_stream_is_whole_and_keeps_the_connection(aiohttp_client: Any) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, [("content-type", "text/event-stream")])
        stream.write(b"data: 1\n\n")
        stream.finish(b"data: [DONE]\n\n")
        stream.write(b"too late")
        return stream

    client = await _client(aiohttp_client, handle)
    for _ in range(2):
        answer = await client.get("/")
        assert await answer.read() == b"data: 1\n\ndata: [DONE]\n\n"
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["X-Accel-Buffering"] == "no"


async def test_stream_without_an_event_is_an_empty_message(aiohttp_client: Any) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, [])
        stream.finish(b"")
        return stream

    assert await (await (await _client(aiohttp_client, handle)).get("/")).read() == b""


async def test_unfinished_stream_is_not_taken_for_a_whole_one(aiohttp_client: Any) -> None:
    from aiohttp import ClientPayloadError

    async def handle(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, [])
        stream.write(b"data: 1\n\n")
        return stream

    answer = await (await _client(aiohttp_client, handle)).get("/")
    with pytest.raises(ClientPayloadError):
        await answer.read()
