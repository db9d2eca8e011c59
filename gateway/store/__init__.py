"""State that outlives a request: quotas, leases, usage. The protocols, and the function that opens a store.

Call id = lease id = record id. A call is reserved before the first upstream byte and settled once, at the end; a
settlement applies the refund or charge, the usage record and the daily sums together, so that quotas and reports agree.

Two protocols. `Ledger` is the side of a call: one instance per worker (`accounting/ledger_client.py`). `Store` is below
the ledger: it applies each batch wholly or not at all, and reports the loss of an applied batch.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.quota import ledger_entry
from gateway.records import Claim, Granted, KeyInTeam, Record, Refused, Usage, Window, WindowStatus

from .bonds import BondStore
from .call_filter import CallFilter
from .clock import Clock
from .key_store import ChangeFeed, DocumentKind, KeyStore, SecretTaken, StoreChange, StoredAudit
from .refusals import RefusalEntry, RefusalQuery, RequestStore, StoredRefusal


class StoreUnavailable(Exception):
    """The store did not answer in time, or refused to. Whether it has applied what it was sent is not known."""

    code = "store_unavailable"


class JournalFull(StoreUnavailable):
    """The journal cannot be written, so nothing may be begun."""

    code = "journal_full"


class StoreLostWrites(Exception):
    """The store has lost batches that it had applied: another server, or one that came back without its data.

    Nothing of the batch was applied.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(f"the store knows {progress}")
        self.progress = progress


class StoreMisconfigured(Exception):
    """The store cannot be used as it is, and a person has to mend it: a wrong password, a newer gateway's data."""


# ------------------------------------------------------------------------------------------------- what a store takes


class Reserve(NamedTuple):
    """A reservation to be made on every window of a call, from its caller to the store."""

    record: Record
    """It is written if the call never settles: lost, at its estimate."""
    claims: tuple[Claim, ...]
    text: str
    """Its entry (`quota/ledger_entry.py`): the settlement if the call is lost."""
    is_forced: bool = False
    """Reserved even beyond the limit: it was granted before, by a server that has lost it, or by the worker itself
    during an outage."""
    held: int = 0
    """An extension of an open lease: the number of claims, the first ones, that it holds already."""

    @classmethod
    def of(cls, record: Record, claims: tuple[Claim, ...], *, is_forced: bool = False, held: int = 0) -> Reserve:
        """Makes a reservation with the ledger entry of its record and claims."""
        return cls(record, claims, ledger_entry.encode(record, claims), is_forced, held)

    def taken_back(self) -> Record:
        """The record of a call that never was: its client left while it was being reserved."""
        cost_nusd = None if self.record.cost_nusd is None else 0
        return self.record._replace(upstream="", status=499, usage=Usage(), ended="client_gone", cost_nusd=cost_nusd)


class RateDraw(NamedTuple):
    """A draw on rates that no lease holds and nothing gives back: of a request that is no call and leaves no record."""

    claims: tuple[Claim, ...]

    @property
    def held(self) -> int:
        """The same field as in `Reserve`; 0, because a draw extends no lease."""
        return 0


class Settle(NamedTuple):
    """The end of a call: what it really used. The record's id is the call's and the lease's."""

    number: int
    """Number of the entry in the journal."""
    record: Record
    claims: tuple[Claim, ...]
    """The claims that its lease holds."""
    text: str
    """The ledger entry of the settlement, in the form of `quota/ledger_entry`."""
    charged: Sequence[int] | None = None
    """The units that each claim is charged, by `quota/windows.charges`; None: not calculated yet."""


class Void(NamedTuple):
    """The end of a reservation that may have been made for a call that did not happen: all is released, without a
    record."""

    number: int
    lease: str


class Defer(NamedTuple):
    """The end of a call whose lease goes on without it: what was begun is still running at the upstream.

    The lease is handed to a worker of its own, `heir_of`, that is never silent. It is settled by the first journal
    entry of that worker, so that it is settled once, by whichever worker sends it.
    """

    number: int
    record: Record
    """The record of the call, at its estimate."""
    claims: tuple[Claim, ...]
    text: str
    """The ledger entry of the record, in the form of `quota/ledger_entry`."""
    note: str
    """The note for the workers that poll the upstream (accounting/deferral.py); without tabs and ends of lines."""

    @property
    def whole_text(self) -> str:
        """Entry and note, as the journal and the store keep them."""
        return f"{self.text}\t{self.note}"


def heir_of(lease: str) -> str:
    """The name of the worker that a deferred lease belongs to."""
    return f"deferred-{lease}"


class Deferred(NamedTuple):
    """A deferred lease that is not settled."""

    lease: str
    entry: str
    """How it is settled at its estimate (quota/ledger_entry)."""
    note: str


Item = Reserve | RateDraw | Settle | Void | Defer


class Batch(NamedTuple):
    """Items that one worker sends at once; applied in this order, all or none."""

    worker: str
    """The worker's incarnation, which is the name of its journal."""
    seq: int
    """Sequence number of the batch, higher than that of any earlier batch of the worker."""
    acked: int
    """The last batch that the store has acknowledged; a store without it has lost writes."""
    items: Sequence[Item] = ()
    is_adopted: bool = False
    """Another worker sends it, from the journal of this one, which is dead."""


class Progress(NamedTuple):
    """The progress of a worker in the store; zeros for an unknown worker."""

    seq: int = 0
    """Its last batch that was applied."""
    mark: int = 0
    """Its last journal entry that was applied. Entries come in order; one at or below the mark is skipped."""


class Applied(NamedTuple):
    verdicts: Sequence[Granted | Refused | None]
    """One for each item; None for what is no draw."""
    lost: int = 0
    """Leases of silent workers that were closed on this occasion."""


Measures = Mapping[tuple[str, ...], Mapping[int, int]]
"""Counters and their numbers, by groups."""


class ReportScope(NamedTuple):
    """The part of all usage that a report is about: that of these teams, or that of these keys in one team each."""

    teams: frozenset[str] = frozenset()
    keys: frozenset[KeyInTeam] = frozenset()

    def has(self, key: str | None, team: str | None) -> bool:
        """Whether it contains what this key used in this team; an empty name is none."""
        return (team or None) in self.teams or (key, team or None) in self.keys

    @property
    def is_empty(self) -> bool:
        """Whether it contains nothing: that of someone without keys."""
        return not (self.teams or self.keys)


Where = tuple[tuple[str, str], ...]
"""Groups of `NARROWING_GROUPS` and the name that a report is narrowed to, each group once."""

NARROWING_GROUPS = ("key", "team", "model", "upstream")


class WindowReader(Protocol):
    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        """The state of these windows at the Unix time `now` (seconds). Raises `StoreUnavailable`."""


class ReportReader(Protocol):
    """Reports from the store. `only`: what the report is about; None: everything. `where`: what it is narrowed to; a
    report by user or tag cannot be narrowed to an upstream."""

    async def usage(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None, limit: int | None = None,
        after: Sequence[str] | None = None, only: ReportScope | None = None, where: Where = (),
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Daily sums, grouped by some of `USAGE_GROUPS`, in the order of their groups; days as 2026-11-20, both
        included. `after`: only the rows behind these groups. Raises `StoreUnavailable`.

        With the group `hour`, or with `since` or `until` as an hour (2026-11-20T14, UTC), hourly sums are read instead,
        of which `HOURS_KEPT_DAYS` are kept.
        """

    def usage_portions(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None,
        only: ReportScope | None = None, where: Where = (),
    ) -> AsyncIterator[list[dict[str, Any]]]:  # fmt: skip
        """The rows of `usage`, at most `USAGE_AT_ONCE` in memory at a time. Raises `StoreUnavailable`."""

    async def measures(self, group_by: Sequence[str], since: str | None = None, until: str | None = None) -> Measures:
        """The measurements (`quota/measures.py`), by some of `MEASURE_GROUPS`; days or hours as `usage`. Raises
        `StoreUnavailable`."""

    async def calls(
        self, limit: int, key: str | None = None, before: str | None = None, only: ReportScope | None = None,
        wanted: CallFilter | None = None,
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        """The newest usage records, newest first; `before`: those older than the record with this `position`. Raises
        `StoreUnavailable`, and `ValueError` for what is no position."""

    async def usage_by_returned_model(self, since: str, until: str) -> list[dict[str, Any]]:
        """Sums of the calls with stored records: rows as those of `usage`, by `RETURNED_MODEL_GROUPS`. Raises
        `StoreUnavailable`.
        """


class Store(WindowReader, ReportReader, KeyStore, RequestStore, BondStore, Protocol):
    """The store of accounts, keys, refusals and bonds. Used from one event loop, one batch at a time; shared with any
    number of other workers.

    Guarantees, for every batch:

    - A `Reserve` takes all of its windows or none; what is admitted never exceeds a window's limit. One whose lease
      is open already takes the claims behind those that the lease holds, all or none, and becomes the lease's entry;
      without further claims it is granted again without effect, as is one whose lease was closed as lost.
    - A `Settle` replaces the reservation by the actual charge: windows, record and daily sums together. For a lease
    that
      was closed as lost it corrects all three by the difference. For an unknown lease (the server has lost it, or never
      received it) it charges the actual amount. Of a refund on a rate, less goes back the older it is.
    - A `Defer` hands a lease to its heir, with all that it holds; an unknown lease, or one that was closed as lost, is
      reserved again, even beyond the limit.
    - A `Void` releases everything; for a lease that was closed as lost it removes charge, record and sums.
    - A batch whose `seq` is not higher than the last one applied has no effect, and raises `StoreUnavailable`: it is a
      late copy of an abandoned batch. Entries at or below the mark are skipped.
    - A batch with an unknown `acked` raises `StoreLostWrites`, and has no effect.

    Each batch is also a heartbeat of its worker. The leases of a worker that sent none for `SILENT_S` are closed as
    lost by the batch of any other worker, at most `REAPED_AT_ONCE` each time: charged at their estimates, their records
    written. The next batch of their own worker, before its items, opens them again, at most `REOPENED_AT_ONCE` each
    time: reserved even beyond the limit, their records removed; an adopted batch does not. Of a gap in which no batch
    of any worker was applied, at most `MAX_GAP_S` count as silence, and of a clock that was set back, nothing: the
    store was unavailable then, or the machine suspended, and no heartbeat could arrive.
    """

    @property
    def clock(self) -> Clock:
        """The time by which windows, expiries and dates go: the same for all that use this store."""

    @property
    def may_forget(self) -> bool:
        """Whether what was applied can be lost by a failover or a restart, so that it has to be kept for a while."""

    async def apply(self, batch: Batch, sent: Callable[[], None] | None = None) -> Applied:
        """Apply a batch. Raises `StoreUnavailable` (it may have been applied or not) or `StoreLostWrites`.

        `sent` is called when the batch is on its way to a server, before whatever is sent to it from then on.
        """

    @property
    def apply_now(self) -> Callable[[Batch], Applied | None] | None:
        """Apply a small batch without waiting for a thread, a lock or a disk. None instead of what was applied: that
        was not possible, and the batch was not applied. Raises as `apply`. No such function: it never is, because the
        store is elsewhere.

        A store may keep it in memory for a tenth of a second; what reads the store through this instance finds it. If
        it cannot be written then, a later batch raises `StoreLostWrites`."""

    async def progress(self, worker: str) -> Progress:
        """How far this worker has come. Raises `StoreUnavailable`."""

    async def void_leases(self, worker: str) -> None:
        """Void the leases of a worker whose journal was delivered to its end and does not contain them: their calls did
        not happen. Raises `StoreUnavailable`."""

    async def retire(self, worker: str) -> None:
        """The same, and delete the worker's progress: only after its journal is gone, which would be applied again
        otherwise. Raises `StoreUnavailable`."""

    async def claim(self, holder: str, names: Mapping[str, float]) -> dict[str, float]:
        """Lock names, each for the given seconds from now, so that one of all workers does the work of a name. Returns
        for how many seconds each is still locked by another holder; 0: it is `holder`'s now.

        A holder may lock again for a longer or shorter time; 0 seconds release the name. A lock that a clock has made
        that was ahead is free to those who want it for longer than 0 seconds. A lock that a server loses is
        free. Raises `StoreUnavailable`: then the names may have been locked or not.
        """

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> dict[str, str]:
        """Keep a text of one line under this name for `for_s` seconds, in place of the holder's last one. Returns the
        texts of the other holders that are kept. A server may lose them. Raises `StoreUnavailable`."""

    async def deferred(self, limit: int) -> list[Deferred]:
        """Some of the deferred leases that were not removed, in any order; of more than `limit` others the next time,
        until each has been among them. Raises `StoreUnavailable`."""

    async def find_deferred(self, lease: str) -> Deferred | None:
        """The deferred lease of this call; None: there is none, or it is settled."""

    async def remove_deferred(self, lease: str) -> None:
        """A deferred lease has been settled. Raises `StoreUnavailable`."""

    async def ping(self) -> None:
        """Whether a batch would be applied now. Raises `StoreUnavailable`."""

    async def close(self) -> None: ...


FAR_BEHIND_US = 60_000_000
"""No correction of a clock goes back so far, unless it was wrong."""

CLAIMS_KEPT_S = 30 * 86_400
"""How long a claim is kept after its end: a clock that was ahead has not ended it, and one look of retention goes a day
too far then."""

SILENT_S = 60
"""Seconds without a batch after which a worker counts as dead. A gateway that alone cannot reach the store for less
keeps its leases: most failovers and changes of a network's topology are shorter. The leases of a machine that is gone
stay reserved for as long."""

SIGN_OF_LIFE_S = 5
"""How often an idle worker sends an empty batch, its heartbeat."""

MAX_GAP_S = 6
"""The longest gap between two batches of any workers that counts as silence: a heartbeat, and a second for delays. A
living worker whose last heartbeat came just before an outage then has 49 s left to reconnect."""

REAPED_AT_ONCE = 20
"""Keeps a batch short, however many calls a dead worker has left behind."""

REOPENED_AT_ONCE = 100
"""The same for a worker that was silent and is heard again."""


# ------------------------------------------------------------------------------------------------- what a call sees


class Ledger(WindowReader, Protocol):
    """Reservations and settlements. One instance per worker.

    Guarantees: a reservation takes all of its windows or none; admitted calls never exceed a window's limit, with any
    number of concurrent reservations; a settlement counts once, even if repeated; a lease of a killed worker is charged
    at its estimate and recorded as lost.
    """

    @property
    def pending(self) -> int:
        """Settlements that have not reached the store yet."""

    @property
    def errors(self) -> int:
        """Requests to the store that failed, since the start of this worker."""

    @property
    def closed_calls(self) -> int:
        """Calls of silent workers, of any gateway, that this worker closed at their estimates, since its start."""

    def draw(self, wanted: Reserve | RateDraw) -> Future[Granted | Refused]:
        """Draw on every window of a call, or on none. The future raises `StoreUnavailable`.

        Cancelling the future takes the draw back: what was or will be granted is settled, and only the request counts.
        A `RateDraw` stays drawn; it counts twice where a first answer of the store was lost.
        """

    def extend(self, wanted: Reserve) -> Future[Granted | Refused]:
        """Draw on further windows for an open lease: on all of the claims behind the first `wanted.held`, or on none.

        The future raises `StoreUnavailable`; then the lease holds all the same. It must not be cancelled, and the lease
        not be settled before it is done.
        """

    def settle(self, record: Record, claims: tuple[Claim, ...]) -> Future[None]:
        """Replace a reservation, which holds these claims, by what the call has used. Queued at once.

        The future is done when the store has the settlement; or when the journal has it, if the store is slow, or if
        the settlement may wait for the next batch. An unhealthy store never delays an answer.
        Cancelling the future does not cancel the settlement.
        """

    def void(self, granted: Reserve) -> None:
        """Give back a reservation for a call that never was: nothing of it is used, not even a request, and there is no
        record. Queued at once."""

    def defer(self, record: Record, claims: tuple[Claim, ...], note: str) -> Future[None]:
        """End a call, and leave its lease open: as `Defer`. The future is done as that of `settle`."""

    def note_deferral(self, record: Record, claims: tuple[Claim, ...], note: str) -> None:
        """Journal that the work of an open lease goes on at the upstream: should this worker be killed, the lease is
        deferred, as by `defer`, instead of closed as lost."""

    async def deliver(self) -> None:
        """Wait until the store has what has ended so far, so that a report has it; not while the store is away."""

    def note_error(self) -> None:
        """Count a failed read of a report."""

    async def claim(self, holder: str, names: Mapping[str, float]) -> dict[str, float]:
        """Take hold of names, as `Store.claim`. Raises `StoreUnavailable`."""

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> dict[str, str]:
        """Exchange texts with other workers, as `Store.exchange`. Raises `StoreUnavailable`."""

    async def ping(self) -> None:
        """Whether draws would be answered now. Raises `StoreUnavailable`."""

    async def close(self, timeout_s: float) -> int:
        """Deliver pending settlements, for at most this long, and close. Returns the number of undelivered ones, which
        stay in the journal."""


USAGE_AT_ONCE = 5000
"""Rows of a usage report that are in memory at a time: each takes about a kilobyte."""

USAGE_GROUPS = ("key", "team", "model", "upstream", "endpoint", "day", "month", "hour")
"""The possible groups of a usage report."""

ATTRIBUTED_GROUPS = ("key", "team", "model", "day", "month")
"""The further possible groups of a report by user or by a tag."""

ATTRIBUTED_OF_KEY = 1000
"""Groups by user, tag and model of one key and day; what is beyond them counts as `other`."""

ATTRIBUTED_A_DAY = 20_000
"""Groups by user, tag, key and model of one day: about 3 MB."""

MEASURE_GROUPS = ("model", "upstream", "day", "month", "hour")
"""The possible groups of a report of latency."""

HOURS_KEPT_DAYS = 14
"""Days for which sums of single hours are kept, unless `store.sums_days` is less."""

USAGE_COLUMNS = (
    "requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens",
    "estimated_tokens", "estimated_percent", "total_tokens", "cost_usd", "unpriced",
)  # fmt: skip
"""The columns of a usage report besides its groups. `estimated_percent`: of `total_tokens`. `unpriced`: requests
without a known cost, which `cost_usd` does not include."""

RETURNED_MODEL_GROUPS = ("day", "model", "upstream", "returned_model")
"""`returned_model` is the model's name in the upstream's answer, else the requested name."""


def check_groups(groups: Iterable[str]) -> list[str]:
    """The names that no report can be grouped by."""
    return [group for group in groups if group not in USAGE_GROUPS and not is_attribution(group)]


def is_attribution(group: str) -> bool:
    """Whether a report is by what clients name: `user`, or `tag:NAME`."""
    return group == "user" or (group.startswith("tag:") and len(group) > len("tag:"))


def attribution_in(groups: Iterable[str]) -> str | None:
    """The group by user or tag of a report, of which it has one at most."""
    return next(filter(is_attribution, groups), None)
