"""Prices at clouds, from the table: by the kind of region where the table has it, and unknown where it has not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot

from gateway.config.price_table import provider_of, with_table_prices

NOW = datetime(2026, 11, 29, tzinfo=UTC)
AZURE = {"base_url": "https://eu.openai.azure.com/openai/v1", "auth": "azure"}
DEPLOYMENTS = {"base_url": "https://eu.openai.azure.com/openai", "api_version": "2024-10-21", "api_key": "k"}
OREGON = {"base_url": "https://bedrock-runtime.us-west-2.amazonaws.com", "auth": "aws"}
IRELAND = {"base_url": "https://bedrock-runtime.eu-west-1.amazonaws.com", "auth": "aws", "provider": "aws"}
ROOT = "https://aiplatform.googleapis.com/v1/projects/p/locations/global"
REGION = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1"
SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("mine.openai.azure.com", "azure"),
        ("mine.services.ai.azure.com", "azure"),
        ("openai.azure.com.example", None),
        ("aiplatform.googleapis.com", "google"),
        ("us-central1-aiplatform.googleapis.com", None),  # a region may cost more
        ("bedrock-runtime.us-west-2.amazonaws.com", None),
    ],
)
def test_hosts_that_bill_the_listed_price(host: str, provider: str | None) -> None:
    """The package knows those by the same names."""
    assert provider_of({"base_url": f"https://{host}/v1"}) == provider
    if provider is not None:
        assert get_snapshot().find_provider(None, None, f"https://{host}/openai/v1").id == provider


def price(*routes: tuple[dict[str, Any], str]) -> str | None:
    """What a million tokens of input cost at these upstreams; None: unknown."""
    values = {
        "upstreams": {f"up-{index}": upstream for index, (upstream, _) in enumerate(routes)},
        "models": {"m": {"routes": [{"upstream": f"up-{i}", "model": model} for i, (_, model) in enumerate(routes)]}},
    }
    found = with_table_prices(values, NOW)["models"]["m"].get("price")
    return found and found["input"]


@pytest.mark.parametrize(
    ("upstream", "model", "usd"),
    [
        (AZURE, "gpt-4o", "2.5"),
        (DEPLOYMENTS, "gpt-4o", "2.5"),
        (AZURE, "our-gpt-4o", None),  # a deployment with a name of its own
        (OREGON, f"us.{SONNET}", None),  # no host of Bedrock says which prices it has
        ({**OREGON, "provider": "aws"}, f"us.{SONNET}", "3.3"),
        (IRELAND, f"eu.{SONNET}", "3.3"),
        (IRELAND, f"global.{SONNET}", "3"),
        (IRELAND, SONNET, "3.3"),
        (IRELAND, "arn:aws:bedrock:eu-west-1:1:application-inference-profile/abc", None),
        ({**IRELAND, "base_url": f"{IRELAND['base_url']}/openai/v1"}, "openai.gpt-oss-120b-1:0", "0.15"),
        ({"base_url": f"{ROOT}/publishers/google", "auth": "google"}, "gemini-2.5-flash", "0.3"),
        ({"base_url": f"{ROOT}/endpoints/openapi", "auth": "google"}, "google/gemini-2.5-flash", "0.3"),
        ({"base_url": f"{ROOT}/publishers/anthropic", "auth": "google"}, "claude-sonnet-4-5@20250929", "3"),
        ({"base_url": f"{ROOT}/endpoints/openapi", "auth": "google"}, "openai/gpt-oss-120b-maas", None),
        ({"base_url": f"{REGION}/publishers/anthropic", "auth": "google"}, "claude-sonnet-4-5@20250929", None),
        ({"base_url": f"{REGION}/publishers/google", "provider": "google"}, "gemini-2.5-flash", "0.3"),
    ],
)  # fmt: skip
def test_a_price_is_that_of_the_table_or_unknown(upstream: dict[str, Any], model: str, usd: str | None) -> None:
    assert price((upstream, model)) == usd


def test_failover_to_another_price_is_unknown_and_to_the_same_one_is_not() -> None:
    vertex = ({"base_url": f"{ROOT}/publishers/anthropic", "auth": "google"}, "claude-sonnet-4-5@20250929")
    claude = ({"base_url": "https://api.anthropic.com/v1", "api_key": "k"}, "claude-sonnet-4-5")
    assert price((IRELAND, f"eu.{SONNET}"), vertex) is None
    assert (
        price((IRELAND, f"global.{SONNET}"), ({**IRELAND, "base_url": OREGON["base_url"]}, f"global.{SONNET}")) == "3"
    )
    assert price(vertex, claude) is None  # Anthropic's own API has variants, such as its region
    assert price((AZURE, "gpt-4o"), ({"base_url": "https://us.openai.azure.com/openai/v1"}, "gpt-4o")) == "2.5"
