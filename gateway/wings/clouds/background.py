"""The renewals of a worker: one task renews what authorizes requests to upstreams before it expires. Upstreams with the
same `auth` share one, so that twenty regions with one service account ask for one token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial

from gateway.accounting.changed_windows import ChangedWindows
from gateway.config.faults import few
from gateway.keys.registry import Registry
from gateway.observe.metrics import Telemetry
from gateway.pipeline import Services
from gateway.tasks import Tasks
from gateway.upstream.circuit_breaker import CircuitEvent
from gateway.upstream.health import Health
from gateway.web.background import WingWork

from .auth import Auth
from .metrics import RENEWALS
from .pool import CloudPool
from .renewal import Outcome, Renewal

MAX_NAMED = 3
"""Upstreams that a line of the log names."""

LOOK_EVERY_S = 5.0
"""A call may renew, too, so the times that are due are looked at again."""


class RenewalWork:
    """The task of one worker."""

    def __init__(self, parts: Services, _: ChangedWindows, __: Registry) -> None:
        self._tasks = Tasks()
        renewals: list[Renewal] = []
        for group in grouped({name: pool for name, pool in parts.pools.items() if isinstance(pool, CloudPool)}):
            renewal = chosen(group)
            for pool in group.values():
                if renewal is not pool.renewal and (left := pool.share(renewal)) is not None:
                    self._tasks.spawn(left.close(pool), f"close the renewal of {renewal.upstreams}")
            health = {name: parts.router.health[name] for name in group}
            renewal.upstreams = few(list(group), MAX_NAMED)
            renewal.note = partial(note, parts.accounting.telemetry, health)
            renewals.append(renewal)
        if renewals:
            self._tasks.keep(partial(keep_renewed, renewals), "renew-authorizations")

    async def close(self) -> None:
        await self._tasks.cancel_all()


async def keep_renewed(renewals: list[Renewal], look_every_s: float = LOOK_EVERY_S) -> None:
    """Renew each of them when it is due, until cancelled."""
    while True:
        due = [renewal.renew() for renewal in renewals if renewal.due_in_s <= 0]
        await asyncio.gather(*due)
        await asyncio.sleep(max(0.0, min(look_every_s, *[renewal.due_in_s for renewal in renewals])))


def grouped(pools: Mapping[str, CloudPool]) -> Iterator[dict[str, CloudPool]]:
    """The pools with a renewal, by their names, those together for which it obtains the same."""
    identities: list[tuple[Auth, str]] = []
    groups: list[dict[str, CloudPool]] = []
    for name, pool in pools.items():
        if pool.renewal is None:
            continue
        if pool.identity not in identities:
            identities.append(pool.identity)
            groups.append({})
        groups[identities.index(pool.identity)][name] = pool
    yield from groups


def chosen(group: Mapping[str, CloudPool]) -> Renewal:
    """The renewal for all of a group: one that has a grant, so that no request goes without, else one that asks."""
    renewals = [pool.renewal for pool in group.values() if pool.renewal is not None]
    return max(renewals, key=lambda renewal: (renewal.grant is not None, renewal.is_asking))


def note(telemetry: Telemetry, health: Mapping[str, Health], outcome: Outcome, is_valid: bool) -> None:
    """Count a renewal for each of its upstreams. One that nothing authorizes any more is as one that fails: its circuit
    opens."""
    for upstream, each in health.items():
        telemetry.count(RENEWALS, upstream, outcome)
        if not is_valid:
            each.health_checked(CircuitEvent.FAILURE, each.clock())
        elif outcome == "renewed" and not each.is_healthy:
            each.health_checked(CircuitEvent.PROBE_OK, each.clock())


WORK = WingWork("clouds", None, RenewalWork)
