"""The official `AzureOpenAI` client of openai-python, through a gateway."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import openai
import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import wav
from tests.fakes.scripted import answer, error_json, ok_json, stream
from tests.flows.gateway_process import CHAT, COMPLETIONS, EMBEDDINGS, Gateway, key, model, secret, settings
from tests.flows.test_azure_paths import CHATTED


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    spent = key("spent", quotas=[{"requests": 1, "per": "day"}])
    config = settings(shared_upstream.url, keys=[key("alice"), spent])
    config["models"]["answers"] = model("responses")
    kinds = {"whisper": ["transcriptions", "translations"], "voice": ["speech"], "pictures": ["images", "image_edits"]}
    for name, endpoints in kinds.items():
        config["models"][name] = model("chat", endpoints=endpoints)
    return start_shared_gateway(config)


def client(gateway: Gateway, who: str, deployment: str | None = None) -> openai.AzureOpenAI:
    return openai.AzureOpenAI(
        azure_endpoint=gateway.url, api_key=secret(who), api_version="2024-10-21", azure_deployment=deployment
    )


@pytest.fixture(params=[None, CHAT], ids=["by model", "by deployment"])
def sdk(gateway: Gateway, request: pytest.FixtureRequest) -> Iterator[openai.AzureOpenAI]:
    with client(gateway, "alice", request.param) as made:
        yield made


def test_chats_and_streams(sdk: openai.AzureOpenAI, upstream: ScriptedUpstream) -> None:
    events = [{"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}]
    upstream.answer_with(ok_json(CHATTED), stream(events))
    got = sdk.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "Hi"}])
    assert got.choices[0].message.content == "Hi"
    streamed = sdk.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "Hi"}], stream=True)
    assert [chunk.choices[0].delta.content for chunk in streamed] == ["Hi"]


def test_embeddings_and_models(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    upstream.answer_with(ok_json({"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "usage": usage}))
    with client(gateway, "alice") as sdk:
        assert sdk.embeddings.create(model=EMBEDDINGS, input="Hi", encoding_format="float").data[0].embedding == [0.5]
        assert CHAT in [model.id for model in sdk.models.list()]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_sound_and_images(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    image = {"created": 1, "data": [{"b64_json": "AAAA"}]}
    sound = answer(b"RIFF", headers=[("Content-Type", "audio/wav")])
    upstream.answer_with(ok_json({"text": "Hi"}), ok_json({"text": "Hi"}), sound, ok_json(image), ok_json(image))
    with client(gateway, "alice") as sdk:
        for method in (sdk.audio.transcriptions, sdk.audio.translations):
            assert method.create(model="whisper", file=("a.wav", wav(1))).text == "Hi"
        assert sdk.audio.speech.create(model="voice", input="Hi", voice="alloy").content == b"RIFF"
        assert sdk.images.generate(model="pictures", prompt="a cat").data == [openai.types.Image(b64_json="AAAA")]
        edited = sdk.images.edit(model="pictures", prompt="a hat", image=("a.png", b"PNG"))
    assert edited.data == [openai.types.Image(b64_json="AAAA")]
    assert [asked.path for asked in upstream.requests] == [
        "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations",
        "/v1/images/edits",
    ]  # fmt: skip
    assert [gateway.calls(limit=5)[at]["model"] for at in range(5)] == [
        "pictures",
        "pictures",
        "voice",
        *["whisper"] * 2,
    ]


def test_errors(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(CHATTED))
    hello = [{"role": "user", "content": "Hi"}]
    with client(gateway, "nobody") as sdk, pytest.raises(openai.AuthenticationError):
        sdk.chat.completions.create(model=CHAT, messages=hello)  # type: ignore[arg-type]
    with client(gateway, "alice") as sdk, pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="unknown", messages=hello)  # type: ignore[arg-type]
    with client(gateway, "spent") as sdk:
        sdk.chat.completions.create(model=CHAT, messages=hello)  # type: ignore[arg-type]
        with pytest.raises(openai.RateLimitError):
            sdk.chat.completions.create(model=CHAT, messages=hello)  # type: ignore[arg-type]


METHODS: dict[str, Callable[[openai.AzureOpenAI], object]] = {
    "chat": lambda sdk: sdk.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "Hi"}]),
    "completions": lambda sdk: sdk.completions.create(model=COMPLETIONS, prompt="Hi"),
    "embeddings": lambda sdk: sdk.embeddings.create(model=EMBEDDINGS, input="Hi"),
    "moderations": lambda sdk: sdk.moderations.create(input="Hi"),
    "responses": lambda sdk: sdk.responses.create(model=CHAT, input="Hi"),
    "responses.retrieve": lambda sdk: sdk.responses.retrieve("resp_1"),
    "responses.delete": lambda sdk: sdk.responses.delete("resp_1"),
    "responses.cancel": lambda sdk: sdk.responses.cancel("resp_1"),
    "responses.input_items": lambda sdk: list(sdk.responses.input_items.list("resp_1")),
    "responses.input_tokens": lambda sdk: sdk.responses.input_tokens.count(model=CHAT, input="Hi"),
    "responses.compact": lambda sdk: sdk.responses.compact(model=CHAT, input="Hi"),
    "conversations": lambda sdk: sdk.conversations.create(),
    "conversations.items": lambda sdk: list(sdk.conversations.items.list("conv_1")),
    "files": lambda sdk: sdk.files.create(file=("a.jsonl", b"{}"), purpose="batch"),
    "files.list": lambda sdk: list(sdk.files.list()),
    "files.content": lambda sdk: sdk.files.content("file-1"),
    "batches": lambda sdk: sdk.batches.create(
        input_file_id="file-1", endpoint="/v1/chat/completions", completion_window="24h"
    ),
    "batches.list": lambda sdk: list(sdk.batches.list()),
    "batches.cancel": lambda sdk: sdk.batches.cancel("batch_1"),
    "models": lambda sdk: list(sdk.models.list()),
    "models.retrieve": lambda sdk: sdk.models.retrieve(CHAT),
    "images.variations": lambda sdk: sdk.images.create_variation(image=("a.png", b"PNG"), model="pictures"),
    "transcriptions": lambda sdk: sdk.audio.transcriptions.create(model="whisper", file=("a.wav", wav(1))),
    "speech": lambda sdk: sdk.audio.speech.create(model="voice", input="Hi", voice="alloy"),
}
"""Every resource of the SDK that the gateway has, and its further methods."""


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_its_path(sdk: openai.AzureOpenAI, upstream: ScriptedUpstream, method: str) -> None:
    """What becomes of the call is the matter of other tests."""
    upstream.answer_with(error_json(422, message="said by the upstream"))
    refused = ""
    try:
        METHODS[method](sdk)
    except openai.APIStatusError as error:
        refused = str(error)
    upstream.answer_with()
    assert not re.search("Error code: 405|Invalid URL|does not have this endpoint", refused), refused


def test_a_response(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"id": "resp_1", "object": "response", "status": "completed", "output": []}))
    with client(gateway, "alice") as sdk:
        assert sdk.responses.create(model="answers", input="Hi").id == "resp_1"
    assert upstream.requests[0].path == "/v1/responses"
