"""Requests with a Content-Encoding, through a whole gateway: decoded within the limits, small and large ones alike."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest

from tests.amounts import amount
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.scripted import ok_json

from .client import Answer
from .gateway_process import CHAT, COMPLETIONS, Gateway, model, settings

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 3_000_000
MODEL = "gpt-4.1"
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
    "ZSTD": zstd.compress,
    "identity, gzip": gzip.compress,
    "identity": bytes,
}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    models = {CHAT: model("chat"), COMPLETIONS: model("completions"), MODEL: model("responses")}
    return start_shared_gateway(settings(shared_upstream.url, models=models, server={"max_request_bytes": LIMIT}))


def send(gateway: Gateway, body: bytes, coding: str, path: str = "/v1/responses") -> Answer:
    return gateway.post(path, body, headers={"Content-Encoding": coding})


def body(size: int = 0, **more: Any) -> bytes:
    return json.dumps({"model": MODEL, "input": "x" * size} | more).encode()


@pytest.mark.parametrize("size", [1, 5000, 200_000, LIMIT - 1000])
@pytest.mark.parametrize("coding", sorted(CODINGS))
def test_a_compressed_body_is_carried_without_its_coding(
    gateway: Gateway, upstream: ScriptedUpstream, coding: str, size: int
) -> None:
    upstream.answer_with(ok_json(api.response()))
    assert send(gateway, CODINGS[coding](body(size)), coding).status == 200
    request = upstream.requests[-1]
    assert request.body == body(size)
    assert "content-encoding" not in request.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_format_takes_it(gateway: Gateway, upstream: ScriptedUpstream, path: str) -> None:
    asked = {"model": CHAT, "messages": [{"role": "user", "content": "Hi"}]}
    if path == "/v1/completions":
        asked = {"model": COMPLETIONS, "prompt": "Hi"}
    upstream.answer_with(ok_json())
    given = json.dumps(asked).encode()
    assert send(gateway, zstd.compress(given), "zstd", path).status == 200
    assert upstream.requests[-1].body == given


@pytest.mark.parametrize("size", [20, 200_000])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_damaged_body_is_refused(gateway: Gateway, upstream: ScriptedUpstream, coding: str, size: int) -> None:
    before = upstream.hits
    whole = CODINGS[coding](body(size))
    for damaged in (whole[:-1], whole[: len(whole) // 2], whole + b"x", b"", body(size), b"\0" * 10):
        received = send(gateway, damaged, coding)
        assert received.refusal[:3] == (400, "invalid_request_error", None), damaged[:50]
    assert upstream.hits == before


@pytest.mark.shortened
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_bomb_is_refused(gateway: Gateway, upstream: ScriptedUpstream, coding: str) -> None:
    before = upstream.hits
    start, end = body(1).split(b"x")
    bomb = start + b"x" * amount(200_000_000, 20_000_000) + end
    received = send(gateway, brotli.compress(bomb, quality=1) if coding == "br" else CODINGS[coding](bomb), coding)
    assert received.refusal == (413, "server_error", None, None)
    assert upstream.hits == before
    upstream.answer_with(ok_json(api.response()))
    assert gateway.post("/v1/responses", body(LIMIT - 1000)).status == 200  # its room is free again


@pytest.mark.parametrize("coding", ["compress", "gzip, gzip", "zstd;q=1", "sk-secret-of-somebody"])
def test_other_codings_are_refused(gateway: Gateway, coding: str) -> None:
    received = send(gateway, body(), coding)
    assert received.refusal == (400, "invalid_request_error", None, "unsupported_content_encoding")
    assert coding.encode() not in received.body


def test_limits_apply_to_what_was_decoded(gateway: Gateway) -> None:
    received = send(gateway, zstd.compress(body(temperature=9)), "zstd")
    assert received.refusal[2:] == ("temperature", "decimal_above_max_value")
