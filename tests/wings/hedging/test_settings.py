"""The setting `hedge_after`: its place at each model, its faults and its warnings."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import ConfigError, build
from gateway.config.wings import model_kinds
from gateway.wings.hedging.settings import HedgeSettings, hedge_after
from tests.config.test_probable_mistakes import values_with, warned


def test_each_model_has_the_setting() -> None:
    assert all(issubclass(kind, HedgeSettings) for kind in model_kinds())
    assert hedge_after(build(values_with()).models["gpt-4o"]) is None
    assert hedge_after(build(values_with(model={"hedge_after": "2s"})).models["gpt-4o"]) == 2.0
    of_all = build(values_with(defaults={"models": {"hedge_after": "P95"}}))
    assert hedge_after(of_all.models["gpt-4o"]) == hedge_after(of_all.defaults.models) == "p95"


@pytest.mark.parametrize("wrong", ["p99", "soon", 0, True, [1]])
def test_another_value_is_refused_once_in_its_place(wrong: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        build(values_with(model={"hedge_after": wrong}))
    (fault,) = refused.value.faults
    assert fault.path == "models.gpt-4o.hedge_after"
    assert "expected p95, or a time greater than 0" in fault.message


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({"hedge_after": "2s"}, "second route"),
        ({"hedge_after": "2s", "routes": [{"upstream": "up"}, {"upstream": "up", "model": "x"}], "max_attempts": 1},
         "one attempt alone"),
    ],
)  # fmt: skip
def test_a_hedge_without_effect_is_warned_of(model: dict[str, Any], why: str) -> None:
    found = [each for each in warned(model=model) if each.path == "models.gpt-4o.hedge_after"]
    assert [why in each.message for each in found] == [True]
