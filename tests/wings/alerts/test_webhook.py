"""One attempt at a webhook, against a real server: it is taken or not, and no secret is ever shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.wings.alerts.settings import AlertReceiver
from gateway.wings.alerts.webhook import PostResult, Webhook
from tests.fakes import scripted
from tests.fakes.proxy import tunnel
from tests.fakes.scripted import Authority, Scripted, dead_port

SECRET = "T0KEN-that-nobody-may-see"
BODY = json.dumps({"text": "80 % of a quota: Zoë"}, ensure_ascii=False).encode()


async def post(address: str, within_s: float = 5, **settings: Any) -> PostResult:
    webhook = Webhook(AlertReceiver(webhook=SecretStr(address), **settings), within_s)
    try:
        answer = await webhook.post(BODY)
    finally:
        await webhook.close()
    for shown in (repr(answer), repr(webhook), repr(AlertReceiver(webhook=SecretStr(address), **settings))):
        assert SECRET not in shown
    return answer


async def test_json_is_posted_as_it_is() -> None:
    async with Scripted(scripted.answer(b"ok")) as receiver:
        answer = await post(f"{receiver.url}/services/{SECRET}?a=b%2Fc")
    assert answer.is_taken
    (request,) = receiver.requests
    assert (request.method, request.path) == ("POST", f"/v1/services/{SECRET}?a=b%2Fc")
    assert request.body == BODY
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("completions-gateway/")


async def test_credentials_in_the_address_are_sent_as_such() -> None:
    async with Scripted(scripted.answer(b"ok")) as receiver:
        assert (await post(receiver.url.replace("http://", f"http://me:{SECRET}@"))).is_taken
    assert receiver.requests[0].headers["authorization"].startswith("Basic ")
    assert SECRET not in receiver.requests[0].path


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_taken(status: int) -> None:
    async with Scripted(scripted.answer(b"", status)) as receiver:
        assert (await post(f"{receiver.url}/{SECRET}")).is_taken


@pytest.mark.parametrize("status", [300, 400, 401, 404, 410, 429, 500, 503])
async def test_not_taken(status: int) -> None:
    async with Scripted(scripted.answer(SECRET.encode(), status)) as receiver:
        answer = await post(f"{receiver.url}/{SECRET}")
    assert not answer.is_taken
    assert answer == PostResult(status, f"it answers {status}")


async def test_it_says_when_to_come_back() -> None:
    async with Scripted(scripted.answer(b"", 429, [("Retry-After", "7")])) as receiver:
        assert (await post(receiver.url)).retry_after_s == 7


async def test_redirects_are_not_followed() -> None:
    async with Scripted() as elsewhere, Scripted(scripted.answer(b"", 302, [("Location", elsewhere.url)])) as receiver:
        answer = await post(receiver.url)
    assert (answer.status, answer.is_taken, elsewhere.hits) == (302, False, 0)


@pytest.mark.parametrize(
    "behaviour",
    [scripted.reset_without_answer, scripted.close_without_answer, scripted.not_http],
    ids=lambda behaviour: behaviour.__name__,
)
async def test_broken_connections(behaviour: scripted.Behaviour) -> None:
    async with Scripted(behaviour) as receiver:
        answer = await post(f"{receiver.url}/{SECRET}")
    assert (answer.status, answer.is_taken) == (None, False)
    assert answer.detail.startswith("the connection failed (")


async def test_no_server_at_the_address() -> None:
    assert await post(f"http://127.0.0.1:{dead_port()}/{SECRET}") == PostResult(None, "it cannot be reached")


async def test_who_does_not_answer_is_left() -> None:
    async with Scripted(scripted.silent) as receiver:
        assert await post(f"{receiver.url}/{SECRET}", within_s=0.1) == PostResult(None, "no answer within 0.1 s")


async def test_an_endless_answer_is_not_waited_for() -> None:
    async with Scripted(scripted.stalled_stream([{}])) as receiver:
        assert (await post(receiver.url)).is_taken


async def test_an_untrusted_certificate(tmp_path: Path) -> None:
    async with Scripted(tls=Authority(tmp_path).server_context("127.0.0.1")) as receiver:
        answer = await post(f"{receiver.url}/{SECRET}")
    assert answer == PostResult(None, "its certificate cannot be trusted, or TLS failed otherwise")
    assert receiver.hits == 0


async def test_through_a_proxy() -> None:
    async with Scripted(scripted.answer(b"ok")) as proxy:
        answer = await post("http://hooks.example.com/x", proxy=f"http://me:{SECRET}%2F@127.0.0.1:{proxy.port}")
    assert answer.is_taken
    (request,) = proxy.requests
    assert request.path == "http://hooks.example.com/x"
    assert request.headers["proxy-authorization"].startswith("Basic ")


async def test_through_a_tunnel(tmp_path: Path) -> None:
    context = Authority(tmp_path).server_context("127.0.0.1")
    async with Scripted(tls=context) as receiver, Scripted(always=tunnel(receiver.port, userinfo="me:pw")) as proxy:
        answer = await post("https://hooks.example.com/x", proxy=f"http://me:pw@127.0.0.1:{proxy.port}")
    assert proxy.requests[0].path == "hooks.example.com:443"
    assert answer == PostResult(None, "its certificate cannot be trusted, or TLS failed otherwise")


async def test_a_proxy_that_refuses_or_is_not_there() -> None:
    async with Scripted(always=tunnel(1, userinfo="me:other")) as proxy:
        refused = await post("https://hooks.example.com", proxy=f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
    assert refused == PostResult(None, "its proxy answers 407")
    gone = await post("https://hooks.example.com", proxy=f"http://me:{SECRET}@127.0.0.1:{dead_port()}")
    assert gone == PostResult(None, "its proxy cannot be reached")
