"""What a platform and an operator see: health, metrics, reports, the access log, and errors that say what to do."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from gateway.web.access_log import FIELDS
from gateway.web.middleware import _shown_param
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import cut_stream, error_json, ok_json
from tests.patience import blocked_for_at_least

from .gateway_process import ADMIN_TOKEN, CHAT, COMPLETIONS, EMBEDDINGS, Gateway, eventually, key, secret, settings

METRICS_TOKEN = "metrics-token-0123456789"
BODY = json.dumps({"model": COMPLETIONS, "prompt": "Hello"}).encode()


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    keys = [
        key("alice"),
        key("bob"),
        key("carol", quotas=[{"requests": 9, "per": "day"}]),
        key("dan", quotas=[{"requests": 2, "per": "day"}]),
        key("teamed", team="crew"),
    ]
    server = {"max_request_bytes": 100_000, "client_body_timeout_s": 3}
    return start_shared_gateway(settings(shared_upstream.url, keys=keys, server=server, teams={"crew": {}}))


@pytest.fixture(scope="module")
def closed(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """Without an admin token, with a metrics token, and with lines for people."""
    changes: dict[str, Any] = {"admin": {"token": None}, "metrics": {"token": METRICS_TOKEN, "max_keys": 1}}
    return start_shared_gateway(settings(shared_upstream.url, server={"access_log": "text"}, **changes))


def usage_json(prompt: int, completion: int, **more: Any) -> Any:
    return ok_json(
        {"model": "up", "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion} | more}
    )


# ------------------------------------------------------------------------------------------------------------ health


def test_health_and_readiness(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert (gateway.get("/healthz", key=None).status, gateway.get("/readyz", key=None).status) == (200, 200)
    assert gateway.send("HEAD", "/healthz", key=None).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/models", "/v1/key", "/nothing"])
def test_every_answer_has_an_id_of_its_own(gateway: Gateway, upstream: ScriptedUpstream, path: str) -> None:
    ids = {gateway.get(path).id for _ in range(3)}
    assert len(ids) == 3
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in ids)


def test_probes_leave_no_line(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    probes = [gateway.get(path, key=None).id for path in ("/healthz", "/readyz", "/metrics")]
    gateway.line(id=gateway.get("/nothing").id)
    assert not [line for line in gateway.lines() if line["id"] in probes]


# ----------------------------------------------------------------------------------------------------------- metrics


def test_metrics_count_a_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}
    upstream.answer_with(usage_json(11, 7, **details), error_json(500))
    before = {each: gateway.metric(*each[:1], **dict(each[1])) for each in COUNTED}
    assert gateway.complete("bob").status == 200
    assert gateway.complete("bob").status == 502
    after = {each: gateway.metric(*each[:1], **dict(each[1])) for each in COUNTED}
    assert [after[each] - before[each] for each in COUNTED] == list(COUNTED.values())


LABELS = (("key", "bob"), ("model", COMPLETIONS))
COUNTED: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {
    ("gateway_requests_total", (*LABELS, ("status", "200"), ("endpoint", "completions"), ("upstream", "main"))): 1,
    ("gateway_requests_total", (*LABELS, ("status", "502"))): 1,
    ("gateway_tokens_total", (*LABELS, ("type", "prompt"), ("source", "reported"))): 11,
    ("gateway_tokens_total", (*LABELS, ("type", "completion"))): 7,
    ("gateway_tokens_total", (*LABELS, ("type", "cached"))): 3,
    ("gateway_tokens_total", (*LABELS, ("type", "reasoning"))): 2,
    ("gateway_request_duration_seconds_count", (("model", COMPLETIONS), ("upstream", "main"))): 2,
    ("gateway_time_to_first_token_seconds_count", (("model", COMPLETIONS), ("upstream", "main"))): 1,
    ("gateway_overhead_seconds_count", (("endpoint", "completions"),)): 2,
    ("gateway_upstream_attempts_total", (("upstream", "main"), ("outcome", "ok"))): 1,
    ("gateway_upstream_attempts_total", (("upstream", "main"), ("outcome", "status"))): 1,
}


def test_metrics_count_refusals_and_have_the_state_of_the_gateway(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    before = gateway.metric("gateway_rejections_total", reason="unauthorized")
    gateway.post("/v1/completions", BODY, key="nobody")
    assert gateway.metric("gateway_rejections_total", reason="unauthorized") == before + 1
    assert gateway.metric("gateway_build_info") == 1
    assert gateway.metric("gateway_config_generation") == 1
    assert gateway.metric("gateway_in_flight_requests") == 0
    assert gateway.metric("gateway_journal_pending_records") == 0
    assert gateway.metric("gateway_store_errors_total") == 0


def test_metrics_have_quotas(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    assert gateway.complete("carol").status == 200
    assert gateway.metric("gateway_quota_used", key="carol", unit="requests", per="day") == 1
    assert gateway.metric("gateway_quota_limit", key="carol", unit="requests", per="day") == 9


def test_names_that_clients_make_up_are_no_labels(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    for name in ("made-up", 'qu"ote', "x" * 200):
        assert gateway.complete(model=name).status == 404
    assert "made-up" not in gateway.get("/metrics", key=None).body.decode()
    assert gateway.metric("gateway_requests_total", key="alice", model="other", status="404") >= 3


def test_metrics_token(closed: Gateway, upstream: ScriptedUpstream) -> None:
    assert closed.get("/metrics", key=None).refusal == (401, "invalid_request_error", None, None)
    assert closed.get("/metrics").refusal == (401, "invalid_request_error", None, "invalid_api_key")
    answer = closed.get("/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_keys_beyond_max_keys_share_a_label(closed: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), ok_json(), ok_json())
    for who in ("alice", "bob", "carol"):
        assert closed.complete(who).status == 200
    text = closed.get("/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"}).body.decode()
    counted = {label for label in ("alice", "bob", "carol", "other") if f'key="{label}"' in text}
    assert counted == {"alice", "other"}


def test_an_aborted_scrape_delays_no_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    for _ in range(20):
        with gateway.connect() as client:
            client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert gateway.metric("gateway_build_info") == 1


# ------------------------------------------------------------------------------------------------------------- errors


def test_address_that_does_not_exist(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    answer = gateway.post("/v1/foo", {})
    assert answer.refusal == (404, "invalid_request_error", None, None)
    assert answer.error["message"] == "Invalid URL (POST /v1/foo)"


@pytest.mark.parametrize("path", ["/v1/edits", "/v1/engines/x/completions"])
def test_endpoint_that_the_gateway_does_not_have_says_what_to_use(
    gateway: Gateway, upstream: ScriptedUpstream, path: str
) -> None:
    answer = gateway.post(path, {"model": CHAT, "input": "Hi"})
    assert answer.refusal == (404, "invalid_request_error", None, None)
    assert "use POST /v1/" in answer.error["message"]


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("GET", "/v1/completions", "POST"),
    ("DELETE", "/v1/chat/completions", "POST"),
    ("PUT", "/v1/embeddings", "POST"),
    ("POST", "/v1/models", "GET"),
    ("DELETE", "/v1/models/x", "GET"),
    ("POST", "/metrics", "GET"),
])  # fmt: skip
def test_method_that_does_not_fit(
    gateway: Gateway, upstream: ScriptedUpstream, method: str, path: str, allowed: str
) -> None:
    answer = gateway.send(method, path)
    assert answer.refusal == (405, "invalid_request_error", None, None)
    assert answer.error["message"].startswith(f"Not allowed to {method} on {path}. (HINT:")
    assert allowed in answer.headers["allow"]


@pytest.mark.parametrize("given", ["text/plain", "multipart/form-data; boundary=x", "application/jsonp", "", None])
def test_content_type_that_is_not_json(gateway: Gateway, upstream: ScriptedUpstream, given: str | None) -> None:
    with gateway.connect() as client:
        more = [] if given is None else [f"Content-Type: {given}"]
        lines = ["POST /v1/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {secret('alice')}", *more]
        client.send("\r\n".join([*lines, f"Content-Length: {len(BODY)}", "", ""]).encode() + BODY)
        answer = client.read_answer()
    assert answer.refusal == (400, "invalid_request_error", None, "unsupported_content_type")


@pytest.mark.parametrize("given", ["application/json; charset=utf-8", "Application/JSON"])
def test_content_type_that_is_json(gateway: Gateway, upstream: ScriptedUpstream, given: str) -> None:
    upstream.answer_with(ok_json())
    assert gateway.post("/v1/completions", BODY, headers={"Content-Type": given}).status == 200


def test_body_that_is_not_compressed_as_its_head_says(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    answer = gateway.post("/v1/completions", BODY, headers={"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


HEAD = (
    f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n"
    "Content-Type: application/json\r\n"
)


def test_body_that_is_announced_too_long_is_refused_at_once(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(f"{HEAD}Content-Length: 100001\r\n\r\n".encode())
        answer = client.read_answer()
    assert answer.refusal == (413, "server_error", None, None)
    assert answer.error["message"] == "Maximum content size limit (100000) exceeded (100001 bytes announced)"
    assert answer.headers["connection"] == "close"


def test_body_that_grows_too_long_is_refused(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + b"186A1\r\n" + b" " * 100_001 + b"\r\n")
        assert client.read_answer().refusal == (413, "server_error", None, None)


def test_body_of_just_the_allowed_length_is_taken(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), ok_json())
    assert gateway.post("/v1/completions", BODY.ljust(100_000)).status == 200
    with gateway.connect() as client:
        client.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        client.send(b"%x\r\n%s\r\n0\r\n\r\n" % (100_000, BODY.ljust(100_000)))
        assert client.read_answer().status == 200


def test_body_that_trickles_is_given_up(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(f"{HEAD}Content-Length: 50\r\n\r\n".encode())
        answer = trickle_until_answered(client)
    assert answer.refusal == (408, "invalid_request_error", None, None)
    assert answer.headers["connection"] == "close"


def trickle_until_answered(client: Any) -> Any:
    """A byte now and then keeps no request alive."""
    for _ in range(8):
        client.send(b" ")
        time.sleep(0.05)
    return client.read_answer()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer SECRET\r\nbad header\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer SECRET\r\nX: a\0b\r\n\r\n",
        b"GET /SECRET HTTP/9.9\r\nHost: x\r\n\r\n",
        b"SECRET\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Long: " + b"SECRET" * 2000 + b"\r\n\r\n",
        b"POST /SECRET HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /SECRET HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 6\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01SECRET\r\n\r\n",
    ],
    ids=["no colon", "NUL", "version", "no request", "long line", "CL and TE", "two lengths", "TLS"],
)  # fmt: skip
def test_malformed_head_is_answered_and_not_logged(
    gateway: Gateway, upstream: ScriptedUpstream, request_: bytes
) -> None:
    with gateway.connect() as client:
        client.send(request_.replace(b"SECRET", secret("alice").encode()))
        answer = client.read_answer()
    assert answer.refusal == (400, "invalid_request_error", None, None)
    assert secret("alice") not in answer.body.decode()
    assert answer.headers["connection"] == "close"
    gateway.check_logs()


def test_a_malformed_chunk_is_refused_at_once(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        blocked_for_at_least(0.05)
        client.send(b"zz\r\n" + secret("alice").encode() + b"\r\n")
        assert client.read_answer().refusal == (400, "invalid_request_error", None, None)
    gateway.check_logs()


# ------------------------------------------------------------------------------------------------------- admin reports


@pytest.fixture
def ledger(gateway: Gateway, upstream: ScriptedUpstream) -> Gateway:
    upstream.answer_with(usage_json(10, 1), usage_json(20, 2), usage_json(30, 0), error_json(400, message="no"))
    assert gateway.complete("teamed").status == 200
    assert gateway.chat("teamed").status == 200
    assert gateway.post("/v1/embeddings", {"model": EMBEDDINGS, "input": "x"}, key="teamed").status == 200
    assert gateway.complete("teamed").status == 400
    return gateway


def test_usage_is_grouped(ledger: Gateway) -> None:
    rows = ledger.usage(group_by="team,model,endpoint")
    mine = [row for row in rows if row["team"] == "crew"]
    assert {row["model"] for row in mine} == {COMPLETIONS, CHAT, EMBEDDINGS}
    chat = next(row for row in mine if row["endpoint"] == "chat")
    assert chat["requests"] > 0
    assert chat["prompt_tokens"] == 20 * chat["requests"]
    assert chat["total_tokens"] == 22 * chat["requests"]
    assert (chat["cost_usd"], chat["errors"], chat["estimated_tokens"]) == (None, 0, 0)
    refused = next(row for row in mine if row["endpoint"] == "completions")
    assert refused["errors"] == refused["requests"] // 2
    everything = ledger.usage(group_by="day")
    assert everything[-1]["day"] == datetime.now(UTC).strftime("%Y-%m-%d")
    assert sum(row["requests"] for row in everything) == len(ledger.calls(limit=10_000))


def test_usage_is_bounded_by_days(ledger: Gateway) -> None:
    first, last = (date.fromisoformat(ledger.usage(group_by="day")[end]["day"]) for end in (0, -1))
    before, after = ((day + timedelta(days=days)).isoformat() for day, days in ((first, -1), (last, 1)))
    assert ledger.usage(since=before, until=after) == ledger.usage()
    assert ledger.usage(since=after) == []
    assert ledger.usage(until=before) == []
    assert len(ledger.usage(group_by="key,model", limit="2")) == 2


def test_usage_as_csv(ledger: Gateway) -> None:
    answer = ledger.admin("usage", group_by="key,month", format="csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert {(row["key"], row["month"]) for row in rows} >= {("teamed", datetime.now(UTC).strftime("%Y-%m"))}
    assert all(int(row["requests"]) > 0 for row in rows)


@pytest.mark.parametrize(
    "query",
    [{"group_by": "key,secret"}, {"since": "yesterday"}, {"until": "2026-1-1"}, {"limit": "0"}, {"limit": "x"},
     {"format": "xml"}],
)  # fmt: skip
def test_question_that_makes_no_sense(gateway: Gateway, upstream: ScriptedUpstream, query: dict[str, str]) -> None:
    answer = gateway.admin("usage", **query)
    assert (answer.status, answer.error["param"]) == (400, *query)


def test_newest_calls(ledger: Gateway) -> None:
    newest = ledger.calls("teamed", limit=2)
    assert [(call["endpoint"], call["status"], call["ended"]) for call in newest] == [
        ("completions", 400, "error"),
        ("embeddings", 200, "done"),
    ]
    call = newest[1]
    assert (call["key"], call["team"], call["upstream"]) == ("teamed", "crew", "main")
    assert (call["prompt_tokens"], call["completion_tokens"], call["usage_source"]) == (30, 0, "reported")
    assert (call["cost_usd"], call["client_gone"], call["truncated"], call["attempts"]) == (None, False, False, 1)
    assert call["first_byte_s"] <= call["duration_s"] < 10
    assert abs(call["time"] - time.time()) < 60


@pytest.mark.parametrize("path", ["/admin/api/usage", "/admin/api/calls"])
def test_admin_token(gateway: Gateway, closed: Gateway, upstream: ScriptedUpstream, path: str) -> None:
    assert gateway.get(path, key=None).refusal == (401, "invalid_request_error", None, None)
    own = gateway.get(path)  # with a key, which sees itself alone
    assert (own.status, {row["key"] for row in own.json["data"]} <= {"alice"}) == (200, True)
    assert gateway.get("/admin/api/audit").refusal == (403, "invalid_request_error", None, "role_not_allowed")
    assert gateway.get(path, headers={"Authorization": f"Bearer {ADMIN_TOKEN}x"}).status == 401
    assert gateway.get(path, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}).status == 200
    assert closed.get(path, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}).status == 404


def test_admin_token_opens_no_other_door(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert gateway.get("/v1/models", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}).status == 401


# -------------------------------------------------------------------------------------------------------- access log


def test_line_of_a_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(usage_json(4, 5))
    answer = gateway.post("/v1/completions", BODY, headers={"X-Client-Request-Id": "mine-1", "User-Agent": "test/1"})
    line = gateway.line(id=answer.id)
    assert line | {"first_byte_ms": 0, "duration_ms": 0} == {
        "time": line["time"], "id": answer.id, "key": "alice", "endpoint": "completions", "model": COMPLETIONS,
        "upstream": "main", "status": 200, "stream": False, "ended": "done", "truncated": False, "prompt_tokens": 4,
        "completion_tokens": 5, "usage_source": "reported", "attempts": 1, "first_byte_ms": 0, "duration_ms": 0,
        "remote": "127.0.0.1", "client_request_id": "mine-1",
    }  # fmt: skip
    assert list(line) == [field for field in FIELDS if field in line]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"])
    assert gateway.call(answer.id)["client_request_id"] == "mine-1"
    assert upstream.requests[0].headers["user-agent"] == "test/1"
    assert "x-client-request-id" not in upstream.requests[0].headers


def test_line_of_a_refusal(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    line = gateway.line(id=gateway.complete(n=500).id)
    assert (line["status"], line["key"], line["error"]) == (400, "alice", "integer_above_max_value")
    assert (line["method"], line["path"], line["remote"]) == ("POST", "/v1/completions", "127.0.0.1")
    assert line["param"] == "n"
    assert list(line) == [field for field in FIELDS if field in line]
    line = gateway.line(id=gateway.get("/nothing?secret=1").id)
    assert (line["status"], line["path"]) == (404, "/nothing")


@pytest.mark.parametrize("name", ["sk-" + "x" * 20, "what I ask", "A" * 30, "abc.Def", "x" * 50, None])
def test_only_names_that_look_like_those_of_the_api_are_logged_as_parameters(name: str | None) -> None:
    assert _shown_param(name) is None
    for known in ("n", "stream_options.include_usage", "messages[0].content[12].image_url", "max_completion_tokens"):
        assert _shown_param(known) == known


def test_line_of_a_call_that_a_limit_refused_says_which_and_why(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    while (answer := gateway.complete("dan")).status == 200:
        pass
    line = gateway.line(id=answer.id)
    assert (line["status"], line["error"], line["key"]) == (429, "insufficient_quota", "dan")
    assert line["limit"] == "key:dan requests per day"
    assert line["limit_state"] == "Limit 2, Used 2, Reserved 0, Requested 1"


def test_lines_of_calls_that_failed_say_what_the_upstream_did(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    refused = error_json(400, [("x-request-id", "req_theirs")], code="context_length_exceeded", message="what I ask")
    upstream.answer_with(refused, error_json(500), ok_json())
    line = gateway.line(id=gateway.complete().id)
    assert (line["status"], line["error"], line["ended"]) == (400, "context_length_exceeded", "error")
    assert line["upstream_error"] == "status 400, code context_length_exceeded, request id req_theirs"
    assert "what I ask" not in json.dumps(line)
    assert line["id"] not in gateway.stderr  # the access line is sufficient: the client has to correct the request
    line = gateway.line(id=gateway.complete().id)
    assert (line["status"], line["error"]) == (502, "upstream_error")
    assert line["upstream_error"].startswith("status: status 500")
    assert line["id"] in gateway.stderr
    line = gateway.line(id=gateway.complete().id)
    assert not {"error", "upstream_error"} & set(line)


def test_line_of_a_stream_that_broke(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(cut_stream([{"choices": [{"text": "a", "index": 0, "finish_reason": None}]}]))
    line = gateway.line(id=gateway.complete(stream=True).id)
    assert (line["status"], line["error"], line["truncated"]) == (502, "upstream_error", True)
    assert line["upstream_error"]


def test_one_line_for_each_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), error_json(500), error_json(404))
    answers = [gateway.complete() for _ in range(3)] + [gateway.complete(n=0), gateway.get("/nothing")]
    for answer in answers:
        gateway.line(id=answer.id)
    assert all(sum(line["id"] == answer.id for line in gateway.lines()) == 1 for answer in answers)


def test_lines_for_people(closed: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    answer = closed.complete()
    line = eventually(lambda: next((text for text in closed.stdout.splitlines() if answer.id in text), ""))
    assert " key=alice endpoint=completions " in line
    assert " status=200 " in line


# ----------------------------------------------------------------------------------------------------------- headers


def test_headers_that_go_up(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    sent = {
        "Accept": "application/json", "User-Agent": "u/1", "X-Stainless-Lang": "python", "traceparent": "00-1",
        "tracestate": "a=b", "Cookie": "c=d", "X-Forwarded-For": "1.2.3.4", "OpenAI-Organization": "theirs",
        "X-Api-Key": secret("alice"),
    }  # fmt: skip
    gateway.post("/v1/completions", BODY, headers=sent)
    up = upstream.requests[0].headers
    for name in ("Accept", "User-Agent", "X-Stainless-Lang", "traceparent", "tracestate"):
        assert up[name.lower()] == sent[name]
    assert not {"cookie", "x-forwarded-for", "openai-organization", "x-api-key", "x-client-request-id"} & set(up)
    assert len(up) == len(upstream.requests[0].header_lines)


def test_headers_that_come_down(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    theirs = [("openai-processing-ms", "12"), ("openai-version", "2020-10-01"), ("x-request-id", "theirs")]
    theirs += [
        ("Set-Cookie", "a=b"),
        ("openai-organization", "org-secret"),
        ("x-ratelimit-limit-requests", "1"),
        ("Server", "s"),
    ]
    upstream.answer_with(ok_json(headers=theirs))
    answer = gateway.complete("carol")
    assert sorted(answer.headers) == sorted([
        "content-type", "content-length", "date", "openai-processing-ms", "openai-version", "x-request-id",
        "x-gateway-upstream", "x-gateway-attempts",
        "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
    ])  # fmt: skip
    assert answer.headers["x-ratelimit-limit-requests"] == "9"
    assert answer.id.startswith("req_")
    assert len(answer.headers) == len(answer.header_lines)


# ---------------------------------------------------------------------------------------------------------- odd clients


def test_pipelined_calls_are_answered_in_order(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(usage_json(1, 1), usage_json(2, 2), usage_json(3, 3))
    with gateway.connect() as client:
        for _ in range(3):
            client.post("/v1/completions", BODY, secret("alice"))
        assert [client.read_answer().json["usage"]["prompt_tokens"] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_connection_that_the_client_wants_closed(gateway: Gateway, upstream: ScriptedUpstream, version: str) -> None:
    upstream.answer_with(ok_json())
    with gateway.connect() as client:
        client.post("/v1/completions", BODY, secret("alice"), version, "Connection: close")
        answer = client.read_answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert client.read_to_end() == b""


def test_http_1_0_client_that_wants_to_stay(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), ok_json())
    with gateway.connect() as client:
        for _ in range(2):
            client.post("/v1/completions", BODY, secret("alice"), "1.0", "Connection: keep-alive")
            answer = client.read_answer()
            assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")


def test_offer_of_another_protocol_is_declined(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Java's HTTP client makes it with every first request."""
    upstream.answer_with(ok_json(), ok_json())
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    with gateway.connect() as client:
        for _ in range(2):
            client.post("/v1/completions", BODY, secret("alice"), "1.1", *offer)
            assert client.read_answer().status == 200


def test_header_bytes_that_are_no_text(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    with gateway.connect() as client:
        client.send(HEAD.encode() + b"User-Agent: caf\xe9 \xff\r\nX-Client-Request-Id: \xfe\r\n")
        client.send(f"Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        answer = client.read_answer()
    assert answer.status == 200
    assert b"User-Agent: caf\xe9 \xff\r\n" in upstream.requests[0].head
    assert gateway.line(id=answer.id)["status"] == 200
    assert gateway.call(answer.id)["status"] == 200
