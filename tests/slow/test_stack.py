"""The stack, with little time, and whether it would notice what it is there for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.soak.observed import ObservedCall, Truth
from bench.stack.acts import Excuse
from bench.stack.place import Place
from bench.stack.rules import Cause, Seen, accelerated, wrong_alerts
from bench.stack.run import Stack, wrong_failures
from tests.deploy.programs import run


@pytest.mark.timeout(900)
def test_no_call_fails_without_cause_and_all_sums_agree(tmp_path: Path) -> None:
    with Place(tmp_path / "stack") as place:
        stack = Stack(place, seed=11, steady_s=1.0, is_strict=False)
        stack.run()
    assert stack.complaints == []


def received(**more: Any) -> ObservedCall:
    call = ObservedCall(7, "plain", "alice", "chat", False, Truth("", 1, 1), began=10.0, ended=11.0, is_whole=True)
    for name, value in more.items():
        setattr(call, name, value)
    return call


AWAY = Excuse("store_unavailable", (503,), since=10.5, until=20.0)


@pytest.mark.parametrize(
    "call",
    [
        received(status=503, code="store_unavailable", began=9.0, ended=10.0),
        received(status=503, code="store_unavailable", began=20.5, ended=20.6),
        received(status=503, code="shutting_down"),
        received(status=200, code="store_unavailable"),
        received(status=200, is_whole=False),
        received(status=0, is_whole=False),
    ],
)
def test_a_failure_without_excuse_is_reported(call: ObservedCall) -> None:
    assert [*wrong_failures([call], [AWAY], is_strict=True)]


def test_excused_and_served_calls_are_not_reported() -> None:
    calls = [received(status=503, code="store_unavailable"), received(status=200)]
    assert not [*wrong_failures(calls, [AWAY], is_strict=True)]


def seen(state: str, first: float, last: float, **labels: str) -> Seen:
    named = {"alertname": "GatewayDown", "alertstate": state, "instance": "one", **labels}
    return Seen(tuple(sorted(named.items())), first, last)


DOWN = Cause("GatewayDown", {"instance": "one"}, since=100.0, until=105.0, is_needed=True)


@pytest.mark.parametrize(
    "alerts",
    [
        [],
        [seen("firing", 101, 110), seen("firing", 101, 110, instance="two")],
        [seen("firing", 101, 110), seen("firing", 101, 110, alertname="GatewayErrorRate")],
        [seen("firing", 90, 110)],
        [seen("firing", 101, 200)],
    ],
)
def test_alerts_that_do_not_fit_their_causes_are_reported(alerts: list[Seen]) -> None:
    assert [*wrong_alerts(alerts, [DOWN])]


def test_alerts_with_a_cause_are_not_reported() -> None:
    assert not [*wrong_alerts([seen("firing", 101, 110), seen("pending", 50, 51, instance="two")], [DOWN])]


def test_rules_in_a_hurry_are_rules(tmp_path: Path) -> None:
    files = [*accelerated(tmp_path / "rules").iterdir()]
    said = run("promtool", "check", "rules", *files)
    assert said.returncode == 0, said.stdout
    assert "for: 4000ms" in "".join(file.read_text() for file in files)
