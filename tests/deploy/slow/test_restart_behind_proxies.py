"""Two gateways behind a proxy are restarted in turn, under load and by SIGTERM alone: no call fails.

The proxies get no new configuration, and do not ask /readyz. Clients are plain HTTP, and repeat nothing.
"""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.deploy.examples import DEPLOY, settle
from tests.deploy.nginx import is_up, nginx
from tests.deploy.programs import Running, on_some_port
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Authority, dead_port
from tests.flows.client import TIMEOUT_S
from tests.flows.gateway_process import CHAT, COMPLETIONS, Gateway, eventually, key, secret, settings
from tests.flows.slow.test_rolling import answer

NAME = "gateway.example.com"
HERE = "127.0.0.1"
CALLS_BETWEEN = 60
"""How many calls are served between two steps of the restart."""


@contextmanager
def behind_nginx(folder: Path, gateways: Sequence[int], certificate: Path) -> Iterator[int]:
    with nginx(folder, gateways, certificate) as front:
        yield front.port


@contextmanager
def behind_caddy(folder: Path, gateways: Sequence[int], certificate: Path) -> Iterator[int]:
    """deploy/Caddyfile with several gateways, as its comment describes, without asking them."""
    places = " ".join(f"{HERE}:{port}" for port in gateways)

    def start(port: int) -> Running:
        settled = settle(
            (DEPLOY / "Caddyfile").read_text(),
            {
                " 127.0.0.1:8080 {": f" {places} {{",
                "# lb_policy": "lb_policy",
                "# lb_try_duration": "lb_try_duration",
                f"\n{NAME} {{\n": f"\nhttps://{NAME}:{port} {{\n\tbind {HERE}\n\ttls {certificate} {certificate}\n",
            },
        )
        (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{settled}")
        return Running(folder, ["caddy", "run", "--config", "Caddyfile"], env={"HOME": str(folder)})

    with on_some_port(start, is_up) as (port, _):
        yield port


@contextmanager
def behind_haproxy(folder: Path, gateways: Sequence[int], certificate: Path) -> Iterator[int]:
    """deploy/haproxy.cfg with these gateways."""
    lines = "".join(f"    server gateway-{port} {HERE}:{port}\n" for port in gateways)

    def start(port: int) -> Running:
        settled = settle(
            (DEPLOY / "haproxy.cfg").read_text(),
            {
                "bind :443 ssl crt /etc/haproxy/gateway.pem": f"bind {HERE}:{port} ssl crt {certificate}",
                "    server gateway-1 127.0.0.1:8080\n": lines,
            },
        )
        (folder / "haproxy.cfg").write_text(settled)
        return Running(folder, ["haproxy", "-db", "-f", "haproxy.cfg"])

    with on_some_port(start, is_up) as (port, _):
        yield port


FRONTS: dict[str, Callable[[Path, Sequence[int], Path], Any]] = {
    "nginx": behind_nginx,
    "caddy": behind_caddy,
    "haproxy": behind_haproxy,
}


class RawCaller(threading.Thread):
    """Calls again and again, and repeats nothing."""

    def __init__(self, port: int, ca_file: Path, *, is_stream: bool, keeps: bool) -> None:
        super().__init__(daemon=True)
        self.received: Counter[str] = Counter()
        self.is_enough = threading.Event()
        self._port, self._is_stream, self._keeps = port, is_stream, keeps
        self._context = ssl.create_default_context(cafile=str(ca_file))

    def run(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self.is_enough.is_set():
            if connection is None:
                connection = self._connect()
            try:
                self.received[self._call(connection)] += 1
                is_left = not self._keeps
            except (OSError, http.client.HTTPException) as error:
                self.received[repr(error)] += 1
                is_left = True
            if is_left or connection.sock is None:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(HERE, self._port, timeout=TIMEOUT_S)
        plain = socket.create_connection((HERE, self._port), timeout=TIMEOUT_S)
        connection.sock = self._context.wrap_socket(plain, server_hostname=NAME)
        return connection

    def _call(self, connection: http.client.HTTPConnection) -> str:
        path, body = "/v1/completions", {"model": COMPLETIONS, "prompt": "Hello"}
        if self._is_stream:
            messages = [{"role": "user", "content": "Hello"}]
            path, body = "/v1/chat/completions", {"model": CHAT, "messages": messages, "stream": True}  # type: ignore[dict-item]
        headers = {"Authorization": f"Bearer {secret('alice')}", "Content-Type": "application/json", "Host": NAME}
        connection.request("POST", path, json.dumps(body), headers)
        with connection.getresponse() as response:
            text = response.read()
            if response.status != 200:
                return f"{response.status} {text[:200]!r}"
            return "ok" if not self._is_stream or text.endswith(b"data: [DONE]\n\n") else f"cut off: {text[-80:]!r}"


@pytest.mark.parametrize("front", FRONTS)
def test_a_restart_in_turn_loses_no_call_behind_a_proxy(
    front: str, start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.answer_with(always=answer)
    authority = Authority(tmp_path)
    folder = tmp_path / front
    folder.mkdir()
    ports = [dead_port(), dead_port()]
    with RedisServer(tmp_path / "redis") as redis:
        config = settings(
            upstream.url,
            server={"workers": 2, "drain_delay_s": 1.0, "drain_timeout_s": 60},
            store={"url": redis.url},
            keys=[key("alice", quotas=[{"tokens": 10**9, "per": "day"}])],
        )

        def start(port: int) -> Gateway:
            return start_gateway(config, "--port", str(port))

        gateways = [start(port) for port in ports]
        with FRONTS[front](folder, ports, authority.server_file(NAME)) as port:
            callers = [
                RawCaller(port, authority.ca_file, is_stream=is_stream, keeps=keeps)
                for is_stream, keeps, _ in itertools.product((False, True), (False, True), range(2))
            ]

            def received() -> Counter[str]:
                return sum((caller.received for caller in callers), Counter())

            def until_more() -> None:
                wanted = received().total() + CALLS_BETWEEN
                eventually(lambda: received().total() >= wanted, 60)

            for caller in callers:
                caller.start()
            try:
                until_more()
                for at, place in enumerate(ports):
                    gateways[at].stop(signal.SIGTERM)
                    until_more()
                    gateways[at] = start(place)
                    until_more()
            finally:
                for caller in callers:
                    caller.is_enough.set()
                for caller in callers:
                    caller.join(TIMEOUT_S)
        assert received().total() > 5 * CALLS_BETWEEN
        assert set(received()) == {"ok"}, received()
