"""The layers of plug-ins: around a whole call, and around each attempt, with its rider."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

from gateway.config import Config
from gateway.errors import GatewayError
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.plan import Carries, Layer, Outcome
from gateway.pipeline.stack import Around, WingLayer, WingRider
from gateway.records import Call
from gateway.relay import Answer, Streamed
from gateway.relay.attempt import Rider
from gateway.upstream.health import AttemptHandle

from .faults import PluginFailed, PluginRefused
from .guard import Guard
from .interface import CallEnd
from .loading import METHODS
from .ride import PluginRider, RiddenCall, shown
from .settings import loaded

AROUND_CALL, AROUND_ATTEMPT = "around_call", "around_attempt"
OF_ATTEMPTS = METHODS.keys() - {AROUND_CALL}

Carry = Callable[[], Awaitable[Outcome]]


class PluginLayer(Layer):
    """A layer that asks plug-ins. It serves one configuration."""

    def __init__(self, inner: Carries) -> None:
        super().__init__(inner)
        self._guards: Sequence[Guard] | None = None

    def guards(self, active: ActiveCall) -> Sequence[Guard]:
        """The plug-ins of the call's configuration, which its first call finds."""
        if self._guards is None:
            telemetry = active.services.accounting.telemetry
            found = enumerate(loaded(active.services.config))
            self._guards = [Guard(each, number, telemetry) for number, each in found]
        return self._guards


class AroundCall(PluginLayer):
    """The wrappers of plug-ins around a whole call, the first plug-in's outermost."""

    async def carry(self, active: ActiveCall) -> Outcome:
        seen, carry = shown(active.call), partial(self.inner.carry, active)
        for guard in reversed(self.guards(active)):
            if AROUND_CALL in guard.methods:
                carry = partial(
                    guard.around, AROUND_CALL, active.call.id, seen, carry, partial(_end_of_call, active),
                    lambda: active.log.is_open,
                )  # fmt: skip
        return await _with_headers(carry, active)


class EachAttempt(PluginLayer):
    """Plug-ins around an attempt: their wrappers, and within these their `before_attempt`."""

    async def carry(self, active: ActiveCall) -> Outcome:
        ridden = RiddenCall.of(active, self.guards(active))
        ride, carry = ridden.ride, partial(self._attempt, ridden)
        for guard, attempt in reversed(ride.plugins):
            if AROUND_ATTEMPT in guard.methods:
                carry = partial(
                    guard.around, AROUND_ATTEMPT, ride.call_id, attempt, carry, ride.end_of,
                    lambda: active.log.is_open,
                )  # fmt: skip
        try:
            return await _with_headers(carry, active)
        finally:
            active.key = ridden.key

    async def _attempt(self, ridden: RiddenCall) -> Outcome:
        ride = ridden.ride
        outcome: Outcome | GatewayError = None
        try:
            ride.before()
            outcome = await self.inner.carry(ridden)
        except GatewayError as error:
            outcome = error
            raise
        finally:
            try:
                ride.end(ride.end_of(outcome))  # unless the rider has reported it
            except PluginFailed:
                if outcome is not None and ridden.log.is_open:  # else the call is settled, or its client is gone
                    raise
        return outcome


async def _with_headers(carry: Carry, active: ActiveCall) -> Outcome:
    try:
        return await carry()
    except (PluginFailed, PluginRefused) as error:
        error.headers = {**dict(active.log.headers()), **error.headers}
        raise


def _end_of_call(active: ActiveCall, outcome: Outcome | GatewayError) -> CallEnd:
    log = active.log
    upstream, seconds = log.route.upstream if log.route else "", time.perf_counter() - active.call.arrived
    end = partial(CallEnd, upstream=upstream, attempts=log.attempts, seconds=seconds)
    if isinstance(outcome, Answer):
        return end(outcome.status)
    if isinstance(outcome, Streamed):
        return end(200, None if outcome.fault is None else outcome.fault.value)
    error = outcome if isinstance(outcome, GatewayError) else active.error_after(active.last_failure(outcome))
    return end(error.status, error.name)


def _rides(active: ActiveCall, handle: AttemptHandle) -> Rider:
    return PluginRider(active.ride) if isinstance(active, RiddenCall) else Rider()


def _has(methods: Collection[str]) -> Callable[[Config, Call], bool]:
    """Whether a plug-in of a configuration has one of these methods."""
    return lambda config, _: any(not each.methods.isdisjoint(methods) for each in loaded(config))


CALL = WingLayer(Around.CALL, AroundCall, _has({AROUND_CALL}))
ATTEMPT = WingLayer(Around.EVERY, EachAttempt, _has(OF_ATTEMPTS))
RIDER = WingRider(_rides, _has({"head", "event", "end"}))
