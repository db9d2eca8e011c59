"""Gemini's embedContent and batchEmbedContents through a whole gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import answer, cut_mid_body, ok_json

from .client import Answer
from .house import CHAT, UPSTREAM_KEY, Gateway, key, model, secret
from .test_gemini import detail, gemini_settings, told

EMBEDDING = "embedding-under-test"
MAPPED = "mapped"
SENT = "gemini embedding"
PRICE = {"input": 0.15}
CONTENT = {"parts": [{"text": "eight by"}]}
"""Two tokens by the rule."""
ONE = {"embedding": {"values": [0.25, -0.5]}}
MANY = {"embeddings": [{"values": [0.25]}, {"values": [-0.5]}]}


@pytest.fixture(scope="module")
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
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
    config = gemini_settings(theatre.url, models=models, keys=keys, aliases={"fast": EMBEDDING})
    config["upstreams"] |= {"plain": {"base_url": f"{theatre.url}/v1", "api_key": UPSTREAM_KEY}}
    return gateways(config)


def request(name: str | None = EMBEDDING, **changes: Any) -> dict[str, Any]:
    """One request of a batch, as google-genai writes it."""
    return {"content": CONTENT, **({} if name is None else {"model": f"models/{name}"}), **changes}


def embed(house: Gateway, body: Any, *, who: str = "alice", name: str = EMBEDDING, version: str = "v1beta") -> Answer:
    """A call of batchEmbedContents if the body has requests, else of embedContent."""
    method = "batchEmbedContents" if "requests" in body else "embedContent"
    headers = {"x-goog-api-key": secret(who)}
    return house.post(f"/{version}/models/{name}:{method}", body, key=None, headers=headers)


@pytest.mark.parametrize("version", ["v1beta", "v1"])
@pytest.mark.parametrize(
    ("body", "said", "endpoint", "tokens"),
    [
        ({"content": CONTENT, "taskType": "RETRIEVAL_QUERY"}, ONE, "embed_content", 2),
        ({"requests": [request(), request(title="four")]}, MANY, "batch_embed_contents", 5),
    ],
)
def test_an_answer_without_usage_is_charged_the_estimate(
    house: Gateway, upstream: Stage, version: str, body: dict[str, Any], said: Any, endpoint: str, tokens: int
) -> None:
    upstream.play(ok_json(said))
    got = embed(house, body, version=version)
    assert (got.status, got.json) == (200, said)
    call = house.call(got.id)
    assert (call["endpoint"], call["model"], call["status"]) == (endpoint, EMBEDDING, 200)
    assert (call["prompt_tokens"], call["completion_tokens"], call["usage_source"]) == (tokens, 0, "estimated")
    assert call["cost_usd"] == pytest.approx(tokens * PRICE["input"] / 1e6)


def test_usage_metadata_is_charged(house: Gateway, upstream: Stage) -> None:
    details = [{"modality": "TEXT", "tokenCount": 3}, {"modality": "IMAGE", "tokenCount": 258}]
    usage = {"promptTokenCount": 261, "promptTokenDetails": details}
    upstream.play(ok_json(ONE | {"usageMetadata": usage}))
    call = house.call(embed(house, {"content": CONTENT}).id)
    assert (call["prompt_tokens"], call["usage_source"], call["units"]) == (261, "reported", {"image_in": 258})


@pytest.mark.parametrize("method", ["embedContent", "batchEmbedContents"])
def test_the_request_goes_up_as_it_came_without_the_key(house: Gateway, upstream: Stage, method: str) -> None:
    one = b'{ "content":{"parts":{"text":"\\u0048i"}}, "model":"models/%b", "output_dimensionality" : 2 }'
    body = one % EMBEDDING.encode()
    if method == "batchEmbedContents":
        body = b'{"requests" : [%b]}' % body
    upstream.play(ok_json(ONE))
    path = f"/v1beta/models/{EMBEDDING}:{method}?key={secret('alice')}"
    assert house.post(path, body, key=None, headers={"x-goog-api-client": "google-genai-sdk/3"}).status == 200
    sent = upstream.requests[0]
    assert (sent.path, sent.body) == (f"/v1/models/{EMBEDDING}:{method}", body)
    assert (sent.headers["x-goog-api-key"], sent.headers["x-goog-api-client"]) == (UPSTREAM_KEY, "google-genai-sdk/3")
    assert secret("alice") not in sent.head.decode()


FILLER = "x" * 40_000
"""Two of them make a body that another process reads."""


@pytest.mark.parametrize(("name", "sent"), [("fast", EMBEDDING), (MAPPED, SENT), (EMBEDDING, EMBEDDING)])
@pytest.mark.parametrize("text", ["Hi", FILLER], ids=["short", "large"])
def test_the_model_is_mapped_in_path_and_body(house: Gateway, upstream: Stage, name: str, sent: str, text: str) -> None:
    content = {"parts": [{"text": text}]}
    asked = {"requests": [request(name, content=content), request(name, content=content)]}
    upstream.play(ok_json(MANY), ok_json(ONE), ok_json(ONE))
    assert embed(house, asked, name=name).status == 200
    assert embed(house, request(name, content=content), name=name).status == 200
    assert embed(house, request(None, content=content), name=name).status == 200
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
    house: Gateway, upstream: Stage, body: dict[str, Any], field: str | None
) -> None:
    upstream.play()
    got = embed(house, body)
    assert told(got)[:2] == (400, "INVALID_ARGUMENT")
    if field is not None:
        assert detail(got, "BadRequest")["fieldViolations"][0]["field"] == field


def test_the_model_has_to_be_permitted_and_served(house: Gateway, upstream: Stage) -> None:
    upstream.play(ok_json(MANY))
    assert told(embed(house, {"content": CONTENT}, who="few"))[:2] == (404, "NOT_FOUND")
    assert told(embed(house, {"requests": [request("unknown")]}, name="unknown"))[:2] == (404, "NOT_FOUND")
    for name in (CHAT, "elsewhere"):
        assert told(embed(house, {"content": CONTENT}, name=name))[:2] == (404, "NOT_FOUND")
    assert told(embed(house, {"content": CONTENT}, who="nobody"))[:2] == (401, "UNAUTHENTICATED")
    assert upstream.hits == 0
    assert embed(house, {"requests": [request(MAPPED)]}, who="few", name=MAPPED).status == 200


def test_quotas_are_drawn(house: Gateway, upstream: Stage) -> None:
    upstream.play(ok_json(ONE), ok_json(ONE))
    assert embed(house, {"content": CONTENT}, who="spent").status == 200
    assert told(embed(house, {"content": CONTENT}, who="spent"))[:2] == (429, "RESOURCE_EXHAUSTED")
    assert embed(house, {"content": CONTENT}, who="counted").status == 200
    got = embed(house, {"requests": [request(), request()]}, who="counted")
    assert told(got)[:2] == (429, "RESOURCE_EXHAUSTED")
    assert "tokens" in told(got)[2]


def test_a_refusal_is_free_and_a_cut_answer_is_not(house: Gateway, upstream: Stage) -> None:
    said = {"error": {"code": 400, "message": "No.", "status": "INVALID_ARGUMENT"}}
    upstream.play(answer(json.dumps(said).encode(), status=400))
    refused = embed(house, {"content": CONTENT})
    assert told(refused)[:2] == (400, "INVALID_ARGUMENT")
    assert house.call(refused.id)["usage_source"] == "none"
    upstream.play(cut_mid_body)
    cut = embed(house, {"content": CONTENT})
    assert told(cut)[0] >= 500
    call = house.call(cut.id)
    assert (call["prompt_tokens"], call["usage_source"]) == (2, "estimated")


def test_models_show_the_method(house: Gateway) -> None:
    google = {"x-goog-api-key": secret("alice")}
    shown = house.send("GET", "/v1beta/models", key=None, headers=google).json["models"]
    assert [each["name"] for each in shown] == ["models/embedding-under-test", "models/fast", "models/mapped"]
    assert {tuple(each["supportedGenerationMethods"]) for each in shown} == {("embedContent",)}
