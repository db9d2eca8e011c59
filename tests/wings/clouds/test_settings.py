"""The settings of clouds, and the line of `gateway check`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import Config, ConfigError, build
from gateway.config.probable_mistakes import warnings_of
from gateway.wings.clouds import auth as auth_settings
from gateway.wings.clouds.check import LINE
from gateway.wings.clouds.settings import CloudUpstream

VERTEX = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1"
BEDROCK = "https://bedrock-runtime.us-west-2.amazonaws.com"
AZURE = "https://us.openai.azure.com/openai"


def config_of(base_url: str, **more: Any) -> Config:
    return build(
        {"upstreams": {"up": {"base_url": base_url, **more}}, "models": {"m": {"routes": [{"upstream": "up"}]}}}
    )


def made(base_url: str, **more: Any) -> CloudUpstream:
    found = config_of(base_url, **more).upstreams["up"]
    assert isinstance(found, CloudUpstream)
    return found


SERVES = ("chat", "responses", "messages", "generate_content", "embeddings")


@pytest.mark.parametrize(
    ("base_url", "paths", "serves"),
    [
        ("https://api.openai.com/v1", "openai", ("chat", "responses", "embeddings")),
        (f"{AZURE}/v1", "openai", ("chat", "responses", "embeddings")),
        (AZURE, "azure", ("chat", "responses", "embeddings")),
        (f"{VERTEX}/publishers/google", "openai", ("generate_content",)),
        (f"{VERTEX}/publishers/anthropic", "vertex", ("messages",)),
        (f"{VERTEX}/endpoints/openapi", "openai", ("chat", "responses", "embeddings")),
        (BEDROCK, "bedrock", ("messages",)),
        (f"{BEDROCK}/openai/v1", "openai", ("chat", "responses", "embeddings")),
        (f"{BEDROCK}/anthropic/v1", "openai", ("messages",)),
        ("https://bedrock-mantle.us-west-2.api.aws/v1", "openai", ("chat", "responses", "embeddings")),
        ("https://bedrock-mantle.us-west-2.api.aws/anthropic/v1", "openai", ("messages",)),
    ],
)
def test_an_address_shows_its_paths_and_capabilities(base_url: str, paths: str, serves: tuple[str, ...]) -> None:
    found = made(base_url, **({"api_version": "2024-10-21"} if paths == "azure" else {}))
    assert (found.paths, tuple(name for name in SERVES if getattr(found.capabilities, name))) == (paths, serves)


def test_what_is_written_counts_more_than_the_address() -> None:
    found = made(f"{VERTEX}/publishers/anthropic", capabilities={"chat": "via_messages", "count_tokens": False})
    assert (found.capabilities.chat, found.capabilities.messages) == ("via_messages", True)
    assert made("http://127.0.0.1:1/x", paths="bedrock").capabilities.messages is True


@pytest.mark.parametrize(
    ("base_url", "region", "service"),
    [
        (BEDROCK, "us-west-2", "bedrock"),
        ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1", "bedrock"),
        ("https://bedrock-mantle.eu-west-1.api.aws/v1", "eu-west-1", "bedrock-mantle"),
    ],
)
def test_an_address_of_aws_names_region_and_service(base_url: str, region: str, service: str) -> None:
    found = made(base_url, auth="aws")
    assert (found.region, found.service) == (region, service)
    other = made(base_url, auth={"type": "aws", "region": "r", "service": "s"})
    assert (other.region, other.service) == ("r", "s")


OAUTH = {"type": "oauth", "token_url": "https://t.example/", "client_id": "c", "client_secret": "a-secret"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"auth": "aws"}, "auth.region is missing: base_url names no region"),
        ({"auth": "kerberos"}, "expected 'key', 'command', 'oauth'"),
        ({"auth": {"type": "command"}}, "type command needs command"),
        ({"auth": {"type": "oauth", "token_url": "https://t.example/"}}, "type oauth needs client_id"),
        ({"auth": {**OAUTH, "token_url": "http://t.example/"}}, "expected an address with https://"),
        ({"auth": {**OAUTH, "region": "r"}}, "region: not for type oauth, which has token_url client_id"),
        ({"auth": {"type": "azure", "client_secret": "s"}}, "need tenant_id and client_id"),
        ({"auth": {"type": "aws", "region": "r", "access_key_id": "a"}}, "access_key_id needs secret_access_key"),
        ({"auth": {"type": "aws", "region": "r", "session_token": "a-secret"}}, "session_token needs access_key_id"),
        ({"auth": {"type": "aws", "region": "r", "external_id": "a"}}, "external_id needs role_arn"),
        ({"auth": {"type": "aws", "region": "r", "profile": "p", "access_key_id": "a", "secret_access_key": "b"}},
         "expected either access_key_id or profile"),
        ({"auth": {"type": "google", "file": "~/key.json"}}, "~ is no folder here"),
        ({"auth": OAUTH, "api_key": "k"}, "expected either auth of type oauth or api_key"),
        ({"auth": OAUTH, "headers": {"api-key": "k"}}, "headers has the authorization that auth writes"),
        ({"auth": OAUTH, "capabilities": {"realtime": True}}, "sessions present api_key alone"),
        ({"paths": "azure"}, "api_version is missing"),
        ({"betas": ["a"]}, "betas: only for Claude at Vertex AI or by InvokeModel"),
        ({"api_version": "a&b"}, "api_version"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_a_fault(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made("https://models.example/v1", **settings)
    assert says in str(refused.value)
    assert "a-secret" not in str(refused.value)


@pytest.mark.parametrize("kind", auth_settings.PACKAGES)
def test_a_package_that_is_not_installed_is_a_fault_with_its_command(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_settings, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"pip install 'completions-gateway\[{kind}\]'"):
        made("https://models.example/v1", auth={"type": kind, **({"region": "r"} if kind == "aws" else {})})


def test_the_line_of_check() -> None:
    assert LINE.text(config_of("https://api.openai.com/v1")).startswith("none")
    assert LINE.text(config_of(BEDROCK, auth="aws")) == "up (auth aws in us-west-2, paths of bedrock)"


VERTEX = "https://us-central1-aiplatform.googleapis.com"


@pytest.mark.parametrize(
    ("url", "settings", "says"),
    [
        (BEDROCK, {}, "chats get 404: write capabilities: {chat: via_messages}"),
        (BEDROCK, {"capabilities": {"chat": "via_messages"}}, None),
        (VERTEX, {}, f"write {VERTEX}/v1/projects/PROJECT/locations/LOCATION"),
        (f"{VERTEX}/v1", {}, "is that of all projects"),
        (f"{VERTEX}/v1/projects/p/locations/l/endpoints/openapi", {}, None),
        (f"{VERTEX}/v1/projects/p/locations/l/publishers/anthropic", {}, "serves Claude at Messages alone"),
        (f"{VERTEX}/v1/publishers/google", {}, None),
        ("https://mine.openai.azure.com", {}, "below /openai/v1: https://mine.openai.azure.com/openai/v1"),
        ("https://mine.services.ai.azure.com/", {}, "below /openai/v1: https://mine.services.ai.azure.com/openai/v1"),
        ("https://mine.openai.azure.com/openai/v1", {}, None),
        ("https://api.openai.com/v1", {}, None),
    ],
)
def test_addresses_of_whole_clouds_are_warned_of(url: str, settings: dict[str, Any], says: str | None) -> None:
    found = LINE.findings(config_of(url, api_key="k", **settings), [])
    assert (says is None) == (found == [])
    assert (says or "") in " ".join(found)


@pytest.mark.parametrize(
    ("url", "counts", "found"),
    [
        ("https://mine.openai.azure.com/openai/v1", None, True),
        ("https://mine.openai.azure.com/openai/v1", "used", False),
        ("https://mine.services.ai.azure.com/openai/v1", None, False),
        ("https://api.openai.com/v1", None, True),
        (BEDROCK, None, False),
        (BEDROCK, "output_limit", True),
    ],
)
def test_azures_limits_count_output_limits(url: str, counts: str | None, found: bool) -> None:
    limits = {"tokens": "1000/min", **({} if counts is None else {"counts": counts})}
    assert made(url, limits=limits).counts_output_limits is found


def test_a_plain_upstream_has_a_plain_pool() -> None:
    from gateway.upstream.pool import Pool, pool_of

    assert type(pool_of("up", made("https://api.openai.com/v1", api_key="k"), 1)) is Pool
    assert type(pool_of("up", made("https://x.example/v1", auth=OAUTH), 1)) is not Pool


def test_a_secret_of_an_authorization_is_looked_at_as_others_are() -> None:
    config = config_of("https://us.openai.azure.com/openai/v1", auth={**OAUTH, "client_secret": "os.environ/SECRET"})
    said = [str(each) for each in warnings_of(config, datetime.now(UTC))]
    assert any(each.startswith("upstreams.up.auth.client_secret: looks like another program's form") for each in said)
