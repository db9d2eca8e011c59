"""What a streaming client lives through, looked at on the socket itself."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk, cut_stream, event, ok_json, raw, silent, stalled_stream, stream

from .client import Raw, events
from .gateway_process import CHAT, COMPLETIONS, Gateway, eventually, key, model, settings


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    quota = [{"tokens": 10_000_000, "per": "day"}]
    keys = [key("alice"), key("bob"), key("leaver", quotas=quota), key("cutter", quotas=quota), key("single")]
    keys += [key("waiter", max_parallel=1)]
    return start_shared_gateway(settings(shared_upstream.url, keys=keys))


def piece(text: str = "", finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """One chunk of a streamed completion."""
    choice = {"text": text, "index": index, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "up", "choices": [choice], **more}


USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
USAGE_CHUNK = piece() | {"choices": [], "usage": USAGE}
WHOLE = [piece("a"), piece("b", "stop"), USAGE_CHUNK]


def bytes_of(*items: Any) -> bytes:
    return b"".join(event(item) for item in items)


def read_stream(raw_: Raw) -> bytes:
    """A whole answer that has to be an event stream."""
    head = raw_.read_head()
    assert head.status == 200
    assert head.headers["content-type"] == "text/event-stream"
    return raw_.read_chunks()


def ended_with_error(body: bytes) -> dict[str, Any]:
    """The error event that ends a stream, behind which nothing may come."""
    last = events(body)[-1]
    assert list(last) == ["error"]
    assert sorted(last["error"]) == ["code", "message", "param", "type"]
    assert b"[DONE]" not in body
    assert body.endswith(b"\n\n")
    error: dict[str, Any] = last["error"]
    return error


# --------------------------------------------------------------------------------------------------- byte for byte


class Conductor:
    """An upstream that sends one event each time the test says so."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self._turn = threading.Semaphore(0)

    def next(self) -> None:
        self._turn.release()

    async def __call__(self, wire: Wire) -> None:
        await wire.write(CHUNKED)
        for data in self._pieces:
            await asyncio.to_thread(self._turn.acquire)
            await wire.write(chunk(data))
        await wire.write(b"0\r\n\r\n")


def test_each_event_arrives_before_the_next_is_sent(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    pieces = [event(piece(f"token {number} é ")) for number in range(20)]
    pieces += [event(piece("", "stop")), event(USAGE_CHUNK), event("[DONE]")]
    conductor = Conductor(*pieces)
    upstream.answer_with(conductor)
    with gateway.stream(stream_options={"include_usage": True}) as client:
        conductor.next()
        client.read_head()
        for number, data in enumerate(pieces):
            if number:
                conductor.next()
            assert client.read_chunk() == data
        assert client.read_chunk() == b""


ODD_EVENTS: list[bytes] = [
    b'data:{"id":"no space","choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n',
    b'data: {"choices": [{"text": "crlf", "index": 0}]}\r\n\r\n',
    b'data: {"choices": [{"text": "bare cr", "index": 0}]}\r\r',
    b": a comment\n\n",
    b'data: {"choices":\ndata: [{"text": "two lines", "index": 0}]}\n\n',
    b'event: message\ndata: {"choices": [{"text": "named", "index": 0}]}\n\n',
    b'data: {"choices": [], "obfuscation": "\\u00e9\\"finish_reason\\": \\"stop\\""}\n\n',
    "data: {\"choices\": [{\"text\": \"\u2603 \U0001f600\", \"index\": 0}]}\n\n".encode(),
    b'data: {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}], "unknown": [1, 2.50, 1e3]}\n\n',
    b'data: {"choices": [{"text": "' + b"long " * 30_000 + b'", "index": 0}]}\n\n',
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_stream_reaches_client_byte_for_byte(gateway: Gateway, upstream: ScriptedUpstream, size: int) -> None:
    whole = b"".join(ODD_EVENTS if size > 7 else ODD_EVENTS[:-1]) + bytes_of(piece("", "stop"), USAGE_CHUNK, "[DONE]")
    cut = [chunk(whole[at : at + size]) for at in range(0, len(whole), size)]
    upstream.answer_with(raw(CHUNKED, *cut, b"0\r\n\r\n"))
    with gateway.stream(stream_options={"include_usage": True}) as client:
        assert read_stream(client) == whole
    assert gateway.calls("alice", limit=1)[0]["prompt_tokens"] == 5


def test_a_stream_forbids_buffering_by_proxies(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream(WHOLE))
    with gateway.stream() as client:
        head = client.read_head()
        client.read_chunks()
    assert head.headers["cache-control"] == "no-cache"
    assert head.headers["x-accel-buffering"] == "no"
    assert head.headers["x-gateway-upstream"] == "main"
    assert head.headers["x-gateway-attempts"] == "1"
    assert head.id.startswith("req_")
    assert len(head.headers) == len(head.header_lines)


def test_connection_serves_the_next_call_after_a_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(*[stream(WHOLE)] * 4, ok_json())
    body = json.dumps({"model": COMPLETIONS, "prompt": "Hi", "stream": True}).encode()
    secret = gateway.config["keys"][0]["secret"]
    with gateway.connect() as client:
        for _ in range(4):
            client.post("/v1/completions", body, secret)
            assert read_stream(client).endswith(b"data: [DONE]\n\n")
        client.post("/v1/completions", body.replace(b"true", b"false"), secret)
        assert client.read_answer().status == 200
    # The next call may come before the connection is back in the pool, but not each time.
    assert len({request.connection for request in upstream.requests}) < len(upstream.requests)


def test_lines_that_break_clients_are_left_out(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """openai-python decodes an empty event for each `id:`, `retry:` or lone `event:`."""
    named = b"id: 7\n" + event(piece("a"))
    upstream.answer_with(stream([b"retry: 100\n\n", named, b"event: ping\n\n", b"id: 8\n\n", *WHOLE[1:]]))
    with gateway.stream() as client:
        assert read_stream(client) == bytes_of(piece("a"), piece("b", "stop"), "[DONE]")


def test_nothing_passes_after_done(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream([*WHOLE, "[DONE]", piece("too late")]))
    with gateway.stream() as client:
        assert read_stream(client) == bytes_of(*WHOLE[:2], "[DONE]")


def test_last_event_without_its_blank_line_gets_one(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    whole = bytes_of(*WHOLE[:2]) + b"data: [DONE]\n"
    upstream.answer_with(raw(CHUNKED, chunk(whole), b"0\r\n\r\n"))
    with gateway.stream() as client:
        assert read_stream(client) == bytes_of(*WHOLE[:2], "[DONE]")


def test_missing_done_is_not_invented(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream(WHOLE, done=False))
    with gateway.stream() as client:
        assert read_stream(client) == bytes_of(*WHOLE[:2])
    assert gateway.calls("alice", limit=1)[0]["ended"] == "done"


def test_close_delimited_stream_is_taken(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"
    upstream.answer_with(raw(head, bytes_of(*WHOLE, "[DONE]"), then_close=True))
    with gateway.stream() as client:
        assert client.read_head().headers["content-type"] == "text/event-stream; charset=utf-8"
        assert client.read_chunks() == bytes_of(*WHOLE[:2], "[DONE]")


def test_plain_json_for_a_stream_is_written_as_events(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The SDKs read nothing else of a stream."""
    upstream.answer_with(ok_json())
    with gateway.stream() as client:
        assert client.read_head().headers["content-type"] == "text/event-stream"
        (written,) = events(client.read_chunks())
    assert written["choices"][0]["finish_reason"] == "stop"


def test_http_1_0_client_gets_a_body_that_ends_with_the_connection(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(stream(WHOLE))
    with gateway.stream(version="1.0") as client:
        head = client.read_head()
        assert "transfer-encoding" not in head.headers
        assert client.read_to_end() == bytes_of(*WHOLE[:2], "[DONE]")


def test_slow_reader_loses_nothing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    sent = [event(piece(f"{number} " + "x" * 2000)) for number in range(4000)]
    upstream.answer_with(stream([*sent, *WHOLE[1:]]))
    with gateway.stream() as client:
        head = client.read_head()
        assert head.status == 200
        got = []
        for number in range(4001):
            if number in (1, 100, 2000):  # long enough for every buffer on the way to fill
                time.sleep(0.2)
            got.append(client.read_chunk())
            if b"[DONE]" in got[-1]:
                break
        else:
            got.append(client.read_chunks())
    assert b"".join(got) == b"".join(sent) + bytes_of(piece("b", "stop"), "[DONE]")


# ------------------------------------------------------------------------------------------------------------ usage


def test_usage_is_asked_for_and_hidden_from_a_client_that_did_not_ask(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(stream(WHOLE))
    with gateway.stream() as client:
        head = client.read_head()
        assert client.read_chunks() == bytes_of(*WHOLE[:2], "[DONE]")
    assert upstream.requests[0].json["stream_options"] == {"include_usage": True}
    record = gateway.call(head.id)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (5, 2)
    assert (record["usage_source"], record["ended"], record["stream"]) == ("reported", "done", True)


def test_other_stream_options_are_kept(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream(WHOLE))
    with gateway.stream(stream_options={"include_obfuscation": False}) as client:
        read_stream(client)
    assert upstream.requests[0].json["stream_options"] == {"include_obfuscation": False, "include_usage": True}


def test_body_of_a_client_that_asked_for_usage_is_not_touched(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    sent = (
        b'{ "model" : "gpt-3.5-turbo-instruct", "prompt": "H\\u00e9" ,"stream":true,'
        b'  "stream_options":{"include_usage":true}, "x": 1.0 }'
    )
    upstream.answer_with(stream(WHOLE))
    with gateway.connect() as client:
        client.post("/v1/completions", sent, gateway.config["keys"][0]["secret"])
        assert read_stream(client) == bytes_of(*WHOLE, "[DONE]")
    assert upstream.requests[0].body == sent


@pytest.mark.parametrize(
    "sent",
    [
        USAGE_CHUNK | {"choices": [{"index": 0}]},
        USAGE_CHUNK | {"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": None}]},
    ],
    ids=["as LiteLLM sends it", "with an empty choice"],
)  # fmt: skip
def test_odd_usage_chunks_are_hidden_too(gateway: Gateway, upstream: ScriptedUpstream, sent: dict[str, Any]) -> None:
    upstream.answer_with(stream([*WHOLE[:2], sent]))
    with gateway.stream() as client:
        assert read_stream(client) == bytes_of(*WHOLE[:2], "[DONE]")
    assert gateway.calls("alice", limit=1)[0]["completion_tokens"] == 2


def test_usage_on_the_last_chunk_becomes_null(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream([piece("a"), piece("b", "stop", usage=USAGE)]))
    with gateway.stream() as client:
        got = events(read_stream(client))
    assert got == [piece("a"), piece("b", "stop", usage=None), "[DONE]"]
    assert gateway.calls("alice", limit=1)[0]["completion_tokens"] == 2


def test_unreported_usage_is_estimated_and_marked(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream([piece("four chars and more "), piece("x", "stop")]))
    with gateway.stream(prompt="x" * 40) as client:
        head = client.read_head()
        client.read_chunks()
    record = gateway.call(head.id)
    assert record["usage_source"] == "estimated"
    assert (record["prompt_tokens"], record["completion_tokens"]) == (10, 9)


def test_client_that_saw_the_end_sees_its_usage(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=stream(WHOLE))
    for number in range(1, 21):
        with gateway.stream("single") as client:
            client.read_head()
            while client.read_chunk() != b"data: [DONE]\n\n":
                pass
            rows = gateway.usage(group_by="key")
            assert [row["requests"] for row in rows if row["key"] == "single"] == [number]
            assert len(gateway.calls("single")) == number
    upstream.answer_with()


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("is_done_said", [False, True], ids=["without DONE", "with a false DONE"])
def test_failure_mid_stream_ends_with_error_event(
    gateway: Gateway, upstream: ScriptedUpstream, is_done_said: bool
) -> None:
    """A reseller says [DONE] also when its own upstream was cut: only the finish_reason of every index is proof."""
    upstream.answer_with(cut_stream([piece("hello "), piece("world"), *(["[DONE]"] if is_done_said else [])]))
    with gateway.stream("cutter") as client:
        head = client.read_head()
        body = client.read_chunks()
    assert body.startswith(bytes_of(piece("hello "), piece("world")))
    assert ended_with_error(body)["code"] == "upstream_error"
    record = gateway.call(head.id)
    assert (record["ended"], record["truncated"], record["usage_source"]) == ("error", True, "estimated")
    assert record["completion_tokens"] == 5
    assert gateway.line(id=head.id)["status"] == 502


def test_one_unfinished_choice_of_two_is_a_cut_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream([piece("a", "stop", 0), piece("b", None, 1)]))
    with gateway.stream(n=2) as client:
        ended_with_error(read_stream(client))


def test_two_finished_choices_are_a_whole_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    whole = [piece("a", None, 1), piece("b", "stop", 1), piece("c", "length", 0), USAGE_CHUNK]
    upstream.answer_with(stream(whole))
    with gateway.stream(n=2) as client:
        assert read_stream(client) == bytes_of(*whole[:3], "[DONE]")


@pytest.fixture(scope="module")
def impatient(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            upstreams={
                "hasty": {"base_url": shared_upstream.url, "timeouts": {"idle_s": 1}},
                "patient": {"base_url": shared_upstream.url, "timeouts": {"idle_s": 3}},
            },
            models={COMPLETIONS: model("completions", "hasty"), "patient": model("completions", "patient")},
        )
    )


async def comments(wire: Wire) -> None:
    """An upstream that is busy with something else."""
    await wire.write(CHUNKED)
    while not wire.reader.at_eof():
        await wire.write(chunk(b": PING\n\n"))
        await asyncio.sleep(0.05)


def test_comments_are_no_sign_of_life(impatient: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(comments)
    with impatient.stream() as client:
        head = client.read_head()
        body = client.read_chunks()
    assert body.startswith(b": PING\n\n")
    assert ended_with_error(body)["code"] == "upstream_timeout"
    assert impatient.call(head.id)["first_byte_s"] is None


@pytest.mark.parametrize("noise", [b"event: ping\n\n", b"id: 1\n\n", b"retry: 5\r\r", b"\r\n", b"data:\n\n"])
def test_what_is_left_out_is_no_sign_of_life_either(
    impatient: Gateway, upstream: ScriptedUpstream, noise: bytes
) -> None:
    async def ping(wire: Wire) -> None:
        await wire.write(CHUNKED)
        while not wire.reader.at_eof():
            await wire.write(chunk(noise))
            await asyncio.sleep(0.02)

    upstream.answer_with(ping)
    with impatient.stream() as client:
        got = client.read_answer()
    assert (got.status, got.error["code"]) == (504, "upstream_timeout")


def test_events_between_comments_are_one(impatient: Gateway, upstream: ScriptedUpstream) -> None:
    noise = [b": PING\n\n", piece("a")] * 10
    upstream.answer_with(stream([*noise, *WHOLE[1:]], delay_s=0.16))
    with impatient.stream(model="patient") as client:
        assert read_stream(client) == bytes_of(*noise, WHOLE[1], "[DONE]")


# ---------------------------------------------------------------------------------------------------- client is gone


def test_disconnect_closes_the_upstream_and_settles_once(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stalled_stream([piece("some text that was delivered")]))
    before = gateway.metric("gateway_client_disconnects_total")
    with gateway.stream("leaver", prompt="x" * 40, max_tokens=1000) as client:
        head = client.read_head()
        client.read_chunk()
        assert upstream.open_now >= 1
        open_before = upstream.open_now
    eventually(lambda: upstream.open_now < open_before)
    record = gateway.call(head.id)
    assert (record["ended"], record["client_gone"], record["status"]) == ("client_gone", True, 499)
    assert (record["usage_source"], record["truncated"]) == ("estimated", True)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (10, 10)
    (window,) = gateway.get("/v1/key", key="leaver").json["quotas"]
    assert (window["used"], window["reserved"]) == (20, 0)
    assert gateway.metric("gateway_client_disconnects_total") == before + 1
    assert gateway.metric("gateway_upstream_attempts_total", upstream="main", outcome="client_gone") == 1
    assert gateway.line(id=head.id)["status"] == 499
    assert len([line for line in gateway.lines() if line.get("id") == head.id]) == 1


def test_disconnect_before_the_first_byte_closes_the_upstream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(silent)
    open_before = upstream.open_now
    with gateway.stream("waiter"):
        eventually(lambda: upstream.hits == 1)
    eventually(lambda: upstream.open_now <= open_before)
    record = eventually(lambda: gateway.calls("waiter"))[0]
    assert (record["ended"], record["usage_source"]) == ("client_gone", "estimated")
    upstream.answer_with(ok_json())
    assert gateway.complete("waiter").status == 200  # its one slot is free again


def test_plain_answer_whose_client_left_is_read_for_its_usage(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    gone = threading.Event()

    async def late(wire: Wire) -> None:
        await asyncio.to_thread(gone.wait)
        await asyncio.sleep(0.1)
        await ok_json({"model": "up", "usage": {"prompt_tokens": 11, "completion_tokens": 22}})(wire)

    upstream.answer_with(late)
    with gateway.connect() as client:
        body = json.dumps({"model": COMPLETIONS, "prompt": "Hi"}).encode()
        client.post("/v1/completions", body, gateway.config["keys"][1]["secret"])
        eventually(lambda: upstream.hits == 1)
    gone.set()
    record = eventually(lambda: gateway.calls("bob"))[0]
    assert (record["ended"], record["usage_source"]) == ("client_gone", "reported")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (11, 22)


def test_client_that_leaves_in_the_middle_of_its_body_is_no_fault(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    before = len(gateway.calls("alice", limit=1000))
    gone_before = gateway.metric("gateway_client_disconnects_total")
    with gateway.connect() as client:
        client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
            b"Authorization: Bearer " + gateway.config["keys"][0]["secret"].encode() + b'\r\n\r\n{"model": '
        )
        eventually(lambda: gateway.metric("gateway_in_flight_requests") == 1)
    gateway.line(status=499, path="/v1/completions")
    assert gateway.metric("gateway_client_disconnects_total") == gone_before + 1
    assert len(gateway.calls("alice", limit=1000)) == before
    assert upstream.hits == 0


@pytest.fixture(autouse=True)
def in_flight_is_zero_again(gateway: Gateway) -> Iterator[None]:
    """Whatever happened to a call, it is not counted as under way for ever."""
    yield
    eventually(lambda: gateway.metric("gateway_in_flight_requests") == 0)


def test_chat_chunks_pass_as_they_are(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    def delta(finish: str | None = None, **members: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": members, "finish_reason": finish}
        return {"id": "c", "object": "chat.completion.chunk", "model": "up", "choices": [choice], "usage": None}

    whole = [
        delta(role="assistant", content=""),
        delta(tool_calls=[{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"usage": 1, "error": "no"}'}}]),
        delta("tool_calls"),
    ]
    upstream.answer_with(stream([*whole, USAGE_CHUNK]))
    messages = [{"role": "user", "content": "Hi"}]
    with gateway.stream(path="/v1/chat/completions", model=CHAT, messages=messages) as client:
        assert read_stream(client) == bytes_of(*whole, "[DONE]")
