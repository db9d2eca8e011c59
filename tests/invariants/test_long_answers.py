"""A long plain answer that the gateway writes anew is read and written by the process of large bodies, at each door:
where it is translated, put together of several prompts or of a stream, or written as events."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.formats.events import Unfit
from gateway.formats.format import LONG_ANSWER
from gateway.formats.table import FORMATS
from gateway.upstream.error_shapes import MAX_ERROR_BYTES
from gateway.web import large_bodies
from gateway.web.large_bodies import LargeBodies, Pieces, ReadingProcess
from gateway.wings.translate.bridges import WAYS
from tests.conftest import ScriptedUpstream
from tests.fakes.good_answers import FORMS
from tests.fakes.scripted import ok_json, raw
from tests.fakes.turns import counted
from tests.web.conftest import AUTH, KEY, Inside

WORDS = 3000
TEXT = "word " * WORDS


def capable(**capabilities: Any) -> dict[str, Any]:
    return {"api_key": "upstream-secret-key", "capabilities": capabilities}


UPSTREAMS = {
    "up": capable(messages=True, generate_content=True),
    "of-chats": capable(messages="via_chat", responses="via_chat", completions="via_chat"),
    "of-messages": capable(messages=True, chat="via_messages", completions=False),
    "of-one-prompt": capable(prompt_arrays=False),
}
"""The model of each has its name."""

LOGPROB = {"token": "word ", "logprob": -0.5, "bytes": [*b"word "]}
TOKENS = [{**LOGPROB, "top_logprobs": [LOGPROB]}] * WORDS
LISTS = {"tokens": ["word "], "token_logprobs": [-0.5], "top_logprobs": [{"word ": -0.5}], "text_offset": [0]}


def chat() -> dict[str, Any]:
    document = FORMS["chat"].document(TEXT)
    document["choices"][0]["message"]["content"] = TEXT
    document["choices"][0]["logprobs"] = {"content": TOKENS}
    return document


def completion() -> dict[str, Any]:
    document = FORMS["completions"].document(TEXT)
    document["choices"][0]["logprobs"] = {name: values * (4 * WORDS) for name, values in LISTS.items()}
    return document


def message() -> dict[str, Any]:
    return FORMS["messages"].document(TEXT) | {"content": [{"type": "text", "text": TEXT}] * 12}


PROMPTS = {"prompt": ["a", "b"], "max_tokens": 9, "logprobs": 1}
WITH_LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}

REWRITTEN: Mapping[str, tuple[str, str, Mapping[str, Any], Callable[[], dict[str, Any]]]] = {
    "responses as chats": ("responses", "of-chats", WITH_LOGPROBS, chat),
    "messages as chats": ("messages", "of-chats", {}, chat),
    "chats as messages": ("chat", "of-messages", {}, message),
    "prompts as chats": ("completions", "of-chats", PROMPTS, chat),
    "prompts one by one": ("completions", "of-one-prompt", PROMPTS, completion),
}
"""The client's format, the model, more members of the request, and the upstream's answer."""

AS_EVENTS = sorted(name for name, spec in FORMATS.items() if spec.streams_only_events and name in FORMS)
"""The formats whose clients get events for a stream, whatever the upstream sends."""


def test_each_door_is_tried() -> None:
    assert {endpoint for endpoint, *_ in REWRITTEN.values()} >= {*WAYS, "completions"}
    untried = {name for name, spec in FORMATS.items() if spec.streams_only_events} - {*AS_EVENTS}
    assert untried == {"image_edits"}  # written by the function of images


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the process of large bodies is asked."""
    asked: list[str] = []
    ask = LargeBodies._answer

    async def noted(self: LargeBodies, key: str, job: Mapping[str, Any], pieces: Pieces) -> Any:
        asked.append(job["job"])
        return await ask(self, key, job, pieces)

    monkeypatch.setattr(LargeBodies, "_answer", noted)
    return asked


def settings(upstream: ScriptedUpstream) -> dict[str, Any]:
    endpoints = [name for name in FORMATS if name in FORMS]
    return {
        "upstreams": {name: {"base_url": upstream.url, **each} for name, each in UPSTREAMS.items()},
        "models": {
            name: {"routes": [{"upstream": name}], "endpoints": endpoints, "max_output_tokens": 100}
            if name == "up"
            else {"routes": [{"upstream": name}], "max_output_tokens": 100}
            for name in UPSTREAMS
        },
        "keys": [{"id": "k", "secret": KEY}],
    }


async def asked(client: Any, endpoint: str, model: str, more: Mapping[str, Any], *, is_streamed: bool) -> bytes:
    path, body, content_type = FORMS[endpoint].written(model, "u", is_streamed=is_streamed)
    if more:
        body = json.dumps({**json.loads(body), **more}).encode()
    async with client.post(path, data=body, headers=AUTH | {"Content-Type": content_type}) as answer:
        text: bytes = await answer.read()
        assert answer.status == 200, text
        return text


@pytest.mark.parametrize("is_streamed", [False, pytest.param(True, marks=pytest.mark.rest)], ids=["plain", "stream"])
async def test_rewritten_answers(
    is_streamed: bool, inside: Inside, upstream: ScriptedUpstream, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await inside(upstream.url, **settings(upstream))
    for door, (endpoint, model, more, make) in REWRITTEN.items():
        upstream.answer_with(always=ok_json(make()))
        jobs.clear()
        with counted(monkeypatch) as turns:
            seen = await asked(client, endpoint, model, more, is_streamed=is_streamed)
        assert seen.count(b"word ") >= WORDS, door
        assert set(jobs) == {"make"}, door
        assert turns.longest_json <= LONG_ANSWER, (door, turns.longest_json)


async def test_plain_answers_as_events(inside: Inside, upstream: ScriptedUpstream, jobs: list[str]) -> None:
    client = await inside(upstream.url, **settings(upstream))
    for endpoint in AS_EVENTS:
        upstream.answer_with(always=ok_json(FORMS[endpoint].document("word " * (LONG_ANSWER // 5))))
        jobs.clear()
        seen = await asked(client, endpoint, "up", {}, is_streamed=True)
        assert seen.count(b"data: ") >= 1, endpoint
        assert jobs == ["make"] * (1 + (endpoint in ASIDE)), endpoint


GATHERED = sorted(name for name, spec in FORMATS.items() if spec.gather is not None)
"""The formats whose streams are put together for plain calls."""


async def test_streams_for_plain_calls(inside: Inside, upstream: ScriptedUpstream, jobs: list[str]) -> None:
    """Some upstreams stream whether they are asked to or not."""
    client = await inside(upstream.url, **settings(upstream))
    for endpoint in GATHERED:
        form = FORMS[endpoint]
        pieces = [form.piece("word " * 50)] * (LONG_ANSWER // 250)
        events = [*form.pieces("word "), *pieces, *form.finish("word " * 50 * len(pieces))]
        text = b"".join(map(form.event, events)) + form.end()
        upstream.answer_with(always=raw(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)))
        jobs.clear()
        seen = await asked(client, endpoint, "up", {}, is_streamed=False)
        assert json.loads(seen), endpoint
        assert seen.count(b"word ") >= 50 * len(pieces), endpoint
        assert jobs == ["make"], endpoint


ADMIN = {"Authorization": "Bearer admin-token-0123456789"}
WITH_TEXT = ["chat", "completions", "generate_content", "messages", "responses"]
REPORTS = ("usage", "usageMetadata")


def without_report(endpoint: str, text: str, padding: str = "") -> dict[str, Any]:
    """An answer, whose text may come behind much else."""
    document = FORMS[endpoint].document(text)
    return {"padding": padding, **{name: value for name, value in document.items() if name not in REPORTS}}


ASIDE = {name for name, spec in FORMATS.items() if spec.facts_reader is None and spec.long_reader is None}
"""The formats whose long answers are not read in pieces."""
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "moderations": ("/v1/moderations", {"model": "up", "input": "Hi"}),
    "rerank": ("/v1/rerank", {"model": "up", "query": "Hi", "documents": ["Hi"]}),
    "count_tokens": ("/v1/messages/count_tokens", {"model": "up", "messages": [{"role": "user", "content": "Hi"}]}),
    "input_tokens": ("/v1/responses/input_tokens", {"model": "up", "input": "Hi"}),
}


def test_another_process_can_read_each() -> None:
    for name in ASIDE:
        assert pickle.loads(pickle.dumps(FORMATS[name].facts)) == FORMATS[name].facts, name


async def test_an_answer_that_is_not_read_in_pieces_is_read_aside(
    inside: Inside, upstream: ScriptedUpstream, jobs: list[str]
) -> None:
    """Eight megabytes of short members held up other calls for 100 to 980 ms."""
    given = settings(upstream)
    given["models"]["up"]["endpoints"] += ASKED.keys() - {"count_tokens", "input_tokens"}
    client = await inside(upstream.url, **given)
    answer = {"usage": {"input_tokens": 3, "output_tokens": 2}, "input_tokens": 3, "results": [{"index": 0}]}
    upstream.answer_with(always=ok_json(answer | {"content": [], "padding": "x" * LONG_ANSWER}))
    for endpoint, (path, body) in ASKED.items():
        assert endpoint in ASIDE
        jobs.clear()
        async with client.post(path, json=body, headers=AUTH) as received:
            assert received.status == 200, (endpoint, await received.text())
        assert jobs == ["make"], endpoint


async def test_text_without_a_report_is_counted(inside: Inside, upstream: ScriptedUpstream, jobs: list[str]) -> None:
    """Twenty megabytes of it held up other calls for 360 ms, and of short texts for two seconds. Where its beginning
    has as many tokens as were asked for, the rest is not read."""
    client = await inside(upstream.url, **settings(upstream))
    padding = "x" * LONG_ANSWER
    for endpoint in WITH_TEXT:
        for answer, asked_for, tokens in (
            (without_report(endpoint, "word " * (LONG_ANSWER // 5)), [], 20),
            (without_report(endpoint, "word ", padding), ["make"], 3),
        ):
            upstream.answer_with(always=ok_json(answer))
            jobs.clear()
            assert b"word " in await asked(client, endpoint, "up", {}, is_streamed=False)
            assert jobs == ["make"] * (endpoint in ASIDE) + asked_for, endpoint
            async with client.get("/admin/api/calls", headers=ADMIN) as calls:
                record = (await calls.json())["data"][0]
            assert (record["endpoint"], record["usage_source"]) == (endpoint, "estimated")
            assert record["completion_tokens"] == tokens


async def test_text_is_counted_without_the_process(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is whole is not lost because the process is busy, or fails."""
    client = await inside(upstream.url, **settings(upstream))
    monkeypatch.setattr(large_bodies, "READ_FOR_S", 0.01)

    async def fails(self: ReadingProcess, job: Mapping[str, Any], pieces: Sequence[Any]) -> Any:
        return {"failed": "MemoryError"}, ()

    upstream.answer_with(always=ok_json(without_report("chat", "word ", "x" * LONG_ANSWER)))
    for exchange in (Busy._exchange, fails):
        monkeypatch.setattr(ReadingProcess, "_exchange", exchange)
        assert b"word " in await asked(client, "chat", "up", {}, is_streamed=False)
        async with client.get("/admin/api/calls", headers=ADMIN) as calls:
            record = (await calls.json())["data"][0]
        assert (record["status"], record["usage_source"], record["completion_tokens"]) == (200, "estimated", 3)


async def test_text_with_a_report_is_not_counted(inside: Inside, upstream: ScriptedUpstream, jobs: list[str]) -> None:
    client = await inside(upstream.url, **settings(upstream))
    for endpoint in WITH_TEXT:
        upstream.answer_with(always=ok_json(FORMS[endpoint].document("word " * (LONG_ANSWER // 5))))
        assert b"word " in await asked(client, endpoint, "up", {}, is_streamed=False)
    assert jobs == ["make"] * len({*WITH_TEXT} & ASIDE)


@pytest.mark.parametrize("size", [2 * LONG_ANSWER, 2 * MAX_ERROR_BYTES])
async def test_a_long_error_in_place_of_an_answer_is_one(inside: Inside, upstream: ScriptedUpstream, size: int) -> None:
    """It was passed on as an answer, and charged."""
    client = await inside(upstream.url, **settings(upstream))
    for endpoint in WITH_TEXT:
        for error in ({"message": "x" * size}, "x" * size):
            path, body, content_type = FORMS[endpoint].written("up", "u", is_streamed=False)
            upstream.answer_with(always=ok_json({"error": error}))
            async with client.post(path, data=body, headers=AUTH | {"Content-Type": content_type}) as answer:
                assert answer.status == 502, endpoint
                assert len(await answer.read()) < size
            async with client.get("/admin/api/calls", headers=ADMIN) as calls:
                record = (await calls.json())["data"][0]
            assert (record["endpoint"], record["usage_source"]) == (endpoint, "none")


# ------------------------------------------------------------------------------------------------- the process itself


def who(body: bytes, *arguments: Any) -> tuple[int, int, tuple[Any, ...]]:
    return os.getpid(), len(body), arguments


def unfit(body: bytes) -> bytes:
    raise Unfit("no such answer")


def faulty(body: bytes) -> bytes:
    raise KeyError("text of an answer")


LONG = b"x" * (LONG_ANSWER + 1)


async def test_a_function_is_called_in_the_process_for_a_long_answer() -> None:
    bodies = LargeBodies()
    try:
        assert await bodies.make("k", who, LONG[:-1], 1) == (os.getpid(), LONG_ANSWER, (1,))
        other, size, arguments = await bodies.make("k", who, LONG, 1, "two")
        assert (size, arguments) == (len(LONG), (1, "two"))
        assert other != os.getpid()
        with pytest.raises(Unfit, match="no such answer"):
            await bodies.make("k", unfit, LONG)
        with pytest.raises(RuntimeError, match=r"KeyError$"):
            await bodies.make("k", faulty, LONG)
        assert (await bodies.make("k", who, LONG))[0] == other
    finally:
        await bodies.close()


async def test_bodies_do_not_keep_an_answer_waiting(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paid for, and bodies are free."""
    exchange, is_reading = ReadingProcess._exchange, asyncio.Event()

    async def exchanged(self: ReadingProcess, job: Mapping[str, Any], pieces: Pieces) -> Any:
        if job["job"] != "make":
            is_reading.set()
            await asyncio.Event().wait()
        return await exchange(self, job, pieces)

    monkeypatch.setattr(ReadingProcess, "_exchange", exchanged)
    client = await inside(upstream.url, **settings(upstream))
    upstream.answer_with(always=ok_json(chat()))
    body = json.dumps({"model": "up", "messages": [], "x": "x" * LONG_ANSWER}).encode()
    headers = AUTH | {"Content-Type": "application/json"}
    reading = asyncio.ensure_future(client.post("/v1/chat/completions", data=body, headers=headers))
    await is_reading.wait()
    assert b"word " in await asked(client, "messages", "of-chats", {}, is_streamed=False)
    assert not reading.done()
    reading.cancel()


class Busy(ReadingProcess):
    """Its process never answers."""

    async def _exchange(self, job: Mapping[str, Any], pieces: Sequence[Any]) -> Any:
        await asyncio.Event().wait()


async def test_a_paid_answer_is_charged_where_it_cannot_be_made(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_bodies, "READ_FOR_S", 0.01)
    monkeypatch.setattr(ReadingProcess, "_exchange", Busy._exchange)
    client = await inside(upstream.url, **settings(upstream))
    upstream.answer_with(always=ok_json(chat()))
    path, body, content_type = FORMS["messages"].written("of-chats", "u", is_streamed=False)
    async with client.post(path, data=body, headers=AUTH | {"Content-Type": content_type}) as answer:
        assert answer.status == Unavailable.status
    async with client.get("/admin/api/calls", headers=ADMIN) as calls:
        (record,) = (await calls.json())["data"]
    usage = FORMS["chat"].document(TEXT)["usage"]
    assert (record["status"], record["prompt_tokens"]) == (Unavailable.status, usage["prompt_tokens"])
    assert record["completion_tokens"] == usage["completion_tokens"]
    assert len(upstream.requests) == 1
