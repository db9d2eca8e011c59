"""The API keys of one upstream: used in turn, and which of them rest.

A key that was refused rests, and is tried again: one that is not accepted or not paid for (401, a spent balance) for
every model, one that may not be used for a model (403) or is at its rate limit (429) for that model. While others are
free it is left alone at once. Where none is, it is the last resort until it has been refused again and again:
one stray refusal must not take an upstream away from those who have nothing else. Then nobody is sent there in vain.

Keys are known by their place here and in the log (`#1`); no secret is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

from gateway.records import Failure, Fault

REFUSED_S = 60.0
"""How long a key rests that was refused, or whose balance is spent."""

LIMITED_S = 1.0
"""How long one rests that is at its rate limit, where the upstream does not say (new-api never does)."""

LONGEST_LIMITED_S = 600.0
"""However long the upstream says: a limit may be raised."""

CERTAIN_AFTER, ONLY_ONE_CERTAIN_AFTER = 3, 10
"""Refusals in a row after which a key, or the only key that there is, is not even the last resort."""

MAX_RESTS = 1024
"""Kept at once; a client may ask for any number of models. The oldest are forgotten."""

REFUSALS = frozenset({Fault.AUTH, Fault.BALANCE, Fault.RATE_LIMITED})
"""What is said to a key, and not to a call."""


class Grade(IntEnum):
    """How good an idea it is to use a key, or to take a route."""

    FREE = 0
    LAST_RESORT = 1
    BARRED = 2


class Cooldown(NamedTuple):
    """Times are on the clock of `time.monotonic`."""

    since: float
    until: float
    refusals: int
    """In a row."""
    fault: Fault


class Credentials:
    """How the keys of one upstream stand. Private to a worker: each learns of a refusal by itself."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._certain_after = CERTAIN_AFTER if count > 1 else ONLY_ONE_CERTAIN_AFTER
        self._next = 0
        self.rests: OrderedDict[tuple[int, str | None], Cooldown] = OrderedDict()
        """By place and model; None: for every model. A rest that is over stays until the key has been accepted."""

    def take(self, model: str, now: float, used: Collection[int] = ()) -> int:
        """The place of the key to present: the next in turn that is free, and that this call has not `used` in vain."""
        if self._count == 1:
            return 0
        first = self._next
        places = [(first + step) % self._count for step in range(self._count)]
        place = min(places, key=lambda place: (place in used, self._grade(place, model, now)))
        self._next = (place + 1) % self._count
        return place

    def grade(self, model: str, now: float, used: Collection[int] = ()) -> Grade:
        """That of the best key beside those `used`."""
        if not self.rests and not used:
            return Grade.FREE
        left = [self._grade(place, model, now) for place in range(self._count) if place not in used]
        return min(left, default=Grade.BARRED)

    def refused(self, place: int, model: str, failure: Failure, began: float, now: float) -> Cooldown | None:
        """This key was refused by an attempt that began at `began`. Returns its rest, if it begins now."""
        is_for_model = failure.fault is Fault.RATE_LIMITED or (failure.fault is Fault.AUTH and failure.status == 403)
        scope = (place, model if is_for_model else None)
        before = self.rests.get(scope)
        if before is not None and began < before.since:
            return None  # many calls at once learn of one refusal
        rest_s = REFUSED_S
        if failure.fault is Fault.RATE_LIMITED:
            rest_s = min(failure.retry_after_s or LIMITED_S, LONGEST_LIMITED_S)
        self.rests[scope] = rest = Cooldown(now, now + rest_s, before.refusals + 1 if before else 1, failure.fault)
        self.rests.move_to_end(scope)
        if len(self.rests) > MAX_RESTS:
            self.rests.popitem(last=False)
        return rest

    def accepted(self, place: int, model: str, began: float) -> None:
        """An attempt with this key that began at `began` was answered."""
        for scope in ((place, None), (place, model)):
            if (rest := self.rests.get(scope)) is not None and began >= rest.since:
                del self.rests[scope]

    def first_back(self, model: str, now: float) -> Cooldown | None:
        """Of the keys that all rest, the rest that is over first."""
        rests = [left for place in range(self._count) if (left := self._left(place, model, now))]
        return min([max(left, key=_end) for left in rests], key=_end, default=None)

    def _left(self, place: int, model: str, now: float) -> list[Cooldown]:
        """The rests that this key still has before it: for every model, and for this one."""
        found = (self.rests.get((place, None)), self.rests.get((place, model)))
        return [rest for rest in found if rest is not None and rest.until > now]

    def _grade(self, place: int, model: str, now: float) -> Grade:
        left = self._left(place, model, now)
        if not left:
            return Grade.FREE
        return Grade.BARRED if any(rest.refusals >= self._certain_after for rest in left) else Grade.LAST_RESORT


def _end(rest: Cooldown) -> float:
    return rest.until
