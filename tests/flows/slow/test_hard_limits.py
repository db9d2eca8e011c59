"""What a gateway takes upon itself at once: calls, bytes, connections; and whom it believes to be calling."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gateway.web.http_guard.client_connection import RESTED_S
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, Wire, ok_json
from tests.flows import gateway_process as scenery
from tests.flows.client import Raw
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, secret, settings

CALLS = 3
ROOM = 300_000
LARGEST = 200_000
PROXIED = {"trusted_proxies": ["127.0.0.1/32", "10.1.0.0/16"]}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    server = {
        "max_in_flight": CALLS, "max_buffered_bytes": ROOM, "max_request_bytes": LARGEST, "client_head_timeout_s": 1,
    } | PROXIED  # fmt: skip
    keys = [key("alice"), key("inside", ips=["192.0.2.0/24", "2001:db8::/32"]), key("next", ips=["127.0.0.1/32"])]
    return start_shared_gateway(settings(shared_upstream.url, server=server, keys=keys))


def body(size: int) -> bytes:
    """A call that is so long."""
    plain = json.dumps({"model": COMPLETIONS, "prompt": ""}).encode()
    return plain.replace(b'""', b'"' + b"x" * (size - len(plain)) + b'"')


def held(gate: threading.Event) -> Behaviour:
    """An answer that waits for the gate."""

    async def behaviour(wire: Wire) -> None:
        while not gate.is_set():  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(0.01)
        await wire.write(WHOLE)

    return behaviour


WHOLE = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 29\r\n\r\n{"choices": [{"text": "Hi"}]}'


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def test_calls_beyond_max_in_flight_are_sent_away(
    gateway: Gateway, upstream: ScriptedUpstream, gate: threading.Event
) -> None:
    upstream.answer_with(always=held(gate))
    with ExitStack() as stack:
        calls = [stack.enter_context(gateway.connect()) for _ in range(CALLS)]
        for call in calls:
            call.post("/v1/completions", body(100), secret("alice"))
        eventually(lambda: upstream.hits == CALLS)
        surplus = gateway.complete()
        assert surplus.refusal == (503, "server_error", None, "too_many_calls")
        assert int(surplus.headers["retry-after"]) > 0
        assert gateway.get("/healthz", key=None).status == 200
        calls.pop().close()  # a plain answer is read to its end for its usage, but its client is gone
        eventually(lambda: gateway.line(path="/v1/completions", status=503))
        gate.set()
        assert [call.read_answer().status for call in calls] == [200] * (CALLS - 1)
    eventually(lambda: gateway.complete().status == 200)
    assert gateway.metric("gateway_rejections_total", reason="too_many_calls") == 1


def test_places_are_given_back_however_calls_end(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    for _ in range(3 * CALLS):
        gateway.complete(n=200)
        gateway.complete("nobody")
        gateway.post("/v1/completions", body(LARGEST + 1))
        gateway.post("/v1/completions", b" " * (LARGEST // 2))
        with gateway.connect() as client:
            client.send(
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n".encode()
            )
            client.send(b"Content-Type: application/json\r\nContent-Length: 150000\r\n\r\n{")
    eventually(lambda: gateway.metric("gateway_in_flight_requests") == 0)
    assert gateway.complete().status == 200
    assert gateway.post("/v1/completions", body(LARGEST)).status == 200


def test_bodies_beyond_the_room_are_sent_away(
    gateway: Gateway, upstream: ScriptedUpstream, gate: threading.Event
) -> None:
    """Room is taken by what has come, not by what is announced."""
    upstream.answer_with(always=ok_json())
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n"
    head += "Content-Type: application/json\r\n"
    with gateway.connect() as first, gateway.connect() as second:
        first.send(f"{head}Content-Length: {LARGEST}\r\n\r\n".encode())
        eventually(lambda: gateway.metric("gateway_in_flight_requests") == 1)
        assert gateway.post("/v1/completions", body(LARGEST)).status == 200
        first.send(body(LARGEST)[:-1])
        surplus = eventually(
            lambda: (answer := gateway.post("/v1/completions", body(LARGEST))).status == 503 and answer
        )
        assert surplus.refusal == (503, "server_error", None, "buffers_full")
        assert int(surplus.headers["retry-after"]) > 0
        second.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        second.send(b"4e20\r\n" + b" " * 20_000 + b"\r\n")
        assert second.read_answer().refusal == (503, "server_error", None, "buffers_full")
        assert gateway.complete("next").status == 200
        first.send(body(LARGEST)[-1:])
        assert first.read_answer().status == 200
    assert gateway.post("/v1/completions", body(LARGEST)).status == 200


def test_answers_take_room_until_they_are_taken(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """They are paid for, and so not sent away themselves, however large."""
    long = ok_json({"choices": [{"text": "x" * 30_000_000}]})
    upstream.answer_with(long, ok_json(), ok_json())
    with gateway.connect() as slow:
        slow.post("/v1/completions", body(100), secret("alice"))
        eventually(lambda: gateway.complete(n=200).status == 503)
        assert gateway.post("/v1/completions", body(100)).error["code"] == "buffers_full"
        left = int(slow.read_head().headers["content-length"]) - len(slow.held)
        while left:
            left -= len(slow.socket.recv(min(left, 1 << 20)))
        eventually(lambda: gateway.complete(n=200).status == 400)
        assert gateway.post("/v1/completions", body(LARGEST)).status == 200


# ---------------------------------------------------------------------------------------------------------- descriptors

FEW = 200
REFUSED = {"too_many_connections", "upstream_busy"}
"""A newcomer at the door; one of many that came in together, when its upstream is dialled."""


@pytest.fixture
def cramped(
    start_gateway: StartsGateways, shared_upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> Gateway:
    """May open few descriptors, and so may its workers."""
    plain = scenery.command
    limited = ["sh", "-c", f'ulimit -n {FEW}; exec "$@"', "sh"]
    monkeypatch.setattr(scenery, "command", lambda *arguments: [*limited, *plain(*arguments)])
    return start_gateway(settings(shared_upstream.url, server={"client_head_timeout_s": 2}))


def crowd(gateway: Gateway, count: int, say: Callable[[Raw], None]) -> list[Raw]:
    """So many connections, each of which says this; those that the gateway would not have are missing."""
    found = []
    for _ in range(count):
        client = Raw(gateway.port)
        found.append(client)
        try:
            say(client)
        except ConnectionError:
            found.pop().close()
    return found


def test_connections_that_rest_make_room_for_those_that_ask(cramped: Gateway, upstream: ScriptedUpstream) -> None:
    """Silent ones and kept-alive ones, far more than there are descriptors."""
    upstream.answer_with(always=ok_json())

    def ask(client: Raw) -> None:
        client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.read_answer().status == 200

    clients = crowd(cramped, FEW, lambda client: None)
    try:
        for _ in range(4):
            time.sleep(2 * RESTED_S)
            clients += crowd(cramped, FEW // 4, ask)
        assert len(clients) == 2 * FEW
        assert cramped.complete().status == 200
    finally:
        for client in clients:
            client.close()
    assert cramped.complete().status == 200


def test_when_all_descriptors_are_busy_newcomers_get_503(
    cramped: Gateway, upstream: ScriptedUpstream, gate: threading.Event
) -> None:
    upstream.answer_with(always=held(gate))
    with ExitStack() as stack:
        clients = [stack.enter_context(client) for client in crowd(cramped, FEW, begin_call)]
        refused = eventually(lambda: [client for client in clients if has_answer(client)])
        assert {client.read_answer().error["code"] for client in refused[:3]} <= REFUSED
        gate.set()
        served = [client for client in clients[:20] if client not in refused]
        assert served
        assert {client.read_answer().status for client in served} == {200}
    eventually(lambda: is_served(cramped))
    assert cramped.metric("gateway_rejections_total", reason="too_many_connections") > 0


def is_served(gateway: Gateway) -> bool:
    """Whether a new connection is served; while all workers are busy it may also be refused."""
    try:
        return gateway.complete().status == 200
    except ConnectionError:
        return False


def begin_call(client: Raw) -> None:
    client.post("/v1/completions", body(100), secret("alice"))


def has_answer(client: Raw) -> bool:
    client.socket.setblocking(False)
    try:
        client.held += client.socket.recv(65536)
    except BlockingIOError:
        pass
    except ConnectionError:
        return False
    finally:
        client.socket.settimeout(15)
    return bool(client.held)


# ------------------------------------------------------------------------------------------------------- who is calling


@pytest.mark.parametrize(
    ("forwarded", "who", "status"),
    [
        ([], "inside", 401),
        ([], "next", 200),
        (["192.0.2.7"], "inside", 200),
        (["192.0.2.7"], "next", 401),
        (["192.0.2.7, 198.51.100.1"], "inside", 401),
        (["198.51.100.1", "192.0.2.7"], "inside", 200),
        (["192.0.2.7, 10.1.2.3"], "inside", 200),
        (["127.0.0.1, 198.51.100.1"], "next", 401),
        (["2001:db8::5"], "inside", 200),
        (["[2001:db8::5]:443"], "inside", 200),
        (["192.0.2.7:99"], "inside", 200),
        (["192.0.2.7, unknown"], "inside", 401),
        (["unknown"], "next", 401),
        (["\u0661"], "next", 401),
        ([""], "next", 401),
    ],
)
def test_a_trusted_proxy_names_the_client(
    gateway: Gateway, upstream: ScriptedUpstream, forwarded: list[str], who: str, status: int
) -> None:
    with gateway.connect() as client:
        lines = [f"X-Forwarded-For: {value}" for value in forwarded]
        head = ["GET /v1/models HTTP/1.1", "Host: x", f"Authorization: Bearer {secret(who)}", *lines, "", ""]
        client.send("\r\n".join(head).encode())
        assert client.read_answer().status == status


def test_access_line_names_the_client_and_not_the_proxy(gateway: Gateway) -> None:
    answer = gateway.get("/v1/nothing", headers={"X-Forwarded-For": "1.1.1.1, 198.51.100.1, 10.1.0.9"})
    assert gateway.line(id=answer.id)["remote"] == "198.51.100.1"


def test_an_untrusted_proxy_is_not_believed(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(
        settings(upstream.url, server={"trusted_proxies": ["10.0.0.0/8"]}, keys=[key("k", ips=["10.0.0.0/8"])])
    )
    for name in ("X-Forwarded-For", "X-Real-IP", "Forwarded", "True-Client-IP", "CF-Connecting-IP", "X-Client-IP"):
        value = "for=10.0.0.1" if name == "Forwarded" else "10.0.0.1"
        answer = gateway.get("/v1/models", key="k", headers={name: value})
        assert answer.refusal == (401, "invalid_request_error", None, "ip_not_authorized")
        assert gateway.line(id=answer.id)["remote"] == "127.0.0.1"
