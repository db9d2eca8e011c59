"""What a client lives through when an upstream fails: a true status, plain words, and a good next call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import (
    Behaviour,
    answer,
    close_without_answer,
    cut_mid_body,
    dead_port,
    dribble_head,
    error_json,
    keepalive_then_close,
    not_http,
    ok_json,
    raw,
    reset_mid_body,
    reset_without_answer,
    silent,
)

from .house import COMPLETIONS, UPSTREAM_KEY, Gateway, eventually, key, model, settings

REAL_MODEL = "up-instruct-v2-0914"


@pytest.fixture(scope="module")
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
    routes = [{"upstream": "main", "model": REAL_MODEL}]
    models = {
        "alias": model("completions") | {"routes": routes},
        "often": model("completions", repeat_when_waiting=True),
        "dead": model("completions", "dead"),
        "dead-once": model("completions", "dead", max_attempts=1),
    }
    upstreams: dict[str, Any] = {
        "main": {"timeouts": {"head_s": 0.4, "idle_s": 0.4, "connect_s": 1}},
        "dead": {"base_url": f"http://127.0.0.1:{dead_port()}/v1"},
    }
    quota = [{"requests": 1000, "per": "day"}, {"tokens": 100_000, "per": "day"}]
    keys = [key("alice", quotas=quota), key("bob"), key("one-by-one", max_parallel=1)]
    return gateways(
        settings(theatre.url, models=models, upstreams=upstreams, keys=keys, server={"max_response_bytes": 10_000})
    )


def status(number: int, *headers: tuple[str, str], **error: Any) -> Behaviour:
    return error_json(number, headers, **error)


LAST = ok_json(headers=[("Connection", "close")])
"""A good answer behind which no connection is left: on one that was used before, a failure may be repeated."""

AFTER_7 = ("Retry-After", "7")
HTML = [("Content-Type", "text/html")]

FAILURES: dict[str, tuple[Behaviour, int, str]] = {
    "hangs up": (close_without_answer, 502, "upstream_error"),
    "resets": (reset_without_answer, 502, "upstream_error"),
    "cut mid body": (cut_mid_body, 502, "upstream_error"),
    "reset mid body": (reset_mid_body, 502, "upstream_error"),
    "silent": (silent, 504, "upstream_timeout"),
    "dribbles its head": (dribble_head(), 504, "upstream_timeout"),
    "silent mid body": (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), 504, "upstream_timeout"),
    "not HTTP": (not_http, 502, "upstream_error"),
    "head too long": (raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000), 502, "upstream_error"),
    "HTML in a 200": (answer(b"<html>Welcome to nginx!</html>", headers=HTML), 502, "upstream_error"),
    "HTML in a 502": (answer(b"<html>Bad Gateway</html>", 502, headers=HTML), 502, "upstream_error"),
    "nothing in a 200": (answer(b""), 502, "upstream_error"),
    "an array in a 200": (answer(b"[]"), 502, "upstream_error"),
    "half of its JSON": (answer(b'{"id": "cmpl'), 502, "upstream_error"),
    "204": (raw(b"HTTP/1.1 204 No Content\r\n\r\n"), 502, "upstream_error"),
    "too long": (answer(json.dumps({"text": "x" * 10_000}).encode()), 502, "upstream_error"),
    "redirect": (answer(b"", 307, headers=[("Location", "http://127.0.0.1:1/v1/completions")]), 502, "upstream_error"),
    "401": (status(401, code="invalid_api_key"), 502, "upstream_auth_failed"),
    "403": (status(403), 502, "upstream_auth_failed"),
    "402": (status(402), 502, "upstream_quota_exceeded"),
    "403 of a spent balance": (status(403, code="insufficient_user_quota"), 502, "upstream_quota_exceeded"),
    "429 of a spent balance": (status(429, code="insufficient_quota"), 502, "upstream_quota_exceeded"),
    "429": (status(429, AFTER_7), 429, "upstream_rate_limited"),
    "429 without anything": (answer(b"", 429), 429, "upstream_rate_limited"),
    "500": (status(500), 502, "upstream_error"),
    "502": (status(502), 502, "upstream_error"),
    "503": (status(503, AFTER_7), 503, "upstream_error"),
    "504": (status(504), 502, "upstream_error"),
    "529": (status(529), 502, "upstream_error"),
    "an error in a 200": (ok_json({"error": {"message": "oops", "type": "server_error"}}), 502, "upstream_error"),
    "a spent balance in a 200": (
        ok_json({"error": {"code": "insufficient_user_quota"}}), 502, "upstream_quota_exceeded"
    ),
    "the client's fault in a 200": (
        ok_json({"error": {"message": "no", "type": "invalid_request_error", "code": "bad", "param": ""}}), 400, "bad"
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", FAILURES)
def test_failure_is_told_and_the_next_call_is_good(house: Gateway, upstream: Stage, story: str) -> None:
    behaviour, code_of_status, code = FAILURES[story]
    upstream.play(behaviour, LAST)
    failed = house.complete("one-by-one")
    assert (failed.status, failed.error["code"]) == (code_of_status, code)
    assert failed.error["param"] is None
    assert len(failed.error["message"]) < 200
    assert not [each for each in ("127.0.0.1", "nginx", "scripted") if each in failed.error["message"]]
    assert (failed.headers["x-gateway-upstream"], failed.headers["x-gateway-attempts"]) == ("main", "1")
    assert "retry-after" in failed.headers or code_of_status not in (429, 503)
    assert "x-should-retry" not in failed.headers
    assert house.complete("one-by-one").status == 200
    assert upstream.hits == 2
    record = house.call(failed.id)
    assert (record["status"], record["ended"], record["completion_tokens"]) == (code_of_status, "error", 0)
    assert house.line(id=failed.id)["status"] == code_of_status


@pytest.mark.parametrize("number", [429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds", "ms"),
    [
        ([("Retry-After", "7")], "7", "7000"),
        ([("Retry-After-Ms", "1500"), ("Retry-After", "9")], "2", "1500"),
        ([("Retry-After", "0")], "1", "1"),
        ([("Retry-After", "Fri, 20 Nov 2020 20:00:00 GMT")], "1", "1"),
        ([("Retry-After", "soon")], "1", "1000"),
        ([], "1", "1000"),
    ],
)
def test_retry_after_is_handed_on(
    house: Gateway, upstream: Stage, number: int, headers: list[tuple[str, str]], seconds: str, ms: str
) -> None:
    upstream.play(status(number, *headers))
    failed = house.complete()
    assert failed.status == number
    assert (failed.headers["retry-after"], failed.headers["retry-after-ms"]) == (seconds, ms)


def test_refused_port(house: Gateway, upstream: Stage) -> None:
    """Nothing was sent, so it is tried again: three times by default."""
    failed = house.complete(model="dead")
    assert (failed.status, failed.error["code"]) == (502, "upstream_error")
    assert failed.headers["x-gateway-attempts"] == "3"
    failed = house.complete(model="dead-once")
    assert failed.headers["x-gateway-attempts"] == "1"
    assert str(house.config["upstreams"]["dead"]["base_url"]) not in failed.body.decode()
    assert house.call(failed.id)["upstream"] == "dead"
    assert house.metric("gateway_upstream_attempts_total", upstream="dead", outcome="connect_failed") == 4


def test_host_without_address(gateway: StartsGateways, upstream: Stage) -> None:
    upstreams = {"main": {"base_url": "http://nowhere.invalid/v1", "timeouts": {"connect_s": 0.5}}}
    house = gateway(settings(upstream.url, upstreams=upstreams))
    failed = house.complete()
    assert failed.status in (502, 504)
    assert "nowhere" not in failed.body.decode()


@pytest.mark.parametrize("number", [400, 404, 413, 422])
def test_fault_of_the_client_is_relayed_and_cleaned(house: Gateway, upstream: Stage, number: int) -> None:
    said = f"The model `{REAL_MODEL}` at {upstream.url} (127.0.0.1) with key {UPSTREAM_KEY} says no to {REAL_MODEL}."
    upstream.play(status(number, message=said, type="invalid_request_error", param="", code="some_code"))
    failed = house.complete(model="alias")
    assert failed.told == (number, "invalid_request_error", None, "some_code")
    text = failed.body.decode()
    for ours in (UPSTREAM_KEY, "127.0.0.1", REAL_MODEL, str(upstream.port)):
        assert ours not in text
    assert failed.error["message"].startswith("The model `alias` at the upstream")
    assert "retry-after" not in failed.headers


def test_param_and_code_of_the_client_s_fault_are_kept(house: Gateway, upstream: Stage) -> None:
    said = {"message": "This model's maximum context length is 4097 tokens.", "type": "invalid_request_error"}
    upstream.play(status(400, **said, param="messages", code="context_length_exceeded"))
    failed = house.chat()
    assert failed.told == (400, "invalid_request_error", "messages", "context_length_exceeded")
    assert failed.error["message"] == said["message"]


def test_alias_goes_up_and_the_upstream_s_name_comes_down(house: Gateway, upstream: Stage) -> None:
    upstream.play(ok_json({"model": REAL_MODEL, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}))
    got = house.complete(model="alias")
    assert upstream.requests[0].json == {"model": REAL_MODEL, "prompt": "Hello"}
    assert got.json["model"] == REAL_MODEL
    record = house.call(got.id)
    assert (record["model"], record["routed_model"], record["returned_model"]) == ("alias", REAL_MODEL, REAL_MODEL)


def test_failed_call_costs_no_tokens(house: Gateway, upstream: Stage) -> None:
    def used() -> dict[str, tuple[int, int]]:
        return {quota["unit"]: (quota["used"], quota["reserved"]) for quota in house.get("/v1/key").json["quotas"]}

    before = used()
    upstream.play(status(500), cut_mid_body, silent, status(400))
    for _ in range(4):
        house.complete(max_tokens=100)
    assert used() == {"requests": (before["requests"][0] + 4, 0), "tokens": before["tokens"]}


# ------------------------------------------------------------------------------------------------------- repetitions


def fill_pool(house: Gateway, upstream: Stage) -> None:
    """Leave an idle connection behind."""
    upstream.play(LAST, ok_json())
    assert house.complete().status == 200
    assert house.complete().status == 200


def test_stale_connection_is_repeated_once(house: Gateway, upstream: Stage) -> None:
    """The upstream closes an idle connection in the moment in which we write to it: nobody has read the request."""
    fill_pool(house, upstream)
    upstream.play(close_without_answer, ok_json())
    got = house.complete()
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "2")
    assert upstream.requests[0].body == upstream.requests[1].body
    assert upstream.requests[0].connection != upstream.requests[1].connection
    assert house.call(got.id)["attempts"] == 2


def test_stale_connection_is_repeated_only_once(house: Gateway, upstream: Stage) -> None:
    fill_pool(house, upstream)
    upstream.play(close_without_answer, close_without_answer)
    got = house.complete()
    assert (got.status, got.headers["x-gateway-attempts"]) == (502, "2")


def test_connection_that_the_upstream_closes_between_calls_is_not_noticed(house: Gateway, upstream: Stage) -> None:
    upstream.play(*[keepalive_then_close] * 5)
    for _ in range(5):
        open_before = upstream.connections
        assert house.complete().status == 200
        eventually(lambda before=open_before: upstream.open_now == 0 or upstream.connections > before)


def test_call_that_was_sent_and_not_answered_is_repeated_only_where_the_model_says_so(
    house: Gateway, upstream: Stage
) -> None:
    upstream.play(cut_mid_body, cut_mid_body, ok_json())
    got = house.complete(model="often")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "3")
    upstream.play(cut_mid_body)
    assert house.complete().status == 502


def test_gateway_serves_while_an_upstream_is_silent(house: Gateway, upstream: Stage) -> None:
    upstream.play(silent, ok_json())
    with house.connect() as waiting:
        body = json.dumps({"model": COMPLETIONS, "prompt": "Hi"}).encode()
        waiting.post("/v1/completions", body, house.config["keys"][0]["secret"])
        eventually(lambda: upstream.hits == 1)
        assert house.complete("bob").status == 200
        assert waiting.read_answer().status == 504


def test_answer_without_a_content_type_gets_one(house: Gateway, upstream: Stage) -> None:
    upstream.play(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
    assert house.complete().headers["content-type"] == "application/json"
