"""GoModel as an upstream: answers of the program itself, recorded in tests/recorded/gomodel, in front of a gateway.

It was built from github.com/ENTERPILOT/GoModel at a26fbd1 (2026-04-28), whose source no registry of packages has, with
scripted answers of OpenAI, Anthropic and Groq behind it; request ids are left out. Names of files: the vendor behind
it, and what that vendor answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, Wire
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway
from tests.upstream.resellers import recorded

from .reports import (
    STREAMED,
    Ask,
    asks_chat,
    asks_completions,
    asks_embeddings,
    asks_messages,
    asks_responses,
    check,
    configuration,
    play,
    text_of,
    usd,
)

RECORDED = Path(__file__).parents[1] / "recorded" / "gomodel"
OPENAI = {"prompt_tokens": 30, "completion_tokens": 25, "cached_tokens": 10, "usage_source": "reported"}
OPENAI["cost_usd"] = usd(20, 10, 25)
CLAUDE = OPENAI | {"cached_tokens": 3, "cost_usd": usd(20, 3, 25, cache_write=7)}
"""Anthropic's 20 tokens are beside those of its cache, and GoModel calls them `prompt_tokens`."""
DONE, BROKEN, FREE = {"ended": "done"}, {"ended": "error", "truncated": True}, {"ended": "error", "cost_usd": 0.0}
CHAT, CHAT_STREAM = asks_chat(), asks_chat(**STREAMED)
RESPONSES, RESPONSE_STREAM = asks_responses(), asks_responses(stream=True)


class Row(NamedTuple):
    name: str
    ask: Ask
    recorded: Mapping[str, Any]
    text: str | None = None
    """What a stream says."""
    refusal: tuple[int, str | None] = (200, None)
    """The status and the code of the error that the client gets."""


def failed(name: str, status: int, code: str | None, ask: Ask = CHAT) -> Row:
    return Row(name, ask, FREE, refusal=(status, code))


ROWS = (
    Row("chat-plain", CHAT, DONE | OPENAI),
    Row("chat-stream", CHAT_STREAM, DONE | OPENAI, "Hi there"),
    Row("chat-stream-tools", CHAT_STREAM, DONE | OPENAI, ""),
    Row("anthropic-plain", CHAT, DONE | CLAUDE),
    Row("anthropic-plain-tools", CHAT, DONE | CLAUDE),
    Row("anthropic-stream", CHAT_STREAM, DONE | CLAUDE, "Hi there"),
    Row("anthropic-stream-tools", CHAT_STREAM, DONE | CLAUDE, "So"),
    Row("anthropic-stream-max", CHAT_STREAM, DONE | CLAUDE, "Hi there"),
    Row("anthropic-responses", RESPONSES, DONE | CLAUDE),
    Row("anthropic-responses-stream", RESPONSE_STREAM, DONE | CLAUDE, "Hi there"),
    Row("anthropic-responses-stream-tools", RESPONSE_STREAM, DONE | CLAUDE, "So"),
    Row("responses-stream", RESPONSE_STREAM, DONE | OPENAI, "Hi there"),
    # Its own translation of a chat's stream: the usage has a chat's names, and the last event has no output.
    Row("groq-responses-stream", RESPONSE_STREAM, DONE | OPENAI, "Hi there"),
    Row("groq-responses-stream-tools", RESPONSE_STREAM, DONE | OPENAI, ""),
    Row("messages", asks_messages(), DONE | CLAUDE),
    Row("messages-stream", asks_messages(stream=True), DONE | CLAUDE, "Hi there"),
    Row("embeddings", asks_embeddings(), DONE | {"prompt_tokens": 3, "usage_source": "reported"}),
    # Its `[DONE]` follows a stream of Claude that was cut, or had an error: it proves nothing.
    Row("chat-cut", CHAT_STREAM, BROKEN, "Hi"),
    Row("chat-error-in-stream", CHAT_STREAM, BROKEN, "Hi"),
    Row("anthropic-stream-cut", CHAT_STREAM, BROKEN, "Hi"),
    Row("anthropic-error-in-stream", CHAT_STREAM, BROKEN, "Hi"),
    Row("groq-responses-stream-cut", RESPONSE_STREAM, BROKEN, "Hi there"),
    # Here it makes `response.completed` of the error, without usage: no upstream that says so can be doubted.
    Row("groq-responses-error-in-stream", RESPONSE_STREAM, DONE | {"usage_source": "estimated"}, "Hi"),
    # An error inside a 200 becomes an answer without choices that counts nothing.
    failed("chat-error-in-200", 502, "upstream_error"),
    failed("chat-400", 400, "integer_above_max_value"),
    failed("chat-401", 502, "upstream_auth_failed"),
    failed("chat-429", 429, "upstream_rate_limited"),
    failed("chat-quota", 502, "upstream_quota_exceeded"),
    failed("chat-500", 502, "upstream_error"),
    failed("chat-503-html", 503, "upstream_error"),
    failed("anthropic-529", 502, "upstream_error"),
    failed("unknown-model", 503, "upstream_error"),
    failed("completions", 502, "upstream_error", asks_completions()),
)
OVER = ("messages-400",)
"""Played in a test of their own."""


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


def said(name: str) -> Behaviour:
    async def behaviour(wire: Wire) -> None:
        await wire.write(recorded(name, RECORDED).wire)

    return behaviour


def test_every_recorded_answer_has_its_row() -> None:
    assert sorted([*(row.name for row in ROWS), *OVER]) == sorted(path.stem for path in RECORDED.glob("*"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_recorded(gateway: Gateway, upstream: ScriptedUpstream, row: Row) -> None:
    answer, record = play(gateway, upstream, row.ask, said(row.name))
    status, code = row.refusal
    assert answer.status == status
    if status != 200:
        assert answer.error["code"] == code
    if row.text is not None:
        assert text_of(answer.body) == row.text
        assert (b"[DONE]" in answer.body) is (row.ask is CHAT_STREAM and record["ended"] == "done")
    check(record, row.recorded)


def shown(answer: Answer, ask: Ask) -> tuple[str, list[tuple[str, Any]]]:
    """The text and the calls in a plain answer of Messages or Responses."""
    items = answer.json["content" if ask.path == "/v1/messages" else "output"]
    parts = [part for item in items for part in (item["content"] if item["type"] == "message" else [item])]
    calls = [(part["name"], part.get("input") or json.loads(part["arguments"])) for part in parts if "name" in part]
    return "".join([part["text"] for part in parts if "text" in part and "name" not in part]), calls


@pytest.mark.parametrize("ask", [asks_messages("messages-over-chat"), asks_responses("responses-over-chat")])
@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [("chat-plain", "Hi there", 0), ("anthropic-plain", "Hi there", 0), ("anthropic-plain-tools", "So", 2)],
)
def test_translated(gateway: Gateway, upstream: ScriptedUpstream, ask: Ask, name: str, text: str, calls: int) -> None:
    tool = {"name": "look", "input_schema": {"type": "object"}}
    if ask.path == "/v1/responses":
        tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    answer, record = play(gateway, upstream, ask.with_members(tools=[tool]), said(name))
    assert shown(answer, ask) == (text, [("look", {"at": "a"}), ("look", {"at": "b"})][:calls])
    check(record, DONE | (OPENAI if name == "chat-plain" else CLAUDE))
    usage = answer.json["usage"]
    shown_prompt = sum(
        usage.get(part) or 0 for part in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    assert shown_prompt == record["prompt_tokens"]


def test_an_error_of_its_passed_on_messages_has_the_form_of_chat(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    answer, record = play(gateway, upstream, asks_messages(), said("messages-400"))
    assert answer.status == 400
    assert answer.json["error"] == {
        "type": "invalid_request_error", "message": "messages: at least one message is required",
    }  # fmt: skip
    check(record, FREE)
