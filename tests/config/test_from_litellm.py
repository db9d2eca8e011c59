"""A configuration of LiteLLM's proxy becomes one that can be checked and served; what does not is listed by line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Config, ConfigError, build, resolve
from gateway.config.from_litellm import Converted, convert
from gateway.config.sections import Model

FOLDER = Path(__file__).parent / "litellm"


def converted(text: str) -> Converted:
    return convert(text, "config.yaml")


def built(done: Converted) -> Config:
    """The result, as it is written and read again."""
    env = {
        name: f"https://{name}.example" if "BASE" in name else f"secret-of-{name}-0123456789" for name in done.variables
    }
    env = {name: re.sub("_", "-", value) for name, value in env.items()}
    return build(resolve(yaml.safe_dump(done.values, sort_keys=False), env).values)


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_samples_become_good_files_without_their_secrets(file: str) -> None:
    done = converted((FOLDER / file).read_text())
    assert built(done).models
    said = yaml.safe_dump(done.values) + "".join(map(str, done.notes))
    assert "secret-of-theirs" not in said
    assert [note.line for note in done.notes] == sorted(note.line for note in done.notes)


def test_the_small_sample() -> None:
    config = built(converted((FOLDER / "small.yaml").read_text()))
    model = config.models["gpt-4o-mini"]
    assert [(route.upstream, route.model, route.priority) for route in model.routes] == [
        ("openai", "gpt-4o-mini-2024-07-18", 1), ("reseller", None, 2),
    ]  # fmt: skip
    assert model.max_attempts == 3
    assert model.price is not None
    assert (float(model.price.input or 0), float(model.price.output or 0)) == (0.15, 0.6)
    assert config.store.url == "redis://redis:6379/0"
    assert config.admin.token is not None


def test_the_large_sample() -> None:
    done = converted((FOLDER / "large.yaml").read_text())
    config = built(done)
    assert list(config.models) == ["gpt-4o", "embedder", "local", "groq/*", "vllm"]
    assert config.upstreams["openai"].limits.per_model["gpt-4o"].tokens == ("100000/min",)
    assert config.upstreams["openai"].timeouts.total_s == 300
    assert config.models["gpt-4o"].endpoints == ("chat",)
    assert config.models["gpt-4o"].max_output_tokens == 16384
    assert config.models["groq/*"].strip_prefix == "groq/"
    assert config.models["local"].routes[0].model == "llama3.2"
    assert config.upstreams["upstream"].base_url.endswith("/v1")
    assert config.aliases == {"fast": "gpt-4o"}
    assert (config.quotas[0].unit, config.quotas[0].per) == ("usd", "month")
    assert config.server.max_request_bytes == 20_000_000
    # Two different secrets do not share a variable.
    assert {"OPENAI_API_KEY", "OPENAI_API_KEY_2"} <= set(done.variables)


@pytest.mark.parametrize(
    ("line", "path", "says"),
    [
        (5, "model_list[0].litellm_params.api_key", "put it into the environment variable OPENAI_API_KEY_2"),
        (9, "model_list[0].litellm_params.stream_timeout", "timeouts.idle_s"),
        (13, "model_list[1]", "claude: bedrock is not OpenAI-compatible; keep LiteLLM as an upstream"),
        (24, "model_list[3]", "painter: the gateway serves completions, chat and embeddings, and no image_generation"),
        (40, "model_list[7]", "has no api_base"),
        (43, "litellm_settings.drop_params", "nothing is dropped"),
        (46, "litellm_settings.budget_duration", "is per month here, by the calendar in UTC"),
        (51, "router_settings.routing_strategy", "by priority"),
        (54, "router_settings.model_group_alias.slow", "leads to claude, which is no model here"),
        (58, "general_settings.master_key", "opens the admin API here, and no model"),
        (63, "environment_variables.OPENAI_API_KEY", "set them in the environment of the gateway"),
    ],
)
def test_what_is_not_converted_is_listed_with_its_line(line: int, path: str, says: str) -> None:
    notes = converted((FOLDER / "large.yaml").read_text()).notes
    assert any((note.line, note.path) == (line, path) and says in note.message for note in notes), notes


def with_entry(params: dict[str, Any], name: str = "m", **more: Any) -> str:
    return yaml.safe_dump({"model_list": [{"model_name": name, "litellm_params": params}], **more})


@pytest.mark.parametrize(
    ("params", "base_url", "model"),
    [
        ({"model": "gpt-4o"}, "https://api.openai.com/v1", "gpt-4o"),
        ({"model": "openai/gpt-4o"}, "https://api.openai.com/v1", "gpt-4o"),
        ({"model": "text-completion-openai/x"}, "https://api.openai.com/v1", "x"),
        ({"model": "openrouter/anthropic/claude-3"}, "https://openrouter.ai/api/v1", "anthropic/claude-3"),
        ({"model": "groq/llama"}, "https://api.groq.com/openai/v1", "llama"),
        ({"model": "openai/x", "api_base": "http://a.example/v1/"}, "http://a.example/v1", "x"),
        ({"model": "ollama/llama3"}, "http://localhost:11434/v1", "llama3"),
        ({"model": "a/b", "custom_llm_provider": "openai"}, "https://api.openai.com/v1", "a/b"),
    ],
)
def test_providers(params: dict[str, Any], base_url: str, model: str) -> None:
    config = built(converted(with_entry(params)))
    (route,) = config.models["m"].routes
    assert route.model == model
    assert config.upstreams[route.upstream].base_url == base_url


@pytest.mark.parametrize(
    ("duration", "per"), [("1d", "day"), ("7d", "week"), ("30d", "month"), ("1mo", "month"), ("90d", 7_776_000)]
)
def test_budgets(duration: str, per: str | int) -> None:
    text = with_entry({"model": "gpt-4o"}, litellm_settings={"max_budget": 5, "budget_duration": duration})
    assert built(converted(text)).quotas[0].per == per


def test_fallbacks_follow_where_models_have_them() -> None:
    text = yaml.safe_dump(
        {
            "model_list": [{"model_name": name, "litellm_params": {"model": name}} for name in ("a", "b")],
            "router_settings": {"fallbacks": [{"a": ["b"]}]},
        }
    )
    done = converted(text)
    if "fallbacks" in Model.model_fields:
        assert done.values["models"]["a"]["fallbacks"] == ["b"]
        assert not done.notes
    else:
        assert [note.path for note in done.notes] == ["router_settings.fallbacks[0]"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: []", "expected a configuration of LiteLLM's proxy"),
        ("model_list: []", "holds no model that can be converted"),
        (with_entry({"model": "bedrock/x"}), "holds no model that can be converted"),
        (with_entry({}), "holds no model that can be converted"),
        ("model_list: [5]", "holds no model that can be converted"),
        ("a: [", "not valid YAML"),
    ],
)
def test_what_is_no_such_file(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        converted(text)
