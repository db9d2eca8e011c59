"""The story of one call. A newcomer starts here.

By now `web/endpoints` has found the key and checked the body. Here the call is leased from the ledger, sent to an
upstream, sent again if that is safe, and answered; `relay` accounts for it on the way. Whoever leaves this function,
and however, the lease has been closed once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import relay
from .config import Capabilities, Config, Route
from .errors import UpstreamFailed, UpstreamRefused
from .lease import Books, Lease
from .outlet import OpensStreams, Outlet
from .records import Call, Claim, Failure, Key, Phase
from .relay import Answer, Streamed
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
    keys: Mapping[bytes, Key]
    """By the SHA-256 of their secrets."""
    terms: limits.Terms
    books: Books
    pools: Mapping[str, Pool]
    tasks: Tasks
    """Background work of calls: draining answers whose client left, back-pressure."""


@dataclass(frozen=True, slots=True)
class Served:
    """How a call was answered, and what its caller is told beside the answer."""

    answer: Answer | Streamed
    headers: tuple[tuple[str, str], ...]


async def serve(call: Call, parts: Parts, open_stream: OpensStreams, leased_now: Callable[[], None]) -> Served:
    """Carry one checked call to an upstream and back, and account for it once.

    `leased_now` is called when the ledger has granted the call: from then on its record and its access line are
    written here. Raises `GatewayError` for everything that a client is told by a status. Cancelled: the client is gone.
    """
    claims = limits.claims(call, parts.terms.of(call.key))
    async with Lease(parts.books, call, claims) as lease:
        leased_now()
        keepalive_s = parts.config.server.keepalive_comment_s if call.params.stream else 0
        outlet = Outlet(open_stream, partial(own_headers, lease), keepalive_s)
        try:
            return await _carry(call, parts, lease, outlet)
        finally:
            outlet.close()


async def _carry(call: Call, parts: Parts, lease: Lease, outlet: Outlet) -> Served:
    """Try one route after the other, as long as `next_step` says so."""
    failures: list[Failure] = []
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
                this = prepare(call, lease.claims, route, parts)
                try:
                    result = await relay.attempt(this, lease, outlet, parts.tasks, is_fresh=is_fresh)
                except asyncio.CancelledError:
                    parts.books.telemetry.attempted(route.upstream, "client_gone")
                    raise
                except UpstreamRefused as refused:
                    parts.books.telemetry.attempted(route.upstream, "refused")
                    refused.headers = {**refused.headers, **dict(own_headers(lease))}
                    raise
                fault = None if isinstance(result, Answer) else result.fault
                parts.books.telemetry.attempted(route.upstream, fault.value if fault else "ok")
                if isinstance(result, Streamed) and result.fault is not None:
                    log.warning("upstream %s: %s inside a stream, call %s", route.upstream, result.fault.value, call.id)
                if not isinstance(result, Failure):
                    return Served(result, own_headers(lease))
                log.warning(
                    "upstream %s: %s while %s (%s), call %s",
                    result.upstream, result.fault.value, result.phase.value, result.detail, call.id,
                )  # fmt: skip
                lease.may_have_cost |= result.phase is Phase.WAITING
                failures.append(result)


def prepare(call: Call, claims: Sequence[Claim], route: Route, parts: Parts) -> relay.Attempt:
    """The request for one route, on the client's own bytes: only what must change is changed."""
    upstream = parts.config.upstreams[route.upstream]
    pool = parts.pools[route.upstream]
    changes = changed_members(call, claims, route, upstream.capabilities)
    body = document.replace(call.params.document, changes)
    return relay.Attempt(
        call=call,
        route=route,
        pool=pool,
        upstream=upstream,
        request=pool.request(_PATHS[call.endpoint], call.forwarded_headers, body),
        max_response_bytes=parts.config.server.max_response_bytes,
    )


def changed_members(call: Call, claims: Iterable[Claim], route: Route, capabilities: Capabilities) -> dict[str, Any]:
    """What has to be different in the forwarded body: the model's name, the usage report, an output limit.

    A chat call that gave no limit gets one where tokens or money are counted: what is drawn has to be all that it can
    use.
    """
    params = call.params
    changes: dict[str, Any] = {}
    if route.model is not None and route.model != params.model:
        changes["model"] = route.model
    if params.stream and not params.include_usage and capabilities.stream_usage:
        changes["stream_options"] = {**(params.document.members.get("stream_options") or {}), "include_usage": True}
    limit_field = capabilities.max_tokens_field if call.endpoint == "chat" else "max_tokens"
    if params.is_output_limit_added:
        changes[limit_field] = params.output_limit
    elif (
        call.endpoint == "chat"
        and params.output_limit is None
        and any(claim.window.unit in ("tokens", "usd") for claim in claims)
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
