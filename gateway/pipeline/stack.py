"""The layers around the attempts of a call, in their order. A plain call has the loop over attempts alone.

Wings add layers and riders of their own, at the places that `Around` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from gateway.config import Config
from gateway.records import Call
from gateway.upstream.limits import UpstreamLimitTable
from gateway.wings import parts

from . import fallbacks, places, steps
from .active_call import Retry, by_policy
from .fallbacks import AsGranted, Fallbacks
from .places import AdaptiveLimits, LearnedLimits, RouteLimits, by_place
from .plan import Carries, Stack, Step
from .request import Attempts, Rides, Submission

Needed = Callable[[Config, Call], bool]
"""Whether calls of such a plan may need it; a plan's calls share endpoint, model and limits of their key."""


class Around(Enum):
    """Where in the stack a layer of a wing is."""

    CALL = "all layers of a call, whose reservation is made"
    LAST_MODEL = "the loop of the last model; calls that need it have an `Admission`, which finds places"
    STEP = "each step of the loop, which has chosen a route and not drawn on its limits yet"
    ATTEMPT = "each attempt, within the draw on the limits of its route"
    EVERY = "each attempt, those of single prompts and of two at once, too; within all other layers"


class WingLayer(NamedTuple):
    """A layer of a wing. Of several layers at one place, the one of the first wing in `WINGS` is the outermost."""

    place: Around
    wrap: Callable[[Carries], Carries]
    is_needed: Needed


class WingRider(NamedTuple):
    """A rider of a wing on the attempts of a call."""

    rides: Rides
    is_needed: Needed


class Stacks:
    """Composes the layers for the plans of one configuration."""

    def __init__(self, config: Config, limits: UpstreamLimitTable) -> None:
        self._config = config
        self._limits = limits
        self._layers = parts(WingLayer, "layers")
        self._wing_riders = parts(WingRider, "layers")

    def __call__(self, call: Call) -> Stack:
        """The layers of such calls: only those that one of them may need."""
        model, limits, passed = call.model, self._limits, call.passed
        waits = self._needed(Around.LAST_MODEL, call)
        has_room = bool(waits) or bool(model.fallbacks) or limits.binds_any(model.routes)
        may_fit = model.min_output_tokens is not None
        choose = by_place if has_room else by_policy

        attempts = _around(Attempts(self._riders(call)), (Submission, passed is not None and not passed.is_read))
        attempts = _wrapped(attempts, self._needed(Around.EVERY, call))
        single = Retry(_around(attempts, (RouteLimits, has_room)), choose)
        beside = _wrapped(attempts, self._needed(Around.ATTEMPT, call))
        one_step = _around(beside, (RouteLimits, has_room))
        one_step = _wrapped(one_step, self._needed(Around.STEP, call))
        passing = Retry(one_step, choose)
        last = _wrapped(passing, waits)
        whole = _around(Fallbacks() if model.fallbacks else last, (AsGranted, has_room or may_fit))
        whole = _wrapped(whole, self._needed(Around.CALL, call))

        drawn = fallbacks.draw_fitting if may_fit else steps.draw
        each: tuple[tuple[Step, object], ...] = (
            (steps.continued, call.params.refers_param),
            (steps.draw_requests if passed is not None and passed.is_read else drawn, True),
            (fallbacks.others, model.fallbacks),
            (steps.likely, not has_room and len(model.routes) > 1),
            (places.room, has_room),
        )
        return Stack(tuple([step for step, is_needed in each if is_needed]), whole, last, passing, single)

    def _riders(self, call: Call) -> Iterator[Rides]:
        """The riders that an attempt of such calls may need."""
        upstreams = {route.upstream for route in call.model.routes}
        if not upstreams.isdisjoint(self._limits.learning):
            yield LearnedLimits
        if not upstreams.isdisjoint(self._limits.adaptive):
            yield AdaptiveLimits
        yield from [each.rides for each in self._wing_riders if each.is_needed(self._config, call)]

    def _needed(self, place: Around, call: Call) -> list[WingLayer]:
        """The layers of wings at this place that such calls need."""
        return [each for each in self._layers if each.place is place and each.is_needed(self._config, call)]


def _wrapped(inner: Carries, layers: Sequence[WingLayer]) -> Carries:
    return _around(inner, *[(each.wrap, True) for each in layers])


def _around(inner: Carries, *layers: tuple[Callable[[Carries], Carries], object]) -> Carries:
    for layer, is_needed in reversed(layers):
        inner = layer(inner) if is_needed else inner
    return inner
