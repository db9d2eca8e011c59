"""The official `AzureOpenAI` client of openai-python, through a gateway."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import ok_json, stream
from tests.flows.house import CHAT, EMBEDDINGS, Gateway, key, secret, settings
from tests.flows.test_azure_paths import CHATTED


@pytest.fixture(scope="module")
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
    spent = key("spent", quotas=[{"requests": 1, "per": "day"}])
    return gateways(settings(theatre.url, keys=[key("alice"), spent]))


def client(house: Gateway, who: str, deployment: str | None = None) -> openai.AzureOpenAI:
    return openai.AzureOpenAI(
        azure_endpoint=house.url, api_key=secret(who), api_version="2024-10-21", azure_deployment=deployment
    )


@pytest.fixture(params=[None, CHAT], ids=["by model", "by deployment"])
def sdk(house: Gateway, request: pytest.FixtureRequest) -> Iterator[openai.AzureOpenAI]:
    with client(house, "alice", request.param) as made:
        yield made


def test_chats_and_streams(sdk: openai.AzureOpenAI, upstream: Stage) -> None:
    events = [{"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}]
    upstream.play(ok_json(CHATTED), stream(events))
    got = sdk.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "Hi"}])
    assert got.choices[0].message.content == "Hi"
    streamed = sdk.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "Hi"}], stream=True)
    assert [chunk.choices[0].delta.content for chunk in streamed] == ["Hi"]


def test_embeddings_and_models(house: Gateway, upstream: Stage) -> None:
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    upstream.play(ok_json({"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "usage": usage}))
    with client(house, "alice") as sdk:
        assert sdk.embeddings.create(model=EMBEDDINGS, input="Hi", encoding_format="float").data[0].embedding == [0.5]
        assert CHAT in [model.id for model in sdk.models.list()]


def test_errors(house: Gateway, upstream: Stage) -> None:
    upstream.play(ok_json(CHATTED))
    hello = [{"role": "user", "content": "Hi"}]
    with client(house, "nobody") as sdk, pytest.raises(openai.AuthenticationError):
        sdk.chat.completions.create(model=CHAT, messages=hello)  # type: ignore[arg-type]
    with client(house, "alice") as sdk, pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="unknown", messages=hello)  # type: ignore[arg-type]
    with client(house, "spent") as sdk:
        sdk.chat.completions.create(model=CHAT, messages=hello)  # type: ignore[arg-type]
        with pytest.raises(openai.RateLimitError):
            sdk.chat.completions.create(model=CHAT, messages=hello)  # type: ignore[arg-type]
