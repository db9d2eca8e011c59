"""Plug-ins in a gateway: what they get of a call, and that a fault of theirs fails this call and nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientError
from aiohttp.test_utils import TestClient

from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import CHUNKED, Behaviour, cut_stream, error_json, event, ok_json, stream, until
from tests.fakes.scripted import chunk as chunked
from tests.web.conftest import ADMIN_TOKEN, AUTH, KEY, Inside

from .samples import SECRET, Changes, Probe, Refuses, Slow, Wrapper, object_of, plug_in

USED = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
CHAT = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "up", "usage": USED,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
}  # fmt: skip


def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "up", "choices": [choice]}


CHUNKS = [chunk("one"), chunk("two"), chunk("", "stop"), {**chunk(""), "choices": [], "usage": USED}]
MESSAGES = [{"role": "user", "content": "hello"}]
TEXT = {"id": "t", "object": "text_completion", "created": 1, "model": "up", "usage": USED,
        "choices": [{"index": 0, "text": "hi", "logprobs": None, "finish_reason": "stop"}]}  # fmt: skip


class Api(NamedTuple):
    """A format: where it is called, with what, and how its answers come."""

    path: str
    body: dict[str, Any]
    plain: Behaviour
    streamed: Behaviour
    is_error: Callable[[Any], bool]


def _of_openai(error: Any) -> bool:
    return error["error"]["code"] == "plugin_failed"


def _of_anthropic(error: Any) -> bool:
    return error["type"] == "error" and error["error"]["details"]["error_code"] == "plugin_failed"


def _of_responses(error: Any) -> bool:
    return (error.get("response") or error)["error"]["code"] in ("plugin_failed", "server_error")


APIS = {
    "chat": Api("/v1/chat/completions", {"messages": MESSAGES}, ok_json(CHAT), stream(CHUNKS), _of_openai),
    "messages": Api(
        "/v1/messages", {"messages": MESSAGES, "max_tokens": 50}, ok_json(CHAT), stream(CHUNKS), _of_anthropic
    ),
    "responses": Api("/v1/responses", {"input": "hello"}, ok_json(CHAT), stream(CHUNKS), _of_responses),
    "completions": Api(
        "/v1/completions", {"prompt": ["a", "b"]}, ok_json(TEXT),
        stream([{**TEXT, "usage": None}, {**TEXT, "choices": []}]), _of_openai,
    ),
}  # fmt: skip
"""Messages and responses are translated; the prompts of completions go to the upstream one by one."""

QUOTAS = [{"tokens": 10**6, "per": "day"}]


class Got(NamedTuple):
    status: int
    body: bytes
    headers: Any

    @property
    def events(self) -> list[Any]:
        data = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(each) for each in data if each != b"[DONE]"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def tagged(fault: str) -> dict[str, str]:
    return {"X-Gateway-Tag-Fault": fault} if fault else {}


class Gateway(NamedTuple):
    client: TestClient[Any, Any]
    upstream: ScriptedUpstream

    async def post(self, path: str, body: Any, **more: Any) -> Got:
        headers = {**AUTH, **more}
        async with self.client.post(path, json={"model": "m", **body}, headers=headers) as answer:
            try:
                received = await answer.read()
            except ClientError:
                received = b""
            return Got(answer.status, received, answer.headers)

    async def call(self, name: str, *, is_stream: bool = False, fault: str = "", **more: Any) -> Got:
        """A call of this format, and its answer. `fault`: where a plug-in fails in it, and how."""
        api, more = APIS[name], more | tagged(fault)
        self.upstream.answer_with(always=api.streamed if is_stream else api.plain)
        return await self.post(api.path, {**api.body, "stream": is_stream}, **more)

    async def record(self, got: Got) -> dict[str, Any]:
        """The record of a call, with which the key's window has to agree."""
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        wanted = got.headers["x-request-id"]
        while True:
            async with self.client.get(f"/admin/api/calls?id={wanted}", headers=headers) as answer:
                if found := (await answer.json())["data"]:
                    (each,) = found
                    return {**each, "total_tokens": each["prompt_tokens"] + each["completion_tokens"]}
            await asyncio.sleep(0.01)

    async def used(self) -> int:
        """Tokens of the key's window, of which none is reserved any more."""
        while True:
            async with self.client.get("/v1/key", headers=AUTH) as answer:
                (window,) = (await answer.json())["quotas"]
            if not window["reserved"]:
                return int(window["used"])
            await asyncio.sleep(0.01)

    async def metric(self, name: str) -> dict[str, float]:
        """The samples of a counter, by their labels as written."""
        async with self.client.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return {
            line[len(name) :].rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"{name}{{")
        }


Starts = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def start(inside: Inside, upstream: ScriptedUpstream) -> Starts:
    """Starts a gateway with these plug-ins."""

    async def starting(*plugins: Any, model: dict[str, Any] | None = None, **more: Any) -> Gateway:
        url = upstream.url
        values: dict[str, Any] = {
            "plugins": list(plugins),
            "upstreams": {
                name: {
                    "base_url": url, "api_key": f"key-of-{name}-1234567",
                    "capabilities": {"prompt_arrays": False, "responses": "via_chat", "messages": "via_chat"},
                }
                for name in ("up", "other")
            },
            "models": {
                "m": {
                    "routes": [{"upstream": "up"}], "max_output_tokens": 100,
                    "endpoints": ["chat", "messages", "responses", "completions"], **(model or {}),
                },
                "second": {"routes": [{"upstream": "other"}], "max_output_tokens": 100, "endpoints": ["chat"]},
            },
            "keys": [{"id": "k", "secret": KEY, "team": "red", "owner": "ann", "quotas": QUOTAS}],
            "teams": {"red": {}},
        }  # fmt: skip
        return Gateway(await inside(url, **{**values, **more}), upstream)

    return starting


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    """Makes the plug-ins of a test its own."""
    return request.node.nodeid


# ------------------------------------------------------------------------------------------------------ what they get


async def test_a_plug_in_hears_of_a_plain_call(start: Starts, mark: str) -> None:
    entry = plug_in(Probe, mark=mark)
    gateway = await start(entry)
    got = await gateway.call("chat", **{"X-Gateway-Tag-Feature": "search"})
    probe = object_of(entry)
    assert got.status == 200
    assert probe.heard == [
        ("before_attempt", ("up", "m")), ("head", 200), ("end", (200, None, 10, 5, "reported")),
    ]  # fmt: skip
    (call,) = probe.calls
    assert (call.id, call.key, call.team, call.owner) == (got.headers["x-request-id"], "k", "red", "ann")
    assert (call.model, call.endpoint, call.stream, call.is_whole) == ("m", "chat", False, True)
    assert (call.tags, call.request["messages"]) == ({"feature": "search"}, MESSAGES)
    assert json.loads(call.body()) == call.request
    assert KEY not in repr(call)


@pytest.mark.parametrize("name", APIS)
async def test_a_plug_in_sees_each_event_that_the_client_gets(start: Starts, mark: str, name: str) -> None:
    entry = plug_in(Probe, mark=mark)
    gateway = await start(entry, model={"endpoints": ["chat", "messages", "responses", "completions"]})
    got = await gateway.call(name, is_stream=True)
    heard = object_of(entry).heard
    seen = [event for method, event in heard if method == "event"]
    assert got.status == 200
    if name == "completions":  # the events of two prompts, which the client gets as one stream
        assert [method for method, _ in heard].count("end") == 2
        assert all(b'"choices"' in event or b"[DONE]" in event for event in seen)
        return
    assert b"".join(seen) == got.body
    assert [method for method, _ in heard if method != "event"] == ["before_attempt", "head", "end"]
    assert heard[-1] == ("end", (200, None, 10, 5, "reported"))


async def test_a_large_body_is_not_whole_and_has_its_bytes(start: Starts, mark: str) -> None:
    entry = plug_in(Probe, mark=mark)
    gateway = await start(entry)
    gateway.upstream.answer_with(ok_json(CHAT))
    messages = [{"role": "user", "content": "long " * 20_000}]
    got = await gateway.post("/v1/chat/completions", {"messages": messages})
    (call,) = object_of(entry).calls
    assert got.status == 200
    assert not call.is_whole
    assert call.request["messages"] != messages
    assert json.loads(call.body())["messages"] == messages


async def test_each_attempt_has_an_end(start: Starts, mark: str) -> None:
    entry, wrapper = plug_in(Probe, mark=mark), plug_in(Wrapper, mark=mark)
    gateway = await start(wrapper, entry, model={"routes": [{"upstream": "up"}, {"upstream": "other"}]})
    gateway.upstream.answer_with(error_json(503), ok_json(CHAT))
    got = await gateway.post("/v1/chat/completions", {"messages": MESSAGES})
    heard = object_of(entry).heard
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "2")
    (first, second) = [what for method, what in heard if method == "end"]
    assert (first, second) == ((503, "status", 0, 0, "none"), (200, None, 10, 5, "reported"))
    assert object_of(wrapper).heard == [
        ("around_attempt", (503, "status")), ("around_attempt", (200, None)), ("around_call", (200, None)),
    ]  # fmt: skip


async def test_a_refusal_of_an_upstream_and_a_failure_pass_plug_ins_unchanged(start: Starts, mark: str) -> None:
    entry, wrapper = plug_in(Probe, mark=mark), plug_in(Wrapper, mark=mark)
    gateway = await start(wrapper, entry, model={"max_attempts": 1})
    gateway.upstream.answer_with(error_json(400, message="too long", code="too_long"))
    refused = await gateway.post("/v1/chat/completions", {"messages": MESSAGES})
    gateway.upstream.answer_with(cut_stream(CHUNKS[:1]))
    cut = await gateway.post("/v1/chat/completions", {"messages": MESSAGES, "stream": True})
    assert (refused.status, refused.json["error"]["code"]) == (400, "too_long")
    assert cut.events[-1]["error"]["code"] == "upstream_error"
    assert object_of(wrapper).heard == [
        ("around_attempt", (400, "too_long")), ("around_call", (400, "too_long")),
        ("around_attempt", (200, "cut")), ("around_call", (200, "cut")),
    ]  # fmt: skip
    assert [what[:2] for method, what in object_of(entry).heard if method == "end"] == [(400, "too_long"), (200, "cut")]


async def test_attempts_with_another_model_are_shown(start: Starts, mark: str) -> None:
    entry = plug_in(Probe, mark=mark)
    gateway = await start(entry, model={"fallbacks": ["second"], "max_attempts": 1})
    gateway.upstream.answer_with(error_json(503), ok_json(CHAT))
    got = await gateway.post("/v1/chat/completions", {"messages": MESSAGES})
    asked = [what for method, what in object_of(entry).heard if method == "before_attempt"]
    assert (got.status, asked) == (200, [("up", "m"), ("other", "m")]) or asked == [("up", "m"), ("other", "second")]


async def test_two_attempts_at_once_have_one_end_each(start: Starts, mark: str) -> None:
    entry = plug_in(Probe, mark=mark)
    gateway = await start(
        entry, model={"routes": [{"upstream": "up"}, {"upstream": "other", "priority": 2}], "hedge_after": "1ms"}
    )
    is_asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def late(wire: Any) -> None:
        await until(lambda: gateway.upstream.hits > 1)
        await wire.until_gone()
        loop.call_soon_threadsafe(is_asked.set)

    gateway.upstream.answer_with(late, stream(CHUNKS))
    got = await gateway.post("/v1/chat/completions", {"messages": MESSAGES, "stream": True})
    await is_asked.wait()
    heard = object_of(entry).heard
    assert (got.status, got.headers["x-gateway-upstream"]) == (200, "other")
    assert sorted(what[:2] for method, what in heard if method == "end") == [(200, None), (499, "stopped")]
    assert b"".join(what for method, what in heard if method == "event") == got.body


async def test_a_client_that_leaves_is_an_end(start: Starts, mark: str) -> None:
    entry, wrapper = plug_in(Probe, mark=mark), plug_in(Wrapper, mark=mark)
    gateway = await start(wrapper, entry)

    async def hangs(wire: Any) -> None:
        await wire.until_gone()

    gateway.upstream.answer_with(hangs)
    asked = asyncio.ensure_future(gateway.post("/v1/chat/completions", {"messages": MESSAGES, "stream": True}))
    await until(lambda: gateway.upstream.hits)
    asked.cancel()
    heard, around = object_of(entry).heard, object_of(wrapper).heard
    await until(lambda: len(around) > 1)
    assert heard[-1] == ("end", (499, "stopped", 0, 0, "none"))
    assert around == [("around_attempt", "cancelled"), ("around_call", "cancelled")]
    await gateway.used()


# ------------------------------------------------------------------------------------------------------------- headers


@pytest.mark.parametrize("name", ["chat", "messages", "completions"])
async def test_a_plug_in_adds_headers_to_each_attempt(start: Starts, mark: str, name: str) -> None:
    entry = plug_in(Probe, mark=mark, adds={"X-Team": "red", "user-agent": "ours"})
    gateway = await start(entry)
    assert (await gateway.call(name)).status == 200
    sent = gateway.upstream.requests
    assert len(sent) == (2 if name == "completions" else 1)
    for each in sent:
        assert [value for header, value in each.header_lines if header == "x-team"] == ["red"]
        assert [value for header, value in each.header_lines if header == "user-agent"] == ["ours"]


@pytest.mark.parametrize(
    ("adds", "says"),
    [
        ({"Authorization": "Bearer x"}, "authorization is the gateway's own"),
        ({"Content-Length": "1"}, "content-length is the gateway's own"),
        ({"x-a": "1\r\nx-b: 2"}, "no line of ASCII"),
        ({"x a": "1"}, "a header whose name is none"),
        ({"x-a": 1}, "no line of ASCII"),
        ({"x-own": "1"}, "has the header x-own already"),
        ({"x-a": "1" * 8193}, "has more than 8192 characters"),
        (["x-a"], "has returned a list"),
    ],
)
async def test_a_header_that_cannot_be_added_is_a_fault(
    start: Starts, mark: str, adds: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = "http://127.0.0.1:9/v1"
    upstreams = {"up": {"base_url": url, "api_key": "k" * 20, "headers": {"X-Own": "mine"}}}
    gateway = await start(
        plug_in(Probe, mark=mark, adds=adds),
        upstreams=upstreams,
        models={"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9}},
    )
    got = await gateway.post("/v1/chat/completions", {"messages": MESSAGES})
    assert (got.status, got.json["error"]["code"], gateway.upstream.hits) == (500, "plugin_failed", 0)
    assert says in caplog.text
    assert await gateway.used() == 0


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("method", ["before_attempt", "around_attempt", "around_call"])
async def test_a_plug_in_refuses_in_the_words_of_each_format(start: Starts, method: str) -> None:
    gateway = await start(plug_in(Refuses, status=422, code="too_red", method=method))
    for is_stream in (False, True):
        chat = await gateway.call("chat", is_stream=is_stream)
        messages = await gateway.call("messages", is_stream=is_stream)
        assert (chat.status, messages.status, gateway.upstream.hits) == (422, 422, 0)
        assert (chat.json["error"]["code"], chat.json["error"]["type"]) == ("too_red", "invalid_request_error")
        assert messages.json["error"]["type"] == "invalid_request_error"
        assert chat.json["error"]["message"] == messages.json["error"]["message"] == "Not like this."
        assert chat.headers["x-should-retry"] == "false"
        assert chat.headers["x-ratelimit-remaining-tokens"]
        record = await gateway.record(chat)
        assert (record["status"], record["total_tokens"], await gateway.used()) == (422, 0, 0)
    assert await gateway.metric("gateway_plugin_refusals_total") == {'{plugin="refuses"}': 4.0}
    assert await gateway.metric("gateway_plugin_failures_total") == {}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"status": 200}, "a number from 400 to 599"),
        ({"status": "403"}, "a number from 400 to 599"),
        ({"code": "two words"}, "letters, digits and _"),
        ({"message": "  "}, "not empty"),
        ({"message": 7}, "not empty"),
    ],
)
async def test_a_refusal_that_no_client_could_read_is_a_fault(
    start: Starts, options: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(plug_in(Refuses, **options))
    got = await gateway.call("chat")
    assert (got.status, got.json["error"]["code"]) == (500, "plugin_failed")
    assert says in caplog.text


# -------------------------------------------------------------------------------------------------------------- faults

METHODS = ("before_attempt", "head", "event", "end")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", APIS)
async def test_a_fault_fails_its_call_in_each_format(
    start: Starts, mark: str, name: str, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(plug_in(Probe, mark=mark))
    used, is_of_both = 0, name == "completions"
    for method in METHODS if is_stream else ("before_attempt", "head", "end"):
        got = await gateway.call(name, is_stream=is_stream, fault=f"{method}.value")
        record = await gateway.record(got)
        if got.status == 200:  # a part of the stream had gone to the client
            assert is_stream
            assert method in ("event", "end")
            assert APIS[name].is_error(got.events[-1]), got.body
            assert b"[DONE]" not in got.body
        else:
            assert got.status == 500, got.body
            assert APIS[name].is_error(got.json), got.body
        assert (record["status"], record["ended"]) == (500, "error")
        used += record["total_tokens"]
        assert used == await gateway.used()
        assert (record["total_tokens"] == 0) == (method == "before_attempt")
        if method == "end" and not is_of_both:
            assert record["total_tokens"] == 15
        said = f"plug-in probe (plugins[0]) has failed in {method}, call {got.headers['x-request-id']}: ValueError"
        assert said in caplog.text
        failures = await gateway.metric("gateway_plugin_failures_total")
        assert failures[f'{{method="{method}",plugin="probe"}}'] in ((1, 2) if is_of_both else (1,))
    assert "samples.py" in caplog.text
    assert SECRET not in caplog.text
    blamed = {*await gateway.metric("gateway_upstream_attempts_total")}
    assert blamed <= ({'{outcome="client_gone",upstream="up"}'} if is_of_both else set())


WAYS = [
    (method, how)
    for method in METHODS
    for how in (
        "value",
        "exit",
        "interrupt",
        "cancelled",
        "deep",
        "coroutine",
        "type",
        "refuses",
        "closes",
        "empty",
        "unreadable",
    )
    if (method, how) != ("before_attempt", "refuses")
]


async def test_whatever_a_method_does_wrong_is_a_fault_of_its_call_alone(
    start: Starts, mark: str, caplog: pytest.LogCaptureFixture
) -> None:
    healthy = plug_in(Probe, mark=mark, is_healthy=True)
    gateway = await start(plug_in(Probe, mark=mark), healthy)
    for method, how in WAYS:
        caplog.clear()
        got = await gateway.call("chat", is_stream=True, fault=f"{method}.{how}")
        error = got.events[-1] if got.status == 200 else got.json
        assert error["error"]["code"] == "plugin_failed", (method, how, got.body)
        assert (await gateway.record(got))["status"] == 500
        assert caplog.text.count(f"plug-in probe (plugins[0]) has failed in {method}") == 1, (method, how)
        assert (await gateway.call("chat")).status == 200  # the worker serves on
    await gateway.used()
    ends = [what[0] for method, what in object_of(healthy).heard if method == "end"]
    assert len(ends) == 2 * len(WAYS) - sum(method == "before_attempt" for method, _ in WAYS)


async def test_events_behind_a_fault_do_not_reach_the_client_however_they_come(start: Starts, mark: str) -> None:
    gateway = await start(plug_in(Probe, mark=mark))
    pieces = [b"".join(map(event, CHUNKS)), b"data: [DONE]\n\n"]

    async def at_once(wire: Any) -> None:
        await wire.write(CHUNKED + b"".join(map(chunked, pieces)) + b"0\r\n\r\n")

    gateway.upstream.answer_with(at_once)
    body = {"messages": MESSAGES, "stream": True}
    got = await gateway.post("/v1/chat/completions", body, **tagged("event.second"))
    first, *others = got.events
    assert first["choices"][0]["delta"]["content"] == "one"
    assert [each["error"]["code"] for each in others] == ["plugin_failed"]
    assert (await gateway.record(got))["truncated"] is True


async def test_a_fault_is_not_repeated_elsewhere(start: Starts, mark: str) -> None:
    routes = [{"upstream": "up"}, {"upstream": "other", "priority": 2}]
    model = {"routes": routes, "fallbacks": ["second"], "hedge_after": "10s"}
    gateway = await start(plug_in(Probe, mark=mark), model=model)
    used = 0
    for method in METHODS:
        got = await gateway.call("chat", is_stream=True, fault=f"{method}.value")
        error = got.events[-1] if got.status == 200 else got.json
        assert error["error"]["code"] == "plugin_failed"
        assert gateway.upstream.hits == (0 if method == "before_attempt" else 1)
        record = await gateway.record(got)
        used += record["total_tokens"]
        assert (record["status"], used) == (500, await gateway.used())


async def test_the_end_of_a_failed_attempt_may_fail_too(start: Starts, mark: str) -> None:
    gateway = await start(plug_in(Probe, mark=mark), model={"max_attempts": 1})
    gateway.upstream.answer_with(error_json(503))
    got = await gateway.post("/v1/chat/completions", {"messages": MESSAGES}, **tagged("end.value"))
    assert (got.status, got.json["error"]["code"]) == (500, "plugin_failed")
    assert (await gateway.record(got))["total_tokens"] == await gateway.used() == 0


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("method", ["around_attempt", "around_call"])
async def test_a_wrapper_that_fails_before_the_call_is_settled_fails_it(
    start: Starts, mark: str, method: str, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(plug_in(Wrapper, mark=mark))
    ways = ("value", "exit", "cancelled", "deep", "closes", "empty")
    for how in (*[f"before_{each}" for each in ways], "skips", "task"):
        caplog.clear()
        got = await gateway.call("chat", is_stream=is_stream, fault=f"{method}.{how}")
        assert (got.status, got.json["error"]["code"]) == (500, "plugin_failed"), how
        assert caplog.text.count(f"plug-in wrapper (plugins[0]) has failed in {method}") == 1, how
        assert (await gateway.record(got))["status"] == 500
    assert (await gateway.used(), gateway.upstream.hits) == (0, 0)


@pytest.mark.parametrize("method", ["around_attempt", "around_call"])
async def test_a_wrapper_that_cancels_its_call_fails_it(start: Starts, mark: str, method: str) -> None:
    async def hangs(wire: Any) -> None:
        await wire.until_gone()

    gateway = await start(plug_in(Wrapper, mark=mark))
    gateway.upstream.answer_with(hangs)
    body = {"messages": MESSAGES, "stream": True}
    got = await gateway.post("/v1/chat/completions", body, **tagged(f"{method}.gives_up"))
    assert (got.status, got.json["error"]["code"]) == (500, "plugin_failed")
    assert (await gateway.record(got))["total_tokens"] == await gateway.used()


@pytest.mark.parametrize("method", ["around_attempt", "around_call"])
async def test_what_a_wrapper_does_wrong_behind_a_settled_call_withholds_no_answer(
    start: Starts, mark: str, method: str
) -> None:
    gateway = await start(plug_in(Wrapper, mark=mark))
    ways = ("value", "exit", "cancelled", "type", "refuses", "closes", "empty", "twice")
    for how in ways:
        for is_stream in (False, True):
            got = await gateway.call("chat", is_stream=is_stream, fault=f"{method}.{how}")
            assert got.status == 200
            assert (b"[DONE]" in got.body) is is_stream
            assert (await gateway.record(got))["status"] == 200
    times = 2 * len(ways)
    assert await gateway.used() == 15 * times
    failures = await gateway.metric("gateway_plugin_failures_total")
    assert failures == {f'{{method="{method}",plugin="wrapper"}}': times}


async def test_the_request_is_read_only(start: Starts) -> None:
    gateway = await start(plug_in(Changes))
    got = await gateway.call("chat")
    assert (got.status, got.json["error"]["code"], gateway.upstream.hits) == (500, "plugin_failed", 0)


async def test_a_method_that_holds_up_the_worker_is_logged_once_and_counted(
    start: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(plug_in(Slow))
    with caplog.at_level(logging.WARNING):
        assert [(await gateway.call("chat")).status for _ in range(2)] == [200, 200]
    assert caplog.text.count("plug-in slow (plugins[0]) has held up all calls") == 1
    assert await gateway.metric("gateway_plugin_slow_total") == {'{method="before_attempt",plugin="slow"}': 2.0}


# -------------------------------------------------------------------------------------------------- where it is listed


async def test_readiness_names_the_plug_ins(start: Starts, mark: str) -> None:
    gateway = await start(plug_in(Probe, mark=mark))
    async with gateway.client.get("/readyz") as answer:
        assert await answer.json() == {"status": "ready", "plugins": [{"name": "probe", "version": "0.1"}]}


async def test_without_plug_ins_readiness_says_nothing_of_them(start: Starts) -> None:
    gateway = await start()
    async with gateway.client.get("/readyz") as answer:
        assert await answer.json() == {"status": "ready"}
