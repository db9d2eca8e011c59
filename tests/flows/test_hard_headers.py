"""No text of a client or an upstream becomes a header, log line or label of the gateway, or changes a call's target."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Scripted, answer, error_json, ok_json

from .client import Raw
from .gateway_process import COMPLETIONS, UPSTREAM_KEY, Gateway, key, model, secret, settings

PLANTED = "planted-by-nobody"
NASTY = [
    "a\r\nX-Injected: 1\r\n\r\n", "a\nX-Injected: 1", "a\rX-Injected: 1", "a\0b", "\u2028\u2029\x85", "é ü 𝄞 \ud7ff",
    '"quoted" \\ {}', "%0d%0aX-Injected: 1", "x" * 64_000, "\x1b[31mred",
]  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    models = {"*": model("completions")}
    return start_shared_gateway(
        settings(shared_upstream.url, models=models, keys=[key("alice"), key("bob", models=["only-this"])])
    )


def lines_of(client: Raw) -> list[str]:
    """The header names of one answer of known length, which has to be all there is."""
    names = [name for name, _ in client.read_answer().header_lines]
    assert "x-injected" not in names
    assert len(names) == len(set(names))
    return names


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
@pytest.mark.parametrize("who", ["alice", "bob"])
def test_model_name_stays_where_it_belongs(gateway: Gateway, upstream: ScriptedUpstream, who: str, name: str) -> None:
    """One key may use any model, and the upstream repeats the name in its refusal; the other may not."""
    upstream.answer_with(
        always=error_json(400, message=f"no model {name}", type="invalid_request_error", param=name, code=name)
    )
    with gateway.connect() as client:
        client.post("/v1/completions", json.dumps({"model": name, "prompt": "x"}).encode(), secret(who))
        lines_of(client)
        client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.read_answer().status == 200
    metrics = gateway.get("/metrics", key=None).body.decode()
    assert "X-Injected" not in metrics
    assert "planted" not in metrics
    written = [line for line in gateway.stdout.rpartition("\n")[0].splitlines() if line.startswith("{")]
    assert len(gateway.lines()) >= len(written)  # each of them is JSON; more may be written meanwhile


@pytest.mark.parametrize("value", [b"a\xff\xfe", b"\xe2\x80\xa8line", b"x" * 8000, b'"}{', b"%0d%0a", b"\x80\x9f"])
def test_request_id_of_a_client_is_only_recorded(gateway: Gateway, upstream: ScriptedUpstream, value: bytes) -> None:
    upstream.answer_with(ok_json())
    body = json.dumps({"model": COMPLETIONS, "prompt": "x"}).encode()
    with gateway.connect() as client:
        client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        client.send(f"Authorization: Bearer {secret('alice')}\r\nContent-Length: {len(body)}\r\n".encode())
        client.send(b"X-Client-Request-Id: " + value + b"\r\n\r\n" + body)
        received = client.read_answer()
    assert received.status == 200
    assert received.id.startswith("req_")
    assert value not in b"".join(f"{name}: {text}".encode("latin-1") for name, text in received.header_lines)
    assert len(gateway.line(id=received.id)["client_request_id"]) <= 512
    assert gateway.call(received.id)["status"] == 200
    assert "x-client-request-id" not in upstream.requests[0].headers


UPWARDS = {
    "Cookie": PLANTED, "X-Api-Key": secret("alice"), "Api-Key": secret("alice"), "Host": PLANTED,
    "OpenAI-Organization": PLANTED,
    "OpenAI-Project": PLANTED, "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Host": PLANTED, "Forwarded": PLANTED,
    "Proxy-Authorization": PLANTED, "Connection": "X-Planted, close", "X-Planted": PLANTED, "Keep-Alive": PLANTED,
    "Trailer": PLANTED, "Upgrade": PLANTED, "TE": PLANTED, "Expect": PLANTED, "Via": PLANTED, "Accept-Encoding": "gzip",
    "X-HTTP-Method-Override": "GET", "X-Original-URL": "/admin/api/keys", "X-Client-Request-Id": PLANTED,
}  # fmt: skip


@pytest.mark.parametrize("name", UPWARDS)
def test_only_listed_headers_go_up(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(ok_json())
    members = {"model": COMPLETIONS, "prompt": "x"}
    assert gateway.post("/v1/completions", members, headers={name: UPWARDS[name]}).status == 200
    (request,) = upstream.requests
    assert PLANTED.encode() not in request.head
    assert secret("alice").encode() not in request.head
    up = request.headers
    assert up["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert up["connection"] == "keep-alive"
    assert up["accept-encoding"] == "identity"
    assert up["host"] in upstream.url
    assert set(up) <= {"host", "authorization", "accept-encoding", "connection", "content-type", "content-length",
                       "accept", "user-agent"}  # fmt: skip


DOWNWARDS = [
    ("Set-Cookie", PLANTED), ("Location", PLANTED), ("Server", PLANTED), ("X-Planted", PLANTED), ("Via", PLANTED),
    ("WWW-Authenticate", PLANTED), ("OpenAI-Organization", PLANTED), ("X-Request-Id", PLANTED), ("Alt-Svc", PLANTED),
    ("Access-Control-Allow-Origin", PLANTED), ("Strict-Transport-Security", PLANTED), ("X-RateLimit-Limit-Tokens", "7"),
    ("x-gateway-upstream", PLANTED), ("Trailer", PLANTED), ("Refresh", PLANTED), ("Link", PLANTED),
]  # fmt: skip


def test_only_listed_headers_come_down(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(headers=DOWNWARDS), error_json(400, message="no", headers=DOWNWARDS))
    for _ in range(2):
        received = gateway.complete()
        assert PLANTED not in str(received.header_lines)
        assert "x-ratelimit-limit-tokens" not in received.headers
        assert received.headers["x-gateway-upstream"] == "main"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 300, 304])
def test_redirects_are_not_followed(gateway: Gateway, upstream: ScriptedUpstream, status: int) -> None:
    with Scripted() as elsewhere:
        upstream.answer_with(always=answer(b"", status, [("Location", f"{elsewhere.url}/completions")]))
        received = gateway.complete()
        assert received.status in (502, 503)  # 503 once its circuit is open
        assert received.error["code"] == "upstream_error"
        assert elsewhere.url not in received.body.decode() + str(received.header_lines)
        assert elsewhere.hits == 0


@pytest.mark.parametrize(
    "target", ["http://{other}/v1/completions", "//{other}/v1/completions", "/v1/completions@{other}"]
)
def test_address_of_a_request_chooses_no_upstream(gateway: Gateway, upstream: ScriptedUpstream, target: str) -> None:
    upstream.answer_with(always=ok_json())
    with Scripted() as elsewhere, gateway.connect() as client:
        other = elsewhere.url.removeprefix("http://").partition("/")[0]
        client.post(target.format(other=other), b'{"model": "m", "prompt": "x"}', secret("alice"))
        status: Any = client.read_answer().status
        assert status in (200, 404)
        assert elsewhere.hits == 0
