"""The example configuration (`config/clouds.yaml`) in front of three clouds on loopback, whose credentials rotate.

Each cloud refuses whatever is not authorized at that moment: tokens by their end, signatures as botocore computes them.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.conftest import StartsGateways
from tests.fakes.good_answers import FORMS, Form
from tests.fakes.scripted import Behaviour, Scripted, Wire, answer, chunk, error_json
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, command, eventually, key, run
from tests.wings.clouds.fakes import (
    SECRET,
    aws_keys,
    chunk_of,
    message_events,
    plain_message,
    signature_of,
    token_reply,
)  # fmt: skip
from tests.wings.clouds.test_sources import service_account

EXAMPLE = Path(__file__).parents[4] / "config" / "clouds.yaml"
LIVES_S = 4
"""How long a token is valid here; it is renewed a second before."""


class Clouds:
    """What the clouds issue, and what is away."""

    def __init__(self) -> None:
        self.lives_s: float = 3600
        self.issued: dict[str, int] = {}
        self.ends: dict[str, float] = {}
        self.away: set[str] = set()
        self.refused: list[str] = []
        self.reply: Callable[[str, Any], Behaviour] = reply_of
        """What the models of each cloud answer to a path and a body."""
        self._lock = threading.Lock()

    def issue(self, cloud: str) -> str:
        with self._lock:
            self.issued[cloud] = number = self.issued.get(cloud, 0) + 1
            self.ends[f"{cloud}-{number}"] = time.time() + self.lives_s
            return f"{cloud}-{number}"

    async def tokens(self, wire: Wire) -> None:
        """The token endpoint of Google, and the metadata of Azure and AWS."""
        cloud = wire.request.path.partition("?")[0].strip("/")
        if cloud in self.away:
            await error_json(503)(wire)
            return
        token = self.issue(cloud)
        behaviour: Behaviour = token_reply(token, int(self.lives_s))
        if cloud == "azure":
            said = {"access_token": token, "expires_on": str(int(self.ends[token])), "token_type": "Bearer"}
            behaviour = answer(json.dumps(said).encode())
        elif cloud == "aws":
            behaviour = answer(json.dumps(aws_keys(self.issued["aws"], self.lives_s)).encode())
        await behaviour(wire)

    def is_authorized(self, cloud: str, wire: Wire) -> bool:
        sent = wire.request.headers.get("authorization", "")
        if cloud == "aws":
            number = sent.partition("AKIAFAKE")[2].partition("/")[0]
            signed = signature_of(wire.request, f"{SECRET}-{number}", "bedrock", "us-west-2")
            return sent == signed and time.time() < self.ends[f"aws-{number}"]
        return time.time() < self.ends.get(sent.removeprefix("Bearer "), 0)

    def upstream(self, cloud: str) -> Behaviour:
        """The models of one cloud."""

        async def behaviour(wire: Wire) -> None:
            if cloud in self.away:
                await error_json(503)(wire)
            elif not self.is_authorized(cloud, wire):
                self.refused.append(f"{cloud} {wire.request.path}")
                await error_json(401)(wire)
            else:
                await self.reply(wire.request.path, wire.request.json)(wire)

        return behaviour


def streamed(kind: str, pieces: list[bytes]) -> Behaviour:
    async def behaviour(wire: Wire) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await wire.write(head.encode() + b"".join(map(chunk, pieces)) + b"0\r\n\r\n")

    return behaviour


def events_of(form: Form) -> list[bytes]:
    return [form.event(each) for each in (*form.pieces("Hello"), *form.finish("Hello"))] + [form.end()]


def reply_of(path: str, body: Any) -> Behaviour:
    """The good answer of a cloud to a path."""
    path = path.partition("?")[0]
    if path.endswith("/invoke-with-response-stream"):
        return streamed("application/vnd.amazon.eventstream", [chunk_of(each) for each in message_events()])
    if path.endswith((":streamRawPredict", ":rawPredict", "/invoke")):
        assert "model" not in body
        assert body["anthropic_version"]
        events = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in message_events()]
        is_streamed = path.endswith(":streamRawPredict")
        return streamed("text/event-stream", events) if is_streamed else answer(json.dumps(plain_message()).encode())
    name = "generate_content" if "enerateContent" in path else "responses" if path.endswith("/responses") else "chat"
    form = FORMS[name]
    if body.get("stream") or "stream" in path:
        return streamed("text/event-stream", events_of(form))
    return answer(json.dumps(form.document("Hello")).encode())


OPEN_AI = {"openai": "openai", "azure": "azure", "bedrock": "aws", "bedrock-openai": "aws"}
CLOUD = OPEN_AI | dict.fromkeys(("vertex-claude", "vertex-gemini", "vertex-openai"), "google")


@pytest.fixture
def clouds() -> Clouds:
    return Clouds()


@pytest.fixture
def servers(clouds: Clouds) -> Iterator[dict[str, Scripted]]:
    """The token endpoints, and the three clouds."""
    names = ("azure", "aws", "google")
    made = {name: Scripted(always=clouds.upstream(name), prefix="") for name in names}
    made["tokens"] = Scripted(always=clouds.tokens, prefix="")
    made["openai"] = Scripted(always=openai, prefix="")
    for each in made.values():
        each.__enter__()
    yield made
    for each in made.values():
        each.__exit__(None)


async def openai(wire: Wire) -> None:
    await reply_of(wire.request.path, wire.request.json)(wire)


def configured(servers: dict[str, Scripted], folder: Path) -> dict[str, Any]:
    """The example with the addresses of this test."""
    config: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    for name, each in config["upstreams"].items():
        each["base_url"] = servers[CLOUD[name]].url + urlsplit(each["base_url"]).path
        if each.get("auth") == "aws":
            each["auth"] = {"type": "aws", "region": "us-west-2"}
        elif each.get("auth") == "google":
            each["auth"] = {"type": "google", "file": str(service_account(folder, f"{servers['tokens'].url}/google"))}
        elif "api_key" in each:
            each["api_key"] = "sk-of-openai"
        if name == "bedrock":
            each["paths"] = "bedrock"
        if name == "vertex-gemini":
            each["capabilities"] = {
                "generate_content": True, "completions": False, "chat": False, "embeddings": False, "responses": False,
            }  # fmt: skip
    return config | {"keys": [key("alice")], "admin": {"token": ADMIN_TOKEN}, "server": {"port": 0}}


@pytest.fixture
def started(
    servers: dict[str, Scripted], clouds: Clouds, start_gateway: StartsGateways, tmp_path: Path
) -> Iterator[Any]:
    environment = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{servers['tokens'].url}/aws", "AWS_EC2_METADATA_DISABLED": "true",
        "IDENTITY_ENDPOINT": f"{servers['tokens'].url}/azure", "IDENTITY_HEADER": "x", "HOME": str(tmp_path),
    }  # fmt: skip
    found: list[Gateway] = []

    def start(**more: Any) -> Gateway:
        made = start_gateway(configured(servers, tmp_path) | more, env=environment)
        found.append(made)
        return made

    yield start
    for each in found:
        for token in clouds.ends:
            assert token not in each.stdout + each.stderr
        assert SECRET not in each.stdout + each.stderr


CALLS = [
    ("gpt-5-mini", "chat"), ("gpt-5-mini", "responses"), ("gpt-oss-120b", "chat"), ("gpt-oss-120b", "responses"),
    ("claude-sonnet-4-5", "messages"), ("claude-sonnet-4-5", "chat"), ("gemini-2.5-flash", "generate_content"),
]  # fmt: skip


def call(gateway: Gateway, model: str, endpoint: str, *, streams: bool) -> tuple[int, str, bytes]:
    form = FORMS[endpoint]
    path, body = form.request(model, "u", is_streamed=streams)
    body.pop("user", None)
    body.pop("metadata", None)
    body.pop("labels", None)
    got = gateway.post(path, body)
    return got.status, got.headers.get("x-gateway-upstream", ""), got.body


def all_calls(gateway: Gateway) -> dict[str, str]:
    """Every call of the example, plain and streamed, has a good answer; the upstream that served each."""
    served: dict[str, str] = {}
    for model, endpoint in CALLS:
        for streams in (False, True):
            status, upstream, body = call(gateway, model, endpoint, streams=streams)
            assert (status, b"Hello" in body, b"event: error" in body) == (200, True, False), (model, endpoint, body)
            served[f"{model} {endpoint}"] = upstream
    return served


def test_check_accepts_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(*command("check", str(EXAMPLE))[3:], env={"OPENAI_API_KEY": "sk-x"})
    assert found.returncode == 0, found.stdout + found.stderr
    assert "azure (auth azure), bedrock (auth aws in us-west-2, paths of bedrock)" in found.stdout


def test_each_cloud_serves_and_another_when_it_is_away(started: Any, clouds: Clouds) -> None:
    gateway = started()
    served = all_calls(gateway)
    assert served == {
        "gpt-5-mini chat": "azure", "gpt-5-mini responses": "azure", "gpt-oss-120b chat": "bedrock-openai",
        "gpt-oss-120b responses": "bedrock-openai", "claude-sonnet-4-5 messages": "bedrock",
        "claude-sonnet-4-5 chat": "bedrock", "gemini-2.5-flash generate_content": "vertex-gemini",
    }  # fmt: skip
    clouds.away |= {"aws", "azure"}
    assert all_calls(gateway) == {
        "gpt-5-mini chat": "openai", "gpt-5-mini responses": "openai", "gpt-oss-120b chat": "vertex-openai",
        "gpt-oss-120b responses": "vertex-openai", "claude-sonnet-4-5 messages": "vertex-claude",
        "claude-sonnet-4-5 chat": "vertex-claude", "gemini-2.5-flash generate_content": "vertex-gemini",
    }  # fmt: skip
    assert not clouds.refused


def test_calls_across_three_renewals_lose_none(started: Any, clouds: Clouds) -> None:
    clouds.lives_s = LIVES_S
    gateway = started()
    end = threading.Event()
    lost: list[Any] = []
    made = [0] * 4

    def calling(number: int) -> None:
        while not end.is_set():
            model, endpoint = CALLS[made[number] % len(CALLS)]
            status, upstream, body = call(gateway, model, endpoint, streams=bool(made[number] % 2))
            if status != 200 or upstream in ("openai", "vertex-claude", "vertex-openai"):
                lost.append((model, endpoint, status, upstream, body))
            made[number] += 1

    threads = [threading.Thread(target=calling, args=(number,)) for number in range(len(made))]
    for thread in threads:
        thread.start()
    eventually(lambda: all(clouds.issued.get(cloud, 0) >= 4 for cloud in ("azure", "aws", "google")), 120)
    end.set()
    for thread in threads:
        thread.join()
    assert (lost, clouds.refused) == ([], [])
    assert sum(made) > 100
    for upstream in ("azure", "bedrock", "vertex-gemini"):
        assert gateway.metric("gateway_upstream_authorizations_total", upstream=upstream, outcome="renewed") >= 2


def test_a_cloud_that_issues_nothing_is_left_and_found_again(started: Any, clouds: Clouds) -> None:
    clouds.away |= {"google", "aws"}  # botocore would log each refusal with its traceback
    gateway = started()
    assert call(gateway, "gemini-2.5-flash", "generate_content", streams=False)[0] in (502, 503)
    line = re.compile(r"upstream .*\bvertex-gemini\b.*: authorization refused: RefreshError")  # of all with this auth
    eventually(lambda: line.search(gateway.stderr))
    assert gateway.metric("gateway_upstream_authorizations_total", upstream="vertex-gemini", outcome="refused") >= 1
    clouds.away.clear()
    eventually(lambda: call(gateway, "gemini-2.5-flash", "generate_content", streams=False)[0] == 200, 60)
    eventually(lambda: gateway.metric("gateway_upstream_state", upstream="vertex-gemini") == 0)
    eventually(lambda: call(gateway, "claude-sonnet-4-5", "messages", streams=True)[1] == "bedrock", 60)
