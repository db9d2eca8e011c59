"""The API keys of one upstream: round robin over the keys that are not in cooldown.

1. A refusal puts a key in cooldown for the model that was asked for, because a reseller hands on the 401, the spent
   balance and the rate limit of its own channel for that model.
2. The key is in cooldown for all models when the refusal certainly concerns it: by its text
   (`Failure.is_of_credential`), or because two models were refused and no call with the key has succeeded since. In
   the second case a model that was not refused itself is still tried where no key is healthy.
3. A success ends the cooldown of the key for all models, and that for its own model.
4. While another key is healthy, a key in cooldown is not used.
5. Without a healthy key, a key in cooldown is still tried until 3 refusals in a row (the sole key of an upstream: 10),
   because a single refusal may be an error of the upstream. Then the upstream is unavailable until a cooldown ends; for
   one caller alone as long as no other one was refused: the request may be to blame, which names a file that the
   account may not read (js-genai#666), or asks for more output than the balance pays
   (can1357/oh-my-pi#9569; new-api, service/pre_consume_quota.go).
6. Until a stated Retry-After is over, a call that can wait is not sent with that key. Until the key is accepted then,
   one of these calls is sent in `TRIAL_S`, because what waited together would be refused together.
7. A 429 holds for the calls that it speaks about: those of its caller, and for a service with limits of its own
   (`Asker`) those for that service. It holds for all other callers as long as two of them have to wait, or at once
   if the answer's headers show that nothing remains. Headers that show room speak for no other caller.
8. The last key without a cooldown is tried again after 5 s, and after 20 s at most, so that a balance that was topped
   up is noticed soon.

The log names a key by its position (`#1`). This module keeps no secret.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection
from enum import IntEnum
from math import inf
from typing import NamedTuple

from gateway.config import Upstream
from gateway.records import Failure, Fault

from . import stickiness
from .circuit_breaker import WINDOW_S

COOLDOWN_S = 60.0
"""Cooldown of a key that was refused or whose balance is spent, while another key is healthy."""

LAST_KEY_COOLDOWN_S, MAX_LAST_KEY_COOLDOWN_S = 5.0, 20.0
"""The same where no other key is healthy. It doubles with each refusal after the key is unavailable."""

MODELS_OF_A_REFUSED_KEY = 2
"""Number of refused models, without a success in between, from which the key itself is taken to be refused."""

RATE_LIMIT_COOLDOWN_S = 1.0
"""Cooldown after a 429 without a Retry-After. new-api never sends one."""

TRIAL_S = 0.25
"""Time between two calls with a key whose Retry-After is over, until one is accepted."""

MAX_RATE_LIMIT_COOLDOWN_S = 600.0
"""Limit of the cooldown after a 429, also if its Retry-After is longer: the rate limit may be raised meanwhile."""

UNAVAILABLE_AFTER, SOLE_KEY_UNAVAILABLE_AFTER = 3, 10
"""Refusals in a row after which a key, or the sole key of an upstream, is unavailable."""

MAX_COOLDOWNS = 1024
"""Limit of the table, because a client may ask for any number of models. The oldest entry is dropped."""

CREDENTIAL_FAULTS = frozenset({Fault.AUTH, Fault.BALANCE, Fault.RATE_LIMITED})
"""Faults that concern the key and not the call."""


class Grade(IntEnum):
    """Health of a key or a route, the best first."""

    HEALTHY = 0
    DEGRADED = 1
    """Used only where nothing is healthy."""
    UNAVAILABLE = 2


class Asker(NamedTuple):
    """Whose calls a refusal speaks about; empty: those of all."""

    caller: str = ""
    """The id of the caller's key."""
    service: str = ""
    """A service beside the ordinary one, which has limits of its own: `flex`, `fast` (`health.asker_of`)."""


ANYONE = Asker()

Scope = tuple[int, str | None, Asker]
"""A key's position, a model, and whose calls. None as the model means all models."""


class Cooldown(NamedTuple):
    """A time in which a key is not used. Times are on the clock of `time.monotonic`."""

    since: float
    until: float
    refusals: int
    """Number of consecutive refusals. 0: no refusal concerns all models, but several models were refused."""
    fault: Fault
    model: str | None
    """The refused model; None means all models."""
    may_concern_key: bool
    """False: a rate limit, or a 403, which is also the answer for one model that the key may not use."""
    is_stated: bool = False
    """Whether the upstream named the time of the next request."""
    has_room: bool = False
    """Whether the headers of the refusal show room for ordinary calls."""
    next_trial: float = 0.0
    """When the next call that can wait is sent after that, as long as none is accepted."""
    caller: str = ""
    """The only caller whose calls were refused; empty: there are several."""


class Credentials:
    """State of the keys of one upstream. Each worker has its own and shares nothing with the others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._unavailable_after = UNAVAILABLE_AFTER if count > 1 else SOLE_KEY_UNAVAILABLE_AFTER
        self._next = 0
        self.cooldowns: OrderedDict[Scope, Cooldown] = OrderedDict()
        """An entry stays after its end until the key is accepted again, for such a call."""
        self._accepted: dict[int, float] = {}
        """When the last attempt that succeeded began, by position."""

    def take(
        self, model: str, now: float, used: Collection[int] = (), affinity: bytes | None = None, asker: Asker = ANYONE
    ) -> int:
        """Position of the next key: the best grade, round robin or by the call's affinity; one in `used` only if there
        is no other."""
        if self._count == 1:
            return 0
        if affinity is not None:
            return min(self.in_order(model, now, affinity, asker), key=lambda position: position in used)
        first = self._next
        positions = [(first + step) % self._count for step in range(self._count)]
        position = min(positions, key=lambda position: (position in used, self._grade(position, model, now, asker)))
        self._next = (position + 1) % self._count
        return position

    def in_order(self, model: str, now: float, affinity: bytes | None = None, asker: Asker = ANYONE) -> list[int]:
        """Positions of all keys, the best grade first; within a grade round robin, or by the call's affinity."""
        if affinity is not None:
            ranks = stickiness.ranks(affinity, self._count)
            return sorted(range(self._count), key=lambda at: (self._grade(at, model, now, asker), ranks[at]))
        first = self._next
        self._next = (first + 1) % self._count
        positions = [(first + step) % self._count for step in range(self._count)]
        return sorted(positions, key=lambda position: self._grade(position, model, now, asker))

    def grade(self, model: str, now: float, used: Collection[int] = (), asker: Asker = ANYONE) -> Grade:
        """Grade of the best key that is not in `used`."""
        if not self.cooldowns and not used:
            return Grade.HEALTHY
        left = [self._grade(position, model, now, asker) for position in range(self._count) if position not in used]
        return min(left, default=Grade.UNAVAILABLE)

    def refused(
        self, position: int, model: str, failure: Failure, began: float, now: float, asker: Asker = ANYONE
    ) -> Cooldown | None:
        """Record that the upstream refused this key; the attempt began at `began`. Returns the widest new cooldown."""
        if failure.fault is not Fault.RATE_LIMITED or failure.is_of_credential or not asker.caller:
            scope = position, None if failure.is_of_credential else model, ANYONE
            return self._refused(scope, model, failure, began, now, asker.caller)
        own = self._refused((position, model, asker), model, failure, began, now)
        until = self.cooldowns[position, model, asker].until
        if failure.has_room is not False or asker.service:
            until = 0.0 if failure.has_room else min(until, self._of_others(position, model, asker))
        if until <= now:
            return own
        shared = (position, model, asker._replace(caller=""))
        last = max(until, self.cooldowns[shared].until) if shared in self.cooldowns else until
        made = self._refused(shared, model, failure, began, now)
        return None if made is None else self._set(shared, self.cooldowns[shared]._replace(until=last))

    def _of_others(self, position: int, model: str, asker: Asker) -> float:
        """The latest time until which another caller has to wait for the same, unless headers showed room."""
        return max([
            cooldown.until for (key, name, (caller, service)), cooldown in self.cooldowns.items()
            if (key, name, service) == (position, model, asker.service) and caller not in ("", asker.caller)
            and not cooldown.has_room
        ], default=0.0)  # fmt: skip

    def _refused(
        self, scope: Scope, model: str, failure: Failure, began: float, now: float, caller: str = ""
    ) -> Cooldown | None:
        position, _, asker = scope
        before = self.cooldowns.get(scope)
        if before is not None and began < before.since:
            return None  # the attempt began before the refusal was known: parallel calls count once
        refusals = before.refusals + 1 if before else 1
        if failure.fault is Fault.RATE_LIMITED:
            cooldown_s = min(failure.retry_after_s or RATE_LIMIT_COOLDOWN_S, MAX_RATE_LIMIT_COOLDOWN_S)
        elif self._is_last(position, model, now):
            doublings = min(max(0, refusals - self._unavailable_after), 10)
            cooldown_s = min(LAST_KEY_COOLDOWN_S * 2.0**doublings, MAX_LAST_KEY_COOLDOWN_S)
        else:
            cooldown_s = COOLDOWN_S
        cooldown = self._set(
            scope,
            Cooldown(
                now, now + cooldown_s, refusals, failure.fault, scope[1],
                failure.fault is Fault.BALANCE or (failure.fault is Fault.AUTH and failure.status != 403),
                is_stated=failure.fault is Fault.RATE_LIMITED and bool(failure.retry_after_s),
                caller=caller if before is None or before.caller == caller else "",
                has_room=bool(failure.has_room),
            ),
        )  # fmt: skip
        if asker == ANYONE and self._are_models_refused(position) and not failure.is_of_credential:
            known = self.cooldowns.get(whole := (position, None, ANYONE))
            if known is None or known.refusals == 0:
                cooldown = self._set(whole, cooldown._replace(refusals=0, model=None))
        return cooldown

    def accepted(self, position: int, model: str, began: float, asker: Asker = ANYONE) -> None:
        """Record that the upstream accepted this key; the attempt began at `began`."""
        self._accepted[position] = max(began, self._accepted.get(position, began))
        for scope in _scopes(position, model, asker):
            if (cooldown := self.cooldowns.get(scope)) is not None and began >= cooldown.since:
                del self.cooldowns[scope]
        while self.cooldowns:
            scope, cooldown = next(iter(self.cooldowns.items()))
            if not scope[2].caller or cooldown.until + WINDOW_S > began:
                break  # one that is over longer may be of a caller that never calls again
            del self.cooldowns[scope]

    def begun(self, position: int, model: str, now: float, asker: Asker = ANYONE) -> None:
        """Record that an attempt with this key begins: the next one that can wait does, while the key is on trial."""
        for scope in _scopes(position, model, asker):
            cooldown = self.cooldowns.get(scope)
            if cooldown is not None and cooldown.is_stated and cooldown.until <= now:
                self.cooldowns[scope] = cooldown._replace(next_trial=now + TRIAL_S)

    def pause_s(self, model: str, now: float, position: int | None = None, asker: Asker = ANYONE) -> float:
        """Seconds for which a call that can wait is not sent with this key, or with any: 0 where one may be used."""
        positions = range(self._count) if position is None else (position,)
        return min([self._pause_s(each, model, now, asker) for each in positions])

    def _pause_s(self, position: int, model: str, now: float, asker: Asker) -> float:
        found = self._of(position, model, asker)
        stated = [max(cooldown.until, cooldown.next_trial) for cooldown in found if cooldown.is_stated]
        return max([until - now for until in stated if until > now], default=0.0)

    def _of(self, position: int, model: str, asker: Asker) -> list[Cooldown]:
        """The cooldowns that hold for such calls."""
        found = [self.cooldowns.get(scope) for scope in _scopes(position, model, asker)]
        return [cooldown for cooldown in found if cooldown is not None]

    def _set(self, scope: Scope, cooldown: Cooldown) -> Cooldown:
        self.cooldowns[scope] = cooldown
        self.cooldowns.move_to_end(scope)
        if len(self.cooldowns) > MAX_COOLDOWNS:
            self.cooldowns.popitem(last=False)
        return cooldown

    def _is_last(self, position: int, model: str, now: float) -> bool:
        """Whether no other key is healthy for this model."""
        others = [other for other in range(self._count) if other != position]
        return all(self._grade(other, model, now) is not Grade.HEALTHY for other in others)

    def _are_models_refused(self, position: int) -> bool:
        """Whether enough models were refused since the last success to refuse the key itself."""
        since = self._accepted.get(position, -inf)
        models = [
            model
            for (key, model, _), cooldown in self.cooldowns.items()
            if key == position and model is not None and cooldown.since > since and cooldown.may_concern_key
        ]
        return len(models) >= MODELS_OF_A_REFUSED_KEY

    def first_available(self, model: str, now: float, asker: Asker = ANYONE) -> Cooldown | None:
        """The cooldown that ends first, if all keys are in cooldown."""
        cooldowns = [left for at in range(self._count) if (left := self._active(at, model, now, asker))]
        return min([max(left, key=_end) for left in cooldowns], key=_end, default=None)

    def _active(self, position: int, model: str, now: float, asker: Asker) -> list[Cooldown]:
        """The cooldowns of this key that have not ended, for all models and for this one."""
        return [cooldown for cooldown in self._of(position, model, asker) if cooldown.until > now]

    def _grade(self, position: int, model: str, now: float, asker: Asker = ANYONE) -> Grade:
        left = self._active(position, model, now, asker)
        if not left:
            return Grade.HEALTHY
        binding = [each.refusals for each in left if not (each.caller and asker.caller) or each.caller == asker.caller]
        return Grade.UNAVAILABLE if max(binding, default=0) >= self._unavailable_after else Grade.DEGRADED


def _scopes(position: int, model: str, asker: Asker) -> Collection[Scope]:
    """Where cooldowns are that hold for such calls; what holds for ordinary ones holds for every service."""
    askers = {ANYONE, Asker(asker.caller), Asker("", asker.service), asker}
    return [(position, None, ANYONE), *[(position, model, each) for each in askers]]


def _end(cooldown: Cooldown) -> float:
    return cooldown.until


def account_of(upstream: Upstream, position: int) -> str:
    """A short digest of the API key at this position; empty where the upstream has none."""
    key = upstream.credentials[position]
    return "" if key is None else hashlib.sha256(key.get_secret_value().encode()).hexdigest()[:16]


def position_of(upstream: Upstream, account: str) -> int | None:
    """The position of the API key with this digest; None: it is no longer configured.

    The sole key of an upstream matches any digest: a key that was renewed belongs to the same account.
    """
    if len(upstream.credentials) == 1:
        return 0
    return next((at for at in range(len(upstream.credentials)) if account_of(upstream, at) == account), None)
