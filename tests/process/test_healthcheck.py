"""The health check of the image finds the port of the gateway, and accepts no other answer than 200."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from gateway.process import healthcheck
from gateway.process.healthcheck import is_any_good, listening
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import Gateway, settings

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:2378 00000000:0000 0A 00000000:00000000 00:00000000 00000000 10001        0 1679 1 0000000 100 0 0 10 0
   1: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000 10001        0 1680 1 0000000 100 0 0 10 0
   2: 0100007F:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1681 1 0000000 100 0 0 10 0
   3: 0100007F:2378 0100007F:D431 01 00000000:00000000 00:00000000 00000000 10001        0 1682 1 0000000 100 0 0 10 0
"""


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(settings(shared_upstream.url))


def test_the_listening_ports_of_the_user_are_found() -> None:
    assert listening(TABLE, 10001) == [9080, 8081]


def test_a_gateway_at_any_port_is_healthy_and_a_closed_port_is_not(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    here, elsewhere = ("127.0.0.1", gateway.port), ("127.0.0.1", closed)
    assert is_any_good([elsewhere, here], "/healthz")
    assert not is_any_good([elsewhere], "/healthz")
    assert not is_any_good([here], "/v1/models")
    if Path("/proc/net/tcp").exists():
        assert gateway.port in listening(Path("/proc/net/tcp").read_text(), os.getuid())


@pytest.mark.parametrize(("path", "code"), [("/healthz", 0), ("/readyz", 0), ("/v1/models", 1)])
def test_the_exit_code_says_whether_the_path_answers_200(
    path: str, code: int, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = f"0: 00000000:{gateway.port:04X} 00000000:0000 0A 0:0 0:0 0 {os.getuid()} 0 1"
    (tmp_path / "tcp").write_text(f"head\n{row}\n")
    monkeypatch.setattr(healthcheck, "TABLES", {"127.0.0.1": tmp_path / "tcp", "::1": tmp_path / "not-there"})
    monkeypatch.setattr(sys, "argv", ["healthcheck", path])
    assert healthcheck.main() == code
