"""A translated request is accepted by the API that it is sent to.

Judges are the types of the official SDKs, as JSON schemas, and the rules that these types do not hold (`RULES`), each
from a report of the API's own 400. A request is random, valid for its client by the client's official types, and full
of what the other API refuses. A refusal by the gateway names a parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.wings.translate import accepted
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


def bound_schemas(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each schema, at any depth, that binds the model in a request to Messages."""
    pending = [body.get("output_config", {}).get("format", {}).get("schema")]
    pending += [tool["input_schema"] for tool in body.get("tools", []) if tool.get("strict")]
    while pending:
        schema = pending.pop()
        if isinstance(schema, dict):
            yield schema
            pending += [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
            pending += [schema.get("items"), *schema.get("anyOf", []), *schema.get("allOf", [])]


def results_follow_calls(body: dict[str, Any]) -> bool:
    """Whether each call of a request to Messages has its one result in the next message, before all else there."""
    for message, following in pairwise([*body["messages"], {"content": []}]):
        calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        results = [block.get("tool_use_id") for block in following["content"][: len(calls)]]
        if sorted(calls) != sorted(map(str, results)):
            return False
    ids = [block["id"] for block in blocks_of(body, "tool_use")]
    return len(ids) == len(set(ids))


def calls_are_answered(body: dict[str, Any]) -> bool:
    """Whether each call of a chat is answered before any other message."""
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return False
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return False
        waiting += [call["id"] for call in message.get("tool_calls", [])]
    return not waiting


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
        "brokk-app#2269: pictures by https": lambda body: all(
            block["source"].get("url", "https://").startswith("https://") for block in blocks_of(body, "image")
        ),
        "litellm#23510, browseros-agent#106: one result for each call": results_follow_calls,
        "LibreChat#13162: each tool has another name": lambda body: (
            len({name for name, _ in tools_of(body)}) == len(body.get("tools", []))
        ),
        "n8n#30590: names of properties": lambda body: all(
            re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name)
            for _, schema in tools_of(body)
            for name in schema.get("properties", {})
        ),
        "anthropic-sdk, transform_schema: keywords of a schema that binds": lambda body: all(
            not {"minimum", "maximum", "pattern", "minLength", "maxItems", "oneOf"} & schema.keys()
            and schema.get("format") != "byte"
            and ("properties" not in schema or schema["additionalProperties"] is False)
            for schema in bound_schemas(body)
        ),
        "litellm#10106, anthropic-sdk: a user of at most 256 characters, and no address": lambda body: (
            "@" not in (user := (body.get("metadata") or {}).get("user_id") or "")
            and not user.startswith("+")
            and len(user) <= 256
        ),
        "MCP-Universe#49: temperature or top_p, where one is the default": lambda body: (
            not {"temperature", "top_p"} <= body.keys() or 1 not in (body["temperature"], body["top_p"])
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
        "bifrost#1000: a user of at most 64 characters": lambda body: len(body.get("user") or "") <= 64,
        "livekit/agents#1977: calls are answered before any other message": calls_are_answered,
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
BOUND = st.sampled_from([
    {"type": "object", "properties": {"x": {"type": "integer", "minimum": 1}}, "additionalProperties": False},
    {"type": "object", "properties": {"x": {"type": "string", "pattern": "a+", "minLength": 1}}, "required": ["x"]},
    {"type": "object", "properties": {"x": {"type": "array", "items": {"oneOf": [{"type": "string", "format": "byte"}]},
     "maxItems": 3}}}, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {}}}},
    {"type": "object"}, {"type": "object", "additionalProperties": {"type": "string"}},
])  # fmt: skip
USERS = st.sampled_from(["bob", "bob@x.test", "+49 170 123456", "u" * 100, "u" * 300])
ARGUMENTS = st.sampled_from(["", "{}", '{"x":1}'])
JPEG, PNG = "/9j/4AAQSkZJRg", "iVBORw0KGgoAAAAN"
IMAGES = st.sampled_from([
    f"data:image/jpg;base64,{JPEG}", f"data:image/png;base64,{JPEG}", f"data:image/png;base64,{PNG}",
    "data:image/heic;base64,AAAA", "data:image/webp;base64,UklGRg", "https://x.test/a.png", "http://x.test/a.png",
])  # fmt: skip


@st.composite
def chat_requests(draw: st.DrawFn) -> dict[str, Any]:
    image = IMAGES.map(lambda url: {"type": "image_url", "image_url": {"url": url}})
    parts = st.lists(TEXTS.map(lambda text: {"type": "text", "text": text}) | image, min_size=1, max_size=3)
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        match draw(st.sampled_from(["system", "developer", "user", "user", "assistant", "calls"])):
            case "calls":
                ids = draw(st.lists(IDS, min_size=1, max_size=2, unique=True) | st.just(["", ""]))
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
        functions = [{"name": name} for name in draw(st.lists(NAMES, min_size=1, max_size=3))]
        for function in functions:
            match draw(st.sampled_from(["none", "loose", "loose", "odd", "strict"])):
                case "loose":
                    function["parameters"] = draw(SCHEMAS)
                case "odd":
                    function["parameters"] = {"type": "object", "properties": {"filter[x]": {}}}
                case "strict":
                    function |= {"parameters": draw(BOUND), "strict": True}
        more["tools"] = [{"type": "function", "function": function} for function in functions]
        more |= draw(st.fixed_dictionaries({}, optional={
            "tool_choice": st.sampled_from(["auto", "none", "required"]), "parallel_tool_calls": st.booleans(),
        }))  # fmt: skip
    more |= draw(st.fixed_dictionaries({}, optional={
        "stop": st.sampled_from(["\n", "END", ["a", " "], []]), "temperature": st.sampled_from([0, 0.7, 1, 1.5]),
        "user": USERS, "max_tokens": st.just(9), "top_p": st.sampled_from([0.5, 1]),
        "response_format": BOUND.map(
            lambda each: {"type": "json_schema", "json_schema": {"name": "n", "schema": each, "strict": True}}
        ),
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
            messages.append({"role": "assistant", "content": [*draw(st.lists(texts | images, max_size=2)), *calls]})
            result = TEXTS | st.lists(texts | images, min_size=1, max_size=2)
            results = [{"type": "tool_result", "tool_use_id": each, "content": draw(result)} for each in ids]
            messages.append({"role": "user", "content": [*results, *draw(st.lists(texts, max_size=1))]})
        said = TEXTS | st.lists(texts | images, min_size=1, max_size=2)  # the gateway writes pictures of answers so
        messages.append({"role": "assistant", "content": draw(said)})
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
        "temperature": st.sampled_from([0, 1.0]),
        "metadata": USERS.map(lambda user: {"user_id": user}), "top_k": st.just(5),
        "output_config": SCHEMAS.map(lambda schema: {"format": {"type": "json_schema", "schema": schema}}),
    }))  # fmt: skip
    return {"model": "m", "max_tokens": 99, "messages": messages, **more}


@st.composite
def response_requests(draw: st.DrawFn) -> dict[str, Any]:
    image = IMAGES.map(lambda url: {"type": "input_image", "image_url": url, "detail": "auto"})
    parts = st.lists(TEXTS.map(lambda text: {"type": "input_text", "text": text}) | image, min_size=1, max_size=3)
    picture = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": JPEG}
    items: list[dict[str, Any]] = [{"role": "user", "content": draw(TEXTS | parts)}]
    for _ in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["user", "system", "developer", "assistant", "call", "picture"])):
            case "call":
                call = {"type": "function_call", "call_id": draw(IDS), "name": draw(LONG_NAMES), "arguments": "{}"}
                others = TEXTS.map(lambda text: {"role": "user", "content": text}) | st.just(picture)
                between = draw(st.lists(others, max_size=1))
                output = {"type": "function_call_output", "call_id": call["call_id"], "output": draw(TEXTS)}
                items += [call, *between, output]
            case "picture":
                items.append(picture)
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
@settings(max_examples=amount(150, 40))
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


def test_a_schema_that_refers_to_a_definition_is_that_definition() -> None:
    """Pydantic's schema of a model that contains itself (pydantic-ai#943)."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
    schema = {"$defs": {"Node": node}, "$ref": "#/$defs/Node"}
    for made in (accepted.messages_schema(schema), accepted.chat_schema(schema)):
        assert made == node | {"$defs": {"Node": node}}
    elsewhere = {"$ref": "https://example.org/schema"}
    assert accepted.chat_schema(elsewhere) == elsewhere | {"type": "object"}


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {"a": {}}, "description": "Last."}])
def test_a_long_description_goes_on_at_the_parameters(parameters: dict[str, Any] | None) -> None:
    """OpenAI refuses more than 1,024 characters (sentry-mcp#106)."""
    words = "word " * 500
    function = accepted.chat_function("look", words, parameters)
    assert len(function["description"]) <= 1024
    rest = function["parameters"]["description"].removesuffix("\n\nLast.")
    assert f"{function['description']} {rest}".split() == words.split()
    assert accepted.chat_function("look", "x" * 1024, None) == {"name": "look", "description": "x" * 1024}


HELLO = [{"role": "user", "content": "x"}]


def picture(url: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


def functions(*given: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "look", **each}} for each in given]}


@pytest.mark.parametrize(
    ("client", "members", "param"),
    [
        ("chat", picture("http://x.test/a.png"), "messages[0].content[0].image_url.url"),
        ("chat", functions({}, {}), "tools[1]"),
        ("chat", functions({"parameters": {"properties": {"filter[x]": {}}}}),
         "tools[0].function.parameters.properties"),
        ("chat", functions({"parameters": {"properties": {"x": {"type": "object"}}}, "strict": True}),
         "tools[0].function.parameters"),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
         "response_format.json_schema.schema"),
        ("messages", {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ],
)  # fmt: skip
def test_what_cannot_be_accepted_is_refused(client: str, members: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(CLIENTS[client], {"model": "m", "max_tokens": 9, "messages": HELLO, **members})
    assert refused.value.param == param


def test_other_keywords_go_to_the_description() -> None:
    """The right value is what Anthropic's SDK sends for the same schema, but for its way to write the words."""
    from anthropic import transform_schema

    schema = {
        "type": "object", "required": ["n"],
        "properties": {
            "n": {"type": "integer", "minimum": 1, "description": "How many"}, "s": {"type": "string", "pattern": "a+"},
            "l": {"type": "array", "items": {"oneOf": [{"type": "string", "format": "uuid"}]}, "minItems": 1},
            "o": {"type": "object", "properties": {}, "additionalProperties": True}, "r": {"$ref": "#/$defs/d"},
        },
        "$defs": {"d": {"type": "string", "format": "byte"}},
    }  # fmt: skip
    bound = accepted.binding_schema(schema)
    assert bound["properties"]["n"].pop("description") == 'How many\n\n{"minimum": 1}'
    assert bound["properties"]["s"].pop("description") == '{"pattern": "a+"}'
    assert bound["$defs"]["d"].pop("description") == '{"format": "byte"}'
    official = transform_schema(schema)
    for each in (official["properties"]["n"], official["properties"]["s"], official["$defs"]["d"]):
        del each["description"]
    assert bound == official


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"temperature": 0.5, "top_p": 1}, {"temperature": 0.5}), ({"temperature": 1, "top_p": 0.5}, {"top_p": 0.5}),
        ({"temperature": 1, "top_p": 1}, {"temperature": 1}), ({"top_p": 1}, {"top_p": 1}),
        ({"temperature": 0.5, "top_p": 0.5}, {"temperature": 0.5, "top_p": 0.5}),
    ],
)  # fmt: skip
def test_the_default_is_not_sent_beside_the_other(given: dict[str, float], sent: dict[str, float]) -> None:
    body = asked(CLIENTS["chat"], {"model": "m", "messages": HELLO, **given}).body
    assert {name: body[name] for name in ("temperature", "top_p") if name in body} == sent


def test_calls_with_one_id_have_their_own_results() -> None:
    """Gemini's chat endpoint gives empty ids (openai-agents-python#1959): results are in the order of the calls."""
    call = {"id": "", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    results = [{"role": "tool", "tool_call_id": "", "content": text} for text in ("one", "two")]
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call, call]}, *results]
    _, uses, answers = asked(CLIENTS["chat"], {"model": "m", "messages": messages}).body["messages"]
    assert [each["id"] for each in uses["content"]] == [each["tool_use_id"] for each in answers["content"]]
    assert [each["content"][0]["text"] for each in answers["content"]] == ["one", "two"]


def test_a_user_keeps_one_name() -> None:
    """A digest is the same in each call, and another for another user."""
    digests = {accepted.messages_user(user) for user in ("a@x.test", "b@x.test", "a@x.test")}
    assert len(digests) == 2
    for user in ("bob", "12345", "550e8400-e29b-41d4-a716-446655440000"):
        assert accepted.messages_user(user) == accepted.chat_user(user) == user


def test_the_members_of_a_good_schema_keep_their_order() -> None:
    """A model that reads templates (llama.cpp) has them in its prompt as they come."""
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]}
    for made in (accepted.chat_schema(schema), accepted.messages_schema(schema)):
        assert made == schema
        assert list(made) == list(schema)
