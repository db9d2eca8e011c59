"""A store that does what a test says, and a bookkeeper with a real journal in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.accounting import LedgerClient
from gateway.accounting.changed_windows import ChangedWindows
from gateway.accounting.ledger_client import NO_METRICS
from gateway.accounting.recovery import RecoveredCalls
from gateway.config import StoreSettings as Settings
from gateway.journal import Journal
from gateway.records import Granted, Refused, Window, WindowStatus
from gateway.store import (
    Applied,
    Batch,
    Item,
    Progress,
    RateDraw,
    Reserve,
    Settle,
    StoreLostWrites,
    StoreUnavailable,
    Void,
)

ORIGIN = "a store of the tests"


class FakeStore:
    """Keeps what it was sent. Away, slow, forgetful or poisoned on request; every lease is granted."""

    may_forget = False

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        """Every batch that came, whatever became of it."""
        self.open: dict[str, str] = {}
        self.applied: list[str] = []
        """The leases of closings that were applied, in order."""
        self.voided: list[str] = []
        self.known: dict[str, Progress] = {}
        self.retired: list[str] = []
        self.voided_of: list[str] = []
        self.poison: set[str] = set()
        self.is_away = False
        self.is_quick = False
        """Applies a batch within the turn of the event loop in which it is asked to."""
        self.is_server = False
        """Says when a batch is on its way."""
        self.loses_replies = False
        """Applies a batch, and does not say so."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.is_closed = False

    def forget(self, worker: str, progress: Progress) -> None:
        """As a server would that has an older state."""
        self.known[worker] = progress

    def apply_now(self, batch: Batch) -> Applied | None:
        if not self.is_quick:
            return None
        self.batches.append(batch)
        return self._apply(batch)

    async def apply(self, batch: Batch, sent: Callable[[], None] | None = None) -> Applied:
        self.batches.append(batch)
        self.called.set()
        if self.is_server and sent is not None:
            sent()
        await self.gate.wait()
        return self._apply(batch)

    def _apply(self, batch: Batch) -> Applied:
        if self.is_away:
            raise StoreUnavailable("away on request")
        known = self.known.get(batch.worker, Progress())
        if known.seq < batch.acked:
            raise StoreLostWrites(known)
        assert batch.seq > known.seq, "a late copy"
        if self.poison & {lease_of(item) for item in batch.items if not isinstance(item, Void | RateDraw)}:
            raise OverflowError("poisoned")
        verdicts = [self._take(item, known.mark) for item in batch.items]
        numbers = [item.number for item in batch.items if not isinstance(item, Reserve | RateDraw)]
        assert numbers == sorted(numbers), "ends come in the order of their numbers"
        self.known[batch.worker] = Progress(batch.seq, max([known.mark, *numbers]))
        if self.loses_replies:
            raise StoreUnavailable("the reply is lost")
        return Applied(verdicts)

    def _take(self, item: Item, mark: int) -> Granted | Refused | None:
        if isinstance(item, RateDraw):
            return Granted()
        lease = lease_of(item)
        match item:
            case Reserve():
                self.open[lease] = item.text
                return Granted()
            case Settle(number) if number > mark:
                self.open.pop(lease, None)
                self.applied.append(lease)
            case Void(number) if number > mark:
                self.open.pop(lease, None)
                self.voided.append(lease)
        return None

    async def progress(self, worker: str) -> Progress:
        if self.is_away:
            raise StoreUnavailable("away on request")
        return self.known.get(worker, Progress())

    async def void_leases(self, worker: str) -> None:
        if self.is_away:
            raise StoreUnavailable("away on request")
        self.voided_of.append(worker)

    async def retire(self, worker: str) -> None:
        if self.is_away:
            raise StoreUnavailable("away on request")
        self.retired.append(worker)
        self.known.pop(worker, None)

    async def ping(self) -> None:
        if self.is_away:
            raise StoreUnavailable("away on request")

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        raise NotImplementedError

    async def usage(
        self,
        group_by: Sequence[str],
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        after: Sequence[str] | None = None,
        only: Any = None,
        where: Any = (),
    ) -> list[dict[str, Any]]:
        raise NotImplementedError

    def usage_portions(self, *_: Any) -> Any:
        raise NotImplementedError

    async def calls(
        self, limit: int, key: str | None = None, before: str | None = None, only: Any = None, wanted: Any = None
    ) -> list[Mapping[str, Any]]:
        raise StoreUnavailable("away on request")

    async def close(self) -> None:
        self.is_closed = True


def lease_of(item: Item) -> str:
    match item:
        case Reserve(record):
            return record.id
        case Settle(_, record):
            return record.id
        case Void(_, lease):
            return lease


def leases(batch: Batch) -> list[str]:
    return [lease_of(item) for item in batch.items]


OpensClients = Callable[..., LedgerClient]


def settings(folder: Path, **changes: Any) -> Settings:
    return Settings(url=f"embedded:{folder}/data", journal_dir=f"{folder}/journal", **changes)


def open_client(
    store: Any,
    folder: Path,
    *,
    adopts: bool = False,
    metrics: RecoveredCalls = NO_METRICS,
    is_alone: bool = False,
    **changes: Any,
) -> LedgerClient:
    """A bookkeeper with a journal of its own in this folder."""
    made = settings(folder, **changes)
    place = Path(made.journal_dir)
    adopt = (lambda: Journal.adopt(place, ORIGIN)) if adopts else (lambda: None)
    journal = Journal.create(place, ORIGIN)
    return LedgerClient(
        store, journal, made, adopt, changed_windows=ChangedWindows(), is_alone=is_alone, metrics=metrics,
        acknowledged_within_s=0.05,
    )  # fmt: skip
