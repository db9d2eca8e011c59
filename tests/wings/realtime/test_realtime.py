"""Realtime sessions through a whole gateway: what is checked, passed on, counted and refused, and how sessions end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.conftest import StartsGateways
from tests.fakes.realtime import USAGE, RealtimeUpstream
from tests.fakes.redis_servers import RedisServer
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, eventually, key, secret, settings

MODEL = "gpt-realtime"
PRICE = {"input": 4, "cached_input": 0.4, "output": 16, "audio_in": 32, "audio_out": 64, "image_in": 5}
COST = (30 * 4 + 20 * 0.4 + 50 * 32 + 10 * 16 + 20 * 64) / 1e6
"""Of `USAGE`: 100 in, of which 20 cached and 50 more audio; 30 out, of which 20 audio."""
ASK = {"type": "response.create", "event_id": "event_mine"}
MODELS = {
    MODEL: {
        "endpoints": ["realtime", "chat"], "routes": [{"upstream": "main", "model": "gpt-realtime-2025-08-28"}],
        "max_output_tokens": 500, "price": PRICE,
    },
    "whisper-1": {"endpoints": ["transcriptions"], "routes": [{"upstream": "main"}],
                  "price": {"audio_per_minute": 0.006}},
    "elsewhere": {"endpoints": ["realtime"], "routes": [{"upstream": "plain"}], "price": PRICE},
    "gpt-4o": {"endpoints": ["chat"], "routes": [{"upstream": "main"}], "max_output_tokens": 10, "price": PRICE},
    "brief": {"endpoints": ["realtime"], "routes": [{"upstream": "brief"}], "price": PRICE},
    "bounded": {"endpoints": ["realtime"], "routes": [{"upstream": "main"}], "limits": {"max_tokens": 9}},
    "fitted": {"endpoints": ["realtime"], "routes": [{"upstream": "main"}], "max_output_tokens": 5000,
               "min_output_tokens": 50},
    "either": {"endpoints": ["realtime"], "routes": [{"upstream": "dead"}, {"upstream": "tight", "priority": 2}]},
    "unpriced": {"endpoints": ["realtime"], "routes": [{"upstream": "main"}], "max_output_tokens": 500},
}  # fmt: skip
KEYS = [
    key("alice"),
    key("narrow", models=["gpt-4o", MODEL]),
    key("single", max_parallel=1),
    key("spent", quotas=[{"requests": 1, "per": "month"}]),
    key("small", quotas=[{"tokens": 1700, "per": "month"}]),
    key("rich", quotas=[{"usd": 100, "per": "month"}]),
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(upstream: RealtimeUpstream) -> None:
    upstream.reset()


def configuration(upstream: RealtimeUpstream, **more: Any) -> dict[str, Any]:
    able = {"capabilities": {"realtime": True}}
    upstreams = {
        "main": able,
        "plain": {"base_url": upstream.url},
        "dead": {"base_url": "http://127.0.0.1:1/v1"} | able,
        "tight": {"base_url": upstream.url, "limits": {"parallel": 1}} | able,
        "brief": {"base_url": upstream.url, "timeouts": {"total_s": 1}} | able,
    }
    return settings(upstream.url, keys=KEYS, models=MODELS, upstreams=upstreams, **more)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, upstream: RealtimeUpstream) -> Gateway:
    return start_shared_gateway(configuration(upstream))


Socket = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def session(
    gateway: Gateway, who: str = "alice", model: str = MODEL, query: str = "", **more: Any
) -> AsyncIterator[Socket]:
    """A session whose `session.created` has come."""
    given = {"headers": {"Authorization": f"Bearer {secret(who)}"}} | more
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{gateway.url}/v1/realtime?model={model}{query}", max_msg_size=0, **given) as socket,
    ):
        assert (await socket.receive_json(timeout=10))["type"] == "session.created"
        yield socket


async def until(socket: Socket, kind: str) -> dict[str, Any]:
    """The next event of this type."""
    while True:
        event: dict[str, Any] = await socket.receive_json(timeout=10)
        if event["type"] == kind:
            return event


async def close_code(socket: Socket) -> int | None:
    """What the gateway closes it with."""
    while not (await socket.receive(timeout=10)).type.name.startswith("CLOSE"):
        pass
    return socket.close_code


def records(gateway: Gateway, who: str, known: set[str], count: int) -> list[dict[str, Any]]:
    """The new records of a key, the oldest first; the session's own has no number."""
    found = eventually(
        lambda: (rows := [row for row in gateway.calls(who) if row["id"] not in known])[count - 1 :] and rows
    )
    return sorted(found, key=lambda row: row["id"])


@pytest.fixture
def known(gateway: Gateway) -> set[str]:
    return {row["id"] for row in gateway.calls(limit=1000)}


async def refused(gateway: Gateway, path: str, who: str | None = "alice", **more: Any) -> tuple[int, Any]:
    """Status and error object of a handshake that opens nothing."""
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} | more  # fmt: skip
    got = await asyncio.to_thread(gateway.get, path, key=who, headers=headers)
    return got.status, got.error


# ------------------------------------------------------------------------------------------------------- passed on


@pytest.mark.parametrize("kind", [["x"], {"a": 1}, [], None, 1])
async def test_an_event_of_no_known_type_is_passed_on(gateway: Gateway, kind: object) -> None:
    async with session(gateway) as socket:
        for event in ({"type": kind, "delta": "x"}, {"type": kind}):
            await socket.send_json({"type": "test.say", "event": event})
            assert await socket.receive_json(timeout=10) == event
        await socket.send_json(ASK)
        assert (await until(socket, "response.done"))["response"]["usage"] == USAGE


async def test_events_are_passed_on_and_each_response_is_charged(
    gateway: Gateway, upstream: RealtimeUpstream, known: set[str]
) -> None:
    odd = '{ "type":"conversation.item.create",  "item": {"content": "w\\u00f6rd"} }'
    async with session(gateway) as socket:
        await socket.send_str(odd)
        for _ in range(2):
            await socket.send_json(ASK)
            assert (await until(socket, "response.output_text.delta"))["delta"] == "Hel"
            assert (await until(socket, "response.done"))["response"]["usage"] == USAGE
    assert upstream.texts[0] == odd
    ((path, headers),) = upstream.requests
    assert path == "/v1/realtime?model=gpt-realtime-2025-08-28"
    assert headers["Authorization"] == f"Bearer {UPSTREAM_KEY}"
    of_session, *responses = records(gateway, "alice", known, 3)
    assert (of_session["prompt_tokens"], of_session["cost_usd"], of_session["ended"]) == (0, 0, "client_gone")
    assert [row["id"] for row in responses] == [f"{of_session['id']}-1", f"{of_session['id']}-2"]
    for row in responses:
        counts = (row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"], row["units"])
        assert counts == (100, 30, 20, {"audio_in": 50, "audio_out": 20, "cached_audio": 10})
        assert (row["usage_source"], row["ended"], row["endpoint"]) == ("reported", "done", "realtime")
        assert row["cost_usd"] == pytest.approx(COST)
    assert eventually(lambda: upstream.close_codes) == [1000]


async def test_a_response_that_no_event_asked_for_is_charged(
    gateway: Gateway, upstream: RealtimeUpstream, known: set[str]
) -> None:
    async with session(gateway) as socket:
        await socket.send_json({"type": "input_audio_buffer.commit"})
        await until(socket, "response.done")
    assert [row["prompt_tokens"] for row in records(gateway, "alice", known, 2)] == [0, 100]


async def test_a_browser_gives_its_key_as_a_subprotocol_which_goes_no_further(
    gateway: Gateway, upstream: RealtimeUpstream
) -> None:
    protocols = ("realtime", f"openai-insecure-api-key.{secret('alice')}")
    async with session(gateway, headers={}, protocols=protocols) as socket:
        assert socket.protocol == "realtime"
        await socket.send_json(ASK)
        await until(socket, "response.done")
    assert upstream.requests[0][1]["Sec-WebSocket-Protocol"] == "realtime"
    assert secret("alice") not in str(upstream.requests)
    gateway.check_logs()


async def test_azures_key_header_and_long_messages(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    async with session(gateway, headers={"api-key": secret("alice")}) as socket:
        long = {"type": "input_audio_buffer.append", "audio": "A" * 5_000_000}
        await socket.send_json(long)
        await socket.send_json(ASK)
        await until(socket, "response.done")
    assert upstream.seen[0] == long


async def test_a_transcription_is_charged_by_its_own_model(
    gateway: Gateway, upstream: RealtimeUpstream, known: set[str]
) -> None:
    update = {"session": {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}}
    async with session(gateway) as socket:
        await socket.send_json({"type": "session.update", **update})
        usage = {"type": "duration", "seconds": 30}
        await socket.send_json({"type": "conversation.item.create", "transcribed": usage})
        await until(socket, "conversation.item.input_audio_transcription.completed")
    _, row = records(gateway, "alice", known, 2)
    assert (row["units"], row["cost_usd"]) == ({"audio_ms": 30000}, pytest.approx(0.003))


# --------------------------------------------------------------------------------------------- refused by an event


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        ('{"type": "x", "type": "response.create"}', "duplicate_parameter"),
        ('{"type": "session.update", "session": {"model": "gpt-4o"}}', "model_change_not_allowed"),
        ('{"type": "session.update", "session": {"model": "\\ud800"}}', "model_change_not_allowed"),
        ('{"type": "session.update", "session": {"mod\\u0065l": "gpt-4o"}}', "model_change_not_allowed"),
        ('{"type": "response.create", "response": {"x": {"model": "no-such-model"}}}', "model_not_found"),
        ('{"type": "response.create", "response": {"x": {"model": "elsewhere"}}}', "unsupported_value"),
    ],
)
async def test_what_a_session_may_not_ask_for_is_an_error_event(
    gateway: Gateway, upstream: RealtimeUpstream, said: str, code: str
) -> None:
    async with session(gateway) as socket:
        await socket.send_str(said)
        assert (await until(socket, "error"))["error"]["code"] == code
        await socket.send_bytes(b"sound")
        assert "text" in (await until(socket, "error"))["error"]["message"]
        await socket.send_json(ASK)
        await until(socket, "response.done")
    assert upstream.seen == [ASK]


async def test_the_model_of_the_session_may_be_repeated(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    async with session(gateway) as socket:
        await socket.send_json({"type": "session.update", "session": {"model": MODEL, "tools": [{"model": "x"}]}})
        await until(socket, "session.updated")
    assert upstream.seen[0]["session"] == {"model": "gpt-realtime-2025-08-28", "tools": [{"model": "x"}]}


# ---------------------------------------------------------------------------------------- refused before the upgrade


@pytest.mark.parametrize(
    ("path", "who", "more", "expected"),
    [
        (f"?model={MODEL}", None, {}, (401, None)),
        (f"?model={MODEL}", "nobody", {}, (401, "invalid_api_key")),
        (f"?model={MODEL}", "alice", {"Upgrade": "h2c"}, (400, "websocket_required")),
        (f"?model={MODEL}", "alice", {"Sec-WebSocket-Version": "12"}, (400, "invalid_handshake")),
        (f"?model={MODEL}", "alice", {"Sec-WebSocket-Protocol": "mqtt"}, (400, "unknown_subprotocol")),
        ("", "alice", {}, (400, "missing_required_parameter")),
        (f"?model={MODEL}&model=gpt-4o", "alice", {}, (400, "missing_required_parameter")),
        (f"?model={MODEL}&call_id=rtc_1", "alice", {}, (400, "unsupported_parameter")),
        ("?model=unknown", "alice", {}, (404, "model_not_found")),
        ("?model=elsewhere", "narrow", {}, (404, "model_not_found")),
        ("?model=gpt-4o", "alice", {}, (404, None)),
        ("?model=elsewhere", "alice", {}, (404, None)),
        ("?model=unpriced", "rich", {}, (403, "model_not_priced")),
    ],
)
async def test_is_refused_before_the_upgrade(
    gateway: Gateway, upstream: RealtimeUpstream, path: str, who: str | None, more: dict[str, str], expected: Any
) -> None:
    status, error = await refused(gateway, f"/v1/realtime{path}", who, **more)
    assert (status, error["code"]) == expected
    assert upstream.requests == []


AZURE = f"/openai/realtime?api-version=2025-04-01-preview&deployment={MODEL}"


@pytest.mark.parametrize("path", [AZURE, f"/openai/v1/realtime?model={MODEL}", f"/v1/realtime?model={MODEL}&a=1"])
@pytest.mark.parametrize("other", ["", "&Deployment=elsewhere&MODEL=elsewhere"])
async def test_the_paths_of_azures_clients_name_the_model(
    gateway: Gateway, upstream: RealtimeUpstream, path: str, other: str
) -> None:
    """openai-python, lib/azure.py: `_configure_realtime`. No other name of a model reaches the upstream."""
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{gateway.url}{path}{other}", headers={"api-key": secret("alice")}) as socket,
    ):
        assert (await socket.receive_json(timeout=10))["type"] == "session.created"
    ((sent, _),) = upstream.requests
    assert sent == "/v1/realtime?model=gpt-realtime-2025-08-28" + ("&a=1" if "a=1" in path else "")


@pytest.mark.parametrize(
    "path", [f"{AZURE}&model={MODEL}", f"{AZURE}&deployment=a", "/openai/realtime", f"/v1/realtime?deployment={MODEL}"]
)
async def test_the_model_is_named_once(gateway: Gateway, upstream: RealtimeUpstream, path: str) -> None:
    status, error = await refused(gateway, path)
    assert (status, error["code"], upstream.requests) == (400, "missing_required_parameter", [])


async def test_a_spent_quota_is_refused_before_the_upgrade(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    assert (await asyncio.to_thread(gateway.chat, key="spent")).status == 200
    assert (await refused(gateway, f"/v1/realtime?model={MODEL}", "spent"))[1]["code"] == "insufficient_quota"
    assert upstream.requests == []


@pytest.mark.parametrize(("status", "seen"), [(401, 502), (429, 429), (500, 502), (503, 503), (200, 502), (302, 502)])
async def test_an_upstream_that_opens_nothing_is_an_ordinary_error(
    gateway: Gateway, upstream: RealtimeUpstream, status: int, seen: int, known: set[str]
) -> None:
    upstream.status = status
    fresh = await asyncio.to_thread(gateway.get, "/v1/key")
    assert fresh.status == 200
    got, error = await refused(gateway, f"/v1/realtime?model={MODEL}")
    assert got == seen, error
    assert len(upstream.requests) == 1
    (row,) = records(gateway, "alice", known, 1)
    assert (row["prompt_tokens"], row["completion_tokens"], row["usage_source"]) == (0, 0, "none")


# -------------------------------------------------------------------------------------------------------- the limits


async def test_the_slot_of_a_session_is_held_to_its_end(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    async with session(gateway, "single") as socket:
        await socket.send_json(ASK)
        await until(socket, "response.done")
        assert (await asyncio.to_thread(gateway.chat, key="single")).status == 429
    eventually(lambda: gateway.chat(key="single").status == 200)


async def test_another_route_serves_and_its_slot_is_held(
    gateway: Gateway, upstream: RealtimeUpstream, known: set[str]
) -> None:
    async with session(gateway, model="either") as socket:
        await socket.send_json(ASK)
        await until(socket, "response.done")
        status, error = await refused(gateway, "/v1/realtime?model=either")
        assert (status, error["code"]) == (429, "upstream_rate_limited")
    of_session = next(row for row in records(gateway, "alice", known, 3) if row["status"] == 200)
    assert (of_session["upstream"], of_session["attempts"]) == ("tight", 2)
    async with session(gateway, model="either"):
        pass


async def test_an_idle_session_costs_nothing(gateway: Gateway, upstream: RealtimeUpstream, known: set[str]) -> None:
    async with session(gateway, "small"):
        pass
    (row,) = records(gateway, "small", known, 1)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (0, 0)
    (window,) = gateway.admin("quotas", key="small").json["data"]
    assert (window["used"], window["reserved"]) == (0, 0)


async def spend(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    upstream.usage = USAGE | {"input_tokens": 900, "output_tokens": 500}
    async with session(gateway, "small") as socket:
        await socket.send_json(ASK)
        await until(socket, "response.done")
        error = await until(socket, "error")
        assert (error["error"]["type"], error["error"]["code"]) == ("insufficient_quota", "insufficient_quota")
        assert "quota of your key" in error["error"]["message"]
        assert await close_code(socket) == 1008
    (window,) = gateway.admin("quotas", key="small").json["data"]
    assert (window["used"], window["reserved"]) == (1400, 0)
    assert [event["type"] for event in upstream.seen] == ["session.update", "response.create"]
    assert (await refused(gateway, f"/v1/realtime?model={MODEL}", "small"))[0] == 429


async def test_a_quota_that_is_spent_ends_the_session(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    await spend(gateway, upstream)


async def test_a_quota_in_redis_ends_the_session(
    start_shared_gateway: StartsGateways, upstream: RealtimeUpstream, redis_server: RedisServer
) -> None:
    await spend(start_shared_gateway(configuration(upstream, store={"url": redis_server.url})), upstream)


async def test_a_revoked_key_ends_its_session(
    start_shared_gateway: StartsGateways, upstream: RealtimeUpstream, gateway: Gateway
) -> None:
    made = gateway.send(
        "POST", "/admin/api/keys", {"id": "passing"}, key=None,
        headers={"Authorization": "Bearer admin-token-that-nobody-may-see"},
    )  # fmt: skip
    assert made.status in (200, 201), made
    async with session(gateway, headers={"Authorization": f"Bearer {made.json['secret']}"}) as socket:
        gateway.send(
            "DELETE", "/admin/api/keys/passing", key=None,
            headers={"Authorization": "Bearer admin-token-that-nobody-may-see"},
        )  # fmt: skip
        eventually(lambda: gateway.get("/v1/key", key=None, headers={
            "Authorization": f"Bearer {made.json['secret']}"}).status == 401)  # fmt: skip
        await socket.send_json(ASK)
        assert (await until(socket, "error"))["error"]["code"] == "invalid_api_key"
        assert await close_code(socket) == 1008


# ---------------------------------------------------------------------------------------------------------- the ends


async def test_a_client_that_leaves_inside_a_response_is_charged_an_estimate(
    gateway: Gateway, upstream: RealtimeUpstream, known: set[str]
) -> None:
    upstream.stops_inside = True
    async with session(gateway) as socket:
        await socket.send_json(ASK)
        await until(socket, "response.output_text.delta")
        await until(socket, "response.output_text.delta")
    _, row = records(gateway, "alice", known, 2)
    assert (row["ended"], row["usage_source"], row["truncated"]) == ("client_gone", "estimated", True)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (1024, 2)
    assert eventually(lambda: upstream.close_codes) == [1000]


async def test_a_client_that_is_cut_off_ends_the_session_at_the_upstream(
    gateway: Gateway, upstream: RealtimeUpstream, known: set[str]
) -> None:
    async with session(gateway) as socket:
        await socket.send_json(ASK)
        await until(socket, "response.done")
        transport = socket._response.connection.transport
        transport.abort()
        assert (await asyncio.to_thread(eventually, lambda: upstream.close_codes)) == [1000]
    of_session, _ = records(gateway, "alice", known, 2)
    assert of_session["ended"] == "client_gone"


@pytest.mark.parametrize(
    ("event", "code", "ended"),
    [
        ({"type": "test.close", "code": 1000}, 1000, "done"),
        ({"type": "test.close", "code": 4242}, 4242, "error"),
        ({"type": "test.cut"}, 1011, "error"),
    ],
)
async def test_the_upstreams_close_reaches_the_client(
    gateway: Gateway, upstream: RealtimeUpstream, known: set[str], event: Any, code: int, ended: str
) -> None:
    async with session(gateway) as socket:
        await socket.send_json(event)
        assert await close_code(socket) == code
    (row,) = records(gateway, "alice", known, 1)
    assert row["ended"] == ended


async def test_a_response_without_a_report_is_estimated(
    gateway: Gateway, upstream: RealtimeUpstream, known: set[str]
) -> None:
    upstream.usage = None
    async with session(gateway) as socket:
        await socket.send_json(ASK)
        await until(socket, "response.done")
    _, row = records(gateway, "alice", known, 2)
    assert (row["usage_source"], row["completion_tokens"]) == ("estimated", 2)


async def test_a_session_ends_at_total_s(gateway: Gateway, upstream: RealtimeUpstream) -> None:
    async with session(gateway, model="brief") as socket:
        assert (await until(socket, "error"))["error"]["code"] == "session_expired"
        assert await close_code(socket) == 1001


async def test_a_session_is_closed_when_the_gateway_ends(
    start_shared_gateway: StartsGateways, upstream: RealtimeUpstream
) -> None:
    gateway = start_shared_gateway(
        configuration(upstream, server={"port": 0, "drain_delay_s": 0, "drain_timeout_s": 0.2})
    )
    upstream.stops_inside = True
    async with session(gateway) as socket:
        await socket.send_json(ASK)
        await until(socket, "response.output_text.delta")
        stopping = asyncio.create_task(asyncio.to_thread(gateway.stop))
        assert await close_code(socket) == 1001
        await stopping


def test_the_model_list_names_the_endpoint(gateway: Gateway) -> None:
    assert gateway.get(f"/v1/models/{MODEL}").json["endpoints"] == ["realtime", "chat"]
    assert gateway.get("/v1/models/elsewhere").json["endpoints"] == []
