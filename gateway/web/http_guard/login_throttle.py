"""The login throttle: the delay of an address that sends wrong tokens. The state is in `token_auth.py`.

1. Up to five wrong tokens in a row cause no delay: typing errors have no effect.
2. Each further wrong token starts a delay, twice as long as the last, in which no token from the address is checked.
3. Requests during a delay do not extend it. A minute without a wrong token clears the state.
"""

from __future__ import annotations

from typing import NamedTuple

FREE = 4
"""Wrong tokens in a row that cost nothing."""

FORGIVEN_S = 60.0
"""An address is forgiven after this time without a wrong token, in seconds from the end of its delay."""

LONGEST_S = 60.0
"""The longest delay, in seconds."""


class WrongTokens(NamedTuple):
    """The state of one address. Times are seconds of one clock."""

    wrong: int = 0
    """Wrong tokens in a row."""
    until: float = 0.0
    """When the next one is looked at; of an address that need not wait, when the last one came."""


def wait_s(tries: WrongTokens, now: float) -> float:
    """Seconds until a token from this address is checked again; 0 means now."""
    return max(0.0, tries.until - now) if tries.wrong > FREE else 0.0


def after_wrong(tries: WrongTokens, now: float) -> WrongTokens:
    """Returns the state after one more wrong token was checked."""
    if now > tries.until + FORGIVEN_S:
        tries = WrongTokens()
    wrong = tries.wrong + 1
    if wrong <= FREE:
        return WrongTokens(wrong, now)
    return WrongTokens(wrong, now + min(LONGEST_S, 2.0 ** min(wrong - FREE - 1, 10)))
