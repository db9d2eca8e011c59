"""The story of one call. A newcomer starts here.

Before, `web/endpoints.py` has found the key and checked the body. Here the call is reserved in the ledger, sent to an
upstream, sent again if that is safe, and answered; `relay` computes its usage on the way. However this function ends,
the lease is closed exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from . import relay
from .accounting.bonds import Bonds
from .accounting.lease import Accounting, Lease, limit_failure
from .api import capabilities as able
from .api import form, json_document, large_body
from .api.capabilities import Adaptation
from .api.form import Upload
from .api.prompt_tokens import FindsCounter, no_counter
from .bridge import bridges, fan_out
from .bridge.request import as_chat
from .config import Capabilities, Config, Route
from .errors import GatewayError, InvalidRequest, UpstreamFailed, UpstreamRefused
from .formats import FORMATS, token_rule
from .keys.cache import KeyCache
from .observe.tracing import CLIENT_GONE, Trace
from .queueing import Ticket, Waiting, WaitingRoom
from .queueing.classes import FACTORS
from .quota import windows
from .quota.output_fit import OutputFit, shrunk
from .records import Bond, Call, Claim, Document, Failure, Fault, Phase, Usage
from .relay import Answer, Streamed
from .relay.client_stream import ClientStream, OpensStreams
from .tasks import Tasks
from .upstream.account import account_of, position_of
from .upstream.connection import Head
from .upstream.health import AttemptHandle
from .upstream.limits import Place
from .upstream.pool import Pool
from .upstream.refusal import is_context_too_long
from .upstream.retry_policy import FailedAttempt, GiveUp, Try, client_timeout_s, may_client_repeat, next_step
from .upstream.router import Router

log = logging.getLogger("gateway")

_PROMPT_BY_PROMPT = frozenset({Adaptation.ONE_BY_ONE, Adaptation.VIA_CHAT})


ANSWER_WITHIN_S = 0.5
"""How long before a client gives up a call that waits is refused, so that the refusal arrives."""


@dataclass(frozen=True, slots=True)
class Services:
    """What calls are carried with. A call keeps the configuration it began with."""

    config: Config
    book: KeyCache
    """Keys, and the limits that bind them; always the newest."""
    books: Accounting
    pools: Mapping[str, Pool]
    router: Router
    waiting: WaitingRoom
    """Calls for which no upstream has room; outlives the configuration."""
    bonds: Bonds
    """To whom the ids belong of what upstreams keep."""
    tasks: Tasks
    """Background work of calls: reading answers to their end after the client left, back-pressure."""
    find_counter: FindsCounter = no_counter
    """Counts text for models with a known tokenizer."""


@dataclass(slots=True)
class CurrentServices:
    """What a worker serves with at present. A reload puts other parts in the place of these; what has begun with the
    old ones goes on with them to its end."""

    parts: Services


@dataclass(frozen=True, slots=True)
class Served:
    """The answer of a call, and the headers for its caller."""

    answer: Answer | Streamed
    headers: tuple[tuple[str, str], ...]


async def serve(
    call: Call,
    parts: Services,
    open_stream: OpensStreams,
    leased_now: Callable[[], None],
    hold: Callable[[int], None],
    trace: Trace | None = None,
) -> Served:
    """Carry one checked call to an upstream and back, and account for it once.

    `leased_now` is called when the ledger has granted the call: from then on its record and its access line are
    written here, and its `trace` is ended. Raises `GatewayError` for errors that the client gets as a status.
    Cancelled: the client is gone.
    """
    routes = _routes(call, parts)
    if call.params.refers_to is not None:
        call, routes = await _continued(call, routes, parts)
    fit = None
    if call.model.min_output_tokens is not None and OutputFit.may_shrink(call):
        fit = _output_fit(call, parts)
        call = fit.at_first()
    claims = windows.claims(call, parts.book.terms.of(call.key))
    fallbacks: Sequence[_Fallback] = ()
    if call.fallbacks:
        fallbacks = _fallbacks(call, parts)
        claims = windows.dearest([claims, *[each.claims for each in fallbacks]])
    candidates = parts.router.candidates(routes, call.params.model, call.affinity)
    limits = parts.router.limits
    places: Sequence[Place] = ()
    if limits.is_any and limits.binds_any(_all_routes(routes, fallbacks)):
        places = _places(call, candidates, parts)
    admission = _admission(call, places, parts) if places else None
    likely = candidates[0] if candidates else routes[0]
    waits = Lease(parts.books, call, claims, likely, places, admission, fit)
    keepalive = FORMATS[call.endpoint].keepalive
    keepalive_s = parts.config.server.keepalive_comment_s if call.params.stream and keepalive else 0
    outlet = ClientStream(open_stream, partial(own_headers, waits), keepalive_s, keepalive, hold)
    try:
        async with waits as lease:
            leased_now()
            lease.trace = trace
            if fit is not None and lease.call is not call:
                call, fallbacks = lease.call, _fallbacks(lease.call, parts)
            lease.fallbacks_left = len(fallbacks)
            try:
                answer = await _carry(call, parts, lease, outlet, routes=routes, tried=[])
            except (UpstreamFailed, UpstreamRefused) as error:
                answer = await _fall_back(error, fallbacks, parts, lease, outlet)
            return Served(answer, own_headers(lease))
    finally:
        outlet.close()


def _routes(call: Call, parts: Services) -> tuple[Route, ...]:
    """The routes that can take the call. Raises `InvalidRequest` or `NotFound` if none can."""
    routes = able.fitting(call.model, call.endpoint, call.params, parts.config.upstreams, bridges.refusal)
    return able.beside(routes, call.other_models) if call.other_models else routes


async def _continued(call: Call, routes: Sequence[Route], parts: Services) -> tuple[Call, tuple[Route, ...]]:
    """The call with its bond, and the routes to what it continues. Raises `NotFound` or `InvalidRequest`."""
    params = call.params
    bond = await parts.bonds.require(call.key.id, params.refers_to or "", params.refers_param, parts.config.upstreams)
    found = tuple([route for route in routes if route.upstream == bond.upstream])
    if not found:
        raise InvalidRequest(
            f"'{bond.id}' cannot be continued with the model `{params.model}`, which another provider serves. Use the "
            "model that made it, or send the whole conversation.",
            param="model",
            code="model_mismatch",
        )
    params = params._replace(prompt_tokens=params.prompt_tokens + bond.tokens, is_prompt_exact=False)
    return call._replace(params=params, bond=bond, fallbacks=()), found


class _Fallback(NamedTuple):
    """Another model for a call."""

    call: Call
    routes: Sequence[Route]
    claims: Sequence[Claim]


def _fallbacks(call: Call, parts: Services) -> list[_Fallback]:
    """The other models that can take the call, within its limits."""
    found = []
    for other in call.fallbacks:
        try:
            found.append(_Fallback(other, _routes(other, parts), windows.claims(other, parts.book.terms.of(other.key))))
        except GatewayError:
            continue
    return found


def _output_fit(call: Call, parts: Services) -> OutputFit:
    """How the call and those of its fallbacks that can serve it with the least output may be made smaller."""
    possible = {other.call.target for other in _fallbacks(shrunk(call, call.model.min_output_tokens or 1), parts)}
    fallbacks = tuple([other for other in call.fallbacks if other.target in possible])

    def claims(smaller: Call) -> tuple[Claim, ...]:
        each = (smaller, *smaller.fallbacks)
        return windows.dearest([windows.claims(one, parts.book.terms.of(one.key)) for one in each])

    return OutputFit(call._replace(fallbacks=fallbacks), claims)


def _all_routes(routes: Sequence[Route], fallbacks: Sequence[_Fallback]) -> Sequence[Route]:
    return [*routes, *[route for each in fallbacks for route in each.routes]] if fallbacks else routes


async def _fall_back(
    error: UpstreamFailed | UpstreamRefused,
    fallbacks: Sequence[_Fallback],
    parts: Services,
    lease: Lease,
    outlet: ClientStream,
) -> Answer | Streamed:
    """Try other models, one after the other, as long as the last error permits it. Raises the last error."""
    for other in fallbacks:
        if outlet.client is not None or not lease.is_open or not _may_fall_back(error):
            break
        log.warning(
            "model %s: %s; model %s serves, call %s",
            lease.call.model_name,
            error.name,
            other.call.target,
            lease.call.id,
        )
        lease.fall_back(other.call)
        try:
            return await _carry(other.call, parts, lease, outlet, routes=other.routes, tried=[])
        except (UpstreamFailed, UpstreamRefused) as another:
            error = another
    raise error


def _may_fall_back(error: UpstreamFailed | UpstreamRefused) -> bool:
    """Whether another model may serve a call after this error: it cannot be billed twice, unless its model permits
    that, and another model may do better."""
    return error.may_try_elsewhere if isinstance(error, UpstreamFailed) else is_context_too_long(error)


def _places(call: Call, candidates: Sequence[Route], parts: Services) -> Sequence[Place]:
    """Where the call may go first, with what it draws on there."""

    def prompts(route: Route) -> tuple[int, int]:
        count = 1 if _way(call, route, parts) is Adaptation.PLAIN else call.params.prompts
        return count, min(count, fan_out.AT_ONCE)

    places, key = parts.router.places(call, candidates, prompts), _bound_key(call, parts)
    if key is None:
        return places
    return [place._replace(key=key) for place in places if place.key in (None, key)]


def _admission(call: Call, places: Sequence[Place], parts: Services) -> Ticket | None:
    """How the call waits where no place has room: in the flow of its key or team, not past its client's patience. None:
    it does not."""
    wait_s = parts.waiting.longest_wait_s(call.key.max_wait_s, call.model.max_wait_s)
    if not wait_s:
        return None
    key, document, by = call.key, call.params.document, parts.waiting.settings.by
    owner = f"team:{key.team}" if by == "team" and key.team is not None else key.id
    size = _size(document)
    waiting = Waiting(
        flow=f"{owner}|{call.priority}",
        weight=key.weight * FACTORS[call.priority],
        cost=call.params.prompt_tokens,
        size=size,
        windows=[frozenset(claim.window.id for claim in place.claims) for place in places],
        priority=call.priority,
    )
    patience_s = client_timeout_s(call.forwarded_headers) - (time.perf_counter() - call.arrived) - ANSWER_WITHIN_S
    return parts.waiting.ticket({place.route.upstream for place in places}, waiting, min(patience_s, wait_s))


def _size(document: Document) -> int:
    """Bytes of the body that are held in memory."""
    if document.form is not None:
        return 0
    return len(document.text) if document.large is None else sum(map(len, document.large.pieces))


async def _carry(
    call: Call,
    parts: Services,
    lease: Lease,
    outlet: ClientStream,
    *,
    routes: Sequence[Route],
    tried: list[FailedAttempt],
    is_single: bool = False,
) -> Answer | Streamed:
    """Try one route after the other, as long as `next_step` says so.

    Where a route takes single prompts only, each goes its own way from there; `is_single`: this one does.
    """
    waited_s = 0.0
    place = lease.place
    while True:
        is_first = place is not None and not tried and not lease.has_fallen_back
        match Try(place.route) if place is not None and is_first else _next_step(call, routes, parts, tried, waited_s):
            case GiveUp(last):
                error = _failed(last, tried, call, routes, parts, lease)
                may_fall_back = outlet.client is None and lease.fallbacks_left and error.may_try_elsewhere
                is_passed_on = not may_fall_back and not FORMATS[call.endpoint].error_keeps_status
                if last is not None and last.phase is Phase.REFUSED and last.has_begun and is_passed_on:
                    # An error as the first event of a stream: it is passed on unchanged.
                    outlet.open((("content-type", "text/event-stream"),))
                    lease.close(status=error.status, usage=Usage(), ended="error", is_truncated=True, error=error.name)
                raise error
            case Try(route, after_s, is_fresh):
                parts.router.count(route, call.params.model, tried)
                if after_s:
                    waited_s += after_s
                    await asyncio.sleep(after_s)
                if not is_single and _way(call, route, parts) in _PROMPT_BY_PROMPT:
                    return await _carry_singly(call, parts, lease, outlet, routes=routes, tried=tried)
                key = place.key if place is not None and is_first else _bound_key(call, parts)
                if place is not None and not is_first and parts.router.limits.binds(route.upstream):
                    if call.bond is None:
                        key = parts.router.next_key(route, call.params.model, tried, call.affinity)
                    refused = await lease.extend(parts.router.limits.claims(call, route, key))
                    if refused is not None:
                        tried.append(FailedAttempt(route, limit_failure(refused), key or 0))
                        continue
                trial = parts.router.begin(route, call.params.model, tried, key, call.affinity)
                try_it = _try if lease.trace is None else _trace
                result = await try_it(route, trial, call, parts, lease, outlet, is_fresh=is_fresh)
                if not isinstance(result, Failure):
                    return result
                tried.append(FailedAttempt(route, result, trial.key))


def _bound_key(call: Call, parts: Services) -> int | None:
    """The only API key that can serve the call; None: any."""
    return None if call.bond is None else position_of(parts.config.upstreams[call.bond.upstream], call.bond.account)


async def _carry_singly(
    call: Call,
    parts: Services,
    lease: Lease,
    outlet: ClientStream,
    *,
    routes: Sequence[Route],
    tried: Sequence[FailedAttempt],
) -> Answer | Streamed:
    """Carry each prompt by itself, from where the whole call has come to."""

    async def carry_one(single: Call, share: Lease, side: ClientStream) -> Answer | Streamed:
        return await _carry(single, parts, share, side, routes=routes, tried=list(tried), is_single=True)

    try:
        return await fan_out.carry(
            call, lease, outlet, one=carry_one, upstreams=parts.config.upstreams, books=parts.books, tasks=parts.tasks,
            max_response_bytes=parts.config.server.max_response_bytes,
        )  # fmt: skip
    except GatewayError as error:
        error.headers = {**error.headers, **dict(own_headers(lease))}
        raise


def _way(call: Call, route: Route, parts: Services) -> Adaptation:
    return able.adaptation(call.endpoint, call.params, parts.config.upstreams[route.upstream].capabilities)


def _next_step(
    call: Call, routes: Sequence[Route], parts: Services, tried: Sequence[FailedAttempt], waited_s: float
) -> Try | GiveUp:
    router, name = parts.router, call.params.model
    candidates = router.candidates(routes, name, call.affinity)
    if not tried:
        return next_step(call.model, candidates)
    total_s = max([parts.config.upstreams[route.upstream].timeouts.total_s for route in routes])
    left_s = min(total_s, client_timeout_s(call.forwarded_headers)) - (time.perf_counter() - call.arrived)
    return next_step(
        call.model, candidates, tried,
        waited_s=waited_s, left_s=left_s,
        has_other_credential=router.with_other_credential(name, tried) if call.bond is None else set(),
        spent=router.spent(tried),
    )  # fmt: skip


def _failed(
    last: Failure | None,
    tried: Sequence[FailedAttempt],
    call: Call,
    routes: Sequence[Route],
    parts: Services,
    lease: Lease,
) -> UpstreamFailed:
    """The error for the client after this last failure; None: no route was available."""
    if last is None:
        last = parts.router.unavailable_reason(routes, call.params.model)
        if not lease.fallbacks_left:
            parts.books.telemetry.rejected(last.fault.value)
    failures = [each.failure for each in tried] or [last]
    may_repeat = may_client_repeat(call.model, failures)
    error = UpstreamFailed.after(last, may_repeat=may_repeat, passed=FORMATS[call.endpoint].passed_statuses)
    if last.fault is Fault.WRONG_URL and FORMATS[call.endpoint].is_optional:
        error.status = 404
    error.headers = {**error.headers, **dict(own_headers(lease))}
    error.may_try_elsewhere = last.phase in (Phase.CONNECT, Phase.REFUSED) or (
        last.phase is not Phase.RELAYING and call.model.repeat_when_waiting
    )
    return error


async def _trace(
    route: Route,
    trial: AttemptHandle,
    call: Call,
    parts: Services,
    lease: Lease,
    outlet: ClientStream,
    *,
    is_fresh: bool,
) -> Answer | Streamed | Failure:
    """`_try`, with a span of its own, which is the parent in the upstream's trace."""
    assert lease.trace is not None
    base_url = parts.config.upstreams[route.upstream].base_url
    span = lease.trace.attempt(call, route, base_url, lease.attempts + 1)
    told = call._replace(forwarded_headers=span.headers(call.forwarded_headers))
    try:
        result = await _try(route, trial, told, parts, lease, outlet, is_fresh=is_fresh)
    except UpstreamRefused as refused:
        span.ended(refused.status, "refused")
        raise
    except asyncio.CancelledError:
        span.ended(None, CLIENT_GONE)
        raise
    except BaseException as error:
        span.ended(None, type(error).__name__)
        raise
    if isinstance(result, Failure):
        span.ended(result.status, result.fault.value)
    else:
        fault = result.fault if isinstance(result, Streamed) else None
        span.ended(200, fault.value if fault else None)
    return result


async def _try(
    route: Route,
    trial: AttemptHandle,
    call: Call,
    parts: Services,
    lease: Lease,
    outlet: ClientStream,
    *,
    is_fresh: bool,
) -> Answer | Streamed | Failure:
    """One attempt, and what it says about its upstream."""
    telemetry = parts.books.telemetry
    lease.route = route
    lease.attempts += 1
    try:
        this = prepare(call, lease.claims, route, parts, trial)
        lease.left_out = this.left_out
        if lease.place is not None and lease.attempts == 1 and route.upstream in parts.router.limits.adaptive:
            this = this._replace(answered=_timing(lease, parts, trial))
        result = await relay.attempt(this, lease, outlet, parts.tasks, is_fresh=is_fresh)
    except UpstreamRefused as refused:
        trial.ended(None)
        telemetry.attempted(route.upstream, "refused")
        lease.upstream_error = refused.detail  # in the access line only: it is the client's fault
        refused.headers = {**refused.headers, **dict(own_headers(lease))}
        raise
    except asyncio.CancelledError:
        trial.abandoned()
        telemetry.attempted(route.upstream, "client_gone")
        raise
    except BaseException:
        trial.abandoned()
        raise
    if isinstance(result, Failure):
        trial.ended(result)
        lease.upstream_error = f"{result.fault.value}: {result.detail}"
        lease.failed.append(f"{route.upstream}:{result.fault.value}")
        telemetry.attempted(route.upstream, result.fault.value)
        log.warning(
            "upstream %s: %s while %s (%s), call %s",
            result.upstream, result.fault.value, result.phase.value, result.detail, call.id,
        )  # fmt: skip
        return result
    fault = result.fault if isinstance(result, Streamed) else None
    trial.ended(result.trouble if isinstance(result, Streamed) else None)
    telemetry.attempted(route.upstream, fault.value if fault else "ok")
    if isinstance(result, Streamed) and fault is not None:
        lease.failed.append(f"{route.upstream}:{fault.value}")
        log.warning(
            "upstream %s: %s inside a stream (%s), call %s", route.upstream, fault.value, result.detail, call.id
        )
    return result


def _timing(lease: Lease, parts: Services, trial: AttemptHandle) -> Callable[[], None]:
    """For the first token of a stream, whose time the limits of its upstream follow."""
    place, began = lease.place, time.perf_counter()
    under_way = {status.window.id: status.used for status in lease.place_standings}

    def answered() -> None:
        nonlocal place
        if place is not None:
            parts.router.limits.first_token(place.claims, under_way, time.perf_counter() - began)
            place = None
        trial.answered()

    return answered


def prepare(call: Call, claims: Sequence[Claim], route: Route, parts: Services, trial: AttemptHandle) -> relay.Attempt:
    """The request for one route, on the client's own bytes: only what must change is changed."""
    upstream = parts.config.upstreams[route.upstream]
    pool = parts.pools[route.upstream]
    max_bytes = parts.config.server.max_response_bytes
    translated: bridges.Translated | None = None
    match _way(call, route, parts):
        case Adaptation.VIA_CHAT:
            call = as_chat(call)
        case Adaptation.TRANSLATED:
            translated = bridges.translate(call, upstream.capabilities, max_bytes)
            call = translated.call
    changes = changed_members(call, claims, route, upstream.capabilities)
    body = _body(call.params.document, changes)
    spec = FORMATS[call.endpoint]
    added_limits = [changes[name] for name in spec.limit_fields if name in changes]
    path = spec.upstream_path + call.query
    if spec.has_model_in_path:
        path = model_path(call, route)
        added_limits = [windows.output_limit(call)] if changes else []
    return relay.Attempt(
        call=call,
        route=route,
        pool=pool,
        upstream=upstream,
        request=pool.request(path, call.forwarded_headers, body, key=trial.key),
        max_response_bytes=max_bytes,
        output_limit=added_limits[0] if added_limits else call.params.output_limit,
        count_texts=token_rule.counting(parts.find_counter(call.target or call.params.model)),
        answered=trial.answered,
        heard=_hearing(call, route, parts, trial) if route.upstream in parts.router.limits.learning else None,
        format=translated.format if translated else spec,
        account=account_of(upstream, trial.key) if call.params.is_deferred else "",
        bind=_binding(call, route, parts, trial.key) if call.params.is_kept and translated is None else None,
        left_out=translated.left_out if translated else (),
        upload=body if isinstance(body, Upload) else None,
    )


def _binding(
    call: Call, route: Route, parts: Services, position: int
) -> Callable[[str, int], Coroutine[Any, Any, None]]:
    """Binds the id of an answer of this attempt to its caller."""
    account = account_of(parts.config.upstreams[route.upstream], position)
    model = route.model or call.params.model

    async def bind(kept_id: str, tokens: int) -> None:
        key = call.key
        await parts.bonds.keep(Bond(kept_id, key.id, key.team, route.upstream, account, model, tokens, call.started))

    return bind


def _body(given: Document, changes: Mapping[str, Any]) -> bytes | Sequence[memoryview] | Upload:
    """The client's own body with these members."""
    if given.form is not None:
        return form.replace(given.form, changes)
    return json_document.replace(given, changes) if given.large is None else large_body.replace(given.large, changes)


def _hearing(call: Call, route: Route, parts: Services, trial: AttemptHandle) -> Callable[[Head], None]:
    """What an upstream's heads say about its limits."""
    limits, model = parts.router.limits, route.model or call.params.model

    def heard(head: Head) -> None:
        if head.status == 429:
            limits.refused(route.upstream, model, trial.key)
        limits.heard(route.upstream, model, trial.key, head.get)

    return heard


def changed_members(call: Call, claims: Iterable[Claim], route: Route, capabilities: Capabilities) -> dict[str, Any]:
    """What has to be different in the forwarded body: the model's name, and what the format adds, such as an output
    limit where tokens or money are counted."""
    changes: dict[str, Any] = {}
    spec = FORMATS[call.endpoint]
    name = route.model or call.params.model
    # A path may have named another model than the body.
    if name != call.params.document.members.get("model", call.params.model) and not spec.has_model_in_path:
        changes["model"] = name
    needs_limit = (
        call.params.output_limit is None
        and any(claim.window.unit in ("tokens", "usd") for claim in claims)
        and windows.output_limit(call) > 0
    )
    return changes | spec.changes(call, route, capabilities, needs_limit)


def model_path(call: Call, route: Route) -> str:
    """Where a call goes whose model is named in the path."""
    spec = FORMATS[call.endpoint]
    path = spec.upstream_stream_path if call.params.stream else spec.upstream_path
    return path.replace("{model}", quote(route.model or call.params.model, safe="/"))


def own_headers(lease: Lease) -> tuple[tuple[str, str], ...]:
    """The gateway's headers on an answer: the upstream of the call, what it was not offered, and the state of the
    caller's quotas."""
    upstream = lease.route.upstream if lease.route else ""
    model = lease.call.target
    return (
        ("x-gateway-upstream", upstream),
        *((("x-gateway-model", model),) if model is not None else ()),
        ("x-gateway-attempts", str(lease.attempts)),
        *([("x-gateway-output-limit", str(lease.reduced_output))] if lease.reduced_output is not None else ()),
        *([("x-gateway-left-out", ", ".join(lease.left_out))] if lease.left_out else ()),
        *FORMATS[lease.call.endpoint].rate_headers(lease.standings, lease.call.started).items(),
    )
