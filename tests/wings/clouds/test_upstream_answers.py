"""Which headers of Azure's answers reach a client, and which its operator alone. The heads are those of public logs of
Azure OpenAI (openai/openai-python#3271, BerriAI/litellm#15232)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.table import FORMATS
from gateway.records import Failure
from gateway.relay.exchange import response_headers
from gateway.upstream.connection import Head
from gateway.upstream.provider_errors import judge
from gateway.wings.clouds.upstream_answers import SHOWN
from tests.fakes.scripted import Behaviour, Scripted, error_json, ok_json, raw
from tests.web.conftest import AUTH, Inside

SECRET = "only-for-the-operator"
NEVER = (
    "apim-request-id", "azure-openai-deployment-utilization", "azureai-fe-is-streaming", "azureml-model-session",
    "cmp-upstream-response-duration", "ms-azureml-model-time", "x-aml-cluster", "x-envoy-upstream-service-time",
    "x-ms-client-request-id", "x-ms-deployment-name", "x-ms-region", "x-ms-request-id",
    "x-ms-spillover-from-deployment", "x-ms-throttle-information",
)  # fmt: skip
"""They name the account's region, deployment or use, Microsoft's machines, or a case for Microsoft's support."""
HEADS = [
    ("X-Ms-Served-Model", "gpt-5-nano-2025-08-07"),
    ("x-ms-rai-invoked", "true"),
    *[(name, SECRET) for name in NEVER],
]
EVENT = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x",
         "choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}]}  # fmt: skip


def streamed() -> Behaviour:
    lines = "".join([f"{name}: {value}\r\n" for name, value in HEADS])
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{lines}Connection: close\r\n\r\n"
    return raw(head.encode() + f"data: {json.dumps(EVENT)}\n\ndata: [DONE]\n\n".encode(), then_close=True)


async def heads(inside: Inside, behaviour: Behaviour, **more: Any) -> dict[str, str]:
    with Scripted(behaviour) as upstream:
        client = await inside(upstream.url)
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **more}
        async with client.post("/v1/chat/completions", json=body, headers=AUTH) as answer:
            text = await answer.text()
            found = {name.lower(): value for name, value in answer.headers.items()}
    assert SECRET not in text + json.dumps(found)
    return found


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_client_sees_its_model_and_whether_the_filter_ran(inside: Inside, is_stream: bool) -> None:
    message = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    plain = ok_json({**EVENT, "object": "chat.completion", "choices": [message]}, headers=HEADS)
    found = await heads(inside, streamed() if is_stream else plain, stream=is_stream)
    assert (found["x-ms-served-model"], found["x-ms-rai-invoked"]) == ("gpt-5-nano-2025-08-07", "true")
    assert {name for name in found if name.startswith("x-ms-")} == SHOWN


async def test_an_error_shows_none_of_them(inside: Inside) -> None:
    found = await heads(inside, error_json(400, headers=HEADS, message="No"))
    assert not {*NEVER, *SHOWN} & found.keys()


@pytest.mark.parametrize("endpoint", ["chat", "responses", "embeddings", "messages", "generate_content"])
def test_it_is_the_same_in_every_format(endpoint: Any) -> None:
    shown = response_headers(Head(200, tuple((name.lower(), value) for name, value in HEADS)), FORMATS[endpoint])
    assert {name for name, _ in shown} == SHOWN


@pytest.mark.parametrize("name", ["apim-request-id", "x-amzn-requestid"])
def test_the_log_has_the_id_for_the_clouds_support(name: str) -> None:
    judged = judge("up", Head(500, ((name, "an-id"),)), b"{}", now=0, hide=())
    assert isinstance(judged, Failure)
    assert "request id an-id" in judged.detail
