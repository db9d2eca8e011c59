"""A configuration of LiteLLM's proxy becomes one that can be checked and served; what does not is listed by line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Config, ConfigError, build, resolve
from gateway.config.price_table import with_table_prices
from gateway.config.probable_mistakes import warnings_of
from gateway.config.wings import added_apis
from gateway.wings.litellm.given import Converted
from gateway.wings.litellm.run import convert

NOW = datetime(2026, 11, 28, tzinfo=UTC)
ADDRESSES = {"REDIS_URL": "redis://redis:6379/0", "JWT_PUBLIC_KEY_URL": "https://login.example.org/keys"}
FOLDER = Path(__file__).parent / "files"


def converted(text: str) -> Converted:
    return convert(text, "config.yaml", NOW)


def built(done: Converted) -> Config:
    """The result, as it is written and read again."""
    env = {
        name: f"https://{name}.example" if "BASE" in name else f"secret-of-{name}-0123456789" for name in done.variables
    }
    env = {name: re.sub("_", "-", value) for name, value in env.items()}
    env |= {name: value for name, value in ADDRESSES.items() if name in done.variables}
    resolved = resolve(yaml.safe_dump(done.values, sort_keys=False), env).values
    return build(with_table_prices(resolved, NOW))


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_samples_become_good_files_without_their_secrets(file: str) -> None:
    done = convert((FOLDER / file).read_text(), str(FOLDER / file), NOW)
    assert built(done).models
    said = yaml.safe_dump(done.values) + "".join(map(str, done.notes))
    assert "secret-of-theirs" not in said
    first = [note.line for note in done.notes if note.file == str(FOLDER / file)]
    assert first == sorted(first)
    assert all(first)


KINDS = ["azure.yaml", "clouds.yaml", "team.yaml", "local.yaml", "wildcards.yaml", "credentials.yaml"]
"""The kinds of files that LiteLLM's documentation shows."""


@pytest.mark.parametrize("file", KINDS)
def test_a_file_of_each_kind_keeps_its_budget_and_its_prices(file: str) -> None:
    """Every model of the result has a price, so that the budget counts each call, and none is allowed without one."""
    done = convert((FOLDER / file).read_text(), str(FOLDER / file), NOW)
    config = built(done)
    (quota,) = config.quotas
    assert quota.unit == "usd"
    assert all(model.has_price and model.unpriced == "deny" for model in config.models.values())
    # Where a parameter of an entry does not hold is said by the section that has it.
    assert [each for each in warnings_of(config, NOW) if not each.path.startswith("parameters.models")] == []


MODELS = {
    "azure.yaml": {"gpt-4o", "gpt-4o-mini", "ada", "dall-e-3", "whisper"},
    "clouds.yaml": {
        "claude-sonnet-4-5",
        "claude",
        "gemini-2.5-flash",
        "sonar",
        "command",
        "reranker",
        "claude-bedrock",
        "gemini-vertex",
    },
    "team.yaml": {"gpt-4.1", "gpt-4o-mini", "deepseek-chat"},
    "local.yaml": {"llama", "qwen", "local", "bge", "bge-reranker", "free", "together"},
    "wildcards.yaml": {"openai/*", "claude-*", "gemini/*"},
    "credentials.yaml": {"gpt-4o", "gpt-realtime", "speech", "moderation", "o4-mini"},
}


@pytest.mark.parametrize("file", KINDS)
def test_a_file_of_each_kind_keeps_its_models(file: str) -> None:
    assert built(convert((FOLDER / file).read_text(), str(FOLDER / file), NOW)).models.keys() == MODELS[file]


def test_the_file_of_a_team() -> None:
    done = convert((FOLDER / "team.yaml").read_text(), "team.yaml", NOW)
    config = built(done)
    assert len(config.upstreams["openai"].api_keys) == 2
    assert config.upstreams["openai"].limits.per_model["gpt-4.1"].requests == ("150/min",)
    assert done.values["jwt"]["team_claim"] == "team"
    assert config.defaults.keys.models == ("gpt-4o-mini",)
    assert [quota.unit for quota in config.defaults.keys.quotas] == ["usd", "requests"]
    assert added_apis(config)["bria"].prices[0].task is not None


def test_an_included_file_is_named_with_its_own_lines() -> None:
    notes = convert((FOLDER / "credentials.yaml").read_text(), str(FOLDER / "credentials.yaml"), NOW).notes
    assert any(note.file.endswith("parts/models.yaml") and note.line == 5 for note in notes)


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
    assert list(config.models) == ["gpt-4o", "embedder", "painter", "local", "groq/*", "vllm"]
    assert config.upstreams["openai"].limits.per_model["gpt-4o"].tokens == ("100000/min",)
    assert config.upstreams["openai"].timeouts.total_s == 300
    assert config.models["gpt-4o"].endpoints == ("chat", "responses")
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
        (13, "model_list[1]", "claude: the gateway speaks with Claude and with OpenAI's models at Bedrock alone"),
        (45, "litellm_settings.max_budget", "write models.NAME.price for painter; zero where they cost nothing"),
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


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"model": "openai/gpt-*"}, "does not name the model at the provider"),
        ({"model": "voyage/rerank-2"}, "reranks of voyage have a form of their own"),
        ({"model": "hosted_vllm/x"}, "has no api_base"),
        ({"model": "openai/x", "litellm_credential_name": "gone"}, "is not in credential_list"),
    ],
)
def test_entries_that_need_a_person(entry: dict[str, Any], says: str) -> None:
    text = yaml.safe_dump({"model_list": [
        {"model_name": "m", "litellm_params": {"model": "gpt-4o"}}, {"model_name": "n", "litellm_params": entry}
    ]})  # fmt: skip
    assert says in " ".join(map(str, converted(text).notes))


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
