"""The embedded store of a lone worker, which applies batches in memory first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.config import StoreSettings
from gateway.records import Window, WindowStatus
from gateway.store import Applied, Batch
from gateway.store.sqlite.database import NO_PATIENCE
from gateway.store.sqlite.store import SqliteStore

from .changes import Clock


class StoreBehind(SqliteStore):
    """Every batch is tried in memory, as long as the test has no other store open: its worker is not alone then."""

    def __init__(self, settings: StoreSettings, clock: Clock, opened: Sequence[StoreBehind] = ()) -> None:
        super().__init__(settings, clock, is_alone=True)
        self._opened = opened
        self.in_memory = 0
        """Batches that were applied there."""

    async def apply(self, batch: Batch, sent: Callable[[], None] | None = None) -> Applied:
        if self._write_others():
            return await super().apply(batch)
        applied = self.apply_now(batch)
        return await super().apply(batch) if applied is None else applied

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        self._write_others()
        return await super().window_statuses(windows, now)

    def _write_others(self) -> bool:
        """Writes what other open stores have in memory; returns whether there are any."""
        others = [each for each in self._opened if each is not self and not each._is_closed]
        for other in others:
            other._ledger._keep_nothing(NO_PATIENCE)
        self._is_alone = not others
        return bool(others)

    def _in_memory(self, batch: Batch) -> Applied | None:
        applied = super()._in_memory(batch)
        self.in_memory += applied is not None
        return applied
