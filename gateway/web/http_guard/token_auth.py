"""Token authentication of the admin API and the metrics, with a login throttle by address.

The rule is in `login_throttle.py`; the state is kept here, separately for the admin API and the metrics and for each
worker. A throttled request is not held: it gets a 429 with the remaining delay.

During a delay a correct token from the address is refused as well, otherwise a guesser would recognise it. Exception: a
token that was correct from this address within the last day, so that a user behind the same proxy as a guesser is not
locked out; the length of the token protects it. A new user behind that proxy is delayed too;
`server.trusted_proxies` separates the two, and `gateway keys` works without HTTP.
"""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

from aiohttp import hdrs, web
from pydantic import SecretStr

from gateway.api import auth
from gateway.errors import TooManyWrongTokens, Unauthorized
from gateway.observe.metrics import Telemetry
from gateway.web.middleware import CONTEXT

from . import login_throttle
from .login_throttle import WrongTokens

MAX_PLACES = 10_000
"""Largest number of addresses with wrong tokens; the longest inactive one is removed first."""

MAX_KNOWN = 1_000
"""Largest number of addresses with correct tokens. Separate, so that wrong ones cannot evict them."""

KNOWN_S = 86_400.0
"""How long a correct token from an address counts."""

NEW = WrongTokens()
K = TypeVar("K")
V = TypeVar("V")


class TokenAuth:
    """Checks the tokens of one door (the admin API or the metrics) in one worker."""

    def __init__(self, telemetry: Telemetry, clock: Callable[[], float] = time.monotonic) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._tries: OrderedDict[str, WrongTokens] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Time on `_clock` until which an address is known for a token, by address and name of the token."""

    def __repr__(self) -> str:
        return f"<Gate: {len(self._tries)} addresses with wrong tokens, {len(self._known)} with right ones>"

    def admit(self, request: web.Request, tokens: Mapping[str, SecretStr | None], otherwise: str = "") -> str:
        """The name of the request's token; all tokens are compared, in constant time. Raises `Unauthorized`, and
        `TooManyWrongTokens` during a delay. A request without a token does not count as a guess.

        `otherwise`: what the token is if it is none of these, such as a known API key; empty: it is wrong then.
        """
        given = auth.digest(auth.bearer(request.headers.getall(hdrs.AUTHORIZATION, [])))
        now, place = self._clock(), auth.place_of(request[CONTEXT].remote)
        found = ""
        for name, token in tokens.items():
            is_right = token is not None and hmac.compare_digest(given, auth.digest(token.get_secret_value()))
            found = name if is_right else found
        found = found or otherwise
        tries = self._tries.get(place, NEW)
        wait_s = login_throttle.wait_s(tries, now)
        if wait_s and self._known.get((place, found), 0.0) < now:
            self._telemetry.rejected(TooManyWrongTokens.reason)
            raise TooManyWrongTokens(wait_s)
        if not found:
            _keep(self._tries, place, login_throttle.after_wrong(tries, now), MAX_PLACES)
            self._telemetry.rejected("wrong_token")
            raise Unauthorized("Incorrect token provided.", code="invalid_api_key")
        _keep(self._known, (place, found), now + KNOWN_S, MAX_KNOWN)
        return found


def _keep(table: OrderedDict[K, V], name: K, value: V, most: int) -> None:
    table[name] = value
    table.move_to_end(name)
    if len(table) > most:
        table.popitem(last=False)
