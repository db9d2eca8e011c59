"""Anthropic's Messages API through a whole gateway."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, answer, chunk, cut_stream, ok_json, raw, stream

from .client import Answer
from .gateway_process import COMPLETIONS, UPSTREAM_KEY, Gateway, key, model, settings

RECORDED = {
    path.stem: path.read_bytes() for path in sorted((Path(__file__).parents[1] / "recorded/messages").glob("*"))
}
CLAUDE = "claude-under-test"
USAGE = {
    "input_tokens": 4, "cache_creation_input_tokens": 1200, "cache_read_input_tokens": 3400, "output_tokens": 89,
    "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 1000},
    "server_tool_use": {"web_search_requests": 2}, "output_tokens_details": {"thinking_tokens": 40},
}  # fmt: skip
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": CLAUDE, "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "Hello!"}], "usage": USAGE,
}  # fmt: skip


def messages_model(upstream: str = "main", **more: Any) -> dict[str, Any]:
    return model("messages", upstream, **more)


def gateway_settings(url: str, **changes: Any) -> dict[str, Any]:
    """A gateway before an upstream that has the Messages API."""
    plain = settings(url, upstreams={"main": {"capabilities": {"messages": True}}})
    plain["models"] = {CLAUDE: messages_model(), COMPLETIONS: model("completions")}
    return plain | changes


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    keys = [
        key("alice"), key("bob"), key("spent", quotas=[{"requests": 1, "per": "day"}]),
        key("paced", quotas=[{"requests": 5, "per": "minute"}, {"tokens": 1_000_000, "per": "day"}]),
        key("bound", limits={"max_tokens": 64, "deny": ["top_k"], "stop": 1}),
    ]  # fmt: skip
    return start_shared_gateway(gateway_settings(shared_upstream.url, keys=keys))


def post(gateway: Gateway, path: str = "/v1/messages", who: str = "alice", **changes: Any) -> Answer:
    """A small message. Members that are None are left out."""
    headers = changes.pop("headers", {"anthropic-version": "2023-06-01"})
    members = {"model": CLAUDE, "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]} | changes
    given = {name: value for name, value in members.items() if value is not None}
    return gateway.post(path, given, key=who, headers=headers)


def received(answer: Answer) -> tuple[int, str, str]:
    """What an error says: status, type, message. Its shape has to be Anthropic's."""
    whole = answer.json
    assert sorted(whole) == ["error", "request_id", "type"], answer
    assert whole["type"] == "error"
    assert whole["request_id"] == answer.headers["request-id"] == answer.id
    return answer.status, whole["error"]["type"], whole["error"]["message"]


def used(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    """What its record says."""
    call = gateway.call(answer.id)
    names = "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "units", "usage_source"
    return {name: call[name] for name in names}


def test_plain_message_is_passed_on_and_charged(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    body = json.dumps(MESSAGE).encode()
    upstream.answer_with(answer(body))
    got = post(gateway)
    assert (got.status, got.body, got.headers["request-id"]) == (200, body, got.id)
    assert used(gateway, got) == {
        "prompt_tokens": 4604, "completion_tokens": 89, "cached_tokens": 3400, "reasoning_tokens": 40,
        "units": {"cache_write": 200, "cache_write_1h": 1000, "web_searches": 2}, "usage_source": "reported",
    }  # fmt: skip
    assert gateway.call(got.id)["endpoint"] == "messages"


def test_request_goes_up_as_it_came(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(MESSAGE))
    raw_body = (
        b'{ "model": "%s",  "max_tokens":5, "messages":[{"role":"user","content":"\\u0048i"}], "new": {"a":1.50} }'
    )
    raw_body %= CLAUDE.encode()
    headers = {
        "anthropic-version": "2026-10-21", "anthropic-beta": "a-1,b-2", "x-api-key": "", "x-app": "cli",
        "anthropic-workspace-id": "wrkspc_1", "anthropic-dangerous-direct-browser-access": "true",
    }  # fmt: skip
    del headers["x-api-key"]
    got = gateway.post("/v1/messages?beta=true&key=sk-secret", raw_body, headers=headers)
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
def test_stream_is_passed_on_and_charged(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, expected: tuple[Any, ...]
) -> None:
    upstream.answer_with(raw(CHUNKED + chunk(RECORDED[name]) + b"0\r\n\r\n"))
    # The ceilings of reports are those of the request: a search and a compaction may read what is not in it.
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    got = post(gateway, stream=True, max_tokens=4096, tools=tools)
    text = RECORDED[name].removesuffix(b"data: [DONE]\n\n")
    assert got.body == (text if text.endswith(b"\n\n") else text + b"\n\n")
    assert got.headers["content-type"] == "text/event-stream"
    assert got.headers["request-id"] == got.id
    assert tuple(used(gateway, got).values()) == expected


# ------------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
        ({"max_tokens": "5"}, "max_tokens: Input should be a valid integer"),
        ({"messages": []}, "messages: List should have at least 1 item after validation, not 0"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content: Input should be a string or array of objects",
        ),
        ({"temperature": 1.5}, "temperature: Input should be less than or equal to 1"),
        ({"top_p": -0.1}, "top_p: Input should be greater than or equal to 0"),
        ({"top_k": -1}, "top_k: Input should be greater than or equal to 0"),
        ({"service_tier": "flex"}, "service_tier: Input should be 'auto' or 'standard_only'"),
        ({"thinking": {"type": "enabled"}}, "thinking.enabled.budget_tokens: Field required"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 4096},
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 2048},
            "`max_tokens` must be greater than `thinking.budget_tokens`.",
        ),
        ({"fallbacks": [{"model": 5}]}, "fallbacks.0.model: Input should be a valid string"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:40],
)  # fmt: skip
def test_faults_are_found_before_money_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, changes: dict[str, Any], message: str
) -> None:
    assert received(post(gateway, **changes)) == (400, "invalid_request_error", message)


def test_a_body_that_is_no_json_is_refused_in_the_words_of_the_api(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    status, kind, message = received(gateway.post("/v1/messages", b'{"model": }', headers={}))
    assert (status, kind) == (400, "invalid_request_error")
    assert message.startswith("The request body is not valid JSON: Expecting value at line 1")
    assert "OpenAI" not in message


@pytest.mark.parametrize(
    "thinking",
    [{"type": "adaptive"}, {"type": "disabled"}, {"type": "between_tools"}, {"type": "enabled", "budget_tokens": 9000}],
    ids=lambda value: str(value["type"]),
)
def test_thinking_that_is_allowed(gateway: Gateway, upstream: ScriptedUpstream, thinking: dict[str, Any]) -> None:
    upstream.answer_with(ok_json(MESSAGE))
    tools = [{"name": "f", "input_schema": {"type": "object"}}]  # with which a budget may be that of several turns
    assert post(gateway, thinking=thinking, tools=tools, max_tokens=4096).status == 200


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"max_tokens": 65}, "max_tokens"), ({"top_k": 5}, "top_k"), ({"stop_sequences": ["a", "b"]}, "stop_sequences")],
)
def test_limits_of_a_key_bind(
    gateway: Gateway, upstream: ScriptedUpstream, changes: dict[str, Any], param: str
) -> None:
    status, kind, message = received(post(gateway, who="bound", **changes))
    assert (status, kind) == (400, "invalid_request_error")
    assert f"'{param}'" in message
    upstream.answer_with(ok_json(MESSAGE))
    assert post(gateway, who="bound", stop_sequences=["a"]).status == 200


# --------------------------------------------------------------------------------------------------------------- errors


def test_errors_of_the_gateway_have_the_shape_of_the_api(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    status, kind, message = received(post(gateway, model="claude-unknown"))
    assert (status, kind) == (404, "not_found_error")
    assert message.startswith("model: ")
    status, kind, message = received(post(gateway, model=COMPLETIONS))
    assert (status, kind, message[:7]) == (404, "not_found_error", "model: ")
    assert received(gateway.post("/v1/messages", b"{}", key=None))[:2] == (401, "authentication_error")
    assert received(gateway.send("GET", "/v1/messages"))[:2] == (405, "invalid_request_error")
    assert received(post(gateway, path="/v1/messages/x"))[:2] == (404, "not_found_error")


def test_a_spent_quota_ends_with_one_request_and_is_not_overloaded(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(ok_json(MESSAGE))
    assert post(gateway, who="spent").status == 200
    got = post(gateway, who="spent")
    status, kind, message = received(got)
    assert (status, kind, got.json["error"]["details"]) == (
        429,
        "rate_limit_error",
        {"error_code": "insufficient_quota"},
    )
    assert got.headers["x-should-retry"] == "false"
    assert message.startswith("You exceeded the quota of your key of requests per day")


def test_limits_are_shown_in_the_headers_of_the_api(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    theirs = [("anthropic-ratelimit-tokens-limit", "7"), ("anthropic-organization-id", "org"), ("request-id", "theirs")]
    upstream.answer_with(ok_json(MESSAGE, headers=theirs))
    got = post(gateway, who="paced")
    shown = {name: value for name, value in got.headers.items() if name.startswith("anthropic-")}
    assert sorted(shown) == sorted(
        f"anthropic-ratelimit-{unit}-{what}"
        for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")
    )  # fmt: skip
    assert (shown["anthropic-ratelimit-requests-limit"], shown["anthropic-ratelimit-requests-remaining"]) == ("5", "4")
    assert shown["anthropic-ratelimit-tokens-limit"] == "1000000"
    for unit in ("requests", "tokens"):
        datetime.strptime(shown[f"anthropic-ratelimit-{unit}-reset"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert "x-ratelimit-limit-requests" not in got.headers
    assert got.headers["request-id"] == got.id


ANTHROPIC_ERRORS = {
    "invalid_request_error": (400, (400, "invalid_request_error")),
    "not_found_error": (404, (404, "not_found_error")),
    "request_too_large": (413, (413, "request_too_large")),
    "authentication_error": (401, (502, "api_error")),
    "permission_error": (403, (502, "api_error")),
    "billing_error": (402, (502, "api_error")),
    "rate_limit_error": (429, (429, "rate_limit_error")),
    "api_error": (500, (502, "api_error")),
    "timeout_error": (504, (502, "api_error")),
    "overloaded_error": (529, (529, "overloaded_error")),
}


def anthropic_error(kind: str, message: str = "scripted") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_theirs"}


@pytest.fixture(scope="module")
def refused(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """A gateway with an upstream for each kind of error, tried once: one error has no effect on the next."""
    one = {"base_url": shared_upstream.url, "api_key": UPSTREAM_KEY, "capabilities": {"messages": True}}
    names = [*ANTHROPIC_ERRORS, "balance", "uncounted"]
    models = {name: messages_model(name, max_attempts=1) for name in names}
    return start_shared_gateway(
        gateway_settings(shared_upstream.url, upstreams=dict.fromkeys(names, one), models=models)
    )


@pytest.mark.parametrize("kind", sorted(ANTHROPIC_ERRORS))
def test_errors_of_the_upstream(refused: Gateway, upstream: ScriptedUpstream, kind: str) -> None:
    status, expected = ANTHROPIC_ERRORS[kind]
    upstream.answer_with(answer(json.dumps(anthropic_error(kind)).encode(), status))
    assert received(post(refused, model=kind))[:2] == expected


def test_a_spent_balance_at_the_upstream_is_not_the_clients_fault(refused: Gateway, upstream: ScriptedUpstream) -> None:
    words = "Your credit balance is too low to access the Anthropic API."
    upstream.answer_with(answer(json.dumps(anthropic_error("invalid_request_error", words)).encode(), 400))
    got = post(refused, model="balance")
    assert received(got)[:2] == (502, "api_error")
    assert (got.json["error"]["details"]["error_code"], got.headers["x-should-retry"]) == (
        "upstream_quota_exceeded", "false",
    )  # fmt: skip
    assert words not in got.body.decode()


# -------------------------------------------------------------------------------------------------------------- streams


def last_event(body: bytes) -> tuple[str, Any]:
    """Name and data of the last event."""
    name, data = body.rpartition(b"event: ")[2].removesuffix(b"\n\n").split(b"\ndata: ")
    return name.decode(), json.loads(data)


@pytest.mark.parametrize(
    ("name", "kind", "charged"),
    [("error-in-stream", "overloaded_error", 25), ("ended-early", "api_error", 25)],
)
def test_a_stream_that_breaks_ends_with_an_error_event(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, kind: str, charged: int
) -> None:
    upstream.answer_with(raw(CHUNKED + chunk(RECORDED[name]) + b"0\r\n\r\n"))
    got = post(gateway, stream=True)
    assert got.body.startswith(RECORDED[name].partition(b"event: error")[0])
    event, data = last_event(got.body)
    assert (event, data["type"], data["error"]["type"], data["request_id"]) == ("error", "error", kind, got.id)
    assert b"Overloaded" not in got.body
    call = gateway.call(got.id)
    assert (call["prompt_tokens"], call["usage_source"], call["truncated"]) == (charged, "estimated", True)
    assert call["completion_tokens"] >= 1


def test_a_connection_that_breaks_ends_with_an_error_event(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(cut_stream([RECORDED["ended-early"]]))
    assert last_event(post(gateway, stream=True).body)[0] == "error"


def test_an_error_before_the_first_event_has_the_type_of_the_api(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    error = b"event: error\ndata: " + json.dumps(anthropic_error("overloaded_error")).encode() + b"\n\n"
    upstream.answer_with(always=raw(CHUNKED + chunk(error) + b"0\r\n\r\n"))
    got = post(gateway, stream=True)
    event, data = last_event(got.body)
    assert (event, data["error"]["type"]) == ("error", "overloaded_error")
    assert gateway.call(got.id)["completion_tokens"] == 0


def test_a_plain_answer_where_a_stream_was_asked_for_comes_as_events(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    """The SDKs read nothing else of a stream."""
    upstream.answer_with(ok_json(MESSAGE))
    got = post(gateway, stream=True)
    assert got.headers["content-type"].startswith("text/event-stream")
    kinds = [json.loads(line[6:])["type"] for line in got.body.splitlines() if line.startswith(b"data: ")]
    assert (got.status, kinds[0], kinds[-1]) == (200, "message_start", "message_stop")


# --------------------------------------------------------------------------------------------------------- other models


def test_models_named_inside_a_request_are_checked_and_mapped(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    models = {
        CLAUDE: messages_model(),
        "small": messages_model(routes=[{"upstream": "main", "model": "claude-haiku-4-5"}]),
        "elsewhere": messages_model("other"),
    }
    one = {"base_url": upstream.url, "api_key": UPSTREAM_KEY, "capabilities": {"messages": True}}
    keys = [key("alice"), key("bob", models=[CLAUDE])]
    gateway = start_gateway(
        gateway_settings(upstream.url, models=models, keys=keys, upstreams={"main": one, "other": one})
    )
    advisor = {"type": "advisor_20260301", "name": "advisor", "model": "small"}
    upstream.answer_with(ok_json(MESSAGE))
    assert post(gateway, tools=[advisor, {"name": "f"}], fallbacks=[{"model": "small", "max_tokens": 5}]).status == 200
    sent = upstream.requests[0].json
    assert sent["tools"] == [advisor | {"model": "claude-haiku-4-5"}, {"name": "f"}]
    assert sent["fallbacks"] == [{"model": "claude-haiku-4-5", "max_tokens": 5}]
    upstream.answer_with()
    assert received(post(gateway, who="bob", tools=[advisor]))[:2] == (404, "not_found_error")
    assert received(post(gateway, who="bob", fallbacks="default"))[:2] == (404, "not_found_error")
    assert received(post(gateway, fallbacks=[{"model": "unknown"}]))[:2] == (404, "not_found_error")
    status, kind, message = received(post(gateway, fallbacks=[{"model": "elsewhere"}]))
    assert (status, kind) == (400, "invalid_request_error")
    assert "'elsewhere' is not served by the same upstream" in message
    # In a body that is read by another process too.
    upstream.answer_with(ok_json(MESSAGE))
    long = [{"role": "user", "content": "x" * 100_000}]
    assert post(gateway, tools=[advisor | {"description": "y" * 10_000}], messages=long).status == 200
    assert upstream.requests[0].json["tools"][0]["model"] == "claude-haiku-4-5"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["small"], "fallbacks.0: Input should be a valid dictionary"),
        ({"model": "small"}, "fallbacks: Input should be 'default' or an array of objects"),
        ([{"model": 5}], "fallbacks.0.model: Input should be a valid string"),
    ],
    ids=["names", "object", "number"],
)
def test_fallbacks_of_another_shape_are_refused(
    gateway: Gateway, upstream: ScriptedUpstream, given: Any, said: str
) -> None:
    """An upstream may understand what the gateway would not check."""
    upstream.answer_with()
    assert received(post(gateway, fallbacks=given)) == (400, "invalid_request_error", said)


def iteration(kind: str, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "input_tokens": prompt, "output_tokens": output} | more


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("iterations", "cost_usd", "source"),
    [
        # Dollars per million: the large model has 5 and 25, above 200,000 tokens 10 and 40; the small one 1 and 5.
        ([iteration("message", 1000, 100)], 0.0075, "reported"),
        ([iteration("message", 1000, 100), iteration("advisor_message", 2000, 200, model="claude-haiku-4-5")],
         0.0075 + 0.003, "reported"),
        ([iteration("message", 1000, 100), iteration("fallback_message", 2000, 200, model="claude-haiku-4-5-20251001")],
         0.0075 + 0.003, "reported"),
        # Each run has the price of its own length.
        ([iteration("compaction", 150_000, 100), iteration("message", 150_000, 100)], 1.505, "reported"),
        ([iteration("compaction", 150_000, 100, model="claude-haiku-4-5"), iteration("message", 1000, 100)],
         0.1505 + 0.0075, "reported"),
        # A model that the request does not name: its price is not known, so it has the one of the model that was asked.
        ([iteration("message", 1000, 100), iteration("fallback_message", 2000, 200, model="claude-other")],
         0.0075 + 0.015, "estimated"),
    ],
    ids=["one", "advisor", "fallback-version", "compaction", "compaction-by-model", "unnamed"],
)  # fmt: skip
def test_iterations_of_another_model_have_its_price(
    priced: Gateway,
    upstream: ScriptedUpstream,
    is_stream: bool,
    iterations: list[dict[str, Any]],
    cost_usd: float,
    source: str,
) -> None:
    own = iterations[-1] if iterations[0]["type"] == "compaction" else iterations[0]
    usage = {"input_tokens": own["input_tokens"], "output_tokens": own["output_tokens"], "iterations": iterations}
    if is_stream:
        events = [
            {"type": "message_start", "message": MESSAGE | {"content": [], "usage": {"input_tokens": 1}}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        ]
        upstream.answer_with(stream(events, done=False))
    else:
        upstream.answer_with(ok_json(MESSAGE | {"usage": usage}))
    tools = [{"type": "advisor_20260301", "name": "advisor", "model": "small"}]
    got = post(priced, tools=tools, fallbacks=[{"model": "small"}], stream=is_stream, max_tokens=4096)
    assert got.status == 200
    call = priced.call(got.id)
    assert (call["cost_usd"], call["usage_source"]) == (pytest.approx(cost_usd, abs=1e-9), source)
    tokens = [sum(each[name] for each in iterations) for name in ("input_tokens", "output_tokens")]
    assert [call["prompt_tokens"], call["completion_tokens"]] == tokens


def test_the_dearest_model_of_a_request_is_reserved(priced: Gateway, upstream: ScriptedUpstream) -> None:
    asked = {"model": "small", "max_tokens": 3000, "fallbacks": [{"model": CLAUDE}]}
    upstream.answer_with(ok_json(MESSAGE | {"usage": {"input_tokens": 1, "output_tokens": 1}}))
    assert post(priced, who="poor", model="small", max_tokens=3000).status == 200  # $0.015
    status, _, message = received(post(priced, who="poor", **asked))  # $0.075
    assert status == 400
    assert "$0.05" in message
    assert "$0.075" in message


@pytest.fixture(scope="module")
def priced(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    long = {"above": 200_000, "input": 10, "output": 40}
    models = {
        CLAUDE: messages_model(price={"input": 5, "output": 25, "tiers": [long]}),
        "small": messages_model(
            routes=[{"upstream": "main", "model": "claude-haiku-4-5"}], price={"input": 1, "output": 5}
        ),
    }
    models["regional"] = messages_model(
        price={"input": 5, "output": 25, "variants": {"us": {"input": 5.5, "output": 27.5}}}
    )
    keys = [key("alice"), key("poor", quotas=[{"usd": 0.05, "per": "month"}])]
    return start_shared_gateway(gateway_settings(shared_upstream.url, models=models, keys=keys))


def test_a_region_has_its_price(priced: Gateway, upstream: ScriptedUpstream) -> None:
    usage = {"input_tokens": 1000, "output_tokens": 100, "service_tier": "standard"}
    for region, cost in (("us", 0.00825), ("global", 0.0075)):
        upstream.answer_with(ok_json(MESSAGE | {"usage": usage | {"inference_geo": region}}))
        call = priced.call(post(priced, model="regional").id)
        assert (call["cost_usd"], call["usage_source"]) == (pytest.approx(cost), "reported")
    # It is reserved where the request asks for it.
    upstream.answer_with(ok_json(MESSAGE))
    assert post(priced, who="poor", model="regional", max_tokens=1900, inference_geo="us").status == 400
    assert post(priced, who="poor", model="regional", max_tokens=1900).status == 200


# --------------------------------------------------------------------------------------------------------- count_tokens


def test_tokens_are_counted_as_a_request_without_tokens(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"input_tokens": 14}))
    got = post(gateway, "/v1/messages/count_tokens?beta=true", who="paced", max_tokens=None)
    assert (got.status, got.json) == (200, {"input_tokens": 14})
    assert upstream.requests[0].path == "/v1/messages/count_tokens?beta=true"
    call = gateway.call(got.id)
    assert (call["endpoint"], call["prompt_tokens"], call["completion_tokens"]) == ("count_tokens", 0, 0)


def test_no_upstream_counts_tokens(refused: Gateway, start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    path = "/v1/messages/count_tokens"
    upstream.answer_with(answer(b'{"detail": "Not Found"}', 404))
    assert received(post(refused, path, model="uncounted", max_tokens=None))[:2] == (404, "not_found_error")
    upstreams = {
        "main": {"base_url": upstream.url, "capabilities": {"messages": True, "count_tokens": False}},
        "none": {"base_url": upstream.url},
    }
    models = {CLAUDE: messages_model(), "chatty": messages_model("none")}
    gateway = start_gateway(gateway_settings(upstream.url, upstreams=upstreams, models=models))
    upstream.answer_with()
    assert received(post(gateway, path, max_tokens=None))[:2] == (404, "not_found_error")
    assert received(post(gateway, model="chatty"))[:2] == (404, "not_found_error")


# ----------------------------------------------------------------------------------------------------- models and paths


def test_models_are_listed_in_the_shape_that_the_client_knows(gateway: Gateway) -> None:
    version = {"anthropic-version": "2023-06-01"}
    shown = gateway.get("/v1/models?limit=1", headers=version)
    model_of_page = {
        "type": "model", "id": CLAUDE, "display_name": CLAUDE, "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }  # fmt: skip
    assert shown.json == {"data": [model_of_page], "has_more": True, "first_id": CLAUDE, "last_id": CLAUDE}
    rest = gateway.get(f"/v1/models?limit=1000&after_id={CLAUDE}", headers=version).json
    assert ([each["id"] for each in rest["data"]], rest["has_more"]) == ([COMPLETIONS], False)
    assert gateway.get(f"/v1/models/{CLAUDE}", headers=version).json == model_of_page
    assert gateway.get("/v1/models").json["object"] == "list"
    assert received(gateway.get("/v1/models?limit=0", headers=version))[:2] == (400, "invalid_request_error")
    assert received(gateway.get("/v1/models/none", headers=version))[:2] == (404, "not_found_error")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/v1/messages", "Did you mean /v1/messages? This client adds /v1 itself"),
        ("/messages", "Did you mean /v1/messages? The base URL of this client has to end in /v1."),
        ("/v1/messages/", "Leave out the slash"),
        ("//v1/messages", "Did you mean /v1/messages? Leave out the slash at the end of the base URL."),
        ("/v1//messages", "Did you mean /v1/messages? Leave out the slash at the end of the base URL."),
        ("//messages", "has to end in /v1. Leave out the slash at the end of the base URL."),
        ("/v1/complete", "use POST /v1/messages"),
    ],
)
def test_paths_that_are_not_served_name_the_remedy(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, words: str
) -> None:
    status, kind, message = received(post(gateway, path, headers={}))
    assert (status, kind) == (404, "not_found_error")
    assert words in message


def test_unknown_paths_get_an_error_in_the_client_s_format(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert received(post(gateway, "/v1/uploads"))[:2] == (404, "not_found_error")
    assert post(gateway, "/v1/uploads", headers={}).error["type"] == "invalid_request_error"
    assert post(gateway, "/chat/completions", headers={}).error["message"].endswith("has to end in /v1.")
    assert gateway.get("/models").error["message"] == (
        "Invalid URL (GET /models). Did you mean /v1/models? The base URL of this client has to end in /v1."
    )


def test_head_of_the_root_is_harmless(gateway: Gateway) -> None:
    got = gateway.send("HEAD", "/", key=None)
    assert (got.status, got.body) == (200, b"")


# ------------------------------------------------------------------------------------------------------------- upstream


def test_the_key_goes_up_where_anthropic_wants_it(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    one = {"base_url": upstream.url, "api_key": UPSTREAM_KEY, "key_header": "x-api-key"}
    gateway = start_gateway(
        gateway_settings(upstream.url, upstreams={"main": one | {"capabilities": {"messages": True}}})
    )
    upstream.answer_with(ok_json(MESSAGE))
    assert post(gateway).status == 200
    assert upstream.requests[0].headers["x-api-key"] == UPSTREAM_KEY
    assert "authorization" not in upstream.requests[0].headers
