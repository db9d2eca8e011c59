"""The SDKs that are made for a cloud, pointed at a gateway with its keys as their credentials."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic import AnthropicBedrockMantle, AnthropicFoundry, AnthropicVertex
from google import genai
from google.genai.errors import ClientError
from google.oauth2.credentials import Credentials

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.good_answers import FORMS
from tests.fakes.scripted import ok_json, stream
from tests.flows.gateway_process import Gateway, key, secret
from tests.wings.clouds.fakes import message_events, plain_message

GEMINI = FORMS["generate_content"]
ROOT = "/v1/projects/p/locations/global/publishers"


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    own = {"completions": False, "chat": False, "embeddings": False, "responses": False, "generate_content": True}
    host = f"http://127.0.0.1:{shared_upstream.port}{ROOT}"
    config = {
        "server": {"port": 0}, "admin": {"token": "an-admin-token-of-the-test"}, "keys": [key("alice")],
        "upstreams": {
            "gemini": {"base_url": f"{host}/google", "api_key": "k", "capabilities": own},
            "claude": {"base_url": f"{host}/anthropic", "api_key": "k"},
        },
        "models": {
            "gemini-2.5-flash": {"endpoints": ["generate_content"], "routes": [{"upstream": "gemini"}]},
            "claude": {"endpoints": ["messages"], "routes": [{"upstream": "claude", "model": "claude@1"}]},
        },
    }  # fmt: skip
    return start_shared_gateway(config)


def google(gateway: Gateway, token: str, **more: Any) -> genai.Client:
    own = {"project": "p", "location": "europe-west1", "credentials": Credentials(token)}  # type: ignore[no-untyped-call]
    given: dict[str, Any] = more or own
    return genai.Client(vertexai=True, http_options={"base_url": gateway.url}, **given)


@pytest.mark.parametrize("is_express", [False, True], ids=["credentials", "api key"])
def test_google_genai_with_vertexai(gateway: Gateway, upstream: ScriptedUpstream, is_express: bool) -> None:
    events = [*GEMINI.pieces("Hello"), *GEMINI.finish("Hello")]
    upstream.answer_with(ok_json(GEMINI.document("Hello")), stream(events, done=False))
    client = google(gateway, secret("alice"), **({"api_key": secret("alice")} if is_express else {}))
    assert client.models.generate_content(model="gemini-2.5-flash", contents="Hi").text == "Hello"
    streamed = client.models.generate_content_stream(model="gemini-2.5-flash", contents="Hi")
    assert "".join([chunk.text or "" for chunk in streamed]).startswith("Hello")
    assert [request.path for request in upstream.requests] == [
        f"{ROOT}/google/models/gemini-2.5-flash:generateContent",
        f"{ROOT}/google/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
    ]


def test_errors_have_googles_form(gateway: Gateway) -> None:
    client = google(gateway, secret("alice"))
    with pytest.raises(ClientError) as refused:
        client.models.generate_content(model="none", contents="Hi")
    assert (refused.value.code, refused.value.status) == (404, "NOT_FOUND")
    client = google(gateway, "sk-gw-wrong")
    with pytest.raises(ClientError) as refused:
        client.models.generate_content(model="gemini-2.5-flash", contents="Hi")
    assert (refused.value.code, refused.value.status) == (401, "UNAUTHENTICATED")


def claude(gateway: Gateway, token: str) -> AnthropicVertex:
    return AnthropicVertex(
        region="global", project_id="p", access_token=token, base_url=f"{gateway.url}/v1", max_retries=0
    )


def test_anthropic_vertex(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    events = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in message_events()]
    upstream.answer_with(ok_json(plain_message()), stream(events, done=False))
    asked: dict[str, Any] = {"model": "claude", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    with claude(gateway, secret("alice")) as client:
        made = client.messages.create(**asked)
        assert made.content[0].type == "text"
        assert [event.type for event in client.messages.create(**asked, stream=True)][-1] == "message_stop"
    assert [request.path for request in upstream.requests] == [
        f"{ROOT}/anthropic/models/claude@1:rawPredict", f"{ROOT}/anthropic/models/claude@1:streamRawPredict",
    ]  # fmt: skip
    assert [request.json["anthropic_version"] for request in upstream.requests] == ["vertex-2023-10-16"] * 2
    assert not any("model" in request.json for request in upstream.requests)


@pytest.mark.parametrize("kind", [AnthropicBedrockMantle, AnthropicFoundry])
def test_clients_whose_clouds_have_anthropics_own_paths(
    gateway: Gateway, upstream: ScriptedUpstream, kind: Callable[..., Any]
) -> None:
    region = {"aws_region": "us-east-1"} if kind is AnthropicBedrockMantle else {}
    events = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in message_events()]
    upstream.answer_with(ok_json(plain_message()), stream(events, done=False))
    asked: dict[str, Any] = {"model": "claude", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    with kind(base_url=gateway.url, api_key=secret("alice"), max_retries=0, **region) as client:
        assert client.messages.create(**asked).content[0].text == "Hello"
        assert [event.type for event in client.messages.create(**asked, stream=True)][-1] == "message_stop"
        with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
            client.messages.create(**{**asked, "model": "none"})
    assert upstream.hits == 2


def test_errors_have_anthropics_form(gateway: Gateway) -> None:
    asked: dict[str, Any] = {"model": "none", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    with claude(gateway, secret("alice")) as client, pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.messages.create(**asked)
    with claude(gateway, "sk-gw-wrong") as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(**asked)
