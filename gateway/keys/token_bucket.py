"""A token bucket: a number of events a second, and a burst after a pause."""

from __future__ import annotations

from collections import OrderedDict


class TokenBucket:
    """Refills by `per_s`, up to `most`. Its clock is that of `now`, in seconds. Private to a worker."""

    __slots__ = ("_at", "_left", "_most", "_per_s")

    def __init__(self, per_s: float, most: float) -> None:
        self._per_s = per_s
        self._most = self._left = most
        self._at = 0.0

    def is_spent(self, now: float) -> bool:
        """Whether one more would be too many at present."""
        self._left = min(self._most, self._left + self._per_s * max(0.0, now - self._at))
        self._at = now
        return self._left < 1

    def spend(self, number: int) -> None:
        """Take `number` tokens; more than there are leave a debt."""
        self._left -= number


MAX_NAMES = 10_000


class TokenBuckets:
    """A bucket for each name. At most `MAX_NAMES` are known: the one asked for longest ago is removed first."""

    def __init__(self, per_s: float, most: float) -> None:
        self._per_s = per_s
        self._most = most
        self._of: OrderedDict[str, TokenBucket] = OrderedDict()

    def of(self, name: str) -> TokenBucket:
        bucket = self._of.setdefault(name, TokenBucket(self._per_s, self._most))
        self._of.move_to_end(name)
        if len(self._of) > MAX_NAMES:
            self._of.popitem(last=False)
        return bucket
