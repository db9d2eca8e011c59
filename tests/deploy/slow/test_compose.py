"""The stack of containers: its files agree, and its parts run as far as possible without an engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.config.sections import ServerSettings
from tests.conftest import ScriptedUpstream, StartsProcesses
from tests.deploy.examples import DEPLOY, load, make_secrets, redis_of, settle
from tests.deploy.programs import found, run
from tests.fakes.resp import Refusal, ask
from tests.fakes.scripted import ok_json
from tests.flows import gateway_process
from tests.flows.client import Answer, request

COMPOSE = DEPLOY / "compose"
SETTINGS = (COMPOSE / "gateway.yaml").read_text()


@pytest.fixture(scope="module")
def stack() -> dict[str, Any]:
    """The file as resolved by the engine's own client, with all defaults."""
    received = run(
        "docker-compose", "--file", COMPOSE / "compose.yaml", "config", "--format", "json", "--no-interpolate"
    )
    assert received.returncode == 0, received.stdout
    whole: dict[str, Any] = json.loads(received.stdout)
    return whole


@pytest.fixture(scope="module")
def services(stack: dict[str, Any]) -> dict[str, dict[str, Any]]:
    every: dict[str, dict[str, Any]] = stack["services"]
    return every


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Sources by mount point."""
    return {each["target"]: each["source"] for each in service["volumes"]}


def seconds(text: str) -> int:
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


def test_the_engine_waits_for_the_whole_drain(services: dict[str, dict[str, Any]]) -> None:
    server = load("compose/gateway.yaml")["server"]
    patience_s = seconds(services["gateway"]["stop_grace_period"])
    assert patience_s == server["drain_delay_s"] + server["drain_timeout_s"] + 10


def test_every_file_that_is_mounted_is_there(services: dict[str, dict[str, Any]]) -> None:
    sources = [source for service in services.values() for source in mounts(service).values() if "/" in source]
    assert len(sources) > 5
    assert [source for source in sources if not Path(source).exists()] == []


def test_every_volume_and_network_that_is_used_is_declared(
    stack: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    named = {source for service in services.values() for source in mounts(service).values() if "/" not in source}
    assert named == set(stack["volumes"])
    assert {network for service in services.values() for network in service["networks"]} == set(stack["networks"])


def test_secrets_are_made_mounted_and_read_where_they_are(
    stack: dict[str, Any], services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    made = {path.name for path in make_secrets(tmp_path / "secrets").iterdir()}
    files = {name: Path(secret["file"]) for name, secret in stack["secrets"].items()}
    assert set(files) == made == {file.name for file in files.values()}
    assert {file.parent for file in files.values()} == {COMPOSE / "secrets"}
    read = {
        "gateway": SETTINGS,
        "redis": json.dumps(services["redis"]),
        "prometheus": (COMPOSE / "prometheus.yml").read_text(),
        "grafana": json.dumps(services["grafana"]["environment"]),
    }
    for name, service in services.items():
        has = {each["target"] for each in service["secrets"]}
        assert has == set(re.findall(r"/run/secrets/\w+", read[name])), name


def test_secrets_are_their_owners_and_stay_when_they_are_there(tmp_path: Path) -> None:
    folder = make_secrets(tmp_path / "secrets")
    before = {path.name: path.read_text() for path in folder.iterdir()}
    make_secrets(folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(set(before.values())) == len(before)
    assert all(len(secret) >= 24 and secret == secret.strip() for secret in before.values())


def test_one_command_makes_the_secrets_and_brings_the_stack_up(tmp_path: Path) -> None:
    """Instead of the engine, its client's check of the file runs."""
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns("secrets"))
    engine = tmp_path / "docker"
    engine.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/asked\nexec {found("docker-compose")} "$2" "$3" config --quiet\n'
    )
    engine.chmod(0o755)

    def start(**env: str) -> subprocess.CompletedProcess[str]:
        given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **env}
        command = [tmp_path / "deploy" / "compose" / "start"]
        return subprocess.run(command, env=given, capture_output=True, text=True, timeout=30, check=False)

    without = start()
    assert without.returncode == 2
    assert "set OPENAI_API_KEY" in without.stderr
    received = start(OPENAI_API_KEY="sk-somebodys-own")
    assert (received.returncode, received.stderr) == (0, "")
    file = tmp_path / "deploy" / "compose" / "compose.yaml"
    assert (tmp_path / "asked").read_text().split() == f"compose --file {file} up --build --detach --wait".split()
    shown = re.findall(r"\S+/secrets/\w+", received.stdout)
    assert shown
    assert all(Path(path).is_file() for path in shown)
    assert start().returncode == 0  # the second time the key exists


def test_with_a_name_caddy_with_tls_is_in_front(tmp_path: Path) -> None:
    """Its network is the proxy that the gateway trusts, and nothing but the two is in it."""
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns("secrets"))
    engine = tmp_path / "docker"
    engine.write_text(
        f'#!/bin/sh\nexec {found("docker-compose")} "$2" "$3" "$4" "$5" config --format json >{tmp_path}/made\n'
    )
    engine.chmod(0o755)
    given = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "OPENAI_API_KEY": "sk-x",
        "GATEWAY_NAME": "gateway.example.com",
    }
    start = [tmp_path / "deploy" / "compose" / "start"]
    received = subprocess.run(start, env=given, capture_output=True, text=True, timeout=30, check=False)
    assert (received.returncode, received.stderr) == (0, "")
    assert "https://gateway.example.com/v1\n" in received.stdout
    made = json.loads((tmp_path / "made").read_text())
    inside = [name for name, service in made["services"].items() if "front" in service["networks"]]
    assert inside == ["caddy", "gateway"]
    assert made["networks"]["front"]["internal"]
    (network,) = made["networks"]["front"]["ipam"]["config"]
    assert load("compose/gateway.yaml")["server"]["trusted_proxies"] == [network["subnet"]]
    assert {port["target"] for port in made["services"]["caddy"]["ports"]} == {80, 443}
    file = COMPOSE / "Caddyfile"
    env = {"GATEWAY_NAME": "gateway.example.com", "HOME": str(tmp_path)}
    checked = run("caddy", "validate", "--adapter", "caddyfile", "--config", file, env=env)
    assert checked.returncode == 0, checked.stdout


def test_caddy_of_containers_does_what_that_of_a_node_does() -> None:
    """tests/deploy/slow/test_front.py serves with that one."""

    def directives(path: Path) -> list[str]:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
        return [line.replace("gateway:8080", "127.0.0.1:8080") for line in lines if line][1:]

    assert directives(COMPOSE / "Caddyfile") == directives(DEPLOY / "Caddyfile")


def test_secrets_and_environment_are_not_committed() -> None:
    assert (COMPOSE / ".gitignore").read_text().split() == ["/secrets/", "/.env"]


def test_only_the_gateway_reaches_redis_and_nothing_is_published_to_the_world(
    stack: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    (network,) = services["redis"]["networks"]
    assert stack["networks"][network]["internal"]
    assert [name for name, service in services.items() if network in service["networks"]] == ["gateway", "redis"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    spelt = [port if isinstance(port, str) else f"{port['host_ip']}:{port['target']}" for port in published]
    assert all("127.0.0.1" in each for each in spelt), spelt


def test_the_parts_of_the_stack_name_each_other(services: dict[str, dict[str, Any]]) -> None:
    port = ServerSettings().port
    admin_port = int(load("compose/gateway.yaml")["admin"]["listen"].rpartition(":")[2])
    url = urlsplit(re.sub(r"\$\{[^}]*\}", "", load("compose/gateway.yaml")["store"]["url"]))
    assert (url.hostname, url.port) == ("redis", 6379)
    scrape = load("compose/prometheus.yml")
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"gateway:{admin_port}"]}]
    assert admin_port != port
    (rules,) = scrape["rule_files"]
    assert mounts(services["prometheus"])[str(Path(rules).parent)] == str(DEPLOY / "prometheus")
    (source,) = load("compose/grafana/datasources.yaml")["datasources"]
    (prometheus_port,) = services["prometheus"]["ports"]
    assert source["url"] == f"http://prometheus:{prometheus_port['target']}"
    (provider,) = load("compose/grafana/dashboards.yaml")["providers"]
    assert mounts(services["grafana"])[provider["options"]["path"]] == str(DEPLOY / "grafana")
    for one, other in (("prometheus", "gateway"), ("grafana", "prometheus")):
        assert set(services[one]["networks"]) & set(services[other]["networks"]), f"{one} does not reach {other}"


def test_prometheus_takes_its_file(secrets: Path, tmp_path: Path) -> None:
    places = {"/etc/prometheus/rules/": f"{DEPLOY}/prometheus/", "/run/secrets/": f"{secrets}/"}
    (tmp_path / "prometheus.yml").write_text(settle((COMPOSE / "prometheus.yml").read_text(), places))
    received = run("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert received.returncode == 0, received.stdout
    assert "rules found" in received.stdout


def test_what_is_not_delivered_outlives_the_container(services: dict[str, dict[str, Any]]) -> None:
    (workplace,) = re.findall(r"^WORKDIR (/var\S*)$", (DEPLOY.parent / "Dockerfile").read_text(), re.MULTILINE)
    assert mounts(services["gateway"])[workplace] == "gateway"
    assert load("compose/gateway.yaml")["store"]["journal_dir"].startswith("./")
    assert mounts(services["redis"])["/data"] == "redis"
    assert "dir /data" in (COMPOSE / "redis.conf").read_text()


def test_containers_have_no_rights(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "healthcheck" in service, name


def test_the_small_example_is_one_that_the_engine_accepts() -> None:
    received = run(
        "docker-compose", "--file", DEPLOY.parent / "examples" / "compose" / "compose.yaml", "config", "--quiet"
    )
    assert (received.returncode, received.stdout) == (0, "")


# --------------------------------------------------------------------------------------------- what runs without it


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_secrets(tmp_path_factory.mktemp("stack") / "secrets")


@pytest.fixture(scope="module")
def redis(
    services: dict[str, dict[str, Any]], secrets: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The stack's Redis, by its own command and file; its port."""
    folder = tmp_path_factory.mktemp("redis")
    *_, script = services["redis"]["command"]
    changes = {"/etc/redis.conf": f"{folder}/redis.conf", "/run/secrets/": f"{secrets}/", "$$": "$"}
    with redis_of(folder, COMPOSE / "redis.conf", script, changes, (secrets / "redis_password").read_text()) as port:
        yield port


@pytest.fixture(scope="module")
def settled(redis: int, secrets: Path) -> str:
    """The stack's configuration, with the paths of its secrets and the port of its Redis in this test."""
    return settle(SETTINGS, {"/run/secrets/": f"{secrets}/", "@redis:6379": f"@127.0.0.1:{redis}"})


def test_redis_lets_in_only_who_has_the_password(redis: int) -> None:
    with pytest.raises(Refusal, match="NOAUTH"):
        ask(redis, "PING")


def test_redis_shows_its_password_to_no_list_of_processes(redis: int, secrets: Path) -> None:
    listed = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert "redis-server" in listed
    assert (secrets / "redis_password").read_text() not in listed


def test_the_configuration_is_good_and_the_store_is_as_it_should_be(settled: str, tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(settled)
    received = gateway_process.run("check", "--config", str(tmp_path / "gateway.yaml"))
    assert (received.returncode, received.stderr) == (0, "")
    assert "warning" not in received.stdout  # such as about a Redis without persistence


def test_the_stack_serves_a_call_and_a_scrape(
    settled: str, secrets: Path, upstream: ScriptedUpstream, process: StartsProcesses, tmp_path: Path
) -> None:
    upstream.answer_with(ok_json())
    file = tmp_path / "gateway.yaml"
    file.write_text(settle(settled, {"0.0.0.0:8081": "127.0.0.1:0"}))
    gateway = process(
        "serve", "--config", str(file), "--host", "127.0.0.1", "--port", "0", env={"OPENAI_BASE_URL": upstream.url}
    )
    port = int(gateway.wait_for(r"serves http://127\.0\.0\.1:(\d+) with 2 workers", 45)[1])

    admin_port = int(gateway.wait_for(r"metrics at http://127\.0\.0\.1:(\d+)")[1])

    def as_owner(secret: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {(secrets / secret).read_text()}", "Content-Type": "application/json"}

    def ask_as(secret: str, path: str) -> Answer:
        return request(admin_port, "GET", path, None, as_owner(secret))

    body = b'{"model": "gpt-3.5-turbo-instruct", "prompt": "Hello"}'
    answer = request(port, "POST", "/v1/completions", body, as_owner("first_key"))
    assert answer.status == 200, answer
    assert upstream.requests[0].headers["authorization"] == f"Bearer {gateway_process.UPSTREAM_KEY}"
    assert b'gateway_requests_total{endpoint="completions",key="first"' in ask_as("metrics_token", "/metrics").body
    for secret in ("admin_token", "viewer_token"):
        (row,) = ask_as(secret, "/admin/api/usage?group_by=key").json["data"]
        assert (row["key"], row["requests"]) == ("first", 1)
    assert request(admin_port, "GET", "/metrics", None, {}).status == 401
    for path in ("/metrics", "/dashboard", "/admin/api/usage"):
        assert request(port, "GET", path, None, as_owner("admin_token")).status == 404, path
