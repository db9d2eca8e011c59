"""Which routes can serve a call, and the error where none can."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.capabilities import Adaptation, adaptation, fitting, served, unsupported
from gateway.api.schema import Chat, Completion
from gateway.config import Capabilities, Config, ConfigError, build
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats import table
from gateway.records import Endpoint

VIA_CHAT = {"completions": "via_chat"}
PROMPT = {"model": "m", "prompt": "x"}
MESSAGE = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}


def config(*capabilities: dict[str, Any], **model: Any) -> Config:
    """One model with a route to an upstream of each of these capabilities, named 0, 1, ..."""
    ups = {str(name): {"base_url": "http://up/v1", "capabilities": each} for name, each in enumerate(capabilities)}
    routes = [{"upstream": name} for name in ups]
    return build({"upstreams": ups, "models": {"m": {"routes": routes, **model}}})


def routes_of(endpoint: Endpoint, body: dict[str, Any], *capabilities: dict[str, Any]) -> str:
    """The upstreams that can take it."""
    made = config(*capabilities)
    asked = table.read(endpoint, json.dumps(body).encode())
    return "".join(route.upstream for route in fitting(made.models["m"], endpoint, asked, made.upstreams))


def refusal(endpoint: Endpoint, body: dict[str, Any], *capabilities: dict[str, Any]) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        routes_of(endpoint, body, *capabilities)
    return caught.value


# ----------------------------------------------------------------------------------------------- what is asked, of whom

NEEDS: list[tuple[str, dict[str, Any], str, str, bool]] = [
    # capability, body, param and code of the error without it, and whether chat has the parameter
    ("token_prompts", {"prompt": [1, 2]}, "prompt", "unsupported_value", False),
    ("token_prompts", {"prompt": [[1, 2], [3]]}, "prompt", "unsupported_value", False),
    ("echo", {"echo": True}, "echo", "unsupported_parameter", False),
    ("suffix", {"suffix": "."}, "suffix", "unsupported_parameter", False),
    ("best_of", {"best_of": 2}, "best_of", "unsupported_value", False),
    ("best_of", {"best_of": 2, "n": 2}, "best_of", "unsupported_value", False),
    ("logprobs", {"logprobs": 5}, "logprobs", "unsupported_parameter", True),
    ("logprobs", {"logprobs": 0}, "logprobs", "unsupported_parameter", True),
]


@pytest.mark.parametrize(("name", "body", "param", "code", "is_in_chat"), NEEDS)
def test_what_an_upstream_cannot_do_is_refused_by_name(
    name: str, body: dict[str, Any], param: str, code: str, is_in_chat: bool
) -> None:
    error = refusal("completions", PROMPT | body, {name: False})
    assert (error.status, error.type, error.param, error.code) == (400, "invalid_request_error", param, code)
    assert f"'{param}'" in error.message
    assert "with this model" in error.message
    assert routes_of("completions", PROMPT | body, {}) == "0"
    if is_in_chat:
        assert routes_of("completions", PROMPT | body, VIA_CHAT) == "0"
    else:
        assert refusal("completions", PROMPT | body, VIA_CHAT).param == param
    assert refusal("completions", PROMPT | body, {**VIA_CHAT, name: False}).param == param


@pytest.mark.parametrize(("name", "body", "param", "code", "is_in_chat"), NEEDS)
def test_it_goes_where_it_can_be_done(name: str, body: dict[str, Any], param: str, code: str, is_in_chat: bool) -> None:
    assert routes_of("completions", PROMPT | body, {name: False}, {}, {"completions": False}, {"echo": True}) == "13"
    expected = "01" if is_in_chat else "1"
    assert routes_of("completions", PROMPT | body, VIA_CHAT, {}) == expected


NOTHING_SPECIAL: list[dict[str, Any]] = [
    {}, {"prompt": ["a", "b"]}, {"prompt": None}, {"prompt": ""}, {"echo": False}, {"echo": None}, {"suffix": None},
    {"suffix": ""}, {"best_of": 0}, {"best_of": 1}, {"best_of": None}, {"logprobs": None}, {"n": 4}, {"stream": True},
    {"stop": ["a"], "seed": 1, "logit_bias": {"1": 1}, "user": "u", "unknown": 1},
]  # fmt: skip


@pytest.mark.parametrize("body", NOTHING_SPECIAL, ids=json.dumps)
def test_what_asks_for_nothing_special_goes_everywhere(body: dict[str, Any]) -> None:
    able = dict.fromkeys(("token_prompts", "echo", "suffix", "best_of", "logprobs", "prompt_arrays"), False)
    assert routes_of("completions", PROMPT | body, able, VIA_CHAT, able | VIA_CHAT, {}) == "0123"


@pytest.mark.parametrize("name", ["messages", "Messages", "tools", "toolS", "functions", "top_logprobs", "modalities"])
def test_what_would_stand_in_the_way_of_our_own_chat_is_refused(name: str) -> None:
    """As an unknown parameter it is passed on to upstreams with completions."""
    assert routes_of("completions", PROMPT | {name: []}, {}) == "0"
    assert routes_of("completions", PROMPT | {name: []}, VIA_CHAT, {}) == "1"
    assert refusal("completions", PROMPT | {name: []}, VIA_CHAT).param == name


def test_every_parameter_of_chat_was_thought_of() -> None:
    """Parameters unknown to completions: those with the same meaning in chat are passed on, the others refused."""
    harmless = {"reasoning_effort", "response_format", "metadata", "service_tier", "store"}
    for name in set(Chat.model_fields) - set(Completion.model_fields) - harmless:
        assert refusal("completions", PROMPT | {name: None}, VIA_CHAT).param == name
    for name in harmless:
        assert routes_of("completions", PROMPT | {name: None}, VIA_CHAT) == "0"


# ----------------------------------------------------------------------------------------------------------- endpoints

BODIES: dict[Endpoint, dict[str, Any]] = {
    "completions": PROMPT,
    "chat": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "embeddings": {"model": "m", "input": "x"},
}


@pytest.mark.parametrize("endpoint", BODIES)
def test_an_endpoint_that_is_not_there(endpoint: Endpoint) -> None:
    error = refusal(endpoint, BODIES[endpoint], {endpoint: False})
    assert (error.status, error.type, error.param, error.code) == (404, "invalid_request_error", "model", None)
    assert routes_of(endpoint, BODIES[endpoint], {endpoint: False}, {}) == "1"
    for other in BODIES.keys() - {endpoint}:
        assert routes_of(endpoint, BODIES[endpoint], {other: False}) == "0"


def test_the_other_endpoint_is_named() -> None:
    assert refusal("completions", PROMPT, {"completions": False}).message == (
        "This is a chat model and not supported in the v1/completions endpoint. "
        "Did you mean to use v1/chat/completions?"
    )
    assert "Did you mean" not in refusal("completions", PROMPT, {"completions": False, "chat": False}).message
    assert refusal("chat", BODIES["chat"], {"chat": False}).message == (
        "This is not a chat model and thus not supported in the v1/chat/completions endpoint. "
        "Did you mean to use v1/completions?"
    )


def test_faults_of_changeable_parameters_come_first() -> None:
    error = refusal("completions", PROMPT | {"echo": True}, {"completions": False}, {"echo": False})
    assert (error.status, error.param) == (400, "echo")


def test_limits_of_completions_do_not_touch_chat() -> None:
    body = BODIES["chat"] | {"logprobs": True, "top_logprobs": 3, "echo": True, "prompt": [1], "best_of": 9}
    assert routes_of("chat", body, dict.fromkeys(("logprobs", "echo", "token_prompts", "best_of"), False)) == "0"


# ---------------------------------------------------------------------------------------------------------------- ways


@pytest.mark.parametrize(
    ("endpoint", "body", "capabilities", "expected"),
    [
        ("completions", PROMPT, {}, Adaptation.PLAIN),
        ("completions", PROMPT | {"prompt": ["a", "b"]}, {}, Adaptation.PLAIN),
        ("completions", PROMPT | {"prompt": ["a", "b"]}, {"prompt_arrays": False}, Adaptation.ONE_BY_ONE),
        ("completions", PROMPT | {"prompt": [[1], [2]]}, {"prompt_arrays": False}, Adaptation.ONE_BY_ONE),
        ("completions", PROMPT | {"prompt": ["a"]}, {"prompt_arrays": False}, Adaptation.ONE_BY_ONE),
        ("completions", PROMPT | {"prompt": [1, 2]}, {"prompt_arrays": False}, Adaptation.PLAIN),
        ("completions", PROMPT, {"prompt_arrays": False}, Adaptation.PLAIN),
        ("completions", PROMPT, VIA_CHAT, Adaptation.VIA_CHAT),
        ("completions", PROMPT | {"prompt": ["a", "b"]}, VIA_CHAT | {"prompt_arrays": False}, Adaptation.VIA_CHAT),
        ("chat", BODIES["chat"], VIA_CHAT, Adaptation.PLAIN),
        ("embeddings", BODIES["embeddings"] | {"input": ["a", "b"]}, {"prompt_arrays": False}, Adaptation.PLAIN),
        ("messages", MESSAGE, {"messages": True}, Adaptation.PLAIN),
        ("messages", MESSAGE, {"messages": "via_chat"}, Adaptation.TRANSLATED),
        ("responses", {"model": "m", "input": "x"}, {}, Adaptation.PLAIN),
        ("responses", {"model": "m", "input": "x"}, {"responses": "via_chat"}, Adaptation.TRANSLATED),
        ("chat", BODIES["chat"], {"messages": "via_chat", "responses": "via_chat"}, Adaptation.PLAIN),
        ("chat", BODIES["chat"], {"messages": True, "chat": "via_messages"}, Adaptation.TRANSLATED),
    ],
)
def test_way(endpoint: Endpoint, body: dict[str, Any], capabilities: dict[str, Any], expected: Adaptation) -> None:
    asked = table.read(endpoint, json.dumps(body).encode())
    assert adaptation(endpoint, asked, Capabilities(**capabilities)) is expected


def test_what_cannot_be_translated_goes_to_a_route_with_the_format() -> None:
    made = config({"messages": "via_chat"}, {"messages": True}, {"messages": False})
    asked = table.read("messages", json.dumps(MESSAGE).encode())

    def fit(refused: InvalidRequest | None, upstreams: slice = slice(None)) -> str:
        model = made.models["m"]
        model = model.model_copy(update={"routes": model.routes[upstreams]})
        routes = fitting(model, "messages", asked, made.upstreams, lambda *_: refused)
        return "".join(route.upstream for route in routes)

    refused = InvalidRequest("no such thing", param="container")
    assert fit(None) == "01"
    assert fit(refused) == "1"
    with pytest.raises(InvalidRequest) as caught:
        fit(refused, slice(1))
    assert caught.value is refused


# ------------------------------------------------------------------------------------------------------- what is shown


@pytest.mark.parametrize(
    ("capabilities", "model", "endpoints", "names"),
    [
        ([{}], {}, ("completions", "chat", "embeddings", "responses"), []),
        ([VIA_CHAT], {"endpoints": ["completions", "chat"]}, ("completions", "chat"),
         ["token_prompts", "echo", "suffix", "best_of"]),
        ([VIA_CHAT | {"logprobs": False}, {"echo": False, "logprobs": False}], {"endpoints": ["completions"]},
         ("completions",), ["echo", "logprobs"]),
        ([{"completions": False, "embeddings": False, "responses": False}], {}, ("chat",), []),
        ([{"echo": False}], {"endpoints": ["chat"]}, ("chat",), []),
    ],
)  # fmt: skip
def test_what_a_model_can_do_is_shown(
    capabilities: list[dict[str, Any]], model: dict[str, Any], endpoints: tuple[str, ...], names: list[str]
) -> None:
    made = config(*capabilities, **model)
    assert served(made.models["m"], made.upstreams) == endpoints
    assert unsupported(made.models["m"], made.upstreams) == names


# ------------------------------------------------------------------------------------------------------- configuration


def test_completions_go_by_a_chat_that_is_there() -> None:
    with pytest.raises(ConfigError) as caught:
        config(VIA_CHAT | {"chat": False})
    assert "via_chat needs chat" in str(caught.value)


def test_only_the_whole_of_it_is_all() -> None:
    assert Capabilities().is_all
    assert Capabilities(stream_usage=False, max_tokens_field="max_tokens").is_all
    assert Capabilities(messages=True, count_tokens=False, responses=False).is_all  # not OpenAI's endpoints
    apart = {
        "stream_usage", "max_tokens_field", "messages", "count_tokens", "responses", "generate_content", "realtime",
    }  # fmt: skip
    for name in set(Capabilities.model_fields) - apart:
        assert not Capabilities.model_validate({name: ["echo"] if name == "drops" else False}).is_all
    assert not Capabilities(completions="via_chat").is_all
