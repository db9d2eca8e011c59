"""One attempt as its plug-ins see it, and the rider that shows them its answer.

A fault behind the attempt's beginning ends the call by `break_off`, while the answer still comes: so the part that came
is charged, the upstream is not blamed, and a stream ends with an error event.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType

from gateway.errors import GatewayError
from gateway.formats.format import PlainFacts
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.plan import Outcome
from gateway.records import TAG_SEPARATOR, Call, Failure, Usage
from gateway.relay import Answer, Attempt, Streamed
from gateway.relay.attempt import Rider
from gateway.relay.charge import Charge
from gateway.relay.exchange import Exchange
from gateway.upstream.connection import Head

from .faults import PluginFailed
from .guard import BEFORE, Guard
from .interface import AnswerHead, AttemptEnd, PluginAttempt, PluginCall
from .watched import EventCutter, WatchedStream


def shown(call: Call) -> PluginCall:
    """The call as its plug-ins see it."""
    params, document = call.params, call.params.document
    large = document.large
    tags = dict([tag.split("=", 1) for tag in call.tags.split(TAG_SEPARATOR)]) if call.tags else {}
    return PluginCall(
        id=call.id, key=call.key.id, team=call.key.team, owner=call.key.owner, model=params.model,
        endpoint=call.endpoint, stream=params.stream, tags=MappingProxyType(tags),
        is_whole=large is None and document.form is None, members=document.members,
        read_body=lambda: document.text.encode() if large is None else b"".join(large.pieces),
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class RiddenCall(ActiveCall):
    """A call with one attempt under way, which plug-ins see."""

    ride: Ride = field(init=False)

    @classmethod
    def of(cls, active: ActiveCall, guards: Sequence[Guard]) -> RiddenCall:
        """The same call, at its present attempt."""
        ridden = cls(active.call, active.plan, active.routes, active.services)
        for each in fields(ActiveCall):
            if hasattr(active, each.name):
                setattr(ridden, each.name, getattr(active, each.name))
        ridden.ride = Ride(ridden, guards)
        return ridden


class Ride:
    """One attempt and its plug-ins."""

    def __init__(self, active: RiddenCall, guards: Sequence[Guard]) -> None:
        call, route = active.call, active.route
        self.call_id = call.id
        self.known_end: AttemptEnd | None = None
        """How a good attempt has ended, with its usage."""
        self._active = active
        self._began = time.perf_counter()
        seen = PluginAttempt(shown(call), route.upstream, route.model or call.params.model)
        self.plugins = [(guard, replace(seen, notes={})) for guard in guards]
        """Each plug-in, with what it sees of the attempt."""
        self._passed = 0
        """How many of them have let it pass."""
        self._is_over = False

    def hears(self, *methods: str) -> bool:
        """Whether a plug-in has one of these methods."""
        return any(not guard.methods.isdisjoint(methods) for guard, _ in self.plugins)

    def before(self) -> None:
        """Asks each plug-in, and adds its headers. Raises `PluginRefused` or `PluginFailed`."""
        active, call = self._active, self._active.call
        upstream = active.services.config.upstreams[active.route.upstream]
        taken = frozenset([name.lower() for name in (*upstream.headers, upstream.key_header)])
        added: dict[str, str] = {}
        for guard, attempt in self.plugins:
            if BEFORE in guard.methods:
                added |= guard.before(self.call_id, attempt, taken.union(added))
            self._passed += 1
        if added:
            kept = [each for each in call.forwarded_headers if each[0].lower() not in added]
            active.call = call._replace(forwarded_headers=(*kept, *added.items()))

    def report(self, method: str, given: object) -> None:
        """Runs this method of each plug-in that has it. Raises `PluginFailed`."""
        for guard, attempt in () if self._is_over else self.plugins:
            if method in guard.methods:
                guard.run(method, self.call_id, attempt, given)

    def end(self, end: AttemptEnd) -> None:
        """Reports the end, once, to those that have let the attempt pass: to all of them, whatever one does. Raises
        `PluginFailed`."""
        if self._is_over:
            return
        failed: PluginFailed | None = None
        self._is_over = True
        for guard, attempt in self.plugins[: self._passed]:
            if "end" in guard.methods:
                try:
                    guard.run("end", self.call_id, attempt, end)
                except PluginFailed as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def end_well(self, usage: Usage) -> None:
        """Reports the end of a good attempt. Raises `PluginFailed`."""
        self.known_end = AttemptEnd(
            200, None, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens,
            usage.source, self._elapsed_s,
        )  # fmt: skip
        self.end(self.known_end)

    def end_of(self, outcome: Outcome | GatewayError) -> AttemptEnd:
        """The end of an attempt with this outcome; None: its answer is of no use any more."""
        if self.known_end is not None:
            return self.known_end
        end = partial(AttemptEnd, seconds=self._elapsed_s)
        match outcome:
            case None:
                return end(499, "stopped")
            case Answer():
                return end(outcome.status)
            case Streamed():
                return end(200, None if outcome.fault is None else outcome.fault.value)
            case Failure():
                return end(outcome.status, outcome.fault.value)
        return end(outcome.status, outcome.name)

    @property
    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._began


class PluginRider(Rider):
    """Shows the plug-ins of a ride the attempt's answer."""

    def __init__(self, ride: Ride) -> None:
        self._ride = ride
        self._cutter: EventCutter | None = None

    def request(self, draft: Attempt) -> Attempt:
        if not self._ride.hears("head", "event", "end"):
            return draft
        if self._ride.hears("event"):
            draft = draft._replace(client=WatchedStream(draft.client, self._see))
        self._attempt = draft = draft._replace(riders=(*draft.riders, self))
        return draft

    def head(self, head: Head) -> None:
        is_binary = self._attempt.format.is_binary and "event-stream" not in (head.get("content-type") or "")
        self._cutter = EventCutter(lambda event: self._ride.report("event", event), is_binary=is_binary)
        try:
            self._ride.report("head", AnswerHead(head.status, MappingProxyType(dict(head.headers))))
        except PluginFailed as error:
            self._break_off(error)

    def ending(self, usage: Usage, last: bytes) -> None:
        self._see(last)
        try:
            self._ride.end_well(usage)
        except PluginFailed as error:
            self._break_off(error)

    async def answered(self, facts: PlainFacts, usage: Usage) -> bool:
        try:
            self._ride.end_well(usage)
        except PluginFailed:
            self._attempt.log.add_cost(Charge(usage))
            raise
        return False

    def _see(self, data: bytes) -> bytes:
        """Shows bytes for the client, and returns those that it gets."""
        if self._cutter is None or not data:
            return data
        passed, fault = self._cutter.feed(data)
        if fault is not None:
            self._break_off(fault)
        return passed

    def _break_off(self, error: PluginFailed) -> None:
        self._cutter = None  # nothing more is shown
        exchange = self._attempt.client.speaker
        if isinstance(exchange, Exchange):
            exchange.break_off(error)
