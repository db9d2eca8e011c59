"""The alert watcher of a worker.

An ending watcher releases the claims of alerts that it has not sent; the next watcher finds them again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from functools import partial

from gateway.accounting.changed_windows import ChangedWindows
from gateway.keys.cache import KeyCache
from gateway.keys.registry import Registry
from gateway.pipeline import Services
from gateway.quota import window_status
from gateway.records import Window
from gateway.tasks import Tasks
from gateway.web.background import WingWork

from .channels import channels_of, senders_of
from .incident_watcher import IncidentWatcher
from .settings import INCIDENTS, AlertSettings
from .watcher import Watcher

CLOSE_WITHIN_S = 3.0


class AlertWork:
    """The watchers of quotas and of incidents, and their ways of delivery."""

    def __init__(self, parts: Services, changed_windows: ChangedWindows, _: Registry) -> None:
        config, key_cache = parts.config, parts.key_cache
        settings = config.section(AlertSettings)
        self._senders = senders_of(settings)
        holder = uuid.uuid4().hex
        self._watcher = Watcher(
            parts.accounting.ledger, changed_windows, partial(_windows, key_cache), partial(_present, key_cache),
            partial(_owners, key_cache), parts.accounting.telemetry, channels_of(settings, self._senders),
            levels=settings.levels, log_levels=settings.at, namespace=config.store.namespace, holder=holder,
            clock=parts.clock.now,
        )  # fmt: skip
        channels = channels_of(settings, self._senders)
        reporting = {way: each for way, each in channels.items() if {*INCIDENTS} & {*each.receiver.wanted}}
        self._incidents = IncidentWatcher(
            parts.accounting.ledger, config, lambda: [health.report(0) for health in parts.router.health.values()],
            parts.accounting.telemetry, reporting, holder=holder, clock=parts.clock.now,
        )  # fmt: skip
        self._tasks = Tasks()
        self._tasks.keep(self._watcher.run, "watch-quotas")
        if reporting:
            self._tasks.keep(self._incidents.run, "watch-incidents")

    async def close(self) -> None:
        await self._tasks.cancel_all()
        await asyncio.gather(self._watcher.close(CLOSE_WITHIN_S), self._incidents.close(CLOSE_WITHIN_S))
        for sender in self._senders.values():
            await sender.close()


def _owners(key_cache: KeyCache) -> dict[str, tuple[str | None, str | None]]:
    """The team and the owner of each key that is known."""
    return {key.id: (key.team, key.owner) for key in key_cache.known_keys()}


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
        is_gone = kind == "key" and name not in keys
        present = (
            () if is_gone else [term.window(now) for term in key_cache.terms.of_scope(window.scope, keys.get(name))]
        )
        found.append(next((each for each in present if each.id == window.id), window))
        await asyncio.sleep(0)
    return found


WORK = WingWork("alerts", AlertSettings, AlertWork)
