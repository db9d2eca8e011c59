"""Gemini's embedContent and batchEmbedContents through a whole gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import answer, cut_mid_body, ok_json

from .client import Answer
from .gateway_process import CHAT, UPSTREAM_KEY, Gateway, key, model, secret
from .test_gemini import detail, gemini_settings, received

EMBEDDING = "embedding-under-test"
MAPPED = "mapped"
SENT = "gemini embedding"
PRICE = {"input": 0.15}
CONTENT = {"parts": [{"text": "eight by"}]}
"""Two tokens by the rule."""
ONE = {"embedding": {"values": [0.25, -0.5]}}
MANY = {"embeddings": [{"values": [0.25]}, {"values": [-0.5]}]}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    plain = {"endpoints": ["embed_content"], "price": PRICE}
    models = {
        EMBEDDING: {**plain, "routes": [{"upstream": "main"}]},
        MAPPED: {**plain, "routes": [{"upstream": "main", "model": SENT}]},
        "elsewhere": {"routes": [{"upstream": "plain"}], "max_output_tokens": 10},
        CHAT: model("chat"),
    }
    keys = [
        key("alice"), key("few", models=[MAPPED]), key("spent", quotas=[{"requests": 1, "per": "day"}]),
        key("counted", quotas=[{"tokens": 5, "per": "month"}, {"usd": 1, "per": "month"}]),
    ]  # fmt: skip
    config = gemini_settings(shared_upstream.url, models=models, keys=keys, aliases={"fast": EMBEDDING})
    config["upstreams"] |= {"plain": {"base_url": f"{shared_upstream.url}/v1", "api_key": UPSTREAM_KEY}}
    return start_shared_gateway(config)


def request(name: str | None = EMBEDDING, **changes: Any) -> dict[str, Any]:
    """One request of a batch, as google-genai writes it."""
    return {"content": CONTENT, **({} if name is None else {"model": f"models/{name}"}), **changes}


def embed(gateway: Gateway, body: Any, *, who: str = "alice", name: str = EMBEDDING, version: str = "v1beta") -> Answer:
    """A call of batchEmbedContents if the body has requests, else of embedContent."""
    method = "batchEmbedContents" if "requests" in body else "embedContent"
    headers = {"x-goog-api-key": secret(who)}
    return gateway.post(f"/{version}/models/{name}:{method}", body, key=None, headers=headers)


@pytest.mark.parametrize("version", ["v1beta", "v1"])
@pytest.mark.parametrize(
    ("body", "said", "endpoint", "tokens"),
    [
        ({"content": CONTENT, "taskType": "RETRIEVAL_QUERY"}, ONE, "embed_content", 2),
        ({"requests": [request(), request(title="four")]}, MANY, "batch_embed_contents", 5),
    ],
)
def test_an_answer_without_usage_is_charged_the_estimate(
    gateway: Gateway,
    upstream: ScriptedUpstream,
    version: str,
    body: dict[str, Any],
    said: Any,
    endpoint: str,
    tokens: int,
) -> None:
    upstream.answer_with(ok_json(said))
    got = embed(gateway, body, version=version)
    assert (got.status, got.json) == (200, said)
    call = gateway.call(got.id)
    assert (call["endpoint"], call["model"], call["status"]) == (endpoint, EMBEDDING, 200)
    assert (call["prompt_tokens"], call["completion_tokens"], call["usage_source"]) == (tokens, 0, "estimated")
    assert call["cost_usd"] == pytest.approx(tokens * PRICE["input"] / 1e6)


def test_usage_metadata_is_charged(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    details = [{"modality": "TEXT", "tokenCount": 3}, {"modality": "IMAGE", "tokenCount": 258}]
    usage = {"promptTokenCount": 261, "promptTokenDetails": details}
    upstream.answer_with(ok_json(ONE | {"usageMetadata": usage}))
    call = gateway.call(embed(gateway, {"content": CONTENT}).id)
    assert (call["prompt_tokens"], call["usage_source"], call["units"]) == (261, "reported", {"image_in": 258})


@pytest.mark.parametrize("method", ["embedContent", "batchEmbedContents"])
def test_the_request_goes_up_as_it_came_without_the_key(
    gateway: Gateway, upstream: ScriptedUpstream, method: str
) -> None:
    one = b'{ "content":{"parts":{"text":"\\u0048i"}}, "model":"models/%b", "output_dimensionality" : 2 }'
    body = one % EMBEDDING.encode()
    if method == "batchEmbedContents":
        body = b'{"requests" : [%b]}' % body
    upstream.answer_with(ok_json(ONE))
    path = f"/v1beta/models/{EMBEDDING}:{method}?key={secret('alice')}"
    assert gateway.post(path, body, key=None, headers={"x-goog-api-client": "google-genai-sdk/3"}).status == 200
    sent = upstream.requests[0]
    assert (sent.path, sent.body) == (f"/v1/models/{EMBEDDING}:{method}", body)
    assert (sent.headers["x-goog-api-key"], sent.headers["x-goog-api-client"]) == (UPSTREAM_KEY, "google-genai-sdk/3")
    assert secret("alice") not in sent.head.decode()


FILLER = "x" * 40_000
"""Two of them make a body that another process reads."""


@pytest.mark.parametrize(("name", "sent"), [("fast", EMBEDDING), (MAPPED, SENT), (EMBEDDING, EMBEDDING)])
@pytest.mark.parametrize("text", ["Hi", FILLER], ids=["short", "large"])
def test_the_model_is_mapped_in_path_and_body(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, sent: str, text: str
) -> None:
    content = {"parts": [{"text": text}]}
    asked = {"requests": [request(name, content=content), request(name, content=content)]}
    upstream.answer_with(ok_json(MANY), ok_json(ONE), ok_json(ONE))
    assert embed(gateway, asked, name=name).status == 200
    assert embed(gateway, request(name, content=content), name=name).status == 200
    assert embed(gateway, request(None, content=content), name=name).status == 200
    many, one, unnamed = upstream.requests
    for each, method in ((many, "batchEmbedContents"), (one, "embedContent")):
        assert each.path == f"/v1/models/{sent.replace(' ', '%20')}:{method}"
    assert many.json == {"requests": [request(sent, content=content)] * 2}
    assert one.json == request(sent, content=content)
    assert unnamed.json == {"content": content}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "content"), ({"content": "Hi"}, "content"), ({"content": CONTENT, "outputDimensionality": 0}, None),
        ({"content": CONTENT, "model": f"models/{MAPPED}"}, "model"), ({"content": CONTENT, "Model": "m"}, "model"),
        ({"content": CONTENT, "taskType": "A", "task_type": "B"}, "taskType"),
        ({"content": {"parts": [{"file_data": {"file_uri": "files/x"}}]}}, "fileData"),
        ({"requests": []}, "requests"), ({"requests": "Hi"}, "requests"), ({"requests": [{}]}, None),
        ({"requests": [request(MAPPED)]}, "model"), ({"requests": [request(), request(MAPPED)]}, "requests"),
        ({"requests": [request()], "model": f"models/{EMBEDDING}"}, "model"),
        ({"requests": [request(task_type="A", taskType="B")]}, "requests[0].taskType"),
        ({"requests": [request(content={"parts": [{"fileData": {"fileUri": "files/x"}}]})]}, "fileData"),
    ],
)  # fmt: skip
def test_faults_of_a_request_cost_nothing(
    gateway: Gateway, upstream: ScriptedUpstream, body: dict[str, Any], field: str | None
) -> None:
    upstream.answer_with()
    got = embed(gateway, body)
    assert received(got)[:2] == (400, "INVALID_ARGUMENT")
    if field is not None:
        assert detail(got, "BadRequest")["fieldViolations"][0]["field"] == field


def test_the_model_has_to_be_permitted_and_served(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(MANY))
    assert received(embed(gateway, {"content": CONTENT}, who="few"))[:2] == (404, "NOT_FOUND")
    assert received(embed(gateway, {"requests": [request("unknown")]}, name="unknown"))[:2] == (404, "NOT_FOUND")
    for name in (CHAT, "elsewhere"):
        assert received(embed(gateway, {"content": CONTENT}, name=name))[:2] == (404, "NOT_FOUND")
    assert received(embed(gateway, {"content": CONTENT}, who="nobody"))[:2] == (401, "UNAUTHENTICATED")
    assert upstream.hits == 0
    assert embed(gateway, {"requests": [request(MAPPED)]}, who="few", name=MAPPED).status == 200


def test_quotas_are_drawn(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(ONE), ok_json(ONE))
    assert embed(gateway, {"content": CONTENT}, who="spent").status == 200
    assert received(embed(gateway, {"content": CONTENT}, who="spent"))[:2] == (429, "RESOURCE_EXHAUSTED")
    assert embed(gateway, {"content": CONTENT}, who="counted").status == 200
    got = embed(gateway, {"requests": [request(), request()]}, who="counted")
    assert received(got)[:2] == (429, "RESOURCE_EXHAUSTED")
    assert "tokens" in received(got)[2]


def test_a_refusal_is_free_and_a_cut_answer_is_not(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    said = {"error": {"code": 400, "message": "No.", "status": "INVALID_ARGUMENT"}}
    upstream.answer_with(answer(json.dumps(said).encode(), status=400))
    refused = embed(gateway, {"content": CONTENT})
    assert received(refused)[:2] == (400, "INVALID_ARGUMENT")
    assert gateway.call(refused.id)["usage_source"] == "none"
    upstream.answer_with(cut_mid_body)
    cut = embed(gateway, {"content": CONTENT})
    assert received(cut)[0] >= 500
    call = gateway.call(cut.id)
    assert (call["prompt_tokens"], call["usage_source"]) == (2, "estimated")


def test_models_show_the_method(gateway: Gateway) -> None:
    google = {"x-goog-api-key": secret("alice")}
    shown = gateway.send("GET", "/v1beta/models", key=None, headers=google).json["models"]
    assert [each["name"] for each in shown] == ["models/embedding-under-test", "models/fast", "models/mapped"]
    assert {tuple(each["supportedGenerationMethods"]) for each in shown} == {("embedContent",)}
