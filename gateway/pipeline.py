"""The story of one call. A newcomer starts here.

By now `web/endpoints` has found the key and checked the body. Here the call is leased from the ledger, sent to an
upstream, sent again if that is safe, and answered; `relay` accounts for it on the way. Whoever leaves this function,
and however, the lease has been closed once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import relay
from .config import Config, Route
from .errors import UpstreamFailed, UpstreamRefused
from .lease import Books, Lease, leased
from .records import Call, Failure, Phase
from .relay import Answer, OpensStreams, Streamed
from .rules import document, limits, notices
from .rules.attempts import GiveUp, Try, next_step
from .tasks import Tasks
from .upstream.pool import Pool

log = logging.getLogger("gateway")

_PATHS = {"completions": "/completions", "chat": "/chat/completions", "embeddings": "/embeddings"}


@dataclass(frozen=True, slots=True)
class Parts:
    """What calls are carried with. A call keeps the configuration it began with."""

    config: Config
    books: Books
    pools: Mapping[str, Pool]
    tasks: Tasks
    """Background work of calls: draining answers whose client left, back-pressure."""


@dataclass(frozen=True, slots=True)
class Served:
    """How a call was answered, and what its caller is told beside the answer."""

    answer: Answer | Streamed
    headers: tuple[tuple[str, str], ...]


class OpensWithHeaders:
    """Opens the client's stream with the gateway's own headers beside the upstream's."""

    def __init__(self, open_stream: OpensStreams, lease: Lease) -> None:
        self._open_stream = open_stream
        self._lease = lease

    def __call__(self, headers: Sequence[tuple[str, str]]) -> relay.Client:
        return self._open_stream((*headers, *own_headers(self._lease)))


async def serve(call: Call, parts: Parts, open_stream: OpensStreams, leased_now: Callable[[], None]) -> Served:
    """Carry one checked call to an upstream and back, and account for it once.

    `leased_now` is called when the ledger has granted the call: from then on its record and its access line are
    written here. Raises `GatewayError` for everything that a client is told by a status. Cancelled: the client is gone.
    """
    async with leased(parts.books, call, limits.claims(call, parts.config)) as lease:
        leased_now()
        failures: list[Failure] = []
        opens = OpensWithHeaders(open_stream, lease)
        while True:
            match next_step(call.model, failures):
                case GiveUp(last):
                    error = UpstreamFailed.after(last)
                    error.headers = {**error.headers, **dict(own_headers(lease))}
                    raise error
                case Try(route, after_s, is_fresh):
                    if after_s:
                        await asyncio.sleep(after_s)
                    lease.route = route
                    lease.attempts += 1
                    this = prepare(call, route, parts)
                    try:
                        result = await relay.attempt(this, lease, opens, parts.tasks, is_fresh=is_fresh)
                    except UpstreamRefused as refused:
                        parts.books.telemetry.attempted(route.upstream, "refused")
                        refused.headers = {**refused.headers, **dict(own_headers(lease))}
                        raise
                    fault = None if isinstance(result, Answer) else result.fault
                    parts.books.telemetry.attempted(route.upstream, fault.value if fault else "ok")
                    if isinstance(result, Streamed) and result.fault is not None:
                        log.warning(
                            "upstream %s: %s inside a stream, call %s", route.upstream, result.fault.value, call.id
                        )
                    if not isinstance(result, Failure):
                        return Served(result, own_headers(lease))
                    log.warning(
                        "upstream %s: %s while %s (%s), call %s",
                        result.upstream, result.fault.value, result.phase.value, result.detail, call.id,
                    )  # fmt: skip
                    lease.may_have_cost |= result.phase is Phase.WAITING
                    failures.append(result)


def prepare(call: Call, route: Route, parts: Parts) -> relay.Attempt:
    """The request for one route, on the client's own bytes: only what must change is changed."""
    upstream = parts.config.upstreams[route.upstream]
    pool = parts.pools[route.upstream]
    changes = changed_members(call, route, parts.config)
    body = document.replace(call.params.document, changes)
    hidden = [(upstream.api_key.get_secret_value(), "***")] if upstream.api_key is not None else []
    hidden += [(value.get_secret_value(), "***") for value in upstream.headers.values()]
    hidden.append((upstream.base_url, "the upstream"))
    hidden.append((pool.host, "the upstream"))
    if route.model is not None:
        hidden.append((route.model, call.params.model))
    return relay.Attempt(
        call=call,
        route=route,
        pool=pool,
        upstream=upstream,
        request=pool.request(_PATHS[call.endpoint], call.forwarded_headers, body),
        hidden=tuple(hidden),
        max_response_bytes=parts.config.server.max_response_bytes,
    )


def changed_members(call: Call, route: Route, config: Config) -> dict[str, Any]:
    """What has to be different in the forwarded body: the model's name, the usage report, an output limit."""
    params, changes = call.params, dict[str, Any]()
    capabilities = config.upstreams[route.upstream].capabilities
    if route.model is not None and route.model != params.model:
        changes["model"] = route.model
    if params.stream and not params.include_usage and capabilities.stream_usage:
        changes["stream_options"] = {**(params.document.members.get("stream_options") or {}), "include_usage": True}
    limit_field = capabilities.max_tokens_field if call.endpoint == "chat" else "max_tokens"
    if params.is_output_limit_added:
        changes[limit_field] = params.output_limit
    elif (
        call.endpoint == "chat" and params.output_limit is None and limits.counts_tokens(call.key, config, params.model)
    ):
        changes[limit_field] = limits.output_limit(call)
    return changes


def own_headers(lease: Lease) -> tuple[tuple[str, str], ...]:
    """The gateway's headers on an answer: where the call went, and how the caller's quotas stand."""
    upstream = lease.route.upstream if lease.route else ""
    return (
        ("x-gateway-upstream", upstream),
        ("x-gateway-attempts", str(lease.attempts)),
        *notices.rate_headers(lease.standings).items(),
    )
