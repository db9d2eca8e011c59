"""The layers around the attempts of a call, in their order. A plain call has the loop over attempts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gateway.api.capabilities import Adaptation
from gateway.config import Config
from gateway.formats import FORMATS
from gateway.records import Call
from gateway.upstream.limits import UpstreamLimitTable

from . import fallbacks, steps, waiting
from .active_call import Retry, by_policy
from .fallbacks import AsGranted, Fallbacks
from .hedging import Hedge
from .plan import Carries, Stack, Step
from .prompts import FanOut
from .request import Attempts, Rides
from .riders import AdaptiveLimits, KeptAnswer, LearnedLimits, Submission
from .waiting import Queue, RouteLimits, by_place


class Stacks:
    """Composes the layers for the plans of one configuration."""

    def __init__(self, config: Config, limits: UpstreamLimitTable) -> None:
        self._config = config
        self._limits = limits

    def __call__(self, call: Call, ways: Mapping[str, Adaptation]) -> Stack:
        """The layers of such calls: only those that one of them may need."""
        model, limits, passed = call.model, self._limits, call.passed
        may_wait = bool(self._config.queue.max_wait_s or call.key.max_wait_s or model.max_wait_s)
        has_room = may_wait or bool(model.fallbacks) or limits.binds_any(model.routes)
        may_split = call.endpoint == "completions" and any(route.upstream not in ways for route in model.routes)
        may_fit = model.min_output_tokens is not None
        choose = by_place if has_room else by_policy

        attempts = _around(Attempts(self._riders(call)), (Submission, passed is not None and not passed.is_read))
        single = Retry(_around(attempts, (RouteLimits, has_room)), choose)
        one_step = _around(
            attempts, (FanOut, may_split), (RouteLimits, has_room), (Hedge, model.hedge_after is not None)
        )
        passing = Retry(one_step, choose)
        last = _around(passing, (Queue, may_wait))
        whole = _around(Fallbacks() if model.fallbacks else last, (AsGranted, has_room or may_fit))

        drawn = fallbacks.draw_fitting if may_fit else steps.draw
        each: tuple[tuple[Step, object], ...] = (
            (steps.continued, call.params.refers_param),
            (steps.draw_requests if passed is not None and passed.is_read else drawn, True),
            (fallbacks.others, model.fallbacks),
            (steps.likely, not has_room and len(model.routes) > 1),
            (waiting.room, has_room),
        )
        return Stack(tuple([step for step, is_needed in each if is_needed]), whole, last, passing, single)

    def _riders(self, call: Call) -> Iterator[Rides]:
        """The riders that an attempt of such calls may need."""
        upstreams, spec = {route.upstream for route in call.model.routes}, FORMATS[call.endpoint]
        if call.passed is not None or spec.kept_id is not None or spec.batch is not None:
            yield KeptAnswer
        if not upstreams.isdisjoint(self._limits.learning):
            yield LearnedLimits
        if not upstreams.isdisjoint(self._limits.adaptive):
            yield AdaptiveLimits


def _around(inner: Carries, *layers: tuple[Callable[[Carries], Carries], object]) -> Carries:
    for layer, is_needed in reversed(layers):
        inner = layer(inner) if is_needed else inner
    return inner
