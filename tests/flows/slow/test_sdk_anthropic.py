"""Both official SDKs of Anthropic as people have them, default retries and all, through a gateway."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import CHUNKED, answer, chunk, ok_json, raw
from tests.flows.gateway_process import Gateway, key, secret
from tests.flows.test_messages import CLAUDE, MESSAGE, RECORDED, anthropic_error, gateway_settings

SCRIPT = Path(__file__).parent.parent / "anthropic_node.mjs"
NODE_SDK = ROOT / ".venv/servers/anthropic-node/node_modules/@anthropic-ai/sdk"
NODE = ROOT / ".venv/servers/node-sdk/node"
HELLO: dict[str, Any] = {"model": CLAUDE, "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}
Received = dict[str, Any]
Asks = Callable[[str, str, Sequence[Mapping[str, Any]]], list[Received]]


def ask_python(url: str, key_: str, bodies: Sequence[Mapping[str, Any]]) -> list[Received]:
    def ask(sdk: anthropic.Anthropic, body: Mapping[str, Any]) -> Received:
        events: list[str] = []
        try:
            made = sdk.messages.create(**body)
            if not body.get("stream"):
                return {"data": made.model_dump(mode="json", exclude_unset=True), "request_id": made._request_id}
            events += [event.type for event in made]
        except anthropic.APIStatusError as error:
            described = {
                "name": type(error).__name__, "status": error.status_code, "type": error.type,
                "request_id": error.request_id, "message": error.message,
            }  # fmt: skip
            return {"error": described, **({"events": events} if events else {})}
        return {"events": events}

    with anthropic.Anthropic(base_url=url, api_key=key_) as sdk:
        return [ask(sdk, body) for body in bodies]


def ask_node(url: str, key_: str, bodies: Sequence[Mapping[str, Any]]) -> list[Received]:
    assert NODE_SDK.exists(), f"{NODE_SDK} is not there, and this test needs it: run `make servers`."
    done = subprocess.run(
        [NODE, SCRIPT, NODE_SDK], input=json.dumps(bodies), capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key_},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[Received] = json.loads(done.stdout)
    return answers


@pytest.fixture(params=[ask_python, ask_node], ids=["python", "node"])
def ask(request: pytest.FixtureRequest) -> Asks:
    asks: Asks = request.param
    return asks


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    spent = [{"requests": 1, "per": "day"}]
    keys = [key("alice"), key("python", quotas=spent), key("node", quotas=spent)]
    keys += [key("paced", quotas=[{"requests": 1, "per": "second"}])]
    return start_shared_gateway(gateway_settings(shared_upstream.url, keys=keys))


def whole(name: str) -> Any:
    return raw(CHUNKED + chunk(RECORDED[name]) + b"0\r\n\r\n")


def test_answers_and_streams(gateway: Gateway, upstream: ScriptedUpstream, ask: Asks) -> None:
    upstream.answer_with(ok_json(MESSAGE), whole("tools-cache-1h"))
    plain, streamed = ask(gateway.url, secret("alice"), [HELLO, HELLO | {"stream": True}])
    assert plain["data"]["content"] == MESSAGE["content"]
    call = gateway.call(plain["request_id"])
    assert (call["prompt_tokens"], call["completion_tokens"]) == (4604, 89)
    assert (streamed["events"][0], streamed["events"][-1]) == ("message_start", "message_stop")
    assert [request.path for request in upstream.requests] == ["/v1/messages"] * 2


def test_a_spent_quota_is_one_request(gateway: Gateway, upstream: ScriptedUpstream, ask: Asks) -> None:
    name = "python" if ask is ask_python else "node"
    upstream.answer_with(ok_json(MESSAGE))
    before = gateway.metric("gateway_requests_total", status="429")
    _, refused = ask(gateway.url, secret(name), [HELLO, HELLO])
    error = refused["error"]
    assert (error["name"], error["status"], error["type"]) == ("RateLimitError", 429, "rate_limit_error")
    assert "You exceeded the quota of your key of requests per day" in error["message"]
    assert error["request_id"].startswith("req_")
    assert gateway.metric("gateway_requests_total", status="429") - before == 1


def test_a_rate_is_waited_for(gateway: Gateway, upstream: ScriptedUpstream, ask: Asks) -> None:
    upstream.answer_with(always=ok_json(MESSAGE))
    assert all("data" in each for each in ask(gateway.url, secret("paced"), [HELLO, HELLO]))


def test_errors_are_those_of_the_api(gateway: Gateway, upstream: ScriptedUpstream, ask: Asks) -> None:
    upstream.answer_with()
    wrong = [HELLO | {"model": "claude-none"}, HELLO | {"max_tokens": -1}]
    unknown, invalid = [each["error"] for each in ask(gateway.url, secret("alice"), wrong)]
    assert (unknown["name"], unknown["type"]) == ("NotFoundError", "not_found_error")
    assert (invalid["name"], invalid["type"]) == ("BadRequestError", "invalid_request_error")
    [stranger] = ask(gateway.url, "sk-ant-nobody-has-this-key", [HELLO])
    assert (stranger["error"]["name"], stranger["error"]["type"]) == ("AuthenticationError", "authentication_error")


def test_an_overloaded_upstream_is_repeated(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, ask: Asks
) -> None:
    config = gateway_settings(upstream.url)
    config["models"][CLAUDE]["max_attempts"] = 1
    gateway = start_gateway(config)
    overloaded = answer(json.dumps(anthropic_error("overloaded_error", "Overloaded")).encode(), 529)
    upstream.answer_with(overloaded, ok_json(MESSAGE))
    [got] = ask(gateway.url, secret("alice"), [HELLO])
    assert got["data"]["id"] == MESSAGE["id"]


@pytest.mark.parametrize(("name", "kind"), [("ended-early", "api_error"), ("error-in-stream", "overloaded_error")])
def test_a_stream_that_breaks_is_an_error(
    gateway: Gateway, upstream: ScriptedUpstream, ask: Asks, name: str, kind: str
) -> None:
    upstream.answer_with(whole(name))
    [got] = ask(gateway.url, secret("alice"), [HELLO | {"stream": True}])
    assert got["error"]["type"] == kind
    assert upstream.hits == 1


def test_tokens_and_models(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"input_tokens": 14}))
    with anthropic.Anthropic(base_url=gateway.url, api_key=secret("alice")) as sdk:
        assert sdk.messages.count_tokens(model=CLAUDE, messages=HELLO["messages"]).input_tokens == 14
        assert CLAUDE in [each.id for each in sdk.models.list(limit=1)]
        assert sdk.models.retrieve(CLAUDE).display_name == CLAUDE
        with pytest.raises(anthropic.BadRequestError, match="expected a list of 1 to 10000 requests"):
            sdk.messages.batches.create(requests=[])
