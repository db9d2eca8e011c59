"""Azure's forms of paths: the model is named in the path as a deployment."""

from __future__ import annotations

import json
from email import policy
from email.parser import BytesParser
from typing import Any
from urllib.parse import quote

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json, stream

from .gateway_process import CHAT, COMPLETIONS, EMBEDDINGS, UPSTREAM_KEY, Gateway, key, model, secret, settings

MESSAGES = [{"role": "user", "content": "Hi"}]
CHATTED = {
    "id": "c", "object": "chat.completion", "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}  # fmt: skip
MAPPED = "mapped"


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    config = settings(shared_upstream.url, keys=[key("alice"), key("few", models=[EMBEDDINGS])])
    config["models"][MAPPED] = model("chat", routes=[{"upstream": "main", "model": "there"}])
    config["models"]["pictures"] = model("images")
    config["models"]["voice"] = model("speech")
    for name, endpoint in (("edits", "image_edits"), ("heard", "transcriptions")):
        config["models"][name] = model(endpoint, routes=[{"upstream": "main", "model": "there"}])
    config["models"]["any-*"] = model("transcriptions")
    return start_shared_gateway(config)


def path_of(name: str, below: str) -> str:
    return f"/openai/deployments/{name}/{below}?api-version=2024-10-21"


@pytest.mark.parametrize(
    ("name", "body", "sent"),
    [
        (CHAT, {}, CHAT), (CHAT, {"model": CHAT}, CHAT), (CHAT, {"model": "another"}, CHAT),
        (MAPPED, {}, "there"), (MAPPED, {"model": "another"}, "there"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 100_000])
def test_the_path_names_the_model(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, body: dict[str, Any], sent: str, size: int
) -> None:
    upstream.answer_with(ok_json(CHATTED))
    messages = [{"role": "user", "content": "x" * size}]
    given = {"messages": messages, **body, "user": "u"}
    got = gateway.post(path_of(name, "chat/completions"), given, key=None, headers={"api-key": secret("alice")})
    assert got.status == 200, got.body
    request = upstream.requests[0]
    assert request.path == "/v1/chat/completions"
    assert request.json == {**given, "model": sent}
    assert request.headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert "api-key" not in request.headers
    call = gateway.call(got.id)
    assert (call["model"], call["endpoint"], call["prompt_tokens"]) == (name, "chat", 3)


@pytest.mark.parametrize(
    ("name", "below", "body"),
    [
        (COMPLETIONS, "completions", {"prompt": "Hi"}), (EMBEDDINGS, "embeddings", {"input": "Hi"}),
        ("pictures", "images/generations", {"prompt": "Hi"}),
        ("voice", "audio/speech", {"input": "Hi", "voice": "alloy"}),
    ],
)  # fmt: skip
def test_further_endpoints(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, below: str, body: dict[str, Any]
) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    upstream.answer_with(ok_json({"data": [], "choices": [], "usage": usage}))
    gateway.post(path_of(name, below), body)
    assert upstream.requests[0].path == f"/v1/{below}"
    assert upstream.requests[0].json == {"model": name, **body}


@pytest.mark.parametrize("parts", [{"model": "another", "prompt": "Hi"}, {"prompt": "Hi"}, {}])
@pytest.mark.parametrize(
    ("name", "below", "field"), [("edits", "images/edits", "image"), ("heard", "audio/transcriptions", "file")]
)
def test_a_form_gets_the_model_of_the_path(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, below: str, field: str, parts: dict[str, str]
) -> None:
    upstream.answer_with(
        ok_json({"text": "Hi", "data": [{"b64_json": "AAAA"}], "usage": {"type": "duration", "seconds": 1}})
    )
    parts = {"prompt": "Hi", **parts} if field == "image" else parts
    texts = [f'--b\r\nContent-Disposition: form-data; name="{each}"\r\n\r\n{parts[each]}\r\n' for each in parts]
    file = f'--b\r\nContent-Disposition: form-data; name="{field}"; filename="f"\r\n\r\nbytes\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b", "api-key": secret("alice")}
    got = gateway.post(path_of(name, below), "".join([*texts, file]).encode(), key=None, headers=headers)
    assert got.status == 200, got.body
    assert upstream.requests[0].path == f"/v1/{below}"
    sent = upstream.requests[0]
    read = BytesParser(policy=policy.HTTP).parsebytes(
        b"Content-Type: " + sent.headers["content-type"].encode() + b"\r\n\r\n" + sent.body
    )
    fields = {each.get_param("name", header="content-disposition"): each.get_content() for each in read.iter_parts()}
    assert fields == {**parts, "model": "there", field: "bytes"}
    assert len(sent.body) == int(sent.headers["content-length"])
    assert gateway.call(got.id)["model"] == name


def test_a_name_in_the_path_adds_nothing_to_a_form(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with()
    name = quote('any-a\r\n--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx')
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nbytes\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    got = gateway.post(path_of(name, "audio/transcriptions"), body, headers=headers)
    assert got.status == 404
    assert upstream.requests == []


def test_streams_and_paths_without_a_deployment(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    events = [{"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}]
    upstream.answer_with(stream(events), ok_json(CHATTED), ok_json(CHATTED))
    got = gateway.post(path_of(CHAT, "chat/completions"), {"messages": MESSAGES, "stream": True})
    assert got.body.endswith(b"data: [DONE]\n\n")
    assert gateway.post("/openai/v1/chat/completions", {"model": CHAT, "messages": MESSAGES}).status == 200
    assert (
        gateway.post("/openai/v1/chat/completions?api-version=v1", {"model": CHAT, "messages": MESSAGES}).status == 200
    )
    assert {request.path for request in upstream.requests} == {"/v1/chat/completions"}
    for path in ("/openai/models?api-version=1", "/openai/v1/models"):
        assert [each["id"] for each in gateway.get(path).json["data"]] == [
            each["id"] for each in gateway.get("/v1/models").json["data"]
        ]
    assert gateway.get(f"/openai/v1/models/{CHAT}").json["id"] == CHAT


def test_what_is_refused(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with()
    path, body = path_of(CHAT, "chat/completions"), {"messages": MESSAGES}
    assert gateway.post(path, body, key=None).refusal[:2] == (401, "invalid_request_error")
    assert gateway.post(path, body, key="few").refusal[0] == 404
    assert gateway.post(path_of("unknown", "chat/completions"), {**body, "model": CHAT}).refusal[3] == "model_not_found"
    assert gateway.post(path_of(CHAT, "chat/completions"), {}).refusal[2] == "messages"
    assert gateway.post(path_of(EMBEDDINGS, "chat/completions"), body).refusal[0] == 404
    assert gateway.post(path_of(CHAT, "extensions/chat"), body).refusal[0] == 404
    got = gateway.post(path, json.dumps(body).encode()[:-3])
    assert got.refusal[0] == 400
