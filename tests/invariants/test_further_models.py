"""Models that a body names for a router behind the upstream are ones that the key may use, and are charged by their
prices, at every door."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from gateway.api.multipart import FormPart
from gateway.api.prompt_tokens import no_counter
from gateway.api.validate import MAX_THINKING
from gateway.config import Model, ModelTable
from gateway.errors import InvalidRequest
from gateway.formats.format import no_json
from gateway.formats.table import FORMATS
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import TYPE, form
from tests.fakes.scripted import Wire, ok_json
from tests.flows.gateway_process import CHAT, Gateway, key, model, settings
from tests.flows.test_complaints import BODIES, FORMS

OWN, DEAR, HIDDEN = CHAT, "dear", "hidden"
DOORS = [name for name, spec in FORMATS.items() if spec.read is not no_json and name not in ("realtime", "batches")]
"""A session has no such members, and a batch has the requests of its file, whose formats are here."""
IN_JSON = BODIES | {"image_edits": {"prompt": "Hello", "images": [{"image_url": "data:image/png;base64,AAAA"}]}}
UNREAD: list[dict[str, Any]] = [
    {"Models": [DEAR]},
    {"models": DEAR},
    {"models": [{"model": DEAR}]},
    {"models": ["x"] * 17},
    {"fallback_models": [DEAR]},
    {"context_window_fallbacks": [{OWN: [DEAR]}]},
    {"contentPolicyFallbacks": [DEAR]},
    {"user_config": {"model_list": [{"model_name": OWN, "litellm_params": {"model": DEAR}}]}},
    {"router_settings_override": {"fallbacks": [{OWN: [DEAR]}]}},
    {"providerOptions": {"gateway": {"models": [DEAR]}}},
    {"provider_options": {"Gateway": {"models": [DEAR]}}},
    {"extra_body": {"model": DEAR}},
    {"extra_body": {"Model": DEAR}},
    {"extra_body": {"fallbacks": [DEAR]}},
    {"extra_body": {"extra_body": {"model": DEAR}}},
    {"extra_body": {"plugins": [{"id": "fusion"}]}},
    {"plugins": [{"id": "fusion", "analysis_models": [DEAR]}]},
    {"plugins": [{"id": "new", "options": {"model": DEAR}}]},
    {"plugins": {"id": "fusion"}},
    {"tools": [{"type": "openrouter:fusion", "parameters": {"analysis_models": [DEAR]}}]},
    {"tools": [{"type": "openrouter:advisor", "parameters": {"model": DEAR}}]},
    {"tools": [{"type": "openrouter:subagent"}]},
    {"tools": [{"type": "openrouter:image_generation", "parameters": {"model": DEAR}}]},
    {"tools": [{"type": "openrouter:image_generation"}]},
    {"tools": [{"type": "openrouter:web_fetch", "parameters": {"engine": "exa"}}]},
    {"tools": [{"type": "openrouter:shell"}]},
    {"tools": [{"type": "OpenRouter:new_tool"}]},
    {"tools": [{"type": "orq:expert"}]},
    {"plugins": [{"id": "file-parser", "pdf": {"engine": "mistral-ocr"}}]},
    {"compound_custom": {"models": {"answering_model": DEAR}}},
    {"Compound_Custom": {"Models": {"Answering_Model": DEAR}}},
    {"data_sources": [{"type": "azure_search", "parameters": {"embedding_dependency": {"deployment_name": DEAR}}}]},
    {"context_window_fallback_dict": {OWN: DEAR}},
    {"extra_body": {"compound_custom": {"models": {"answering_model": DEAR}}}},
    {"svg": {"model": DEAR, "reasoning": {"effort": "max"}}},
    {"tools": [{"type": "image_generation", "svg": {"model": DEAR}}]},
    {"tools": [{"type": "image_generation", "output_format": "svg"}]},
    {"generationConfig": {"routingConfig": {"manualMode": {"modelName": DEAR}}}},
    {"generationConfig": {"routingConfig": {"autoMode": {"modelRoutingPreference": "PRIORITIZE_QUALITY"}}}},
    {"tools": [{"retrieval": {"vertexRagStore": {"ragRetrievalConfig": {"llmRanker": {"modelName": DEAR}}}}}]},
    {"judge_model": DEAR},
    {"lora_path": "finance"},
    {"lora": [{"id": 1, "scale": 1}]},
    {"adapter_id": "finance", "adapter_source": "hub"},
]
"""Forms that a router or an upstream may read and the gateway does not."""

SVG_TOOL = {"type": "image_generation", "output_format": "svg"}
ADDED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"type": "advisor", "model": DEAR}}}
IN_CONTENT: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, ADDED]}]}),
    ("responses", {"input": [{"type": "additional_tools", "tools": [{"type": "advisor", "svg": {"model": DEAR}}]}]}),
    ("responses", {"input": [{"type": "additional_tools", "tools": [{"type": "openrouter:fusion"}]}]}),
    ("responses", {"input": [{"type": "tool_search_output", "tools": [{"type": "openrouter:shell"}]}]}),
    ("responses", {"input": [{"type": "additional_tools", "tools": [{"type": "another:expert"}]}]}),
    ("responses", {"input": [{"type": "additional_tools", "tools": [SVG_TOOL]}], "tools": [{"type": "web_search"}]}),
    (
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "tool_addition", "tool": {"type": "orq:expert"}}]}]},
    ),
    ("chat", {"messages": [{"role": "user", "content": "Hi", "tools": [{"type": "advisor", "model": DEAR}]}]}),
]
ARGUMENTS = {"model": "car", "tools": [{"model": "drill"}], "deployment_name": "x"}
OF_CALLERS: list[tuple[str, dict[str, Any]]] = [
    (
        "messages",
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": ARGUMENTS}]}
            ]
        },
    ),
    (
        "chat",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"properties": {"model": {"type": "string"}}}},
            },
        },
    ),
    ("chat", {"guided_json": {"properties": {"model": {"type": "string"}}}, "metadata": {"model": "x"}}),
    ("messages", {"tools": [{"name": "f", "input_schema": {}, "input_examples": [ARGUMENTS]}]}),
    ("messages", {"tools": [{"type": "mcp_toolset", "configs": {"list_models": {"enabled": True}}}]}),
    ("responses", {"prompt": {"id": "pmpt_1", "variables": {"model": "x"}}}),
    (
        "responses",
        {"input": [{"type": "image_generation_call", "id": "ig_1", "result": "AA", "svg_usage": {"model": "x"}}]},
    ),
    (
        "generate_content",
        {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "args": ARGUMENTS}}]}]},
    ),
    (
        "generate_content",
        {"labels": {"model": "x"}, "generationConfig": {"responseSchema": {"properties": {"model": {}}}}},
    ),
    (
        "generate_content",
        {"tools": [{"functionDeclarations": [{"name": "f", "parameters": {"properties": {"model": {}}}}]}]},
    ),
]
"""Names inside of what callers write themselves: arguments, schemas, labels."""


def body(name: str, **members: Any) -> dict[str, Any]:
    given = IN_JSON[name] if FORMATS[name].has_model_in_path else {"model": OWN} | IN_JSON[name]  # type: ignore[index]
    if name == "message_batches":
        (request,) = given["requests"]
        return {"requests": [request | {"params": request["params"] | members}]}
    return given | members


def read(name: str, **members: Any) -> tuple[str, ...]:
    raw = json.dumps(body(name, **members)).encode()
    return FORMATS[name].read(raw, no_counter).other_models  # type: ignore[index]


@pytest.mark.parametrize("name", DOORS)
def test_no_model_is_named_unread(name: str) -> None:
    for member in ("models", "fallbacks"):
        try:
            found = read(name, **{member: [DEAR]})
        except InvalidRequest:
            continue  # such as a batch, whose requests name one model
        assert found == (DEAR,)
    for members in UNREAD:
        with pytest.raises(InvalidRequest):
            read(name, **members)
    assert read(name, models=[], fallbacks=None, disable_fallbacks=True, providerOptions={"gateway": {}}) == ()
    assert read(name, plugins=[{"id": "web"}], extra_body={"google": {"thinking_config": {}}}) == ()


@pytest.mark.parametrize("name", ["chat", "responses"])
def test_the_model_of_a_moderation_is_compared(name: str) -> None:
    assert read(name, moderation={"model": DEAR, "policy": {"input": {"mode": "score"}}}) == (DEAR,)
    with pytest.raises(InvalidRequest, match=r"moderation\.model"):
        read(name, moderation={"model": ""})


@pytest.mark.parametrize(("name", "members"), IN_CONTENT)
def test_no_tool_in_the_content_names_a_model(name: str, members: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read(name, **members)


@pytest.mark.parametrize("of", ["tool", "model", "openrouter"])
def test_escaped_letters_hide_no_tool(of: str) -> None:
    block = json.dumps(ADDED if of != "openrouter" else {**ADDED, "tool": {"type": "openrouter:fusion"}})
    raw = json.dumps(body("messages", messages=[{"role": "user", "content": ["BLOCK"]}])).replace('"BLOCK"', block)
    head, mark, rest = raw.rpartition(of)
    with pytest.raises(InvalidRequest):
        FORMATS["messages"].read(f"{head}\\u00{ord(mark[0]):x}{mark[1:]}{rest}".encode(), no_counter)


@pytest.mark.parametrize(("name", "members"), OF_CALLERS)
def test_callers_use_any_names(name: str, members: dict[str, Any]) -> None:
    assert read(name, **members) == ()


@pytest.mark.parametrize("name", ["svg[model]", "svg.model", "svg"])
def test_no_field_of_a_form_names_a_model(name: str) -> None:
    value = DEAR if name != "svg" else json.dumps({"model": DEAR})
    given = [FormPart("model", 0, 0, OWN), FormPart(name, 0, 0, value)]
    for each in FORMS:
        read_form = FORMATS[each].read_form  # type: ignore[index]
        assert read_form is not None
        with pytest.raises(InvalidRequest, match="svg"):
            read_form(cast(Any, None), given, no_counter)


@pytest.mark.parametrize("members", [{"output_format": "svg"}, {"svg": {"reasoning": {"effort": "max"}}}])
@pytest.mark.parametrize("name", ["images", "image_edits"])
def test_no_picture_is_written_by_a_language_model(name: str, members: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="SVG"):
        read(name, **members)
    assert read(name, output_format="webp") == ()


@pytest.mark.parametrize("name", ["deferred", "Deferred", "n_predict", "nPredict", "n_cmpl"])
def test_no_other_name_has_an_upstream_make_more(name: str) -> None:
    for members in ({name: -1}, {"extra_body": {name: 9}}):
        with pytest.raises(InvalidRequest) as refused:
            read("chat", **members)
        assert refused.value.param == name
    assert read("chat", **{name: None}) == ()


@pytest.mark.parametrize(
    ("members", "most"),
    [
        ({}, 0), ({"enable_thinking": False}, 0), ({"enable_thinking": False, "thinking_budget": 0}, 0),
        ({"thinking_budget": 38_000}, 38_000), ({"enable_thinking": True}, MAX_THINKING),
        ({"extra_body": {"enable_thinking": True, "thinking_budget": 500}}, 500),
    ],
)  # fmt: skip
def test_thinking_that_a_limit_does_not_count_is_reserved(members: dict[str, Any], most: int) -> None:
    raw = json.dumps(body("chat", max_tokens=9, **members)).encode()
    assert FORMATS["chat"].read(raw, no_counter).output_limit == 9 + most


@pytest.mark.parametrize("member", ["max_tokens", "n", "service_tier", "messages", "tools", "Max_Tokens", "n[]"])
def test_an_extra_body_replaces_nothing_that_was_read(member: str) -> None:
    with pytest.raises(InvalidRequest):
        read("chat", extra_body={member: 5})
    assert read("chat", tools=[{"type": "function", "function": {"name": "f", "parameters": {"model": "x"}}}]) == ()
    with pytest.raises(InvalidRequest):
        read("chat", tools=[{"type": "advisor_20260301", "name": "advisor", "model": DEAR}])


SCHEMA = {"type": "object", "properties": {"model": {"type": "string"}, "fallback_models": {"type": "array"}}}


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("chat", {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}),
        ("chat", {"type": "custom", "name": "f", "input_schema": SCHEMA}),
        ("chat", {"type": "mcp", "server_url": "https://tools.example", "headers": {"X-Model": "x"}}),
        ("responses", {"type": "function", "name": "f", "parameters": SCHEMA}),
        ("responses", {"type": "tool_search", "execution": "client", "parameters": SCHEMA}),
        ("messages", {"type": "custom", "name": "f", "input_schema": SCHEMA}),
    ],
)
def test_the_schema_of_a_clients_own_tool_names_no_model(name: str, tool: dict[str, Any]) -> None:
    assert read(name, tools=[tool]) == ()
    assert read(name, tools=[tool], unknown=1) == ()


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    def of(endpoint: str, output: int, **more: Any) -> dict[str, Any]:
        return model(endpoint, price={"input": 1, "output": output}, **more)

    models = {
        OWN: of("chat", 1),
        DEAR: of("chat", 100, routes=[{"upstream": "main", "model": "vendor/dear"}], limits={"max_tokens": 50}),
        HIDDEN: of("chat", 1),
        "scribe": model("transcriptions"),
    }
    keys = [key("alice", models=[OWN, DEAR, "scribe"]), key("bob", models=[OWN])]
    return start_shared_gateway(settings(shared_upstream.url, models=models, keys=keys))


def served_by(name: str | None) -> Any:
    async def behaviour(wire: Wire) -> None:
        answer = {
            "id": "c", "object": "chat.completion", "created": 1, "model": name,
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20},
        }  # fmt: skip
        await ok_json(answer)(wire)

    return behaviour


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("member", ["models", "fallbacks"])
def test_a_router_gets_only_models_of_the_key(
    gateway: Gateway, upstream: ScriptedUpstream, member: str, size: int
) -> None:
    turns = [{"role": "user", "content": "x" * size}]
    upstream.answer_with(always=served_by("vendor/dear"))
    for who, name in [("bob", DEAR), ("alice", HIDDEN), ("alice", "vendor/dear"), ("alice", "*")]:
        refused = gateway.chat(key=who, messages=turns, **{member: [OWN, name]})
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    assert gateway.chat(messages=turns, max_tokens=60, **{member: [DEAR]}).status == 400  # its own limit
    assert upstream.hits == 0
    served = gateway.chat(messages=turns, **{member: [OWN, DEAR]})
    assert served.status == 200
    assert upstream.requests[0].json[member] == [OWN, "vendor/dear"]
    assert gateway.call(served.id)["cost_usd"] == pytest.approx((10 + 10 * 100) / 1e6)


@pytest.mark.parametrize(
    ("returned", "output"), [(OWN, 1), (f"{OWN}-2026-01-01", 1), ("vendor/dear", 100), ("unknown", 100), (None, 100)]
)
def test_the_model_that_served_is_charged(
    gateway: Gateway, upstream: ScriptedUpstream, returned: str | None, output: int
) -> None:
    """The dearest where the answer has no name of one."""
    upstream.answer_with(always=served_by(returned))
    answer = gateway.chat(models=[DEAR])
    assert gateway.call(answer.id)["cost_usd"] == pytest.approx((10 + 10 * output) / 1e6)


@pytest.mark.parametrize("name", ["open-a,dear", "open-a, open-b"])
def test_a_name_under_a_pattern_is_one_name(name: str) -> None:
    """LiteLLM asks each of several names (`proxy/route_llm_request.py`)."""
    table = ModelTable({"open-*": Model.model_validate({"routes": [{"upstream": "main"}]})})
    assert table.find("open-a") is not None
    assert table.find(name) is None


@pytest.mark.parametrize("field", ["fallbacks", "fallbacks[]", "models[0]", "Models"])
def test_a_form_names_one_model(gateway: Gateway, upstream: ScriptedUpstream, field: str) -> None:
    sent = form(("model", "scribe"), (field, DEAR), *FORMS["transcriptions"])
    refused = gateway.post("/v1/audio/transcriptions", sent, headers=TYPE)
    assert (refused.status, upstream.hits) == (400, 0)
