"""Remedies for settings of LiteLLM that are not converted, by the last name of their place."""

from __future__ import annotations

from collections.abc import Mapping

_CIRCUIT = "each upstream and model has a circuit breaker with fixed rules"
_OTHER_TRACES = "metrics for Prometheus are always there; for traces see tracing.endpoint"
_PARAMETER = "no parameter is added to calls: let the client send it"
_PEOPLE = "see people.defaults.quotas for what each person may use over all her keys"
_CACHE = "answers are not cached"
_NEITHER = "is deliberately not part of the gateway; keep LiteLLM as an upstream for it"

WHY: Mapping[str, str] = {
    "database_url": "keys and spend are in the store of this gateway (store.url); see docs/from-litellm.md#keys",
    "store_model_in_db": "models are in the file; export those of LiteLLM's database into model_list first",
    "routing_strategy": "routes go by priority, then weight, then the fewest calls under way",
    "allowed_fails": _CIRCUIT,
    "cooldown_time": _CIRCUIT,
    "retry_policy": "attempts in all are models.NAME.max_attempts; what is repeated is decided by fixed rules",
    "max_retries": "attempts in all are models.NAME.max_attempts",
    "success_callback": _OTHER_TRACES,
    "failure_callback": _OTHER_TRACES,
    "callbacks": _OTHER_TRACES,
    "cache": _CACHE,
    "cache_params": _CACHE,
    "drop_params": "nothing is dropped: a call goes where it can be served (upstreams.NAME.capabilities)",
    "alerting": "see alerts.webhook",
    "alerting_args": "see alerts.webhook",
    "alerting_threshold": "see the alert rules on the metrics",
    "enable_pre_call_checks": "every parameter is checked before money is spent",
    "environment_variables": "set them in the environment of the gateway",
    "default_fallbacks": "name fallbacks for each model",
    "content_policy_fallbacks": "a refusal of a provider is passed on, and is no cause for another model",
    "stream_timeout": "see upstreams.NAME.timeouts.idle_s",
    "max_parallel_requests": "see upstreams.NAME.limits.parallel, and max_parallel of a key",
    "api_version": "the v1 API that the gateway speaks needs none",
    "background_health_checks": "see upstreams.NAME.probe_s",
    "health_check_interval": "see upstreams.NAME.probe_s",
    "allowed_ips": "see keys[].ips",
    "provider_budget_config": "an upstream has no quota of money; see quotas[].model for its models",
    "reasoning_effort": _PARAMETER,
    "thinking": _PARAMETER,
    "temperature": _PARAMETER,
    "top_p": _PARAMETER,
    "seed": _PARAMETER,
    "stop": _PARAMETER,
    "extra_body": _PARAMETER,
    "default_internal_user_params": _PEOPLE,
    "max_internal_user_budget": _PEOPLE,
    "max_user_budget": _PEOPLE,
    "internal_user_budget_duration": _PEOPLE,
    "upperbound_key_generate_params": "members make keys with defaults.keys; see teams.NAME.members for their bounds",
    "default_team_params": "write each team with its quotas into teams",
    "default_team_settings": "write each team with its quotas into teams",
    "guardrails": _NEITHER,
    "mcp_servers": _NEITHER,
    "vector_store_registry": _NEITHER,
    "set_verbose": "lines of the log never have prompts; there is no verbose mode",
    "json_logs": "lines of the log are JSON always: server.access_log",
    "turn_off_message_logging": "prompts and answers are never logged",
    "request_timeout": "see upstreams.NAME.timeouts.total_s",
    "custom_auth": "keys, or tokens of an identity provider (jwt), are the ways in",
    "aws_region_name": "the gateway does not sign requests",
}
NO_COUNTERPART = "has no counterpart"

OTHER_APIS: Mapping[str, str] = {
    "bedrock": "AWS' signatures",
    "sagemaker": "AWS' signatures",
    "vertex_ai": "Google Cloud's tokens",
    "vertex_ai_beta": "Google Cloud's tokens",
}
"""Providers that are not served, with the reason that their API needs."""


def why_not(provider: str) -> str:
    """The reason and the remedy for a provider that is not in the table."""
    reason = f" (it needs {needed})" if (needed := OTHER_APIS.get(provider)) else ""
    return f"{provider} is not OpenAI-compatible{reason}; keep LiteLLM as an upstream for it"
