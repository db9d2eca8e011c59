"""The official SDKs for audio and images against the simulator, with and without the gateway between them.

After each test the ledgers of gateway and simulator agree to the millisecond, the image, the character and the token.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.conftest import StartsGateways
from tests.fakes import forms
from tests.flows.gateway_process import Gateway, eventually, secret, settings
from tests.flows.sdks import Call, ask_node
from tests.flows.slow.test_sdk import ask_ledger, simulated

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # audio.translations, variations

SOUND = forms.wav(150.3)  # above the memory limit of forms
PNG = b"\x89PNG\r\n\x1a\n" + bytes(3000)
AUDIO = ["transcriptions", "translations"]
IMAGES = ["images", "image_edits", "image_variations"]
MODELS: dict[str, Any] = {
    "whisper-1": {"endpoints": AUDIO, "price": {"audio_per_minute": 0.006}},
    "gpt-4o-mini-transcribe": {"endpoints": AUDIO, "price": {"input": 1.25, "audio_in": 3, "output": 5}},
    "tts-1": {"endpoints": ["speech"], "price": {"characters_per_million": 15}},
    "gpt-image-1": {"endpoints": IMAGES, "price": {"input": 5, "image_in": 10, "output": 40, "image_out": 40}},
    "dall-e-2": {"endpoints": IMAGES, "price": {"image": 0.02}},
}
ALIASES = {"listener": "whisper-1"}


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with simulated(tmp_path_factory) as address:
        yield address


@pytest.fixture(scope="module")
def other_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with simulated(tmp_path_factory) as address:
        yield address


@pytest.fixture(scope="module", params=["one worker", "in front of itself"])
def gateway(request: pytest.FixtureRequest, start_shared_gateway: StartsGateways, simulator: str) -> Gateway:
    ask_ledger(simulator, "DELETE")
    models = {name: {"routes": [{"upstream": "main"}], **rest} for name, rest in MODELS.items()}
    models["whisper-1"]["routes"] = [{"upstream": "main", "model": "whisper-1"}]
    config = settings(simulator, models=models, aliases=ALIASES)
    if request.param == "in front of itself":
        inner = start_shared_gateway(settings(simulator, models=models))
        config["upstreams"]["main"] = {"base_url": f"{inner.url}/v1", "api_key": secret("alice")}
    return start_shared_gateway(config)


@pytest.fixture(autouse=True)
def books_agree(gateway: Gateway, simulator: str) -> Iterator[None]:
    yield
    totals = ask_ledger(simulator, "GET").json["totals"]
    names = ("prompt_tokens", "completion_tokens", "audio_ms", "images", "characters")

    def recorded() -> list[int]:
        rows = gateway.calls(limit=1000)
        assert {row["usage_source"] for row in rows} <= {"reported", "none"}
        units: Counter[str] = Counter()
        for row in rows:
            units.update({**row["units"], **{name: row[name] for name in names[:2]}})
        return [units[name] for name in names]

    assert eventually(lambda: [totals[name] for name in names] == recorded())


@pytest.fixture(scope="module")
def sdk(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def direct(other_simulator: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=other_simulator, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def test_transcriptions(sdk: OpenAI, direct: OpenAI, tmp_path: Path) -> None:
    file = tmp_path / 'wörd "x".wav'
    file.write_bytes(SOUND)
    for model in ("whisper-1", "gpt-4o-mini-transcribe"):
        for more in ({}, {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]},
                     {"language": "en", "prompt": "wörds", "temperature": 0.2}):  # fmt: skip
            given: dict[str, Any] = {"model": model, **more}
            one = sdk.audio.transcriptions.create(file=file, **given)
            other = direct.audio.transcriptions.create(file=file, **given)
            assert one.model_dump() == other.model_dump()


@pytest.mark.parametrize("kind", ["text", "srt", "vtt"])
def test_text_and_subtitles(sdk: OpenAI, direct: OpenAI, kind: Any) -> None:
    given: dict[str, Any] = {"model": "whisper-1", "file": ("a.wav", SOUND), "response_format": kind}
    assert sdk.audio.transcriptions.create(**given) == direct.audio.transcriptions.create(**given)


def test_a_stream_of_a_transcription(sdk: OpenAI, direct: OpenAI) -> None:
    given: dict[str, Any] = {"model": "gpt-4o-mini-transcribe", "stream": True}
    events = [
        [event.model_dump() for event in each.audio.transcriptions.create(file=io.BytesIO(SOUND), **given)]
        for each in (sdk, direct)
    ]
    assert events[0] == events[1]
    assert events[0][-1]["type"] == "transcript.text.done"


def test_an_alias_is_rewritten_in_the_form(sdk: OpenAI, direct: OpenAI) -> None:
    one = sdk.audio.translations.create(model="listener", file=("a.wav", SOUND))
    assert one.model_dump() == direct.audio.translations.create(model="whisper-1", file=("a.wav", SOUND)).model_dump()


def test_speech(sdk: OpenAI, direct: OpenAI) -> None:
    given: dict[str, Any] = {"model": "tts-1", "input": "Hello, wörld", "voice": "alloy"}
    assert sdk.audio.speech.create(**given).content == direct.audio.speech.create(**given).content


@pytest.mark.parametrize("model", ["dall-e-2", "gpt-image-1"])
def test_images(sdk: OpenAI, direct: OpenAI, model: str) -> None:
    for each in ("one", "two"):
        images = [("a.png", PNG)] * 2 if each == "two" else ("a.png", PNG)
        given: dict[str, Any] = {"model": model, "image": images, "prompt": "a hat", "n": 2, "size": "1024x1024"}
        assert sdk.images.edit(**given).model_dump() == direct.images.edit(**given).model_dump()
    given = {"model": model, "n": 2}
    made = [each.images.generate(prompt="a cat", **given).model_dump() for each in (sdk, direct)]
    made += [each.images.create_variation(image=("a.png", PNG), **given).model_dump() for each in (sdk, direct)]
    assert made[0] == made[1]
    assert made[2] == made[3]


def test_streams_of_images(sdk: OpenAI, direct: OpenAI) -> None:
    given: dict[str, Any] = {"model": "gpt-image-1", "prompt": "a cat", "stream": True, "partial_images": 2}
    edit = given | {"image": ("a.png", PNG), "mask": ("m.png", PNG)}
    for name, asked in (("generate", given), ("edit", edit)):
        events = [[event.model_dump() for event in getattr(each.images, name)(**asked)] for each in (sdk, direct)]
        assert events[0] == events[1]
        assert [event["type"].rpartition(".")[2] for event in events[0]] == ["partial_image"] * 2 + ["completed"]


def test_errors_are_those_of_the_api(sdk: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.audio.transcriptions.create(model="whisper-1", file=("a.wav", SOUND), temperature=3)
    assert (refused.value.param, refused.value.code) == ("temperature", "decimal_above_max_value")
    with pytest.raises(openai.NotFoundError):
        sdk.images.edit(model="whisper-1", image=("a.png", PNG), prompt="x")


def test_openai_node(gateway: Gateway, other_simulator: str) -> None:
    sound, png = [base64.b64encode(each).decode() for each in (SOUND, PNG)]
    calls = [
        Call("audio.transcriptions", {"model": "whisper-1"}, files={"file": [sound]}),
        Call("audio.transcriptions", {"model": "gpt-4o-mini-transcribe", "stream": True}, files={"file": [sound]}),
        Call("audio.translations", {"model": "whisper-1", "temperature": 0.5}, files={"file": [sound]}),
        Call("images", {"model": "dall-e-2", "prompt": "x"}, files={"image": [png, png]}, method="edit"),
        Call("images", {"model": "gpt-image-1", "prompt": "x"}, files={"image": [png], "mask": [png]}, method="edit"),
        Call("images", {"model": "dall-e-2", "n": 2}, files={"image": [png]}, method="createVariation"),
        Call("images", {"model": "gpt-image-1", "prompt": "a cat"}, method="generate"),
        Call("images", {"model": "gpt-image-1", "prompt": "a cat", "stream": True}, method="generate"),
        Call("audio.speech", {"model": "tts-1", "input": "Hello, wörld", "voice": "alloy"}),
    ]
    said = [ask_node(url, secret("alice"), calls) for url in (f"{gateway.url}/v1", other_simulator)]
    for one, other in zip(*said, strict=True):
        assert "error" not in one, one
        assert [one.get(name) for name in ("data", "chunks")] == [other.get(name) for name in ("data", "chunks")]
