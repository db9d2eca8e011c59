"""One attempt: its request, and how it counts for its upstream.

The request is the client's own body, with what must change for the route and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

from gateway import relay
from gateway.api import form, json_document, large_body
from gateway.api.capabilities import Adaptation
from gateway.api.form import Upload
from gateway.config import Capabilities, Route
from gateway.errors import UpstreamRefused
from gateway.formats import bridges
from gateway.formats.table import FORMATS
from gateway.quota import windows
from gateway.records import Call, Claim, Failure
from gateway.relay import Attempt, Streamed
from gateway.relay.attempt import Rider
from gateway.relay.charge import SentRequest
from gateway.upstream.health import AttemptHandle, asker_of

from .active_call import ActiveCall
from .plan import Layer, Outcome

log = logging.getLogger("gateway")

_METERED = frozenset({"tokens", "usd"})
"""Units of windows that count a call's output."""


Rides = Callable[[ActiveCall, AttemptHandle], Rider]
"""Makes a rider for one attempt."""


class Attempts:
    """One attempt; its outcome counts for the health of its upstream."""

    def __init__(self, riders: Iterable[Rides] = ()) -> None:
        self._riders = tuple(riders)

    async def carry(self, active: ActiveCall) -> Outcome:
        call_log, services, route = active.log, active.services, active.route
        asked, upstream = active.call, route.upstream
        telemetry = services.accounting.telemetry
        base_url = services.config.upstreams[upstream].base_url
        handle = services.router.begin(
            route, asked.params.model, active.tried, active.key, asked.affinity, active.asker or asker_of(asked)
        )
        active.key = handle.key
        call, span = call_log.trace.attempt(asked, route, base_url, call_log.attempts + 1)
        try:
            this = (prepare if active.way is Adaptation.PLAIN else _adapted)(active, call, handle)
            for rider in self._riders:
                this = rider(active, handle).request(this)
            call_log.attempt_began(route, this.more_headers)
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


class Submission(Layer):
    """Sends a task over a fresh connection: tasks cost money, and a reused connection that ends without an answer does
    not show whether one was created."""

    async def carry(self, active: ActiveCall) -> Outcome:
        active.is_fresh = True
        return await self.inner.carry(active)


def prepare(active: ActiveCall, call: Call, handle: AttemptHandle) -> Attempt:
    """An attempt on the route of this step. `call` is that of `active`, with a trace in its headers."""
    services, route = active.services, active.route
    upstream, pool = services.config.upstreams[route.upstream], services.pools[route.upstream]
    changes = changed_members(call, active.log.reservation.held.claims, route, upstream.capabilities)
    document = call.params.document
    body: bytes | Sequence[memoryview] | Upload
    upload, upload_size = None, 0
    if document.form is not None:
        body = upload = form.replace(document.form, changes)
        upload_size = upload.size
    elif document.large is not None:
        body = large_body.replace(bridges.renamed(document.large, route.model or call.params.model), changes)
    else:
        body = json_document.replace(document, changes)
    spec = FORMATS[call.endpoint]
    added_limits = [changes[name] for name in spec.limit_fields if name in changes]
    path = spec.upstream_path + call.query
    method = "POST"
    if call.passed is not None:
        method, path, spec = call.passed.method, call.passed.path, call.passed.format
    elif spec.has_model_in_path:
        path = model_path(call, route)
        added_limits = [windows.output_limit(call)] if changes else []
    sent = SentRequest(
        call, route.model, added_limits[0] if added_limits else call.params.output_limit, active.plan.count_texts,
        pool.request(path, call.forwarded_headers, body, method=method, key=handle.key),
        upload_size,
    )  # fmt: skip
    return Attempt(
        call=call, route=route, pool=pool, upstream=upstream, sent=sent, log=active.log, client=active.client,
        tasks=services.tasks, make=services.make, max_response_bytes=services.config.server.max_response_bytes,
        answered=handle.answered, format=spec, upload=upload,
    )  # fmt: skip


def _adapted(active: ActiveCall, call: Call, handle: AttemptHandle) -> Attempt:
    config = active.services.config
    capabilities = config.upstreams[active.route.upstream].capabilities
    found = bridges.by_way()[active.way].adapt(call, capabilities, config.server.max_response_bytes)
    this = prepare(active, found.call, handle)
    left_out = (("x-gateway-left-out", ", ".join(found.left_out)),) if found.left_out else ()
    return this._replace(format=found.format or this.format, more_headers=left_out)


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
