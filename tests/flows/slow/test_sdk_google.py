"""Google's official SDK, google-genai, as people have it, through a gateway: to a script and the simulator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest
from google import genai
from google.genai import errors, types

from tests.conftest import ScriptedUpstream, StartsGateways, StartsProcesses
from tests.fakes.scripted import CHUNKED, chunk, ok_json, raw
from tests.flows.gateway_process import SIMULATOR, Gateway, key, secret
from tests.flows.test_gemini import GEMINI, GENERATED, RECORDED, gemini_model, gemini_settings

SIMULATED = "gemini-2.5-flash"
EMBEDDING = "gemini-embedding-001"


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    keys = [key("alice"), key("spent", quotas=[{"requests": 1, "per": "day"}])]
    models = {GEMINI: gemini_model(), EMBEDDING: gemini_model(endpoints=["embed_content"])}
    return start_shared_gateway(gemini_settings(shared_upstream.url, keys=keys, models=models))


def client(gateway: Gateway, who: str = "alice", api_version: str | None = None) -> genai.Client:
    options = types.HttpOptions(base_url=gateway.url, api_version=api_version)
    return genai.Client(api_key=secret(who), http_options=options)


@pytest.fixture(params=[None, "v1beta", "v1"], ids=["default", "v1beta", "v1"])
def sdk(gateway: Gateway, request: pytest.FixtureRequest) -> Iterator[genai.Client]:
    with client(gateway, api_version=request.param) as made:
        yield made


def whole(name: str) -> Any:
    return raw(CHUNKED + chunk(RECORDED[name]) + b"0\r\n\r\n")


def test_plain_answer(sdk: genai.Client, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(GENERATED))
    got = sdk.models.generate_content(
        model=GEMINI, contents="Hi", config=types.GenerateContentConfig(temperature=0.5, max_output_tokens=50)
    )
    assert got.text == "Hello!"
    assert got.usage_metadata is not None
    assert got.usage_metadata.thoughts_token_count == 61
    assert upstream.requests[0].json["generationConfig"] == {"temperature": 0.5, "maxOutputTokens": 50}


@pytest.mark.parametrize("name", ["text", "thinking-and-tool", "cached-and-searched", "two-candidates", "blocked",
                                  "audio-in-image-out", "empty-chunk-after-the-end", "reseller"])  # fmt: skip
def test_stream(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(whole(name))
    config = types.GenerateContentConfig(candidate_count=2 if name == "two-candidates" else 1)
    with client(gateway) as sdk:
        got = list(sdk.models.generate_content_stream(model=GEMINI, contents="Hi", config=config))
    assert len(got) == RECORDED[name].count(b"data: {")
    assert got[-1].usage_metadata is not None
    if name == "thinking-and-tool":
        calls = [call for each in got for call in each.function_calls or []]
        assert [(call.name, call.args) for call in calls] == [("weather", {"city": "Zürich"})]


@pytest.mark.parametrize("name", ["error-in-stream", "ended-early"])
def test_a_stream_that_breaks_raises(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(whole(name))
    seen = []
    with client(gateway) as sdk, pytest.raises(errors.ServerError) as caught:
        seen += [each.text for each in sdk.models.generate_content_stream(model=GEMINI, contents="Hi")]
    assert caught.value.status == "UNAVAILABLE"
    assert upstream.hits == 1


def test_counts_and_models(sdk: genai.Client, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"totalTokens": 14}))
    assert sdk.models.count_tokens(model=GEMINI, contents="Hi").total_tokens == 14
    assert f"models/{GEMINI}" in [model.name for model in sdk.models.list()]
    assert sdk.models.get(model=GEMINI).name == f"models/{GEMINI}"


def test_embeddings(gateway: Gateway, sdk: genai.Client, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"embeddings": [{"values": [0.5, 0.25]}, {"values": [1.0]}]}))
    asked = types.EmbedContentConfig(task_type="RETRIEVAL_QUERY", output_dimensionality=2)
    got = sdk.models.embed_content(model=EMBEDDING, contents=["One", "Two"], config=asked)
    assert [each.values for each in got.embeddings or ()] == [[0.5, 0.25], [1.0]]
    sent = upstream.requests[0]
    assert sent.path == f"/v1/models/{EMBEDDING}:batchEmbedContents"
    first = {"model": f"models/{EMBEDDING}", "taskType": "RETRIEVAL_QUERY", "outputDimensionality": 2}
    assert sent.json["requests"][0] == {"content": {"parts": [{"text": "One"}], "role": "user"}, **first}
    call = gateway.calls("alice")[0]
    assert (call["endpoint"], call["prompt_tokens"], call["usage_source"]) == ("batch_embed_contents", 2, "estimated")
    with pytest.raises(errors.ClientError) as caught:
        sdk.models.embed_content(model="unknown", contents="One")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


@pytest.mark.parametrize("is_stream", [False, True])
def test_errors_have_their_classes(gateway: Gateway, upstream: ScriptedUpstream, is_stream: bool) -> None:
    def ask(sdk: genai.Client, model: str = GEMINI, **config: Any) -> None:
        asked: Any = {"model": model, "contents": "Hi", "config": types.GenerateContentConfig(**config)}
        if is_stream:
            list(sdk.models.generate_content_stream(**asked))
        else:
            sdk.models.generate_content(**asked)

    def failure(who: str, **asked: Any) -> tuple[int, str | None]:
        with client(gateway, who) as sdk, pytest.raises(errors.ClientError) as caught:
            ask(sdk, **asked)
        return caught.value.code, caught.value.status

    upstream.answer_with()
    assert failure("nobody") == (401, "UNAUTHENTICATED")
    assert failure("alice", model="unknown") == (404, "NOT_FOUND")
    assert failure("alice", stop_sequences=list("abcdef")) == (400, "INVALID_ARGUMENT")
    if not is_stream:
        upstream.answer_with(ok_json(GENERATED))
        with client(gateway, "spent") as sdk:
            ask(sdk)
    else:
        gateway.post(f"/v1beta/models/{GEMINI}:countTokens", {}, key="spent")
    assert failure("spent") == (429, "RESOURCE_EXHAUSTED")


@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # the SDK's own
async def test_the_asynchronous_client(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(whole("text"))
    made = client(gateway)
    texts = [each.text async for each in await made.aio.models.generate_content_stream(model=GEMINI, contents="Hi")]
    assert "".join(text or "" for text in texts) == 'Once upon a time "there" was.'
    await made.aio.aclose()
    made.close()


# --------------------------------------------------------------------------------------------------- the simulator


def test_records_agree_with_the_ledger_of_the_simulator(
    start_gateway: StartsGateways, process: StartsProcesses
) -> None:
    url = process(SIMULATOR, "--port", "0").wait_for(r"(http://127\.0\.0\.1:\d+)")[1]
    models = {
        SIMULATED: gemini_model(),
        "embedding": gemini_model(endpoints=["embed_content"], routes=[{"upstream": "main", "model": EMBEDDING}]),
    }
    gateway = start_gateway(gemini_settings(f"{url}/v1beta", models=models, aliases={}))
    weather = types.FunctionDeclaration(name="weather", parameters_json_schema={
        "type": "object", "properties": {"city": {"type": "string"}},
    })  # fmt: skip
    configs = [
        types.GenerateContentConfig(),
        types.GenerateContentConfig(max_output_tokens=3, candidate_count=2),
        types.GenerateContentConfig(tools=[types.Tool(function_declarations=[weather])], system_instruction="Brief."),
    ]
    with client(gateway) as sdk:
        for config in configs:
            asked: Any = {"model": SIMULATED, "contents": "Hello!", "config": config}
            plain = sdk.models.generate_content(**asked)
            *_, last = sdk.models.generate_content_stream(**asked)
            assert plain.usage_metadata == last.usage_metadata
        assert plain.function_calls
        count = sdk.models.count_tokens(model=SIMULATED, contents="Hello!")
        assert count.total_tokens == 1 + 2
        embedded = sdk.models.embed_content(
            model="embedding", contents=["Hello!", "Hi there"], config=types.EmbedContentConfig(output_dimensionality=8)
        )
        assert [len(each.values or ()) for each in embedded.embeddings or ()] == [8, 8]
    array = gateway.post(
        f"/v1beta/models/{SIMULATED}:streamGenerateContent", {"contents": [{"parts": [{"text": "Hi"}]}]}
    )
    assert array.json[-1]["candidates"][0]["finishReason"] == "STOP"
    with urlopen(Request(f"{url}/simulator/ledger"), timeout=10) as answer:
        billed = [(call["prompt_tokens"], call["completion_tokens"]) for call in json.load(answer)["calls"]]
    found = [
        (call["prompt_tokens"], call["completion_tokens"])
        for call in gateway.calls("alice") if call["endpoint"] in ("generate_content", "batch_embed_contents")
    ]  # fmt: skip
    assert len(billed) == 8
    assert sorted(found) == sorted(billed)
