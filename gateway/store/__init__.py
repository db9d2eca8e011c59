"""What outlives a request: quotas, leases, usage. The promises, and the door to whoever keeps them.

Call id = lease id = record id. A lease is drawn before the first upstream byte and settled once, at the end; settling
applies the refund or charge, the usage record and the daily sums together, so that quotas and reports cannot disagree.

Two promises. `Ledger` is what a call sees: one instance per worker (`gateway/ledger`). `Store` is what the ledger
stands on: it applies batches, all of one or nothing, and forgets no batch that it has applied without saying so.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.config import StoreSettings as Settings
from gateway.records import Draw, Granted, Refused, Settlement, Window, WindowStatus

from .key_store import ChangeFeed, DocumentKind, KeyStore, SecretTaken, StoreChange, StoredAudit

__all__ = [
    "MAX_GAP_S",
    "REAPED_AT_ONCE",
    "SIGN_OF_LIFE_S",
    "SILENT_S",
    "TOLD_GROUPS",
    "USAGE_AT_ONCE",
    "USAGE_COLUMNS",
    "USAGE_GROUPS",
    "Applied",
    "Batch",
    "ChangeFeed",
    "DocumentKind",
    "Item",
    "JournalFull",
    "KeyStore",
    "Ledger",
    "Progress",
    "ReportReader",
    "Reserve",
    "SecretTaken",
    "Settle",
    "Store",
    "StoreChange",
    "StoreLostWrites",
    "StoreMisconfigured",
    "StoreUnavailable",
    "StoredAudit",
    "Void",
    "check_groups",
    "look_at",
    "open_store",
]  # fmt: skip


class StoreUnavailable(Exception):
    """The store did not answer in time, or refused to. Whether it has applied what it was sent is not known."""

    code = "store_unavailable"


class JournalFull(StoreUnavailable):
    """The journal cannot be written, so nothing may be begun."""

    code = "journal_full"


class StoreLostWrites(Exception):
    """The store has forgotten batches that it had applied: another server, or one that came back without its data.

    Nothing of the batch was applied.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(f"the store knows {progress}")
        self.progress = progress


class StoreMisconfigured(Exception):
    """The store cannot be used as it is, and a person has to mend it: a wrong password, a newer gateway's data."""


# ------------------------------------------------------------------------------------------------- what a store takes


class Reserve(NamedTuple):
    """A draw on its way to the store."""

    draw: Draw
    text: str
    """Its entry (quota/ledger_entry): what stands if nobody ever settles."""
    is_forced: bool = False
    """Drawn whether there is room or not: it was granted before, by a server that has forgotten it, or by the worker
    itself while there was none."""


class Settle(NamedTuple):
    """A settlement on its way to the store."""

    number: int
    settlement: Settlement
    text: str
    """Its entry (quota/ledger_entry)."""


class Void(NamedTuple):
    """The end of a lease that was perhaps drawn, for a call that never was: all is given back, and no record stands."""

    number: int
    lease: str


Item = Reserve | Settle | Void


class Batch(NamedTuple):
    """What one worker sends at once; applied in this order, all of it or nothing."""

    worker: str
    """The worker's incarnation, which is the name of its journal."""
    seq: int
    """Of the worker's batches: higher than of any before."""
    acked: int
    """The last batch that the worker knows to be applied; a store that does not know it either is behind."""
    items: Sequence[Item] = ()


class Progress(NamedTuple):
    """How far a worker has come, as the store knows it; zeros for a worker that it does not know."""

    seq: int = 0
    """Its last batch that was applied."""
    mark: int = 0
    """Its last journal entry that was applied. Entries come in order; one at or below the mark is skipped."""


class Applied(NamedTuple):
    """What became of a batch."""

    verdicts: Sequence[Granted | Refused | None]
    """One for each item; None for what is no draw."""
    lost: int = 0
    """Leases of silent workers that were closed on this occasion."""


class ReportReader(Protocol):
    """What can be read of the books."""

    async def standings(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        """How these windows stand at the Unix time `now` (seconds). Raises `StoreUnavailable`."""

    async def usage(
        self,
        group_by: Sequence[str],
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        after: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Daily sums, grouped by some of `USAGE_GROUPS`, in the order of their groups; days as 2026-11-20, both
        included. `after`: only the rows behind these groups. Raises `StoreUnavailable`.
        """

    def usage_portions(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """The rows of `usage`, at most `USAGE_AT_ONCE` in memory at a time. Raises `StoreUnavailable`."""

    async def calls(self, limit: int, key: str | None = None, before: str | None = None) -> list[Mapping[str, Any]]:
        """The newest usage records, newest first; `before`: those older than the record with this `position`. Raises
        `StoreUnavailable`, and `ValueError` for what is no position."""


class Store(ReportReader, KeyStore, Protocol):
    """Who keeps the books, and the keys. Used from one event loop, one batch at a time; shared with any number of other
    workers.

    Guarantees, for every batch:

    - An `Reserve` takes all of its windows or none; what is admitted never exceeds a window's limit. One whose lease
      is open already is granted again and draws nothing; a forced one whose lease was closed as lost draws nothing.
    - A `Settle` replaces the draw by the truth: windows, record and daily sums together. Of a lease that was closed
      as lost it corrects all three by the difference. Of a lease that is not known (the server has forgotten it, or
      never heard of it) it charges the truth. What it gives back of a rate is bounded by what has not leaked away.
    - A `Void` gives everything back; of a lease that was closed as lost it takes back charge, record and sums.
    - A batch whose `seq` is not higher than the last one applied does nothing at all, and raises `StoreUnavailable`:
    it is a
      late copy of a batch that was given up. Entries at or below the mark are skipped.
    - A batch whose `acked` the store does not know raises `StoreLostWrites`, and does nothing.

    Each batch is also a heartbeat of its worker. The leases of a worker that sent none for `SILENT_S` are closed as
    lost by the batch of any other worker, at most `REAPED_AT_ONCE` each time: charged at their estimates, their records
    written. Of a gap in which no batch of any worker was applied, at most `MAX_GAP_S` count as silence, and of a clock
    that was set back, nothing: the store was unavailable then, or the machine suspended, and no worker could be heard.
    """

    @property
    def may_forget(self) -> bool:
        """Whether what was applied can be lost by a failover or a restart, so that it has to be kept for a while."""

    async def apply(self, batch: Batch) -> Applied:
        """Apply a batch. Raises `StoreUnavailable` (it may have been applied or not) or `StoreLostWrites`."""

    async def progress(self, worker: str) -> Progress:
        """How far this worker has come. Raises `StoreUnavailable`."""

    async def void_leases(self, worker: str) -> None:
        """Void the leases of a worker whose journal was delivered to its end: it knew nothing of them, so they came to
        nothing. Raises `StoreUnavailable`."""

    async def retire(self, worker: str) -> None:
        """The same, and forget the worker: its journal is gone, or it would be applied all over again. Raises
        `StoreUnavailable`."""

    async def claim(self, holder: str, names: Mapping[str, float]) -> dict[str, float]:
        """Take hold of names, each for so many seconds from now, so that of all workers one does what a name stands
        for. Returns for how many seconds each is still held by somebody else; 0: it is `holder`'s now.

        Who holds a name may ask again, for longer or shorter; for 0 seconds, to let it go. What a server forgets is
        free again. Raises `StoreUnavailable`: then the names may have been taken or not.
        """

    async def told_models(self, since: str, until: str) -> list[dict[str, Any]]:
        """Of the calls whose records are still kept: rows as those of `usage`, by `TOLD_GROUPS`. Raises
        `StoreUnavailable`.
        """

    async def ping(self) -> None:
        """Whether a batch would be applied now. Raises `StoreUnavailable`."""

    async def close(self) -> None:
        """Let go."""


SILENT_S = 20
"""Seconds without a batch after which a worker counts as dead."""

SIGN_OF_LIFE_S = 5
"""How often an idle worker sends an empty batch, its heartbeat."""

MAX_GAP_S = 6
"""The longest gap between two batches of any workers that counts as silence: a heartbeat, and a second for delays. A
living worker whose last heartbeat came just before an outage then has 9 s left to reconnect."""

REAPED_AT_ONCE = 20
"""Keeps a batch short, however many calls a dead worker has left behind."""


# ------------------------------------------------------------------------------------------------- what a call sees


class Ledger(ReportReader, Protocol):
    """Who may spend what, and what was spent. One instance per worker.

    Guarantees: a draw takes all of its windows or none; what is admitted never exceeds a window's limit, however many
    draw at once; a settlement counts once, whatever is repeated; a lease whose worker died is charged at its estimate
    and recorded as lost.
    """

    @property
    def pending(self) -> int:
        """Settlements that have not reached the store yet."""

    @property
    def errors(self) -> int:
        """Requests to the store that failed, since the start of this worker."""

    def draw(self, draw: Draw) -> Future[Granted | Refused]:
        """Draw on every window of a call, or on none. The future raises `StoreUnavailable`.

        Cancelling the future takes the draw back: what was or will be granted is settled, and only the request counts.
        """

    def settle(self, settlement: Settlement) -> Future[None]:
        """Replace a draw by the truth. Handed over at once.

        The future is done when the store has it, or, where the store takes its time, when the journal has it: who sees
        the end of an answer sees its usage, if the store is well; and a sick store never holds an answer. Cancelling
        the future does not take the settlement back.
        """

    async def claim(self, holder: str, names: Mapping[str, float]) -> dict[str, float]:
        """Take hold of names, as `Store.claim`. Raises `StoreUnavailable`."""

    async def ping(self) -> None:
        """Whether draws would be answered now. Raises `StoreUnavailable`."""

    async def close(self, timeout_s: float) -> int:
        """Deliver what is pending, for at most this long, and let go. Returns how many settlements were left; they
        stay in the journal."""


USAGE_AT_ONCE = 5000
"""Rows of a usage report that are in memory at a time: each takes about a kilobyte."""

USAGE_GROUPS = ("key", "team", "model", "upstream", "endpoint", "day", "month")
"""What a usage report may be grouped by."""

USAGE_COLUMNS = (
    "requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens",
    "estimated_tokens", "estimated_percent", "total_tokens", "cost_usd", "unpriced",
)  # fmt: skip
"""What each row of a usage report holds beside its groups. `estimated_percent`: of `total_tokens`. `unpriced`: requests
whose cost nobody knows, and which `cost_usd` leaves out."""

TOLD_GROUPS = ("day", "model", "upstream", "told")
"""`told` is what the upstream's answer called the model, else what was asked of it."""


def check_groups(groups: Iterable[str]) -> list[str]:
    """The names that no report can be grouped by."""
    return [group for group in groups if group not in USAGE_GROUPS]


async def open_store(settings: Settings) -> Store:
    """Open the store that the settings name. Raises `StoreMisconfigured` where a person has to mend something.

    A Redis that does not answer is no such thing: it is opened all the same, and away. An embedded one that cannot be
    opened is refused.
    """
    # A store brings its own libraries; only the one in use is loaded.
    if settings.is_embedded:
        from .sqlite.store import SqliteStore

        return SqliteStore(settings)
    from .redis.store import RedisStore

    return await RedisStore.open(settings)


async def look_at(settings: Settings) -> list[str]:
    """What an operator should know of the store before anybody depends on it: one warning each.

    Raises `StoreMisconfigured` where a person has to mend something.
    """
    if settings.is_embedded:
        from .sqlite.database import check_place

        check_place(settings)
        return []
    from .redis.store import warnings

    return await warnings(settings)
