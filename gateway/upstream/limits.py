"""Limits of upstreams: the windows that an attempt draws on in addition to its caller's.

They are windows like all others (quota/windows.py), so that a call reserves on its key's windows and on its route's in
one reservation, and all workers and gateways on one store count together. Scopes: `upstream:NAME` for the whole
upstream and for its models, `upstream:NAME#2` for its second API key.

A call that needs more than a whole limit reserves the whole limit, and is served alone: it would wait for ever.

How many streams an upstream without a published limit serves well at once, by the time to their first token.

This is the gradient algorithm of Netflix's concurrency-limits (`GradientLimit.java`; the idea is TCP Vegas', Brakmo and
Peterson, 1995). A server that is not full answers in a time that does not depend on the number of calls; when calls
queue there, the time grows. So the ratio of the time without load to the last one shows by how much there are too many:

    gradient = unloaded / last, times `TOLERANCE`, between 1/2 and 1
    limit    = limit x gradient + `QUEUE`, of which `SMOOTHING` counts at once

A sample that was taken while less than half of the limit was in use proves nothing of a higher limit. Netflix measures
the time without load by lowering the limit now and then; here it is the mean of samples that were taken under light
load, because a worker that lowered its limit alone would be refused while others fill the upstream. (Gradient2, which
takes a mean of all samples, drifts upwards under a load that never ends.) So a server that computes N calls at once
gets about 1.5 N + 4; one that computes fewer than 8 may get 16. Pure.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from gateway.config import RateLimits, Route, Upstream
from gateway.config.quantities import read_rate
from gateway.quota import windows
from gateway.quota.windows import Limit, LimitTable, covers, most_nusd, not_priced, output_limit, unreserved
from gateway.records import UPSTREAM, Call, Claim, Refused, Window, WindowStatus

from .credentials import ANYONE, Asker
from .health import asker_of
from .learned_limits import Assumed, announced

TOLERANCE = 1.5
QUEUE = 4
"""Calls that may wait at the upstream, so that the limit can grow."""
SMOOTHING = 0.2
FIRST = 4
"""The limit before the first sample, unless fewer are permitted."""
LIGHT, LIGHT_SHARE = 2 * QUEUE, 0.25
"""Calls under way, and share of the limit, up to which a sample is one of light load. A server that has become slower
for good looks like a full one until such samples come."""
WARM_UP, WINDOW = 10, 100
"""Samples: the mean of the first `WARM_UP` is plain; then it is exponential, over about `WINDOW`."""


class AdaptiveLimit(NamedTuple):
    """The state of one limit."""

    limit: float = FIRST
    unloaded_s: float = 0.0
    samples: int = 0
    """Number of samples under light load."""

    def after(self, first_token_s: float, under_way: int, most: int) -> AdaptiveLimit:
        """The state after a first token that took `first_token_s` with `under_way` calls; `most`: the highest limit."""
        last_s = max(first_token_s, 1e-6)
        limit, unloaded_s, samples = min(self.limit, most), self.unloaded_s, self.samples
        if under_way <= max(LIGHT, LIGHT_SHARE * limit) or not samples:
            samples += 1
            unloaded_s += (last_s - unloaded_s) * (1 / samples if samples <= WARM_UP else 2 / (WINDOW + 1))
        if under_way >= limit / 2:
            gradient = max(0.5, min(1.0, TOLERANCE * unloaded_s / last_s))
            limit += (limit * gradient + QUEUE - limit) * SMOOTHING
        return AdaptiveLimit(max(1.0, min(limit, most)), unloaded_s, samples)


INTERACTIVE = "interactive"
MINUTE_US = 60_000_000

RETRY_AFTER = "retry-after"
"""The period of a window that represents a pause that an upstream asked for; no store has it."""

_PERIOD_NAMES: Mapping[int, str] = {1: "second", 60: "minute", 3600: "hour"}


class Place(NamedTuple):
    """A route of an attempt, and its claims there."""

    route: Route
    key: int | None
    """Position of the API key; None: any."""
    claims: tuple[Claim, ...]


class UpstreamLimitTable:
    """The limits of all upstreams. Their usage is in the store; limits learned beyond the configuration are private to
    a worker."""

    def __init__(self, upstreams: Mapping[str, Upstream], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._assumed: dict[tuple[_Name, Asker], Assumed] = {}
        self.learning = frozenset(name for name, up in upstreams.items() if up.limits.is_any and up.limits.learn)
        """Upstreams whose limits are learned from their answers."""
        self.adaptive = frozenset(name for name, upstream in upstreams.items() if upstream.limits.adaptive)
        """Upstreams whose limits of parallel calls follow the time to the first token."""
        self._adapted: dict[_Name, AdaptiveLimit] = {}
        self._sole_key = frozenset(name for name, up in upstreams.items() if len(up.credentials) == 1)
        self._by_limit = frozenset(name for name, upstream in upstreams.items() if upstream.counts_output_limits)
        budgets = {name: upstream.quotas for name, upstream in upstreams.items() if upstream.quotas}
        self.budgets: Callable[[str], Sequence[Limit]] = LimitTable((), {}, {}, upstreams=budgets).of_scope
        """The quotas of the upstream of a scope; a running gateway puts those with top-ups here."""
        self._budgeted = frozenset(budgets)
        self._whole: dict[str, tuple[Limit, ...]] = {}
        self._keys: dict[str, tuple[tuple[Limit, ...], ...]] = {}
        for name, upstream in upstreams.items():
            limits = upstream.limits
            if not limits.is_any:
                continue
            scope, is_by_limit = f"{UPSTREAM}{name}", name in self._by_limit
            rows = [*_limits(scope, limits, None, is_by_limit)]
            for pattern, some in limits.per_model.items():
                rows += _limits(scope, some, pattern, is_by_limit)
            self._whole[name] = tuple(rows)
            each = [
                tuple(_limits(f"{scope}#{n + 1}", limits.per_key, None, is_by_limit))
                for n in range(len(upstream.credentials))
            ]
            if any(each):
                self._keys[name] = tuple(each)
        self._reserving = frozenset([limit.window(0).id for _, limit in self.every() if limit.reserved])
        self.is_any = bool(self._whole or budgets)
        """Whether there is any limit. A field, because every call reads it."""
        self.counts_tokens = any(limit.unit == "tokens" and not limit.is_calendar for _, limit in self.every())
        """Whether one of them is of tokens."""

    def __repr__(self) -> str:
        return f"<UpstreamLimitTable of {', '.join(self._whole) or 'none'}>"

    def binds(self, upstream: str) -> bool:
        """Whether this upstream has any limit."""
        return upstream in self._whole or upstream in self._budgeted

    def binds_keys(self, upstream: str) -> bool:
        """Whether each API key of this upstream has limits of its own."""
        return upstream in self._keys

    def binds_any(self, routes: Sequence[Route]) -> bool:
        """Whether one of these routes leads to an upstream with limits."""
        return any(self.binds(route.upstream) for route in routes)

    def claims(
        self, call: Call, route: Route, key: int | None = None, *, requests: int = 1, at_once: int = 1
    ) -> tuple[Claim, ...]:
        """The claims of a call on this route with this API key: `requests` requests, `at_once` of them in parallel."""
        budgets = self._spending(call, route.upstream) if route.upstream in self._budgeted else ()
        if not (limits := self._binding(route.upstream, route.model or call.params.model, key)):
            return budgets
        most = output_limit(call)
        is_by_use = call.expected_output is not None and route.upstream not in self._by_limit
        output = min(most, call.expected_output or most) if is_by_use else most
        tokens = call.params.prompt_tokens + output * call.params.candidates
        amounts = {"requests": requests, "tokens": tokens, "parallel": at_once}
        asker = asker_of(call)
        found = [self.window(limit, call.started, asker) for limit in limits]
        if self._reserving and call.priority != INTERACTIVE:
            found = [_without_reserved(window, limit) for window, limit in zip(found, limits, strict=True)]
        return tuple([Claim(window, min(amounts[window.unit], window.limit)) for window in found]) + budgets

    def _spending(self, call: Call, upstream: str) -> tuple[Claim, ...]:
        """The most that a call spends, on the quotas of the upstream; more than there is where that is not known, so
        that another route serves it. A read of a task spends nothing. Raises `ModelNotPriced` if no route may serve."""
        if call.passed is not None and call.passed.is_read:
            return ()
        prompt, output = call.params.prompt_tokens, output_limit(call) * call.params.candidates
        claims = []
        for limit in self.budgets(f"{UPSTREAM}{upstream}"):
            if limit.model is not None and not covers(limit.model, call):
                continue
            window = limit.window(call.started)
            most = most_nusd(call, prompt, output) if limit.unit == "usd" else prompt + output
            if most is None and call.model.unpriced == "deny":
                if all(self._needs_price(call, route.upstream) for route in call.model.routes):
                    raise not_priced(call)
                most = window.limit + 1
            claims.append(Claim(window, most or 0))
        return tuple(claims)

    def _needs_price(self, call: Call, upstream: str) -> bool:
        limits = [each for each in self.budgets(f"{UPSTREAM}{upstream}") if each.unit == "usd"]
        return any(each.model is None or covers(each.model, call) for each in limits)

    def named(self, call: Call, place: Place) -> dict[str, int]:
        """The amounts that a call draws at a place, by window name, for the waiting room. If the call may not use the
        reserved part of a window, the window has a second name, whose room is that of such calls alone; so it has if
        a limit is lowered for such calls alone. The pause that the upstream may ask for is like a window."""
        amounts = {claim.window.id: claim.amount for claim in place.claims}
        upstream, model, asker = place.route.upstream, place.route.model or call.params.model, asker_of(call)
        if self._assumed:
            for limit in self._binding(upstream, model, place.key):
                if any(each != ANYONE for each in self._states(limit, asker)):
                    name = limit.window(call.started).id
                    amounts[windows.own(name, "|".join(asker))] = amounts[name]
        amounts |= {_pause(upstream, model, place.key, each).id: 1 for each in (ANYONE, asker)}
        if not self._reserving or call.priority == INTERACTIVE:
            return amounts
        return amounts | {unreserved(name): amounts[name] for name in amounts.keys() & self._reserving}

    def _binding(self, upstream: str, model: str, key: int | None) -> list[Limit]:
        """The limits of a request for this model (its name there) with this API key."""
        limits = self._whole.get(upstream, ())
        if key is not None and (keys := self._keys.get(upstream)):
            limits += keys[key]
        return [limit for limit in limits if limit.model is None or fnmatchcase(model, limit.model)]

    def _states(self, limit: Limit, asker: Asker | None) -> dict[Asker, Assumed]:
        """The learned states of a limit for such calls: for all, and for those of a caller or service alone. None:
        for any calls."""
        name = _name(limit)
        if asker is None:
            return {of: each for (of_name, of), each in self._assumed.items() if of_name == name}
        caller, service = asker
        askers = {ANYONE, Asker(caller), Asker("", service), asker}
        return {each: self._assumed[name, each] for each in askers if (name, each) in self._assumed}

    def window(self, limit: Limit, started: float, asker: Asker | None = None) -> Window:
        """The window of a limit with the value that is assumed for such calls; None: the lowest of any."""
        window = limit.window(started)
        if self._assumed and (states := self._states(limit, asker)):
            now = self._clock()
            window = window._replace(limit=min([each.limit(limit.limit, now) for each in states.values()]))
        if self.adaptive and limit.unit == "parallel" and self._is_adaptive(limit):
            adapted = self._adapted.get(_name(limit), AdaptiveLimit())
            window = window._replace(limit=min(window.limit, int(adapted.limit)))
        return window

    def _is_adaptive(self, limit: Limit) -> bool:
        return limit.scope.removeprefix(UPSTREAM).partition("#")[0] in self.adaptive

    def first_token(self, claims: Iterable[Claim], under_way: Mapping[str, int], seconds: float) -> None:
        """Record the time to the first token of a stream with these claims; `under_way`: running calls by window at its
        begin."""
        every = {limit.window(0).id: limit for _, limit in self.every() if self._is_adaptive(limit)}
        for window, _ in claims:
            if window.unit == "parallel" and (limit := every.get(window.id)) is not None and window.id in under_way:
                before = self._adapted.get(_name(limit), AdaptiveLimit())
                self._adapted[_name(limit)] = before.after(seconds, under_way[window.id], limit.limit)

    def refused(
        self, upstream: str, model: str, key: int | None, asker: Asker = ANYONE, has_room: bool | None = None
    ) -> None:
        """Record an answer 429 to such a request for this model. It lowers the limits for its caller and service; for
        other callers if they are refused, too, or nothing remains."""
        now, shared = self._clock(), asker._replace(caller="")
        self._assumed = {name: each for name, each in self._assumed.items() if not each.is_plain(now)}
        for name in map(_name, self._binding(upstream, model, key)):
            self._assumed[name, asker] = self._assumed.get((name, asker), Assumed()).refused(now)
            if asker.caller and not has_room:
                of_all = self._assumed.get((name, shared), Assumed())
                is_empty = has_room is False and not asker.service
                self._assumed[name, shared] = of_all.refused(now) if is_empty else of_all.refused_to(asker.caller, now)

    def heard(
        self,
        upstream: str,
        model: str,
        key: int | None,
        header: Callable[[str], str | None],
        used: Mapping[str, int] = {},
        asker: Asker = ANYONE,
    ) -> None:
        """Record the headers of an answer to a request for this model; they describe limits of its API key. `used`:
        what calls had used of windows when the request was reserved, as far as that is known. Those of a service beside
        the ordinary one may be about limits of its own."""
        announced_limits, of = announced(header), asker._replace(caller="")
        for limit in self._binding(upstream, model, key) if announced_limits else ():
            is_of_key = "#" in limit.scope or upstream in self._sole_key
            if limit.unit in announced_limits and limit.period_us == MINUTE_US and is_of_key:
                before, now = self._assumed.get((_name(limit), of), Assumed()), self._clock()
                after = before.heard(announced_limits[limit.unit], limit.limit, used.get(limit.window(0).id), now)
                if after.is_plain(now):
                    self._assumed.pop((_name(limit), of), None)
                else:
                    self._assumed[_name(limit), of] = after

    def every(self) -> Iterator[tuple[str, Limit]]:
        """All limits, with the upstream of each."""
        for name, limits in self._whole.items():
            for limit in limits:
                yield name, limit
            for each in self._keys.get(name, ()):
                for limit in each:
                    yield name, limit
        for name in self._budgeted:
            for limit in self.budgets(f"{UPSTREAM}{name}"):
                yield name, limit


def further(held: Sequence[Claim], wanted: Sequence[Claim]) -> tuple[Claim, ...]:
    """The claims of another attempt that its call has not reserved yet; each attempt is another request. Of a day, week
    or month it claims what another model may use beyond the amount that is held."""
    amounts = Counter[str]()
    for window, amount in held:
        amounts[window.id] += amount
    return tuple([
        Claim(window, amount - amounts[window.id] if window.starts else amount) for window, amount in wanted
        if window.unit == "requests" or window.id not in amounts or (window.starts and amount > amounts[window.id])
    ])  # fmt: skip


def paused(upstream: str, model: str, key: int | None, wait_s: float, asker: Asker) -> Refused:
    """The refusal of a call whose upstream asked by a Retry-After for a pause of `wait_s` before such calls."""
    return Refused(WindowStatus(_pause(upstream, model, key, asker), 1, 0, round(wait_s * 1e6)), 1, round(wait_s * 1e6))


def with_end(refused: Refused) -> Refused:
    """The refusal with the time until its window starts anew, if that is spent: such a call may wait for it."""
    is_known = refused.retry_after_us is not None
    return refused if is_known else refused._replace(retry_after_us=refused.window_status.reset_us)


def is_spent(refused: Refused) -> bool:
    """Whether settled use alone fills the window of a day, week or month."""
    status = refused.window_status
    return bool(status.window.starts) and status.used + refused.asked > status.window.limit


def _pause(upstream: str, model: str, key: int | None, asker: Asker) -> Window:
    scope = f"{UPSTREAM}{upstream}" if key is None else f"{UPSTREAM}{upstream}#{key + 1}"
    name = f"{scope}|requests|{RETRY_AFTER}|{model}|"
    window = Window(name, scope, "requests", RETRY_AFTER, model, 1)
    return window if asker == ANYONE else window._replace(id=windows.own(f"{name}of", "|".join(asker)))


_Name = tuple[str, str, str, str | None]


def _name(limit: Limit) -> _Name:
    return limit.scope, limit.unit, limit.per, limit.model


def _limits(scope: str, limits: RateLimits, model: str | None, is_by_limit: bool) -> Iterator[Limit]:
    for text in limits.requests:
        yield _rate(scope, "requests", text, model)
    for text in limits.tokens:
        yield replace(_rate(scope, "tokens", text, model), is_by_limit=is_by_limit)
    if limits.parallel is not None:
        yield Limit(scope, "parallel", "", model, limits.parallel, reserved=limits.reserved)


def _without_reserved(window: Window, limit: Limit) -> Window:
    """The window for calls that may not take what is reserved: one place at least, however low the limit has fallen."""
    return window._replace(limit=max(1, window.limit - limit.reserved)) if limit.reserved else window


def _rate(scope: str, unit: str, text: str, model: str | None) -> Limit:
    amount, seconds = read_rate(text)
    per = _PERIOD_NAMES.get(seconds, str(seconds))
    return Limit(scope, "tokens" if unit == "tokens" else "requests", per, model, amount, seconds * 1_000_000)
