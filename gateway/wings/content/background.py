"""The work of the wing in a worker: the stores of the present settings, and the audit log's entry for a change."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from gateway.accounting.changed_windows import ChangedWindows
from gateway.errors import GatewayError
from gateway.keys.documents import AuditEvent
from gateway.keys.registry import Registry
from gateway.pipeline import Services
from gateway.store import StoreUnavailable
from gateway.tasks import Tasks
from gateway.web.background import WingWork

from .keeper import ContentStores, Keeper
from .settings import ContentSettings

log = logging.getLogger("gateway")

AGAIN_AFTER_S = 60.0
ACTOR = "configuration"
"""The author in the audit log: who changed the file is not known."""
KIND, NAME = "content", "settings"
"""The document with the settings that the audit log has an entry of."""


class NotedSettings(Registry):
    """Notes changes of the settings in the audit log."""

    async def note(self, settings: ContentSettings) -> None:
        """Make an entry if they are others than at the last one. Raises `StoreUnavailable` and `GatewayError`."""
        (before,) = await self._store.read(KIND, [NAME])
        shown = shown_settings(settings)
        after = json.dumps(shown, sort_keys=True)
        if after == (before or "null"):
            return
        doing = AuditEvent(ACTOR, "update", json.loads(before or "null"), shown)
        await self._write(KIND, NAME, before, after, doing)


def shown_settings(settings: ContentSettings) -> dict[str, Any] | None:
    """The settings without secrets and addresses, and those that are not the defaults; None: nothing is kept."""
    if not settings.keep:
        return None
    shown = settings.model_dump(mode="json", exclude_defaults=True)
    if settings.otlp is not None:
        shown["otlp"] = settings.otlp.shown
    return shown


class ContentWork:
    """The stores of a worker, and the audit log's entry."""

    def __init__(self, parts: Services, _: ChangedWindows, registry: Registry) -> None:
        self._settings = parts.config.section(ContentSettings)
        self._keeper = parts.accounting.of_wing(Keeper)
        self._noted: NotedSettings = registry.viewed_as(NotedSettings)
        telemetry = parts.accounting.telemetry
        self._stores = ContentStores(self._settings, self._keeper, telemetry) if self._settings.keep else None
        self._keeper.stores = self._stores
        self._tasks = Tasks()
        self._tasks.keep(self._note, "note-content-settings")

    async def close(self) -> None:
        await self._tasks.cancel_all()
        if self._stores is not None:
            await self._stores.close()

    async def _note(self) -> None:
        while True:
            try:
                return await self._noted.note(self._settings)
            except (StoreUnavailable, GatewayError) as error:
                log.warning("the settings of content cannot be noted in the audit log: %s", error)
            await asyncio.sleep(AGAIN_AFTER_S)


WORK = WingWork("content", ContentSettings, ContentWork)
