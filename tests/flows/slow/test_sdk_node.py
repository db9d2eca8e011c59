"""openai-node against the simulator, with and without the gateway between them: who uses it should not notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.flows.gateway_process import CHAT, COMPLETIONS, EMBEDDINGS, Gateway, eventually, key, secret, settings
from tests.flows.sdks import Call, Received, ask_node

from .test_sdk import simulated

HELLO = [{"role": "user", "content": "Hello, how are you today?"}]
CHATTING: dict[str, Any] = {"model": CHAT, "messages": HELLO, "seed": 7}
COMPLETING: dict[str, Any] = {"model": COMPLETIONS, "prompt": "Once upon a time", "seed": 7}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
STREAM = {"stream": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with simulated(tmp_path_factory) as address:
        yield address


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, simulator: str) -> Gateway:
    return start_shared_gateway(settings(simulator, keys=[key("alice", quotas=[{"tokens": 10**8, "per": "day"}])]))


def ask(gateway: Gateway, *calls: Call, who: str = "alice") -> list[Received]:
    return ask_node(f"{gateway.url}/v1", secret(who), calls)


def said(received: Received) -> Any:
    """An answer without what differs from call to call. Of chunks, `usage: null` says no more than no usage."""
    assert "error" not in received, received
    return [_said(each) for each in received.get("chunks", [received.get("data")])]


def _said(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    varied = ("id", "created", "_request_id", *(() if value.get("usage") else ("usage",)))
    return {name: each for name, each in value.items() if name not in varied}


CALLS = [
    Call("chat.completions", CHATTING),
    Call("chat.completions", CHATTING | {"n": 2, "tools": [WEATHER]}),
    Call("chat.completions", CHATTING | {"logprobs": True, "top_logprobs": 2, "max_tokens": 5}),
    Call("completions", COMPLETING | {"n": 2, "best_of": 3, "max_tokens": 5, "logprobs": 1, "echo": True}),
    Call("completions", COMPLETING | {"prompt": ["a", "b"], "stop": [" the"]}),
    Call("embeddings", {"model": EMBEDDINGS, "input": ["a", "b"]}),
    Call("embeddings", {"model": EMBEDDINGS, "input": "a", "encoding_format": "float", "dimensions": 8}),
    Call("chat.completions", CHATTING | STREAM),
    Call("chat.completions", CHATTING | USAGE | {"n": 2}),
    Call("chat.completions", CHATTING | STREAM | {"tools": [WEATHER]}),
    Call("completions", COMPLETING | STREAM),
    Call("completions", COMPLETING | USAGE | {"n": 2, "max_tokens": 9}),
]


def test_every_answer_is_the_upstream_s_own(gateway: Gateway, simulator: str) -> None:
    """Once through the gateway and once without it; each call is recorded under the id that the SDK shows."""
    through, direct = ask(gateway, *CALLS), ask_node(simulator, "any", CALLS)
    for call, one, other in zip(CALLS, through, direct, strict=True):
        assert said(one) == said(other), call
        record = gateway.call(one["request_id"])
        assert (record["status"], record["ended"], record["usage_source"]) == (200, "done", "reported")
        if (usage := (one.get("data") or one["chunks"][-1]).get("usage")) is not None:
            assert record["prompt_tokens"] == usage["prompt_tokens"]
    asked_usage = [bool(call.body.get("stream_options")) for call in CALLS if call.body.get("stream")]
    streams = [received["chunks"] for received in through if "chunks" in received]
    assert [any(chunk.get("usage") for chunk in chunks) for chunks in streams] == asked_usage


def test_models(gateway: Gateway) -> None:
    assert ask(gateway, Call("models", {})) == [{"data": sorted([CHAT, COMPLETIONS, EMBEDDINGS])}]


def test_errors_have_all_that_the_sdk_shows(gateway: Gateway) -> None:
    calls = {
        "BadRequestError": Call("completions", COMPLETING | {"n": 129}),
        "NotFoundError": Call("chat.completions", CHATTING | STREAM | {"model": "no-such-model"}),
    }
    received = ask(gateway, *calls.values())
    assert [each["error"].pop("request_id").startswith("req_") for each in received] == [True, True]
    messages = [each["error"].pop("message") for each in received]
    fields: dict[str, Any] = {"type": "invalid_request_error"}
    assert [each["error"] for each in received] == [
        fields | {"name": "BadRequestError", "status": 400, "code": "integer_above_max_value", "param": "n"},
        fields | {"name": "NotFoundError", "status": 404, "code": "model_not_found", "param": None},
    ]
    assert messages[0].startswith("400 Invalid 'n': integer above maximum value.")
    (unknown,) = ask(gateway, calls["BadRequestError"], who="nobody")
    assert (unknown["error"]["name"], unknown["error"]["status"]) == ("AuthenticationError", 401)
    assert unknown["error"]["code"] == "invalid_api_key"


def test_stream_that_is_cut_is_an_error_and_never_a_short_answer(gateway: Gateway) -> None:
    body = CHATTING | STREAM | {"simulate": {"cut_after_events": 3}}
    (received,) = ask(gateway, Call("chat.completions", body))
    assert len(received["chunks"]) == 3
    assert (received["error"]["name"], received["error"]["code"]) == ("APIError", "upstream_error")
    assert gateway.call(received["request_id"])["truncated"]


def test_abort_in_a_stream_is_no_error_and_frees_what_was_reserved(gateway: Gateway) -> None:
    body = CHATTING | STREAM | {"simulate": {"tokens_per_s": 50, "tokens": 500}}
    (received,) = ask(gateway, Call("chat.completions", body, leave_after=3))
    assert 3 <= len(received["chunks"]) < 500  # chunks from before the fault are still delivered
    assert "error" not in received
    record = gateway.call(received["request_id"])
    assert (record["ended"], record["client_gone"]) == ("client_gone", True)
    (window,) = gateway.get("/v1/key").json["quotas"]
    assert window["reserved"] == 0
    assert eventually(lambda: gateway.metric("gateway_in_flight_requests") == 0)
