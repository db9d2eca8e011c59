"""The API keys of one upstream: round robin over the keys that are not in cooldown.

1. A refused key gets a cooldown: for all models when it is not accepted or its balance is spent (401, 402), for one
   model when it may not use that model (403) or is at its rate limit there (429).
2. While another key is healthy, a key in cooldown is not used.
3. Without a healthy key, a key in cooldown is still tried until 3 refusals in a row (the sole key of an upstream: 10),
   because a single refusal may be an error of the upstream. Then the upstream is unavailable until a cooldown ends.

The log names a key by its position (`#1`). This module keeps no secret.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

from gateway.records import Failure, Fault

COOLDOWN_S = 60.0
"""Cooldown of a key that was refused or whose balance is spent."""

RATE_LIMIT_COOLDOWN_S = 1.0
"""Cooldown after a 429 without a Retry-After. new-api never sends one."""

MAX_RATE_LIMIT_COOLDOWN_S = 600.0
"""Limit of the cooldown after a 429, whatever its Retry-After: the rate limit may be raised meanwhile."""

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


class Cooldown(NamedTuple):
    """A time in which a key is not used. Times are on the clock of `time.monotonic`."""

    since: float
    until: float
    refusals: int
    """In a row."""
    fault: Fault


class Credentials:
    """State of the keys of one upstream. Each worker has its own and shares nothing with the others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._unavailable_after = UNAVAILABLE_AFTER if count > 1 else SOLE_KEY_UNAVAILABLE_AFTER
        self._next = 0
        self.cooldowns: OrderedDict[tuple[int, str | None], Cooldown] = OrderedDict()
        """By position and model; None: all models. An entry stays after its end until the key is accepted again."""

    def take(self, model: str, now: float, used: Collection[int] = ()) -> int:
        """Position of the next key: the best grade, round robin; one in `used` only if there is no other."""
        if self._count == 1:
            return 0
        first = self._next
        positions = [(first + step) % self._count for step in range(self._count)]
        position = min(positions, key=lambda position: (position in used, self._grade(position, model, now)))
        self._next = (position + 1) % self._count
        return position

    def grade(self, model: str, now: float, used: Collection[int] = ()) -> Grade:
        """Grade of the best key that is not in `used`."""
        if not self.cooldowns and not used:
            return Grade.HEALTHY
        left = [self._grade(position, model, now) for position in range(self._count) if position not in used]
        return min(left, default=Grade.UNAVAILABLE)

    def refused(self, position: int, model: str, failure: Failure, began: float, now: float) -> Cooldown | None:
        """Record that the upstream refused this key; the attempt began at `began`. Returns a new cooldown."""
        is_for_model = failure.fault is Fault.RATE_LIMITED or (failure.fault is Fault.AUTH and failure.status == 403)
        scope = (position, model if is_for_model else None)
        before = self.cooldowns.get(scope)
        if before is not None and began < before.since:
            return None  # the attempt began before the refusal was known: parallel calls count once
        cooldown_s = COOLDOWN_S
        if failure.fault is Fault.RATE_LIMITED:
            cooldown_s = min(failure.retry_after_s or RATE_LIMIT_COOLDOWN_S, MAX_RATE_LIMIT_COOLDOWN_S)
        self.cooldowns[scope] = cooldown = Cooldown(
            now, now + cooldown_s, before.refusals + 1 if before else 1, failure.fault
        )
        self.cooldowns.move_to_end(scope)
        if len(self.cooldowns) > MAX_COOLDOWNS:
            self.cooldowns.popitem(last=False)
        return cooldown

    def accepted(self, position: int, model: str, began: float) -> None:
        """Record that the upstream accepted this key; the attempt began at `began`."""
        for scope in ((position, None), (position, model)):
            if (cooldown := self.cooldowns.get(scope)) is not None and began >= cooldown.since:
                del self.cooldowns[scope]

    def first_available(self, model: str, now: float) -> Cooldown | None:
        """The cooldown that ends first, if all keys are in cooldown."""
        cooldowns = [left for position in range(self._count) if (left := self._active(position, model, now))]
        return min([max(left, key=_end) for left in cooldowns], key=_end, default=None)

    def _active(self, position: int, model: str, now: float) -> list[Cooldown]:
        """The cooldowns of this key that have not ended, for all models and for this one."""
        found = (self.cooldowns.get((position, None)), self.cooldowns.get((position, model)))
        return [cooldown for cooldown in found if cooldown is not None and cooldown.until > now]

    def _grade(self, position: int, model: str, now: float) -> Grade:
        left = self._active(position, model, now)
        if not left:
            return Grade.HEALTHY
        return (
            Grade.UNAVAILABLE
            if any(cooldown.refusals >= self._unavailable_after for cooldown in left)
            else Grade.DEGRADED
        )


def _end(cooldown: Cooldown) -> float:
    return cooldown.until
