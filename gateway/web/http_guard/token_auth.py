"""Who may pass a door that opens to tokens: the admin API, the metrics. Wrong tokens are slowed down by their address.

The rule is web/http_guard/login_throttle; here it is remembered, for each door apart, and each worker for itself.
Nobody is made to
wait inside: who comes too early is told when to come back (429), and costs nothing until then.

While an address has to wait, a right token from there is not looked at either, or a guesser would learn which one it
is. Unless that very token has been right from there within a day: whoever shares a proxy's address with a guesser, and
was there before, is not locked out. What protects the token of such an address is its length. A newcomer behind that
proxy waits with the guesser; `server.trusted_proxies` tells the two apart, and `gateway keys` needs no door at all.
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
"""Addresses that are remembered for wrong tokens; the one that was quiet for longest is forgotten."""

MAX_KNOWN = 1_000
"""Addresses that are remembered for right ones. Kept apart, so that no number of wrong ones drives them out."""

KNOWN_S = 86_400.0
"""For how long a right token is remembered."""

NEW = WrongTokens()
K = TypeVar("K")
V = TypeVar("V")


class TokenAuth:
    """One door. Private to a worker."""

    def __init__(self, telemetry: Telemetry, clock: Callable[[], float] = time.monotonic) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._tries: OrderedDict[str, WrongTokens] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Until when an address is known for which token."""

    def __repr__(self) -> str:
        return f"<Gate: {len(self._tries)} addresses with wrong tokens, {len(self._known)} with right ones>"

    def admit(self, request: web.Request, tokens: Mapping[str, SecretStr | None]) -> str:
        """The name of the token that the request bears; all are compared, in constant time. Raises `Unauthorized`, and
        `TooManyWrongTokens` where nobody looks at what comes from there. A request without a token is no guess.
        """
        given = auth.digest(auth.bearer(request.headers.getall(hdrs.AUTHORIZATION, [])))
        now, place = self._clock(), login_throttle.place(request[CONTEXT].remote)
        found = ""
        for name, token in tokens.items():
            is_right = token is not None and hmac.compare_digest(given, auth.digest(token.get_secret_value()))
            found = name if is_right else found
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
