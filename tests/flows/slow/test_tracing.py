"""Traces of whole gateways, as a collector of OpenTelemetry receives them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.semconv import attributes as stable
from opentelemetry.semconv._incubating import attributes as incubating

from gateway.observe import span_attributes
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.collector import Collector, Span
from tests.fakes.scripted import Scripted, cut_stream, error_json, ok_json, silent, stalled_stream, stream
from tests.flows.client import Answer
from tests.flows.gateway_process import (
    ADMIN_TOKEN,
    CHAT,
    COMPLETIONS,
    UPSTREAM_KEY,
    Gateway,
    eventually,
    key,
    run,
    secret,
    settings,
)

PROMPT = "a prompt that no collector may see"
SAID = "an answer that no collector may see"
COLLECTOR_KEY = "the-collectors-own-token"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PRICE = {"input": 2.0, "output": 8.0}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture(scope="module")
def spare() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def gateway(
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    spare: ScriptedUpstream,
    collector: Collector,
) -> Gateway:
    routes = [{"upstream": "main"}, {"upstream": "spare", "model": "other-name", "priority": 2}]
    model = {"endpoints": ["completions", "chat"], "routes": routes, "price": PRICE}
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            tracing={"endpoint": collector.url, "headers": {"Authorization": f"Bearer {COLLECTOR_KEY}"}},
            upstreams={"spare": {"base_url": spare.url, "api_key": UPSTREAM_KEY}},
            models={COMPLETIONS: model, CHAT: model},
            keys=[key("alice", team="crew"), key("poor", quotas=[{"requests": 1, "per": "day"}])],
            teams={"crew": {}},
        ),
        env={"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"},
    )


def complete(gateway: Gateway, who: str = "alice", parent: str | None = None, **changes: Any) -> Answer:
    headers = {"X-Client-Request-Id": "mine"} | ({"traceparent": parent} if parent else {})
    body = {"model": COMPLETIONS, "prompt": PROMPT, "max_tokens": 9} | changes
    return gateway.post("/v1/completions", body, key=who, headers=headers | {"tracestate": "vendor=1"})


def spans_of(collector: Collector, answer: Answer, count: int) -> list[Span]:
    """The spans of a call, its own first."""

    def look() -> list[Span]:
        call = [span for span in collector.spans if span.attributes.get("gateway.request_id") == answer.id]
        found = [span for span in collector.spans if call and span.trace == call[0].trace]
        return sorted(found, key=lambda span: span.id != call[0].id) if len(found) >= count else []

    found = eventually(look)
    assert len(found) == count
    assert all(span.parent == found[0].id for span in found[1:])
    return found


def parent_of(headers: Mapping[str, str]) -> tuple[str, str, bool]:
    """The trace id, the span id and whether it is sampled, from the headers that an upstream got."""
    version, trace, span, flags = headers["traceparent"].split("-")
    assert version == "00"
    return trace, span, bool(int(flags, 16) & 1)


def said(**usage: int) -> dict[str, Any]:
    return {"model": "real-name", "choices": [{"text": SAID, "index": 0, "finish_reason": "stop"}], "usage": usage}


def test_a_call_continues_its_clients_trace_and_the_upstream_its_attempt(
    gateway: Gateway, upstream: ScriptedUpstream, collector: Collector
) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}}
    upstream.answer_with(
        ok_json(
            said(prompt_tokens=5, completion_tokens=7)
            | {"usage": {"prompt_tokens": 5, "completion_tokens": 7} | details}
        )
    )
    answer = complete(gateway, parent=f"00-{TRACE}-{SPAN}-01")
    call, attempt = spans_of(collector, answer, 2)
    assert (call.trace, call.parent, call.kind, call.name) == (TRACE, SPAN, "server", f"text_completion {COMPLETIONS}")
    assert not call.is_error
    assert call.attributes == {
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "openai",
        "gen_ai.request.model": COMPLETIONS,
        "gen_ai.request.stream": False, "gen_ai.response.model": "real-name", "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7, "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 0, "http.request.method": "POST", "http.response.status_code": 200,
        "gateway.request_id": answer.id, "gateway.key": "alice", "gateway.team": "crew", "gateway.upstream": "main",
        "gateway.attempts": 1, "gateway.ended": "done", "gateway.truncated": False, "gateway.usage_source": "reported",
        "gateway.cost_usd": (5 * 2 + 7 * 8) / 1e6, "gateway.client_request_id": "mine",
    }  # fmt: skip
    assert (attempt.trace, attempt.kind, attempt.is_error) == (TRACE, "client", False)
    assert attempt.attributes == {
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "openai",
        "gen_ai.request.model": COMPLETIONS,
        "http.request.method": "POST", "http.response.status_code": 200, "server.address": "127.0.0.1",
        "server.port": upstream.port, "gateway.upstream": "main",
    }  # fmt: skip
    seen = upstream.requests[0].header_lines
    assert [value for name, value in seen if name == "traceparent"] == [f"00-{TRACE}-{attempt.id}-01"]
    assert [value for name, value in seen if name == "tracestate"] == ["vendor=1"]
    assert gateway.line(id=answer.id)["trace_id"] == TRACE
    assert call.resource["service.name"] == "completions-gateway"
    assert call.resource["deployment.environment.name"] == "test"


def test_a_call_without_a_trace_begins_one(gateway: Gateway, upstream: ScriptedUpstream, collector: Collector) -> None:
    upstream.answer_with(ok_json(), ok_json())
    for parent in (None, "00-1"):
        answer = complete(gateway, parent=parent)
        call, attempt = spans_of(collector, answer, 2)
        assert call.parent == ""
        assert gateway.line(id=answer.id)["trace_id"] == call.trace
        seen = upstream.requests[-1].headers
        assert parent_of(seen) == (call.trace, attempt.id, True)
        assert "tracestate" not in seen  # which says nothing without the trace it belongs to


def test_a_client_that_does_not_want_to_be_traced_is_not(
    gateway: Gateway, upstream: ScriptedUpstream, collector: Collector
) -> None:
    upstream.answer_with(ok_json(), ok_json())
    trace = TRACE.replace("0af7", "1111")
    answer = complete(gateway, parent=f"00-{trace}-{SPAN}-00")
    assert parent_of(upstream.requests[0].headers)[::2] == (trace, False)
    assert gateway.line(id=answer.id)["trace_id"] == trace
    spans_of(collector, complete(gateway), 2)  # what came later has arrived
    assert collector.trace(trace) == []


def test_the_span_of_a_stream_ends_with_it_and_has_its_tokens(
    gateway: Gateway, upstream: ScriptedUpstream, collector: Collector
) -> None:
    piece = {"model": "m", "choices": [{"text": SAID, "index": 0, "finish_reason": None}]}
    end = {"model": "m", "choices": [{"text": "", "index": 0, "finish_reason": "stop"}]}
    usage = {"model": "m", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6}}
    upstream.answer_with(stream([piece, piece, end, usage], delay_s=0.1))
    call, attempt = spans_of(collector, complete(gateway, stream=True), 2)
    assert call.attributes["gen_ai.request.stream"] is True
    assert call.attributes["gen_ai.usage.output_tokens"] == 6
    assert 0 < call.attributes["gen_ai.response.time_to_first_chunk"] < call.duration_s
    assert attempt.duration_s > 0.3
    assert call.duration_s >= attempt.duration_s - 0.05


def test_a_failed_attempt_has_a_span_of_its_own(
    gateway: Gateway, upstream: ScriptedUpstream, spare: ScriptedUpstream, collector: Collector
) -> None:
    upstream.answer_with(error_json(500))
    spare.answer_with(ok_json())
    call, first, second = spans_of(collector, complete(gateway), 3)
    assert (call.is_error, call.attributes["gateway.attempts"], call.attributes["gateway.upstream"]) == (
        False,
        2,
        "spare",
    )
    assert "error.type" not in call.attributes
    assert (first.is_error, first.attributes["error.type"], first.attributes["http.response.status_code"]) == (
        True,
        "status",
        500,
    )
    assert "http.request.resend_count" not in first.attributes
    assert (second.is_error, second.attributes["http.request.resend_count"]) == (False, 1)
    assert second.attributes["gen_ai.request.model"] == "other-name"
    assert parent_of(spare.requests[0].headers) == (call.trace, second.id, True)
    spare.check()


def test_a_call_that_fails_in_the_end(
    gateway: Gateway, upstream: ScriptedUpstream, spare: ScriptedUpstream, collector: Collector
) -> None:
    upstream.answer_with(error_json(500))
    spare.answer_with(error_json(400, code="no_such_thing"))
    answer = complete(gateway)
    call, _, last = spans_of(collector, answer, 3)
    assert (answer.status, call.is_error, call.attributes["error.type"]) == (400, False, "no_such_thing")
    assert (last.is_error, last.attributes["error.type"]) == (True, "refused")
    upstream.answer_with(cut_stream([{"choices": [{"text": SAID, "index": 0, "finish_reason": None}]}]))
    call, attempt = spans_of(collector, complete(gateway, stream=True), 2)
    assert (call.is_error, call.attributes["error.type"], call.attributes["gateway.truncated"]) == (
        True,
        "upstream_error",
        True,
    )
    assert (attempt.is_error, attempt.attributes["error.type"]) == (True, "cut")


@pytest.mark.parametrize(("who", "changes", "status", "error", "known"), [
    ("nobody", {}, 401, "invalid_api_key", {}),
    ("alice", {"n": 500}, 400, "integer_above_max_value", {"gateway.key": "alice"}),
    ("alice", {"model": "made-up"}, 404, "model_not_found", {"gateway.key": "alice", "gen_ai.request.model": "other"}),
])  # fmt: skip
def test_a_call_that_is_refused_has_one_span(
    gateway: Gateway,
    upstream: ScriptedUpstream,
    collector: Collector,
    who: str,
    changes: Any,
    status: int,
    error: str,
    known: Any,
) -> None:
    answer = complete(gateway, who, **changes)
    (call,) = spans_of(collector, answer, 1)
    assert (answer.status, call.is_error) == (status, False)  # what a client has to mend is no error of a server
    assert call.attributes["http.response.status_code"] == status
    assert call.attributes["error.type"] == error
    assert call.attributes.items() >= known.items()
    assert gateway.line(id=answer.id)["trace_id"] == call.trace


def test_a_call_that_a_quota_refuses_says_so(
    gateway: Gateway, upstream: ScriptedUpstream, collector: Collector
) -> None:
    upstream.answer_with(ok_json())
    assert complete(gateway, "poor").status == 200
    answer = complete(gateway, "poor")
    (call,) = spans_of(collector, answer, 1)
    assert (call.attributes["http.response.status_code"], call.is_error) == (429, False)
    assert call.attributes["error.type"] == "insufficient_quota"
    assert (call.attributes["gateway.key"], call.attributes["gen_ai.request.model"]) == ("poor", COMPLETIONS)


def test_a_client_that_leaves_is_no_error(gateway: Gateway, upstream: ScriptedUpstream, collector: Collector) -> None:
    upstream.answer_with(
        stalled_stream([{"model": "m", "choices": [{"text": SAID, "index": 0, "finish_reason": None}]}])
    )
    with gateway.stream(prompt=PROMPT) as client:
        answer = client.read_head()
        client.read_until(b"\n\n")
    call, attempt = spans_of(collector, answer, 2)
    assert (call.attributes["gateway.ended"], call.attributes["http.response.status_code"]) == ("client_gone", 499)
    assert (call.is_error, attempt.is_error, attempt.attributes["error.type"]) == (False, False, "client_gone")


def test_prompts_answers_and_secrets_are_in_no_span(
    gateway: Gateway, upstream: ScriptedUpstream, collector: Collector
) -> None:
    upstream.answer_with(ok_json(said(prompt_tokens=1, completion_tokens=1)), error_json(400, message=PROMPT))
    for number in (2, 2):
        spans_of(collector, complete(gateway), number)
    sent = b"".join([request.body for request in collector.requests])
    for hidden in (PROMPT, SAID, UPSTREAM_KEY, ADMIN_TOKEN, COLLECTOR_KEY, secret("alice"), secret("nobody")):
        assert hidden.encode() not in sent
    assert {request.headers["authorization"] for request in collector.requests} == {f"Bearer {COLLECTOR_KEY}"}
    assert COLLECTOR_KEY not in gateway.stdout + gateway.stderr


def test_each_prompt_of_a_call_that_goes_singly_has_its_attempt(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, collector: Collector
) -> None:
    upstreams = {"main": {"capabilities": {"prompt_arrays": False}}}
    gateway = start_gateway(settings(upstream.url, tracing={"endpoint": collector.url}, upstreams=upstreams))
    upstream.answer_with(always=ok_json())
    call, *attempts = spans_of(collector, complete(gateway, prompt=["a", "b", "c"]), 4)
    assert call.attributes["gateway.attempts"] == len({span.id for span in attempts}) == 3
    assert {parent_of(each.headers) for each in upstream.requests} == {(call.trace, a.id, True) for a in attempts}


def test_a_part_of_the_calls_is_traced(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, collector: Collector
) -> None:
    gateway = start_gateway(settings(upstream.url, tracing={"endpoint": collector.url, "sample_ratio": 0}))
    upstream.answer_with(ok_json(), ok_json())
    answer = complete(gateway)
    trace, _, is_sampled = parent_of(upstream.requests[0].headers)
    assert (trace, is_sampled) == (gateway.line(id=answer.id)["trace_id"], False)
    wanted = TRACE.replace("0af7", "2222")
    complete(gateway, parent=f"00-{wanted}-{SPAN}-01")
    eventually(lambda: len(collector.trace(wanted)) == 2)  # the client wants it
    assert collector.trace(trace) == []


def test_a_collector_that_is_away_or_never_answers_changes_nothing(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, free_port: int
) -> None:
    upstream.answer_with(always=ok_json())
    with Scripted(always=silent, prefix="") as mute:
        for endpoint in (f"http://127.0.0.1:{free_port}", mute.url):
            gateway = start_gateway(settings(upstream.url, tracing={"endpoint": endpoint}))
            for _ in range(50):
                assert complete(gateway).status == 200
            if endpoint == mute.url:
                eventually(lambda: mute.hits > 0)
                assert complete(gateway).status == 200
            assert len(gateway.calls(limit=1000)) >= 50
            gateway.stop()  # exit code 0, no traceback, and in time


@pytest.fixture
def free_port() -> int:
    with Scripted(prefix="") as gone:
        return gone.port


def test_nothing_is_loaded_and_headers_go_up_untouched_while_it_is_off(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    gateway = start_gateway(settings(upstream.url), env={"PYTHONPROFILEIMPORTTIME": "1"})
    upstream.answer_with(ok_json())
    answer = complete(gateway, parent="00-1")
    seen = upstream.requests[0].headers
    assert (seen["traceparent"], seen["tracestate"]) == ("00-1", "vendor=1")
    assert "trace_id" not in gateway.line(id=answer.id)
    assert "gateway.observe.tracing" in gateway.stderr  # it lists each import of each process
    assert not [line for line in gateway.stderr.splitlines() if "opentelemetry" in line or "protobuf" in line]


def test_without_the_extra_the_setting_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(settings("http://127.0.0.1:1", tracing={"endpoint": "http://127.0.0.1:2"})))
    fake = str(Path(__file__).parent.parent.parent / "fakes" / "without_otel")
    said = run("check", "--config", str(file), env={"PYTHONPATH": fake})
    assert said.returncode == 2
    assert (
        "tracing.endpoint: needs packages that are not installed: pip install 'completions-gateway[otel]'"
        in said.stderr
    )
    assert run("check", "--config", str(file)).returncode == 0


def test_the_names_of_the_table_are_those_of_the_conventions() -> None:
    """Here is where it shows when they move."""
    known: set[str] = set()
    for package in (stable, incubating):
        for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            module = importlib.import_module(found.name)
            known |= {value for value in vars(module).values() if isinstance(value, str)}
    tables = {
        *span_attributes.BEGUN,
        *span_attributes.RECORDED,
        *span_attributes.REFUSED.values(),
        *span_attributes.TRIED,
        span_attributes.STATUS,
        span_attributes.ERROR,
    }
    assert {name for name in tables if not name.startswith("gateway.")} <= known
