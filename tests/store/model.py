"""The promise of `Store` in its plainest form: a list of calls, from which everything is counted anew each time.

Slow, without I/O, and written from the promise alone (gateway/store/__init__.py). Only the arithmetic of rates is the
gateway's own (quota/windows), for it has tests of its own and no plainer form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.quota import ledger_entry, windows
from gateway.records import Claim, Record, Refused, Window, WindowState
from gateway.store import (
    MAX_GAP_S,
    REAPED_AT_ONCE,
    SILENT_S,
    Batch,
    Progress,
    RateDraw,
    Reserve,
    Settle,
    StoreLostWrites,
)

SILENT_US = SILENT_S * 1_000_000


def charge(record: Record, claim: Claim) -> int:
    """What a call used of one window. A parallel call uses nothing up; an unknown cost is what was reserved."""
    usd = claim.amount if record.cost_nusd is None else record.cost_nusd
    return {"requests": 1, "tokens": record.usage.total_tokens, "usd": usd, "parallel": 0}[claim.window.unit]


class LateCopy(Exception):
    """A batch that must do nothing, because a later one was applied."""


@dataclass
class Line:
    """One recorded call."""

    worker: str
    record: Record
    """Its charge; for an open call, its charge if it is never settled."""
    claims: tuple[Claim, ...]
    drawn_us: int
    state: str
    """open, lost (closed for a silent worker), ended, or void (it never was)."""
    is_admitted: bool = False
    """Drawn because there was room."""

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def is_charged(self) -> bool:
        return self.state in ("lost", "ended")

    def charge(self, claim: Claim) -> int:
        return charge(self.record, claim)


@dataclass
class Worker:
    """What is known of a worker."""

    progress: Progress = field(default_factory=Progress)
    alive_us: int = 0


class Verdict(NamedTuple):
    """What must become of a draw, and how its windows stood right after it."""

    refused: Refused | None
    window_statuses: tuple[WindowState, ...] = ()


class Model:
    """The expected state of the store."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.rates: dict[str, WindowState] = {}
        self.workers: dict[str, Worker] = {}

    # ------------------------------------------------------------------------------------------------- what is asked

    def state(self, window: Window, now_us: int) -> WindowState:
        """How a window stands."""
        if window.period_us:
            return windows.leak(window, self.rates.get(window.id, WindowState(0, 0, now_us)), now_us)
        claims = [(line, claim) for line in self.lines for claim in line.claims if claim.window.id == window.id]
        drawn = sum(claim.amount for line, claim in claims if line.state == "open")
        if not window.starts:
            return WindowState(drawn, 0, now_us)
        return WindowState(sum(line.charge(claim) for line, claim in claims if line.is_charged), drawn, now_us)

    def records(self) -> list[Record]:
        """Every record that stands."""
        return [line.record for line in self.lines if line.is_charged]

    def sums(self, places: Sequence[int]) -> dict[tuple[str, ...], tuple[int, ...]]:
        """The sums over the records, by some of the places of `entries.group_of`, its hour as a day."""
        return sums(self.records(), places)

    def progress(self, worker: str) -> Progress:
        return self.workers[worker].progress if worker in self.workers else Progress()

    def silent(self, but: str, now_us: int) -> list[str]:
        """The open leases of workers that gave no sign of life, but for this worker's own."""
        dead = {
            name for name, worker in self.workers.items() if name != but and now_us - worker.alive_us > SILENT_US
        }  # fmt: skip
        return [line.id for line in self.lines if line.state == "open" and line.worker in dead]

    # -------------------------------------------------------------------------------------------------- what is done

    def apply(self, batch: Batch, now_us: int) -> list[Verdict | None]:
        """Apply a batch, but for the reaping. Raises `LateCopy` or `StoreLostWrites`."""
        seq, mark = self.progress(batch.worker)
        if batch.seq <= seq:
            raise LateCopy
        if batch.acked > seq:
            raise StoreLostWrites(Progress(seq, mark))
        if self.workers:
            gap_us = now_us - max(worker.alive_us for worker in self.workers.values())
            for other in self.workers.values():
                other.alive_us += max(0, gap_us - MAX_GAP_S * 1_000_000) if gap_us > 0 else gap_us
        if not batch.is_adopted:
            self._reopen(batch.worker, now_us)
        verdicts: list[Verdict | None] = []
        for item in batch.items:
            if isinstance(item, Reserve):
                verdicts.append(self._open(batch.worker, item, now_us))
                continue
            if isinstance(item, RateDraw):
                verdicts.append(self._draw(item.claims, now_us))
                continue
            verdicts.append(None)
            if item.number > mark:
                mark = item.number
                if isinstance(item, Settle):
                    self._close(batch.worker, item.record, item.claims, now_us)
                else:
                    self._void(self._lease(item.lease), now_us)
        self.workers[batch.worker] = Worker(Progress(batch.seq, mark), now_us)
        return verdicts

    def _reopen(self, worker: str, now_us: int) -> None:
        """A worker that is heard has its lost leases back; there are fewer than `REOPENED_AT_ONCE`."""
        for line in self.lines:
            if line.worker == worker and line.state == "lost":
                line.state = "open"
                for claim in line.claims:
                    if claim.window.period_us:
                        state, age_us = self.state(claim.window, now_us), now_us - line.drawn_us
                        self.rates[claim.window.id] = windows.reopen(claim, state, line.charge(claim), age_us)

    def lose(self, leases: Iterable[str], now_us: int) -> None:
        """Close leases of silent workers, at their estimates."""
        for lease in leases:
            (line,) = [line for line in self.lines if line.id == lease and line.state == "open"]
            self._settle(line, line.record, now_us)
            line.state = "lost"

    def retire(self, worker: str, now_us: int) -> None:
        """What the worker left open never was; what was closed as lost stays so."""
        for line in self.lines:
            if line.worker == worker and line.state == "open":
                self._void(line, now_us)
            elif line.worker == worker and line.state == "lost":
                line.state = "ended"
        self.workers.pop(worker, None)

    def _lease(self, lease: str) -> Line | None:
        found = [line for line in self.lines if line.id == lease and line.state in ("open", "lost")]
        assert len(found) <= 1
        return found[0] if found else None

    def _open(self, worker: str, opening: Reserve, now_us: int) -> Verdict:
        record, claims = opening.record, opening.claims
        if self._lease(record.id) is not None:
            return Verdict(None, tuple(self.state(claim.window, now_us) for claim in claims))
        verdict = self._draw(claims, now_us, is_forced=opening.is_forced)
        if verdict.refused is None:
            self.lines.append(Line(worker, record, claims, now_us, "open", is_admitted=not opening.is_forced))
            return Verdict(None, tuple(self.state(claim.window, now_us) for claim in claims))
        return verdict

    def _draw(self, claims: Sequence[Claim], now_us: int, *, is_forced: bool = False) -> Verdict:
        """Of calendar windows and parallel calls a draw is what the line says that stands for it."""
        refused: Refused | None = None
        for claim in claims:
            state = self.state(claim.window, now_us)
            has_room = state.used + state.reserved + claim.amount <= claim.window.limit
            if has_room or not claim.window.is_enforced or is_forced:
                continue
            short = windows.check(claim, state, now_us)
            assert short is not None
            refused = windows.later_refusal(refused, short)
        if refused is not None:
            received = [
                windows.window_status(claim.window, self.state(claim.window, now_us), now_us) for claim in claims
            ]
            return Verdict(refused._replace(window_statuses=tuple(received)))
        for claim in claims:
            if claim.window.period_us:
                self.rates[claim.window.id] = windows.draw(claim, self.state(claim.window, now_us))
        return Verdict(None, tuple(self.state(claim.window, now_us) for claim in claims))

    def _close(self, worker: str, record: Record, claims: Sequence[Claim], now_us: int) -> None:
        line = self._lease(record.id)
        if line is None:
            for claim in claims:
                if claim.window.period_us:
                    state, actual = self.state(claim.window, now_us), charge(record, claim)
                    age_us = now_us - int(record.time * 1e6)
                    self.rates[claim.window.id] = windows.charge(claim.window, state, actual, age_us)
            self.lines.append(Line(worker, record, claims, now_us, "ended"))
            return
        if line.state == "lost":
            self._correct(line, record, now_us)
        else:
            self._settle(line, record, now_us)
        line.record, line.state = record, "ended"

    def _void(self, line: Line | None, now_us: int) -> None:
        if line is None:
            return
        if line.state == "lost":
            self._correct(line, None, now_us)
        else:
            for claim in line.claims:
                if claim.window.period_us:
                    state = self.state(claim.window, now_us)
                    self.rates[claim.window.id] = windows.void(claim, state, now_us - line.drawn_us)
        line.state = "void"

    def _settle(self, line: Line, record: Record, now_us: int) -> None:
        for claim in line.claims:
            if claim.window.period_us:
                state, actual = self.state(claim.window, now_us), charge(record, claim)
                self.rates[claim.window.id] = windows.settle(claim, state, actual, now_us - line.drawn_us)

    def _correct(self, line: Line, record: Record | None, now_us: int) -> None:
        for claim in line.claims:
            window = claim.window
            if window.period_us:
                actual = charge(record, claim) if record else 0
                state, age_us = self.state(window, now_us), now_us - line.drawn_us
                self.rates[window.id] = windows.correct(window, state, line.charge(claim), actual, age_us)


def sums(records: Iterable[Record], places: Sequence[int]) -> dict[tuple[str, ...], tuple[int, ...]]:
    """The sums over records, by some of the places of `entries.group_of`, its hour as a day."""
    found: dict[tuple[str, ...], Counter[str]] = {}
    for record in records:
        hour, *names = ledger_entry.group_of(record)
        group = (hour[:10], *names)
        total = found.setdefault(tuple(group[place] for place in places), Counter())
        usage = record.usage
        total["requests"] += 1
        total["errors"] += record.ended == "error"
        total["prompt_tokens"] += usage.prompt_tokens
        total["completion_tokens"] += usage.completion_tokens
        total["cached_tokens"] += usage.cached_tokens
        total["reasoning_tokens"] += usage.reasoning_tokens
        total["estimated_tokens"] += usage.total_tokens if usage.source == "estimated" else 0
        total["cost_nusd"] += record.cost_nusd or 0
        total["unpriced"] += record.cost_nusd is None
    return {group: tuple(total[name] for name in ledger_entry.SUMS) for group, total in found.items()}


def reaped_at_once(silent: Sequence[str]) -> int:
    """How many of these leases one batch closes."""
    return min(len(silent), REAPED_AT_ONCE)
