"""A Realtime session on its way to an upstream: its route, its place in the parallel limits, and its responses.

The session is a call that holds only parallel slots, and is closed with its record when the session ends; each response
is a call of its own (relay/realtime.py). `fallbacks` of the session's model are not used.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote

from gateway.accounting.admission import Admission
from gateway.accounting.bonds import MAX_SHOWN_ID
from gateway.accounting.call_log import CallLog
from gateway.accounting.reservation import limit_failure
from gateway.api import auth, file_ids
from gateway.api import capabilities as able
from gateway.config import Model, Route
from gateway.errors import InvalidRequest, ModelNotFound, UpstreamFailed, UpstreamRefused
from gateway.formats import token_rule
from gateway.observe.tracing import NO_TRACE, Trace
from gateway.pipeline.services import Services
from gateway.quota import windows
from gateway.quota.output_fit import OutputFit
from gateway.records import Call, Claim, Failure, Key
from gateway.relay.charge import Ending
from gateway.upstream.ask import cleaned_body
from gateway.upstream.credentials import position_of
from gateway.upstream.health import AttemptHandle, asker_of
from gateway.upstream.limits import Place
from gateway.upstream.retry_policy import FailedAttempt

from . import formats as realtime
from .accounts import MakesCalls, NextCall, ResponseAccounts, SessionEnd
from .formats import REALTIME
from .held_messages import HeldMessages
from .output import MAX_SENT, Bound, OutputLimits
from .transcription import UNKNOWN
from .websocket import UpstreamSocket, open_socket

logger = logging.getLogger("gateway")

AdmitsKey = Callable[[], Awaitable[Key]]
"""The key of the session as it is now. Raises `Unauthorized` once it is revoked."""


@dataclass(slots=True)
class RealtimeSession:
    """A session that is open at an upstream."""

    log: CallLog
    socket: UpstreamSocket
    accounts: ResponseAccounts
    route: Route
    total_s: float
    services: Services
    outputs: OutputLimits
    key: int
    """The position of the upstream's API key that it presents."""
    failure: Failure | None = None
    """The fault of the upstream."""

    def fail(self, failure: Failure) -> None:
        """The upstream has done this wrong, which ends the session."""
        self.failure = failure
        _note(self.log, self.route, failure)

    def check(self, event: dict[str, Any]) -> bool:
        """Whether the event had to be changed, which is done in place: models have other names at the upstream. Raises
        `InvalidRequest` or `ModelNotFound` for what this session may not ask for."""
        call, is_changed = self.log.call, False
        for settings in realtime.settings_of(event):
            for limits in (call.key.limits, call.model.limits):
                if denied := next((name for name in limits.deny if name in settings), None):
                    raise InvalidRequest(
                        f"Unsupported parameter: '{denied}' is not allowed here.", param=denied,
                        code="unsupported_parameter",
                    )  # fmt: skip
            is_changed |= self.outputs.check(settings)
            for place, is_own in realtime.named_models(settings):
                name = place["model"]
                place["model"] = self._own(name) if is_own else self._other(name)
                is_changed |= place["model"] != name
        return is_changed

    async def check_files(self, event: dict[str, Any]) -> None:
        """Raises `NotFound` for a kept file that is not the key's, and `InvalidRequest` for one that another upstream
        or account keeps, if the event names one."""
        upstreams = self.services.config.upstreams
        for file_id in dict.fromkeys(file_ids.ids_in(event)):
            bond = await self.services.bonds.require(self.log.call.key.in_team, file_id, "file_id", upstreams)
            upstream = upstreams[self.route.upstream]
            if bond.upstream != self.route.upstream or position_of(upstream, bond.account) != self.key:
                raise InvalidRequest(
                    f"'{file_id[:MAX_SHOWN_ID]}' is kept by another provider than that of this session. Send the "
                    "content of the file instead of its id.",
                    param="file_id",
                    code="file_not_available",
                )

    def note_settings(self, event: realtime.Event, *, is_answer: bool) -> None:
        """The upstream has sent the settings of the session: as the answer to an update of the client, or by itself."""
        self.accounts.note_settings(event.get("session"))
        transcribers = self.accounts.transcriptions.transcribers
        if is_answer:
            transcribers.answered()
        is_given, model = realtime.transcriber_of(event.get("session"))
        if is_given and model is None:
            transcribers.report(None)
        elif model is not None and (name := self._named(model)) is not None:
            transcribers.report(name)
        elif model is not None and not transcribers.possible():
            transcribers.report(UNKNOWN)

    def _named(self, model: str) -> str | None:
        """The name here of a model that the upstream calls so."""
        for models in (self.accounts.other_models, self.services.config.models):
            for name, found in models.items():
                if any(each.upstream == self.route.upstream and (each.model or name) == model for each in found.routes):
                    self.accounts.other_models.setdefault(name, found)
                    return name
        return None

    async def cleaned(self, text: str) -> str:
        """An event of the upstream, without anything of the gateway's account there in the reasons of failures."""
        return (await cleaned_body(text.encode(), self._hidden())).decode()

    def _hidden(self) -> Iterator[tuple[str, str]]:
        """Texts that no client sees, each with its replacement. They are looked up only for an event with a reason."""
        here, call = self.route.upstream, self.log.call
        yield from self.services.pools[here].hidden
        if self.route.model is not None:
            yield self.route.model, call.params.model
        for name, model in self.accounts.other_models.items():
            yield from [(each.model, name) for each in model.routes if each.upstream == here and each.model]

    def _own(self, name: str) -> str:
        asked = self.log.call.params.model
        if name != asked:
            raise InvalidRequest(
                f"The model of a session cannot be changed: this one has `{asked}`. Open another session.",
                param="session.model",
                code="model_change_not_allowed",
            )
        return self.route.model or asked

    def _other(self, name: str) -> str:
        call = self.log.call
        found = self.services.config.model(name)
        if found is None or not auth.may_use(call.key, name, found.name):
            raise ModelNotFound(name)
        routes = [each for each in found.model.routes if each.upstream == self.route.upstream]
        if not routes:
            raise InvalidRequest(
                f"The model '{name}' is not served by the upstream of this session. Name another one.",
                param="model",
                code="unsupported_value",
            )
        self.accounts.other_models[name] = found.model
        return routes[0].model or name


@asynccontextmanager
async def open_session(
    call: Call,
    services: Services,
    protocols: Sequence[str],
    admit: AdmitsKey,
    reserved: Callable[[], None],
    held: HeldMessages,
    trace: Trace = NO_TRACE,
) -> AsyncIterator[RealtimeSession]:
    """Reserve, and open the session at the first upstream that takes it. Raises `GatewayError`.

    `reserved` is called once the ledger has granted the session's parallel slots. `held` counts its messages.
    """
    routes = able.fitting(call.model, call.endpoint, call.params, services.config.upstreams)
    router = services.router
    candidates = router.candidates(routes, call.params.model, call.affinity, asker_of(call))
    places = router.places(call, candidates, lambda route: (1, 1)) if router.limits.is_any else []
    drawn = [place._replace(claims=_parallel(place.claims)) for place in places]
    if call.tags:
        await services.key_cache.know(call)
    own = _parallel(windows.claims(call, services.key_cache.terms.of_call(call)))
    first = candidates[0] if candidates else routes[0]
    reservation = Admission(services.accounting.ledger, call, own, first, places=drawn)
    log = CallLog(services.accounting, call, reservation, trace)
    async with log, AsyncExitStack() as stack:
        reserved()
        session = await _connect(log, candidates, reservation.place, services, protocols, admit, held, stack)
        if session is None:
            last = router.unavailable_reason(routes, call.params.model, asker_of(call))
            raise UpstreamFailed.after(last)
        yield session


async def _connect(
    log: CallLog,
    candidates: Sequence[Route],
    place: Place | None,
    services: Services,
    protocols: Sequence[str],
    admit: AdmitsKey,
    held: HeldMessages,
    stack: AsyncExitStack,
) -> RealtimeSession | None:
    """Try one route after the other. None: there is none. Raises the last failure, or a refusal."""
    call, router, asker = log.call, services.router, asker_of(log.call)
    tried: list[FailedAttempt] = []
    first = [route for route in candidates if place is not None and route == place.route]
    for route in [*first, *[each for each in candidates if each not in first]][: call.model.max_attempts]:
        key = (
            place.key
            if place is not None and not tried
            else router.next_key(route, call.params.model, tried, None, asker)
        )
        if tried and router.limits.is_any:
            claims = _parallel(router.limits.claims(call, route, key))
            if (refused := await log.reservation.extend(claims)) is not None:
                tried.append(FailedAttempt(route, limit_failure(refused), key or 0))
                continue
        router.count(route, call.params.model, tried)
        handle = router.begin(route, call.params.model, tried, key, asker=asker)
        result = await _attempt(log, route, handle, services, protocols, admit, held, stack)
        if isinstance(result, RealtimeSession):
            return result
        tried.append(FailedAttempt(route, result, handle.key))
    if not tried:
        return None
    error = UpstreamFailed.after(tried[-1].failure)
    error.headers = {**error.headers, **dict(log.headers())}
    raise error


async def _attempt(
    log: CallLog,
    route: Route,
    handle: AttemptHandle,
    services: Services,
    protocols: Sequence[str],
    admit: AdmitsKey,
    held: HeldMessages,
    stack: AsyncExitStack,
) -> RealtimeSession | Failure:
    """One attempt. The session that it opens lasts as long as `stack`."""
    call, upstream, telemetry = log.call, services.config.upstreams[route.upstream], services.accounting.telemetry
    log.attempt_began(route)
    make_call = _calls(call, route, handle.key, services, admit)
    count_texts = token_rule.counting(services.find_counter(call.model_name))
    accounts = ResponseAccounts(
        services.accounting, route, make_call, count_texts, has_unknown_transcriber=_only_transcribes(call)
    )  # fmt: skip
    async with AsyncExitStack() as attempt:
        try:
            await accounts.ready()
            opening = open_socket(
                route.upstream, upstream, services.pools[route.upstream],
                f"{REALTIME.upstream_path}{_query(call, route)}", call.forwarded_headers, protocols,
                key=handle.key, max_bytes=services.config.server.max_response_bytes, held=held,
            )  # fmt: skip
            opened = await attempt.enter_async_context(opening)
        except BaseException:
            accounts.take_back()
            handle.abandoned()
            raise
        if isinstance(opened, UpstreamRefused):
            accounts.take_back()
            handle.ended(None)
            telemetry.attempted(route.upstream, "refused")
            log.note_upstream_error(opened.detail)
            raise opened
        if isinstance(opened, Failure):
            accounts.take_back()
            handle.ended(opened)
            telemetry.attempted(route.upstream, opened.fault.value)
            _note(log, route, opened)
            return opened
        handle.answered()
        outputs = _output_limits(call, accounts, protocols)
        session = RealtimeSession(
            log, opened, accounts, route, upstream.timeouts.total_s, services, outputs, handle.key or 0
        )

        def over() -> None:
            accounts.close(SessionEnd(499, "client_gone", Ending.STOPPED))
            handle.ended(session.failure)
            telemetry.attempted(route.upstream, "ok" if session.failure is None else session.failure.fault.value)

        attempt.callback(over)
        await stack.enter_async_context(attempt.pop_all())
        return session


def _note(log: CallLog, route: Route, failure: Failure) -> None:
    """Write down that an attempt on this route has failed."""
    fault = failure.fault.value
    log.attempt_failed(failure.fault, f"{fault}: {failure.detail}")
    logger.warning(
        "upstream %s: %s while %s (%s), call %s",
        route.upstream, fault, failure.phase.value, failure.detail, log.call.id,
    )  # fmt: skip


def _query(call: Call, route: Route) -> str:
    return f"?model={quote(route.model or call.params.model, safe='')}{call.query.replace('?', '&', 1)}"


def _calls(call: Call, route: Route, position: int, services: Services, admit: AdmitsKey) -> MakesCalls:
    """Makes the calls of a session's responses, by the limits that bind its key at the time."""
    limits = services.router.limits

    def claims(this: Call) -> tuple[Claim, ...]:
        drawn = windows.claims(this, services.key_cache.terms.of_call(this))
        if limits.is_any:
            drawn += limits.claims(this, route, position)
        return _without_parallel(drawn)

    def counted(this: Call) -> tuple[Claim, ...]:
        """The same claims, which refuse nothing."""
        drawn = windows.claims(this, services.key_cache.terms.of_call(this).counting_only())
        if limits.is_any:
            of_upstream = limits.claims(this, route, position)
            drawn += tuple([
                claim._replace(window=claim.window._replace(is_enforced=False)) for claim in of_upstream
            ])  # fmt: skip
        return _without_parallel(drawn)

    async def make(number: int, context_tokens: int, limit: int | None, *, has_begun: bool) -> NextCall:
        key = call.key if has_begun else await admit()
        own, default = _output(call, key, limit)
        params = call.params._replace(
            prompt_tokens=context_tokens, is_prompt_exact=False, output_param="model", output_limit=own,
            default_output=default,
        )  # fmt: skip
        this = call._replace(id=f"{call.id}-{number}", started=services.clock.now(), key=key, params=params)
        if this.tags:  # new in a month that began meanwhile
            await services.key_cache.know(this)
        if has_begun:
            return NextCall(this, counted(this))
        fit = OutputFit(this, claims) if OutputFit.may_shrink(this) else None
        if fit is not None:
            this = fit.at_first()
        return NextCall(this, claims(this), fit)

    return make


def _without_parallel(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    return tuple([claim for claim in claims if claim.window.unit != "parallel"])


def _output(call: Call, key: Key, limit: int | None) -> tuple[int | None, int | None]:
    """`output_limit` and `default_output` of a response's `Params`: the client's own limit, else a default."""
    bound = min([each.tokens for each in _bounds(key, call.model)], default=None)
    if limit is not None:
        return limit if bound is None else min(limit, bound), None
    if bound is not None:
        return min(bound, call.model.max_output_tokens or MAX_SENT), None
    return None, None if call.model.max_output_tokens else MAX_SENT


def _output_limits(call: Call, accounts: ResponseAccounts, protocols: Sequence[str]) -> OutputLimits:
    """Returns the output limits of a session. A session that only transcribes (`intent=transcription`) has no
    output."""
    bounds = _bounds(call.key, call.model)
    is_beta = realtime.BETA_PROTOCOL in protocols or any(
        name.lower() == "openai-beta" and realtime.BETA in value for name, value in call.forwarded_headers
    )
    is_kept = not _only_transcribes(call) and (bool(bounds) or accounts.counts_output)
    return OutputLimits(bounds, is_kept=is_kept, is_beta=is_beta)


def _only_transcribes(call: Call) -> bool:
    intents = {value for name, value in parse_qsl(call.query.removeprefix("?")) if name == "intent"}
    return intents == {"transcription"}


def _bounds(key: Key, model: Model) -> list[Bound]:
    limits = (("key", key.limits.max_tokens), ("model", model.limits.max_tokens))
    return [Bound(owner, tokens) for owner, tokens in limits if tokens is not None]


def _parallel(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    return tuple([claim for claim in claims if claim.window.unit == "parallel"])
