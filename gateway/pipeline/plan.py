"""The part that all calls of one endpoint for one model share under one configuration: computed once, and kept.

A reload brings plans of its own, so none outlives its configuration. All that depends on a call's parameters is
decided for each call (`api/capabilities.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.api import capabilities
from gateway.api.capabilities import Adaptation
from gateway.api.prompt_tokens import FindsCounter
from gateway.bridge import bridges
from gateway.config import Model, Route, Upstream
from gateway.formats import token_rule
from gateway.formats.token_rule import CountsTexts
from gateway.records import Call, Endpoint

MAX_PLANS = 2048
"""Clients may invent names under a pattern."""


class CallPlan(NamedTuple):
    """The plan of an endpoint and a model."""

    model: Model
    routes: tuple[Route, ...] | None
    """Those that take every such call; None: that depends on its parameters."""
    ways: Mapping[str, Adaptation]
    """How calls are adapted, by upstream; one that is missing depends on the parameters."""
    count_texts: CountsTexts
    """Counts generated text without a reported usage."""


class Plans:
    """The plans of one configuration."""

    def __init__(self, upstreams: Mapping[str, Upstream], find_counter: FindsCounter) -> None:
        self._upstreams = upstreams
        self._find_counter = find_counter
        self._known: dict[tuple[Endpoint, str, str | None], CallPlan] = {}

    def of(self, call: Call) -> tuple[CallPlan, tuple[Route, ...]]:
        """The plan for this call, and the routes that can take it. Raises `InvalidRequest` or `NotFound` if none
        can."""
        names = call.endpoint, call.params.model, call.target
        plan = self._known.get(names)
        if plan is None or plan.model is not call.model:
            if len(self._known) >= MAX_PLANS:
                self._known.clear()
            plan = self._known[names] = self.work_out(call)
        routes = call.model.routes if call.passed is not None else plan.routes
        if routes is None:
            routes = capabilities.fitting(call.model, call.endpoint, call.params, self._upstreams, bridges.refusal)
        return plan, capabilities.beside(routes, call.other_models) if call.other_models else routes

    def work_out(self, call: Call) -> CallPlan:
        """A plan for such calls, which is not kept."""
        return CallPlan(
            call.model,
            capabilities.routes_of_all(call.model, call.endpoint, self._upstreams),
            capabilities.fixed_adaptations(call.model, call.endpoint, self._upstreams),
            token_rule.counting(self._find_counter(call.model_name)),
        )
