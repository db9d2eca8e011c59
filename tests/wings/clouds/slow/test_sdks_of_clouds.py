"""The SDKs that are made for a cloud, pointed at a gateway with its keys as their credentials."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import anthropic
import pytest
from anthropic import (
    AnthropicBedrock,
    AnthropicBedrockMantle,
    AnthropicFoundry,
    AnthropicVertex,
    AsyncAnthropicBedrock,
)
from botocore import UNSIGNED
from botocore import exceptions as aws
from botocore.config import Config
from botocore.session import get_session
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
        "server": {"port": 0}, "admin": {"token": "an-admin-token-of-the-test"},
        "keys": [key("alice"), key("bob", quotas=["1 requests/month"])],
        "upstreams": {
            "gemini": {"base_url": f"{host}/google", "api_key": "k", "capabilities": own},
            "claude": {"base_url": f"{host}/anthropic", "api_key": "k"},
            "own": {
                "base_url": f"http://127.0.0.1:{shared_upstream.port}/v1", "api_key": "k",
                "capabilities": {"messages": True},
            },
        },
        "models": {
            "gemini-2.5-flash": {"endpoints": ["generate_content"], "routes": [{"upstream": "gemini"}]},
            "claude": {"endpoints": ["messages"], "routes": [{"upstream": "claude", "model": "claude@1"}]},
            "us.anthropic.claude-opus-5-v1:0": {"endpoints": ["messages"], "routes": [{"upstream": "own"}]},
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


# ---------------------------------------------------------------------------------------------------- AnthropicBedrock

BEDROCK: dict[str, Any] = {
    "model": "us.anthropic.claude-opus-5-v1:0", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}],
}  # fmt: skip
TOOL_EVENTS: list[dict[str, Any]] = [
    message_events()[0],
    {"type": "content_block_start", "index": 0,
     "content_block": {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"city":'}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '"Köln"}'}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
     "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]  # fmt: skip


def sse(events: Iterable[dict[str, Any]]) -> list[bytes]:
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]


def bedrock(gateway: Gateway, token: str, **more: Any) -> AnthropicBedrock:
    given: dict[str, Any] = more or {"api_key": token}
    return AnthropicBedrock(aws_region="us-east-1", base_url=gateway.url, max_retries=0, **given)


def test_anthropic_bedrock(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(plain_message()), stream(sse(message_events()), done=False))
    with bedrock(gateway, secret("alice")) as client:
        made = client.messages.create(**BEDROCK)
        assert (made.content[0].type, made.usage.output_tokens) == ("text", 3)
        events = list(client.messages.create(**BEDROCK, stream=True))
    assert [event.type for event in events] == [each["type"] for each in message_events()]
    assert [request.path for request in upstream.requests] == ["/v1/messages"] * 2
    assert [request.json.get("stream") for request in upstream.requests] == [None, True]
    assert all({"anthropic_version", "anthropic_beta"}.isdisjoint(request.json) for request in upstream.requests)
    assert all(request.headers["anthropic-version"] == "2023-06-01" for request in upstream.requests)


async def test_anthropic_bedrock_without_threads(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream(sse(message_events()), done=False))
    async with (
        AsyncAnthropicBedrock(
            aws_region="us-east-1", base_url=gateway.url, api_key=secret("alice"), max_retries=0
        ) as client,
        client.messages.stream(**BEDROCK) as streamed,
    ):
        message = await streamed.get_final_message()
    assert (message.content[0].type, message.stop_reason) == ("text", "end_turn")


def test_anthropic_bedrock_sends_betas_in_the_body(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(plain_message()))
    with bedrock(gateway, secret("alice")) as client:
        client.beta.messages.create(**BEDROCK, betas=["context-1m-2025-08-07", "a-1"])
    (sent,) = upstream.requests
    assert (sent.path, sent.headers["anthropic-beta"]) == ("/v1/messages", "context-1m-2025-08-07,a-1")


def test_anthropic_bedrock_calls_tools(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream(sse(TOOL_EVENTS), done=False))
    tools: Any = [{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
    with bedrock(gateway, secret("alice")) as client, client.messages.stream(**BEDROCK, tools=tools) as streamed:
        message = streamed.get_final_message()
    (block,) = message.content
    assert block.type == "tool_use"
    assert (block.name, block.input, message.stop_reason) == ("weather", {"city": "Köln"}, "tool_use")


def test_anthropic_bedrock_sees_an_error_in_the_middle(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    upstream.answer_with(stream(sse([*message_events()[:3], error]), done=False))
    with bedrock(gateway, secret("alice")) as client:
        events = client.messages.create(**BEDROCK, stream=True)
        assert [next(events).type for _ in range(3)] == [each["type"] for each in message_events()[:3]]
        with pytest.raises(anthropic.APIStatusError, match="had an error") as raised:
            next(events)
    assert raised.value.body["error"]["type"] == "serviceUnavailableException"  # type: ignore[index]


def test_anthropic_bedrock_is_refused_in_bedrocks_form(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(plain_message()))
    with bedrock(gateway, secret("bob")) as client:
        client.messages.create(**BEDROCK)
    signing = {"aws_access_key": "AKIAFAKE", "aws_secret_key": "a-secret"}
    for is_stream in (False, True):
        with bedrock(gateway, secret("bob")) as client, pytest.raises(anthropic.RateLimitError) as spent:
            client.messages.create(**BEDROCK, stream=is_stream)
        assert spent.value.response.headers["x-amzn-errortype"] == "ThrottlingException"
        assert list(spent.value.body) == ["message"]  # type: ignore[call-overload]
        with bedrock(gateway, "sk-gw-wrong") as client, pytest.raises(anthropic.AuthenticationError) as wrong:
            client.messages.create(**BEDROCK, stream=is_stream)
        assert wrong.value.response.headers["x-amzn-errortype"] == "UnrecognizedClientException"
        with bedrock(gateway, "", **signing) as client, pytest.raises(anthropic.AuthenticationError) as signed:
            client.messages.create(**BEDROCK, stream=is_stream)
        assert "AWS_BEARER_TOKEN_BEDROCK" in signed.value.message
    assert upstream.hits == 1


def boto(gateway: Gateway, token: str) -> Any:
    """AWS' client, whose `AWS_BEARER_TOKEN_BEDROCK` wants https: here the same header is added."""
    own = Config(signature_version=UNSIGNED, retries={"max_attempts": 1})
    client = get_session().create_client("bedrock-runtime", "us-east-1", endpoint_url=gateway.url, config=own)
    bears = {"Authorization": f"Bearer {token}"}
    client.meta.events.register("before-send", lambda request, **_: request.headers.update(bears))
    return client


@pytest.mark.parametrize("more", [{}, {"contentType": "application/json"}], ids=["no type", "json"])
def test_botocores_own_client(gateway: Gateway, upstream: ScriptedUpstream, more: dict[str, str]) -> None:
    upstream.answer_with(ok_json(plain_message()), stream(sse(message_events()), done=False))
    body = {name: value for name, value in BEDROCK.items() if name != "model"}
    data = json.dumps(body | {"anthropic_version": "bedrock-2023-05-31"})
    asked = {"modelId": BEDROCK["model"], "body": data, **more}
    client = boto(gateway, secret("alice"))
    assert json.loads(client.invoke_model(**asked)["body"].read())["content"][0]["text"] == "Hello"
    events = client.invoke_model_with_response_stream(**asked)["body"]
    assert [json.loads(each["chunk"]["bytes"]) for each in events] == message_events()
    with pytest.raises(aws.ClientError) as refused:
        boto(gateway, "sk-gw-wrong").invoke_model(**asked)
    assert refused.value.response["Error"]["Code"] == "UnrecognizedClientException"
    assert refused.value.response["ResponseMetadata"]["RequestId"].startswith("req_")


def test_anthropic_vertex_reaches_anthropics_own_api(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(plain_message()), stream(sse(message_events()), done=False))
    with claude(gateway, secret("alice")) as client:
        assert client.messages.create(**BEDROCK).content[0].type == "text"
        assert [event.type for event in client.messages.create(**BEDROCK, stream=True)][-1] == "message_stop"
    assert [request.path for request in upstream.requests] == ["/v1/messages"] * 2
    assert [request.json.get("stream") for request in upstream.requests] == [None, True]
    assert not any("anthropic_version" in request.json for request in upstream.requests)
    assert all(request.headers["anthropic-version"] == "2023-06-01" for request in upstream.requests)
