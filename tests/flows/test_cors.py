"""Pages of other origins: a browser lets them call, and read every answer, where the gateway permits it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json, stream

from .client import Answer
from .gateway_process import ADMIN_TOKEN, CHAT, Gateway, model, settings

PAGE = "https://chat.example"
ASKED = "authorization,content-type,x-stainless-os,anthropic-dangerous-direct-browser-access"
OPEN = (
    "/v1/chat/completions", "/v1/models", "/v1/models/a%2Fb", "/v1/responses", "/v1/messages", "/v1/files",
    "/v1beta/models/m:generateContent", "/v2/rerank", "/rerank", "/openai/deployments/m/chat/completions",
    "/openai/responses", "/tasks/v1/images", "/v1/unknown",
)  # fmt: skip
CLOSED = ("/admin/api/keys", "/admin/sign-in", "/dashboard", "/docs", "/metrics", "/healthz", "/", "/v1x", "/tasksx")


def start(start_gateway: StartsGateways, upstream: str, **server: Any) -> Gateway:
    rows = {"tasks": {"prefix": "/tasks", "upstream": "main", "submit": ["POST /v1/images"], "prices": [{"task": 1}]}}
    config = settings(upstream, passthrough=rows, server=server)
    config["models"]["m"] = model("chat")
    return start_gateway(config)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start(start_shared_gateway, shared_upstream.url)


def preflight(gateway: Gateway, path: str, origin: str = PAGE) -> Answer:
    headers = {
        "Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": ASKED,
    }  # fmt: skip
    return gateway.send("OPTIONS", path, key=None, headers=headers)


def allowed(answer: Answer) -> str | None:
    return answer.headers.get("access-control-allow-origin")


@pytest.mark.parametrize("path", OPEN)
def test_a_preflight_needs_no_key(gateway: Gateway, path: str) -> None:
    answer = preflight(gateway, path)
    assert (answer.status, answer.body, allowed(answer)) == (200, b"", "*")
    assert answer.headers["access-control-allow-headers"] == ASKED
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


def test_a_preflight_has_no_access_line(gateway: Gateway) -> None:
    """A page sends one before each of its calls, and lines are one for each call."""
    quiet = preflight(gateway, "/v1/models").headers["x-request-id"]
    gateway.line(id=gateway.get("/v1/unheard-of").headers["x-request-id"])
    assert not [line for line in gateway.lines() if line.get("id") == quiet]


@pytest.mark.parametrize("path", CLOSED)
def test_what_is_no_call_stays_closed(gateway: Gateway, path: str) -> None:
    headers = {"Origin": PAGE, "Authorization": f"Bearer {ADMIN_TOKEN}"}
    for answer in (preflight(gateway, path), gateway.get(path, key=None, headers=headers)):
        assert allowed(answer) is None
    assert preflight(gateway, path).status in (404, 405)


def test_the_page_reads_every_answer(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    events = [{"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}]
    upstream.answer_with(ok_json(), error_json(400, message="no"), stream(events))
    origin = {"Origin": PAGE}
    asked = {"model": CHAT, "messages": [{"role": "user", "content": "Hi"}]}
    path = "/v1/chat/completions"
    answers = [
        gateway.post(path, asked, headers=origin),
        gateway.post(path, asked, headers=origin),
        gateway.post(path, {**asked, "stream": True}, headers=origin),
        gateway.post(path, asked, key=None, headers=origin),
        gateway.post(path, b"{", headers=origin),
        gateway.get("/v1/unknown", headers=origin),
        gateway.get("/v1/models", headers=origin),
        gateway.get("/v1/responses/resp_1", headers=origin),
        gateway.post("/tasks/v1/images", b"[]", headers=origin),
    ]
    assert [answer.status for answer in answers] == [200, 400, 200, 401, 400, 404, 200, 404, 400]
    for answer in answers:
        assert allowed(answer) == "*"
        assert answer.headers["access-control-expose-headers"] == "*"
        assert [name for name, _ in answer.header_lines].count("access-control-allow-origin") == 1


def test_without_an_origin_nothing_is_added(gateway: Gateway) -> None:
    assert not [name for name, _ in gateway.get("/v1/models").header_lines if name.startswith("access-control")]
    assert gateway.send("OPTIONS", "/v1/models", key=None).status == 405


def test_only_these_pages(start_gateway: StartsGateways) -> None:
    gateway = start(start_gateway, "http://127.0.0.1:9", cors_origins=[PAGE, "chrome-extension://abc"])
    for page in (PAGE, "chrome-extension://abc"):
        assert (allowed(preflight(gateway, OPEN[0], page)), preflight(gateway, OPEN[0], page).headers["vary"]) == (
            page, "Origin",
        )  # fmt: skip
        assert allowed(gateway.get("/v1/models", headers={"Origin": page})) == page
    for page in ("https://chat.example.evil.example", "null", "http://chat.example", f"{PAGE}:8443"):
        assert (allowed(preflight(gateway, OPEN[0], page)), preflight(gateway, OPEN[0], page).status) == (None, 405)
        assert allowed(gateway.get("/v1/models", headers={"Origin": page})) is None


def test_no_page(start_gateway: StartsGateways) -> None:
    gateway = start(start_gateway, "http://127.0.0.1:9", cors_origins=[])
    assert (preflight(gateway, OPEN[0]).status, allowed(preflight(gateway, OPEN[0]))) == (405, None)
