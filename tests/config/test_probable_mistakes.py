"""Typical mistakes that load: what `gateway check` warns of, where, and when it does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.api.schema import Body, Chat, Completion, Embedding, Generation
from gateway.config import build
from gateway.config.faults import ConfigFault
from gateway.config.probable_mistakes import API_LIMITS, PARAMETERS, warnings_of

NOW = datetime(2026, 11, 23, tzinfo=UTC)
SECRET = "a-secret-of-28-characters-001"


def values_with(**changes: Any) -> dict[str, Any]:
    """A configuration without warnings and these changes; `model`, `key`, `team` and `upstream` change the only one."""
    upstream = {"base_url": "https://api.example.com/v1", "api_key": "sk-1"} | changes.pop("upstream", {})
    model = {
        "routes": [{"upstream": "up"}], "max_output_tokens": 1000, "price": {"input": 2, "output": 8},
    } | changes.pop("model", {})  # fmt: skip
    key = {"id": "alice", "secret": SECRET, "team": "crew"} | changes.pop("key", {})
    values = {
        "upstreams": {"up": upstream},
        "models": {"gpt-4o": model},
        "keys": [key],
        "teams": {"crew": changes.pop("team", {})},
    }
    return values | changes


def warned(**changes: Any) -> list[ConfigFault]:
    return warnings_of(build(values_with(**changes)), NOW)


DAY = {"per": "day"}

MISTAKES: list[tuple[str, dict[str, Any], str, str]] = [
    ("litellm's variable", {"upstream": {"api_key": "os.environ/OPENAI_API_KEY"}}, "upstreams.up.api_key", "${NAME}"),
    ("a shell's variable", {"upstream": {"api_key": "$OPENAI_API_KEY"}}, "upstreams.up.api_key", "${NAME}"),
    ("Windows' variable", {"upstream": {"api_key": "%OPENAI_API_KEY%"}}, "upstreams.up.api_key", "${NAME}"),
    ("PowerShell's variable", {"upstream": {"api_key": "$env:OPENAI_KEY"}}, "upstreams.up.api_key", "${NAME}"),
    ("env:", {"upstream": {"api_key": "env:OPENAI_API_KEY"}}, "upstreams.up.api_key", "${NAME}"),
    ("env.", {"upstream": {"api_key": "env.OPENAI_API_KEY"}}, "upstreams.up.api_key", "${NAME}"),
    ("a template", {"upstream": {"api_key": "{{OPENAI_API_KEY}}"}}, "upstreams.up.api_key", "${NAME}"),
    ("a placeholder", {"upstream": {"api_key": "<your-key>"}}, "upstreams.up.api_key", "${NAME}"),
    ("a command", {"upstream": {"api_key": "$(cat/run/key)"}}, "upstreams.up.api_key", "${NAME}"),
    (
        "one of several keys",
        {"upstream": {"api_key": None, "api_keys": ["sk-1", "$TWO"]}},
        "upstreams.up.api_keys[1]",
        "${NAME}",
    ),
    ("the admin token", {"admin": {"token": "$GATEWAY_ADMIN_TOKEN_X"}}, "admin.token", "${NAME}"),
    ("a key's secret", {"key": {"secret": "os.environ/ALICE_GATEWAY_KEY"}}, "keys[0].secret", "${NAME}"),
    (
        "chat's endpoint",
        {"upstream": {"base_url": "https://api.example.com/v1/chat/completions"}},
        "upstreams.up.base_url",
        "ends in /chat/completions",
    ),
    (
        "completions' endpoint",
        {"upstream": {"base_url": "https://api.example.com/v1/completions/"}},
        "upstreams.up.base_url",
        "ends in /completions",
    ),
    (
        "embeddings' endpoint",
        {"upstream": {"base_url": "https://api.example.com/v1/embeddings"}},
        "upstreams.up.base_url",
        "ends in /embeddings",
    ),
    (
        "OpenAI without /v1",
        {"upstream": {"base_url": "https://api.openai.com"}},
        "upstreams.up.base_url",
        "https://api.openai.com/v1",
    ),
    (
        "a reseller without /v1",
        {"upstream": {"base_url": "https://api.yescale.io/"}},
        "upstreams.up.base_url",
        "https://api.yescale.io/v1",
    ),
    (
        "OpenRouter's other path",
        {"upstream": {"base_url": "https://openrouter.ai/v1"}},
        "upstreams.up.base_url",
        "https://openrouter.ai/api/v1",
    ),
    (
        "a price per token",
        {"model": {"price": {"input": 0.00000015, "output": 8}}},
        "models.gpt-4o.price.input",
        "0.00000015 USD",
    ),
    (
        "a price per thousand",
        {"model": {"price": {"input": 2, "output": 0.0006}}},
        "models.gpt-4o.price.output",
        "0.0006 USD",
    ),
    (
        "money without a price",
        {"model": {"price": None}, "key": {"quotas": [{"usd": 5, **DAY}]}},
        "keys[0].quotas[0]",
        "gpt-4o",
    ),
    ("everybody's money", {"model": {"price": None}, "quotas": [{"usd": 5, **DAY}]}, "quotas[0]", "unpriced: allow"),
    (
        "a quota below a call",
        {"key": {"quotas": [{"tokens": 1000, **DAY}]}},
        "keys[0].quotas[0]",
        "reserves 1000 output tokens",
    ),
    ("a team's quota below a call", {"team": {"quotas": [{"tokens": 10, **DAY}]}}, "teams.crew.quotas[0]", "reserves"),
    ("an old key", {"key": {"expires": "2026-01-01T00:00:00Z"}}, "keys[0].expires", "in the past"),
    ("a misspelled model", {"key": {"models": ["gpt4o"]}}, "keys[0].models[0]", "none of the models: gpt-4o"),
    (
        "a pattern without a model",
        {"key": {"models": ["gpt-*", "claude-*"]}},
        "keys[0].models[1]",
        "none of the models",
    ),
    (
        "a quota without a model",
        {"quotas": [{"requests": 5, **DAY, "model": "o3*"}]},
        "quotas[0].model",
        "none of the models",
    ),
    (
        "more than the team",
        {"key": {"quotas": [{"requests": 9, **DAY}]}, "team": {"quotas": [{"requests": 5, **DAY}]}},
        "keys[0].quotas[0]",
        "larger than the same quota of the team 'crew'",
    ),
    ("n", {"model": {"limits": {"n": 500}}}, "models.gpt-4o.limits.n", "maximum is 128"),
    ("best_of", {"key": {"limits": {"best_of": 21}}}, "keys[0].limits.best_of", "maximum is 20"),
    ("logprobs", {"key": {"limits": {"logprobs": 21}}}, "keys[0].limits.logprobs", "maximum is 20"),
    ("stop", {"model": {"limits": {"stop": 5}}}, "models.gpt-4o.limits.stop", "maximum is 4"),
    ("GitHub's placeholder", {"upstream": {"api_key": "your-api-key-here"}}, "upstreams.up.api_key", "example's text"),
    ("an example's key", {"upstream": {"api_key": "sk-xxxxxxxxxxxx"}}, "upstreams.up.api_key", "example's text"),
    ("a token to change", {"admin": {"token": "change-me-please-now"}}, "admin.token", "example's text"),
    ("1Password", {"upstream": {"api_key": "op://vault/openai/key"}}, "upstreams.up.api_key", "manager of secrets"),
    ("Vault", {"key": {"secret": "vault:secret/data/gateway#alice"}}, "keys[0].secret", "manager of secrets"),
    ("a header's variable", {"upstream": {"headers": {"X-Org": "$ORG"}}}, "upstreams.up.headers.X-Org", "${NAME}"),
    (
        "a trace header's variable",
        {"tracing": {"headers": {"X-Token": "os.environ/TOKEN"}}},
        "tracing.headers.X-Token",
        "${NAME}",
    ),
    (
        "one secret for two",
        {"upstream": {"api_key": SECRET}},
        "keys[0].secret",
        "is the same secret as upstreams.up.api_key",
    ),
    ("the admin's key", {"admin": {"token": SECRET}}, "admin.token", "is the same secret as keys[0].secret"),
    (
        "http to a provider",
        {"upstream": {"base_url": "http://api.openai.com/v1"}},
        "upstreams.up.base_url",
        "write https",
    ),
    (
        "a provider without a key",
        {"upstream": {"base_url": "https://api.openai.com/v1", "api_key": None}},
        "upstreams.up.api_key",
        "refuses calls without a key",
    ),
    (
        "Ollama's own API",
        {"upstream": {"base_url": "http://127.0.0.1:11434", "api_key": None}},
        "upstreams.up.base_url",
        "http://127.0.0.1:11434/v1",
    ),
    (
        "a circle",
        {"upstream": {"base_url": "http://localhost:8080/v1"}},
        "upstreams.up.base_url",
        "leads to this gateway itself",
    ),
    (
        "the endpoint of models",
        {"upstream": {"base_url": "https://api.example.com/v1/models"}},
        "upstreams.up.base_url",
        "ends in an endpoint",
    ),
    (
        "LiteLLM's model name",
        {
            "upstream": {"base_url": "https://api.openai.com/v1"},
            "model": {"routes": [{"upstream": "up", "model": "openai/gpt-4o"}]},
        },
        "models.gpt-4o.routes[0]",
        "OpenAI itself does not know",
    ),
    (
        "a price in cents",
        {"model": {"price": {"input": 2, "output": 80000}}},
        "models.gpt-4o.price.output",
        "very high",
    ),
    ("money below a call", {"key": {"quotas": ["0.005 USD/day"]}}, "keys[0].quotas[0]", "reserves $0.008000"),
    ("a budget of a context", {"model": {"max_output_tokens": "2M"}}, "models.gpt-4o.max_output_tokens", "any model"),
    (
        "milliseconds",
        {"upstream": {"timeouts": {"head_s": 30000, "total_s": 40000}}},
        "upstreams.up.timeouts.head_s",
        "for milliseconds",
    ),
    ("a drain in milliseconds", {"server": {"drain_timeout_s": 30000}}, "server.drain_timeout_s", "for milliseconds"),
    ("megabytes", {"server": {"max_request_bytes": 25}}, "server.max_request_bytes", "did you mean 25MB?"),
    ("a space in a name", {"teams": {"crew": {}, "red ": {}}}, 'teams."red "', "ends with a space"),
    ("two patterns in one", {"key": {"models": ["gpt-4o*,gpt-4*"]}}, "keys[0].models[0]", "one pattern per item"),
    (
        "a share for each of many",
        {"store": {"on_outage": "allow", "outage_share": 0.5}, "server": {"workers": 4}},
        "store.outage_share",
        "2 times every limit",
    ),
    (
        "more than the gateway",
        {"key": {"quotas": ["9 requests/day"]}, "quotas": ["5 requests/day"]},
        "keys[0].quotas[0]",
        "larger than the same quota of the whole gateway",
    ),
    (
        "a team above the gateway",
        {"team": {"quotas": ["9 requests/day"]}, "quotas": ["5 requests/day"]},
        "teams.crew.quotas[0]",
        "larger than the same quota of the whole gateway",
    ),
    (
        "a minute above a day",
        {"key": {"quotas": ["500 requests/minute", "100 requests/day"]}},
        "keys[0].quotas[0]",
        "no effect beside the quota per day",
    ),
    ("no model at all", {"key": {"models": []}}, "keys[0].models", "every call with this key is refused"),
    ("no endpoint at all", {"model": {"endpoints": []}}, "models.gpt-4o.endpoints", "every call of this model"),
    ("a shadow of nothing", {"key": {"on_exceeded": "shadow"}}, "keys[0].on_exceeded", "shadow has no effect"),
    ("more at once than there are", {"key": {"max_parallel": 20000}}, "keys[0].max_parallel", "has no effect"),
    (
        "a misspelled parameter",
        {"model": {"limits": {"deny": ["temprature"]}}},
        "models.gpt-4o.limits.deny[0]",
        "did you mean 'temperature'?",
    ),
    (
        "an endpoint that nobody has",
        {"upstream": {"capabilities": {"embeddings": False}}, "model": {"endpoints": ["chat", "embeddings"]}},
        "models.gpt-4o.endpoints[1]",
        "no route can serve embeddings, and its calls get 404: capabilities.embeddings is false for up",
    ),
    (
        "a format that no upstream speaks",
        {"model": {"endpoints": ["chat", "messages"]}},
        "models.gpt-4o.endpoints[1]",
        "capabilities.messages is false for up",
    ),
    (
        "a format that no upstream speaks, for all models",
        {"defaults": {"models": {"endpoints": ["chat", "generate_content"]}}},
        "defaults.models.endpoints[1]",
        "no route can serve generate_content",
    ),
    (
        "everybody is a proxy",
        {"server": {"trusted_proxies": ["0.0.0.0/0"]}},
        "server.trusted_proxies[0]",
        "every address",
    ),
    ("clients behind a proxy", {"key": {"ips": ["10.0.0.0/8"]}}, "keys[0].ips", "server.trusted_proxies"),
    (
        "a part above the whole",
        {"upstream": {"timeouts": {"head_s": 600, "total_s": 60}}},
        "upstreams.up.timeouts.head_s",
        "ends after total_s, 60 s",
    ),
    (
        "a body above the buffer",
        {"server": {"max_buffered_bytes": "100MB", "max_response_bytes": "60MB", "workers": 2}},
        "server.max_response_bytes",
        "holds 50000000 bytes for each worker",
    ),
]

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("nothing changed", {}),
    ("a key that begins with a dollar", {"upstream": {"api_key": "$2a-10-not/a.variable"}}),
    ("OpenAI with /v1", {"upstream": {"base_url": "https://api.openai.com/v1/"}}),
    ("a path of one's own", {"upstream": {"base_url": "https://completions.example.com/chat"}}),
    ("a free model", {"model": {"price": {"input": 0, "output": 0}}}),
    ("a cheap model", {"model": {"price": {"input": 0.001, "output": 0.002}}}),
    ("unpriced on purpose", {"model": {"price": None, "unpriced": "allow"}, "quotas": [{"usd": 5, **DAY}]}),
    ("quotas of several periods", {"key": {"quotas": ["5 requests/minute", "100 requests/day", "500 requests/week"]}}),
    ("networks behind a proxy", {"key": {"ips": ["10.0.0.0/8"]}, "server": {"trusted_proxies": ["10.9.0.1"]}}),
    ("networks on every address", {"key": {"ips": ["10.0.0.0/8"]}, "server": {"host": "0.0.0.0"}}),
    ("a denied parameter", {"model": {"limits": {"deny": ["temperature", "vendor_thing"]}}}),
    ("Ollama", {"upstream": {"base_url": "http://127.0.0.1:11434/v1", "api_key": None}}),
    ("another port of this machine", {"upstream": {"base_url": "http://127.0.0.1:8081/v1", "api_key": None}}),
    ("a long whole", {"upstream": {"timeouts": {"total_s": "2h"}}}),
    ("a prefix at a reseller", {"model": {"routes": [{"upstream": "up", "model": "openai/gpt-4o"}]}}),
    ("a quota above a call", {"key": {"quotas": [{"tokens": 1001, **DAY}]}}),
    ("a key that still holds", {"key": {"expires": "2027-01-01T00:00:00Z"}}),
    ("a pattern that fits", {"key": {"models": ["gpt-4?"]}}),
    (
        "another period than the team",
        {"key": {"quotas": [{"requests": 9, "per": "hour"}]}, "team": {"quotas": [{"requests": 5, **DAY}]}},
    ),
    (
        "as much as the team",
        {"key": {"quotas": [{"requests": 5, **DAY}]}, "team": {"quotas": [{"requests": 5, **DAY}]}},
    ),
    ("the API's own limits", {"model": {"limits": {"n": 128, "best_of": 20, "logprobs": 20, "stop": 4}}}),
]


@pytest.mark.parametrize(("changes", "path", "says"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_typical_mistake(changes: dict[str, Any], path: str, says: str) -> None:
    (warning,) = warned(**changes)
    assert warning.path == path
    assert says in warning.message
    assert str(warning).isprintable()


@pytest.mark.parametrize("changes", [row[1] for row in GOOD], ids=[row[0] for row in GOOD])
def test_what_is_meant_has_no_warning(changes: dict[str, Any]) -> None:
    assert warned(**changes) == []


def test_an_upstream_without_a_route() -> None:
    values = values_with()
    values["upstreams"]["other"] = {"base_url": "https://other.example/v1"}
    (warning,) = warnings_of(build(values), NOW)
    assert (warning.path, warning.message) == ("upstreams.other", "no model has a route to it")


def test_an_upstream_whose_list_is_served_needs_no_model() -> None:
    values = {
        "upstreams": {"up": {"base_url": "https://up.example/v1", "discover": True}},
        "keys": [{"id": "a", "secret": SECRET, "models": ["gpt-*"]}],
    }
    assert warnings_of(build(values), NOW) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [({"endpoint": "http://localhost:4317"}, "endpoint"), ({"sample_ratio": 0}, "sample_ratio")],
)
def test_traces_without_a_collector(changes: dict[str, Any], path: str) -> None:
    (warning,) = warned(tracing={"endpoint": "http://localhost:4318", **changes})
    assert warning.path == f"tracing.{path}"


def test_the_maxima_are_those_of_the_api() -> None:
    """The tables stand below `api/schema.py` on the floors, and say the same."""

    def most(body: type[Body], field: str) -> int:
        annotation = body.model_fields[field].annotation
        bounds = repr(annotation).split("Le(le=")[1:] or repr(annotation).split("max_length=")[1:]
        return int(bounds[0].partition(")")[0].partition(",")[0])

    assert {
        "n": most(Generation, "n"),
        "best_of": most(Completion, "best_of"),
        "logprobs": max(most(Completion, "logprobs"), most(Chat, "top_logprobs")),
        "stop": most(Generation, "stop"),
    } == API_LIMITS
    known = {name for body in (Completion, Chat, Embedding) for name in body.model_fields}
    assert known == PARAMETERS


def test_a_pattern_cannot_be_wrong_where_every_model_is_served() -> None:
    values = values_with(key={"models": ["claude-*"]})
    values["models"]["*"] = values["models"]["gpt-4o"]
    assert warnings_of(build(values), NOW) == []


def test_no_secret_is_shown() -> None:
    shown = " ".join(map(str, warned(upstream={"api_key": "$MY_OWN_SECRET"}, admin={"token": "$OTHER_SECRET_TOKEN"})))
    assert shown.count("${NAME}") == 2
    assert "SECRET" not in shown


def test_many_models_are_named_by_the_first_three() -> None:
    values = values_with(model={"price": None}, quotas=[{"usd": 5, "per": "day"}])
    for number in range(5):
        values["models"][f"m{number}"] = values["models"]["gpt-4o"]
    (warning,) = warnings_of(build(values), NOW)
    assert "gpt-4o, m0, m1 and 3 more" in warning.message
