"""Background work of a worker by the current configuration: health checks of upstreams, the alert watcher.

A reload restarts only what it changes. An ending watcher releases the claims of alerts that it has not sent; the next
watcher finds them again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from gateway.accounting.changed_windows import ChangedWindows
from gateway.alerts import Outbox, Watcher, Webhook
from gateway.keys.cache import KeyCache
from gateway.pipeline import Services
from gateway.quota import window_status
from gateway.records import Key, Window
from gateway.tasks import Tasks
from gateway.upstream.health_check import run_health_checks
from gateway.upstream.pool import Pool

CLOSE_ALERTS_WITHIN_S = 3.0


class _Probing(NamedTuple):
    """A running probe. Pools are kept where their upstream's settings are the same, and so are probes."""

    pool: Pool
    task: asyncio.Task[None]


class _Alerts:
    """The alert watcher and its ways of delivery."""

    def __init__(self, parts: Services, changed_windows: ChangedWindows) -> None:
        config, key_cache = parts.config, parts.key_cache
        self.settings = config.alerts
        self._webhook = Webhook(config.alerts) if config.alerts.webhook is not None else None
        self._watcher = Watcher(
            parts.accounting.ledger,
            changed_windows,
            partial(_windows, key_cache),
            partial(_present, key_cache),
            key_cache.team_of,
            parts.accounting.telemetry,
            Outbox(self._webhook.post) if self._webhook else None,
            namespace=config.store.namespace,
            holder=uuid.uuid4().hex,
            clock=parts.clock.now,
        )
        self._tasks = Tasks()
        self._tasks.spawn(self._watcher.run(), "watch-quotas")

    async def close(self) -> None:
        await self._tasks.cancel_all()
        await self._watcher.close(CLOSE_ALERTS_WITHIN_S)
        if self._webhook is not None:
            await self._webhook.close()


def _windows(key_cache: KeyCache, now: float) -> Iterator[list[Window]]:
    """Every window at a Unix time: those of the gateway and of teams, then those of one key after another."""
    terms = key_cache.terms
    for owned in window_status.shared_windows(terms, now):
        yield [owned.window]
    for key in key_cache.known_keys():
        yield [owned.window for owned in window_status.own_windows(terms, [key], now)]


async def _present(key_cache: KeyCache, windows: Sequence[Window], now: float) -> list[Window]:
    """The windows with the limits that hold at a Unix time; unchanged if the window no longer has an owner then. Raises
    `StoreUnavailable`."""
    owners = [window.scope.partition(":") for window in windows]
    keys = {key.id: key for key in await key_cache.named(frozenset(name for kind, _, name in owners if kind == "key"))}
    found = []
    for window, (kind, _, name) in zip(windows, owners, strict=True):
        owner = keys.get(name) if kind == "key" else Key("", team=name or None)
        present = (term.window(now) for term in key_cache.terms.of(owner)) if owner is not None else ()
        found.append(next((each for each in present if each.id == window.id), window))
        await asyncio.sleep(0)
    return found


class Background:
    """Of one worker. To be closed. `changed_windows` hears of the windows that calls change."""

    def __init__(self, changed_windows: ChangedWindows) -> None:
        self._changed_windows = changed_windows
        self._wanted: Services | None = None
        self._probes: dict[str, _Probing] = {}
        self._alerts: _Alerts | None = None
        self._lock = asyncio.Lock()
        """Only one watcher at a time: the claims that the last one releases have to be free for the next."""
        self._tasks = Tasks()

    def follow(self, parts: Services) -> None:
        """Apply this configuration. Does not wait for tasks that have to end first."""
        self._wanted = parts
        self._probe(parts)
        self._tasks.spawn(self._watch(parts), "change-alerts")

    async def close(self) -> None:
        """End all of it."""
        self._wanted = None
        for probing in self._probes.values():
            probing.task.cancel()
        async with self._lock:
            await self._end_alerts()
        await self._tasks.cancel_all()

    def _probe(self, parts: Services) -> None:
        for name, (pool, task) in list(self._probes.items()):
            if parts.pools.get(name) is not pool:
                task.cancel()
                del self._probes[name]
        for name, upstream in parts.config.upstreams.items():
            if upstream.probe_s and name not in self._probes:
                pool = parts.pools[name]
                probing = run_health_checks(pool, parts.router.health[name], upstream.probe_s, upstream.timeouts.head_s)
                self._probes[name] = _Probing(pool, self._tasks.spawn(probing, f"probe {name}"))

    async def _watch(self, parts: Services) -> None:
        async with self._lock:
            if parts is not self._wanted:
                return  # a newer configuration waits for its turn, or it is all over
            if self._alerts is not None and self._alerts.settings == parts.config.alerts:
                return
            await self._end_alerts()
            self._alerts = _Alerts(parts, self._changed_windows)

    async def _end_alerts(self) -> None:
        ending, self._alerts = self._alerts, None
        if ending is not None:
            await ending.close()
