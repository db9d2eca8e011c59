"""Given what has happened so far: try whom, after how long, or give up.

All retry policy is `next_step`, a pure function of the routes that may be tried now, the attempts so far and the
model's settings, so that its specification is a table (tests/upstream/test_retry_policy.py). The further an attempt
got, the
less it may be repeated:

    the last attempt              somewhere else is left         nowhere else
    CONNECT  nothing was sent     there, at once                 here again after 0.1 s, 0.4 s, 0.4 s
             it took its time, or it is full                     give up
    STALE    for the first time   here, on a new connection      here, on a new connection
             again                as WAITING                     as WAITING
    REFUSED  for its API key      with the next, or there        as below
             with a Retry-After   there, at once                 here, if it comes within the second that is left
             else                 there, at once                 give up
    WAITING  if the model says so there, at once                 here, on a new connection
             else                 give up                        give up
    RELAYING                      give up                        give up

Which routes may be tried is not decided here: who is left alone (breaker.py), who rests and who cannot take this call
is not among the candidates. Where a call has been already it may come again only within that upstream's budget
(budget.py); a stale connection is no load and needs none, nor does the next key, because the refused one rests.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from gateway.config import Model, Route
from gateway.records import Failure, Fault, Phase

REPEAT_AFTER_S = (0.1, 0.4)
"""Pauses before the next try of an upstream that could not be reached, so that a restart in between may end."""

LONGEST_WAIT_S = 1.0
"""Of all pauses of one call together. Who has to wait longer is told so, and waits better than we can."""


class FailedAttempt(NamedTuple):
    """One attempt that came to nothing."""

    route: Route
    failure: Failure
    key: int = 0
    """Place of the API key that was presented, from 0."""


class Try(NamedTuple):
    """Try this route, after this pause."""

    route: Route
    after_s: float = 0.0
    is_fresh: bool = False
    """Whether only a new connection will do."""


class GiveUp(NamedTuple):
    """Tell the client of the last failure; None: nobody could be asked at all."""

    last: Failure | None


def next_step(
    model: Model,
    candidates: Sequence[Route],
    tried: Sequence[FailedAttempt] = (),
    *,
    waited_s: float = 0.0,
    left_s: float = inf,
    renewed: Container[Route] = (),
    spent: Container[str] = (),
) -> Try | GiveUp:
    """What to do next for one call.

    `candidates` may be tried now, the best first. `waited_s` are the pauses so far, `left_s` the time in which another
    attempt may begin. `renewed` are routes that were refused for their API key and have another one now; `spent` the
    upstreams whose retry budget is used up.
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
    if (elsewhere := _elsewhere(candidates, been, renewed, spent)) is not None:
        return Try(elsewhere)
    pauses = {route: _pause_s(route, tried) for route in candidates if route in been and route.upstream not in spent}
    route, pause_s = min(pauses.items(), key=_by_pause, default=(last_route, inf))
    if pause_s >= left_s or waited_s + pause_s > LONGEST_WAIT_S:
        return GiveUp(last)
    return Try(route, pause_s, is_fresh=been[route].phase in (Phase.WAITING, Phase.STALE))


def _by_pause(item: tuple[Route, float]) -> float:
    return item[1]


def _elsewhere(
    candidates: Sequence[Route], been: Mapping[Route, Failure], renewed: Container[Route], spent: Container[str]
) -> Route | None:
    """The best route where this call has not been; if there is one, on an upstream where it has not been."""
    seen = {route.upstream for route in been if route not in renewed}
    new = [route for route in candidates if route not in been or route in renewed]
    for route in new:
        if route.upstream not in seen:
            return route
    return next((route for route in new if route.upstream not in spent), None)


def _pause_s(route: Route, tried: Sequence[FailedAttempt]) -> float:
    """How long to wait before this route is tried once more; `inf`: that would help nobody."""
    failures = [each.failure for each in tried if each.route == route]
    match failures[-1]:
        case Failure(phase=Phase.CONNECT, fault=Fault.CONNECT | Fault.CUT):
            times = sum([failure.phase is Phase.CONNECT for failure in failures])
            return REPEAT_AFTER_S[min(times, len(REPEAT_AFTER_S)) - 1]
        case Failure(phase=Phase.REFUSED, retry_after_s=after_s):
            return after_s or inf  # 0 says no more than nothing does: it would answer the same
        case Failure(phase=Phase.WAITING | Phase.STALE):
            return 0.0
    return inf


# ------------------------------------------------------------------------------------------------------------ patience

_PATIENCE = ("x-stainless-read-timeout", "x-stainless-timeout")
"""In which openai-python and openai-node tell their time limits, in seconds (`_base_client.py`, `client.ts`)."""


def patience_s(headers: Iterable[tuple[str, str]]) -> float:
    """How long a client with these headers waits for an answer to begin; without a word of it, for ever."""
    said = [value for name, value in headers if name.lower() in _PATIENCE]
    try:
        return min([float(value) for value in said if float(value) > 0], default=inf)
    except ValueError:
        return inf
