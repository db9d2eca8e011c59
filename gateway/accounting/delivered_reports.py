"""Reports of a worker: read from the store when it has what has ended in this worker so far."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from gateway.store import CallFilter, Ledger, Measures, ReportReader, ReportScope, StoreUnavailable, Where

T = TypeVar("T")


class DeliveredReports:
    """A `ReportReader`. Failed reads count as errors of the ledger."""

    def __init__(self, store: ReportReader, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def usage(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None, limit: int | None = None,
        after: Sequence[str] | None = None, only: ReportScope | None = None, where: Where = (),
    ) -> list[dict[str, Any]]:  # fmt: skip
        await self._ledger.deliver()
        return await self._read(self._store.usage(group_by, since, until, limit, after, only, where))

    async def usage_portions(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None,
        only: ReportScope | None = None, where: Where = (),
    ) -> AsyncIterator[list[dict[str, Any]]]:  # fmt: skip
        await self._ledger.deliver()
        try:
            async for rows in self._store.usage_portions(group_by, since, until, only, where):
                yield rows
        except StoreUnavailable:
            self._ledger.note_error()
            raise

    async def measures(self, group_by: Sequence[str], since: str | None = None, until: str | None = None) -> Measures:
        await self._ledger.deliver()
        return await self._read(self._store.measures(group_by, since, until))

    async def calls(
        self, limit: int, key: str | None = None, before: str | None = None, only: ReportScope | None = None,
        wanted: CallFilter | None = None,
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        await self._ledger.deliver()
        return await self._read(self._store.calls(limit, key, before, only, wanted))

    async def usage_by_returned_model(self, since: str, until: str) -> list[dict[str, Any]]:
        await self._ledger.deliver()
        return await self._read(self._store.usage_by_returned_model(since, until))

    async def _read(self, reading: Awaitable[T]) -> T:
        try:
            return await reading
        except StoreUnavailable:
            self._ledger.note_error()
            raise
