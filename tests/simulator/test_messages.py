"""The Messages API of the simulator, and a gateway in front of it: every count agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.conftest import StartsGateways, StartsProcesses
from tests.flows.gateway_process import Gateway, key, model, secret, settings

CLAUDE = "claude-sonnet-5"
SYSTEM = [{"type": "text", "text": "You are brief. " * 20, "cache_control": {"type": "ephemeral"}}]
LONG = [{"type": "text", "text": "You are brief. " * 20, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
HELLO: dict[str, Any] = {"model": CLAUDE, "max_tokens": 200, "messages": [{"role": "user", "content": "Hello!"}]}


@pytest.fixture
def simulated(process: StartsProcesses) -> str:
    """The address of a simulator."""
    found = process("simulate", "--port", "0").wait_for(r"(http://127\.0\.0\.1:\d+)")
    return found[1]


@pytest.fixture
def gateway(simulated: str, start_gateway: StartsGateways) -> Gateway:
    config = settings(f"{simulated}/v1", upstreams={"main": {"capabilities": {"messages": True}}})
    config["models"], config["keys"] = {CLAUDE: model("messages")}, [key("alice")]
    return start_gateway(config)


def ledger(url: str) -> list[dict[str, Any]]:
    with urlopen(Request(f"{url}/simulator/ledger"), timeout=10) as answer:
        calls: list[dict[str, Any]] = json.load(answer)["calls"]
    return calls


def test_records_agree_with_the_ledger(simulated: str, gateway: Gateway, tmp_path: Path) -> None:
    import anthropic

    bodies = [
        HELLO | {"system": SYSTEM},
        HELLO | {"system": SYSTEM},  # reads what the first wrote
        HELLO | {"system": LONG, "tools": [TOOL]},
        HELLO | {"max_tokens": 3},
    ]
    seen = []
    with anthropic.Anthropic(base_url=gateway.url, api_key=secret("alice")) as sdk:
        for body in bodies:
            plain = sdk.messages.create(**body)
            with sdk.messages.stream(**body) as stream:
                streamed = stream.get_final_message()
            assert [block.model_dump(exclude={"id"}) for block in plain.content] == [
                block.model_dump(exclude={"id", "parsed_output"}) for block in streamed.content
            ]
            assert plain.stop_reason == streamed.stop_reason
            seen += [plain, streamed]
        assert sdk.messages.count_tokens(model=CLAUDE, messages=HELLO["messages"]).input_tokens > 0
    assert [message.stop_reason for message in seen[::2]] == ["end_turn", "end_turn", "tool_use", "max_tokens"]
    assert seen[1].usage.cache_read_input_tokens == seen[0].usage.cache_creation_input_tokens
    received = [
        (
            call["prompt_tokens"], call["completion_tokens"], call["cached_tokens"], call["cache_write_tokens"],
            call["cache_write_1h_tokens"],
        )
        for call in ledger(simulated)
    ]  # fmt: skip
    found = [
        (
            call["prompt_tokens"], call["completion_tokens"], call["cached_tokens"],
            call["units"].get("cache_write", 0), call["units"].get("cache_write_1h", 0),
        )
        for call in gateway.calls("alice") if call["endpoint"] == "messages"
    ]  # fmt: skip
    assert sorted(found) == sorted(received)
    assert {bool(call[number]) for call in received for number in (2, 3, 4)} == {True, False}
