"""The embedded store's ledger: one connection to the file, used from one thread, one transaction per batch."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.config import StoreSettings
from gateway.quota import windows as limits
from gateway.quota.ledger_entry import SUMS, decode
from gateway.records import OTHER, Bond, Claim, Granted, Refused, Settlement, Window, WindowState
from gateway.store import (
    ATTRIBUTED_A_DAY,
    ATTRIBUTED_OF_KEY,
    CLAIMS_KEPT_S,
    FAR_BEHIND_US,
    REAPED_AT_ONCE,
    REOPENED_AT_ONCE,
    SILENT_S,
    Applied,
    Batch,
    Defer,
    Item,
    Progress,
    RateDraw,
    Reserve,
    StoreLostWrites,
    StoreUnavailable,
    Void,
    heir_of,
)
from gateway.store.bonds import owner_of
from gateway.store.key_store import StoreChange
from gateway.store.refusals import REFUSALS_KEPT, REFUSALS_KEPT_S, RefusalEntry, encode_refusal
from gateway.store.rules.batch import LedgerTransaction, LostCalls, unheard_us

from .bonds import add_bond
from .database import NO_PATIENCE, OpenedFile, Transaction, among, create, insert, is_busy, path_of, synced
from .keys import apply_change
from .reader import record_row
from .retention import Trimmer, clock_of
from .schema import (
    ADD_ATTRIBUTED,
    ADD_HOURS,
    ADD_LATE,
    ADD_MEASURE,
    ADD_SUMS,
    ATTRIBUTED_GROUP,
    CLAIM,
    DEFERRED,
    HOUR_GROUP,
    LATE,
    LEASE,
    LOST,
    MEASURE,
    POST,
    RECORD,
    REFUSAL,
    SET_CLAIM,
    SET_DEFERRED,
    SET_POST,
    SET_WINDOW,
    SET_WORKER,
    SUM_GROUP,
    WINDOW,
    WORKER,
)  # fmt: skip
from .write_behind import LEASES_KEPT, WriteBehind

log = logging.getLogger("gateway")

NOTE_CLOCK_US = 1_000_000
"""How much of the store's time a restart may lose."""

SILENT_US = SILENT_S * 1_000_000

VOIDED_AT_ONCE = 100
"""Leases of a retired worker that one transaction voids: other workers need the write lock too."""

OLD_REFUSALS_AT_ONCE = 1000
"""Entries of the refusal log that one transaction looks at for their age."""

_Group = tuple[str, str, str, str, str, str]
"""The columns of `ATTRIBUTED_GROUP`: day, key, name, value, team, model."""

_IS_KNOWN = "SELECT 1 FROM attributed WHERE " + " AND ".join(f"{name} = ?" for name in ATTRIBUTED_GROUP)  # noqa: S608 - constants


class _AttributedSums:
    """Sums by user and tag, with a bounded number of groups: those that one worker has seen in the file."""

    def __init__(self) -> None:
        self._known: set[_Group] = set()

    def add(self, db: sqlite3.Connection, sums: Mapping[_Group, Sequence[int]]) -> None:
        """Add sums; those of groups for which there is no room count under `OTHER`."""
        fresh: Counter[tuple[str, str]] = Counter()
        rows = [(*self._admitted(db, group, fresh), *numbers) for group, numbers in sums.items()]
        insert(db, "attributed", ATTRIBUTED_GROUP + SUMS, rows, ADD_ATTRIBUTED)

    def _admitted(self, db: sqlite3.Connection, group: _Group, fresh: Counter[tuple[str, str]]) -> _Group:
        if group in self._known:
            return group
        day, key, name, _, team, model = group
        if not db.execute(_IS_KNOWN, group).fetchone():
            (of_key,) = db.execute("SELECT count(*) FROM attributed WHERE day = ? AND key = ?", (day, key)).fetchone()
            (of_day,) = db.execute("SELECT count(*) FROM attributed WHERE day = ?", (day,)).fetchone()
            if of_key + fresh[day, key] >= ATTRIBUTED_OF_KEY or of_day + fresh.total() >= ATTRIBUTED_A_DAY:
                return day, key, name, OTHER, team, model
            fresh[day, key] += 1
        if len(self._known) >= ATTRIBUTED_A_DAY:
            self._known.clear()
        self._known.add(group)
        return group


class SqliteLedger:
    """Reads what a transaction needs, and writes what it has decided. All methods raise `sqlite3.Error`."""

    def __init__(self, settings: StoreSettings, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._attributed = _AttributedSums()
        self._trimmer = Trimmer(settings.usage_records_max, settings.sums_days)
        self._noted_us = 0
        self._wall_us = 0
        """The machine's clock at the beginning of this transaction."""
        self._is_far_behind = False
        self._none_silent_until_us = 0
        """No worker can become silent before this time, so that no look is needed."""
        self._behind: WriteBehind | None = None
        """The state that is decided in memory and written later; None: batches go to the file."""
        self.uncopied = 0
        """Items of batches since the last checkpoint, and one for each batch."""
        self.db = create(settings)
        self._file = OpenedFile(path_of(settings))
        self.db.execute("PRAGMA wal_autocheckpoint = 0")  # `Checkpointer` does it, outside of a call's transaction

    def apply(self, batch: Batch, requested_at: float, *, is_alone: bool = False) -> Applied:
        """One batch, all of it or nothing. Raises `StoreLostWrites`, and `StoreUnavailable` for a late copy.

        `is_alone`: no other worker writes to the file, so that `apply_behind` may take the batches that follow.
        """
        self.write_behind(requested_at)
        behind = self._behind = None
        with Transaction(self.db, requested_at):
            now_us = self._now()
            known, has_lost, newest_us = self._progress(batch.worker)
            if batch.acked > known.seq:
                raise StoreLostWrites(known)
            if batch.seq <= known.seq:
                raise StoreUnavailable(f"batch {batch.seq} is a late copy: {known.seq} has been applied")
            transaction = LedgerTransaction(now_us, known.mark)
            lost_of = self._lost_of(batch) if has_lost else []
            self._read(transaction, batch.items, lost_of, has_lost)
            if lost_of:
                transaction.reopen_lost(lost_of)
            verdicts: Sequence[Granted | Refused | None] = transaction.take(batch.items)
            self._write(transaction, batch.worker)
            self._write_progress(batch.worker, batch.seq, transaction, newest_us)
            lost, none_silent_until_us = self._reap(now_us)
            if is_alone:
                behind = self._begin_behind(batch, transaction, none_silent_until_us)
        self._none_silent_until_us = none_silent_until_us
        self._behind = behind
        self.uncopied += 1 + len(batch.items)
        return Applied(verdicts, lost)

    def apply_behind(self, batch: Batch) -> Applied | None:
        """Apply a batch in memory, to be written by `write_behind`. None: that is not possible."""
        if self._behind is None:
            return None
        now_us = self._clock_us()
        if now_us > self._behind.until_us:
            return None
        try:
            return self._behind.take(batch, max(self._noted_us, now_us), self._read_windows)
        except BaseException:
            self._behind = None
            raise

    @property
    def unwritten(self) -> int:
        """Draws and ends that `write_behind` would write, and batches of nothing else than refused draws."""
        return self._behind.unwritten if self._behind is not None else 0

    def write_behind(self, requested_at: float) -> None:
        """Write what is in memory only, in one transaction.

        If that fails the state is dropped, unless the file is locked and this was a try without patience. The file then
        lacks acknowledged batches; the worker's next batch finds that (`StoreLostWrites`), and the worker sends them
        again from its journal.
        """
        behind = self._behind
        if behind is None or not behind.unwritten:
            return
        is_kept = not self.is_housekeeping_due()
        try:
            with Transaction(self.db, requested_at):
                is_current = self._data_version() == behind.version
                self._write_all(behind, is_current=is_current)
        except sqlite3.Error as error:
            if requested_at != NO_PATIENCE or not is_busy(error):
                self._behind = None
            raise
        except Exception:
            self._behind = None
            log.exception("batches of this worker cannot be written; it sends them again")
            return
        self.uncopied += 1 + len(behind.items)
        if not (is_current and is_kept and behind.note_written()):
            self._behind = None

    def is_housekeeping_due(self) -> bool:
        """Whether the next batch deletes old rows or looks for silent workers, which may take long."""
        now_us = self._clock_us()
        return now_us > self._none_silent_until_us or self._trimmer.is_due(now_us)

    def void_leases(self, worker: str) -> None:
        """Void the open leases of a worker, some at a time."""
        self._keep_nothing(time.monotonic())
        while self._void_some(worker):
            pass

    def retire(self, worker: str) -> None:
        """The same, and delete the worker's progress."""
        self.void_leases(worker)
        with Transaction(self.db):
            self.db.execute("DELETE FROM lost WHERE worker = ?", (worker,))
            self.db.execute("DELETE FROM workers WHERE worker = ?", (worker,))

    def claim(self, holder: str, names: Mapping[str, float], requested_at: float) -> dict[str, float]:
        """Lock those of these names that are free, each for the given seconds. The rules are those of `claim.lua`."""
        with Transaction(self.db, requested_at):
            now_us = self._clock_us()
            old_us = (min(now_us // 1_000_000, clock_of(self.db)) - CLAIMS_KEPT_S) * 1_000_000
            self.db.execute("DELETE FROM claims WHERE until_us <= ?", (old_us,))
            known = self.db.execute(
                among("SELECT name, holder, until_us, since_us FROM claims", len(names), "name"), [*names]
            )
            held = {
                name: until_us
                for name, whose, until_us, since_us in known
                if whose != holder and until_us > now_us
                if not names[name] or since_us <= now_us + FAR_BEHIND_US
            }
            free = {name: int(for_s * 1e6) for name, for_s in names.items() if name not in held}
            rows = [(name, holder, now_us + span_us, now_us) for name, span_us in free.items() if span_us]
            insert(self.db, "claims", CLAIM, rows, SET_CLAIM)
            released = [(name, holder) for name, span_us in free.items() if not span_us]
            self.db.executemany("DELETE FROM claims WHERE name = ? AND holder = ?", released)
        return {name: max(0, held.get(name, 0) - now_us) / 1e6 for name in names}

    def exchange(self, place: str, holder: str, text: str, for_s: float, requested_at: float) -> dict[str, str]:
        """Keep a text under a name for `for_s` seconds, and read those of the other holders."""
        with Transaction(self.db, requested_at):
            now_us = self._clock_us()
            bounds = (now_us, now_us + FAR_BEHIND_US)
            self.db.execute("DELETE FROM posts WHERE until_us <= ? OR since_us > ?", bounds)
            insert(self.db, "posts", POST, [(place, holder, text, now_us + int(for_s * 1e6), now_us)], SET_POST)
            found = self.db.execute("SELECT holder, text FROM posts WHERE place = ? AND holder != ?", (place, holder))
            return dict(found.fetchall())

    def change(self, change: StoreChange, requested_at: float) -> bool:
        """Apply a change, all of it or nothing; it is on the disk when this returns. Raises `SecretTaken`."""
        self._keep_nothing(requested_at)
        with synced(self.db), Transaction(self.db, requested_at):
            return apply_change(self.db, change, self._now())

    def add_refusals(self, entries: Sequence[RefusalEntry], now: float, requested_at: float) -> None:
        with Transaction(self.db, requested_at):
            rows = [(entry.id, entry.time, encode_refusal(entry)) for entry in entries]
            insert(self.db, "refusals", REFUSAL, rows)
            self.db.execute(
                "DELETE FROM refusals WHERE seq <= (SELECT max(seq) FROM refusals) - ? OR seq IN "
                "(SELECT seq FROM (SELECT seq, time FROM refusals ORDER BY seq LIMIT ?) WHERE time < ?)",
                (REFUSALS_KEPT, OLD_REFUSALS_AT_ONCE, now - REFUSALS_KEPT_S),
            )

    def remove_deferred(self, lease: str, requested_at: float) -> None:
        """A deferred lease has been settled."""
        with Transaction(self.db, requested_at):
            self.db.execute("DELETE FROM deferred WHERE lease = ?", (lease,))

    def add_bond(self, bond: Bond, now: float, requested_at: float) -> None:
        with Transaction(self.db, requested_at):
            add_bond(self.db, bond, now)

    def remove_bond(self, bond: Bond, requested_at: float) -> None:
        with Transaction(self.db, requested_at):
            self.db.execute("DELETE FROM bonds WHERE id = ? AND key = ?", (bond.id, owner_of(bond)))

    def ping(self, requested_at: float) -> None:
        """Write something, to see whether that is possible."""
        with Transaction(self.db, requested_at):
            self.db.execute("UPDATE meta SET value = max(value, ?) WHERE name = 'now_us'", (self._now(),))

    def close(self) -> None:
        self.db.close()

    # ------------------------------------------------------------------------------------------------------ reading

    def _now(self) -> int:
        """The store's clock never runs backwards, also if the machine's does."""
        self._wall_us = now_us = self._clock_us()
        if now_us > self._noted_us + NOTE_CLOCK_US:
            self._file.check()
            (known,) = self.db.execute("SELECT value FROM meta WHERE name = 'now_us'").fetchone()
            self._noted_us = max(known, now_us)
            self.db.execute("UPDATE meta SET value = ? WHERE name = 'now_us'", (self._noted_us,))
        if now_us >= self._noted_us - FAR_BEHIND_US:
            self._is_far_behind = False
        elif not self._is_far_behind:
            self._is_far_behind = True
            log.warning(
                "this machine's clock is %d s behind what it was when the store was last written to: until it is there "
                "again, rates (per second, minute, hour) do not refill; the runbook describes how to end that",
                (self._noted_us - now_us) // 1_000_000,
            )
        return max(self._noted_us, now_us)

    def _progress(self, worker: str) -> tuple[Progress, bool, int | None]:
        """A worker's progress; whether any lease was lost, which is rare; the time of all workers' newest batch."""
        seq, mark, has_lost, newest_us = self.db.execute(
            "SELECT max(seq), max(mark), EXISTS (SELECT 1 FROM lost), (SELECT max(alive_us) FROM workers) "
            "FROM workers WHERE worker = ?",
            (worker,),
        ).fetchone()
        return Progress(seq or 0, mark or 0), bool(has_lost), newest_us

    def _lost_of(self, batch: Batch) -> list[str]:
        """The leases that the worker's batch opens again."""
        if batch.is_adopted:
            return []
        found = self.db.execute("SELECT id FROM lost WHERE worker = ? LIMIT ?", (batch.worker, REOPENED_AT_ONCE))
        return [lease for (lease,) in found]

    def _read(
        self, transaction: LedgerTransaction, items: Sequence[Item], lost_of: Sequence[str], has_lost: bool
    ) -> None:
        windows: dict[str, Window] = {}
        leases: list[str] = [*lost_of]
        voided: list[str] = []
        reserved: list[str] = []
        for item in items:
            if isinstance(item, Void):
                leases.append(item.lease)
                voided.append(item.lease)
                continue
            if isinstance(item, RateDraw):
                windows.update(_windows(item.claims))
                continue
            leases.append(item.record.id)
            if isinstance(item, Reserve | Defer):
                reserved.append(item.record.id)
            for window, _ in item.claims:
                windows[window.id] = window
        if leases:
            transaction.drawn_us.update(self.db.execute(among("SELECT id, drawn_us FROM leases", len(leases)), leases))
        voided += [lease for lease in reserved if lease in transaction.drawn_us]
        if voided:
            for lease, settlement in self._decoded(
                self.db.execute(among("SELECT id, entry FROM leases", len(voided)), voided)
            ):
                transaction.taken[lease] = settlement.claims if settlement else ()
                windows = _windows(transaction.taken[lease]) | windows
        if leases and has_lost:
            rows = self.db.execute(among("SELECT id, drawn_us, entry, record FROM lost", len(leases)), leases)
            for lease, drawn_us, entry, record_seq in rows.fetchall():
                transaction.lost[lease] = lost = LostCalls(drawn_us, decode(entry), record_seq)
                windows = _windows(lost.settlement.claims) | windows
        self._read_windows(transaction, windows)

    def _read_windows(self, transaction: LedgerTransaction, windows: dict[str, Window]) -> None:
        if not windows:
            return
        states, now_us = transaction.states, transaction.now_us
        for name, used, reserved, at_us in self.db.execute(
            among("SELECT id, used, reserved, at_us FROM windows", len(windows)), [*windows]
        ):
            window, state = windows[name], WindowState(used, reserved, at_us)
            states[name] = limits.leak(window, state, now_us) if window.period_us else state
        if missing := windows.keys() - states.keys():
            states.update(dict.fromkeys(missing, WindowState(0, 0, now_us)))

    def _decoded(self, rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Settlement | None]]:
        """Leases and their entries, decoded. An unreadable one must not block the others."""
        for lease, entry in rows:
            try:
                yield lease, decode(entry)
            except ValueError:
                log.exception("lease %s cannot be read; it is dropped, and what it took stays taken", lease)
                yield lease, None

    # ------------------------------------------------------------------------------------------------------ writing

    def _write(self, transaction: LedgerTransaction, worker: str) -> None:
        db = self.db
        if transaction.changed:
            rows = [(name, window.starts, *transaction.states[name]) for name, window in transaction.changed.items()]
            insert(db, "windows", WINDOW, rows, SET_WINDOW)
        if transaction.ended:  # first: a lease that was voided may be reserved again in the same batch
            db.execute(among("DELETE FROM leases", len(transaction.ended)), transaction.ended)
        if transaction.opened:
            drawn_us = transaction.drawn_us
            leases = [(name, worker, drawn_us[name], item.text) for name, item in transaction.opened.items()]
            insert(db, "leases", LEASE, leases)
        for name, item in transaction.extended.items():
            db.execute("UPDATE leases SET entry = ? WHERE id = ?", (item.text, name))
        for name, deferred in transaction.deferred.items():
            db.execute("UPDATE leases SET worker = ? WHERE id = ?", (heir_of(name), name))
            insert(db, "deferred", DEFERRED, [(name, deferred.whole_text)], SET_DEFERRED)
        for lease, lost in transaction.replaced.items():
            db.execute("DELETE FROM lost WHERE id = ?", (lease,))
            db.execute("DELETE FROM records WHERE seq = ? AND id = ?", (lost.record, lease))
        if transaction.records:
            insert(db, "records", RECORD, [record_row(record) for record in transaction.records])
            self._trimmer.count(len(transaction.records))
        if transaction.sums:
            insert(
                db, "hours", HOUR_GROUP + SUMS, [(*group, *row) for group, row in transaction.sums.items()], ADD_HOURS
            )
            days = [(group[0][:10], *group[1:], *row) for group, row in transaction.sums.items()]
            insert(db, "sums", SUM_GROUP + SUMS, days, ADD_SUMS)
            today, _ = limits.calendar_window("day", self._wall_us // 1_000_000)
            if late := {day for hour, *_ in transaction.sums if (day := hour[:10]) < today}:
                insert(db, "late", LATE, [(day, 1) for day in late], ADD_LATE)
        if transaction.attributed:
            self._attributed.add(db, transaction.attributed)
        if transaction.measures:
            hours = [(*place, number) for place, number in transaction.measures.items()]
            days = [(place[0][:10], *place[1:], number) for place, number in transaction.measures.items()]
            insert(db, "measures", MEASURE, [*hours, *days], ADD_MEASURE)
        self._trimmer.trim(db, self._wall_us)

    def _write_progress(self, worker: str, seq: int, transaction: LedgerTransaction, newest_us: int | None) -> None:
        """How far a worker has come, which is its heartbeat, too."""
        now_us = transaction.now_us
        if unheard := unheard_us(now_us, newest_us or now_us):
            self.db.execute("UPDATE workers SET alive_us = alive_us + ?", (unheard,))
        insert(self.db, "workers", WORKER, [(worker, seq, transaction.mark, now_us)], SET_WORKER)

    # ------------------------------------------------------------------------------------------------- in memory only

    def _begin_behind(self, batch: Batch, transaction: LedgerTransaction, until_us: int) -> WriteBehind | None:
        """Where the batches that follow may be applied up to that time, in a transaction that has written this one;
        None: in the file, because other workers write to it, or it has too many leases."""
        (others,) = self.db.execute(
            "SELECT count(*) FROM workers WHERE worker != ? AND alive_us >= ?",
            (batch.worker, transaction.now_us - SILENT_US),
        ).fetchone()
        leases = self.db.execute("SELECT id, drawn_us FROM leases LIMIT ?", (LEASES_KEPT + 1,)).fetchall()
        if others or len(leases) > LEASES_KEPT:
            return None
        following = transaction.following()
        following.states = {name: transaction.states[name] for name in transaction.changed}
        following.drawn_us = dict(leases)
        until_us = min(until_us, self._trimmer.due_us)
        return WriteBehind(batch.worker, batch.seq, following, self._data_version(), until_us)

    def _data_version(self) -> int:
        (version,) = self.db.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _write_all(self, behind: WriteBehind, *, is_current: bool) -> None:
        now_us = self._now()
        known, has_lost, newest_us = self._progress(behind.worker)
        transaction = behind.transaction
        if not is_current:
            transaction, items = LedgerTransaction(now_us, known.mark), behind.again()
            self._read(transaction, items, [], has_lost)
            transaction.take(items)
        transaction.now_us = now_us
        self._write(transaction, behind.worker)
        self._write_progress(behind.worker, behind.seq, transaction, newest_us)

    def _keep_nothing(self, requested_at: float) -> None:
        """Write what is in memory only, and apply what follows to the file, which is about to change."""
        self.write_behind(requested_at)
        self._behind = None

    # ------------------------------------------------------------------------------------------------- lost workers

    def _reap(self, now_us: int) -> tuple[int, int]:
        """Close some leases of silent workers as lost: how many, and before which time no worker can become silent.

        The worker that sends the batch is never silent.
        """
        if now_us <= self._none_silent_until_us:
            return 0, self._none_silent_until_us
        silent, oldest_us = [], now_us
        for other, alive_us in self.db.execute("SELECT worker, alive_us FROM workers"):
            if alive_us < now_us - SILENT_US:
                silent.append(other)
            else:
                oldest_us = min(oldest_us, alive_us)
        rows: list[Any] = []
        if silent:
            marks = ", ".join("?" * len(silent))
            text = f"SELECT id, worker, drawn_us, entry FROM leases WHERE worker IN ({marks}) LIMIT ?"  # noqa: S608 - question marks only
            rows = self.db.execute(text, (*silent, REAPED_AT_ONCE)).fetchall()
        if rows:
            self._lose(rows, now_us)
        return len(rows), 0 if len(rows) == REAPED_AT_ONCE else oldest_us + SILENT_US

    def _lose(self, rows: Sequence[tuple[str, str, int, str]], now_us: int) -> None:
        transaction, lost = LedgerTransaction(now_us), []
        # Their records are numbered by hand, for they will be looked for.
        (number,) = self.db.execute("SELECT coalesce(max(seq), 0) FROM records").fetchone()
        settlements = self._take_on(transaction, [(row[0], row[2], row[3]) for row in rows])
        for row in rows:
            if (settlement := settlements[row[0]]) is not None:
                transaction.lose(row[0], settlement)
                lost.append((*row, number + len(transaction.records)))
        self._write(transaction, "")
        insert(self.db, "lost", LOST, lost)

    def _void_some(self, worker: str) -> bool:
        """Void some leases of a worker; whether it had any."""
        with Transaction(self.db):
            rows = self.db.execute(
                "SELECT id, drawn_us, entry FROM leases WHERE worker = ? LIMIT ?", (worker, VOIDED_AT_ONCE)
            ).fetchall()
            if not rows:
                return False
            transaction = LedgerTransaction(self._now())
            for lease, settlement in self._take_on(transaction, rows).items():
                if settlement is not None:
                    transaction.void_open(lease, settlement.claims)
            self._write(transaction, worker)
        return True

    def _take_on(
        self, transaction: LedgerTransaction, leases: Sequence[tuple[str, int, str]]
    ) -> dict[str, Settlement | None]:
        """Put open leases into a transaction: those that can be read with what they touch, the others to be dropped."""
        settlements = dict(self._decoded((name, entry) for name, _, entry in leases))
        windows: dict[str, Window] = {}
        for name, drawn_us, _ in leases:
            if (settlement := settlements[name]) is None:
                transaction.ended.append(name)
            else:
                transaction.drawn_us[name] = drawn_us
                windows |= _windows(settlement.claims)
        self._read_windows(transaction, windows)
        return settlements


def _windows(claims: Sequence[Claim]) -> dict[str, Window]:
    return {window.id: window for window, _ in claims}
