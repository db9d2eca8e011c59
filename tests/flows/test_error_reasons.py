"""The reason of an upstream's refusal reaches the client of each format in the format's own error object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.upstream.refusal import NO_REASON
from tests.amounts import amount
from tests.conftest import StartsGateways
from tests.fakes.good_answers import FORMS
from tests.fakes.scripted import Scripted, Wire
from tests.upstream.error_bodies import SECRETS, SHAPES

from .client import Answer
from .faults_table import anthropic_error, google_error
from .gateway_process import Gateway, settings

pytestmark = pytest.mark.shortened
BY_NAME = {shape.name: shape for shape in amount(SHAPES, SHAPES[::5])}
RERANK = ("/v2/rerank", {"query": "q", "documents": ["a"]})
EMBEDDINGS = ("/v1/embeddings", {"input": "a"})
NATIVE = {"messages": True, "generate_content": True}
AS_CHATS = {"messages": "via_chat", "responses": "via_chat", "completions": "via_chat"}
AS_MESSAGES = {"chat": "via_messages", "messages": True}


async def refuse(wire: Wire) -> None:
    """Answers as the first part of the path says."""
    shape = BY_NAME[wire.request.path.split("/")[1]]
    await wire.write(answer_of(shape.status, shape.raw, shape.content_type))


def answer_of(status: int, body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways) -> Iterator[Gateway]:
    with Scripted(always=refuse) as upstream:
        base = upstream.url.removesuffix("/v1")
        upstreams: dict[str, Any] = {}
        models: dict[str, Any] = {}
        rows: dict[str, Any] = {}
        for name in BY_NAME:
            for kind, lacks in (("", NATIVE), ("chat-", AS_CHATS), ("messages-", AS_MESSAGES)):
                place = {"base_url": f"{base}/{name}/v1", "api_key": SECRETS[0], "capabilities": lacks}
                upstreams[kind + name] = place
                models[kind + name] = {"routes": [{"upstream": kind + name}], "max_output_tokens": 20}
            rows[f"row-{name}"] = {
                "prefix": f"/tasks/{name}", "upstream": name, "submit": ["POST /v1/images"], "prices": [{"task": 0.1}],
            }  # fmt: skip
        models = {
            name: {**each, "endpoints": ["chat", "completions", "messages", "responses", "generate_content", "images",
                                         "rerank", "embeddings", "transcriptions"]}
            for name, each in models.items()
        }  # fmt: skip
        yield start_shared_gateway(settings(upstream.url, upstreams=upstreams, models=models, passthrough=rows))


def message(endpoint: str, got: Answer) -> str:
    """As the clients of this format read it."""
    if endpoint == "generate_content":
        return google_error(got.json).message
    if endpoint == "messages":
        return anthropic_error(got.json).message
    return str(got.error["message"])


@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("endpoint", FORMS)
def test_formats(gateway: Gateway, endpoint: str, is_streamed: bool) -> None:
    for name in BY_NAME:
        path, body, content_type = FORMS[endpoint].written(name, "u", is_streamed=is_streamed)
        check(name, endpoint, gateway.post(path, body, headers={"Content-Type": content_type}))


@pytest.mark.parametrize(
    ("endpoint", "sent_as"),
    [("messages", "chat"), ("responses", "chat"), ("completions", "chat"), ("chat", "messages")],
)
def test_translated(gateway: Gateway, endpoint: str, sent_as: str) -> None:
    for name in BY_NAME:
        path, body, _ = FORMS[endpoint].written(f"{sent_as}-{name}", "u", is_streamed=False)
        check(name, endpoint, gateway.post(path, body))


@pytest.mark.parametrize(("path", "members"), [RERANK, EMBEDDINGS], ids=["rerank", "embeddings"])
def test_other_endpoints(gateway: Gateway, path: str, members: dict[str, Any]) -> None:
    for name in BY_NAME:
        check(name, "", gateway.post(path, {"model": name, **members}))


def test_tasks(gateway: Gateway) -> None:
    for name in BY_NAME:
        check(name, "", gateway.post(f"/tasks/{name}/v1/images", {"prompt": "a cat"}))


def check(name: str, endpoint: str, got: Answer) -> None:
    shape = BY_NAME[name]
    assert got.status == shape.status, name
    assert message(endpoint, got) == (shape.says or NO_REASON), name
    assert not [secret for secret in SECRETS if secret in got.body.decode()], name
