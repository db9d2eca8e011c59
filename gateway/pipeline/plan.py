"""The part that all calls of one endpoint for one model share under one configuration: computed once, and kept.

A reload brings plans of its own, so none outlives its configuration. All that depends on a call's parameters is
decided for each call (`api/capabilities.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from gateway.api import capabilities
from gateway.api.capabilities import Adaptation
from gateway.api.prompt_tokens import FindsCounter
from gateway.config import Config, Model, Route
from gateway.formats import bridges, token_rule
from gateway.formats.table import FORMATS
from gateway.formats.token_rule import CountsTexts
from gateway.records import Call, Endpoint, Failure
from gateway.relay import Answer, Streamed

MAX_PLANS = 2048
"""Clients may invent names under a pattern."""

Outcome = Answer | Streamed | Failure | None
"""The answer, or the last failure; None: no route was available."""

Step = Callable[[Any], Awaitable[None]]
"""Finds something out about an `ActiveCall` before it is reserved. Raises `GatewayError` to refuse it."""


class Carries(Protocol):
    """One layer around the attempts of a call, or the attempts themselves. `stack.py` has the layers in their order."""

    async def carry(self, active: Any) -> Outcome:
        """Carries an `ActiveCall`, whose class holds the plan and cannot be named here. A layer may carry what it
        wraps more than once, or not at all, and never settles. Raises `UpstreamRefused` for an answer that the client
        gets as it is."""


class Layer:
    """Base of the layers: each of them wraps another one, `inner`."""

    def __init__(self, inner: Carries) -> None:
        self.inner = inner


class Stack(NamedTuple):
    """The layers around the attempts of the calls of one plan."""

    steps: tuple[Step, ...]
    """They are taken before the reservation, in this order."""
    whole: Carries
    last: Carries
    """The layers of one model, if no other one can serve after it."""
    passing: Carries
    """The layers of one model, if another one can."""
    single: Carries
    """The layers of one prompt of several."""


ComposesStacks = Callable[[Call], Stack]
"""Composes the layers that such calls need: `Stacks` in stack.py does."""


class CallPlan(NamedTuple):
    """The plan of an endpoint and a model."""

    model: Model
    routes: tuple[Route, ...] | None
    """Those that take every such call; None: that depends on its parameters."""
    ways: Mapping[str, Adaptation]
    """How calls are adapted, by upstream; one that is missing depends on the parameters."""
    count_texts: CountsTexts
    """Counts generated text without a reported usage."""
    stack: Stack
    keepalive: bytes
    """The comment that keeps a stream of this format open; empty: there is none."""
    keepalive_s: float
    """Seconds without bytes until it is sent; 0: it never is."""


class Plans:
    """The plans of one configuration."""

    def __init__(self, config: Config, find_counter: FindsCounter, compose: ComposesStacks) -> None:
        bridges.by_way()  # their modules are imported here, and not within a call
        self._config = config
        self._find_counter = find_counter
        self._compose = compose
        self._known: dict[tuple[Endpoint, str, str | None, str, float | None], CallPlan] = {}

    def of(self, call: Call) -> tuple[CallPlan, tuple[Route, ...]]:
        """The plan for this call, and the routes that can take it. Raises `InvalidRequest` or `NotFound` if none
        can."""
        params = call.params
        names = call.endpoint, params.model, call.target, params.refers_param, call.key.max_wait_s
        plan = self._known.get(names)
        if plan is None or plan.model is not call.model:
            if len(self._known) >= MAX_PLANS:
                self._known.clear()
            plan = self._known[names] = self.work_out(call)
        routes = plan.routes
        if routes is None:
            routes = capabilities.fitting(call.model, call.endpoint, params, self._config.upstreams, bridges.refusal)
        return plan, capabilities.beside(routes, call.other_models) if call.other_models else routes

    def work_out(self, call: Call) -> CallPlan:
        """A plan for such calls, which is not kept."""
        model, endpoint, upstreams = call.model, call.endpoint, self._config.upstreams
        ways = capabilities.fixed_adaptations(model, endpoint, upstreams)
        keepalive = FORMATS[endpoint].keepalive
        return CallPlan(
            model,
            model.routes if call.passed is not None else capabilities.routes_of_all(model, endpoint, upstreams),
            ways,
            token_rule.counting(self._find_counter(call.model_name)),
            self._compose(call),
            keepalive,
            self._config.server.keepalive_comment_s if keepalive else 0,
        )
