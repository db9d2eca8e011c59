"""Requests as they arrive at a cloud: authorized at the moment in which they are sent."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.api.form import Upload
from gateway.config import build
from gateway.records import Failure, Fault, Phase
from gateway.upstream.ask import Fetched, fetch
from gateway.upstream.connection import Connection, Head
from gateway.upstream.pool import pool_of
from gateway.upstream.provider_errors import judge
from gateway.wings.clouds.pool import CloudPool
from tests.fakes.scripted import Behaviour, Scripted, answer, chunk, error_json, ok_json, silent, until

from .fakes import ACCESS, SECRET, chunk_of, exception_of, message_events, numbered, signature_of, token_reply


@pytest.fixture
def cloud() -> Iterator[Scripted]:
    with Scripted(prefix="") as server:
        yield server


def oauth(tokens: Scripted, **more: Any) -> dict[str, Any]:
    return {"type": "oauth", "token_url": f"{tokens.url}/token", "client_id": "c", "client_secret": "s", **more}


@asynccontextmanager
async def pool(base_url: str, **settings: Any) -> AsyncIterator[CloudPool]:
    values = {"base_url": base_url, **settings}
    config = build({"upstreams": {"up": values}, "models": {"m": {"routes": [{"upstream": "up"}]}}})
    made = pool_of("up", config.upstreams["up"], 4)
    assert isinstance(made, CloudPool)
    try:
        yield made
    finally:
        await made.close()


async def sent(
    made: CloudPool, path: str = "/chat/completions", body: bytes | list[memoryview] = b"{}"
) -> Fetched | Failure:
    return await fetch("up", made, made.request(path, [("Content-Type", "application/json")], body), 30, 10**6)


async def test_a_token_is_presented_and_kept(cloud: Scripted) -> None:
    with Scripted(token_reply("one"), prefix="") as tokens:
        cloud._always = ok_json()
        async with pool(f"{cloud.url}/v1", auth=oauth(tokens)) as made:
            for _ in range(3):
                assert isinstance(await sent(made), Fetched)
            assert made.hidden[0] == ("one", "***")
    assert [request.headers["authorization"] for request in cloud.requests] == ["Bearer one"] * 3


async def test_a_request_that_waits_presents_what_is_valid_when_it_is_sent(cloud: Scripted) -> None:
    with Scripted(prefix="", always=numbered(lambda number: token_reply(f"token-{number}"))) as tokens:
        cloud._always = ok_json()
        async with pool(f"{cloud.url}/v1", auth=oauth(tokens)) as made:
            request = made.request("/chat/completions", [], b"{}")
            assert made.renewal is not None
            await made.renewal.renew()
            await made.renewal.renew()
            assert isinstance(await fetch("up", made, request, 30, 10**6), Fetched)
    assert cloud.requests[0].headers["authorization"] == "Bearer token-2"


async def test_a_refused_token_is_a_failure_at_once(cloud: Scripted) -> None:
    with Scripted(error_json(403), prefix="") as tokens:
        async with pool(f"{cloud.url}/v1", auth=oauth(tokens)) as made:
            failure = await sent(made)
            assert isinstance(failure, Failure)
            assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.AUTH)
            assert failure.detail == "authorization refused: the token endpoint answered 403"
    assert cloud.hits == 0


async def test_a_late_token_holds_a_call_no_longer_than_a_connection_may_take(cloud: Scripted) -> None:
    with Scripted(silent, prefix="") as tokens:
        async with pool(f"{cloud.url}/v1", auth=oauth(tokens), timeouts={"connect_s": 0.05}) as made:
            failure = await sent(made)
            assert isinstance(failure, Failure)
            assert failure.detail == "nothing was obtained within 0.05 s"
    assert cloud.hits == 0


async def test_a_token_that_the_upstream_refuses_is_renewed(cloud: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.wings.clouds.renewal.REFUSED_TWICE_S", 0.0)
    with Scripted(prefix="", always=numbered(lambda number: token_reply(f"token-{number}"))) as tokens:
        cloud._script += [error_json(401), ok_json()]
        async with pool(f"{cloud.url}/v1", auth=oauth(tokens)) as made:
            await sent(made)
            await until(lambda: made.renewal and made.renewal.secrets == ("token-2",))
            await sent(made)
    assert [request.headers["authorization"] for request in cloud.requests] == ["Bearer token-1", "Bearer token-2"]


@pytest.mark.parametrize(
    ("status", "kind", "found"),
    [
        (403, "ExpiredTokenException", Fault.AUTH), (403, "InvalidSignatureException", Fault.AUTH),
        (400, "ServiceQuotaExceededException", Fault.RATE_LIMITED), (429, "ThrottlingException", Fault.RATE_LIMITED),
        (429, "ModelNotReadyException", Fault.STATUS), (400, "ValidationException", None),
    ],
)  # fmt: skip
async def test_an_error_of_amazon_is_judged_by_its_kind(
    cloud: Scripted, aws: dict[str, str], status: int, kind: str, found: Fault | None
) -> None:
    cloud._script.append(answer(b'{"message": "x"}', status, [("x-amzn-errortype", f"{kind}:http://x/")]))
    async with pool(cloud.url, auth=aws, paths="bedrock") as made:
        got = await sent(made, "/messages")
        assert isinstance(got, Fetched)
        judged = judge("up", got.head, got.body, now=0, hide=())
    assert (judged.fault if isinstance(judged, Failure) else None) is found


async def test_expired_credentials_are_asked_for_again(
    cloud: Scripted, aws: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.wings.clouds.renewal.REFUSED_TWICE_S", 0.0)
    cloud._script += [answer(b"{}", 403, [("x-amzn-errortype", "ExpiredTokenException")]), ok_json()]
    async with pool(cloud.url, auth=aws, paths="bedrock") as made:
        assert made.renewal is not None
        await made.renewal.renew()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANEWER")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-newer-secret")
        await sent(made, "/messages")
        await until(lambda: made.renewal and "a-newer-secret" in made.renewal.secrets)
        await sent(made, "/messages")
    assert "AKIANEWER" in cloud.requests[1].headers["authorization"]


async def test_a_stream_outlives_the_token_that_it_began_with(cloud: Scripted) -> None:
    rotated = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def half(wire: Any) -> None:
        await wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"one "))
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(rotated.wait(), loop))
        await wire.write(chunk(b"two") + b"0\r\n\r\n")

    with Scripted(prefix="", always=numbered(lambda number: token_reply(f"token-{number}"))) as tokens:
        cloud._script += [half, ok_json()]
        async with pool(f"{cloud.url}/v1", auth=oauth(tokens)) as made:
            streaming = asyncio.ensure_future(sent(made))
            await until(lambda: cloud.hits)
            assert made.renewal is not None
            await made.renewal.renew()
            rotated.set()
            whole = await streaming
            assert isinstance(whole, Fetched)
            assert whole.body == b"one two"
            await sent(made)
    assert [request.headers["authorization"] for request in cloud.requests] == ["Bearer token-1", "Bearer token-2"]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in (
        ("ACCESS_KEY_ID", ACCESS),
        ("SECRET_ACCESS_KEY", SECRET),
        ("SESSION_TOKEN", "a/session+of=ours"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    return {"type": "aws", "region": "us-west-2"}


ARN = "arn:aws:bedrock:us-west-2:1:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0"


@pytest.mark.parametrize("model", ["anthropic.claude-v1:0", ARN, "näme of ours"])
@pytest.mark.parametrize("size", [1, 200_000])
async def test_botocore_computes_the_same_signature(
    cloud: Scripted, aws: dict[str, str], model: str, size: int
) -> None:
    cloud._always = ok_json()
    body = json.dumps({"model": model, "messages": "x" * size}).encode()
    async with pool(cloud.url, auth=aws, paths="bedrock") as made:
        for given in (body, [memoryview(body[:40]), memoryview(body[40:])]):
            assert isinstance(await sent(made, "/messages", given), Fetched)
    for request in cloud.requests:
        assert request.headers["authorization"] == signature_of(request, SECRET, "bedrock", "us-west-2")
        assert request.headers["x-amz-security-token"] == "a/session+of=ours"
        assert len(request.body) > size


async def test_a_renewal_forgets_a_pool_that_was_replaced_while_calls_were_running(cloud: Scripted) -> None:
    cloud._always = silent
    with Scripted(token_reply("one"), prefix="") as tokens:
        async with pool(f"{cloud.url}/v1", auth=oauth(tokens)) as other:
            async with pool(f"{cloud.url}/v1", auth=oauth(tokens)) as replaced:
                assert other.renewal is not None
                replaced.share(other.renewal)
                connection = await replaced.acquire()
                assert isinstance(connection, Connection)
            assert len(other.renewal.users) == 2
            connection.abort()
            del connection, replaced
            await until(lambda: gc.collect() >= 0 and other.renewal and len(other.renewal.users) == 1)
            assert [*other.renewal.users] == [other]


async def test_a_query_is_signed_too(cloud: Scripted, aws: dict[str, str]) -> None:
    cloud._always = ok_json()
    async with pool(f"{cloud.url}/v1", auth={**aws, "service": "bedrock-mantle"}) as made:
        request = made.request("/models?after=b&limit=2", [], b"", method="GET")
        assert isinstance(await fetch("up", made, request, 30, 10**6), Fetched)
    (came,) = cloud.requests
    assert came.path == "/v1/models?after=b&limit=2"
    assert came.headers["authorization"] == signature_of(came, SECRET, "bedrock-mantle", "us-west-2")


def binary(*pieces: bytes) -> Behaviour:
    async def behaviour(wire: Any) -> None:
        await wire.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for piece in pieces:
            await wire.write(chunk(piece))
        await wire.write(b"0\r\n\r\n")

    return behaviour


async def test_a_binary_stream_arrives_as_server_sent_events(cloud: Scripted, aws: dict[str, str]) -> None:
    cloud._script.append(binary(*map(chunk_of, message_events()), exception_of("throttlingException", "slow down")))
    async with pool(cloud.url, auth=aws, paths="bedrock") as made:
        found = await sent(made, "/messages", b'{"model": "m", "stream": true}')
    assert isinstance(found, Fetched)
    assert found.head.get("content-type") == "text/event-stream; charset=utf-8"
    assert found.body.count(b"event: ") == 7
    assert b'"rate_limit_error", "message": "throttlingException: slow down"' in found.body


async def test_a_changed_byte_ends_the_answer(cloud: Scripted, aws: dict[str, str]) -> None:
    good = chunk_of(message_events()[0])
    cloud._script.append(binary(good, good[:-1] + bytes([good[-1] ^ 1])))
    async with pool(cloud.url, auth=aws, paths="bedrock") as made:
        failure = await sent(made, "/messages", b'{"model": "m", "stream": true}')
        assert made.in_flight == 0
    assert isinstance(failure, Failure)
    assert (failure.fault, failure.detail) == (Fault.PROTOCOL, "event stream: ChecksumMismatch")


async def test_what_came_before_a_bad_message_is_read(cloud: Scripted, aws: dict[str, str]) -> None:
    """Whether the network brings both in one piece changes nothing."""
    good = b"".join(map(chunk_of, message_events()[:3]))
    seen: list[bytes] = []
    ended: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()

    class Seen:
        def head_received(self, head: Head) -> None: ...

        def body_received(self, data: bytes) -> None:
            seen.append(data)

        def ended(self, failure: Failure | None) -> None:
            ended.set_result(failure)

    cloud._script.append(binary(good + good[:-1] + bytes([good[-1] ^ 1])))
    async with pool(cloud.url, auth=aws, paths="bedrock") as made:
        connection = await made.acquire()
        assert isinstance(connection, Connection)
        connection.send(made.request("/messages", [], b'{"model": "m", "stream": true}'), Seen())
        failure = await ended
        assert made.in_flight == 0
    assert b"".join(seen).count(b"event: ") == 3 + 2
    assert isinstance(failure, Failure)
    assert (failure.upstream, failure.fault) == ("up", Fault.PROTOCOL)


async def test_an_api_key_serves_the_paths_of_clouds_too(cloud: Scripted) -> None:
    cloud._always = answer(b"{}")
    settings = {"paths": "azure", "api_version": "2024-10-21", "api_key": "k", "key_header": "api-key"}
    async with pool(f"{cloud.url}/openai", **settings) as made:
        await sent(made, "/chat/completions", b'{"model": "gpt 4o", "messages": []}')
        form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
        upload = Upload(len(form), lambda: iter([form]))
        request = made.request("/audio/transcriptions", [], upload)
        assert isinstance(await fetch("up", made, request, 30, 10**6, upload), Fetched)
    assert [request.path for request in cloud.requests] == [
        "/openai/deployments/gpt%204o/chat/completions?api-version=2024-10-21",
        "/openai/deployments/whisper/audio/transcriptions?api-version=2024-10-21",
    ]
    assert cloud.requests[1].body == form
    assert [request.headers["api-key"] for request in cloud.requests] == ["k", "k"]
