"""Formats that an upstream lacks, through a whole gateway: translated there and back, charged by the upstream's usage,
and failing in the client's own words."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways, StartsProcesses
from tests.fakes.scripted import (
    CHUNKED,
    Behaviour,
    Wire,
    answer,
    chunk,
    cut_stream,
    error_json,
    event,
    ok_json,
    raw,
    stalled_stream,
    stream,
)
from tests.flows.client import Answer, Raw
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings
from tests.wings.translate.translated import BASE, CREATED, GOLDEN, data_of

if TYPE_CHECKING:  # imported where they are used: importing an SDK costs every collecting process
    import anthropic
    import openai

PATHS = {"responses": "/v1/responses", "messages": "/v1/messages", "anthropic": "/v1/chat/completions"}
SENT_TO = {
    "responses": "/v1/chat/completions", "messages": "/v1/chat/completions", "anthropic": "/v1/messages",
}  # fmt: skip
ENDPOINTS = {"responses": "responses", "messages": "messages", "anthropic": "chat"}
ABLE: dict[str, dict[str, Any]] = {
    "responses": {"responses": "via_chat"},
    "messages": {"messages": "via_chat"},
    "anthropic": {"chat": "via_messages", "messages": True},
}
PREFIXES = {"responses": "resp_", "messages": "msg_", "anthropic": "chatcmpl-"}
QUOTAS = [{"tokens": 10_000_000, "per": "day"}, {"requests": 1_000_000, "per": "day"}]
SMALL: dict[str, dict[str, Any]] = {
    "responses": {"model": "responses", "input": "Hello"},
    "messages": {"model": "messages", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]},
    "anthropic": {"model": "anthropic", "messages": [{"role": "user", "content": "Hello"}]},
}
WAYS = sorted(SMALL)
TRANSLATED = ["messages", "responses"]
OF_CHAT = [way for way in WAYS if way != "anthropic"]
ABLE_OF_CHAT = {"messages": "via_chat", "responses": "via_chat"}


def way_of(name: str) -> str:
    return name.partition("/")[0]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """A model for each way; `NAME-native` behind a translated route has an upstream with the format itself."""
    native = {name: True for name in WAYS if name != "anthropic"}
    ups = {name: {"base_url": shared_upstream.url, "capabilities": able} for name, able in ABLE.items() if name in WAYS}
    ups["native"] = {"base_url": shared_upstream.url, "capabilities": native}
    models = {name: model(ENDPOINTS[name], name) for name in WAYS}
    for name in WAYS:
        routes = [{"upstream": name, "priority": 0}, {"upstream": "native", "priority": 1}]
        models[f"{name}-native"] = model(ENDPOINTS[name], routes=routes)
    keys = [key("alice", quotas=QUOTAS), key("bob")]
    return start_shared_gateway(settings(shared_upstream.url, upstreams=ups, models=models, keys=keys))


def ask(gateway: Gateway, way: str, who: str = "bob", **members: Any) -> Answer:
    return gateway.post(PATHS[way], {**SMALL[way], **members}, key=who)


def used(gateway: Gateway) -> dict[str, int]:
    """What alice has used, when nothing is reserved any more."""

    def look() -> dict[str, int] | None:
        rows = [row for row in gateway.get("/v1/key").json["quotas"] if row["scope"] == "key:alice"]
        return None if any(row["reserved"] for row in rows) else {row["unit"]: row["used"] for row in rows}

    return eventually(look)


def script_of(name: str) -> Behaviour:
    golden = GOLDEN[name]
    if "answer" in golden:
        return ok_json(golden["answer"])
    if way_of(name) == "anthropic":
        return stream([f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in golden["chunks"]],
                      done=False)  # fmt: skip
    return stream(golden["chunks"])


def normal(way: str, shown: Any, call_id: str) -> Any:
    """With the id and the time that the golden files have."""
    text = json.dumps(shown).replace(call_id.removeprefix("req_"), BASE)
    found = json.loads(text)
    for each in [found, *(found[name] for name in ("response",) if name in found)]:
        for name in ("created", "created_at", "completed_at"):
            if each.get(name):
                each[name] = CREATED
    return found


def without_estimates(shown: Any) -> Any:
    """Without the gateway's own estimates, which the golden files cannot know."""
    if shown.get("type") == "message_start":
        shown["message"]["usage"] = None
    return shown


# -------------------------------------------------------------------------------------------------------- golden files


@pytest.mark.parametrize("name", [name for name in GOLDEN if way_of(name) in WAYS])
def test_golden(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    golden, way = GOLDEN[name], way_of(name)
    upstream.answer_with(script_of(name))
    before = used(gateway)
    given = gateway.post(PATHS[way], {**golden["request"], "model": way})
    (request,) = upstream.requests
    assert request.path == SENT_TO[way]
    asked = {**request.json, "model": "m"}
    if golden["request"].get("stream") and way != "anthropic":
        assert asked.pop("stream_options") == {"include_usage": True}
    if "max_completion_tokens" not in golden["sent"]:
        asked.pop("max_completion_tokens", None)  # a limit that the quota needs
    golden_sent = dict(golden["sent"])
    if way == "anthropic" and "max_completion_tokens" not in golden["request"]:
        assert asked.pop("max_tokens") == golden_sent.pop("max_tokens") == 4096
    assert asked == golden_sent
    assert given.status == 200
    record = gateway.call(given.id)
    assert (record["endpoint"], record["status"], record["ended"]) == (ENDPOINTS[way], 200, "done")
    after = used(gateway)
    assert after["tokens"] - before["tokens"] == record["prompt_tokens"] + record["completion_tokens"]
    assert after["requests"] == before["requests"] + 1
    if "answer" in golden:
        assert given.headers["content-type"] == "application/json"
        assert normal(way, given.json, given.id) == {**golden["shown"], "model": given.json["model"]}
        check_usage(golden["shown"]["usage"], record)
        return
    assert given.headers["content-type"].startswith("text/event-stream")
    shown = [without_estimates(normal(way, each, given.id)) for each in data_of(given.body)]
    expected = [without_estimates(each) for each in json.loads(json.dumps(golden["shown"]))]
    if way == "responses" and not any(each.get("usage") for each in golden["chunks"]):
        reported = shown[-1]["response"].pop("usage")
        assert (reported["input_tokens"], reported["output_tokens"]) == (
            record["prompt_tokens"],
            record["completion_tokens"],
        )
        expected[-1]["response"].pop("usage")
    if "without-usage" not in name:
        assert shown == expected
    assert given.body.endswith(b"data: [DONE]\n\n") == (way == "anthropic")


def check_usage(usage: dict[str, Any], record: dict[str, Any]) -> None:
    """The record has the counts that the client is shown."""
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    if "cache_read_input_tokens" in usage:
        prompt += usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert record["prompt_tokens"] == prompt
    assert record["completion_tokens"] == usage.get("completion_tokens", usage.get("output_tokens"))
    assert record["usage_source"] == "reported"


@pytest.mark.skipif("responses" not in WAYS, reason="tools are left out of Responses only")
def test_tools_that_are_not_offered_are_named_in_a_header(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json(GOLDEN["responses/plain-text"]["answer"]))
    given = ask(gateway, "responses", tools=[{"type": "web_search"}, {"type": "function", "name": "f"}])
    assert given.headers["x-gateway-left-out"] == "tools[0].web_search"
    assert [each["type"] for each in given.json["tools"]] == ["function"]
    assert "x-gateway-left-out" not in ask(gateway, "responses").headers


# ------------------------------------------------------------------------------------------------- refusals and errors


def error_of(way: str, given: Answer) -> dict[str, Any]:
    """The error object in the client's format."""
    whole: dict[str, Any] = given.json
    if way == "messages":
        assert whole["type"] == "error"
        assert whole["request_id"] == given.id
    error: dict[str, Any] = whole["error"]
    return error


@pytest.mark.parametrize(
    ("way", "members", "named"),
    [row for row in [
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
        ("messages", {"container": "c"}, "container"),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ("anthropic", {"logprobs": True}, "logprobs"),
        ("anthropic", {"n": 2}, "n"),
    ] if row[0] in WAYS],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_before_anything_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, way: str, members: dict[str, Any], named: str
) -> None:
    upstream.answer_with()
    before = used(gateway)
    given = ask(gateway, way, "alice", **members)
    assert given.status == 400
    error = error_of(way, given)
    assert f"'{named}'" in error["message"]
    assert error["type"] == "invalid_request_error"
    assert upstream.requests == []
    assert used(gateway) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_route_with_the_format_itself_takes_what_cannot_be_translated(
    gateway: Gateway, upstream: ScriptedUpstream, way: str
) -> None:
    refused: dict[str, Any] = {
        "responses": {"truncation": "auto"}, "messages": {"inference_geo": "us"}, "anthropic": {"seed": 1},
    }[way]  # fmt: skip
    upstream.answer_with(always=ok_json({"id": "x", "usage": {}}))
    ask(gateway, way, model=f"{way}-native", **refused)
    (request,) = upstream.requests
    assert request.path == PATHS[way]
    assert request.json.items() >= refused.items()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_next_route_may_have_the_format_itself(
    gateway: Gateway, upstream: ScriptedUpstream, way: str, is_stream: bool
) -> None:
    """The translated route fails, and the other gets the client's own body."""
    plain = GOLDEN[f"{way}/plain-text"]["shown"]
    shown = b"".join(as_event(way, each) for each in GOLDEN[f"{way}/stream-text"]["shown"])
    good = raw(CHUNKED + chunk(shown) + b"0\r\n\r\n") if is_stream else ok_json(plain)
    upstream.answer_with(error_json(500), good)
    members = {"model": f"{way}-native", **({"stream": True} if is_stream else {})}
    given = ask(gateway, way, **members)
    assert given.status == 200
    assert [request.path for request in upstream.requests] == [SENT_TO[way], PATHS[way]]
    assert upstream.requests[-1].json.items() >= {**SMALL[way], **members}.items()
    record = gateway.call(given.id)
    assert (record["upstream"], record["status"]) == ("native", 200)


def as_event(way: str, data: dict[str, Any]) -> bytes:
    name = b"" if way == "anthropic" else f"event: {data['type']}\n".encode()
    return name + b"data: " + json.dumps(data).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("way", "param", "own"),
    [row for row in [
        ("responses", "messages[0].content", "input[0].content"),
        ("responses", "max_completion_tokens", "max_output_tokens"),
        ("messages", "stop", "stop_sequences"),
    ] if row[0] in WAYS],
)  # fmt: skip
def test_a_refusal_of_the_upstream_has_the_clients_names(
    gateway: Gateway, upstream: ScriptedUpstream, way: str, param: str, own: str
) -> None:
    refusal = {"type": "invalid_request_error", "param": param, "message": f"Invalid '{param}': too long."}
    upstream.answer_with(always=error_json(400, **refusal))
    given = ask(gateway, way)
    assert given.status == 400
    assert error_of(way, given)["message"] == f"Invalid '{own}': too long."
    if way == "responses":
        assert error_of(way, given)["param"] == own


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("script", "status"),
    [(error_json(500), 502), (error_json(429), 429), (answer(b"<html>"), 502), (ok_json([1]), 502)],
)
def test_failures_are_in_the_clients_words(
    gateway: Gateway, upstream: ScriptedUpstream, way: str, script: Behaviour, status: int, is_stream: bool
) -> None:
    upstream.answer_with(always=script)
    given = ask(gateway, way, **({"stream": True} if is_stream else {}))
    assert given.status == status
    assert error_of(way, given)["message"].startswith("The upstream for this model")
    assert gateway.call(given.id)["status"] == status


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_was_not_asked_for_is_a_failure(gateway: Gateway, upstream: ScriptedUpstream, way: str) -> None:
    """It has cost what the upstream reports."""
    if way == "anthropic":
        odd = {**GOLDEN["anthropic/plain-text"]["answer"], "content": [{"type": "server_tool_use"}]}
    else:
        odd = json.loads(json.dumps(GOLDEN["messages/plain-text"]["answer"]))
        odd["choices"][0]["message"]["content"] = [{"type": "video_url", "video_url": {"url": "data:"}}]
    upstream.answer_with(always=ok_json(odd))
    given = ask(gateway, way)
    assert given.status == 502
    assert "answered something else" in error_of(way, given)["message"]
    record = gateway.call(given.id)
    assert (record["ended"], record["prompt_tokens"] > 0) == ("error", True)


# -------------------------------------------------------------------------------------------------------- cut streams


def last_event(way: str, given: Answer) -> dict[str, Any]:
    """The event that ends a stream in failure, in the client's format."""
    last = data_of(given.body)[-1]
    if way == "responses":
        assert last["type"] == "response.failed"
        assert last["response"]["id"] == f"resp_{given.id.removeprefix('req_')}"
        assert last["response"]["status"] == "failed"
        error: dict[str, Any] = last["response"]["error"]
        return error
    assert last.get("type") == ("error" if way == "messages" else None)
    error = last["error"]
    return dict(error)


@pytest.mark.parametrize("count", range(1, 4))
@pytest.mark.parametrize("way", WAYS)
def test_a_cut_stream_ends_with_an_error(gateway: Gateway, upstream: ScriptedUpstream, way: str, count: int) -> None:
    chunks = GOLDEN[f"{way}/stream-text"]["chunks"]
    chunks = chunks if way != "anthropic" else [as_event("messages", each) for each in chunks]
    upstream.answer_with(cut_stream(chunks[:count]))
    given = ask(gateway, way, "alice", stream=True)
    assert given.status == 200
    assert "broke off" in last_event(way, given)["message"]
    if way == "responses":
        events = data_of(given.body)
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert b"[DONE]" not in given.body
    record = gateway.call(given.id)
    assert (record["ended"], record["truncated"], record["usage_source"]) == ("error", True, "estimated")
    assert len(upstream.requests) == 1  # a client has something of it: never twice


@pytest.mark.parametrize("way", OF_CHAT)
def test_every_cut_of_the_bytes_is_honest(gateway: Gateway, upstream: ScriptedUpstream, way: str) -> None:
    """If the connection ends before the finish_reason, at any byte, the client gets an error."""
    chunks = GOLDEN[f"{way}/stream-text"]["chunks"]
    whole = b"".join(event(each) for each in chunks)
    finish = whole.index(b'"stop"')
    for cut in range(len(event(chunks[0])), finish, 41):
        upstream.answer_with(raw(CHUNKED + chunk(whole[:cut]), then_close=True))
        given = ask(gateway, way, stream=True)
        assert "broke off" in last_event(way, given)["message"], cut


@pytest.mark.parametrize("way", OF_CHAT)
def test_an_error_inside_a_stream_is_in_the_clients_words(
    gateway: Gateway, upstream: ScriptedUpstream, way: str
) -> None:
    chunks = GOLDEN[f"{way}/stream-text"]["chunks"]
    upstream.answer_with(
        stream([*chunks[:2], {"error": {"message": "overloaded", "type": "server_error"}}], done=False)
    )
    given = ask(gateway, way, stream=True)
    assert "reported an error" in last_event(way, given)["message"]
    assert gateway.call(given.id)["truncated"]


@pytest.mark.parametrize("way", OF_CHAT)
def test_a_stream_that_cannot_be_translated_ends_with_an_error(
    gateway: Gateway, upstream: ScriptedUpstream, way: str
) -> None:
    chunks = GOLDEN[f"{way}/stream-text"]["chunks"]
    odd = {"choices": [{"index": 0, "delta": {"content": [{"type": "image"}]}, "finish_reason": "stop"}]}
    upstream.answer_with(stream([*chunks[:2], odd]))
    given = ask(gateway, way, stream=True)
    assert "answered something else" in last_event(way, given)["message"]


@pytest.mark.parametrize("way", WAYS)
def test_a_large_body_is_translated_too(gateway: Gateway, upstream: ScriptedUpstream, way: str) -> None:
    text = "word " * 40_000
    upstream.answer_with(ok_json(GOLDEN[f"{way}/plain-text"]["answer"]))
    members = {"input": text} if way == "responses" else {"messages": [{"role": "user", "content": text}]}
    assert ask(gateway, way, **members).status == 200
    content = upstream.requests[0].json["messages"][-1]["content"]
    assert content == ([{"type": "text", "text": text}] if way == "anthropic" else text)


@pytest.mark.parametrize("way", WAYS)
def test_the_upstream_gets_no_head_of_the_clients_api(gateway: Gateway, upstream: ScriptedUpstream, way: str) -> None:
    """Not its version, nor its query; an upstream with Messages gets the version that the translation writes."""
    upstream.answer_with(ok_json(GOLDEN[f"{way}/plain-text"]["answer"]))
    given = {"anthropic-version": "2026-10-21", "anthropic-beta": "x-1", "user-agent": "me"}
    gateway.post(PATHS[way] + "?beta=true", SMALL[way], key="bob", headers=given)
    (request,) = upstream.requests
    assert request.path == SENT_TO[way]
    assert request.headers.get("anthropic-version") == ("2023-06-01" if way == "anthropic" else None)
    assert "anthropic-beta" not in request.headers
    assert request.headers["user-agent"] == "me"


def test_tokens_are_not_counted_by_a_chat(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with()
    given = gateway.post("/v1/messages/count_tokens", SMALL["messages"], key="bob")
    assert given.status == 404
    assert error_of("messages", given)["type"] == "not_found_error"


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_is_charged_for_what_it_has(
    gateway: Gateway, upstream: ScriptedUpstream, way: str
) -> None:
    chunks = GOLDEN[f"{way}/stream-text"]["chunks"]
    chunks = chunks if way != "anthropic" else [as_event("messages", each) for each in chunks]
    upstream.answer_with(stalled_stream(chunks[:4] if way == "anthropic" else chunks[:3]))
    with Raw(gateway.port) as client:
        client.post(PATHS[way], json.dumps({**SMALL[way], "stream": True}).encode(), secret("alice"))
        call_id = client.read_head().headers["x-request-id"]
        client.read_until(b"Hi ")
    record = gateway.call(call_id)
    assert (record["endpoint"], record["ended"], record["status"]) == (ENDPOINTS[way], "client_gone", 499)
    assert record["usage_source"] == "estimated"
    assert record["completion_tokens"] > 0


@pytest.mark.parametrize("way", OF_CHAT)
def test_a_plain_answer_to_a_stream_becomes_events(gateway: Gateway, upstream: ScriptedUpstream, way: str) -> None:
    """The clients of these formats cannot read anything else, once they have asked for a stream."""
    upstream.answer_with(ok_json(GOLDEN[f"{way}/plain-text"]["answer"]))
    given = ask(gateway, way, stream=True)
    assert given.headers["content-type"].startswith("text/event-stream")
    events = data_of(given.body)
    assert "Hi!" in [
        each["delta"] if way == "responses" else each["delta"].get("text") for each in events if "delta" in each
    ]
    assert events[-1]["type"] == ("response.completed" if way == "responses" else "message_stop")
    assert gateway.call(given.id)["usage_source"] == "reported"


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_was_promised_events_gets_events(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, way: str
) -> None:
    """Comments have gone to the client before the plain answer came."""
    ups = {"main": {"base_url": upstream.url, "capabilities": ABLE[way]}}
    config = settings(upstream.url, upstreams=ups, models={way: model(ENDPOINTS[way])})
    made = start_gateway({**config, "server": {**config["server"], "keepalive_comment_s": 0.05}})

    async def slow(wire: Wire) -> None:
        await asyncio.sleep(0.4)
        await ok_json(GOLDEN[f"{way}/plain-text"]["answer"])(wire)

    upstream.answer_with(slow)
    given = ask(made, way, "alice", stream=True)
    assert given.headers["content-type"].startswith("text/event-stream")
    assert given.body.startswith((b": keepalive\n\n", b"event: ping\n"))
    assert b"Hi!" in given.body
    assert made.call(given.id)["status"] == 200


# ----------------------------------------------------------------------------------------- official SDKs, the simulator

TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
MODELS = ["gpt-4o-mini", "deepseek-reasoner"]


@pytest.mark.rest
def test_the_official_sdks_work_with_a_chat_only_upstream(
    start_gateway: StartsGateways, process: StartsProcesses
) -> None:
    """Texts, tools over two turns, streams, reasoning and usage, before the simulator, which has chat only; and the
    gateway's records agree with the simulator's own ledger."""
    import anthropic
    import httpx2
    import openai

    simulator = process("simulate", "--port", "0")
    address = simulator.wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    models = {name: model("chat", endpoints=TRANSLATED) for name in MODELS}
    made = start_gateway(settings(address, upstreams={"main": {"capabilities": ABLE_OF_CHAT}}, models=models))
    calls = 0
    with anthropic.Anthropic(base_url=made.url, api_key=secret("alice"), max_retries=0, timeout=60) as sdk:
        calls += messages_conversation(sdk)
    with openai.OpenAI(base_url=f"{made.url}/v1", api_key=secret("alice"), max_retries=0, timeout=60) as other:
        calls += responses_conversation(other)
    served = httpx2.get(address.removesuffix("/v1") + "/simulator/ledger").json()
    (row,) = made.usage(group_by="month")
    assert (row["requests"], row["errors"], row["estimated_tokens"]) == (calls, 0, 0)
    totals = served["totals"]
    assert row["total_tokens"] == totals["prompt_tokens"] + totals["completion_tokens"]
    assert {record["endpoint"] for record in made.calls()} == set(TRANSLATED)


def messages_conversation(sdk: anthropic.Anthropic) -> int:
    """Returns the number of calls."""
    calls = 0
    for name in MODELS:
        asked: Any = {"model": name, "max_tokens": 4000, "thinking": {"type": "adaptive"}, "extra_body": {"seed": 7}}
        question: Any = [{"role": "user", "content": "Hello"}]
        plain = sdk.messages.create(messages=question, **asked)
        with sdk.messages.stream(messages=question, **asked) as stream_:
            streamed = stream_.get_final_message()
        assert texts_of(streamed) == texts_of(plain)
        assert (streamed.usage.input_tokens, streamed.usage.output_tokens) == (
            plain.usage.input_tokens, plain.usage.output_tokens,
        )  # fmt: skip
        kinds = ["thinking", "text"] if "reasoner" in name else ["text"]
        assert [block.type for block in plain.content] == kinds
        tools: Any = [{"name": "weather", "input_schema": TOOL}]
        called = sdk.messages.create(messages=question, tools=tools, **asked)
        assert called.stop_reason == "tool_use"
        use = called.content[-1]
        assert use.type == "tool_use"
        assert set(use.input) == {"city"}
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny"}
        after: Any = [
            *question,
            {"role": "assistant", "content": called.content},
            {"role": "user", "content": [result]},
        ]
        assert sdk.messages.create(messages=after, tools=tools, **asked).stop_reason == "end_turn"
        short = sdk.messages.create(messages=question, **{**asked, "max_tokens": 3})
        assert short.stop_reason == "max_tokens"
        calls += 5
    return calls


def responses_conversation(sdk: openai.OpenAI) -> int:
    """Returns the number of calls."""
    from openai import BadRequestError

    calls = 0
    for name in MODELS:
        asked: Any = {"model": name, "extra_body": {"seed": 7}}
        plain = sdk.responses.create(input="Hello", **asked)
        with sdk.responses.stream(input="Hello", **asked) as stream_:
            events = [each.type for each in stream_]
            streamed = stream_.get_final_response()
        assert streamed.output_text == plain.output_text != ""
        assert streamed.usage == plain.usage
        assert plain.usage is not None
        assert (plain.usage.output_tokens_details.reasoning_tokens > 0) == ("reasoner" in name)
        assert events[0] == "response.created"
        assert events[-1] == "response.completed"
        assert [item.type for item in plain.output] == ["reasoning", "message"][-1 - ("reasoner" in name) :]
        tools: Any = [{"type": "function", "name": "weather", "parameters": TOOL, "strict": False}]
        called = sdk.responses.create(input="Hello", tools=tools, **asked)
        call = called.output[-1]
        assert call.type == "function_call"
        assert set(json.loads(call.arguments)) == {"city"}
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
        after: Any = [{"role": "user", "content": "Hello"}, *[item.to_dict() for item in called.output], result]
        assert sdk.responses.create(input=after, tools=tools, **asked).output[-1].type == "message"
        custom: Any = [{"type": "custom", "name": "apply_patch", "format": {"type": "text"}}, {"type": "web_search"}]
        with sdk.responses.stream(input="Hello", tools=custom, store=False, **asked) as stream_:
            deltas = [each.delta for each in stream_ if each.type == "response.custom_tool_call_input.delta"]
            patched = stream_.get_final_response()
        assert patched.output[-1].type == "custom_tool_call"
        assert patched.output[-1].input == "".join(deltas) != ""
        assert [tool.type for tool in patched.tools] == ["custom"]
        short = sdk.responses.create(input="Hello", **asked, max_output_tokens=16)
        assert short.status == "incomplete"
        assert short.incomplete_details is not None
        assert short.incomplete_details.reason == "max_output_tokens"
        with pytest.raises(BadRequestError) as caught:
            sdk.responses.create(input="Hello", truncation="auto", **asked)
        assert caught.value.param == "truncation"
        calls += 6
    return calls


def texts_of(message: Any) -> list[tuple[str, str]]:
    return [(block.type, getattr(block, block.type)) for block in message.content]
