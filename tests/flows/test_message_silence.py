"""Streams of the Messages API while nothing is generated, and clients that leave them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk

from .client import Raw
from .gateway_process import Gateway, eventually, key, secret
from .test_messages import CLAUDE, MESSAGE, RECORDED, gateway_settings, last_event

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
BEGUN = RECORDED["text"].partition(b"event: content_block_start")[0]


async def is_gone_within(wire: Wire, wait_s: float) -> bool:
    """Whether the peer hangs up within this time."""
    try:
        await asyncio.wait_for(wire.until_gone(), wait_s)
    except TimeoutError:
        return False
    return True


def stream(gateway: Gateway, who: str = "alice", **changes: Any) -> Raw:
    """A streamed message on a socket of its own; the head of the answer has still to be read."""
    raw = gateway.connect()
    members = {"model": CLAUDE, "max_tokens": 1000, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    raw.post("/v1/messages", json.dumps(members | changes).encode(), secret(who), "1.1")
    return raw


@pytest.fixture
def gateway(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> Gateway:
    config = gateway_settings(upstream.url, keys=[key("alice")])
    config["server"]["keepalive_comment_s"] = 0.05
    config["upstreams"]["main"]["timeouts"] = {"idle_s": 3}
    config["models"][CLAUDE]["max_attempts"] = 1
    return start_gateway(config)


def test_silence_is_filled_with_pings(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    async def silent_at_first(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(BEGUN))
        await wire.until_gone()

    upstream.answer_with(silent_at_first)
    with stream(gateway) as client:
        client.read_head()
        body = b""
        while body.partition(BEGUN)[2].count(PING) < 3:
            body += client.read_chunk()
    before, _, behind = body.partition(BEGUN)  # on a busy machine the upstream too is silent at first
    assert before + behind == PING * body.count(PING)


def test_a_plain_answer_behind_pings_becomes_events(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    async def late(wire: Wire) -> None:
        await is_gone_within(wire, 0.3)
        body = json.dumps(MESSAGE).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        await wire.write(head + body)

    upstream.answer_with(late)
    with stream(gateway) as client:
        client.read_head()
        body = client.read_chunks()
    assert body.startswith(PING)
    names = [line.removeprefix(b"event: ").decode() for line in body.split(b"\n") if line.startswith(b"event: ")]
    assert [name for name in names if name != "ping"] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip


def test_pings_of_the_upstream_do_not_keep_it_alive(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    async def pinging(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(BEGUN))
        while not await is_gone_within(wire, 0.1):
            await wire.write(chunk(PING))

    upstream.answer_with(pinging)
    with stream(gateway) as client:
        client.read_head()
        body = client.read_chunks()
    name, received = last_event(body)
    assert (name, received["error"]["type"]) == ("error", "timeout_error")
    assert PING in body


def test_a_client_that_leaves_is_charged_the_prompt_and_what_was_shown(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    early = RECORDED["ended-early"]

    async def stalled(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(early))
        await wire.until_gone()

    upstream.answer_with(stalled)
    with stream(gateway) as client:
        head = client.read_head()
        received = client.read_chunk()
        while received == PING:  # on a busy machine the upstream is silent at first
            received = client.read_chunk()
        assert received == early
    record = eventually(lambda: next((call for call in gateway.calls() if call["id"] == head.id), None))
    assert (record["ended"], record["client_gone"], record["prompt_tokens"]) == ("client_gone", True, 25)
    assert record["usage_source"] == "estimated"
    assert 1 <= record["completion_tokens"] < 10
