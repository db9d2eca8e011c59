"""Output limits of Realtime sessions: the client's, those of keys and models, and what a quota has left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.wings.realtime import formats
from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.gateway_process import Gateway, eventually, key
from tests.wings.realtime.test_realtime import ASK, KEYS, MODEL, close_code, configuration, session, until

MORE_KEYS = [
    key("capped", limits={"max_tokens": 40}),
    key("little", quotas=[{"tokens": 1200, "per": "month"}]),
    key("refused", quotas=[{"tokens": 1700, "per": "month"}]),
    key("plain", quotas=[{"tokens": 1700, "per": "month"}]),
]
SILENT: dict[str, Any] = {"type": "test.nothing"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(upstream: RealtimeUpstream) -> None:
    upstream.reset()


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, upstream: RealtimeUpstream, store_url: str) -> Gateway:
    return start_shared_gateway(configuration(upstream, store={"url": store_url}) | {"keys": [*KEYS, *MORE_KEYS]})


def reserved(gateway: Gateway, who: str) -> int:
    (window,) = gateway.admin("quotas", key=who).json["data"]
    held: int = window["reserved"]
    return held


def update(**settings: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "realtime", **settings}}


def ask(**settings: Any) -> dict[str, Any]:
    return ASK | {"response": settings}


async def received(upstream: RealtimeUpstream, *limits: Any) -> None:
    """Wait until the upstream has received these limits of the session, in this order."""

    def are() -> bool:
        updates = [event["session"] for event in upstream.seen if event["type"] == "session.update"]
        return [each.get("max_output_tokens") for each in updates] == [*limits]

    await asyncio.to_thread(eventually, are)


@pytest.mark.parametrize(("who", "model", "bound"), [("alice", "bounded", 9), ("capped", MODEL, 40)])
async def test_a_limit_of_the_key_or_the_model_is_kept_at_the_upstream(
    gateway: Gateway, upstream: RealtimeUpstream, who: str, model: str, bound: int
) -> None:
    async with session(gateway, who, model) as socket:
        await received(upstream, bound)
        for event in (update(max_output_tokens=bound + 1), ask(max_output_tokens=bound + 1)):
            await socket.send_json(event)
            error = (await socket.receive_json(timeout=10))["error"]
            assert (error["code"], error["param"]) == ("integer_above_max_value", "max_output_tokens")
        await socket.send_json(update(max_output_tokens="inf", voice="alloy") | {"event_id": "mine"})
        assert (await socket.receive_json(timeout=10))["session"] == {"type": "realtime", "voice": "alloy"}
        await socket.send_json(update(max_output_tokens=bound - 1))
        assert (await socket.receive_json(timeout=10))["session"]["max_output_tokens"] == bound - 1
        await socket.send_json(ask(max_output_tokens="inf"))
        await until(socket, "response.done")
        await socket.send_json(update(max_output_tokens=None))
        assert (await socket.receive_json(timeout=10))["type"] == "session.updated"
        await received(upstream, bound, None, bound - 1, None, bound)
    assert [event["response"] for event in upstream.seen if event["type"] == "response.create"] == [{}]


async def test_what_the_client_asks_for_is_reserved(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    upstream.stops_inside = True
    async with session(gateway, "small") as socket:
        await received(upstream, 500)
        assert reserved(gateway, "small") == 1024 + 500
        await socket.send_json(update(max_output_tokens=30))
        await until(socket, "session.updated")
        assert reserved(gateway, "small") == 1024 + 30
        await socket.send_json(ask(max_output_tokens=70))
        await until(socket, "response.created")
        assert reserved(gateway, "small") == 1024 + 70
        await received(upstream, 500, 30)
    eventually(lambda: reserved(gateway, "small") == 0)


async def test_a_refused_response_gives_back_what_it_asked_for(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    async with session(gateway, "refused") as socket:
        await received(upstream, 500)
        await socket.send_json(ask(max_output_tokens=60, refused=True))
        await until(socket, "error")
        eventually(lambda: reserved(gateway, "refused") == 1024 + 500)
        await received(upstream, 500)


async def test_more_than_the_quota_has_ends_the_session(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    async with session(gateway, "little", "fitted") as socket:
        await socket.send_json(ask(max_output_tokens=5000))
        assert (await until(socket, "error"))["error"]["code"] in ("quota_too_small", "insufficient_quota")
        assert await close_code(socket) == 1008
    eventually(lambda: reserved(gateway, "little") == 0)


async def test_a_session_gets_what_the_quota_has_left(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    upstream.usage = {"input_tokens": 40, "output_tokens": 60, "total_tokens": 100}
    async with session(gateway, "little", "fitted") as socket:
        await received(upstream, 176)
        assert reserved(gateway, "little") == 1200
        await socket.send_json(ASK)
        assert [(await socket.receive_json(timeout=10))["type"] for _ in range(4)][-1] == "response.done"
        await received(upstream, 176, 76)
        assert reserved(gateway, "little") == 1100


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"max_output_tokens": "100"}, "invalid_type"),
        ({"max_output_tokens": 1.5}, "invalid_type"),
        ({"max_output_tokens": True}, "invalid_type"),
        ({"max_output_tokens": 0}, "integer_below_min_value"),
        ({"max_output_tokens": 5, "max_response_output_tokens": 6}, "duplicate_parameter"),
        ({"max_tokens": "5"}, "invalid_type"),
        ({"max_output_tokens": 5, "max_tokens": 6}, "duplicate_parameter"),
    ],
)
async def test_a_limit_that_may_be_read_differently_is_not_sent_on(
    gateway: Gateway, upstream: RealtimeUpstream, settings: dict[str, Any], code: str
) -> None:
    async with session(gateway) as socket:
        for event in (update(**settings), ask(**settings)):
            await socket.send_json(event)
            assert (await until(socket, "error"))["error"]["code"] == code
    assert upstream.seen == []


def test_reports_of_qwen_omni_have_other_names() -> None:
    """Alibaba, Model Studio: `response.done` in the server events."""
    usage = formats.reported({
        "total_tokens": 377, "input_tokens": 336, "output_tokens": 41, "server_tool_use": {"web_search_requests": 2},
        "input_tokens_details": {"text_tokens": 228, "audio_tokens": 108},
        "output_tokens_details": {"text_tokens": 9, "audio_tokens": 32},
    })  # fmt: skip
    assert usage is not None
    assert usage[:2] == (336, 41)
    assert dict(usage.more) == {"web_searches": 2, "audio_in": 108, "audio_out": 32}


async def test_the_beta_has_another_name_for_it(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    protocols = ("realtime", "openai-beta.realtime-v1")
    async with session(gateway, "capped", protocols=protocols):
        eventually(lambda: upstream.seen)
    (event,) = upstream.seen
    assert event["session"] == {"max_response_output_tokens": 40}


async def test_a_session_that_transcribes_has_no_limit(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    async with session(gateway, "capped", query="&intent=transcription") as socket:
        await socket.send_json(SILENT)
        eventually(lambda: upstream.seen)
    assert upstream.seen == [SILENT]


@pytest.mark.parametrize(
    "query", ["&x=intent=transcription", "&intent=transcription&intent=conversation", "&intent=transcriptions"]
)
async def test_another_session_has_its_limit(gateway: Gateway, upstream: RealtimeUpstream, query: str) -> None:
    async with session(gateway, "capped", query=query):
        eventually(lambda: upstream.seen)
    (event,) = upstream.seen
    assert event["session"]["max_output_tokens"] == 40


async def test_an_upstream_that_takes_no_limit(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    upstream.takes_limits = False
    async with session(gateway, "plain") as socket:
        await received(upstream, 500)
        await socket.send_json(ASK)
        assert (await socket.receive_json(timeout=10))["type"] == "response.created"
        await until(socket, "response.done")
        await received(upstream, 500)
    async with session(gateway, "capped") as socket:
        assert (await until(socket, "error"))["error"]["code"] == "output_limit_not_supported"
        assert await close_code(socket) == 1008
