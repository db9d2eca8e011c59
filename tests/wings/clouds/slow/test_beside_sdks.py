"""Requests and streams of clouds beside those of the vendors' own SDKs, which talk to a local server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
from anthropic import AnthropicBedrock, AnthropicVertex
from anthropic.lib.bedrock._stream_decoder import AWSEventStreamDecoder
from google import genai
from google.oauth2.credentials import Credentials
from openai import AzureOpenAI

from gateway.formats.table import FORMATS
from gateway.wings.clouds.addresses import BEDROCK_VERSION, VERTEX_VERSION
from gateway.wings.clouds.event_stream import EventStreamReader
from tests.fakes.scripted import Behaviour, Request, Scripted, answer, ok_json, stream
from tests.wings.clouds.fakes import chunk_of, message_events, plain_message
from tests.wings.clouds.test_addresses import addressed
from tests.wings.clouds.test_event_stream import WHOLE, sse

ARN = "arn:aws:bedrock:us-west-2:123456789012:application-inference-profile/a1b2"


def asked(ask: Callable[[str], object], *answers: Behaviour) -> Request:
    """The request that an SDK sends."""
    with Scripted(*answers, prefix="") as cloud:
        ask(cloud.url)
        return cloud.requests[-1]


def alike(theirs: Request, path: str, body: bytes, below: str, version: str | None) -> None:
    """The SDK's path is ours below this one, and its body has the same members. The SDKs that are installed write their
    own, newer `anthropic_version`, which the clouds' documents do not have yet."""
    assert unquote(theirs.path) == unquote(below + path)
    sent = theirs.json
    if version is not None:
        assert json.loads(body)["anthropic_version"] == version
        sent = {**sent, "anthropic_version": version}
    assert json.loads(body) == sent


MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("model", ["us.anthropic.claude-sonnet-4-5-20250929-v1:0", ARN])
@pytest.mark.parametrize("streams", [False, True])
def test_bedrock_as_anthropics_sdk(model: str, streams: bool) -> None:
    plain = json.dumps(plain_message()).encode()
    events = b"".join(map(chunk_of, message_events()))

    async def behaviour(wire: Any) -> None:
        kind = "application/vnd.amazon.eventstream" if streams else "application/json"
        await answer(events if streams else plain, headers=[("Content-Type", kind)])(wire)

    def ask(url: str) -> None:
        client = AnthropicBedrock(
            aws_access_key="AKIA", aws_secret_key="s", aws_region="us-west-2", base_url=url, max_retries=0
        )
        made = client.messages.create(
            model=model, max_tokens=5, messages=MESSAGES, stream=streams,  # type: ignore[arg-type]
            extra_headers={"anthropic-beta": "one,two"},
        )  # fmt: skip
        if streams:
            assert [event.type for event in made][-1] == "message_stop"  # type: ignore[union-attr]

    theirs = asked(ask, behaviour)
    body = json.dumps({"model": model, "max_tokens": 5, "messages": MESSAGES, **({"stream": True} if streams else {})})
    path, changed = addressed("bedrock", "/messages", body.encode(), anthropic_beta="one, two")
    alike(theirs, path, changed, "", BEDROCK_VERSION)


@pytest.mark.parametrize("streams", [False, True])
def test_vertex_as_anthropics_sdk(streams: bool) -> None:
    events = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in message_events()]

    def ask(url: str) -> None:
        client = AnthropicVertex(region="global", project_id="p", access_token="t", base_url=f"{url}/v1", max_retries=0)
        made = client.messages.create(
            model="claude-sonnet-4-5@20250929", max_tokens=5, messages=MESSAGES, stream=streams,  # type: ignore[arg-type]
        )  # fmt: skip
        if streams:
            assert [event.type for event in made][-1] == "message_stop"  # type: ignore[union-attr]

    theirs = asked(ask, stream(events, done=False) if streams else ok_json(plain_message()))
    body = {"model": "claude-sonnet-4-5@20250929", "max_tokens": 5, "messages": MESSAGES, "stream": streams}
    path, changed = addressed("vertex", "/messages", json.dumps(body).encode())
    alike(theirs, path, changed, "/v1/projects/p/locations/global/publishers/anthropic", VERTEX_VERSION)


def test_counting_at_vertex_as_anthropics_sdk() -> None:
    def ask(url: str) -> None:
        client = AnthropicVertex(region="global", project_id="p", access_token="t", base_url=f"{url}/v1", max_retries=0)
        client.messages.count_tokens(model="claude", messages=MESSAGES)  # type: ignore[arg-type]

    theirs = asked(ask, ok_json({"input_tokens": 1}))
    path, changed = addressed(
        "vertex", "/messages/count_tokens", json.dumps({"model": "claude", "messages": MESSAGES}).encode()
    )
    alike(theirs, path, changed, "/v1/projects/p/locations/global/publishers/anthropic", VERTEX_VERSION)


def test_azure_as_openais_sdk() -> None:
    def ask(url: str) -> None:
        client = AzureOpenAI(azure_endpoint=url, api_key="k", api_version="2024-10-21", max_retries=0)
        client.embeddings.create(model="my deployment", input="Hi", encoding_format="float")

    theirs = asked(
        ask, ok_json({"object": "list", "data": [], "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}})
    )
    path, changed = addressed("azure", "/embeddings", json.dumps(theirs.json).encode())
    assert theirs.headers["api-key"] == "k"
    alike(theirs, path, changed, "/openai", None)


@pytest.mark.parametrize(("streams", "method"), [(False, "generateContent"), (True, "streamGenerateContent")])
def test_gemini_at_vertex_as_googles_sdk(streams: bool, method: str) -> None:
    """Its paths are those of Gemini's API below another address, so there is nothing to change."""
    reply = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}

    def ask(url: str) -> None:
        client = genai.Client(
            vertexai=True, project="p", location="europe-west1", credentials=Credentials("t"),  # type: ignore[no-untyped-call]
            http_options={"base_url": url, "api_version": "v1"},
        )  # fmt: skip
        if streams:
            list(client.models.generate_content_stream(model="gemini-2.5-flash", contents="Hi"))
        else:
            client.models.generate_content(model="gemini-2.5-flash", contents="Hi")

    theirs = asked(ask, stream([reply], done=False) if streams else ok_json(reply))
    spec = next(each for each in FORMATS.values() if each.upstream_path == "/models/{model}:generateContent")
    ours = (spec.upstream_stream_path if streams else spec.upstream_path).replace("{model}", "gemini-2.5-flash")
    assert theirs.path == f"/v1/projects/p/locations/europe-west1/publishers/google{ours}"
    assert method in theirs.path


def test_anthropics_sdk_reads_the_same_events() -> None:
    theirs = [(each.event, json.loads(each.data)) for each in AWSEventStreamDecoder().iter_bytes(iter([WHOLE]))]
    assert sse(EventStreamReader().read(WHOLE)) == theirs
