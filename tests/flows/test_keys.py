"""Authentication of calls; neither an answer nor a log shows a secret or the reason of a refusal in detail."""

from __future__ import annotations

import hashlib
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json
from tests.patience import blocked_for_at_least

from .client import Answer
from .gateway_process import (
    ADMIN_TOKEN,
    CHAT,
    COMPLETIONS,
    UPSTREAM_KEY,
    Gateway,
    eventually,
    key,
    model,
    secret,
    settings,
)

BODY = json.dumps({"model": COMPLETIONS, "prompt": "Hello"}).encode()
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    past, future = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    keys = [
        key("alice"),
        key("expired", expires=past.isoformat()),
        key("lasting", expires=future.isoformat()),
        {"id": "hashed", "sha256": hashlib.sha256(secret("hashed").encode()).hexdigest().upper()},
        key("instruct-only", models=["gpt-3.5-*"]),
        key("chat-only", models=[CHAT]),
        key("nothing", models=[]),
        key("local", ips=["127.0.0.0/8", "::1/128"]),
        key("elsewhere", ips=["10.0.0.0/8"]),
    ]
    models = {"*": model("chat"), "org/team/model:v1": model("completions")}
    return start_shared_gateway(settings(shared_upstream.url, keys=keys, models=models))


def post(gateway: Gateway, authorization: str | None, path: str = "/v1/completions") -> Answer:
    headers = {} if authorization is None else {"Authorization": authorization}
    return gateway.post(path, BODY, key=None, headers=headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Basic YWxpY2U6c2VjcmV0", secret("alice"), f"Token {secret('alice')}"],
)
def test_no_key(gateway: Gateway, upstream: ScriptedUpstream, authorization: str | None, path: str) -> None:
    answer = post(gateway, authorization, path)
    assert answer.refusal == (401, "invalid_request_error", None, None)
    assert answer.error["message"].startswith("You didn't provide an API key.")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", [*PATHS, "/v1/models", "/v1/models/x", "/v1/key"])
@pytest.mark.parametrize(
    "wrong",
    [
        "sk-gw-nobody-0123456789abcdef0123456789",
        secret("alice")[:-1],
        secret("alice") + "x",
        secret("alice").upper(),
        "short",
        "two words of it",
        UPSTREAM_KEY,
        ADMIN_TOKEN,
        hashlib.sha256(secret("hashed").encode()).hexdigest(),
    ],
)
def test_wrong_key(gateway: Gateway, upstream: ScriptedUpstream, wrong: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {wrong}"}
    answer = gateway.send(
        "POST" if path in PATHS else "GET", path, BODY if path in PATHS else None, key=None, headers=headers
    )
    assert answer.refusal == (401, "invalid_request_error", None, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert wrong not in answer.body.decode()


def test_key_with_bytes_that_are_no_text(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\xe9\r\n\r\n")
        assert client.read_answer().refusal == (401, "invalid_request_error", None, "invalid_api_key")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_good_key(gateway: Gateway, upstream: ScriptedUpstream, scheme: str) -> None:
    upstream.answer_with(ok_json())
    assert post(gateway, f"{scheme} {secret('alice')}").status == 200
    assert secret("alice").encode() not in upstream.requests[0].head
    assert upstream.requests[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"


def test_two_authorization_headers(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    bearer = f"Authorization: Bearer {secret('alice')}\r\n"
    with gateway.connect() as client:
        client.send(f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{bearer}{bearer}\r\n".encode())
        answer = client.read_answer()
    assert answer.refusal == (401, "invalid_request_error", None, None)
    assert "more than one" in answer.error["message"]


@pytest.mark.parametrize("name", ["x-api-key", "X-Api-Key", "api-key"])
def test_good_key_in_another_header(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(ok_json())
    assert gateway.post("/v1/completions", BODY, key=None, headers={name: secret("alice")}).status == 200
    assert secret("alice").encode() not in upstream.requests[0].head
    assert upstream.requests[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"


def test_the_same_key_twice_and_two_keys(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    bearer = {"Authorization": f"Bearer {secret('alice')}"}
    same = gateway.post("/v1/completions", BODY, key=None, headers={**bearer, "x-api-key": secret("alice")})
    assert same.status == 200
    for more in ({"x-api-key": secret("bob")}, {"x-api-key": secret("alice"), "api-key": "other"}):
        answer = gateway.post("/v1/completions", BODY, key=None, headers={**bearer, **more})
        assert answer.refusal == (401, "invalid_request_error", None, None)
        assert "different keys" in answer.error["message"]
    assert gateway.post("/v1/completions", BODY, key=None, headers={"x-api-key": " "}).status == 401


def test_expiry(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    answer = gateway.complete("expired")
    assert answer.refusal == (401, "invalid_request_error", None, "invalid_api_key")
    assert "expired" in answer.error["message"]
    upstream.answer_with(ok_json())
    assert gateway.complete("lasting").status == 200


def test_key_that_expires_while_the_gateway_runs(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    soon = datetime.now(UTC) + timedelta(seconds=2)
    gateway = start_gateway(settings(upstream.url, keys=[key("alice", expires=soon.isoformat())]))
    if time.time() < soon.timestamp() - 0.5:
        assert gateway.complete().status == 200
    eventually(lambda: gateway.complete().status == 401)
    upstream.answer_with()


def test_key_that_is_known_by_its_hash(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    assert gateway.complete("hashed").status == 200
    assert gateway.calls("hashed")[0]["key"] == "hashed"


@pytest.mark.parametrize(
    ("who", "name", "status"),
    [
        ("instruct-only", COMPLETIONS, 200),
        ("instruct-only", "org/team/model:v1", 404),
        ("chat-only", COMPLETIONS, 404),
        ("nothing", COMPLETIONS, 404),
        ("alice", "org/team/model:v1", 200),
    ],
)
def test_model_patterns(gateway: Gateway, upstream: ScriptedUpstream, who: str, name: str, status: int) -> None:
    upstream.answer_with(*[ok_json()] * (status == 200))
    answer = gateway.complete(who, model=name)
    assert answer.status == status
    if status == 404:
        assert answer.refusal == (404, "invalid_request_error", None, "model_not_found")
        assert answer.error["message"] == f"The model `{name}` does not exist or you do not have access to it."
    assert gateway.get(f"/v1/models/{name}", key=who).status == status


def test_models_that_a_key_may_use(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    listed = gateway.get("/v1/models", key="instruct-only").json
    assert listed["object"] == "list"
    assert [each["id"] for each in listed["data"]] == [COMPLETIONS]
    assert {each["object"] for each in listed["data"]} == {"model"}
    assert gateway.get("/v1/models", key="nothing").json["data"] == []
    shown = gateway.get("/v1/models/org/team/model:v1").json
    assert (shown["id"], shown["object"]) == ("org/team/model:v1", "model")
    assert isinstance(shown["created"], int)
    assert isinstance(shown["owned_by"], str)


def test_model_of_another_endpoint(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    answer = gateway.complete(model=CHAT)
    assert answer.refusal == (404, "invalid_request_error", "model", None)
    assert "v1/chat/completions" in answer.error["message"]
    answer = gateway.chat(model=COMPLETIONS)
    assert answer.refusal == (404, "invalid_request_error", "model", None)
    assert "Did you mean to use v1/completions?" in answer.error["message"]


def test_networks(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    assert gateway.complete("local").status == 200
    answer = gateway.complete("elsewhere")
    assert (answer.status, answer.error["code"]) == (401, "ip_not_authorized")


# ----------------------------------------------------------------------------------- 401 before one byte of the body


HUGE = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20000000\r\n"


def test_wrong_key_is_refused_before_the_body(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(HUGE + b"Authorization: Bearer sk-wrong\r\n\r\n")
        assert client.read_answer().status == 401


def test_wrong_key_gets_no_100_continue(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The connection ends with the answer: a client that got no 100 need not send the body."""
    with gateway.connect() as client:
        client.send(HUGE + b"Authorization: Bearer sk-wrong\r\nExpect: 100-continue\r\n\r\n")
        answer = client.read_answer()
        assert answer.status == 401
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("expects", ["100-continue", "100-Continue"])
def test_good_key_gets_100_continue(gateway: Gateway, upstream: ScriptedUpstream, expects: str) -> None:
    upstream.answer_with(ok_json(), ok_json())
    with gateway.connect() as client:
        head = f"Authorization: Bearer {secret('alice')}\r\nContent-Type: application/json\r\nExpect: {expects}\r\n"
        client.send(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(BODY)}\r\n\r\n".encode())
        assert client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert upstream.hits == 0
        client.send(BODY)
        assert client.read_answer().status == 200
        client.post("/v1/completions", BODY, secret("alice"))
        assert client.read_answer().status == 200


def test_other_expectations_are_ignored(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    with gateway.connect() as client:
        client.post("/v1/completions", BODY, secret("alice"), "1.1", "Expect: wonders")
        assert client.read_answer().status == 200


def test_http_1_0_knows_no_100_continue(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """RFC 9110, 10.1.1: a client of HTTP/1.0 would take it for the answer."""
    upstream.answer_with(ok_json())
    with gateway.connect() as client:
        head = f"Authorization: Bearer {secret('alice')}\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
        client.send(f"POST /v1/completions HTTP/1.0\r\n{head}Content-Length: {len(BODY)}\r\n\r\n".encode())
        blocked_for_at_least(0.05)  # so that the body is missing when the head is read
        client.send(BODY)
        assert client.read_answer().status == 200


# ------------------------------------------------------------------------------------------------- secrets stay inside


def test_secrets_are_not_shown(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    echo = f"Incorrect API key provided: {UPSTREAM_KEY}. Model up at {upstream.url}"
    upstream.answer_with(error_json(400, message=echo, type="invalid_request_error"), error_json(500, message=echo))
    shown = [
        gateway.complete(),
        gateway.complete(),
        gateway.complete("expired"),
        gateway.get("/v1/key"),
        gateway.get("/metrics"),
    ]
    shown += [gateway.admin("calls"), gateway.admin("usage"), post(gateway, f"Bearer {secret('alice')}x")]
    with gateway.connect() as client:
        client.send(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Bad\0: {secret('alice')}\r\n\r\n".encode())
        shown.append(client.read_answer())
    assert [answer.status for answer in shown] == [400, 502, 401, 200, 200, 200, 200, 401, 400]
    for answer in shown:
        text = answer.body.decode() + str(answer.header_lines)
        for each in (UPSTREAM_KEY, ADMIN_TOKEN, secret("alice"), secret("expired"), upstream.url):
            assert each not in text
    gateway.line(id=shown[0].id)
    gateway.check_logs()


def test_secrets_do_not_travel_in_arguments_or_environment(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """`ps` shows the arguments to all users, and child processes inherit the environment."""
    for pid in [gateway.process.pid, *gateway.workers()]:
        for place in ("cmdline", "environ"):
            shown = read_proc(pid, place)
            assert not [each for each in (UPSTREAM_KEY, ADMIN_TOKEN, secret("alice")) if each.encode() in shown]


def read_proc(pid: int, place: str) -> bytes:
    """Empty where there is no /proc."""
    path = Path(f"/proc/{pid}/{place}")
    return path.read_bytes() if path.exists() else b""


def test_prompts_are_not_logged(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), error_json(500))
    prompt = "a prompt that nobody else should read"
    answers: list[Any] = [
        gateway.complete(prompt=prompt),
        gateway.complete(prompt=prompt),
        gateway.complete(prompt=[prompt, 5]),
    ]
    for answer in answers:
        gateway.line(id=answer.id)
    assert [answer.status for answer in answers] == [200, 502, 400]
    assert prompt not in gateway.stdout + gateway.stderr
