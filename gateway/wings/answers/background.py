"""Each worker notes the version and the configuration that it begins to use, for the charts of all gateways on the
store."""

from __future__ import annotations

import asyncio
import logging
import uuid

from gateway import __version__
from gateway.accounting.changed_windows import ChangedWindows
from gateway.keys.registry import Registry
from gateway.pipeline import Services
from gateway.store import StoreUnavailable
from gateway.tasks import Tasks
from gateway.web.background import WingWork

from .events import KEPT_S, PLACE, Note, digest_of, is_kept, notes_in, written

log = logging.getLogger("gateway")

READER_S = 1.0
"""A worker that only reads leaves an empty post for so long."""


class EventWork:
    """Makes the note of one worker."""

    def __init__(self, parts: Services, _: ChangedWindows, __: Registry) -> None:
        self._parts = parts
        self._tasks = Tasks()
        if parts.config.has_admin_api:
            self._tasks.spawn(self._note(), "note-event")

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _note(self) -> None:
        ledger, holder = self._parts.accounting.ledger, uuid.uuid4().hex
        config = await asyncio.to_thread(digest_of, self._parts.config)
        note = Note(self._parts.clock.now(), __version__, config)
        try:
            notes = notes_in((await ledger.exchange(PLACE, holder, "", READER_S)).values())
            if is_kept(note, notes):
                await ledger.exchange(PLACE, holder, written(note), KEPT_S)
        except StoreUnavailable as error:
            log.warning("charts will lack a deploy or reload: %s", error)


WORK = WingWork("answers", None, EventWork)
