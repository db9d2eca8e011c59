"""A translated request is accepted by the API that it is sent to.

Judges are the types of the official SDKs, as JSON schemas, and the rules that these types do not hold (`RULES`), each
from a report of the API's own 400. A request is random, valid for its client by the client's official types, and full
of what the other API refuses. A refusal by the gateway names a parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gateway.bridge.translate import accepted
from gateway.errors import InvalidRequest
from tests.amounts import amount

from .test_translate import sdk_message
from .translated import asked, streamed

CLIENTS = {"chat": "anthropic", "messages": "messages", "responses": "responses"}
"""The names of the ways in translated.py, by the client's format."""
TARGETS = {"chat": "messages", "messages": "chat", "responses": "chat"}


@cache
def validator(api: str) -> Any:
    import jsonschema
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
    from pydantic import TypeAdapter

    types = {
        "chat": CompletionCreateParamsNonStreaming,
        "messages": MessageCreateParamsNonStreaming,
        "responses": ResponseCreateParamsNonStreaming,
    }
    return jsonschema.Draft202012Validator(TypeAdapter(types[api]).json_schema())


# ----------------------------------------------------------------------------------------- rules that types do not hold


def tools_of(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the schema of each tool of a request to either API."""
    for tool in body.get("tools", []):
        function = tool.get("function", tool)
        yield function["name"], function.get("input_schema", function.get("parameters", {}))


def blocks_of(body: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    contents = [each["content"] for each in body["messages"] if isinstance(each["content"], list)]
    blocks = [block for content in contents for block in content]
    inner = [block["content"] for block in blocks if isinstance(block.get("content"), list)]
    return [block for block in [*blocks, *(each for content in inner for each in content)] if block["type"] == kind]


def strict_objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from strict_objects(value)


RULES: dict[str, dict[str, Callable[[dict[str, Any]], bool]]] = {
    "messages": {
        "opencodex#75: input_schema has the type object": lambda body: all(
            schema["type"] == "object" for _, schema in tools_of(body)
        ),
        "claude-code#5319: no combination at the top of a schema": lambda body: all(
            not {"oneOf", "allOf", "anyOf"} & schema.keys() for _, schema in tools_of(body)
        ),
        "cc-switch#1181: ids of calls": lambda body: all(
            re.fullmatch(r"[a-zA-Z0-9_-]+", block.get("id", block.get("tool_use_id")))
            for kind in ("tool_use", "tool_result")
            for block in blocks_of(body, kind)
        ),
        "claude-code#2485: names of tools": lambda body: all(
            re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
            for name in [
                *(name for name, _ in tools_of(body)),
                *(block["name"] for block in blocks_of(body, "tool_use")),
            ]
        ),
        "home-assistant#175637: no text of blanks": lambda body: all(
            block["text"].strip() for block in [*blocks_of(body, "text"), *body.get("system", [])]
        ),
        "opencode#1295: no blanks at the end of a last message of the assistant": lambda body: (
            body["messages"][-1]["role"] != "assistant"
            or body["messages"][-1]["content"][-1].get("text", "x")
            == body["messages"][-1]["content"][-1].get("text", "x").rstrip()
        ),
        "Anthropic.SDK#137: no message without content": lambda body: all(each["content"] for each in body["messages"]),
        "litellm#3286: no stop sequence of blanks": lambda body: all(map(str.strip, body.get("stop_sequences", []))),
        "hermes-agent#55432: types of pictures": lambda body: all(
            block["source"].get("media_type", "image/png") in ("image/jpeg", "image/png", "image/gif", "image/webp")
            for block in blocks_of(body, "image")
        ),
        "anthropic-sdk, MetadataParam: a user of at most 256 characters": lambda body: (
            len((body.get("metadata") or {}).get("user_id") or "") <= 256
        ),
        "Messages: temperature": lambda body: 0 <= body.get("temperature", 1) <= 1,
        "Messages: a tool choice needs tools": lambda body: "tool_choice" not in body or bool(body.get("tools")),
    },
    "chat": {
        "openclaw#875: ids of calls": lambda body: all(
            len(call_id) <= 40
            for each in body["messages"]
            for call_id in [*(call["id"] for call in each.get("tool_calls", [])), each.get("tool_call_id", "")]
        ),
        "ida-pro-mcp#129: names of tools": lambda body: all(
            re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
            for name in [
                *(name for name, _ in tools_of(body)),
                *(call["function"]["name"] for each in body["messages"] for call in each.get("tool_calls", [])),
            ]
        ),
        "spring-ai#4776: the schema of an object has properties": lambda body: all(
            not schema or (schema["type"] == "object" and "properties" in schema) for _, schema in tools_of(body)
        ),
        "langchainjs#9804: no combination at the top of a schema": lambda body: all(
            not {"oneOf", "allOf", "anyOf"} & schema.keys() for _, schema in tools_of(body)
        ),
        "trae-agent#173: strict schemas": lambda body: all(
            inner.get("additionalProperties") is False and set(inner.get("required", [])) == set(inner["properties"])
            for tool in body.get("tools", [])
            if tool["function"].get("strict")
            for inner in strict_objects(tool["function"]["parameters"])
        ),
        "openai-openapi, StopConfiguration: at most 4": lambda body: len(body.get("stop") or []) <= 4,
        "openai-openapi: a tool choice needs tools": lambda body: "tool_choice" not in body or bool(body.get("tools")),
    },
}


def assert_accepted(api: str, body: dict[str, Any]) -> None:
    faults = [error.message[:200] for error in validator(api).iter_errors(body)]
    assert faults == []
    assert [rule for rule, holds in RULES[api].items() if not holds(body)] == []


# ------------------------------------------------------------------------------------------------------ random requests

TEXTS = st.sampled_from(["Hello", "", " ", "\n\n", "ends with blanks \n", "\u00e9\U0001f600", "x" * 50])
NAMES = st.sampled_from(["look", "a-b_c", "n" * 64])
LONG_NAME = "mcp__plugin_some-tools_chrome-devtools__get_console_message_of_page"
LONG_NAMES = st.sampled_from(["look", LONG_NAME, "a.b", "n" * 100])
IDS = st.sampled_from(
    ["call_1", "functions.look:0", "toolu_01A09q90qw90lq917835lq9", "c" * 64, "call_x|fc_y", "\u00e9"]
)
SCHEMAS = st.sampled_from([
    {}, {"type": "object"}, {"properties": {"x": {"type": "string"}}},
    {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": False},
    {"type": "object", "properties": {"x": {"type": "object", "properties": {"y": {}}}}, "required": ["x"],
     "additionalProperties": False},
    {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]},
    {"allOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": [{"type": "object"}, {"type": "object", "properties": {"c": {}}}]},
])  # fmt: skip
ARGUMENTS = st.sampled_from(["", "{}", '{"x":1}'])
JPEG, PNG = "/9j/4AAQSkZJRg", "iVBORw0KGgoAAAAN"
IMAGES = st.sampled_from([
    f"data:image/jpg;base64,{JPEG}", f"data:image/png;base64,{JPEG}", f"data:image/png;base64,{PNG}",
    "data:image/heic;base64,AAAA", "data:image/webp;base64,UklGRg", "https://x.test/a.png",
])  # fmt: skip


@st.composite
def chat_requests(draw: st.DrawFn) -> dict[str, Any]:
    image = IMAGES.map(lambda url: {"type": "image_url", "image_url": {"url": url}})
    parts = st.lists(TEXTS.map(lambda text: {"type": "text", "text": text}) | image, min_size=1, max_size=3)
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        match draw(st.sampled_from(["system", "developer", "user", "user", "assistant", "calls"])):
            case "calls":
                ids = draw(st.lists(IDS, min_size=1, max_size=2, unique=True))
                functions = [{"name": draw(NAMES), "arguments": draw(ARGUMENTS)} for _ in ids]
                calls = [
                    {"id": each, "type": "function", "function": function}
                    for each, function in zip(ids, functions, strict=True)
                ]
                messages.append({"role": "assistant", "content": draw(st.none() | TEXTS), "tool_calls": calls})
                messages += [{"role": "tool", "tool_call_id": each, "content": draw(TEXTS)} for each in ids]
            case "user":
                messages.append({"role": "user", "content": draw(TEXTS | parts)})
            case role:
                messages.append({"role": role, "content": draw(TEXTS)})
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        functions = [{"name": name} for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))]
        for function in functions:
            if draw(st.booleans()):
                function["parameters"] = draw(SCHEMAS)
        more["tools"] = [{"type": "function", "function": function} for function in functions]
        more |= draw(st.fixed_dictionaries({}, optional={
            "tool_choice": st.sampled_from(["auto", "none", "required"]), "parallel_tool_calls": st.booleans(),
        }))  # fmt: skip
    more |= draw(st.fixed_dictionaries({}, optional={
        "stop": st.sampled_from(["\n", "END", ["a", " "], []]), "temperature": st.sampled_from([0, 0.7, 1, 1.5]),
        "user": st.sampled_from(["bob", "u" * 300]), "max_tokens": st.just(9), "top_p": st.just(0.5),
    }))  # fmt: skip
    return {"model": "m", "messages": messages, **more}


@st.composite
def message_requests(draw: st.DrawFn) -> dict[str, Any]:
    texts = TEXTS.map(lambda text: {"type": "text", "text": text})
    images = st.sampled_from(["image/png", "image/jpeg"]).map(
        lambda kind: {"type": "image", "source": {"type": "base64", "media_type": kind, "data": PNG}}
    )
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 3))):
        messages.append({"role": "user", "content": draw(TEXTS | st.lists(texts | images, min_size=1, max_size=3))})
        if draw(st.booleans()):
            ids = draw(st.lists(IDS, min_size=1, max_size=2, unique=True))
            calls = [{"type": "tool_use", "id": each, "name": draw(LONG_NAMES), "input": {"x": 1}} for each in ids]
            messages.append({"role": "assistant", "content": [*draw(st.lists(texts, max_size=1)), *calls]})
            result = TEXTS | st.lists(texts | images, min_size=1, max_size=2)
            results = [{"type": "tool_result", "tool_use_id": each, "content": draw(result)} for each in ids]
            messages.append({"role": "user", "content": [*results, *draw(st.lists(texts, max_size=1))]})
        messages.append({"role": "assistant", "content": draw(TEXTS | st.lists(texts, min_size=1, max_size=2))})
    messages.append({"role": "user", "content": "Go on"})
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        names = draw(st.lists(LONG_NAMES, min_size=1, max_size=3, unique=True))
        schemas = SCHEMAS.map(lambda schema: {"type": "object", **schema})
        more["tools"] = [
            {"name": name, "input_schema": draw(schemas), **draw(st.sampled_from([{}, {"strict": True}]))}
            for name in names
        ]
        choices = [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": names[0]}]
        more |= draw(st.fixed_dictionaries({}, optional={"tool_choice": st.sampled_from(choices)}))
    more |= draw(st.fixed_dictionaries({}, optional={
        "system": TEXTS | st.lists(texts, max_size=2), "stop_sequences": st.lists(st.just("END"), max_size=6),
        "temperature": st.sampled_from([0, 1.0]), "metadata": st.just({"user_id": "u"}), "top_k": st.just(5),
        "output_config": SCHEMAS.map(lambda schema: {"format": {"type": "json_schema", "schema": schema}}),
    }))  # fmt: skip
    return {"model": "m", "max_tokens": 99, "messages": messages, **more}


@st.composite
def response_requests(draw: st.DrawFn) -> dict[str, Any]:
    image = IMAGES.map(lambda url: {"type": "input_image", "image_url": url, "detail": "auto"})
    parts = st.lists(TEXTS.map(lambda text: {"type": "input_text", "text": text}) | image, min_size=1, max_size=3)
    items: list[dict[str, Any]] = [{"role": "user", "content": draw(TEXTS | parts)}]
    for _ in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["user", "system", "developer", "assistant", "call"])):
            case "call":
                call = {"type": "function_call", "call_id": draw(IDS), "name": draw(LONG_NAMES), "arguments": "{}"}
                items += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": draw(TEXTS)}]
            case "user":
                items.append({"role": "user", "content": draw(TEXTS | parts)})
            case role:
                items.append({"role": role, "content": draw(TEXTS)})
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["tools"] = [
            {"type": "function", "name": name, "parameters": draw(SCHEMAS), "strict": False}
            for name in draw(st.lists(LONG_NAMES, min_size=1, max_size=3, unique=True))
        ]
        more |= draw(st.fixed_dictionaries({}, optional={"tool_choice": st.sampled_from(["auto", "none", "required"])}))
    more |= draw(st.fixed_dictionaries({}, optional={"instructions": TEXTS, "max_output_tokens": st.just(99)}))
    return {"model": "m", "input": items, **more}


def sent_or_refused(client: str, request: dict[str, Any]) -> Any:
    try:
        return asked(CLIENTS[client], request).body
    except InvalidRequest as refused:
        return refused


REQUESTS = {"chat": chat_requests(), "messages": message_requests(), "responses": response_requests()}


@pytest.mark.shortened
@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@settings(deadline=None, max_examples=amount(150, 40), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_translated_request_is_accepted(client: str, is_stream: bool, data: st.DataObject) -> None:
    request = data.draw(REQUESTS[client])
    assert [error.message[:200] for error in validator(client).iter_errors(request)] == []
    sent = sent_or_refused(client, request | ({"stream": True} if is_stream else {}))
    if isinstance(sent, InvalidRequest):
        event(f"refused: {sent.param}")
        assert sent.param
        return
    assert_accepted(TARGETS[client], {name: value for name, value in sent.items() if name != "stream"})
    assert sent.get("stream", False) == is_stream


def test_ids_come_back_as_they_were() -> None:
    for call_id in ("functions.look:0", "call_1", "call_x|fc_y", "\u00e9", "toolu_01A"):
        there = accepted.messages_id(call_id)
        assert re.fullmatch(r"[a-zA-Z0-9_-]+", there)
        assert accepted.chat_id(there) == call_id
    assert len(accepted.chat_id("c" * 64)) <= 40
    assert accepted.chat_id("c" * 64) != accepted.chat_id("c" * 63 + "d")


def test_a_client_of_messages_gets_its_own_names_and_acceptable_ids() -> None:
    request = {
        "model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": LONG_NAME, "input_schema": {"type": "object"}}],
    }  # fmt: skip
    there = asked("messages", request).body["tools"][0]["function"]["name"]
    assert len(there) <= 64 < len(LONG_NAME)
    call = {"index": 0, "id": "functions.look:0", "function": {"name": there, "arguments": "{}"}}
    said = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}]
    (block,) = sdk_message(streamed("messages", request, said)).content
    assert (block.name, accepted.chat_id(block.id)) == (LONG_NAME, "functions.look:0")
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", block.id)


def test_a_combined_schema_keeps_its_properties() -> None:
    schema = {
        "allOf": [{"properties": {"a": {}}, "required": ["a"]}],
        "anyOf": [{"properties": {"b": {}}, "required": ["b"]}],
    }
    assert accepted.messages_schema(schema) == {
        "type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"],
    }  # fmt: skip
    assert accepted.chat_schema({"type": "object"}) == {"type": "object", "properties": {}}
