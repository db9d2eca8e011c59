"""nginx and Caddy with TLS in front of a gateway, each with its file from deploy/."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.websocket_connection_options import WebSocketConnectionOptions

from gateway.config.sections import Timeouts
from gateway.web.server import KEEP_ALIVE_S
from tests.conftest import ScriptedUpstream
from tests.deploy.examples import DEPLOY, load, make_secrets, settle
from tests.deploy.nginx import is_up, nginx
from tests.deploy.programs import Running, on_some_port, run
from tests.fakes.realtime import RealtimeUpstream
from tests.fakes.scripted import CHUNKED, Authority, Wire, chunk, event, ok_json, until
from tests.flows.client import TIMEOUT_S, Answer, Raw
from tests.flows.gateway_process import Process, eventually

NAME, ADMIN_NAME = "gateway.example.com", "gateway-admin.example.com"
CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello"}]}
HERE, THERE = "127.0.0.1", "127.0.0.2" if os.uname().sysname == "Linux" else "127.0.0.1"
"""The proxy's address and the client's; only Linux has all of 127.0.0.0/8 without configuration."""

PATIENCE_S = 40.0


class Secured(Raw):
    """A TLS connection from the client's own address."""

    def __init__(self, port: int, ca_file: Path, name: str = NAME) -> None:
        self.name = name
        plain = socket.create_connection((HERE, port), timeout=TIMEOUT_S, source_address=(THERE, 0))
        context = ssl.create_default_context(cafile=str(ca_file))
        self.socket = context.wrap_socket(plain, server_hostname=name)
        self.held = b""

    def send(self, data: bytes) -> None:
        super().send(data.replace(b"\r\nHost: gateway\r\n", f"\r\nHost: {self.name}\r\n".encode(), 1))

    def go_on_sending(self) -> None:
        """Sends more of a body until an answer begins, as clients do. (Caddy answers after the next piece.)"""
        for _ in range(int(TIMEOUT_S / 0.05)):
            try:
                self.socket.settimeout(0.05)
                self.held += self.socket.recv(65536)
                break
            except TimeoutError:
                self.socket.settimeout(TIMEOUT_S)
                self.send(b" " * 8192)
        self.socket.settimeout(TIMEOUT_S)


@dataclass
class Place:
    """A gateway behind a proxy."""

    gateway: Process
    gateway_port: int
    port: int
    ca_file: Path
    secret: str

    def connect(self, name: str = NAME) -> Secured:
        return Secured(self.port, self.ca_file, name)

    def post(self, members: dict[str, Any], *more: str, secret: str | None = None) -> Answer:
        """A chat call, retried if the gateway asks for it, as the SDKs do: the machine may be slow."""

        def ask() -> Answer | None:
            with self.connect() as raw:
                raw.post("/v1/chat/completions", json.dumps(members).encode(), secret or self.secret, "1.1", *more)
                answer = raw.read_answer()
            return None if answer.status == 503 else answer

        answered = eventually(ask, PATIENCE_S)
        assert answered is not None
        return answered

    def get(self, path: str, name: str = NAME) -> int:
        with self.connect(name) as raw:
            raw.send(f"GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            return raw.read_head().status

    def lines(self) -> list[dict[str, Any]]:
        whole = self.gateway.stdout.rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


@contextmanager
def caddy(folder: Path, gateway_port: int, admin_port: int, certificate: Path) -> Iterator[int]:
    def site(name: str, port: int) -> dict[str, str]:
        return {f"\n{name} {{\n": f"\nhttps://{name}:{port} {{\n\tbind {HERE}\n\ttls {certificate} {certificate}\n"}

    def start(port: int) -> Running:
        calls, inside = (f" {HERE}:{gateway_port} {{", f" {HERE}:{admin_port} {{")
        settled = settle((DEPLOY / "Caddyfile").read_text(), {" 127.0.0.1:8080 {": calls, **site(NAME, port)})
        settled += settle(
            (DEPLOY / "Caddyfile-admin").read_text(),
            {" 127.0.0.1:8080 {": calls, " 127.0.0.1:8081 {": inside, **site(ADMIN_NAME, port)},
        )
        (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{settled}")
        return Running(folder, ["caddy", "run", "--config", "Caddyfile"], env={"HOME": str(folder)})

    with on_some_port(start, is_up) as (port, _):
        yield port


@contextmanager
def nginx_alone(folder: Path, gateway_port: int, admin_port: int, certificate: Path) -> Iterator[int]:
    with nginx(folder, [gateway_port], certificate, admin_port) as front:
        yield front.port


FRONTS: dict[str, Callable[[Path, int, int, Path], Any]] = {"nginx": nginx_alone, "caddy": caddy}


@pytest.fixture(scope="module")
def sessions() -> Iterator[RealtimeUpstream]:
    """An upstream of the Realtime API."""
    with RealtimeUpstream() as made:
        yield made


@pytest.fixture(scope="module")
def behind(
    shared_upstream: ScriptedUpstream, sessions: RealtimeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Process, int, str]]:
    """The gateway of deploy/gateway.yaml, its port, and the secret of its key."""
    folder = tmp_path_factory.mktemp("gateway")
    secrets = make_secrets(folder / "secrets")
    realtime = f"{{base_url: {sessions.url}, api_key: sk-upstream, capabilities: {{realtime: true}}}}"
    price = "{input: 4, output: 16, audio_in: 32, audio_out: 64, image_in: 5}"
    model = f"{{endpoints: [realtime], routes: [{{upstream: sessions}}], price: {price}}}"
    places = {
        "\nmodels:\n": f"  sessions: {realtime}\n\nmodels:\n  gpt-realtime: {model}\n",
        "/etc/gateway/secrets/": f"{secrets}/",
        "https://api.openai.com/v1": shared_upstream.url,
        "listen: 127.0.0.1:8081": "listen: 127.0.0.1:0",
    }
    (folder / "gateway.yaml").write_text(settle((DEPLOY / "gateway.yaml").read_text(), places))
    gateway = Process(folder, "serve", "--config", "gateway.yaml", "--port", "0", "--workers", "1")
    try:
        port = int(gateway.wait_for(r"serves http://127\.0\.0\.1:(\d+) with", PATIENCE_S)[1])
        yield gateway, port, (secrets / "first_key").read_text()
    finally:
        gateway.end()


@pytest.fixture(scope="module", params=FRONTS)
def place(
    request: pytest.FixtureRequest, behind: tuple[Process, int, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(request.param)
    authority = Authority(folder)
    gateway, gateway_port, secret = behind
    admin_port = int(gateway.wait_for(r"metrics at http://127\.0\.0\.1:(\d+)", PATIENCE_S)[1])
    certificate = authority.server_file(NAME, ADMIN_NAME)
    with FRONTS[request.param](folder, gateway_port, admin_port, certificate) as port:
        yield Place(gateway, gateway_port, port, authority.ca_file, secret)


# ------------------------------------------------------------------------------------------------------------- tests


def test_a_stream_arrives_event_by_event(place: Place, upstream: ScriptedUpstream) -> None:
    """The upstream sends the next word after the client has the last one: with buffering anywhere, the test fails."""
    words = ["One", "two", "three"]
    has_arrived = [threading.Event() for _ in words]

    async def one_by_one(wire: Wire) -> None:
        await wire.write(CHUNKED)
        for word, arrived in zip(words, has_arrived, strict=True):
            await wire.write(chunk(event(a_chunk(word))))
            await until(arrived.is_set, timeout_s=TIMEOUT_S)
        await wire.write(chunk(event(a_chunk(None))) + chunk(event("[DONE]")) + b"0\r\n\r\n")

    upstream.answer_with(one_by_one)
    with place.connect() as raw:
        raw.post("/v1/chat/completions", json.dumps({**CHAT, "stream": True}).encode(), place.secret)
        head = raw.read_head()
        assert head.status == 200
        assert head.headers["content-type"].startswith("text/event-stream")
        for word, arrived in zip(words, has_arrived, strict=True):
            assert word.encode() in raw.read_until(b"\n\n")
            arrived.set()
        raw.read_until(b"[DONE]\n\n")


def a_chunk(word: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": word} if word else {}, "finish_reason": None if word else "stop"}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini", "choices": [choice]}


async def test_a_realtime_session_goes_through_tls(place: Place, sessions: RealtimeUpstream) -> None:
    context = ssl.create_default_context(cafile=str(place.ca_file))
    options: WebSocketConnectionOptions = {"host": HERE, "port": place.port, "ssl": context, "server_hostname": NAME}
    sessions.reset()
    async with (
        openai.AsyncOpenAI(base_url=f"https://{NAME}/v1", api_key=place.secret) as client,
        client.realtime.connect(model="gpt-realtime", websocket_connection_options=options) as connection,
    ):
        for _ in range(2):
            await connection.response.create()
            async for each in connection:
                if each.type == "response.done":
                    break
    assert [each["type"] for each in sessions.seen if each["type"] != "session.update"] == ["response.create"] * 2
    assert "x-forwarded-for" not in {name.lower() for name in sessions.requests[0][1]}


def test_other_protocols_are_not_passed_on(place: Place) -> None:
    with place.connect() as raw:
        lines = [
            "GET /v1/models HTTP/1.1", f"Host: {NAME}", f"Authorization: Bearer {place.secret}",
            "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA", "", "",
        ]  # fmt: skip
        raw.send("\r\n".join(lines).encode())
        assert raw.read_answer().status == 200


def test_the_gateway_sees_the_clients_own_address_and_believes_no_client(
    place: Place, upstream: ScriptedUpstream
) -> None:
    answer = place.post(CHAT, "X-Forwarded-For: 203.0.113.9", secret="sk-somebody-who-has-no-key-here")
    assert answer.status == 401
    line = eventually(lambda: next((line for line in place.lines() if line["id"] == answer.id), None), PATIENCE_S)
    assert line is not None
    assert line["remote"] == THERE


def test_what_operators_see_stays_inside(place: Place) -> None:
    for path in ("/metrics", "/admin/api/usage", "/dashboard", "/healthz", "/readyz"):
        assert place.get(path) == 404, path
    assert place.get("/v1/models") == 401


def test_the_dashboard_is_reached_at_a_host_name_of_its_own(place: Place) -> None:
    """With nginx-admin.conf and Caddyfile-admin."""
    expected = {
        "/": 302, "/dashboard": 200, "/dashboard/app.js": 200, "/docs": 200, "/admin/api/usage": 401, "/v1/models": 401,
        "/metrics": 404, "/healthz": 404, "/readyz": 404,
    }  # fmt: skip
    assert {path: place.get(path, ADMIN_NAME) for path in expected} == expected


def test_a_body_that_is_too_long_is_refused_in_openais_words(place: Place) -> None:
    longest = load("gateway.yaml")["server"]["max_request_bytes"]
    with place.connect() as raw:
        lines = [
            "POST /v1/completions HTTP/1.1", f"Host: {NAME}", f"Authorization: Bearer {place.secret}",
            "Content-Type: application/json", f"Content-Length: {longest + 1}", "", "",
        ]  # fmt: skip
        raw.send("\r\n".join(lines).encode())
        raw.go_on_sending()
        assert raw.read_answer().error["message"].startswith("Maximum content size limit")


def test_a_body_as_long_as_the_gateway_takes_goes_through(place: Place, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    text = "x" * (2 * 2**20)  # more than nginx's default limit
    answer = place.post({**CHAT, "messages": [{"role": "user", "content": text}]})
    assert answer.status == 200, answer.body


if Path("/proc/net/tcp").exists():

    def connections_to(port: int) -> set[str]:
        """The remote addresses of established connections to this port."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"}

    def test_connections_to_the_gateway_are_kept(place: Place, upstream: ScriptedUpstream) -> None:
        upstream.answer_with(always=ok_json())
        assert place.post(CHAT).status == 200
        kept = eventually(lambda: connections_to(place.gateway_port), PATIENCE_S)
        for _ in range(2):
            assert place.post(CHAT).status == 200
        assert connections_to(place.gateway_port) & kept
        assert len(connections_to(place.gateway_port)) == len(kept)


@pytest.mark.parametrize("name", ["Caddyfile", "Caddyfile-admin"])
def test_caddy_has_nothing_to_say_about_its_file(name: str) -> None:
    formatted = run("caddy", "fmt", DEPLOY / name)
    assert formatted.stdout == (DEPLOY / name).read_text()


def test_time_outs_are_longer_than_an_upstreams_and_shorter_than_our_own() -> None:
    """A proxy times out after the gateway does, and drops an idle connection before the gateway closes it."""
    nginx_file, caddy_file = (DEPLOY / "nginx.conf").read_text(), (DEPLOY / "Caddyfile").read_text()
    for text, word in ((nginx_file, "proxy_read_timeout "), (caddy_file, "response_header_timeout ")):
        assert float(text.split(word)[1].split("s")[0]) > Timeouts().total_s
    for text, word in ((nginx_file, "keepalive_timeout "), (caddy_file, "keepalive ")):
        assert float(text.split(word)[1].split("s")[0]) < KEEP_ALIVE_S
