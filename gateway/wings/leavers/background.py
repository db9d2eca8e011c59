"""The watcher of sign-ins: once an hour, one worker of all gateways on the store looks who has not been seen."""

from __future__ import annotations

import asyncio
import logging
import uuid

from gateway.accounting.changed_windows import ChangedWindows
from gateway.config import Config
from gateway.errors import GatewayError
from gateway.keys.registry import Registry
from gateway.observe.metrics import Telemetry
from gateway.pipeline import Services
from gateway.store import StoreUnavailable
from gateway.tasks import Tasks
from gateway.web.background import WingWork

from .access import Access
from .metrics import LEAVERS
from .settings import DAY_S, LeaverSettings

log = logging.getLogger("gateway")

LOOK_EVERY_S = 3600.0
ASK_EVERY_S = 60.0
CLAIM = "leavers"


class LeaverWork:
    """The watcher of one worker."""

    def __init__(self, parts: Services, _: ChangedWindows, registry: Registry) -> None:
        self._parts = parts
        self._registry = registry
        self._tasks = Tasks()
        self._tasks.keep(self._fold, "fold-names-of-people")
        if parts.config.section(LeaverSettings).inactive_after is not None:
            self._tasks.keep(self._run, "watch-sign-ins")

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _fold(self) -> None:
        access: Access = self._registry.viewed_as(Access)
        while True:
            try:
                return await access.fold_names()
            except (StoreUnavailable, GatewayError, ValueError) as error:
                log.warning("names of people in documents of older gateways cannot be looked for: %s", error)
            await asyncio.sleep(ASK_EVERY_S)

    async def _run(self) -> None:
        while True:
            try:
                claimed = await self._parts.accounting.ledger.claim(uuid.uuid4().hex, {CLAIM: LOOK_EVERY_S})
                if claimed[CLAIM] == 0:
                    await look(self._registry, self._parts.config, self._parts.accounting.telemetry)
            except (StoreUnavailable, GatewayError) as error:
                log.warning("people who have not signed in cannot be looked for: %s", error)
            await asyncio.sleep(ASK_EVERY_S)


async def look(registry: Registry, config: Config, telemetry: Telemetry) -> None:
    """Look once for people who have not signed in for long, and log and count what was due. Raises `StoreUnavailable`
    and `Conflict`."""
    settings = config.section(LeaverSettings)
    access: Access = registry.viewed_as(Access)
    for name, what in await access.look(settings):
        if what == "warn":
            days = settings.warn_before / DAY_S
            log.warning("%s has not signed in for long: her keys and tokens end in %.3g days", name, days)
            telemetry.count(LEAVERS, "warned")
        elif what == "end":
            log.warning("the access of %s has ended: she has not signed in for too long", name)
            telemetry.count(LEAVERS, "ended")


WORK = WingWork("leavers", LeaverSettings, LeaverWork)
