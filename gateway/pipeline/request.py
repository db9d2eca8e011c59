"""One attempt: its request, and how it counts for its upstream.

The request is the client's own body, with what must change for the route and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

from gateway import relay
from gateway.accounting.bonds import TASK, task_id
from gateway.api import form, json_document, large_body
from gateway.api.capabilities import Adaptation
from gateway.api.form import Upload
from gateway.bridge import bridges, rewriting
from gateway.bridge.request import as_chat
from gateway.config import Capabilities, Route
from gateway.errors import UpstreamRefused
from gateway.formats import FORMATS
from gateway.formats.passthrough import format_of
from gateway.quota import windows
from gateway.records import Bond, Call, Claim, Failure, Usage
from gateway.relay import Attempt, Streamed
from gateway.relay.attempt import Binds
from gateway.relay.charge import SentRequest
from gateway.store.bonds import item_bonds
from gateway.upstream.account import account_of
from gateway.upstream.connection import Head
from gateway.upstream.health import AttemptHandle
from gateway.upstream.limits import Place

from .active_call import ActiveCall
from .plan import Outcome
from .services import Services

log = logging.getLogger("gateway")

_METERED = frozenset({"tokens", "usd"})
"""Units of windows that count a call's output."""


class Attempts:
    """One attempt; its outcome counts for the health of its upstream."""

    async def carry(self, active: ActiveCall) -> Outcome:
        call_log, services, route = active.log, active.services, active.route
        asked, upstream = active.call, route.upstream
        telemetry = services.accounting.telemetry
        base_url = services.config.upstreams[upstream].base_url
        handle = services.router.begin(
            route, asked.params.model, active.tried, active.key, asked.affinity, asked.key.id
        )
        active.key = handle.key
        call, span = call_log.trace.attempt(asked, route, base_url, call_log.attempts + 1)
        try:
            this = prepare(active, call, route, active.way, handle)
            call_log.attempt_began(route, this.left_out)
            if active.place is not None and upstream in services.router.limits.adaptive:
                this = this._replace(answered=timing(active, active.place, handle))
            result = await relay.attempt(this, is_fresh=active.is_fresh)
        except UpstreamRefused as refused:
            handle.ended(None)
            span.ended(refused.status, "refused")
            telemetry.attempted(upstream, "refused")
            call_log.note_upstream_error(refused.detail)
            refused.headers = {**refused.headers, **dict(call_log.headers())}
            raise
        except asyncio.CancelledError:
            handle.abandoned()
            span.ended(None, call_log.stopped_as)
            telemetry.attempted(upstream, call_log.stopped_as)
            raise
        except BaseException as error:
            handle.abandoned()
            span.ended(None, type(error).__name__)
            raise
        if isinstance(result, Failure):
            fault = result.fault.value
            handle.ended(result)
            span.ended(result.status, fault)
            telemetry.attempted(upstream, fault)
            call_log.attempt_failed(result.fault, f"{fault}: {result.detail}")
            log.warning(
                "upstream %s: %s while %s (%s), call %s",
                result.upstream, fault, result.phase.value, result.detail, call.id,
            )  # fmt: skip
        elif isinstance(result, Streamed) and result.fault is not None:
            fault = result.fault.value
            handle.ended(result.problem)
            span.ended(200, fault)
            telemetry.attempted(upstream, fault)
            call_log.attempt_failed(result.fault, result.detail, has_begun=True)
            log.warning("upstream %s: %s inside a stream (%s), call %s", upstream, fault, result.detail, call.id)
        else:
            handle.ended(None)
            span.ended(200, None)
            telemetry.attempted(upstream, "ok")
        return result


def timing(active: ActiveCall, place: Place, handle: AttemptHandle) -> Callable[[], None]:
    """Returns a callback for the tokens of a stream: the time to the first token adapts the limits of its
    upstream."""
    limits, began = active.services.router.limits, time.perf_counter()
    under_way = active.used_at_place
    is_first = True

    def answered() -> None:
        nonlocal is_first
        if is_first:
            limits.first_token(place.claims, under_way, time.perf_counter() - began)
            is_first = False
        handle.answered()

    return answered


def prepare(active: ActiveCall, call: Call, route: Route, way: Adaptation, handle: AttemptHandle) -> Attempt:
    """An attempt on this route, adapted to it in this way. `call` is that of `active`, with a trace in its headers."""
    services = active.services
    upstream = services.config.upstreams[route.upstream]
    pool = services.pools[route.upstream]
    max_bytes = services.config.server.max_response_bytes
    translated: bridges.Translated | None = None
    match way:
        case Adaptation.VIA_CHAT:
            call = as_chat(call)
        case Adaptation.TRANSLATED:
            translated = bridges.translate(call, upstream.capabilities, max_bytes)
            call = translated.call
    changes = changed_members(call, active.log.reservation.held.claims, route, upstream.capabilities)
    document = call.params.document
    if document.large is not None and document.large.rewritten:
        document = rewriting.renamed(document, route.model or call.params.model)
    body: bytes | Sequence[memoryview] | Upload
    if document.form is not None:
        body = form.replace(document.form, changes)
    elif document.large is not None:
        body = large_body.replace(document.large, changes)
    else:
        body = json_document.replace(document, changes)
    spec = FORMATS[call.endpoint]
    added_limits = [changes[name] for name in spec.limit_fields if name in changes]
    path = spec.upstream_path + call.query
    method = "POST"
    if call.passed is not None:
        path, method = call.passed.path, call.passed.method
        spec = format_of(call.passed, call.params.units)
    elif spec.has_model_in_path:
        path = model_path(call, route)
        added_limits = [windows.output_limit(call)] if changes else []
    upload = body if isinstance(body, Upload) else None
    sent = SentRequest(
        call,
        route.model,
        added_limits[0] if added_limits else call.params.output_limit,
        active.plan.count_texts,
        pool.request(path, call.forwarded_headers, body, method=method, key=handle.key),
        0 if upload is None else upload.size,
    )
    return Attempt(
        call=call,
        route=route,
        pool=pool,
        upstream=upstream,
        sent=sent,
        log=active.log,
        client=active.client,
        tasks=services.tasks,
        max_response_bytes=max_bytes,
        answered=handle.answered,
        heard=_hearing(active, call, route, handle) if route.upstream in services.router.limits.learning else None,
        format=translated.format if translated else spec,
        account=account_of(upstream, handle.key) if call.params.is_deferred else "",
        bind=_binding(call, route, services, handle.key) if call.params.is_kept and translated is None else None,
        left_out=translated.left_out if translated else (),
        upload=upload,
    )


def changed_members(call: Call, claims: Iterable[Claim], route: Route, capabilities: Capabilities) -> dict[str, Any]:
    """The members that the forwarded body adds or replaces: the model's name, and those of the format, such as an
    output limit where tokens or money are counted."""
    changes: dict[str, Any] = {}
    spec = FORMATS[call.endpoint]
    name = route.model or call.params.model
    # A path may have named another model than the body.
    is_in_body = not spec.has_model_in_path and spec.batch is None
    if is_in_body and name != call.params.document.members.get("model", call.params.model):
        changes["model"] = name
    added_limit: int | None = None
    if call.params.is_output_limit_added:
        added_limit = call.params.output_limit
    elif call.params.output_limit is None and not _METERED.isdisjoint([claim.window.unit for claim in claims]):
        added_limit = windows.output_limit(call) or None  # the reservation has to cover all that the call can use
    document = call.params.document
    if spec.rename is not None and document.large is None and (spec.has_model_in_path or name != call.params.model):
        renamed = spec.rename(document.members, name)
        changes |= {member: value for member, value in renamed.items() if value != document.members.get(member)}
    return changes | spec.changes(call, route, capabilities, added_limit)


def model_path(call: Call, route: Route) -> str:
    """Where a call goes whose model is named in the path."""
    spec = FORMATS[call.endpoint]
    path = spec.upstream_stream_path if call.params.stream else spec.upstream_path
    return path.replace("{model}", quote(route.model or call.params.model, safe="/"))


def _binding(call: Call, route: Route, services: Services, position: int) -> Binds:
    """Binds the id of an answer of this attempt to its caller."""
    account = account_of(services.config.upstreams[route.upstream], position)
    model, batch = route.model or call.params.model, FORMATS[call.endpoint].batch

    async def bind(kept_id: str, usage: Usage, items: Sequence[str] = ()) -> None:
        key, kind, note, tokens = call.key, "" if batch is None else batch.kind, "", usage.total_tokens
        if call.passed is not None:
            kept_id, kind, note = task_id(call.passed.owner, route.upstream, kept_id), TASK, call.id
        bond = Bond(kept_id, key.id, key.team, route.upstream, account, model, tokens, call.started, kind, note)
        await asyncio.gather(*map(services.bonds.keep, (bond, *item_bonds(bond, items, usage.completion_tokens))))
        if tokens and call.bond is not None and call.bond.kind == "conversation":
            await services.bonds.keep(call.bond._replace(tokens=tokens))

    return bind


def _hearing(active: ActiveCall, call: Call, route: Route, handle: AttemptHandle) -> Callable[[Head], None]:
    """A function that learns an upstream's limits from the head of its answer."""
    limits, model = active.services.router.limits, route.model or call.params.model
    used = active.used_at_place

    def heard(head: Head) -> None:
        if head.status == 429:
            limits.refused(route.upstream, model, handle.key)
        limits.heard(route.upstream, model, handle.key, head.get, used)

    return heard
