"""A gateway whose only way out is a proxy, as an operator sets it up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.proxy import ConnectProxy, refuse, tunnel
from tests.fakes.scripted import Authority, Scripted, error_json, ok_json, stream
from tests.flows.client import events
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, model, run, settings

USERINFO = "Gate:pw-Nobody-may-see"
AWAY = "https://api.example.com/v1"
CHUNK = {"id": "c", "model": "m", "choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def away(authority: Authority) -> Iterator[Scripted]:
    """api.example.com, which only the proxy can reach."""
    received = error_json(400, message=f"API.Example.COM, behind LOCALHOST, knows {USERINFO.upper()}.")
    with Scripted(ok_json(), stream([CHUNK]), received, tls=authority.server_context("api.example.com")) as upstream:
        yield upstream


def behind(near: str, authority: Authority, **main: Any) -> dict[str, Any]:
    upstreams = {"main": {"ca_file": str(authority.ca_file), **main}, "near": {"base_url": near}}
    models = {"near": model("completions", "near"), "once": model("completions", max_attempts=1)}
    return settings(AWAY, upstreams=upstreams, models=models)


def check_secrets(gateway: Gateway) -> None:
    shown = gateway.stdout + gateway.stderr
    for pid in (gateway.process.pid, *gateway.workers()):
        shown += subprocess.run(
            ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True
        ).stdout
    assert USERINFO.partition(":")[2] not in shown


@pytest.mark.parametrize("is_setting", [False, True], ids=["environment", "setting"])
def test_calls_go_through_the_proxy(
    is_setting: bool, start_gateway: StartsGateways, authority: Authority, away: Scripted, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(ok_json())
    with ConnectProxy(always=tunnel(away.port, userinfo=USERINFO)) as proxy:
        url = f"http://{USERINFO}@localhost:{proxy.port}"  # which has an address of each family, one of them dead
        if is_setting:
            env = {"PROXY": url, "HTTPS_PROXY": "http://127.0.0.1:9"}
            gateway = start_gateway(behind(upstream.url, authority, proxy="${PROXY}"), env=env)
        else:
            env = {"HTTPS_PROXY": url, "all_proxy": "http://127.0.0.1:9", "NO_PROXY": "localhost,127.0.0.0/8"}
            gateway = start_gateway(behind(upstream.url, authority), env=env)
        assert gateway.complete().status == 200
        with gateway.stream() as raw:
            assert raw.read_head().status == 200
            assert events(raw.read_chunks()) == [CHUNK, "[DONE]"]
        refused = gateway.complete()
        assert refused.status == 400
        assert refused.error["message"] == "the upstream, behind the proxy, knows ***."
        assert gateway.complete(model="near").status == 200
        assert away.requests[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
        assert proxy.targets == ["api.example.com:443"]  # once: the connection is kept
        assert away.connections == upstream.hits == 1
        check_secrets(gateway)
        gateway.stop()


def test_proxy_that_refuses_the_credentials(
    start_gateway: StartsGateways, authority: Authority, upstream: ScriptedUpstream
) -> None:
    with ConnectProxy(always=tunnel(0, userinfo="other:credentials")) as proxy:
        gateway = start_gateway(behind(upstream.url, authority, proxy=proxy.url_with(USERINFO)))
        failed = gateway.complete()
        assert failed.refusal == (502, "server_error", None, "upstream_error")
        for ours in ("127.0.0.1", str(proxy.port), "proxy", "api.example.com", USERINFO.partition(":")[2]):
            assert ours not in failed.body.decode()
        assert "the proxy refuses the credentials (status 407)" in gateway.stderr
        assert gateway.metric("gateway_upstream_attempts_total", upstream="main", outcome="connect_failed") == 3
        check_secrets(gateway)


def test_next_call_is_good_when_the_proxy_is_back(
    start_gateway: StartsGateways, authority: Authority, away: Scripted, upstream: ScriptedUpstream
) -> None:
    with ConnectProxy(refuse(503), always=tunnel(away.port)) as proxy:
        gateway = start_gateway(behind(upstream.url, authority, proxy=proxy.url))
        assert gateway.complete(model="once").status == 502
        assert gateway.complete(model="once").status == 200
        gateway.stop()


def test_check_reports_faults_of_a_proxy(tmp_path: Path) -> None:
    config = settings(AWAY, upstreams={"other": {"base_url": AWAY, "proxy": f"ftp://{USERINFO}@proxy:21"}})
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    done = run("check", "--config", str(file), env={"HTTPS_PROXY": f"socks5://{USERINFO}@proxy:1080"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "upstreams.main.proxy: the environment variable HTTPS_PROXY names no usable proxy: " in done.stderr
    assert "upstreams.other.proxy: expected http://host:port" in done.stderr
    assert "pw-Nobody" not in done.stderr
    config["upstreams"]["other"]["proxy"] = config["upstreams"]["main"]["proxy"] = ""
    file.write_text(json.dumps(config))
    done = run("check", "--config", str(file), env={"HTTPS_PROXY": f"socks5://{USERINFO}@proxy:1080"})
    assert (done.returncode, done.stderr) == (0, "")


def test_check_says_which_way_an_upstream_is_reached(tmp_path: Path) -> None:
    config = settings(
        "https://up.example/v1", upstreams={"other": {"base_url": "https://other.example/v1", "proxy": ""}}
    )
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    done = run("check", "--config", str(file), env={"HTTPS_PROXY": f"http://{USERINFO}@proxy:3128"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "main (https://up.example/v1 through the proxy proxy:3128), other (https://other.example/v1)" in done.stdout
    assert "pw-Nobody" not in done.stdout
