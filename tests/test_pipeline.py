"""What of a client's body is changed on its way to the upstream, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api import auth, json_document, validate
from gateway.api.capabilities import Adaptation
from gateway.config import Config, build
from gateway.formats import table
from gateway.pipeline.plan import MAX_PLANS, Plans, Stack
from gateway.pipeline.request import changed_members
from gateway.pipeline.stack import Stacks
from gateway.quota import windows
from gateway.records import Call, Endpoint
from gateway.upstream.limits import UpstreamLimitTable

TOKENS = [{"tokens": 100000, "per": "day"}]
USD = [{"usd": 5, "per": "month"}]


def config(quotas: Any = (), limits: Any = None, route: Any = None, capabilities: Any = None) -> Config:
    return build(
        {
            "upstreams": {"up": {"base_url": "http://up/v1", "capabilities": capabilities or {}}},
            "models": {
                "m": {
                    "routes": [{"upstream": "up", **(route or {})}],
                    "max_output_tokens": 50,
                    "price": {"input": 1, "output": 2},
                }
            },
            "keys": [{"id": "k", "secret": "s" * 24, "quotas": list(quotas), "limits": limits or {}}],
        }
    )


def call(settings: Config, endpoint: Endpoint, body: bytes) -> Call:
    (key,) = auth.index(settings.keys).values()
    asked = validate.restrict(table.read(endpoint, body), key.limits, settings.models["m"].limits)
    return Call("req_1", 0.0, key, endpoint, asked, settings.models["m"], label_model="m", arrived=0.0)


CHAT = b'{"model":"m", "messages":[{"role":"user","content":"\\u00e9 hi"}]%s}'
USAGE = {"include_usage": True}

ROWS: list[tuple[str, Endpoint, bytes, dict[str, Any], dict[str, Any]]] = [
    ("plain chat", "chat", CHAT % b"", {}, {}),
    ("plain completion", "completions", b'{"model":"m","prompt":"x"}', {"quotas": TOKENS}, {}),
    ("alias", "chat", CHAT % b"", {"route": {"model": "m-2024"}}, {"model": "m-2024"}),
    ("alias of itself", "chat", CHAT % b"", {"route": {"model": "m"}}, {}),
    ("stream", "chat", CHAT % b',"stream":true', {}, {"stream_options": USAGE}),
    ("usage asked", "chat", CHAT % b',"stream":true,"stream_options":{"include_usage":true}', {}, {}),
    (
        "stream, other options kept", "chat",
        CHAT % b',"stream":true,"stream_options":{"include_obfuscation":false}', {},
        {"stream_options": {"include_obfuscation": False, **USAGE}},
    ),
    ("stream, options null", "chat", CHAT % b',"stream":true,"stream_options":null', {}, {"stream_options": USAGE}),
    ("upstream without usage", "chat", CHAT % b',"stream":true', {"capabilities": {"stream_usage": False}}, {}),
    ("options without stream", "chat", CHAT % b',"stream_options":{"include_usage":true}', {}, {}),
    ("token quota", "chat", CHAT % b"", {"quotas": TOKENS}, {"max_completion_tokens": 50}),
    (
        "token quota, prediction", "chat", CHAT % b',"prediction":{"type":"content"}',
        {"quotas": TOKENS}, {"max_tokens": 50},
    ),
    ("token quota, own limit", "chat", CHAT % b',"max_tokens":9', {"quotas": TOKENS}, {}),
    (
        "token quota, other field", "chat", CHAT % b"",
        {"quotas": TOKENS, "capabilities": {"max_tokens_field": "max_tokens"}}, {"max_tokens": 50},
    ),
    ("money quota", "chat", CHAT % b"", {"quotas": USD}, {"max_completion_tokens": 50}),
    ("money quota, own limit", "chat", CHAT % b',"max_completion_tokens":9', {"quotas": USD}, {}),
    ("money quota, completion", "completions", b'{"model":"m","prompt":"x"}', {"quotas": USD}, {}),
    ("money quota of other models", "chat", CHAT % b"", {"quotas": [{**USD[0], "model": "gpt-*"}]}, {}),
    ("key's limit", "chat", CHAT % b"", {"limits": {"max_tokens": 20}}, {"max_completion_tokens": 20}),
    ("key's limit on completions", "completions", b'{"model":"m","prompt":"x"}', {"limits": {"max_tokens": 20}},
     {"max_tokens": 20}),
    ("embeddings", "embeddings", b'{"model":"m","input":"x"}', {"quotas": TOKENS, "limits": {"max_tokens": 20}}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "body", "settings", "changes"), [pytest.param(*r[1:], id=r[0]) for r in ROWS])
def test_only_what_must_change_is_changed(
    endpoint: Endpoint, body: bytes, settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    made = config(**settings)
    this = call(made, endpoint, body)
    claims = windows.claims(this, windows.LimitTable(made.quotas, made.teams, {}).of_call(this))
    capabilities = made.upstreams["up"].capabilities
    assert changed_members(this, claims, this.model.routes[0], capabilities) == changes
    forwarded = json_document.replace(this.params.document, changes)
    assert json.loads(forwarded) == {**json.loads(body), **changes}
    if not changes:
        assert forwarded == body


# ---------------------------------------------------------------------------------------------------------------- plans


def plans_of(settings: Config) -> Plans:
    return Plans(settings, lambda model: None, Stacks(settings, UpstreamLimitTable(settings.upstreams)))


def test_a_plan_is_worked_out_once_for_an_endpoint_and_a_model() -> None:
    settings = config()
    plans, this = plans_of(settings), call(settings, "chat", CHAT % b"")
    plan, _ = plans.of(this)
    assert plans.of(call(settings, "chat", CHAT % b',"n":2'))[0] is plan
    assert plans.of(this._replace(endpoint="completions"))[0] is not plan
    assert plans.of(this._replace(model=this.model.model_copy()))[0] is not plan


def layers(outer: Any) -> str:
    """The names of these layers, from the outside in."""
    names = [type(outer).__name__]
    while (outer := getattr(outer, "inner", None)) is not None:
        names.append(type(outer).__name__)
    return " ".join(names)


EVERYTHING: dict[str, Any] = {
    "models": {
        "all": {
            "routes": [{"upstream": "up"}, {"upstream": "other"}], "endpoints": ["completions"], "fallbacks": ["plain"],
            "min_output_tokens": 10, "max_output_tokens": 50,
        },
        "plain": {"routes": [{"upstream": "up"}]},
    },
    "upstreams": {
        "up": {"base_url": "http://up/v1", "limits": {"parallel": 2}},
        "other": {"base_url": "http://other/v1"},
    },
    "keys": [{"id": "k", "secret": "s" * 24}],
}  # fmt: skip


def stack_of_all(settings: Config) -> Stack:
    """The stack of a call to the model `all`."""
    (key,) = auth.index(settings.keys).values()
    model = settings.models["all"]
    asked = validate.restrict(table.read("completions", b'{"model":"all","prompt":"x"}'), key.limits, model.limits)
    return plans_of(settings).work_out(Call("r", 0.0, key, "completions", asked, model, "all", arrived=0.0)).stack


def test_the_layers_of_a_call_with_every_feature_are_in_the_documented_order() -> None:
    """Those of wings are in `tests/wings/test_layers.py`."""
    stack = stack_of_all(build(EVERYTHING))
    assert layers(stack.whole) == "AsGranted Fallbacks"
    assert layers(stack.last) == "Retry RouteLimits Attempts"
    assert layers(stack.passing) == "Retry RouteLimits Attempts"
    assert layers(stack.single) == "Retry RouteLimits Attempts"
    assert [step.__name__ for step in stack.steps] == ["draw_fitting", "others", "room"]


def test_a_plain_call_has_no_layer_but_the_loop_over_attempts() -> None:
    settings = config()
    stack = plans_of(settings).work_out(call(settings, "chat", CHAT % b"")).stack
    assert {layers(each) for each in (stack.whole, stack.last, stack.passing, stack.single)} == {"Retry Attempts"}
    assert [step.__name__ for step in stack.steps] == ["draw"]


@pytest.mark.parametrize(
    ("endpoint", "capabilities", "takes_all", "way"),
    [
        ("chat", {}, True, Adaptation.PLAIN),
        ("completions", {}, True, Adaptation.PLAIN),
        ("completions", {"echo": False}, False, None),
        ("completions", {"completions": "via_chat"}, False, None),
        ("chat", {"echo": False}, True, Adaptation.PLAIN),
        ("messages", {"messages": True}, True, Adaptation.PLAIN),
        ("messages", {"messages": "via_chat"}, False, Adaptation.TRANSLATED),
        ("chat", {"chat": False}, False, Adaptation.PLAIN),
    ],
)
def test_a_plan_leaves_open_what_depends_on_parameters(
    endpoint: Endpoint, capabilities: dict[str, Any], *, takes_all: bool, way: Adaptation | None
) -> None:
    settings = config(capabilities=capabilities)
    this = call(settings, "chat", CHAT % b"")._replace(endpoint=endpoint)
    plan = plans_of(settings).work_out(this)
    assert (plan.routes == this.model.routes, plan.ways.get("up")) == (takes_all, way)


def test_no_more_plans_are_kept_than_a_client_may_invent_names() -> None:
    settings = config()
    plans, this = plans_of(settings), call(settings, "chat", CHAT % b"")
    for number in range(MAX_PLANS + 10):
        plans.of(this._replace(target=f"m-{number}"))
    assert len(plans._known) <= MAX_PLANS
