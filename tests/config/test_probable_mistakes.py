"""Typical mistakes that load: what `gateway check` warns of, where, and when it does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import build
from gateway.config.faults import ConfigFault
from gateway.config.probable_mistakes import warnings_of

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
]

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("nothing changed", {}),
    ("a key that begins with a dollar", {"upstream": {"api_key": "$2a-10-not/a.variable"}}),
    ("OpenAI with /v1", {"upstream": {"base_url": "https://api.openai.com/v1/"}}),
    ("a path of one's own", {"upstream": {"base_url": "https://completions.example.com/chat"}}),
    ("a free model", {"model": {"price": {"input": 0, "output": 0}}}),
    ("a cheap model", {"model": {"price": {"input": 0.001, "output": 0.002}}}),
    ("unpriced on purpose", {"model": {"price": None, "unpriced": "allow"}, "quotas": [{"usd": 5, **DAY}]}),
    ("money for another model", {"model": {"price": None}, "key": {"models": [], "quotas": [{"usd": 5, **DAY}]}}),
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
