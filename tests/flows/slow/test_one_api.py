"""A gateway before one-api before the simulated upstream: each format that one-api relays, and ledgers that agree.

The simulated upstream's is the truth; the gateway's records hold its tokens and units. To Claude one-api speaks
Messages. What it does not relay in v0.6.10: forms (its middleware reads their bodies and does not put them back,
common/gin.go, so audio arrives empty), edits and variations of images, files, Responses, Messages, rerank. Its streams
of Gemini end without a finish reason, which the gateway takes for broken off, and of Gemini it counts tokens itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import APIStatusError, OpenAI

from tests.conftest import StartsGateways
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.one_api import ANTHROPIC, KEY, OPENAI, OneAPI
from tests.flows.client import request
from tests.flows.gateway_process import Gateway, key, model, secret, settings
from tests.flows.resale import left_stream

pytestmark = pytest.mark.timeout(150)

SIMULATED_KEY = "sk-simulated-0123456789abcdef"
MODELS = {
    "gpt-3.5-turbo-instruct": "completions", "gpt-4o-mini": "chat", "text-embedding-3-small": "embeddings",
    "whisper-1": "transcriptions", "tts-1": "speech", "dall-e-2": "images",
}  # fmt: skip
CLAUDE = "claude-sonnet-5"
UNKNOWN = "gpt-4.1-mini"
"""A model that one-api has no channel for."""


@pytest.fixture(scope="module")
def reseller(tmp_path_factory: pytest.TempPathFactory, simulated_port: int) -> Iterator[OneAPI]:
    folder = tmp_path_factory.mktemp("one-api")
    channels = {OPENAI: [*MODELS], ANTHROPIC: [CLAUDE]}
    with OneAPI(folder, f"http://127.0.0.1:{simulated_port}", SIMULATED_KEY, channels) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, reseller: OneAPI) -> Gateway:
    models = {name: model(endpoint) for name, endpoint in MODELS.items()}
    models["whisper-1"]["endpoints"] = ["transcriptions", "translations"]
    models |= {name: model("chat") for name in (UNKNOWN, CLAUDE)}
    models["drained"] = model("chat", routes=[{"upstream": "drained", "model": "gpt-4o-mini"}])
    main = {"base_url": f"{reseller.url}/v1", "api_key": KEY}
    upstreams = {"main": main, "drained": main | {"on_disconnect": "drain"}}
    return start_shared_gateway(settings("", upstreams=upstreams, models=models, keys=[key("alice")]))


@pytest.fixture
def sdk(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0, timeout=60) as made:
        yield made


def last(port: int) -> dict[str, Any]:
    """The newest call of the simulated upstream's ledger."""
    ledger = request(port, "GET", "/simulator/ledger", None, {}).json
    assert ledger["open"] == 0
    found: dict[str, Any] = ledger["calls"][0]
    return found


def check(gateway: Gateway, simulated_port: int, endpoint: str) -> None:
    """The gateway's newest record is that of the upstream's newest call."""
    (record,), received = gateway.calls("alice", limit=1), last(simulated_port)
    assert (record["endpoint"], record["status"], record["model"]) == (endpoint, 200, received["model"])
    assert record["prompt_tokens"] == received["prompt_tokens"]
    assert record["completion_tokens"] == received["completion_tokens"]
    units = {name: received[name] for name in ("audio_ms", "characters", "images") if received[name]}
    assert record["units"] == units


@pytest.mark.parametrize("name", ["gpt-4o-mini", CLAUDE])
@pytest.mark.parametrize("stream", [False, True])
def test_chat(gateway: Gateway, simulated_port: int, sdk: OpenAI, name: str, stream: bool) -> None:
    asked: Any = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30}
    if stream:
        text = "".join(
            [
                each.choices[0].delta.content or ""
                for each in sdk.chat.completions.create(**asked, stream=True)
                if each.choices
            ]
        )
    else:
        text = sdk.chat.completions.create(**asked).choices[0].message.content
    assert text
    if stream and name != "gpt-4o-mini":  # of what one-api translates, its streams report no usage
        (record,) = gateway.calls("alice", limit=1)
        assert (record["model"], record["usage_source"]) == (name, "estimated")
        assert record["completion_tokens"] > 0
        return
    check(gateway, simulated_port, "chat")


@pytest.mark.parametrize("stream", [False, True])
def test_completions(gateway: Gateway, simulated_port: int, sdk: OpenAI, stream: bool) -> None:
    asked: Any = {"model": "gpt-3.5-turbo-instruct", "prompt": "Hello", "max_tokens": 30}
    if stream:
        parts = [each.choices[0].text for each in sdk.completions.create(**asked, stream=True) if each.choices]
        assert "".join(parts)
    else:
        assert sdk.completions.create(**asked).choices[0].text
    check(gateway, simulated_port, "completions")


def test_embeddings(gateway: Gateway, simulated_port: int, sdk: OpenAI) -> None:
    got = sdk.embeddings.create(model="text-embedding-3-small", input=["one", "two"])
    assert len(got.data) == 2
    check(gateway, simulated_port, "embeddings")


def test_images(gateway: Gateway, simulated_port: int, sdk: OpenAI) -> None:
    assert len(sdk.images.generate(model="dall-e-2", prompt="A cat", n=2, size="256x256").data or []) == 2
    check(gateway, simulated_port, "images")


def test_speech(gateway: Gateway, simulated_port: int, sdk: OpenAI) -> None:
    assert sdk.audio.speech.create(model="tts-1", voice="alloy", input="Hello there").content
    check(gateway, simulated_port, "speech")


@pytest.mark.parametrize("endpoint", ["transcriptions", "translations"])
def test_forms_arrive_empty(gateway: Gateway, endpoint: str) -> None:
    """Its own fault, which costs nothing."""
    body = form(("model", "whisper-1"), ("response_format", "verbose_json"), ("file", wav(3)))
    answer = gateway.post(f"/v1/audio/{endpoint}", body, headers=TYPE)
    assert answer.status == 502, answer
    record = gateway.call(answer.id)
    assert (record["units"], record["usage_source"]) == ({}, "none")


def test_what_it_refuses(gateway: Gateway, reseller: OneAPI, sdk: OpenAI) -> None:
    """A model without a channel there is a failure of the upstream, whose texts are not shown."""
    with pytest.raises(APIStatusError) as raised:
        sdk.chat.completions.create(model=UNKNOWN, messages=[{"role": "user", "content": "Hello"}])
    assert raised.value.status_code in (502, 503)
    shown = json.dumps(raised.value.body)
    assert not [word for word in ("one_api", "oneapi", "channel", str(reseller.port), KEY) if word in shown]


def test_all_ledgers_have_as_many_calls(gateway: Gateway, simulated_port: int, reseller: OneAPI) -> None:
    served = [each for each in gateway.calls("alice", limit=1000) if each["status"] == 200]
    received = request(simulated_port, "GET", "/simulator/ledger", None, {}).json["totals"]
    assert len(served) == received["calls"] - received["errors"]
    assert reseller.logs()


@pytest.mark.parametrize(("name", "is_exact"), [("gpt-4o-mini", False), ("drained", True)])
def test_it_bills_what_it_reads_behind_a_client_that_left(
    gateway: Gateway, reseller: OneAPI, name: str, is_exact: bool
) -> None:
    """So `on_disconnect: drain` records its bill, and `cancel` less."""
    record, bill = left_stream(gateway, reseller, name)
    assert record["usage_source"] == ("reported" if is_exact else "estimated")
    assert record["prompt_tokens"] >= bill["prompt_tokens"] > 0
    if is_exact:
        assert record["completion_tokens"] == bill["completion_tokens"]
    else:
        assert 0 < record["completion_tokens"] < bill["completion_tokens"]
