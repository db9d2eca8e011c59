"""How one upstream is doing: what its calls say about it, and what follows for the next ones.

It has a circuit of its own, which hears whether it can be reached at all, and one for each of its models, which hears
what became of the calls for it (upstream/circuit_breaker.py). So one model that fails, or that a reseller has nobody
for, is
avoided and the others are not. Nothing is kept of what is well: where there is no trouble, a call costs a look at two
empty dictionaries.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from math import inf

from gateway.records import Failure, Fault, Phase

from . import circuit_breaker
from .circuit_breaker import FIRST_REST_S, Circuit, CircuitEvent, CircuitState
from .credentials import REFUSALS, Credentials, Grade
from .retry_budget import RetryBudget
from .status import CredentialCooldown, UpstreamReport

log = logging.getLogger("gateway")

MAX_OTHERS = 1024
"""Circuits of models that the configuration does not name. Clients may invent any number; the oldest are forgotten."""

WAKE_LATE_S = 0.02
"""How long after its rest a circuit is woken, so that a loop whose clock counts whole milliseconds is not too early."""

Show = Callable[[str, int], None]
"""Shows the state of an upstream, as `gateway_upstream_state` counts it."""


class Health:
    """Of one upstream. Private to a worker: each makes its own experience, and none waits for another's.

    Who is not admitted may come as a last resort, until there is no hope in it. `names` are the models of this upstream
    that the configuration names. Only their circuits are shown, so that nobody can paint an upstream red by asking for
    nonsense.
    """

    def __init__(
        self, upstream: str, names: Collection[str], keys: int, show: Show, clock: Callable[[], float]
    ) -> None:
        self.credentials = Credentials(keys)
        self.budget = RetryBudget()
        self.in_flight = 0
        """Attempts under way."""
        self.is_calm = True
        """Whether there is nothing at all to say against any call. Kept, because every call asks."""
        self.clock = clock
        self._upstream = upstream
        self._names = frozenset(names)
        self._is_retired = False
        self._last_failure: tuple[str, float] | None = None
        """The fault, and when."""
        self._host: Circuit | None = None
        self._models: dict[str, Circuit] = {}
        self._others: OrderedDict[str, Circuit] = OrderedDict()
        self._show = show
        self._shown = CircuitState.CLOSED
        show(upstream, CircuitState.CLOSED)

    def __repr__(self) -> str:
        open_now = [name for name in self._models if self._circuit(name) is not None]
        return f"<Health {self._upstream}: {self.state.name}, {self.in_flight} in flight, in trouble: {open_now}>"

    def name(self, names: Collection[str]) -> None:
        """The configuration names these models from now on."""
        self._names = frozenset(names)
        known = {**self._others, **self._models}
        self._models = {model: circuit for model, circuit in known.items() if model in self._names}
        self._others = OrderedDict((model, known[model]) for model in known if model not in self._names)
        self._show_state()

    def report(self, connections: int) -> UpstreamReport:
        """How it is doing; `connections` are those of its pool."""
        now = self.clock()
        rests = [
            CredentialCooldown(place + 1, model, rest.until - now, rest.fault.value)
            for (place, model), rest in self.credentials.rests.items()
            if rest.until > now
        ]
        models = {model: int(circuit.state) for model, circuit in self._models.items() if circuit.state}
        fault, at = self._last_failure or (None, now)
        return UpstreamReport(
            self._upstream, int(self.state), self.in_flight, connections, rests, models, fault, now - at
        )

    def retire(self) -> None:
        """The upstream is gone, or another is called so: what the last calls say is heard, and not told any more."""
        self._is_retired = True

    @property
    def state(self) -> CircuitState:
        """The worst of the upstream itself and of the models that the configuration names."""
        return max([circuit.state for circuit in (self._host or circuit_breaker.NEW, *self._models.values())])

    def grade(self, model: str, now: float) -> Grade:
        """How good an idea it is to begin an attempt for this model."""
        grade = self.credentials.grade(model, now)
        for circuit in (self._host, self._circuit(model)):
            if not circuit_breaker.admits(circuit, now):
                grade = max(grade, Grade.BARRED if circuit_breaker.is_hopeless(circuit) else Grade.LAST_RESORT)
        return grade

    def barrier(self, model: str, now: float) -> Failure:
        """Why no attempt may begin, and when that may change."""
        both = (self._host, self._circuit(model))
        circuits = [
            each for each in both if circuit_breaker.is_hopeless(each) and not circuit_breaker.admits(each, now)
        ]
        if circuits:
            # A probe under way may be answered at any moment.
            waits = [min(c.until - now, inf if c.state is CircuitState.OPEN else FIRST_REST_S) for c in circuits if c]
            left_s = max(waits)
            return Failure(self._upstream, Phase.CONNECT, Fault.LEFT_ALONE, "it is left alone", None, left_s)
        rest = self.credentials.first_back(model, now)
        if rest is None:  # it has come back in this moment
            return Failure(self._upstream, Phase.CONNECT, Fault.LEFT_ALONE, "", None, 0.0)
        return Failure(self._upstream, Phase.CONNECT, rest.fault, "its API keys rest", None, rest.until - now)

    def begin(self, model: str, used: Collection[int] = ()) -> AttemptHandle:
        """An attempt begins. `used` are the places of keys that this call has presented in vain."""
        now = self.clock()
        self.in_flight += 1
        if not self.is_calm:
            for name, circuit in ((None, self._host), (model, self._circuit(model))):
                if circuit is not None and circuit_breaker.admits(circuit, now):
                    self._move(name, CircuitEvent.BEGIN, now)
        return AttemptHandle(self, model, self.credentials.take(model, now, used), now)

    def probed(self, event: CircuitEvent, began: float) -> None:
        """An active probe that began at this time has shown this."""
        if event is CircuitEvent.PROVEN or circuit_breaker.is_heard(self._host, began):
            self._move(None, event, self.clock())

    # ------------------------------------------------------------------------------------------------- for attempts

    def answered(self, model: str, began: float) -> None:
        """The upstream has begun to answer well; of a stream, that is long before its end."""
        if self.is_calm:
            return
        now = self.clock()
        for name, circuit in ((None, self._host), (model, self._circuit(model))):
            if (
                circuit is not None
                and circuit.state is not CircuitState.CLOSED
                and circuit_breaker.is_heard(circuit, began)
            ):
                self._move(name, CircuitEvent.WELL, now)

    def ended(self, model: str, key: int, began: float, failure: Failure | None, *, is_verdict: bool) -> None:
        """An attempt is over."""
        self.in_flight -= 1
        if failure is None and self.is_calm:
            return
        now = self.clock()
        if failure is not None:
            self._last_failure = (failure.fault.value, now)
        event = circuit_breaker.verdict(failure) if is_verdict else CircuitEvent.NOTHING
        host_event, model_event = CircuitEvent.NOTHING, event
        if failure is None:
            host_event = event
        elif failure.phase is Phase.CONNECT:
            host_event, model_event = event, CircuitEvent.NOTHING
        elif failure.phase in (Phase.REFUSED, Phase.RELAYING):
            host_event = CircuitEvent.WELL  # whatever it said, it is there
        for name, circuit, said in ((None, self._host, host_event), (model, self._circuit(model), model_event)):
            if (circuit is not None or said in (CircuitEvent.ILL, CircuitEvent.BROKEN)) and circuit_breaker.is_heard(
                circuit, began
            ):
                self._move(name, said, now)
        if failure is not None and failure.fault in REFUSALS:
            if (rest := self.credentials.refused(key, model, failure, began, now)) is not None:
                rest_s = rest.until - now
                log.warning(
                    "upstream %s: key #%d rests for %g s: %s", self._upstream, key + 1, rest_s, rest.fault.value
                )
            self._note_calm()
        elif event is CircuitEvent.WELL:
            self.credentials.accepted(key, model, began)
            self._note_calm()

    def _note_calm(self) -> None:
        self.is_calm = not (self._host or self._models or self._others or self.credentials.rests)

    # ------------------------------------------------------------------------------------------------------ circuits

    def _circuit(self, model: str) -> Circuit | None:
        return self._models.get(model) or self._others.get(model)

    def _move(self, model: str | None, event: CircuitEvent, now: float) -> None:
        """One step of one circuit; None: of the upstream's own."""
        before = self._host if model is None else self._circuit(model)
        circuit = circuit_breaker.after(before, event, now)
        if circuit is before:
            return
        if model is None:
            self._host = circuit
        else:
            kept = self._models if model in self._names else self._others
            if circuit is None:
                kept.pop(model, None)
            else:
                kept[model] = circuit
                if kept is self._others:
                    self._others.move_to_end(model)
                    if len(self._others) > MAX_OTHERS:
                        self._others.popitem(last=False)
        self._note_calm()
        state = CircuitState.CLOSED if circuit is None else circuit.state
        was = CircuitState.CLOSED if before is None else before.state
        if state is CircuitState.OPEN and circuit is not None and was is not CircuitState.OPEN:
            rest_s = circuit.until - now
            how_often = "still fails" if was else "fails again and again"
            self._say(model, f"{how_often}; avoided for {rest_s:g} s")
            asyncio.get_running_loop().call_later(rest_s + WAKE_LATE_S, self._wake, model, circuit.until)
        elif circuit_breaker.is_hopeless(circuit) and not circuit_breaker.is_hopeless(before):
            self._say(model, "does not answer at all; left alone")
        elif state is not was:
            self._say(
                model, "well again" if state is CircuitState.CLOSED else "half-open: one call is let through as a probe"
            )

    def _wake(self, model: str | None, until: float) -> None:
        """The rest of this circuit is over, unless it has changed its state meanwhile."""
        circuit = self._host if model is None else self._circuit(model)
        if circuit is not None and circuit.until == until:
            self._move(model, CircuitEvent.RESTED, self.clock())

    def _say(self, model: str | None, what: str) -> None:
        if self._is_retired:
            return
        name = "" if model is None else f", model {model[:100]!r}"
        log.warning("upstream %s%s: %s", self._upstream, name, what)
        self._show_state()

    def _show_state(self) -> None:
        if (state := self.state) is not self._shown:
            self._shown = state
            self._show(self._upstream, state)


class AttemptHandle:
    """One attempt at one upstream, as it bears on its health. To be ended, or left, once."""

    __slots__ = ("_began", "_health", "_model", "key")

    def __init__(self, health: Health, model: str, key: int, began: float) -> None:
        self.key = key
        """Place of the API key that is presented."""
        self._health = health
        self._model = model
        self._began = began

    def answered(self) -> None:
        """The first of a good answer has come."""
        self._health.answered(self._model, self._began)

    def ended(self, failure: Failure | None) -> None:
        """It was answered (also with a refusal of the request itself), or it failed."""
        self._health.ended(self._model, self.key, self._began, failure, is_verdict=True)

    def left(self) -> None:
        """The client is gone, and nobody knows how it would have ended."""
        self._health.ended(self._model, self.key, self._began, None, is_verdict=False)
