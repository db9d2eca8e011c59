"""Health of one upstream: its circuits, its credentials, its retry budget.

1. The upstream has a circuit of its own, which counts whether it can be reached. Each of its models has another, which
   counts the results of its calls (upstream/circuit_breaker.py). So a model that fails, or for which a reseller has no
   channel, is avoided while the other models are used.
2. A healthy upstream has no state: a call then only reads `is_healthy`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from math import inf
from typing import Any, NamedTuple

from gateway.config.rates import DEAR_OR_CHEAP
from gateway.quota import windows
from gateway.records import Call, Failure, Fault, Phase
from gateway.wings import OfWings

from . import circuit_breaker
from .circuit_breaker import FIRST_COOLDOWN_S, Circuit, CircuitEvent, CircuitState
from .credentials import ANYONE, CREDENTIAL_FAULTS, Asker, Cooldown, Credentials, Grade
from .status import CredentialCooldown, UpstreamReport

log = logging.getLogger("gateway")

MAX_UNNAMED_MODELS = 1024
"""Limit of circuits for models that the configuration does not name: a client may send any.
The oldest is dropped."""

TIMER_DELAY_S = 0.02
"""Delay of the timer after the end of a cooldown: the clock of a loop may count whole milliseconds and be early."""

FAILED_KEPT = 100
"""Kinds and minutes of failures that are kept."""

RETRY_SHARE = 0.2
"""Repetitions per call of the last window. Finagle and Envoy have the same default."""

MIN_REPEATS = 10
"""Repetitions per window in addition to `RETRY_SHARE`, so that an upstream with few calls can be retried."""

RETRY_SLICE_S = 5.0
"""Half a window: the window of 10 s slides in two slices."""

Show = Callable[[str, int], None]
"""Writes the state of an upstream to the metric `gateway_upstream_state`."""


class Health:
    """Health of one upstream in one worker; workers share nothing of it.

    `models` are the models of this upstream that the configuration names. Only their circuits count for the state in
    metrics and reports, so that a client cannot change it with invented model names.
    """

    def __init__(
        self, upstream: str, models: Collection[str], keys: int, show: Show, clock: Callable[[], float]
    ) -> None:
        self.credentials = Credentials(keys)
        self._has_keys = keys > 1
        self.budget = RetryBudget()
        self.in_flight = 0
        """Number of attempts, not calls, in flight."""
        self.is_healthy = True
        """Whether no circuit and no cooldown exists. A field, because every call reads it."""
        self.clock = clock
        self._upstream = upstream
        self._configured = frozenset(models)
        self._is_retired = False
        self._last_failure: tuple[str, float] | None = None
        """Fault and time of the last failure."""
        self._begun = 0
        self._failed: dict[tuple[int, str, int | None], list[Any]] = {}
        self._own: Circuit | None = None
        self._models: dict[str, Circuit] = {}
        self._unnamed: OrderedDict[str, Circuit] = OrderedDict()
        self._show = show
        self._shown = CircuitState.CLOSED
        self._shown_at = clock()
        self.of_wing = OfWings()
        """The notes of wings about this upstream."""
        self._moved: dict[str, float] = {}
        """Times at which circuits of models entered their state, except closed ones."""
        show(upstream, CircuitState.CLOSED)

    def __repr__(self) -> str:
        open_now = [name for name in self._models if self._circuit(name) is not None]
        return f"<Health {self._upstream}: {self.state.name}, {self.in_flight} in flight, not closed: {open_now}>"

    def configure(self, models: Collection[str]) -> None:
        """Apply a new configuration, which names these models of the upstream."""
        self._configured = frozenset(models)
        known = {**self._unnamed, **self._models}
        self._models = {model: circuit for model, circuit in known.items() if model in self._configured}
        self._unnamed = OrderedDict((model, known[model]) for model in known if model not in self._configured)
        self._show_state()

    def report(self, connections: int) -> UpstreamReport:
        """State for the admin API; `connections` is the size of the pool."""
        now = self.clock()
        longest: dict[tuple[int, str | None], Cooldown] = {}
        for (position, model, _), cooldown in self.credentials.cooldowns.items():
            known = longest.get((position, model))
            if cooldown.until > (now if known is None else known.until):
                longest[position, model] = cooldown
        cooldowns = [
            CredentialCooldown(position + 1, model, cooldown.until - now, cooldown.fault.value)
            for (position, model), cooldown in longest.items()
        ]
        models = {model: int(circuit.state) for model, circuit in self._models.items() if circuit.state}
        fault, at = self._last_failure or (None, now)
        return UpstreamReport(
            self._upstream, int(self.state), self.in_flight, connections, cooldowns, models, fault, now - at,
            state_s=now - self._shown_at, models_s={model: now - self._moved.get(model, now) for model in models},
            begun=self._begun, failed=tuple([(now - row[0], now - row[1], *row[2:]) for row in self._failed.values()]),
        )  # fmt: skip

    def retire(self) -> None:
        """The upstream left the configuration: results of running calls still count, but are not logged."""
        self._is_retired = True

    @property
    def state(self) -> CircuitState:
        """The worst state of the upstream and of its configured models."""
        return max([circuit.state for circuit in (self._own or circuit_breaker.NEW, *self._models.values())])

    def grade(self, model: str, now: float, asker: Asker = ANYONE) -> Grade:
        """Grade of such an attempt for this model."""
        grade = self.credentials.grade(model, now, asker=asker)
        for circuit in (self._own, self._circuit(model)):
            if circuit_breaker.binds(circuit, asker.caller) and not circuit_breaker.admits(circuit, now):
                grade = max(grade, Grade.UNAVAILABLE if circuit_breaker.is_dead(circuit) else Grade.DEGRADED)
        return grade

    def unavailable_reason(self, model: str, now: float, asker: Asker = ANYONE) -> Failure:
        """Why the grade is UNAVAILABLE, with the time until that may change as `retry_after_s`."""
        both = (self._own, self._circuit(model))
        circuits = [each for each in both if circuit_breaker.is_dead(each) and not circuit_breaker.admits(each, now)]
        if circuits:
            # A running probe may succeed at any moment.
            waits = [
                min(c.until - now, inf if c.state is CircuitState.OPEN else FIRST_COOLDOWN_S) for c in circuits if c
            ]
            left_s = max(waits)
            return Failure(self._upstream, Phase.CONNECT, Fault.CIRCUIT_OPEN, "circuit open", None, left_s)
        cooldown = self.credentials.first_available(model, now, asker)
        if cooldown is None:  # available again since the candidates were listed
            return Failure(self._upstream, Phase.CONNECT, Fault.CIRCUIT_OPEN, "", None, 0.0)
        return Failure(
            self._upstream, Phase.CONNECT, cooldown.fault, "every API key is in cooldown", None, cooldown.until - now
        )

    def pause_s(self, model: str, key: int | None, asker: Asker = ANYONE) -> float:
        """Seconds for which the upstream asked not to be sent such calls for this model with this key, or with any."""
        return 0.0 if self.is_healthy else self.credentials.pause_s(model, self.clock(), key, asker)

    def begin(
        self,
        model: str,
        used: Collection[int] = (),
        key: int | None = None,
        affinity: bytes | None = None,
        asker: Asker = ANYONE,
    ) -> AttemptHandle:
        """Begin an attempt. `used` are the positions of the keys that refused this call; `key`: that one is taken."""
        now = self.clock()
        self.in_flight += 1
        self._begun += 1
        if not self.is_healthy:
            for name, circuit in ((None, self._own), (model, self._circuit(model))):
                if circuit is not None and circuit_breaker.admits(circuit, now):
                    self._move(name, CircuitEvent.BEGIN, now)
        if key is None:
            key = self.credentials.take(model, now, used, affinity, asker) if self._has_keys else 0
        if self.credentials.cooldowns:
            self.credentials.begun(key, model, now, asker)
        return AttemptHandle(self, model, key, now, asker)

    def health_checked(self, event: CircuitEvent, began: float) -> None:
        """Apply the result of a health check that began at this time."""
        if event is CircuitEvent.PROBE_OK or circuit_breaker.is_current(self._own, began):
            self._move(None, event, self.clock())

    # ------------------------------------------------------------------------------------------------- for attempts

    def answered(self, attempt: AttemptHandle) -> None:
        """Record that a good answer has begun; a stream ends long after that."""
        if self.is_healthy:
            return
        _, model, key, began, asker = attempt
        now = self.clock()
        self.credentials.accepted(key, model, began, asker)
        for name, circuit in ((None, self._own), (model, self._circuit(model))):
            if (
                circuit is not None
                and circuit.state is not CircuitState.CLOSED
                and circuit_breaker.is_current(circuit, began)
            ):
                self._move(name, CircuitEvent.SUCCESS, now)

    def ended(self, attempt: AttemptHandle, failure: Failure | None, *, is_result: bool) -> None:
        """Record the end of an attempt; `is_result` is false if the client left before the result was known."""
        self.in_flight -= 1
        if failure is None and self.is_healthy:
            return
        _, model, key, began, asker = attempt
        now = self.clock()
        if failure is not None:
            self._last_failure = (failure.fault.value, now)
            self._note(failure, now)
        result = circuit_breaker.event_of(failure) if is_result else CircuitEvent.NEUTRAL
        own_event, model_event = CircuitEvent.NEUTRAL, result
        if failure is None:
            own_event = result
        elif failure.phase is Phase.CONNECT:
            own_event, model_event = result, CircuitEvent.NEUTRAL
        elif failure.phase in (Phase.REFUSED, Phase.RELAYING):
            own_event = CircuitEvent.SUCCESS  # it answered, so it can be reached
        for name, circuit, event in ((None, self._own, own_event), (model, self._circuit(model), model_event)):
            if (
                circuit is not None or event in (CircuitEvent.FAILURE, CircuitEvent.PARTIAL)
            ) and circuit_breaker.is_current(circuit, began):
                self._move(name, event, now, "" if name is None else asker.caller)
        if failure is not None and failure.fault in CREDENTIAL_FAULTS:
            if (cooldown := self.credentials.refused(key, model, failure, began, now, asker)) is not None:
                name = "" if cooldown.model is None else f" for model {cooldown.model[:100]!r}"
                log.warning(
                    "upstream %s: key #%d in cooldown%s for %g s: %s",
                    self._upstream, key + 1, name, cooldown.until - now, cooldown.fault.value,
                )  # fmt: skip
            self._update_is_healthy()
        elif result is CircuitEvent.SUCCESS:
            self.credentials.accepted(key, model, began, asker)
            self._update_is_healthy()

    def _note(self, failure: Failure, now: float) -> None:
        """Count a failure in its minute: the first and the last time, the number, the attempts begun by the first one,
        fault, status, detail and message."""
        kind = int(now // 60), failure.fault.value, failure.status
        row = self._failed.setdefault(
            kind, [now, now, 0, self._begun, *kind[1:], failure.detail[:200], failure.message]
        )
        row[1:3] = now, row[2] + 1
        if len(self._failed) > FAILED_KEPT:
            del self._failed[next(iter(self._failed))]

    def _update_is_healthy(self) -> None:
        self.is_healthy = not (self._own or self._models or self._unnamed or self.credentials.cooldowns)

    # ------------------------------------------------------------------------------------------------------ circuits

    def _circuit(self, model: str) -> Circuit | None:
        return self._models.get(model) or self._unnamed.get(model)

    def _move(self, model: str | None, event: CircuitEvent, now: float, caller: str = "") -> None:
        """Apply an event to the circuit of a model; None: to the circuit of the upstream, which counts connections."""
        before = self._own if model is None else self._circuit(model)
        circuit = circuit_breaker.after(before, event, now, caller)
        if circuit is before:
            return
        if model is None:
            self._own = circuit
        else:
            kept = self._models if model in self._configured else self._unnamed
            if circuit is None:
                kept.pop(model, None)
            else:
                kept[model] = circuit
                if kept is self._unnamed:
                    self._unnamed.move_to_end(model)
                    if len(self._unnamed) > MAX_UNNAMED_MODELS:
                        self._unnamed.popitem(last=False)
        self._update_is_healthy()
        state = CircuitState.CLOSED if circuit is None else circuit.state
        was = CircuitState.CLOSED if before is None else before.state
        if model is not None and state is not was:
            self._moved = {name: at for name, at in self._moved.items() if self._circuit(name) is not None}
            self._moved[model] = now
        if state is CircuitState.OPEN and circuit is not None and was is not CircuitState.OPEN:
            cooldown_s = circuit.until - now
            reason = "probe failed" if was else "repeated failures"
            self._log_state(model, f"circuit open for {cooldown_s:g} s: {reason}")
            asyncio.get_running_loop().call_later(
                cooldown_s + TIMER_DELAY_S, self._cooldown_ended, model, circuit.until
            )
        elif circuit_breaker.is_dead(circuit) and not circuit_breaker.is_dead(before):
            self._log_state(
                model,
                f"no answer to {circuit_breaker.DEAD_AFTER} attempts in a row; calls without another route are refused",
            )
        elif state is not was:
            self._log_state(
                model,
                "circuit closed" if state is CircuitState.CLOSED else "circuit half-open: the next call is a probe",
            )

    def _cooldown_ended(self, model: str | None, until: float) -> None:
        """Half-open a circuit at the end of its cooldown, unless its state changed meanwhile."""
        circuit = self._own if model is None else self._circuit(model)
        if circuit is not None and circuit.until == until:
            self._move(model, CircuitEvent.TIMER, self.clock())

    def _log_state(self, model: str | None, text: str) -> None:
        if self._is_retired:
            return
        name = "" if model is None else f", model {model[:100]!r}"
        log.warning("upstream %s%s: %s", self._upstream, name, text)
        self._show_state()

    def _show_state(self) -> None:
        if (state := self.state) is not self._shown:
            self._shown, self._shown_at = state, self.clock()
            self._show(self._upstream, state)


class RetryBudget:
    """Retry budget of an upstream: bounds repeated attempts to a share of its calls, so that retries do not multiply
    load. `now` is in seconds of one monotonic clock.

    Only a second attempt of one call at one upstream is a repetition. A failover is none: each upstream gets each call
    once, so its load is that of the calls and not a multiple of it.
    """

    __slots__ = ("_calls", "_calls_before", "_repeats", "_repeats_before", "_slice_ends")

    def __init__(self) -> None:
        self._slice_ends = 0.0
        self._calls = self._calls_before = 0
        self._repeats = self._repeats_before = 0

    def note_call(self, now: float) -> None:
        """Count the first attempt of a call at this upstream."""
        if now >= self._slice_ends:
            self._slide(now)
        self._calls += 1

    def note_repeat(self, now: float) -> None:
        if now >= self._slice_ends:
            self._slide(now)
        self._repeats += 1

    def is_spent(self, now: float) -> bool:
        """Whether one more repetition would exceed the budget."""
        if now >= self._slice_ends:
            self._slide(now)
        calls = self._calls + self._calls_before
        return self._repeats + self._repeats_before >= MIN_REPEATS + RETRY_SHARE * calls

    def _slide(self, now: float) -> None:
        is_next = now < self._slice_ends + RETRY_SLICE_S
        self._calls_before = self._calls if is_next else 0
        self._repeats_before = self._repeats if is_next else 0
        self._calls = self._repeats = 0
        self._slice_ends = now + RETRY_SLICE_S


LONG_PROMPT = 200_000


def asker_of(call: Call) -> Asker:
    """Whose call it is, and for which services beside the ordinary one: these have limits of their own, as flex of
    OpenAI, fast mode of Anthropic and its prompts of more than 200,000 tokens (their pages on rate limits)."""
    params, is_long = call.params, call.params.prompt_tokens > LONG_PROMPT
    if not (is_long or params.variant) and windows.SERVICES.isdisjoint(params.document.members):
        return Asker(call.key.id)  # nearly every one
    asked = {part for variant in windows.variants_of(params) for part in variant.split("-")}
    services = [*sorted(asked & DEAR_OR_CHEAP), *(("long",) if is_long else ())]
    return Asker(call.key.id, "-".join(services))


class AttemptHandle(NamedTuple):
    """One running attempt. Its owner calls `ended` or `abandoned` exactly once."""

    health: Health
    model: str
    key: int
    """Position of the API key in use."""
    began: float
    asker: Asker = ANYONE

    def answered(self) -> None:
        """The head of a good answer arrived."""
        self.health.answered(self)

    def ended(self, failure: Failure | None) -> None:
        """The upstream answered (a refusal of the request is an answer too), or the attempt failed."""
        self.health.ended(self, failure, is_result=True)

    def abandoned(self) -> None:
        """The client left before the result was known."""
        self.health.ended(self, None, is_result=False)
