"""Limits of upstreams: which windows an attempt draws on, beside those of its caller.

They are windows like all others (quota/windows.py), so that a call reserves on its key's windows and on its route's in
one reservation, and all workers and gateways on one store count together. Scopes: `upstream:NAME` for the whole
upstream and for its models, `upstream:NAME#2` for its second API key.

A call that needs more than the whole of a limit reserves the whole: it is served alone, and never if it waited for
more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from gateway.config import RateLimits, Route, Upstream
from gateway.config.quantities import read_rate
from gateway.quota.windows import Limit, output_limit
from gateway.records import UPSTREAM, Call, Claim

_SPELLING: Mapping[int, str] = {1: "second", 60: "minute", 3600: "hour"}


class Place(NamedTuple):
    """Where an attempt may go, and what it draws on there."""

    route: Route
    key: int | None
    """Position of the API key; None: any."""
    claims: tuple[Claim, ...]


class UpstreamLimitTable:
    """The limits of all upstreams. Private to a worker; what is used of them is in the store."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        self._whole: dict[str, tuple[Limit, ...]] = {}
        self._keys: dict[str, tuple[tuple[Limit, ...], ...]] = {}
        for name, upstream in upstreams.items():
            limits = upstream.limits
            if not limits.is_any:
                continue
            scope = f"{UPSTREAM}{name}"
            rows = [*_limits(scope, limits, None)]
            for pattern, some in limits.per_model.items():
                rows += _limits(scope, some, pattern)
            self._whole[name] = tuple(rows)
            each = [tuple(_limits(f"{scope}#{n + 1}", limits.per_key, None)) for n in range(len(upstream.credentials))]
            if any(each):
                self._keys[name] = tuple(each)
        self.is_any = bool(self._whole)
        """Whether there is any limit. A field, because every call reads it."""

    def __repr__(self) -> str:
        return f"<UpstreamLimitTable of {', '.join(self._whole) or 'none'}>"

    def binds(self, upstream: str) -> bool:
        """Whether this upstream has any limit."""
        return upstream in self._whole

    def binds_keys(self, upstream: str) -> bool:
        """Whether each API key of this upstream has limits of its own."""
        return upstream in self._keys

    def binds_any(self, routes: Sequence[Route]) -> bool:
        """Whether one of these routes leads to an upstream with limits."""
        return any(route.upstream in self._whole for route in routes)

    def claims(
        self, call: Call, route: Route, key: int | None = None, *, requests: int = 1, at_once: int = 1
    ) -> tuple[Claim, ...]:
        """What the call draws on by this route, with this API key. It takes so many `requests`, so many `at_once`."""
        limits = self._whole.get(route.upstream, ())
        if key is not None and (keys := self._keys.get(route.upstream)):
            limits += keys[key]
        if not limits:
            return ()
        model = route.model or call.params.model
        tokens = call.params.prompt_tokens + output_limit(call) * call.params.candidates
        amounts = {"requests": requests, "tokens": tokens, "parallel": at_once}
        return tuple([
            Claim(limit.window(call.started), min(amounts[limit.unit], limit.limit))
            for limit in limits
            if limit.model is None or fnmatchcase(model, limit.model)
        ])  # fmt: skip

    def every(self) -> Iterator[tuple[str, Limit]]:
        """All limits, with the upstream of each."""
        for name, limits in self._whole.items():
            for limit in limits:
                yield name, limit
            for each in self._keys.get(name, ()):
                for limit in each:
                    yield name, limit


def further(held: Sequence[Claim], wanted: Sequence[Claim]) -> tuple[Claim, ...]:
    """Of what another attempt draws on, that which its call does not hold yet; each attempt is another request."""
    names = {claim.window.id for claim in held}
    return tuple([claim for claim in wanted if claim.window.unit == "requests" or claim.window.id not in names])


def _limits(scope: str, limits: RateLimits, model: str | None) -> Iterator[Limit]:
    for text in limits.requests:
        yield _rate(scope, "requests", text, model)
    for text in limits.tokens:
        yield _rate(scope, "tokens", text, model)
    if limits.parallel is not None:
        yield Limit(scope, "parallel", "", model, limits.parallel)


def _rate(scope: str, unit: str, text: str, model: str | None) -> Limit:
    amount, seconds = read_rate(text)
    per = _SPELLING.get(seconds, str(seconds))
    return Limit(scope, "tokens" if unit == "tokens" else "requests", per, model, amount, seconds * 1_000_000)
