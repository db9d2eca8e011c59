"""The changes of a lone worker's batches that the file does not have yet.

Where no other worker or gateway writes to the file, batches are decided in memory, on the state that the file
will have, and one transaction writes those of some time. A kill loses none of them: the journal has a draw before its
verdict is answered, and an end before it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.quota import windows as limits
from gateway.records import Refused, Window
from gateway.store import Applied, Batch, Item, Reserve, Settle
from gateway.store.rules.batch import LedgerTransaction

LEASES_KEPT = 1000
"""The ledger's state is not kept in memory if the file has more open leases than this."""

WINDOWS_KEPT = 10_000
"""The same for the windows that were touched."""

ReadsWindows = Callable[[LedgerTransaction, dict[str, Window]], None]


class WriteBehind:
    """The state of the ledger in front of the file. Private to the only worker."""

    def __init__(self, worker: str, seq: int, transaction: LedgerTransaction, version: int, until_us: int) -> None:
        self.worker = worker
        self.seq = seq
        """The last batch that was applied here."""
        self.transaction = transaction
        """The transaction in memory. It knows when every open lease was drawn; `changed` and similar members hold what
        is to be written."""
        self.version = version
        """Version of the file (`PRAGMA data_version`): another value means that another connection has written to
        it."""
        self.until_us = until_us
        """Time in microseconds from which batches go to the file, because something else is due."""
        self.items: list[Item] = []
        """Items that were applied here and are not written."""
        self._written = seq
        """The last batch that is in the file."""

    @property
    def unwritten(self) -> int:
        """Draws and ends that are not written, and batches of nothing else than refused draws."""
        return len(self.items) or self.seq - self._written

    def take(self, batch: Batch, now_us: int, read_windows: ReadsWindows) -> Applied | None:
        """Apply a batch here. None: it has to be applied to the file, and nothing was changed."""
        items, transaction = batch.items, self.transaction
        if not items or batch.worker != self.worker or not batch.acked <= self.seq < batch.seq:
            return None
        windows = self._windows_of(items)
        if windows is None:
            return None
        transaction.now_us, states = now_us, transaction.states
        unknown = windows.keys() - states.keys()
        if unknown:
            read_windows(transaction, {name: windows[name] for name in unknown})
        leaks = []
        for name, window in windows.items():
            if window.period_us and (leaked := limits.leak(window, before := states[name], now_us)) is not before:
                states[name] = leaked
                leaks.append((name, before, leaked))
        verdicts = transaction.take(items)
        # A look that changes nothing must not round a level: the file would have it as it was.
        for name, before, leaked in leaks:
            if states[name] is leaked:
                states[name] = before
        for name in unknown:
            if name not in transaction.changed:
                del states[name]
        self.items += [item for item, each in zip(items, verdicts, strict=True) if not isinstance(each, Refused)]
        self.seq = batch.seq
        return Applied(verdicts)

    def _windows_of(self, items: Sequence[Item]) -> dict[str, Window] | None:
        """The windows of these items, by id. None: one of the items has to be applied to the file."""
        windows: dict[str, Window] = {}
        drawn_us = self.transaction.drawn_us
        for item in items:
            if isinstance(item, Settle):
                if item.record.id not in drawn_us:
                    return None
            elif not isinstance(item, Reserve) or item.is_forced or item.held or item.record.id in drawn_us:
                return None
            for window, _ in item.claims:
                windows[window.id] = window
        return windows

    def again(self) -> list[Item]:
        """The same once more, for a file that has changed: what was granted is reserved even beyond the limit."""
        return [item._replace(is_forced=True) if isinstance(item, Reserve) else item for item in self.items]

    def note_written(self) -> bool:
        """All of it is in the file. Returns whether the state may be kept."""
        self.transaction = self.transaction.following()
        self.items, self._written = [], self.seq
        return len(self.transaction.states) <= WINDOWS_KEPT
