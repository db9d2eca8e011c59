"""The steps of a call before it is reserved: they find its claims, the object that it continues, its probable route.

A step changes the `ActiveCall`, or refuses it with a `GatewayError`. A plain call has the step `draw` alone; `stack.py`
lists those of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config import Route
from gateway.errors import InvalidRequest
from gateway.quota import windows
from gateway.records import Call
from gateway.upstream.credentials import position_of
from gateway.upstream.health import asker_of

from .active_call import ActiveCall
from .services import Services

_INSTEAD = {
    "file_id": "Use a model of the provider that keeps the file, or send its content.",
    "input_file_id": "Upload the file again: the model of its requests has moved since.",
}
"""Advice for the client if another upstream keeps the object that this parameter names."""


async def draw(active: ActiveCall) -> None:
    """Finds what the call draws on the limits of its key."""
    call, services = active.call, active.services
    if call.tags:
        await services.key_cache.know(call)
    limits = services.key_cache.terms.of_call(call)
    if limits.is_by_use or services.router.limits.counts_tokens:
        active.call = call = expecting(call, services)
    active.claims = windows.claims(call, limits)


def expecting(call: Call, services: Services) -> Call:
    """The call and its fallbacks with the output that they draw on rates: what such calls had lately. One that only
    begins work, such as a batch, draws all of it."""
    params, limit = call.params, windows.output_limit(call)
    if params.lines or params.is_deferred or call.passed is not None or not limit:
        return call
    recent = services.accounting.recent
    expected = recent.expected(call.key, call.label_model, limit)
    if expected == limit:
        return call._replace(expected_output=limit)
    fallbacks = tuple([
        other._replace(expected_output=recent.expected(call.key, call.label_model, windows.output_limit(other)))
        for other in call.fallbacks
    ])  # fmt: skip
    return call._replace(expected_output=expected, fallbacks=fallbacks)


async def draw_requests(active: ActiveCall) -> None:
    """Finds what a read of a task draws: it is counted as a request, and uses nothing else."""
    call, key_cache = active.call, active.services.key_cache
    if call.tags:
        await key_cache.know(call)
    limits = key_cache.terms.of_call(call)
    active.claims = windows.claims(call, windows.CallLimits.of(windows.request_rates(limits.each), call.started))


async def continued(active: ActiveCall) -> None:
    """Binds the call to what it continues: only the upstream that keeps it can serve. Raises `NotFound` or
    `InvalidRequest`."""
    call, params, upstreams = active.call, active.call.params, active.services.config.upstreams
    if params.refers_to is None:
        return
    bond = await active.services.bonds.require(call.key.in_team, params.refers_to, params.refers_param, upstreams)
    active.routes = tuple([route for route in active.routes if route.upstream == bond.upstream])
    if not active.routes:
        raise InvalidRequest(
            f"'{bond.id}' cannot be used with the model `{params.model}`, which another provider serves. "
            + _INSTEAD.get(params.refers_param, "Use the model that made it, or send the whole conversation."),
            param="model",
            code="model_mismatch",
        )
    params = params._replace(prompt_tokens=params.prompt_tokens + bond.tokens, is_prompt_exact=False)
    active.call = call._replace(params=params, bond=bond, fallbacks=())
    active.only_key = position_of(upstreams[bond.upstream], bond.account)


async def likely(active: ActiveCall) -> None:
    """Finds the most probable route of the call, to which it is counted if it is lost."""
    active.likely = next(iter(candidates(active)), active.routes[0])


def candidates(active: ActiveCall) -> Sequence[Route]:
    """The routes that can serve the call now, the best first."""
    call, is_firm = active.call, bool(active.call.params.account_bound_by)
    router = active.services.router
    active.asker = asker = active.asker or asker_of(call)
    return router.candidates(active.routes, call.params.model, call.affinity, asker, is_firm=is_firm)
