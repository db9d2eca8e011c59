"""Anthropic's Messages API through a whole gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import CHUNKED, answer, chunk, ok_json, raw

from .client import Answer
from .house import COMPLETIONS, UPSTREAM_KEY, Gateway, key, model, settings

RECORDED = {
    path.stem: path.read_bytes() for path in sorted((Path(__file__).parents[1] / "recorded/messages").glob("*"))
}
CLAUDE = "claude-sonnet-4-5"
USAGE = {
    "input_tokens": 4, "cache_creation_input_tokens": 1200, "cache_read_input_tokens": 3400, "output_tokens": 89,
    "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 1000},
    "server_tool_use": {"web_search_requests": 2}, "output_tokens_details": {"thinking_tokens": 40},
}  # fmt: skip
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": CLAUDE, "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "Hello!"}], "usage": USAGE,
}  # fmt: skip


def messages_model(**more: Any) -> dict[str, Any]:
    return model("messages", **more)


def house_settings(url: str, **changes: Any) -> dict[str, Any]:
    """A gateway before an upstream that has the Messages API."""
    plain = settings(url, upstreams={"main": {"capabilities": {"messages": True}}})
    plain["models"] = {CLAUDE: messages_model(), COMPLETIONS: model("completions")}
    return plain | changes


@pytest.fixture(scope="module")
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
    keys = [
        key("alice"), key("bob"), key("spent", quotas=[{"requests": 1, "per": "day"}]),
        key("paced", quotas=[{"requests": 5, "per": "minute"}, {"tokens": 1_000_000, "per": "day"}]),
        key("bound", limits={"max_tokens": 64, "deny": ["top_k"], "stop": 1}),
    ]  # fmt: skip
    return gateways(house_settings(theatre.url, keys=keys))


def post(house: Gateway, path: str = "/v1/messages", who: str = "alice", **changes: Any) -> Answer:
    """A small message. Members that are None are left out."""
    headers = changes.pop("headers", {"anthropic-version": "2023-06-01"})
    members = {"model": CLAUDE, "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]} | changes
    given = {name: value for name, value in members.items() if value is not None}
    return house.post(path, given, key=who, headers=headers)


def told(answer: Answer) -> tuple[int, str, str]:
    """What an error says: status, type, message. Its shape has to be Anthropic's."""
    whole = answer.json
    assert sorted(whole) == ["error", "request_id", "type"], answer
    assert whole["type"] == "error"
    assert whole["request_id"] == answer.headers["request-id"] == answer.id
    return answer.status, whole["error"]["type"], whole["error"]["message"]


def used(house: Gateway, answer: Answer) -> dict[str, Any]:
    """What its record says."""
    call = house.call(answer.id)
    names = "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "units", "usage_source"
    return {name: call[name] for name in names}


def test_plain_message_is_passed_on_and_charged(house: Gateway, upstream: Stage) -> None:
    body = json.dumps(MESSAGE).encode()
    upstream.play(answer(body))
    got = post(house)
    assert (got.status, got.body, got.headers["request-id"]) == (200, body, got.id)
    assert used(house, got) == {
        "prompt_tokens": 4604, "completion_tokens": 89, "cached_tokens": 3400, "reasoning_tokens": 40,
        "units": {"cache_write": 200, "cache_write_1h": 1000, "web_searches": 2}, "usage_source": "reported",
    }  # fmt: skip
    assert house.call(got.id)["endpoint"] == "messages"


def test_request_goes_up_as_it_came(house: Gateway, upstream: Stage) -> None:
    upstream.play(ok_json(MESSAGE))
    raw_body = (
        b'{ "model": "%s",  "max_tokens":5, "messages":[{"role":"user","content":"\\u0048i"}], "new": {"a":1.50} }'
    )
    raw_body %= CLAUDE.encode()
    headers = {
        "anthropic-version": "2026-10-21", "anthropic-beta": "a-1,b-2", "x-api-key": "", "x-app": "cli",
        "anthropic-workspace-id": "wrkspc_1", "anthropic-dangerous-direct-browser-access": "true",
    }  # fmt: skip
    del headers["x-api-key"]
    got = house.post("/v1/messages?beta=true&key=sk-secret", raw_body, headers=headers)
    assert got.status == 200
    request = upstream.requests[0]
    assert (request.path, request.body) == ("/v1/messages?beta=true", raw_body)
    assert request.headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert (request.headers["anthropic-version"], request.headers["anthropic-beta"]) == ("2026-10-21", "a-1,b-2")
    assert not {"x-app", "anthropic-workspace-id", "anthropic-dangerous-direct-browser-access"} & set(request.headers)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", (25, 17, 0, 0, {}, "reported")),
        ("tools-cache-1h", (4604, 89, 3400, 0, {"cache_write": 200, "cache_write_1h": 1000}, "reported")),
        ("thinking", (42, 152, 0, 120, {}, "reported")),
        ("searches", (10682, 510, 0, 0, {"web_searches": 1}, "reported")),
        ("compaction", (203000, 4500, 0, 0, {}, "reported")),
        ("kimi", (1100, 9, 1000, 0, {}, "reported")),
        ("clone-without-input-at-the-end", (12, 6, 0, 0, {}, "reported")),
        ("no-stop-event", (25, 5, 0, 0, {}, "reported")),
        ("no-blank-line-at-the-end", (25, 5, 0, 0, {}, "reported")),
        ("comments-and-ids", (25, 5, 0, 0, {}, "reported")),
    ],
)
def test_stream_is_passed_on_and_charged(house: Gateway, upstream: Stage, name: str, expected: tuple[Any, ...]) -> None:
    upstream.play(raw(CHUNKED + chunk(RECORDED[name]) + b"0\r\n\r\n"))
    # The ceilings of reports are those of the request: a search and a compaction may read what is not in it.
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    got = post(house, stream=True, max_tokens=4096, tools=tools)
    text = RECORDED[name].removesuffix(b"data: [DONE]\n\n")
    assert got.body == (text if text.endswith(b"\n\n") else text + b"\n\n")
    assert got.headers["content-type"] == "text/event-stream"
    assert got.headers["request-id"] == got.id
    assert tuple(used(house, got).values()) == expected
