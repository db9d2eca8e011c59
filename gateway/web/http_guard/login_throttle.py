"""How long an address has to wait that presents wrong tokens: decided here, remembered by web/http_guard/token_auth.

Who mistypes a token now and then notices nothing. Who guesses has a few guesses a minute: behind the fifth wrong one in
a row each further one is followed by a wait, twice as long as the last, in which no token from there is looked at. What
is sent meanwhile lengthens nothing, so that a wait is over when it was said to be; and who is quiet for a minute is
forgiven.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Network
from typing import NamedTuple

from gateway.api.client_ip import read_address

FREE = 4
"""Wrong tokens in a row that cost nothing."""

FORGIVEN_S = 60.0
"""Seconds without a wrong token, and behind the end of a wait, after which an address begins anew."""

LONGEST_S = 60.0
"""Of a wait."""


class WrongTokens(NamedTuple):
    """What is remembered of one address. Times are seconds of one clock."""

    wrong: int = 0
    """Wrong tokens in a row."""
    until: float = 0.0
    """When the next one is looked at; of an address that need not wait, when the last one came."""


def place(remote: str | None) -> str:
    """What is one address here. Of IPv6 that is its network of 64 bits, all of which one customer has (RFC 6177);
    clients of whom nobody knows where they are share one."""
    address = read_address(remote or "")
    if address is None or isinstance(address, IPv4Address):
        return str(address or "")
    return str(IPv6Network((int(address), 64), strict=False))


def wait_s(tries: WrongTokens, now: float) -> float:
    """For how long nothing from this address is looked at; 0: it is, now."""
    return max(0.0, tries.until - now) if tries.wrong > FREE else 0.0


def after_wrong(tries: WrongTokens, now: float) -> WrongTokens:
    """One more was looked at, and was wrong."""
    if now > tries.until + FORGIVEN_S:
        tries = WrongTokens()
    wrong = tries.wrong + 1
    if wrong <= FREE:
        return WrongTokens(wrong, now)
    return WrongTokens(wrong, now + min(LONGEST_S, 2.0 ** min(wrong - FREE - 1, 10)))
