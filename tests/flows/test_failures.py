"""Calls while an upstream fails: which attempts are made again, and what the client and the records see of them.

test_faults.py has each single fault with its result.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import (
    Behaviour,
    close_without_answer,
    cut_mid_body,
    dead_port,
    error_json,
    ok_json,
    raw,
    silent,
)

from .gateway_process import Gateway, eventually, key, model, settings

REAL_MODEL = "up-instruct-v2-0914"


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    routes = [{"upstream": "main", "model": REAL_MODEL}]
    models = {
        "alias": model("completions") | {"routes": routes},
        "hasty": model("completions", "hasty"),
        "often": model("completions", repeat_when_waiting=True),
        "dead": model("completions", "dead"),
        "dead-once": model("completions", "dead", max_attempts=1),
    }
    upstreams: dict[str, Any] = {
        "hasty": {"base_url": shared_upstream.url, "timeouts": {"head_s": 0.4}},
        "dead": {"base_url": f"http://127.0.0.1:{dead_port()}/v1"},
    }
    quota = [{"requests": 1000, "per": "day"}, {"tokens": 100_000, "per": "day"}]
    keys = [key("alice", quotas=quota), key("bob"), key("one-by-one", max_parallel=1)]
    return start_shared_gateway(
        settings(
            shared_upstream.url, models=models, upstreams=upstreams, keys=keys, server={"max_response_bytes": 10_000}
        )
    )


def status(number: int, *headers: tuple[str, str], **error: Any) -> Behaviour:
    return error_json(number, headers, **error)


LAST = ok_json(headers=[("Connection", "close")])
"""A good answer behind which no connection is left: on one that was used before, a failure may be repeated."""


def test_refused_port(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Nothing was sent, so it is tried again: three times by default."""
    failed = gateway.complete(model="dead")
    assert (failed.status, failed.error["code"]) == (502, "upstream_error")
    assert failed.headers["x-gateway-attempts"] == "3"
    failed = gateway.complete(model="dead-once")
    assert failed.headers["x-gateway-attempts"] == "1"
    assert str(gateway.config["upstreams"]["dead"]["base_url"]) not in failed.body.decode()
    assert gateway.call(failed.id)["upstream"] == "dead"
    assert gateway.metric("gateway_upstream_attempts_total", upstream="dead", outcome="connect_failed") == 4


def test_host_without_address(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    upstreams = {"main": {"base_url": "http://nowhere.invalid/v1", "timeouts": {"connect_s": 3}}}
    gateway = start_gateway(settings(upstream.url, upstreams=upstreams))
    failed = gateway.complete()
    assert failed.status in (502, 504)
    assert "nowhere" not in failed.body.decode()


def test_param_and_code_of_the_client_s_fault_are_kept(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    said = {"message": "This model's maximum context length is 4097 tokens.", "type": "invalid_request_error"}
    upstream.answer_with(status(400, **said, param="messages", code="context_length_exceeded"))
    failed = gateway.chat()
    assert failed.refusal == (400, "invalid_request_error", "messages", "context_length_exceeded")
    assert failed.error["message"] == said["message"]


def test_alias_goes_up_and_the_upstream_s_name_comes_down(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"model": REAL_MODEL, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}))
    got = gateway.complete(model="alias")
    assert upstream.requests[0].json == {"model": REAL_MODEL, "prompt": "Hello"}
    assert got.json["model"] == REAL_MODEL
    record = gateway.call(got.id)
    assert (record["model"], record["routed_model"], record["returned_model"]) == ("alias", REAL_MODEL, REAL_MODEL)


# ------------------------------------------------------------------------------------------------------- repetitions


def fill_pool(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Leave an idle connection behind."""
    upstream.answer_with(LAST, ok_json())
    assert gateway.complete().status == 200
    assert gateway.complete().status == 200


def test_stale_connection_is_repeated_once(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The upstream closes an idle connection at the moment of the next write: it has not read the request."""
    fill_pool(gateway, upstream)
    upstream.answer_with(close_without_answer, ok_json())
    got = gateway.complete()
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "2")
    assert upstream.requests[0].body == upstream.requests[1].body
    assert upstream.requests[0].connection != upstream.requests[1].connection
    assert gateway.call(got.id)["attempts"] == 2


def test_stale_connection_is_repeated_only_once(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    fill_pool(gateway, upstream)
    upstream.answer_with(close_without_answer, close_without_answer)
    got = gateway.complete()
    assert (got.status, got.headers["x-gateway-attempts"]) == (502, "2")


def test_call_that_was_sent_and_not_answered_is_repeated_only_where_the_model_says_so(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(cut_mid_body, cut_mid_body, ok_json())
    got = gateway.complete(model="often")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "3")
    upstream.answer_with(cut_mid_body)
    assert gateway.complete().status == 502


def test_gateway_serves_while_an_upstream_is_silent(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(silent, ok_json())
    with gateway.connect() as waiting:
        body = json.dumps({"model": "hasty", "prompt": "Hi"}).encode()
        waiting.post("/v1/completions", body, gateway.config["keys"][0]["secret"])
        eventually(lambda: upstream.hits == 1)
        assert gateway.complete("bob").status == 200
        assert waiting.read_answer().status == 504


def test_answer_without_a_content_type_gets_one(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
    assert gateway.complete().headers["content-type"] == "application/json"
