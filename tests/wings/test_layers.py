"""The layers of wings around the attempts of a call: those that there are, in the documented order, and others at each
place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gateway.config import build
from gateway.pipeline import stack
from gateway.pipeline.places import LearnedLimits
from gateway.pipeline.plan import Layer, Outcome
from gateway.pipeline.request import Attempts, Rides
from gateway.pipeline.stack import Around, WingLayer, WingRider
from gateway.wings import parts
from tests.test_pipeline import EVERYTHING, layers, stack_of_all


def test_the_layers_of_all_wings_are_in_the_documented_order() -> None:
    settings = copy.deepcopy(EVERYTHING)
    settings["models"]["all"]["hedge_after"] = "p95"
    settings["queue"] = {"max_wait_s": 5}
    settings["upstreams"]["up"]["capabilities"] = {"prompt_arrays": False}
    found = stack_of_all(build(settings))
    assert layers(found.whole) == "AsGranted Fallbacks"
    assert layers(found.last) == "Queue Retry FanOut RouteLimits Hedge Attempts"
    assert layers(found.passing) == "Retry FanOut RouteLimits Hedge Attempts"
    assert layers(found.single) == "Retry RouteLimits Attempts"


class Outer(Layer):
    async def carry(self, active: Any) -> Outcome:
        return await self.inner.carry(active)


class Inner(Outer):
    """A layer that a wing has after another one."""


def riders_of(outer: Any) -> tuple[Rides, ...]:
    """The riders of the attempts within these layers."""
    while not isinstance(outer, Attempts):
        outer = outer.inner
    return outer._riders


PLAIN = ("Retry RouteLimits Attempts",) * 3
EXPECTED = {
    Around.CALL: PLAIN,
    Around.EVERY: ("Retry RouteLimits Outer Inner Attempts",) * 3,
    Around.LAST_MODEL: (
        "Outer Inner Retry RouteLimits Attempts", "Retry RouteLimits Attempts",
        "Retry RouteLimits Attempts",
    ),
    Around.STEP: ("Retry Outer Inner RouteLimits Attempts",) * 2 + ("Retry RouteLimits Attempts",),
    Around.ATTEMPT: (
        "Retry RouteLimits Outer Inner Attempts", "Retry RouteLimits Outer Inner Attempts",
        "Retry RouteLimits Attempts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", Around)
def test_a_wing_adds_layers_at_each_place(place: Around, monkeypatch: pytest.MonkeyPatch) -> None:
    added = [
        WingLayer(place, Outer, lambda config, call: call.model_name == "all"),
        WingLayer(place, Inner, lambda config, call: bool(config.upstreams)),
        WingLayer(place, Outer, lambda config, call: False),
    ]
    monkeypatch.setattr(stack, "parts", lambda kind, part: [each for each in added if isinstance(each, kind)])
    found = stack_of_all(build(EVERYTHING))
    assert (layers(found.last), layers(found.passing), layers(found.single)) == EXPECTED[place]
    assert layers(found.whole) == ("Outer Inner " if place is Around.CALL else "") + "AsGranted Fallbacks"


def test_a_wing_adds_riders_to_the_calls_that_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(active: Any, handle: Any) -> Any: ...

    def second(active: Any, handle: Any) -> Any: ...

    added = [WingRider(first, lambda config, call: True), WingRider(second, lambda config, call: False)]
    monkeypatch.setattr(stack, "parts", lambda kind, part: [each for each in added if isinstance(each, kind)])
    found = stack_of_all(build(EVERYTHING))
    assert riders_of(found.single) == riders_of(found.last) == (LearnedLimits, first)


def test_every_layer_has_a_place() -> None:
    assert {each.place for each in parts(WingLayer, "layers")} <= {*Around}
