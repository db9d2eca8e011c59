"""Limits learned from an upstream's answers: an answer lowers the assumed limit at once, and it rises slowly again.

1. A limit in the headers of an answer that is lower than the configured one is the highest that is assumed, until an
   answer has another one. Only limits by the minute are compared with it, because these headers have no others:
   `x-ratelimit-limit-{requests,tokens}` (OpenAI's guide to rate limits; Azure OpenAI sends the same) and
   `anthropic-ratelimit-{requests,tokens}-limit` (Anthropic's API reference, rate limits).
2. A remainder of a limit by the minute (`x-ratelimit-remaining-*`, `anthropic-ratelimit-*-remaining`) that is less
   than the gateway's own calls leave: others use the same account. Their use is taken off the limit at once, and
   comes back evenly until the answer's `x-ratelimit-reset-*`, or within a minute. A tenth of the limit is no matter:
   calls are counted at different moments here and there.
3. A 429 although the gateway saw room: the assumed limit is wrong, or others use the same account. It is lowered to
   70 % at once, and rises by 1 % of the limit a second (additive increase, multiplicative decrease: Chiu and Jain,
   1989). Calls that are refused together count once in `DECREASE_EVERY_S`.

Pure: time is an argument, in seconds of any clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from .circuit_breaker import WINDOW_S

DECREASE = 0.7
INCREASE_PER_S = 0.01
DECREASE_EVERY_S = 1.0

UNITS = ("requests", "tokens")

HEADERS = ("x-ratelimit-{what}-{unit}", "anthropic-ratelimit-{unit}-{what}")
"""Names of rate limit headers in lower case."""

MAX_DIGITS = 15

IGNORED_SHARE = 0.1
"""The share of a limit that others may seem to have used without effect."""

MINUTE_S = 60.0

_DURATION = re.compile(
    r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?(?:(\d{1,6}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?", re.ASCII
)
"""Durations in the form of OpenAI's headers: `6m0s`, `120ms`."""


class Announced(NamedTuple):
    """One limit by the minute in the headers of an answer."""

    limit: int | None
    remaining: int | None
    resets_s: float
    """Seconds until all of it remains."""


def announced(header: Callable[[str], str | None]) -> dict[str, Announced]:
    """The limits by the minute in the headers of an answer, by unit; `header` returns one by its name."""
    found = {}
    for unit in UNITS:
        limit, remaining, resets = [
            next((text for name in HEADERS if (text := header(name.format(what=what, unit=unit))) is not None), "")
            for what in ("limit", "remaining", "reset")
        ]
        answer = Announced(_count(limit) or None, _count(remaining), _seconds(resets))
        if answer.limit is not None or answer.remaining is not None:
            found[unit] = answer
    return found


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        return MINUTE_S
    hours, minutes, seconds, milliseconds = [float(part or 0) for part in found.groups()]
    return min(MINUTE_S, hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)


def has_room(header: Callable[[str], str | None]) -> bool | None:
    """Whether the headers of a refusal show room for other calls: none, where nothing remains of one limit; some, where
    more than `IGNORED_SHARE` of both remains; None: they show neither."""
    found = announced(header).values()
    if any(answer.remaining == 0 for answer in found):
        return False
    left = [answer.remaining for answer in found if (answer.remaining or 0) > IGNORED_SHARE * (answer.limit or inf)]
    return True if len(left) == len(UNITS) else None


class Assumed(NamedTuple):
    """The learned state of one limit, beside its configuration."""

    ceiling: int | None = None
    """The limit that the upstream announced last."""
    share: float = 1.0
    """The assumed share, after the last 429, of the lower one of `ceiling` and the configured limit."""
    at: float = 0.0
    """Time of the last 429 in seconds."""
    others: int = 0
    """Units of it that others had used by the last answer, beyond those that the account has above this limit."""
    others_at: float = 0.0
    """Time in seconds at which `others` was measured."""
    others_for_s: float = MINUTE_S
    """How long it takes until nothing of that counts."""
    caller: str = ""
    """Whose call the last 429 refused, and when; empty: there was none."""
    refused_at: float = -inf

    def limit(self, configured: int, now: float) -> int:
        """The assumed limit in units, from 1 to the configured one."""
        highest = configured if self.ceiling is None else min(configured, self.ceiling)
        return max(1, round((highest - self._of_others(now)) * min(1.0, self._share(now))))

    def heard(self, answer: Announced, configured: int, used: int | None, now: float) -> Assumed:
        """The state after an answer with these headers. `used`: units of the limit that the gateway had used when it
        reserved the call; None: unknown."""
        ceiling = self.ceiling if answer.limit is None else answer.limit if answer.limit < configured else None
        after = self._replace(ceiling=ceiling)
        if answer.remaining is None or used is None:
            return after
        highest = configured if ceiling is None else min(configured, ceiling)
        others = highest - answer.remaining - used
        if others <= IGNORED_SHARE * highest:
            return after._replace(others=0)
        return after._replace(others=others, others_at=now, others_for_s=max(1.0, answer.resets_s))

    def refused_to(self, caller: str, now: float) -> Assumed:
        """Returns the state of the limit for all callers after a 429 of one: it counts if the last one was of another
        caller and no older than a window of circuits. So a caller that is refused alone lowers nothing for others, and
        one that is refused again and again no more than the others are."""
        is_for_all = self.caller not in ("", caller) and now - self.refused_at < WINDOW_S
        return (self.refused(now) if is_for_all else self)._replace(caller=caller, refused_at=now)

    def refused(self, now: float) -> Assumed:
        """Returns the state after a 429, which lowers the share at most once in `DECREASE_EVERY_S`."""
        if self.share < 1.0 and now - self.at < DECREASE_EVERY_S:
            return self
        return self._replace(share=min(1.0, self._share(now)) * DECREASE, at=now)

    def is_plain(self, now: float) -> bool:
        """Whether the assumed limit is the configured one, and no 429 is remembered."""
        return (
            now - self.refused_at >= WINDOW_S
            and self.ceiling is None
            and self._share(now) >= 1.0
            and not self._of_others(now)
        )

    def _of_others(self, now: float) -> float:
        return self.others * max(0.0, 1 - (now - self.others_at) / self.others_for_s)

    def _share(self, now: float) -> float:
        return self.share + (now - self.at) * INCREASE_PER_S
