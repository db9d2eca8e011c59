"""`admin.listen`: what operators use has a listener of its own, and clients do not reach it on theirs."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.client import Answer, request
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, eventually, run, settings

OF_OPERATORS = ("/metrics", "/dashboard", "/admin/api/usage", "/admin/api/keys")
OF_CLIENTS = ("/v1/models", "/v1/key")
OF_BOTH = ("/healthz", "/readyz", "/openapi.json")

AS_ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    admin = {"token": ADMIN_TOKEN, "listen": "127.0.0.1:0"}
    return start_shared_gateway(settings(shared_upstream.url, server={"workers": 2}, admin=admin))


def at_office(gateway: Gateway, path: str, method: str = "GET") -> Answer:
    """What operators are answered, at the address that the gateway has printed."""
    port = int(gateway.wait_for(r"metrics at http://127\.0\.0\.1:(\d+)")[1])
    assert port != gateway.port
    return request(port, method, path, None, AS_ADMIN)


@pytest.mark.parametrize("path", OF_OPERATORS)
def test_operators_are_served_at_their_own_address_alone(gateway: Gateway, path: str) -> None:
    assert at_office(gateway, path).status == 200
    assert gateway.get(path, headers=AS_ADMIN).status == 404


@pytest.mark.parametrize("path", OF_CLIENTS)
def test_clients_are_served_at_theirs_alone(gateway: Gateway, path: str) -> None:
    assert gateway.get(path).status == 200
    assert at_office(gateway, path).status == 404


@pytest.mark.parametrize("path", OF_BOTH)
def test_a_balancer_asks_wherever_it_likes(gateway: Gateway, path: str) -> None:
    assert gateway.get(path, key=None).status == at_office(gateway, path).status == 200


def test_each_document_has_what_is_served_beside_it(gateway: Gateway) -> None:
    clients, operators = gateway.get("/openapi.json").json["paths"], at_office(gateway, "/openapi.json").json["paths"]
    assert "/v1/completions" in clients
    assert not [path for path in clients if path.startswith("/admin")]
    assert "/admin/api/keys" in operators
    assert "/v1/completions" not in operators


def test_what_clients_use_is_what_operators_see(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    assert gateway.complete().status == 200
    (row,) = eventually(lambda: at_office(gateway, "/admin/api/usage?group_by=key").json["data"])
    assert (row["key"], row["requests"]) == ("alice", 1)
    assert re.search(r'gateway_requests_total\{[^}]*key="alice"', at_office(gateway, "/metrics").body.decode())


def test_a_replaced_worker_serves_both(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    before = gateway.workers()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(set(gateway.workers()) - set(before)) == 2)
    eventually(lambda: gateway.get("/readyz", key=None).status == at_office(gateway, "/readyz").status == 200)


def test_check_prints_the_address_of_the_admin_listener(tmp_path: Path) -> None:
    admin = {"token": ADMIN_TOKEN, "listen": "127.0.0.1:9000"}
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps(settings("http://127.0.0.1:9/v1", admin=admin)))
    received = run("check", "--config", str(file))
    assert "admin API  on, at 127.0.0.1:9000, with dashboard and metrics" in received.stdout
