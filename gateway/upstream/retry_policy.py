"""Retry policy: after each attempt decides the next route, the pause before it, or to give up.

`next_step` is a pure function of the routes that are available now, the failed attempts and the settings of the model;
its specification is the table in tests/upstream/test_retry_policy.py. The further an attempt got, the less may be
repeated:

    the last attempt              another route is left          no other route
    CONNECT  nothing was sent     that route, at once            same route after 0.1 s, 0.4 s, 0.4 s
             timeout, or no free connection                      give up
             its limit here  that route, at once            same route, if within 1 s of pauses
    STALE    first time           same route, new connection     same route, new connection
             again                as WAITING                     as WAITING
    REFUSED  for its API key      the next key, or that route    as below
             with a Retry-After   that route, at once            same route, if within 1 s of pauses; 0 is 0.1 s, 0.4 s
             429 with one of 0    that route, at once            give up
             else                 that route, at once            give up
    WAITING  if the model allows  that route, at once            same route, new connection
             else                 give up                        give up
    RELAYING                      give up                        give up

1. The candidates are given: routes with an open circuit, without an available key or without a needed feature are not
   among them (upstream/router.py).
2. A second attempt of a call at one upstream needs that upstream's retry budget. A stale connection needs none, because
   the upstream has not read the request; nor does the next key, because the refused key is in cooldown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from gateway.config import Model, Route
from gateway.records import Failure, Fault, Phase

REPEAT_AFTER_S = (0.1, 0.4)
"""Pauses before the next try of an upstream that was unreachable (time for a restart) or sent `Retry-After: 0`."""

MAX_PAUSES_S = 1.0
"""Limit of all pauses of one call. A longer Retry-After goes to the client, which can wait without a connection."""


class FailedAttempt(NamedTuple):
    """Records a failed attempt for the choice of the next one."""

    route: Route
    failure: Failure
    key: int = 0
    """Position of the API key in use, from 0."""


class Try(NamedTuple):
    """Try this route after this pause."""

    route: Route
    after_s: float = 0.0
    is_fresh: bool = False
    """Whether the attempt needs a new connection."""


class GiveUp(NamedTuple):
    """Return the last failure to the client; None: there was no candidate and no attempt."""

    last: Failure | None


def next_step(
    model: Model,
    candidates: Sequence[Route],
    tried: Sequence[FailedAttempt] = (),
    *,
    waited_s: float = 0.0,
    left_s: float = inf,
    has_other_credential: Container[Route] = (),
    spent: Container[str] = (),
) -> Try | GiveUp:
    """The next step of one call.

    `candidates` are the available routes, the best first. `waited_s` is the sum of the pauses so far, `left_s` the time
    within which another attempt may begin. `has_other_credential` holds the routes that refused a key and have another
    one available; `spent` the upstreams without retry budget.
    """
    if not tried:
        return Try(candidates[0]) if candidates else GiveUp(None)
    last_route, last, _ = tried[-1]
    is_stale = last.phase is Phase.STALE
    is_unread = is_stale and sum([each.failure.phase is Phase.STALE for each in tried]) == 1
    was_sent = last.phase is Phase.WAITING or (is_stale and not is_unread)
    if (
        len(tried) >= model.max_attempts
        or left_s <= 0
        or last.phase is Phase.RELAYING
        or (was_sent and not model.repeat_when_waiting)
    ):
        return GiveUp(last)
    if is_unread and last_route in candidates:
        return Try(last_route, is_fresh=True)
    been = {each.route: each.failure for each in tried}
    if (elsewhere := _elsewhere(candidates, been, has_other_credential, spent)) is not None:
        return Try(elsewhere)
    pauses = {route: _pause_s(route, tried) for route in candidates if route in been and route.upstream not in spent}
    route, pause_s = min(pauses.items(), key=_by_pause, default=(last_route, inf))
    if pause_s >= left_s or waited_s + pause_s > MAX_PAUSES_S:
        return GiveUp(last)
    return Try(route, pause_s, is_fresh=been[route].phase in (Phase.WAITING, Phase.STALE))


def may_client_repeat(model: Model, failures: Sequence[Failure]) -> bool:
    """Whether the client may send a failed call again; `failures` are those of all its attempts, in their order.

    It may not if every failure concerns the gateway's own account, because the answer would be the same; nor after a
    timeout of a sent request where the gateway itself does not repeat, because the upstream may bill each repetition.
    """
    last = failures[-1]
    if last.fault is Fault.TIMEOUT and last.phase is Phase.WAITING and not model.repeat_when_waiting:
        return False
    return any(failure.fault not in _ACCOUNT_FAULTS for failure in failures)


def may_wait(failure: Failure) -> bool:
    """Whether a call with this failure may wait for room at its upstreams: the time of the next try is known."""
    if failure.fault is Fault.LIMIT:
        return True
    return failure.fault is Fault.RATE_LIMITED and failure.phase is Phase.REFUSED and bool(failure.retry_after_s)


_ACCOUNT_FAULTS = frozenset({Fault.AUTH, Fault.BALANCE, Fault.SPENT})


def _by_pause(item: tuple[Route, float]) -> float:
    return item[1]


def _elsewhere(
    candidates: Sequence[Route],
    been: Mapping[Route, Failure],
    has_other_credential: Container[Route],
    spent: Container[str],
) -> Route | None:
    """The best route that this call has not tried; preferably on an upstream that it has not tried."""
    seen = {route.upstream for route in been if route not in has_other_credential}
    new = [route for route in candidates if route not in been or route in has_other_credential]
    for route in new:
        if route.upstream not in seen:
            return route
    return next((route for route in new if route.upstream not in spent), None)


def _pause_s(route: Route, tried: Sequence[FailedAttempt]) -> float:
    """Pause before this route is tried again; `inf`: a repetition is of no use."""
    failures = [each.failure for each in tried if each.route == route]
    times = sum([failure.phase is failures[-1].phase for failure in failures])
    match failures[-1]:
        case Failure(phase=Phase.CONNECT, fault=Fault.CONNECT | Fault.CUT):
            return REPEAT_AFTER_S[min(times, len(REPEAT_AFTER_S)) - 1]
        case Failure(phase=Phase.REFUSED, fault=Fault.RATE_LIMITED, retry_after_s=0):
            return inf  # a limit that is reached, and free again at once: the answer would be the same
        case Failure(phase=Phase.REFUSED, retry_after_s=0):
            return REPEAT_AFTER_S[min(times, len(REPEAT_AFTER_S)) - 1]
        case Failure(phase=Phase.REFUSED, retry_after_s=after_s) | Failure(fault=Fault.LIMIT, retry_after_s=after_s):
            return after_s or inf
        case Failure(phase=Phase.WAITING | Phase.STALE):
            return 0.0
    return inf


# ------------------------------------------------------------------------------------------------------ client timeout

_TIMEOUT_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")
"""openai-python and openai-node send their timeouts in these, in seconds (`_base_client.py`, `client.ts`)."""

_TRIES_HEADER = "x-stainless-retry-count"
"""They count the tries of a request in this one (the same files)."""


def client_timeout_s(headers: Iterable[tuple[str, str]]) -> float:
    """Seconds for which a client with these headers waits for an answer to begin; inf if no header has it."""
    given = [value for name, value in headers if name.lower() in _TIMEOUT_HEADERS]
    try:
        return min([float(value) for value in given if float(value) > 0], default=inf)
    except ValueError:
        return inf


def is_first_try(headers: Iterable[tuple[str, str]]) -> bool:
    """Whether these headers mark the first try of a request."""
    return any(name.lower() == _TRIES_HEADER and value == "0" for name, value in headers)
