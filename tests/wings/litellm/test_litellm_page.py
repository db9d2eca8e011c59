"""Each row of the page about LiteLLM is what the importer does, or what it notes."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gateway.config.include import read_place
from gateway.wings.litellm.database import add_rows, read_rows
from gateway.wings.litellm.given import Converted
from gateway.wings.litellm.run import convert

from .test_from_litellm import built

PAGE = (Path(__file__).parents[3] / "docs" / "from-litellm.md").read_text()
NOW = datetime(2026, 11, 28, tzinfo=UTC)
TOKEN = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"


def rows_of(chapter: str) -> list[str]:
    """The first cell of each row of a chapter's table."""
    text = PAGE.partition(f"\n## {chapter}\n")[2].partition("\n## ")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")][1:]


def entry(model: str = "openai/gpt-4o", name: str = "m", info: dict[str, Any] | None = None, **params: Any) -> Any:
    return {"model_name": name, "litellm_params": {"model": model, **params}, "model_info": info or {}}


def with_settings(section: str, *entries: Any, **settings: Any) -> dict[str, Any]:
    return {"model_list": [*(entries or [entry()])], section: settings}


class Case(NamedTuple):
    """A file, and the value at a place of the result, or a word of a note."""

    given: dict[str, Any]
    place: str = ""
    value: Any = None
    note: str = ""


def models(*entries: Any) -> dict[str, Any]:
    return {"model_list": [*entries]}


ROUTE, UP = "models.m.routes[0]", "upstreams.openai"
AZURE, CLAUDE = "https://x.openai.azure.com", "bedrock/anthropic.claude-3-haiku-20240307-v1:0"
GENERAL, SETTINGS, ROUTER = "general_settings", "litellm_settings", "router_settings"
CASES: dict[str, Case] = {
    "`model_list[].model_name`": Case(
        models(entry(), entry(api_base="http://b/v1")), "models.m.routes[1].upstream", "b"
    ),
    '`model_name: "*"` or `"openai/*"`': Case(
        models(entry("openai/*", "openai/*")), 'models."openai/*".strip_prefix', "openai/"
    ),
    '`litellm_settings.check_provider_endpoint` with `"openai/*"`': Case(
        with_settings(SETTINGS, entry("openai/*", "openai/*"), check_provider_endpoint=True), f"{UP}.discover", True
    ),
    "`litellm_params.model`": Case(models(entry()), f"{ROUTE}.model", "gpt-4o"),
    "`anthropic/...`": Case(models(entry("anthropic/c")), "upstreams.anthropic.capabilities.chat", "via_messages"),
    "`gemini/...`": Case(models(entry("gemini/g")), "models.m.routes[1].upstream", "googleapis-2"),
    "`azure/...` with `base_model`": Case(
        models(entry("azure/d", info={"base_model": "azure/gpt-4o"}, api_base="https://x.openai.azure.com")),
        "models.m.price.input",
        2.5,
    ),
    "`perplexity/...`, `cohere/...`": Case(
        models(entry("cohere/c"), entry("perplexity/sonar")), "upstreams.perplexity.capabilities.responses", "via_chat"
    ),
    "`ollama/...`, `hosted_vllm/...`, `huggingface/...` (TEI) with `api_base`": Case(
        models(entry("huggingface/b", info={"mode": "embedding"}, api_base="http://tei")), "models.m.price.input", 0
    ),
    "`azure/...` with an `api_base` that is not Azure's, and `api_version`": Case(
        models(entry("azure/d", api_base="https://apim.example/x", api_version="2024-10-21")),
        "upstreams.apim.base_url",
        "https://apim.example/x/openai",
    ),
    "`azure_ai/...`": Case(
        models(entry("azure_ai/Phi-4", api_base="https://x.services.ai.azure.com/models")),
        "upstreams.x.base_url",
        "https://x.services.ai.azure.com/openai/v1",
        "has replaced /models",
    ),
    "`tenant_id`, `client_id`, `client_secret`, `azure_scope` of `azure/...` and `azure_ai/...`": Case(
        models(entry("azure/d", api_base=AZURE, tenant_id="t", client_id="c", client_secret="os.environ/S")),
        "upstreams.x.auth.client_secret",
        "${S}",
    ),
    "`azure_ad_token`": Case(
        models(entry("azure/d", api_base=AZURE, azure_ad_token="os.environ/T")),
        "upstreams.x.api_key",
        "${T}",
        "an hour",
    ),
    "`enable_azure_ad_token_refresh`": Case(
        with_settings(SETTINGS, entry("azure/d", api_base=AZURE), enable_azure_ad_token_refresh=True),
        "upstreams.x.auth",
        "azure",
    ),
    "`bedrock/...`": Case(
        models(entry(CLAUDE, aws_region_name="us-east-1"), entry("bedrock/x")),
        "upstreams.bedrock.auth",
        "aws",
        "keep LiteLLM as an upstream",
    ),
    "`bedrock_mantle/...`": Case(
        models(entry("bedrock_mantle/us-west-2/openai.gpt-5.5")),
        "upstreams.bedrock.base_url",
        "https://bedrock-mantle.us-west-2.api.aws/openai/v1",
    ),
    "`aws_region_name`, `aws_bedrock_runtime_endpoint`, `model_id`": Case(
        models(entry(CLAUDE, aws_region_name="eu-west-1", model_id="a")), f"{ROUTE}.model", "a"
    ),
    "`aws_access_key_id` and its neighbours, `aws_profile_name`, `aws_role_name`, `aws_external_id`": Case(
        models(entry(CLAUDE, aws_role_name="r", aws_external_id="x")), "upstreams.bedrock.auth.external_id", "x"
    ),
    "`vertex_ai/...`": Case(models(entry("vertex_ai/gemini-2.5-pro")), "models.m.routes[1].upstream", "vertex-2"),
    "`vertex_project`, `vertex_location`": Case(
        models(entry("vertex_ai/claude-x", vertex_project="p", vertex_location="global")),
        "upstreams.vertex.base_url",
        "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/anthropic",
    ),
    "`vertex_credentials`": Case(
        models(entry("vertex_ai/claude-x", vertex_credentials="/a.json")), "upstreams.vertex.auth.file", "/a.json"
    ),
    "`credential_list` with `litellm_credential_name`": Case(
        {
            **models(entry(litellm_credential_name="c")),
            "credential_list": [{"credential_name": "c", "credential_values": {"api_key": "os.environ/MINE"}}],
        },
        f"{UP}.api_key",
        "${MINE}",
    ),
    "`reasoning_effort`, `temperature` and others of `litellm_params`": Case(
        models(entry(reasoning_effort="low")), "parameters.models.m[0].default.reasoning_effort", "low"
    ),
    "`litellm_params.api_base`, `api_key`, `organization`": Case(
        models(entry(organization="o")), f"{UP}.headers.OpenAI-Organization", "o"
    ),
    "several entries that differ in `api_key` alone": Case(
        models(entry(api_key="os.environ/A"), entry(api_key="os.environ/B")), f"{UP}.api_keys", ["${A}", "${B}"]
    ),
    "`litellm_params.order`, `weight`": Case(models(entry(order=2, weight=3)), f"{ROUTE}.weight", 3),
    "`litellm_params.rpm`, `tpm` of a deployment": Case(
        models(entry(tpm=5)), f"{UP}.limits.per_model.gpt-4o.tokens", "5/min"
    ),
    "`litellm_params.timeout`, `stream_timeout`": Case(
        models(entry(timeout=7, stream_timeout=1)), f"{UP}.timeouts.total_s", 7, "timeouts.idle_s"
    ),
    "`input_cost_per_token`, `output_cost_per_token`, `cache_read_input_token_cost`": Case(
        models(entry(input_cost_per_token=1e-6, output_cost_per_token=2e-6)), "models.m.price.output", 2
    ),
    "`model_info.mode`": Case(models(entry(info={"mode": "rerank"})), "models.m.endpoints", ["rerank"]),
    "`max_tokens` of a model": Case(models(entry(max_tokens=9)), "models.m.max_output_tokens", 9),
    "`drop_params`": Case(with_settings(SETTINGS, drop_params=True), note="nothing is dropped"),
    "`text-completion-openai/...`": Case(
        models(entry("text-completion-openai/x")), "models.m.endpoints", ["completions"]
    ),
    "`router_settings.routing_strategy`": Case(with_settings(ROUTER, routing_strategy="x"), note="by priority"),
    "`num_retries`, `retry_policy`": Case(
        with_settings(ROUTER, num_retries=1, retry_policy={"a": 1}), "defaults.models.max_attempts", 2, "max_attempts"
    ),
    "`fallbacks`, `context_window_fallbacks`": Case(
        with_settings(SETTINGS, entry(), entry(name="n"), fallbacks=[{"m": ["n"]}]), "models.m.fallbacks", ["n"]
    ),
    "`default_fallbacks`": Case(with_settings(SETTINGS, default_fallbacks=["m"]), note="name fallbacks for each model"),
    "`allowed_fails`, `cooldown_time`": Case(with_settings(ROUTER, cooldown_time=1), note="circuit breaker"),
    "`health_check_interval`, `background_health_checks`": Case(
        with_settings(GENERAL, background_health_checks=True, health_check_interval=30), f"{UP}.probe_s", 30
    ),
    "`model_group_alias`": Case(with_settings(ROUTER, model_group_alias={"a": "m"}), "aliases.a", "m"),
    "`enable_pre_call_checks`": Case(with_settings(ROUTER, enable_pre_call_checks=True), note="every parameter"),
    "`cache`, `cache_params`": Case(with_settings(SETTINGS, cache=True), note="not cached"),
    "`general_settings.master_key`": Case(with_settings(GENERAL, master_key="os.environ/M"), "admin.token", "${M}"),
    "`general_settings.database_url` (PostgreSQL)": Case(with_settings(GENERAL, database_url="x"), note="store.url"),
    "`router_settings.redis_host` and its neighbours": Case(
        with_settings(ROUTER, redis_host="r"), "store.url", "redis://r:6379/0", "append-only"
    ),
    "`general_settings.max_parallel_requests`, `global_max_parallel_requests`": Case(
        with_settings(GENERAL, max_parallel_requests=1, global_max_parallel_requests=2),
        "server.max_in_flight",
        2,
        "max_parallel of a key",
    ),
    "`general_settings.max_request_size_mb`": Case(
        with_settings(GENERAL, max_request_size_mb=3), "server.max_request_bytes", "3MB"
    ),
    "`general_settings.allowed_ips`": Case(with_settings(GENERAL, allowed_ips=["10.0.0.1"]), note="keys[].ips"),
    "`general_settings.alerting`, `alerting_args`": Case(
        with_settings(GENERAL, alerting=["slack"]), note="alerts.webhook"
    ),
    "`litellm_settings.max_budget`, `budget_duration`": Case(
        with_settings(SETTINGS, max_budget=5, budget_duration="30d"), "quotas[0].usd", 5, "is per month here"
    ),
    "`router_settings.provider_budget_config`": Case(
        with_settings(ROUTER, provider_budget_config={"openai": {"budget_limit": 1, "time_period": "1d"}}),
        f"{UP}.quotas",
        [{"usd": 1, "per": "day"}],
        "is in upstreams.openai.quotas",
    ),
    "`default_internal_user_params`, `max_internal_user_budget`": Case(
        with_settings(SETTINGS, max_internal_user_budget=1),
        "people.defaults.quotas[0].usd",
        1,
        "over all keys of one owner",
    ),
    "`upperbound_key_generate_params`": Case(
        with_settings(SETTINGS, upperbound_key_generate_params={"max_budget": 1}), note="defaults.keys"
    ),
    "`enable_jwt_auth`, `litellm_jwtauth`": Case(
        with_settings(GENERAL, enable_jwt_auth=True, litellm_jwtauth={"team_id_jwt_field": "t"}), "jwt.team_claim", "t"
    ),
    "`include`": Case({"include": ["gone.yaml"], **models(entry())}, note="put it beside the file"),
    "`litellm_settings.request_timeout`": Case(with_settings(SETTINGS, request_timeout=8), f"{UP}.timeouts.total_s", 8),
    "`success_callback: [prometheus]`": Case(
        with_settings(SETTINGS, success_callback=["prometheus"]), note="Prometheus"
    ),
    "`success_callback: [otel]`": Case(with_settings(SETTINGS, success_callback=["otel"]), note="tracing.endpoint"),
    "`general_settings.pass_through_endpoints`": Case(
        with_settings(GENERAL, pass_through_endpoints=[{"path": "/a", "target": "https://t.example/x/a"}]),
        "passthrough.a.upstream_prefix",
        "/x",
    ),
    "other callbacks, guardrails, prompt management, MCP": Case(
        {**models(entry()), "guardrails": [{"guardrail_name": "x"}]}, note="deliberately not part"
    ),
    "`/spend/logs`, `/global/spend/report`": Case({}),
}

OF_THE_COMMAND_LINE = {"SSO", "`--num_workers`"}
"""Rows about settings that are in LiteLLM's environment or on its command line, and not in a file that is read."""

KEY_COLUMNS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "`key_alias`": ({"key_alias": "alice"}, "id", "alice"),
    "`models`": ({"models": ["m"]}, "models", ["m"]),
    "`max_budget`, `budget_duration`": (
        {"max_budget": 5, "budget_duration": "1d"},
        "quotas",
        [{"usd": 5, "per": "day"}],
    ),
    "`rpm_limit`, `tpm_limit`": ({"tpm_limit": 5}, "quotas", [{"tokens": 5, "per": "minute"}]),
    "`model_max_budget`, `model_rpm_limit`, `model_tpm_limit`": (
        {
            "model_max_budget": {"m": {"budget_limit": 2, "time_period": "30d"}},
            "metadata": {"model_rpm_limit": {"m": 3}},
        },
        "quotas",
        [{"usd": 2, "per": "month", "model": "m"}, {"requests": 3, "per": "minute", "model": "m"}],
    ),
    "`soft_budget`": ({"soft_budget": 5}, "note", "alerts.webhook"),
    "`max_parallel_requests`": ({"max_parallel_requests": 4}, "max_parallel", 4),
    "`duration`": ({"expires": "2027-01-01T00:00:00"}, "expires", "2027-01-01T00:00:00+00:00"),
    "`team_id`, `/team/new`": ({"team_id": "t-1"}, "team", "core"),
}
OF_THE_API = {
    "`budget_fallbacks`",
    "`litellm_settings.default_key_generate_params`",
    "`/key/block`",
    "`/key/delete`",
    "`/key/regenerate`",
    "`/spend/logs`, `/global/spend/report`",
}
"""Rows about operations, and one about the file."""


def at(values: Any, place: str) -> Any:
    for part in read_place(place):
        values = values[part]
    return values


@pytest.mark.parametrize("row", [case for case in CASES if CASES[case].given])
def test_a_row_of_the_page_is_what_the_importer_does(row: str) -> None:
    case = CASES[row]
    done = convert(yaml.safe_dump(case.given), "config.yaml", NOW)
    if case.place:
        assert at(done.values, case.place) == case.value
    assert case.note in " ".join(map(str, done.notes))


@pytest.mark.parametrize("row", KEY_COLUMNS)
def test_a_row_about_keys_is_what_rows_of_the_database_become(row: str) -> None:
    columns, name, value = KEY_COLUMNS[row]
    done = Converted()
    tables = {
        "LiteLLM_VerificationToken": [{"token": TOKEN, **columns}],
        "LiteLLM_TeamTable": [{"team_id": "t-1", "team_alias": "core"}],
    }
    add_rows(done, read_rows(json.dumps(tables), "rows.json"), NOW)
    (key,) = done.values["keys"]
    assert key["sha256"] == TOKEN
    if name == "note":
        assert value in " ".join(map(str, done.notes))
    else:
        assert key[name] == value


def test_defaults_of_keys() -> None:
    given = with_settings(
        SETTINGS, default_key_generate_params={"max_budget": 2, "budget_duration": "1d", "duration": "1w"}
    )
    done = convert(yaml.safe_dump(given), "config.yaml", NOW)
    assert done.values["defaults"]["keys"] == {"expires_after_s": 604_800, "quotas": [{"usd": 2, "per": "day"}]}


def converted(**given: Any) -> Converted:
    return convert(yaml.safe_dump(given), "config.yaml", NOW)


def test_parameters_of_an_entry_are_defaults_of_its_model_at_each_endpoint() -> None:
    done = converted(
        model_list=[entry("openai/o4-mini", "o4-mini-high", reasoning_effort="high", temperature=1, seed=7)]
    )
    assert done.values["parameters"]["models"]["o4-mini-high"] == [
        {"endpoints": ["chat"], "default": {"temperature": 1, "reasoning_effort": "high", "seed": 7}},
        {"endpoints": ["responses"], "default": {"temperature": 1, "reasoning.effort": "high"}},
    ]
    assert built(done).models


def test_entries_of_one_name_with_other_parameters_are_noted() -> None:
    entries = [entry(temperature=1), entry(temperature=0, api_base="http://b/v1")]
    done = converted(model_list=entries)
    assert done.values["parameters"]["models"]["m"][0]["default"] == {"temperature": 1}
    assert "those of the first entry of m hold" in " ".join(map(str, done.notes))
    same = converted(model_list=[entry(temperature=1), entry(temperature=1, api_base="http://b/v1")])
    assert "first entry" not in " ".join(map(str, same.notes))


def test_a_parameter_without_an_endpoint_is_noted() -> None:
    done = converted(model_list=[entry("openai/text-embedding-3-small", info={"mode": "embedding"}, temperature=1)])
    assert "parameters" not in done.values
    assert "no endpoint of this model has it: embeddings" in " ".join(map(str, done.notes))


def test_a_budget_of_a_provider_with_several_upstreams_is_to_be_divided() -> None:
    budget = {"openai": {"budget_limit": 1, "time_period": "1d"}, "groq": {"budget_limit": 1, "time_period": "5m"}}
    entries = [entry(), entry(api_base="http://b/v1"), entry("groq/x", "g")]
    done = converted(model_list=entries, router_settings={"provider_budget_config": budget})
    assert not any("quotas" in upstream for upstream in done.values["upstreams"].values())
    notes = " ".join(map(str, done.notes))
    assert "its models are at openai, b: divide it" in notes
    assert notes.count("which are per day, week or month") == 1


def test_budgets_of_people_are_kept_beside_those_of_the_database() -> None:
    params = {"max_budget": 20, "budget_duration": "30d", "user_role": "internal_user"}
    done = converted(model_list=[entry()], litellm_settings={"default_internal_user_params": params})
    tables = {"LiteLLM_UserTable": [{"user_id": "u", "user_email": "ann@example.org", "max_budget": 5}]}
    add_rows(done, read_rows(json.dumps(tables), "rows.json"), NOW)
    assert done.values["people"]["defaults"] == {"quotas": [{"usd": 20, "per": "month"}]}
    assert done.values["people"]["ann@example.org"]["quotas"] == [{"usd": 5, "per": "month"}]
    assert "roles those of oidc" in " ".join(map(str, done.notes))


def test_each_row_of_the_page_is_here() -> None:
    rows = [row for chapter in ("Models and upstreams", "Routing", "The proxy") for row in rows_of(chapter)]
    assert [row for row in rows if row not in CASES and row not in OF_THE_COMMAND_LINE] == []
    assert [row for row in rows_of("Keys") if row not in KEY_COLUMNS and row not in OF_THE_API] == []
    assert len(rows) > 40
    known = {*rows, *rows_of("Keys")}
    assert {*CASES, *KEY_COLUMNS, *OF_THE_API, *OF_THE_COMMAND_LINE} <= known


def test_the_page_names_the_tables_that_are_read() -> None:
    query = re.findall(r"from \"(LiteLLM_\w+)\" t\)", PAGE)
    assert query == ["LiteLLM_VerificationToken", "LiteLLM_TeamTable", "LiteLLM_BudgetTable", "LiteLLM_UserTable"]
