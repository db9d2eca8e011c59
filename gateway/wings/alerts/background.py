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

from .outbox import Outbox
from .settings import AlertSettings
from .watcher import Watcher
from .webhook import Webhook

CLOSE_WITHIN_S = 3.0


class AlertWork:
    """The alert watcher and its ways of delivery."""

    def __init__(self, parts: Services, changed_windows: ChangedWindows, _: Registry) -> None:
        config, key_cache = parts.config, parts.key_cache
        settings = config.section(AlertSettings)
        self._webhook = Webhook(settings) if settings.webhook is not None else None
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
        await self._watcher.close(CLOSE_WITHIN_S)
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
        is_gone = kind == "key" and name not in keys
        present = (
            () if is_gone else [term.window(now) for term in key_cache.terms.of_scope(window.scope, keys.get(name))]
        )
        found.append(next((each for each in present if each.id == window.id), window))
        await asyncio.sleep(0)
    return found


WORK = WingWork("alerts", AlertSettings, AlertWork)
