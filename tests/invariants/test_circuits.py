"""The failing calls of one key close an upstream for that key alone; a dead upstream is closed for all."""

from __future__ import annotations

import pytest

from gateway.upstream.circuit_breaker import CONSECUTIVE_FAILURES, DEAD_AFTER, CircuitEvent, after, binds, is_dead
from gateway.upstream.credentials import SOLE_KEY_UNAVAILABLE_AFTER
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json
from tests.flows.gateway_process import settings

NOW = 1000.0


def test_a_bad_key_does_not_close_the_only_upstream_for_others(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, upstream: ScriptedUpstream
) -> None:
    gateway = start_shared_gateway(settings(shared_upstream.url))
    upstream.answer_with(always=error_json(500))
    assert {gateway.complete(key="alice").status for _ in range(2 * DEAD_AFTER)} <= {500, 502, 503}
    refused = gateway.complete(key="alice")
    assert refused.status == 503
    upstream.answer_with(always=ok_json())
    assert [gateway.complete(key=name).status for name in ("bob", "carol") * 5] == [200] * 10
    assert gateway.complete(key="alice").status == 200  # the answers to others closed the circuit


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, None, "Your project has no access to this service tier"),
        (402, None, "This request requires more credits, or fewer max_tokens. You can only afford 30104"),
        (403, "insufficient_user_quota", "预扣费额度失败, 用户剩余额度: 1, 需要预扣费额度: 2"),
    ],
)
def test_a_request_that_is_refused_by_itself_takes_the_upstream_from_no_other_key(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, status: int, code: str | None, message: str
) -> None:
    gateway = start_gateway(settings(upstream.url))
    upstream.answer_with(always=error_json(status, code=code, message=message))
    for _ in range(2 * SOLE_KEY_UNAVAILABLE_AFTER):
        assert gateway.complete(key="alice").status == 502
    hits = upstream.hits
    assert gateway.complete(key="alice").status == 502
    assert upstream.hits == hits  # nothing is sent for her
    upstream.answer_with(always=ok_json())
    assert [gateway.complete(key=name).status for name in ("bob", "carol")] == [200, 200]


@pytest.mark.parametrize("event", [CircuitEvent.FAILURE, CircuitEvent.PARTIAL])
def test_a_second_key_that_fails_closes_it_for_all(event: CircuitEvent) -> None:
    circuit = None
    for _ in range(2 * DEAD_AFTER):
        circuit = after(circuit, event, NOW, "alice")
    assert binds(circuit, "alice")
    assert not binds(circuit, "bob")
    for moved in (CircuitEvent.TIMER, CircuitEvent.BEGIN, CircuitEvent.NEUTRAL):
        circuit = after(circuit, moved, NOW + 1, "bob")
        assert not binds(circuit, "bob")
    circuit = after(circuit, event, NOW + 1, "bob")
    assert binds(circuit, "bob")
    assert binds(circuit, "carol")


def test_many_failures_among_answers_close_it_for_all() -> None:
    circuit = None
    for _ in range(10):
        circuit = after(circuit, CircuitEvent.FAILURE, NOW, "alice")
        circuit = after(circuit, CircuitEvent.SUCCESS, NOW, "bob")
    circuit = after(circuit, CircuitEvent.FAILURE, NOW, "bob")
    assert binds(circuit, "carol")


def test_connections_that_fail_close_it_for_all_at_once() -> None:
    circuit = None
    for _ in range(max(CONSECUTIVE_FAILURES, DEAD_AFTER)):
        circuit = after(circuit, CircuitEvent.FAILURE, NOW)
    assert is_dead(circuit)
    assert binds(circuit, "bob")
