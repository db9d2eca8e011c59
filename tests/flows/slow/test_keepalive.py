"""Comments while an upstream is silent: when they come, when they do not, and what they commit the gateway to."""

from __future__ import annotations

import threading
import time
from typing import Any

import openai
import pytest

from gateway.formats.sse import LONG_EVENT
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import (
    CHUNKED,
    DEFAULT_JSON,
    Behaviour,
    Wire,
    after,
    answer,
    chunk,
    cut_stream,
    error_json,
    event,
    ok_json,
    raw,
    reset_without_answer,
    silent,
    stalled_stream,
    stream,
    until,
)
from tests.flows.client import Raw, events
from tests.flows.gateway_process import CHAT, Gateway, eventually, key, secret, settings

KEEPALIVE = b": keepalive\n\n"
QUIET_S = 0.06
PAUSE_S = 4 * QUIET_S
LIMITS = {"head_s": 4, "idle_s": 2}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    keys = [key("alice"), key("bob"), key("carol")]
    server = {"keepalive_comment_s": QUIET_S, "drain_timeout_s": 5}
    models = {CHAT: {"repeat_when_waiting": True}}
    return start_shared_gateway(
        settings(shared_upstream.url, server=server, keys=keys, models=models, upstreams={"main": {"timeouts": LIMITS}})
    )


def piece(text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "up", "choices": [choice], **more}


CHAT_CALL: dict[str, Any] = {"model": CHAT, "messages": [{"role": "user", "content": "Hi"}]}
WHOLE = [piece("a"), piece("b", "stop")]
DONE = event("[DONE]")


def without_comments(body: bytes) -> bytes:
    return body.replace(KEEPALIVE, b"")


def once(heard: threading.Event, behaviour: Behaviour) -> Behaviour:
    """Silent until the client has heard enough; the pauses of a slow machine are as long as they are."""

    async def waiting(wire: Wire) -> None:
        await until(heard.is_set)
        await behaviour(wire)

    return waiting


@pytest.fixture
def heard() -> threading.Event:
    return threading.Event()


def body_behind(client: Raw, comments: int, heard: threading.Event) -> bytes:
    """The rest of a body; the upstream goes on as soon as there were so many comments."""
    body = b""
    while body.count(KEEPALIVE) < comments:
        more = client.read_chunk()
        assert more, body
        body += more
    heard.set()
    return body + client.read_chunks()


def test_silence_between_two_events_is_filled(
    gateway: Gateway, upstream: ScriptedUpstream, heard: threading.Event
) -> None:
    async def pausing(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(event(WHOLE[0])))
        await once(heard, raw(chunk(event(WHOLE[1])) + chunk(DONE) + b"0\r\n\r\n"))(wire)

    upstream.answer_with(pausing)
    first, second = event(WHOLE[0]), event(WHOLE[1])
    with gateway.stream() as client:
        client.read_head()
        while (got := client.read_chunk()) != first:
            assert got == KEEPALIVE  # on a slow machine even the first event is late
        rest = body_behind(client, 2, heard)
    assert without_comments(rest) == second + DONE
    assert rest[: rest.index(second)].count(KEEPALIVE) >= 2


def test_silence_before_the_head_is_filled(
    gateway: Gateway, upstream: ScriptedUpstream, heard: threading.Event
) -> None:
    upstream.answer_with(once(heard, after(PAUSE_S, stream(WHOLE))))
    with gateway.stream() as client:
        head = client.read_head()
        assert client.read_chunk() == KEEPALIVE
        body = body_behind(client, 1, heard)
    assert upstream.hits == 1
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
    assert (head.headers["x-gateway-upstream"], head.headers["x-gateway-attempts"]) == ("main", "1")
    assert (head.headers["cache-control"], head.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert without_comments(body) == b"".join(map(event, WHOLE)) + DONE
    record = gateway.call(head.id)
    assert (record["ended"], record["status"]) == ("done", 200)
    assert record["first_byte_s"] >= PAUSE_S


def test_silence_between_head_and_first_event_is_filled(
    gateway: Gateway, upstream: ScriptedUpstream, heard: threading.Event
) -> None:
    pieces = [chunk(event(item)) for item in [*WHOLE, "[DONE]"]]

    async def pausing(wire: Wire) -> None:
        await wire.write(CHUNKED)
        await once(heard, raw(b"".join(pieces) + b"0\r\n\r\n"))(wire)

    upstream.answer_with(pausing)
    with gateway.stream() as client:
        client.read_head()
        body = body_behind(client, 1, heard)
    assert body.startswith(KEEPALIVE)
    assert without_comments(body) == b"".join(map(event, WHOLE)) + DONE


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (error_json(503), "upstream_error"),
        (error_json(400, type="invalid_request_error", code="context_length_exceeded"), "context_length_exceeded"),
        (error_json(401), "upstream_auth_failed"),
        (cut_stream([]), "upstream_error"),
        (answer(b"<html>"), "upstream_error"),
        (stream([{"error": {"message": "no", "code": "rate_limit_exceeded"}}]), "upstream_rate_limited"),
    ],
    ids=["503", "400", "401", "cut", "HTML", "an error event"],
)
def test_failure_after_a_comment_is_an_error_event(
    gateway: Gateway, upstream: ScriptedUpstream, behaviour: Behaviour, code: str, heard: threading.Event
) -> None:
    upstream.answer_with(always=once(heard, behaviour))
    with gateway.stream() as client:
        head = client.read_head()
        body = body_behind(client, 1, heard)
        assert head.status == 200
        assert body.startswith(KEEPALIVE)
        (received,) = events(without_comments(body))
        assert sorted(received["error"]) == ["code", "message", "param", "type"]
        assert received["error"]["code"] == code
        assert gateway.call(head.id)["ended"] == "error"
        upstream.answer_with(stream(WHOLE))
        client.post(
            "/v1/completions", b'{"model": "gpt-3.5-turbo-instruct", "prompt": "Hi", "stream": true}', secret("bob")
        )
        assert client.read_head().status == 200  # on the same connection
        assert without_comments(client.read_chunks()).endswith(DONE)


def test_another_attempt_after_a_comment(gateway: Gateway, upstream: ScriptedUpstream, heard: threading.Event) -> None:
    upstream.answer_with(once(heard, reset_without_answer), stream(WHOLE))
    with gateway.stream(path="/v1/chat/completions", **CHAT_CALL) as client:
        head = client.read_head()
        body = body_behind(client, 1, heard)
    assert body.startswith(KEEPALIVE)
    assert without_comments(body) == b"".join(map(event, WHOLE)) + DONE
    assert head.headers["x-gateway-attempts"] == "1"  # what was known when the head had to go
    assert gateway.call(head.id)["attempts"] == 2


def test_comments_are_no_life_of_the_upstream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stalled_stream([piece("a")]), *[silent] * 3)
    with gateway.stream() as client:
        client.read_head()
        body = client.read_chunks()
    assert body.count(KEEPALIVE) >= 3
    assert events(body)[-1]["error"]["code"] == "upstream_timeout"
    with gateway.stream() as client:
        head = client.read_head()
        body = client.read_chunks()
    assert events(body)[-1]["error"]["code"] == "upstream_timeout"
    record = gateway.call(head.id)
    assert (record["status"], record["first_byte_s"]) == (504, None)


def test_never_inside_an_event_that_is_half_passed(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    long = event(piece("x" * 3 * LONG_EVENT))
    cut = 2 * LONG_EVENT
    upstream.answer_with(
        raw(
            CHUNKED,
            chunk(long[:cut]),
            chunk(long[cut:]) + chunk(event(WHOLE[1]) + DONE) + b"0\r\n\r\n",
            delay_s=PAUSE_S,
        )
    )
    with gateway.stream() as client:
        client.read_head()
        body = client.read_chunks()
    assert body.removeprefix(KEEPALIVE * body.count(KEEPALIVE)) == long + event(WHOLE[1]) + DONE


def test_half_an_event_that_is_held_may_be_preceded(
    gateway: Gateway, upstream: ScriptedUpstream, heard: threading.Event
) -> None:
    first = event(WHOLE[0])

    async def pausing(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(first[:20]))
        await once(heard, raw(chunk(first[20:] + event(WHOLE[1]) + DONE) + b"0\r\n\r\n"))(wire)

    upstream.answer_with(pausing)
    with gateway.stream() as client:
        client.read_head()
        body = body_behind(client, 1, heard)
    assert body.startswith(KEEPALIVE)
    assert without_comments(body) == first + event(WHOLE[1]) + DONE


def test_none_while_the_client_does_not_read(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """A client that is behind has enough to read."""
    sent = [event(piece("x" * 8000)) for _ in range(1500)]
    upstream.answer_with(stream([*sent, WHOLE[1]]))
    with gateway.stream() as client:
        client.read_head()
        time.sleep(20 * QUIET_S)
        body = client.read_chunks()
    assert without_comments(body) == b"".join(sent) + event(WHOLE[1]) + DONE
    assert KEEPALIVE * 12 not in body  # one or two may come while it reads again, and the upstream is slow


async def never_ends(wire: Wire) -> None:
    """Says [DONE], and leaves the message open."""
    await wire.write(CHUNKED + b"".join(chunk(event(item)) for item in [*WHOLE, "[DONE]"]))
    await wire.until_gone()


def test_none_behind_the_end(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(never_ends)
    with gateway.stream() as client:
        client.read_head()
        assert client.read_chunks() == b"".join(map(event, WHOLE)) + DONE
        client.socket.settimeout(PAUSE_S)
        with pytest.raises(TimeoutError):
            client.read(1)


def test_none_in_an_answer_that_is_not_streamed(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(after(PAUSE_S, ok_json()))
    assert gateway.complete().json == DEFAULT_JSON


def test_none_where_nothing_is_silent(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    many = [piece(str(number)) for number in range(20)]
    upstream.answer_with(stream([*many, WHOLE[1]], delay_s=QUIET_S / 6))
    with gateway.stream() as client:
        client.read_head()
        assert without_comments(client.read_chunks()) == b"".join(map(event, [*many, WHOLE[1]])) + DONE


MESSAGE = {"role": "assistant", "content": "Hi", "tool_calls": [{"id": "t", "type": "function", "function": {}}]}
ANSWER = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "up",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
}  # fmt: skip


@pytest.mark.parametrize("shows", [True, False])
def test_plain_json_after_a_comment_becomes_an_event(
    gateway: Gateway, upstream: ScriptedUpstream, shows: bool, heard: threading.Event
) -> None:
    """The client has been promised events."""
    upstream.answer_with(once(heard, ok_json(ANSWER)))
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if shows else {}
    with gateway.stream(path="/v1/chat/completions", **CHAT_CALL, **more) as client:
        head = client.read_head()
        (received,) = events(without_comments(body_behind(client, 1, heard)))
    assert received["object"] == "chat.completion.chunk"
    assert received["choices"][0]["delta"]["tool_calls"][0] == {
        "id": "t",
        "type": "function",
        "function": {},
        "index": 0,
    }
    assert received.get("usage") == (ANSWER["usage"] if shows else None)
    assert gateway.call(head.id)["completion_tokens"] == 4


def test_client_that_leaves_between_comments(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(silent)
    open_before = upstream.open_now
    with gateway.stream("carol") as client:
        client.read_head()
        client.read_chunk()
    eventually(lambda: upstream.open_now <= open_before)
    record = eventually(lambda: gateway.calls("carol"))[0]
    assert (record["ended"], record["first_byte_s"]) == ("client_gone", None)


def test_sdk_does_not_notice(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(after(PAUSE_S, stream(WHOLE, delay_s=PAUSE_S)))
    with openai.OpenAI(api_key=secret("alice"), base_url=f"{gateway.url}/v1", max_retries=0) as client:
        received = client.completions.create(model="gpt-3.5-turbo-instruct", prompt="Hi", stream=True)
        assert [one.choices[0].text for one in received] == ["a", "b"]


def test_sdk_sees_the_error_behind_a_comment(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=after(2 * QUIET_S, error_json(503)))
    with openai.OpenAI(api_key=secret("alice"), base_url=f"{gateway.url}/v1", max_retries=0) as client:
        received = client.completions.create(model="gpt-3.5-turbo-instruct", prompt="Hi", stream=True)
        with pytest.raises(openai.APIError, match="had an error") as error:
            list(received)
    assert error.value.code == "upstream_error"
