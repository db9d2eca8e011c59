"""A gateway before new-api before the simulated upstream: each format that new-api relays, and ledgers that agree.

The simulated upstream's is the truth; the gateway's records hold its tokens and units.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import yaml
from openai import APIStatusError, OpenAI

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.new_api import GEMINI, MIDJOURNEY, NewAPI
from tests.fakes.one_api import ANTHROPIC, OPENAI
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import ok_json
from tests.flows.client import request
from tests.flows.gateway_process import SIMULATOR, Gateway, Process, eventually, key, model, secret, settings
from tests.flows.task_rows import rows, settled

pytestmark = pytest.mark.timeout(150)

SIMULATED_KEY = "sk-simulated-0123456789abcdef"
MODELS = {
    "gpt-3.5-turbo-instruct": ["completions"], "gpt-4o-mini": ["chat", "responses"],
    "text-embedding-3-small": ["embeddings"], "whisper-1": ["transcriptions", "translations"], "tts-1": ["speech"],
    "dall-e-2": ["images"], "gpt-image-1": ["images", "image_edits"], "gpt-4o-mini-transcribe": ["transcriptions"],
    "gpt-realtime": ["realtime"],
}  # fmt: skip
SCRIPTED = {"jina-reranker": ["rerank"], "omni-moderation-latest": ["moderations"]}
"""What the simulated upstream does not have."""
CLAUDE, FLASH, UNKNOWN = "claude-sonnet-5", "gemini-2.5-flash", "gpt-4.1-mini"
"""The last one is a model that new-api has no channel for."""
BLOCKED = "block"
"""A model of the upstream that docs/upstreams.md has ready for new-api."""
UPSTREAMS_PAGE = (ROOT / "docs" / "upstreams.md").read_text()
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def upstream_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    simulated = Process(tmp_path_factory.mktemp("simulated"), SIMULATOR, "--port", "0")
    yield int(simulated.wait_for(r"serves http://127\.0\.0\.1:(\d+)/v1\n")[1])
    simulated.end()


@pytest.fixture(scope="module")
def reseller(
    tmp_path_factory: pytest.TempPathFactory, upstream_port: int, shared_upstream: ScriptedUpstream
) -> Iterator[NewAPI]:
    channels = {OPENAI: [*MODELS], ANTHROPIC: [CLAUDE], GEMINI: [FLASH], MIDJOURNEY: ["mj_imagine"]}
    with NewAPI(
        tmp_path_factory.mktemp("new-api"), f"http://127.0.0.1:{upstream_port}", SIMULATED_KEY, channels
    ) as made:
        made.add_channel(OPENAI, shared_upstream.url.removesuffix("/v1"), SIMULATED_KEY, [*SCRIPTED])
        yield made


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, reseller: NewAPI) -> Gateway:
    models = {name: model("chat") | {"endpoints": endpoints} for name, endpoints in (MODELS | SCRIPTED).items()}
    models |= {UNKNOWN: model("chat"), CLAUDE: model("chat") | {"endpoints": ["chat", "messages"]}}
    models[FLASH] = model("chat") | {"endpoints": ["generate_content"], "routes": [{"upstream": "gemini"}]}
    models[BLOCKED] = model("chat", routes=[{"upstream": "block", "model": "gpt-4o-mini"}])
    able = {"messages": True, "realtime": True, "responses": True}
    (block,) = [each for each in yaml_blocks(UPSTREAMS_PAGE) if "new-api" in each.get("upstreams", {})]
    block = block["upstreams"]["new-api"] | {"base_url": f"{reseller.url}/v1", "api_key": reseller.key}
    upstreams = {
        "main": {"base_url": f"{reseller.url}/v1", "api_key": reseller.key, "capabilities": able},
        "block": block,
        "gemini": {
            "base_url": f"{reseller.url}/v1beta", "api_key": reseller.key, "capabilities": {"generate_content": True},
        },
        "tasks": {"base_url": reseller.url, "api_key": reseller.key},
    }  # fmt: skip
    tasks = {"midjourney": rows()["midjourney"] | {"upstream": "tasks"}}
    return start_shared_gateway(
        settings("", upstreams=upstreams, models=models, keys=[key("alice"), key("bob")], passthrough=tasks)
    )


def yaml_blocks(page: str) -> list[dict[str, Any]]:
    """The configurations on a page."""
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]


@pytest.fixture
def sdk(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0, timeout=60) as made:
        yield made


def check(gateway: Gateway, upstream_port: int, endpoint: str) -> None:
    """The gateway's newest record is that of the upstream's newest call."""
    ledger = request(upstream_port, "GET", "/simulator/ledger", None, {}).json
    assert ledger["open"] == 0
    (record,), received = gateway.calls("alice", limit=1), ledger["calls"][0]
    assert (record["endpoint"], record["status"], record["model"]) == (endpoint, 200, received["model"])
    assert record["prompt_tokens"] == received["prompt_tokens"]
    assert record["completion_tokens"] == received["completion_tokens"]
    billed = ("audio_ms", "characters", "images")
    assert {name: record["units"].get(name, 0) for name in billed} == {name: received[name] for name in billed}


@pytest.mark.parametrize("name", ["gpt-4o-mini", CLAUDE])
@pytest.mark.parametrize("stream", [False, True])
def test_chat(gateway: Gateway, upstream_port: int, sdk: OpenAI, name: str, stream: bool) -> None:
    asked: Any = {"model": name, "messages": HELLO, "max_tokens": 30}
    if stream:
        parts = [each.choices[0].delta.content or "" for each in sdk.chat.completions.create(**asked, stream=True)
                 if each.choices]  # fmt: skip
        assert "".join(parts)
    else:
        assert sdk.chat.completions.create(**asked).choices[0].message.content
    check(gateway, upstream_port, "chat")


@pytest.mark.parametrize("stream", [False, True])
def test_completions(gateway: Gateway, upstream_port: int, sdk: OpenAI, stream: bool) -> None:
    asked: Any = {"model": "gpt-3.5-turbo-instruct", "prompt": "Hello", "max_tokens": 30}
    if stream:
        assert "".join([each.choices[0].text for each in sdk.completions.create(**asked, stream=True) if each.choices])
    else:
        assert sdk.completions.create(**asked).choices[0].text
    check(gateway, upstream_port, "completions")


@pytest.mark.parametrize("stream", [False, True])
def test_responses(gateway: Gateway, upstream_port: int, sdk: OpenAI, stream: bool) -> None:
    asked: Any = {"model": "gpt-4o-mini", "input": "Hello", "max_output_tokens": 30, "store": False}
    if stream:
        assert [each.type for each in sdk.responses.create(**asked, stream=True)][-1].startswith("response.")
    else:
        assert sdk.responses.create(**asked).output_text
    check(gateway, upstream_port, "responses")


@pytest.mark.parametrize("stream", [False, True])
def test_messages(gateway: Gateway, upstream_port: int, stream: bool) -> None:
    body = {"model": CLAUDE, "max_tokens": 30, "messages": HELLO, "stream": stream}
    assert gateway.post("/v1/messages", body).status == 200
    check(gateway, upstream_port, "messages")


@pytest.mark.parametrize("action", ["generateContent", "streamGenerateContent?alt=sse"])
def test_gemini(gateway: Gateway, upstream_port: int, action: str) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}], "generationConfig": {"maxOutputTokens": 30}}
    assert gateway.post(f"/v1beta/models/{FLASH}:{action}", body).status == 200
    check(gateway, upstream_port, "generate_content")


def test_embeddings(gateway: Gateway, upstream_port: int, sdk: OpenAI) -> None:
    assert len(sdk.embeddings.create(model="text-embedding-3-small", input=["one", "two"]).data) == 2
    check(gateway, upstream_port, "embeddings")


def test_images(gateway: Gateway, upstream_port: int, sdk: OpenAI) -> None:
    assert len(sdk.images.generate(model="dall-e-2", prompt="A cat", n=2, size="256x256").data or []) == 2
    check(gateway, upstream_port, "images")


def test_speech(gateway: Gateway, upstream_port: int, sdk: OpenAI) -> None:
    assert sdk.audio.speech.create(model="tts-1", voice="alloy", input="Hello there").content
    check(gateway, upstream_port, "speech")


def test_speech_as_events(gateway: Gateway, upstream_port: int, sdk: OpenAI) -> None:
    assert sdk.audio.speech.create(model="tts-1", voice="alloy", input="Hello there", stream_format="sse").content
    check(gateway, upstream_port, "speech")


def test_image_edits(gateway: Gateway, upstream_port: int, sdk: OpenAI) -> None:
    assert sdk.images.edit(model="gpt-image-1", image=("a.png", b"\x89PNG\r\n\x1a\n"), prompt="A hat").data
    check(gateway, upstream_port, "image_edits")


def test_streamed_images(gateway: Gateway, upstream_port: int, sdk: OpenAI) -> None:
    """It drops `stream`; the gateway writes its answer as events."""
    events = list(sdk.images.generate(model="gpt-image-1", prompt="A cat", stream=True))
    assert events[-1].type == "image_generation.completed"
    check(gateway, upstream_port, "images")


def test_streamed_transcriptions(gateway: Gateway, upstream_port: int, sdk: OpenAI) -> None:
    file = ("a.wav", wav(3))
    events = list(sdk.audio.transcriptions.create(model="gpt-4o-mini-transcribe", file=file, stream=True))
    assert events[-1].type == "transcript.text.done"
    check(gateway, upstream_port, "transcriptions")


def test_rerank(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    found = {"results": [{"index": 1, "relevance_score": 0.5}], "usage": {"total_tokens": 42, "prompt_tokens": 42}}
    upstream.answer_with(ok_json(found))
    asked = {"model": "jina-reranker", "query": "Hi", "documents": ["one", "two"]}
    got = gateway.post("/v1/rerank", asked)
    assert (got.status, got.json["results"]) == (200, found["results"])
    call = gateway.call(got.id)
    assert (call["prompt_tokens"], call["usage_source"]) == (42, "reported")


def test_moderations(gateway: Gateway, upstream: ScriptedUpstream, sdk: OpenAI) -> None:
    upstream.answer_with(ok_json({"id": "modr-1", "model": "omni-moderation-latest", "results": [{"flagged": False}]}))
    assert len(sdk.moderations.create(model="omni-moderation-latest", input="Hello").results) == 1
    assert upstream.requests[0].json["input"] == "Hello"


def test_midjourney(gateway: Gateway, reseller: NewAPI, upstream_port: int) -> None:
    submitted = gateway.post("/mj/submit/imagine", {"prompt": "A cat"})
    assert (submitted.status, submitted.json["code"]) == (200, 1), submitted
    task = submitted.json["result"]
    assert gateway.get(f"/mj/task/{task}/fetch", key="bob").status == 404
    assert gateway.get(f"/mj/task/{task}/fetch").json["status"] != "SUCCESS"
    reseller.notify(task)
    assert eventually(lambda: gateway.get(f"/mj/task/{task}/fetch").json["status"] == "SUCCESS")
    record = settled(gateway, submitted.id)
    assert (record["model"], record["units"], record["status"]) == ("midjourney/imagine", {"tasks": 1}, 200)


@pytest.mark.parametrize("endpoint", ["transcriptions", "translations"])
def test_forms(gateway: Gateway, upstream_port: int, endpoint: str) -> None:
    body = form(("model", "whisper-1"), ("response_format", "verbose_json"), ("file", wav(3)))
    assert gateway.post(f"/v1/audio/{endpoint}", body, headers=TYPE).status == 200
    check(gateway, upstream_port, endpoint)


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # the SDK's use of websockets
async def test_realtime(gateway: Gateway, upstream_port: int) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice")) as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        said: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}
        await connection.conversation.item.create(item=said)
        await connection.response.create()
        async for event in connection:
            if event.type == "response.done":
                break
        check(gateway, upstream_port, "realtime")
    rows = eventually(lambda: (rows := gateway.calls("alice", limit=2))[1]["id"].startswith(rows[0]["id"]) and rows)
    assert rows[0]["status"] == 200


def test_the_ready_block_refuses_by_name_what_it_drops(gateway: Gateway, upstream_port: int) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}}
    for dropped, param in (
        ({"service_tier": "flex"}, "service_tier"), ({"tools": [tool]}, "tools.function.strict"),
        ({"response_format": schema}, "response_format.json_schema.strict"),
    ):  # fmt: skip
        refused = gateway.chat(model=BLOCKED, **dropped)
        assert refused.refusal == (400, "invalid_request_error", param, "unsupported_parameter")
    served = gateway.chat(model=BLOCKED, max_tokens=30)
    assert served.status == 200
    received = request(upstream_port, "GET", "/simulator/ledger", None, {}).json["calls"][0]
    record = gateway.call(served.id)
    assert (record["usage_source"], record["completion_tokens"]) == ("reported", received["completion_tokens"])


def test_what_it_refuses(gateway: Gateway, reseller: NewAPI, sdk: OpenAI) -> None:
    """A model without a channel there is a failure of the upstream, whose texts are not shown."""
    with pytest.raises(APIStatusError) as raised:
        sdk.chat.completions.create(model=UNKNOWN, messages=HELLO)
    assert raised.value.status_code in (502, 503)
    shown = json.dumps(raised.value.body)
    assert not [word for word in ("new_api", "newapi", "channel", str(reseller.port), reseller.key) if word in shown]


def test_both_have_logs(gateway: Gateway, reseller: NewAPI) -> None:
    assert [each for each in gateway.calls("alice", limit=1000) if each["status"] == 200]
    assert reseller.logs()
