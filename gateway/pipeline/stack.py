"""The layers around the attempts of a call, in their order. A plain call has the loop over attempts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.api.capabilities import Adaptation
from gateway.config import Config
from gateway.records import Call
from gateway.upstream.limits import UpstreamLimitTable

from . import fallbacks, steps, waiting
from .active_call import Retry, by_policy
from .fallbacks import AsGranted, Fallbacks
from .hedging import Hedge
from .plan import Carries, Stack, Step
from .prompts import FanOut
from .request import Attempts
from .waiting import Queue, RouteLimits, by_place


class Stacks:
    """Composes the layers for the plans of one configuration."""

    def __init__(self, config: Config, limits: UpstreamLimitTable) -> None:
        self._config = config
        self._limits = limits

    def __call__(self, call: Call, ways: Mapping[str, Adaptation]) -> Stack:
        """The layers of such calls: only those that one of them may need."""
        model, limits = call.model, self._limits
        may_wait = bool(self._config.queue.max_wait_s or call.key.max_wait_s or model.max_wait_s)
        has_room = may_wait or bool(model.fallbacks) or limits.binds_any(model.routes)
        may_split = call.endpoint == "completions" and any(route.upstream not in ways for route in model.routes)
        may_fit = model.min_output_tokens is not None
        choose = by_place if has_room else by_policy

        def around(inner: Carries, *layers: tuple[Callable[[Carries], Carries], object]) -> Carries:
            for layer, is_needed in reversed(layers):
                inner = layer(inner) if is_needed else inner
            return inner

        single = Retry(around(Attempts(), (RouteLimits, has_room)), choose)
        passing = Retry(
            around(Attempts(), (FanOut, may_split), (RouteLimits, has_room), (Hedge, model.hedge_after is not None)),
            choose,
        )
        last = around(passing, (Queue, may_wait))
        whole = around(Fallbacks() if model.fallbacks else last, (AsGranted, has_room or may_fit))
        return Stack(self._steps(call, has_room=has_room, may_fit=may_fit), whole, last, passing, single)

    def _steps(self, call: Call, *, has_room: bool, may_fit: bool) -> tuple[Step, ...]:
        drawn = fallbacks.draw_fitting if may_fit else steps.draw
        if call.passed is not None and call.passed.is_read:
            drawn = steps.draw_requests
        each: tuple[tuple[Step, object], ...] = (
            (steps.continued, call.params.refers_param),
            (drawn, True),
            (fallbacks.others, call.model.fallbacks),
            (steps.likely, not has_room and len(call.model.routes) > 1),
            (waiting.room, has_room),
        )
        return tuple([step for step, is_needed in each if is_needed])
