"""What an upstream's answers say about its limits: they lower what is assumed at once, and it rises slowly again.

1. A limit in the headers of an answer that is lower than the configured one is the highest that is assumed, until an
   answer says otherwise. Only limits by the minute are compared with it, because that is what these headers mean:
   `x-ratelimit-limit-{requests,tokens}` (OpenAI's guide to rate limits; Azure OpenAI sends the same) and
   `anthropic-ratelimit-{requests,tokens}-limit` (Anthropic's API reference, rate limits).
2. A 429 although the gateway saw room: the assumed limit is wrong, or others use the same account. It is lowered to
   70 % at once, and rises by 1 % of the limit a second (additive increase, multiplicative decrease: Chiu and Jain,
   1989). Calls that are refused together count once in `DECREASE_EVERY_S`.

Pure: time is an argument, in seconds of any clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

DECREASE = 0.7
INCREASE_PER_S = 0.01
DECREASE_EVERY_S = 1.0

HEADERS: Mapping[str, tuple[str, ...]] = {
    "requests": ("x-ratelimit-limit-requests", "anthropic-ratelimit-requests-limit"),
    "tokens": ("x-ratelimit-limit-tokens", "anthropic-ratelimit-tokens-limit"),
}
"""Names in lower case, by the unit of the limit."""

MAX_DIGITS = 15


def announced(header: Callable[[str], str | None]) -> dict[str, int]:
    """The limits by the minute in the headers of an answer, by unit; `header` returns one by its name."""
    found = {}
    for unit, names in HEADERS.items():
        for name in names:
            text = header(name)
            if text is not None and text.isdecimal() and len(text) <= MAX_DIGITS and int(text) > 0:
                found[unit] = int(text)
                break
    return found


class Assumed(NamedTuple):
    """What is assumed of one limit, beside its configuration."""

    ceiling: int | None = None
    """The limit that the upstream announced last."""
    share: float = 1.0
    """Of the lower one of that and the configured limit, after the last 429."""
    at: float = 0.0
    """When that was."""

    def limit(self, configured: int, now: float) -> int:
        """The assumed limit in units, from 1 to the configured one."""
        highest = configured if self.ceiling is None else min(configured, self.ceiling)
        return max(1, round(highest * min(1.0, self._share(now))))

    def refused(self, now: float) -> Assumed:
        """After a 429."""
        if self.share < 1.0 and now - self.at < DECREASE_EVERY_S:
            return self
        return self._replace(share=min(1.0, self._share(now)) * DECREASE, at=now)

    def is_plain(self, now: float) -> bool:
        """Whether it says no more than the configuration."""
        return self.ceiling is None and self._share(now) >= 1.0

    def _share(self, now: float) -> float:
        return self.share + (now - self.at) * INCREASE_PER_S
