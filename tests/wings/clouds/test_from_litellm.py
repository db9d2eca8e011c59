"""Entries of Azure, Bedrock and Vertex AI: the upstreams that they become, or the reason why they do not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gateway.config import build, resolve
from gateway.config.price_table import with_table_prices
from gateway.wings.clouds.settings import CloudUpstream
from gateway.wings.litellm.given import Converted
from gateway.wings.litellm.run import convert
from tests.wings.litellm.test_litellm_page import NOW, entry, models

SONNET = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = "arn:aws:bedrock:eu-west-1:1:application-inference-profile/abc"
GPT = entry("openai/gpt-4o", "gpt")
"""A model beside the one that may not be converted."""


def converted(given: dict[str, Any]) -> Converted:
    return convert(yaml.safe_dump(given), "config.yaml", NOW)


def upstreams(*entries: Any, **more: Any) -> list[dict[str, Any]]:
    """The upstreams of the entries, which `check` accepts."""
    done = converted({**models(*entries), **more})
    values = dict.fromkeys(done.variables, "a-value-of-the-environment-0001")
    config = build(resolve(yaml.safe_dump(with_table_prices(done.values, NOW)), values).values)
    assert all(isinstance(each, CloudUpstream) for each in config.upstreams.values())
    return list(done.values["upstreams"].values())


def azure(**params: Any) -> dict[str, Any]:
    params = {"api_base": "https://eu.openai.azure.com", **params}
    (found,) = upstreams(entry("azure/d", **params))
    return found


def test_azure_by_a_client_secret() -> None:
    found = azure(
        tenant_id="os.environ/TENANT", client_id="an-id", client_secret="os.environ/SECRET", azure_scope="api://x"
    )
    auth = {"tenant_id": "${TENANT}", "client_id": "an-id", "client_secret": "${SECRET}", "scopes": ["api://x"]}
    assert found == {
        "base_url": "https://eu.openai.azure.com/openai/v1", "provider": "azure", "auth": {"type": "azure", **auth},
    }  # fmt: skip


def test_a_secret_in_the_file_is_not_copied() -> None:
    found = azure(tenant_id="t", client_id="c", client_secret="of-theirs")
    assert found["auth"]["client_secret"] == "${AZURE_CLIENT_SECRET}"
    assert "of-theirs" not in str(found)


def test_azure_by_a_token() -> None:
    found = azure(azure_ad_token="os.environ/TOKEN")
    assert (found["api_key"], "key_header" in found, "auth" in found) == ("${TOKEN}", False, False)
    assert azure(azure_ad_token="oidc/google/x", client_id="c", tenant_id="t")["auth"] == {
        "type": "azure", "client_id": "c",
    }  # fmt: skip


def test_azure_by_the_credentials_of_its_surroundings() -> None:
    given = entry("azure/d", api_base="https://eu.openai.azure.com")
    (found,) = upstreams(given, litellm_settings={"enable_azure_ad_token_refresh": True})
    assert (found["auth"], "api_key" in found, "key_header" in found) == ("azure", False, False)
    (found,) = upstreams(given)
    assert (found["api_key"], found["key_header"]) == ("${AZURE_API_KEY}", "api-key")


@pytest.mark.parametrize(
    ("base", "version", "base_url"),
    [
        ("https://eu.openai.azure.com", "2024-10-21", "https://eu.openai.azure.com/openai/v1"),
        ("https://apim.example/ai", "2024-10-21", "https://apim.example/ai/openai"),
        ("https://apim.example/ai/openai/deployments/d", "2024-10-21", "https://apim.example/ai/openai"),
        ("https://apim.example/ai", "preview", "https://apim.example/ai/openai/v1"),
        ("https://apim.example/ai", None, "https://apim.example/ai/openai/v1"),
    ],
)
def test_another_address_in_front_of_azure_keeps_its_version(base: str, version: str | None, base_url: str) -> None:
    found = azure(api_base=base, **({"api_version": version} if version else {}))
    assert found["base_url"] == base_url
    assert (found.get("paths"), found.get("api_version")) == (
        (None, None) if base_url.endswith("/v1") else ("azure", "2024-10-21")
    )


@pytest.mark.parametrize(
    ("model", "params", "expected", "name"),
    [
        (SONNET, {"aws_region_name": "us-west-2"}, {}, SONNET),
        (f"converse/{SONNET}", {"aws_region_name": "us-west-2"}, {}, SONNET),
        (f"us-west-2/{SONNET}", {}, {}, SONNET),
        (SONNET, {"aws_region_name": "us-west-2", "model_id": ARN}, {}, ARN),
        (SONNET, {"aws_region_name": "us-west-2", "aws_profile_name": "work"},
         {"auth": {"type": "aws", "profile": "work"}}, SONNET),
        (SONNET, {"aws_region_name": "us-west-2", "aws_role_name": "arn:aws:iam::1:role/r", "aws_external_id": "x"},
         {"auth": {"type": "aws", "role_arn": "arn:aws:iam::1:role/r", "external_id": "x"}}, SONNET),
        (SONNET, {"aws_region_name": "us-west-2", "aws_access_key_id": "os.environ/A",
                  "aws_secret_access_key": "a-secret-of-theirs", "aws_session_token": "os.environ/C"},
         {"auth": {"type": "aws", "access_key_id": "${A}", "secret_access_key": "${AWS_SECRET_ACCESS_KEY}",
                   "session_token": "${C}"}}, SONNET),
        (SONNET, {"aws_region_name": "us-west-2", "aws_access_key_id": "os.environ/AWS_ACCESS_KEY_ID",
                  "aws_secret_access_key": "os.environ/AWS_SECRET_ACCESS_KEY"}, {}, SONNET),
    ],
)  # fmt: skip
def test_claude_at_bedrock(model: str, params: dict[str, Any], expected: dict[str, Any], name: str) -> None:
    done = converted(models(entry(f"bedrock/{model}", **params)))
    assert upstreams(entry(f"bedrock/{model}", **params)) == [
        {
            "base_url": "https://bedrock-runtime.us-west-2.amazonaws.com", "provider": "aws",
            "capabilities": {"chat": "via_messages"}, "auth": "aws", **expected,
        }
    ]  # fmt: skip
    assert done.values["models"]["m"]["routes"] == [{"upstream": "bedrock", "model": name}]
    assert done.values["models"]["m"]["endpoints"] == ["chat", "messages"]


def test_bedrock_by_a_key_and_an_endpoint_of_its_own() -> None:
    (found,) = upstreams(entry(f"bedrock/{SONNET}", api_key="os.environ/K", aws_region_name="us-west-2"))
    assert (found["api_key"], "auth" in found) == ("${K}", False)
    (found,) = upstreams(
        entry(f"bedrock/{SONNET}", aws_bedrock_runtime_endpoint="https://vpce.example/", aws_region_name="eu-west-1")
    )
    assert found["base_url"] == "https://vpce.example"
    assert (found["paths"], found["auth"]) == ("bedrock", {"type": "aws", "region": "eu-west-1"})


def test_the_openai_models_of_bedrock_have_chats() -> None:
    done = converted(models(entry("bedrock/openai.gpt-oss-120b-1:0", aws_region_name="cn-north-1")))
    (found,) = done.values["upstreams"].values()
    assert found["base_url"] == "https://bedrock-runtime.cn-north-1.amazonaws.com.cn/openai/v1"
    assert found["capabilities"]["responses"] == "via_chat"
    assert done.values["models"]["m"]["endpoints"] == ["chat", "responses", "messages"]


def test_an_entry_without_a_region_takes_it_from_the_environment_or_from_its_arn() -> None:
    done = converted(models(entry(f"bedrock/{SONNET}")))
    (found,) = done.values["upstreams"].values()
    assert found["base_url"] == "https://bedrock-runtime.${AWS_REGION}.amazonaws.com"
    assert "AWS_REGION" in done.variables
    (found,) = upstreams(entry(f"bedrock/{ARN}", info={"base_model": f"bedrock/{SONNET}"}))
    assert found["base_url"] == "https://bedrock-runtime.eu-west-1.amazonaws.com"


FOUNDRY = "https://hub.services.ai.azure.com"
SERVERLESS = "https://phi-4.eastus2.models.ai.azure.com"


@pytest.mark.parametrize(
    ("model", "params", "expected", "name"),
    [
        ("Phi-4", {"api_base": f"{FOUNDRY}/models/chat/completions?api-version=2024-05-01-preview"},
         {"base_url": f"{FOUNDRY}/openai/v1", "key_header": "api-key", "provider": "azure"}, "Phi-4"),
        ("model_router/gpt-5.4", {"api_base": "https://hub.openai.azure.com/openai/v1"},
         {"base_url": "https://hub.openai.azure.com/openai/v1", "key_header": "api-key", "provider": "azure"},
         "gpt-5.4"),
        ("Phi-4", {"api_base": "os.environ/HUB"},
         {"base_url": "${HUB}/openai/v1", "key_header": "api-key", "provider": "azure"}, "Phi-4"),
        ("claude-sonnet-5", {"api_base": FOUNDRY},
         {"base_url": f"{FOUNDRY}/anthropic/v1", "key_header": "x-api-key", "capabilities": {"chat": "via_messages"}},
         "claude-sonnet-5"),
        ("claude-sonnet-5", {"api_base": f"{FOUNDRY}/anthropic/v1/messages"},
         {"base_url": f"{FOUNDRY}/anthropic/v1", "key_header": "x-api-key", "capabilities": {"chat": "via_messages"}},
         "claude-sonnet-5"),
        ("Phi-4", {"api_base": f"{SERVERLESS}/v1/chat/completions"},
         {"base_url": f"{SERVERLESS}/v1", "capabilities": {
             "completions": "via_chat", "responses": "via_chat", "messages": "via_chat", "embeddings": False,
         }}, "Phi-4"),
    ],
)  # fmt: skip
def test_foundry(model: str, params: dict[str, Any], expected: dict[str, Any], name: str) -> None:
    given = models(entry(f"azure_ai/{model}", api_key="os.environ/K", **params))
    done = converted(given)
    (found,) = done.values["upstreams"].values()
    assert found == {"api_key": "${K}", **expected}
    assert done.values["models"]["m"]["routes"][0]["model"] == name


def test_foundry_without_a_key_or_by_entra_id() -> None:
    (found,) = upstreams(entry("azure_ai/Phi-4", api_base=FOUNDRY))
    assert (found["api_key"], found["key_header"]) == ("${AZURE_AI_API_KEY}", "api-key")
    secret = {"tenant_id": "t", "client_id": "c", "client_secret": "os.environ/S"}
    (found,) = upstreams(entry("azure_ai/claude-sonnet-5", api_base=FOUNDRY, **secret))
    assert (found["auth"]["client_secret"], "key_header" in found) == ("${S}", False)
    done = converted(models(entry("azure_ai/Phi-4")))
    (found,) = done.values["upstreams"].values()
    assert found["base_url"] == "${AZURE_AI_API_BASE}/openai/v1"


def test_the_endpoints_of_foundry() -> None:
    entries = [
        entry("azure_ai/Phi-4", "chat", api_base=FOUNDRY),
        entry("azure_ai/claude-sonnet-5", "claude", api_base=FOUNDRY),
        entry("azure_ai/embed-v-4-0", "embed", api_base=FOUNDRY),
        entry("azure_ai/cohere-rerank-v4.0-pro", "rerank", api_base=f"{FOUNDRY}/providers/cohere/v2/rerank"),
        entry("azure_ai/Phi-4", "serverless", api_base=SERVERLESS),
    ]
    done = converted(models(*entries))
    assert {name: model["endpoints"] for name, model in done.values["models"].items()} == {
        "chat": ["chat", "responses"], "claude": ["chat", "messages"], "embed": ["embeddings"], "rerank": ["rerank"],
        "serverless": ["chat", "responses", "messages"],
    }  # fmt: skip
    found = {each["base_url"] for each in upstreams(*entries)}
    assert f"{FOUNDRY}/providers/cohere/v2" in found


MANTLE = "https://bedrock-mantle.us-west-2.api.aws"


@pytest.mark.parametrize(
    ("model", "path", "endpoints"),
    [
        ("anthropic.claude-opus-5-5", "/anthropic/v1", ["chat", "messages"]),
        ("openai.gpt-5.5", "/openai/v1", ["chat", "responses", "messages"]),
        ("openai.gpt-5.6-cyber", "/openai/v1", ["responses"]),
        ("google.gemma-4-31b", "/openai/v1", ["chat", "responses", "messages"]),
        ("openai.gpt-oss-120b", "/v1", ["chat", "responses", "messages"]),
        ("qwen.qwen3-32b", "/v1", ["chat", "responses", "messages"]),
    ],
)
def test_models_of_bedrock_mantle(model: str, path: str, endpoints: list[str]) -> None:
    """The paths are those of LiteLLM's list of models."""
    done = converted(models(entry(f"bedrock_mantle/us-west-2/{model}")))
    (found,) = upstreams(entry(f"bedrock_mantle/us-west-2/{model}"))
    assert (found["base_url"], found["auth"], found["provider"]) == (f"{MANTLE}{path}", "aws", "aws")
    has_responses = "oss" in model or path != "/v1"
    assert ("responses" not in found["capabilities"]) == (has_responses or path == "/anthropic/v1")
    assert done.values["models"]["m"]["endpoints"] == endpoints
    assert done.values["models"]["m"]["routes"][0]["model"] == model


def test_bedrock_mantle_by_a_key_a_project_and_an_endpoint_of_its_own() -> None:
    given = entry("bedrock_mantle/openai.gpt-5.5", aws_region_name="us-west-2", api_key="os.environ/K",
                  aws_bedrock_project_id="p-1", extra_headers={"X-Team": "os.environ/T"})  # fmt: skip
    (found,) = upstreams(given)
    assert (found["api_key"], "auth" in found) == ("${K}", False)
    assert found["headers"] == {"OpenAI-Project": "p-1", "X-Team": "${T}"}
    (found,) = upstreams(entry("bedrock_mantle/openai.gpt-5.5", api_base=f"{MANTLE}/openai/v1"))
    assert (found["base_url"], found["auth"]) == (f"{MANTLE}/openai/v1", "aws")
    (found,) = upstreams(
        entry("bedrock_mantle/qwen.qwen3-32b", api_base="https://vpce.example/v1/", aws_region_name="eu-west-1")
    )
    assert found["base_url"] == "https://vpce.example/v1"
    assert found["auth"] == {"type": "aws", "region": "eu-west-1", "service": "bedrock-mantle"}


ROOT = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1"
GEMINI = entry("vertex_ai/gemini-2.5-flash", vertex_project="p", vertex_location="global")


def test_gemini_at_vertex_has_both_apis_and_one_price() -> None:
    done = converted(models(GEMINI))
    assert [each["base_url"].rpartition("/locations/")[2] for each in done.values["upstreams"].values()] == [
        "global/endpoints/openapi", "global/publishers/google",
    ]  # fmt: skip
    assert done.values["models"]["m"]["routes"] == [
        {"upstream": "vertex", "model": "google/gemini-2.5-flash"},
        {"upstream": "vertex-2", "model": "gemini-2.5-flash"},
    ]
    assert done.values["models"]["m"]["endpoints"] == ["chat", "responses", "messages", "generate_content"]
    assert with_table_prices(done.values, NOW)["models"]["m"]["price"]["input"] == "0.3"


@pytest.mark.parametrize(
    ("model", "path"),
    [("claude-sonnet-4-5@20250929", "publishers/anthropic"), ("meta/llama-4-scout-maas", "endpoints/openapi")],
)
def test_other_models_at_vertex(model: str, path: str) -> None:
    given = entry(f"vertex_ai/{model}", vertex_ai_project="p", vertex_ai_location="europe-west1")
    (found,) = upstreams(given)
    assert (found["base_url"], found["auth"], found["provider"]) == (f"{ROOT}/{path}", "google", "google")
    assert converted(models(given)).values["models"]["m"]["routes"][0]["model"] == model


@pytest.mark.parametrize(
    ("location", "host"),
    [("global", "aiplatform"), ("us", "aiplatform.us.rep"), (None, "us-central1-aiplatform")],
)
def test_the_host_of_a_location(location: str | None, host: str) -> None:
    (found,) = upstreams(entry("vertex_ai/claude-x", vertex_project="p", vertex_location=location))
    assert found["base_url"].startswith(f"https://{host}.googleapis.com/v1/projects/p/")


@pytest.mark.parametrize(
    ("credentials", "auth"),
    [
        (None, "google"),
        ("os.environ/GOOGLE_APPLICATION_CREDENTIALS", "google"),
        ("os.environ/MINE", {"type": "google", "file": "${MINE}"}),
        ("/run/secrets/vertex.json", {"type": "google", "file": "/run/secrets/vertex.json"}),
        ('{"private_key": "a-secret"}', {"type": "google", "file": "${GOOGLE_CREDENTIALS_FILE}"}),
        ({"private_key": "a-secret"}, {"type": "google", "file": "${GOOGLE_CREDENTIALS_FILE}"}),
    ],
)
def test_the_credentials_of_vertex(credentials: Any, auth: Any) -> None:
    done = converted(models(entry("vertex_ai/claude-x", vertex_project="p", vertex_credentials=credentials)))
    (found,) = done.values["upstreams"].values()
    assert found["auth"] == auth
    assert "a-secret" not in str(done.values) + " ".join(map(str, done.notes))


def test_settings_of_a_credential_and_of_all_entries() -> None:
    given = models(entry("vertex_ai/claude-x", litellm_credential_name="g"), entry("vertex_ai/claude-y", "n"))
    given["credential_list"] = [{"credential_name": "g", "credential_values": {"vertex_project": "of-a-credential"}}]
    given["litellm_settings"] = {"vertex_project": "of-all", "vertex_location": "europe-west1"}
    found = [each["base_url"] for each in converted(given).values["upstreams"].values()]
    assert [url.split("/")[5:8] for url in found] == [
        ["of-a-credential", "locations", "europe-west1"], ["of-all", "locations", "europe-west1"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "place", "says"),
    [
        (entry("azure/d", api_base="https://x.openai.azure.com", azure_username="u", azure_password="p", client_id="c"),
         "model_list[1]", "by a user's password is not there"),
        (entry("azure/d", api_base="https://x.openai.azure.com", azure_ad_token="os.environ/T"),
         "model_list[1].litellm_params.azure_ad_token", "auth: azure renews one by itself"),
        (entry("sagemaker/x", api_base="https://x.example"), "model_list[1]", "write its upstream by hand"),
        (entry("azure_ai/agents/x", api_base="https://x.example"), "model_list[1]", "agents/x has a form of its own"),
        (entry("azure_ai/FLUX-1.1-pro", api_base=FOUNDRY, info={"mode": "image_generation"}), "model_list[1]",
         "images of FLUX-1.1-pro have a form of their own"),
        (entry("azure_ai/Phi-4", api_base=f"{FOUNDRY}/models", api_version="2024-05-01-preview"),
         "model_list[1].litellm_params.api_base", "is asked at /openai/v1"),
        (entry("bedrock_mantle/openai.gpt-5.5"), "model_list[1].litellm_params.model", "names no region"),
        (entry("bedrock_mantle/eu-west-1/openai.gpt-5.5"), "model_list[1].litellm_params.model",
         "has the price of us-east-1 and us-west-2"),
        (entry("bedrock/amazon.nova-pro-v1:0"), "model_list[1]", "with Claude and with OpenAI's models"),
        (entry(f"bedrock/{ARN}"), "model_list[1]", "write it into model_info.base_model"),
        (entry("bedrock/agent/X/Y"), "model_list[1]", "keep LiteLLM as an upstream"),
        (entry("bedrock/amazon.titan-embed-text-v2:0"), "model_list[1]", "embedding of bedrock has a form of its own"),
        (entry("bedrock/*", "bedrock/*"), "model_list[1]", "does not name the model at the provider"),
        (entry(f"bedrock/{SONNET}"), "model_list[1].litellm_params.model", "names no region"),
        (entry("bedrock/anthropic.claude-3-haiku-20240307-v1:0", aws_region_name="eu-west-1"),
         "model_list[1].litellm_params.model", "has the price of us-east-1 and us-west-2"),
        (entry(f"bedrock/{SONNET}", aws_region_name="us-east-1", aws_session_name="s"),
         "model_list[1].litellm_params.aws_session_name", "names its sessions itself"),
        (entry(f"bedrock/{SONNET}", aws_region_name="us-east-1", aws_web_identity_token="oidc/x", aws_role_name="r"),
         "model_list[1].litellm_params.aws_web_identity_token", "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN (r)"),
        (entry("vertex_ai/mistral-large"), "model_list[1]", "Vertex AI has another form for mistral-large"),
        (entry("vertex_ai/123456789"), "model_list[1]", "Vertex AI has another form"),
        (entry("vertex_ai/imagen-3"), "model_list[1]", "image_generation of vertex_ai has a form of its own"),
        (entry("vertex_ai/gemini-2.5-pro", api_base="https://x.example"), "model_list[1]", "another address"),
        (entry("vertex_ai/claude-x", vertex_location="os.environ/L"),
         "model_list[1].litellm_params.vertex_location", "for the location global write the host"),
        (entry("vertex_ai/claude-x"), "model_list[1].litellm_params.model", "names no location: us-central1"),
    ],
)  # fmt: skip
def test_what_is_not_converted_or_means_something_else_is_said_at_its_place(given: Any, place: str, says: str) -> None:
    notes = converted(models(GPT, given)).notes
    assert any(note.path == place and says in note.message and note.line for note in notes), list(map(str, notes))


def test_a_region_of_the_table_s_prices_needs_no_note() -> None:
    done = converted(models(entry("bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0", aws_region_name="eu-west-1")))
    assert done.notes == []
    assert with_table_prices(done.values, NOW)["models"]["m"]["price"]["input"] == "3.3"
