"""The effect of one batch on the ledger: decided in memory, between reading and writing.

Nothing here reads a clock or a file. The caller reads the state that the items need (`states`, `drawn_us`, `lost`,
`taken`), applies them, and writes the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add, sub
from typing import NamedTuple

from gateway.quota import windows
from gateway.quota.ledger_entry import attributions_of, group_of, sums_of
from gateway.quota.measures import measures_of
from gateway.records import Claim, Granted, Record, Refused, Settlement, Window, WindowState
from gateway.store import MAX_GAP_S, Defer, Item, RateDraw, Reserve, Settle, Void

MAX_GAP_US = MAX_GAP_S * 1_000_000


def unheard_us(now_us: int, newest_us: int) -> int:
    """How much of the time since the newest batch of any worker is no silence: what exceeds `MAX_GAP_S`. Negative where
    the clock was set back. The times of all workers' last batches are moved by it."""
    gap_us = now_us - newest_us
    return gap_us - min(max(gap_us, 0), MAX_GAP_US)


class LostCalls(NamedTuple):
    drawn_us: int
    settlement: Settlement
    """How it was closed: at its estimate."""
    record: int


class LedgerTransaction:
    """The part of the ledger that one transaction reads and writes."""

    def __init__(self, now_us: int, mark: int = 0) -> None:
        self.now_us = now_us
        self.mark = mark
        """The last journal entry that was applied."""
        self.states: dict[str, WindowState] = {}
        """The state of every window that is touched, leaked up to now."""
        self.drawn_us: dict[str, int] = {}
        """When each open lease was drawn that may be touched, those of the transaction among them."""
        self.lost: dict[str, LostCalls] = {}
        """The leases that may be touched and were closed as lost."""
        self.taken: dict[str, Sequence[Claim]] = {}
        """The claims of open leases that may be voided or extended."""

        # To be written:
        self.changed: dict[str, Window] = {}
        self.opened: dict[str, Reserve] = {}
        """Leases to be inserted, each with its `drawn_us`."""
        self.extended: dict[str, Reserve] = {}
        """Leases that were open before and hold more now."""
        self.ended: list[str] = []
        """Leases that were open before and are no longer."""
        self.replaced: dict[str, LostCalls] = {}
        """Lost leases that are so no longer: what was written for them goes."""
        self.deferred: dict[str, Defer] = {}
        """Leases that go on without their worker."""
        self.records: list[Record] = []
        self.sums: dict[tuple[str, ...], list[int]] = {}
        """The amounts to add to the sums of hours and so of days; negative where something is taken back."""
        self.measures: dict[tuple[str, str, str, int], int] = {}
        """The amounts to add to the counters of hours and so of days: by hour, model, upstream and counter."""

        self.attributed: dict[tuple[str, str, str, str, str, str], Sequence[int]] = {}
        """The amounts to add to the sums by user and tag: by day, key, name, value, team and model."""

    def following(self) -> LedgerTransaction:
        """The next one, in the state that this one leaves."""
        following = LedgerTransaction(self.now_us, self.mark)
        following.states, following.drawn_us = self.states, self.drawn_us
        return following

    def take(self, items: Sequence[Item]) -> list[Granted | Refused | None]:
        verdicts: list[Granted | Refused | None] = []
        for item in items:
            verdict: Granted | Refused | None = None
            if isinstance(item, Reserve):
                verdict = self._open(item)
            elif isinstance(item, RateDraw):
                verdict = self._draw_all(item.claims)
            elif item.number > self.mark:
                self.mark = item.number
                if isinstance(item, Settle):
                    self._close(item.record, item.claims, item.charged)
                elif isinstance(item, Defer):
                    self._defer(item)
                else:
                    self._void(item)
            verdicts.append(verdict)
        return verdicts

    def reopen_lost(self, leases: Sequence[str]) -> None:
        """Leases that were closed as lost are open again, as before they were: their worker is alive."""
        for lease in leases:
            lost = self.lost.pop(lease)
            self._take_back(lease, lost)
            settlement, age_us = lost.settlement, self.now_us - lost.drawn_us
            for claim, before in zip(settlement.claims, windows.charges(*settlement), strict=True):
                state = self.states[claim.window.id]
                self._set(claim.window, windows.reopen(claim, state, before, age_us))
            self.opened[lease] = Reserve.of(*settlement)
            self.drawn_us[lease] = lost.drawn_us

    def lose(self, lease: str, settlement: Settlement) -> None:
        """Close an open lease at its estimate, because its worker cannot settle it."""
        self._settle(settlement.record, settlement.claims, self._end_lease(lease))
        self._count(settlement.record)

    def void_open(self, lease: str, claims: Sequence[Claim]) -> None:
        """Close an open lease that came to nothing."""
        age_us = self._end_lease(lease)
        for claim in claims:
            self._set(claim.window, windows.void(claim, self.states[claim.window.id], age_us))

    def _open(self, item: Reserve) -> Granted | Refused:
        claims, lease = item.claims, item.record.id
        states, now_us = self.states, self.now_us
        is_open = lease in self.drawn_us
        new = claims[len(self._held(lease)) :] if is_open else claims
        if lease not in self.lost and (new or not is_open):
            if not item.is_forced:
                refused = windows.refusal([(claim, states[claim.window.id]) for claim in new], now_us)
                if refused is not None:
                    return refused
            for claim in new:
                window = claim.window
                states[window.id] = windows.draw(claim, states[window.id])
                self.changed[window.id] = window
            if not is_open or lease in self.opened:
                self.opened[lease] = item
                self.drawn_us.setdefault(lease, now_us)
            else:
                self.extended[lease] = item
                self.taken[lease] = claims
        return Granted(tuple([windows.window_status(window, states[window.id], now_us) for window, _ in claims]))

    def _draw_all(self, claims: Sequence[Claim]) -> Granted | Refused:
        states, now_us = self.states, self.now_us
        refused = windows.refusal([(claim, states[claim.window.id]) for claim in claims], now_us)
        if refused is not None:
            return refused
        for claim in claims:
            self._set(claim.window, windows.draw(claim, states[claim.window.id]))
        return Granted(tuple([windows.window_status(window, states[window.id], now_us) for window, _ in claims]))

    def _held(self, lease: str) -> Sequence[Claim]:
        return self.opened[lease].claims if lease in self.opened else self.taken[lease]

    def _close(self, record: Record, claims: Sequence[Claim], charged: Sequence[int] | None) -> None:
        if record.id in self.drawn_us:
            self._settle(record, claims, self._end_lease(record.id), charged)
        elif record.id in self.lost:
            actual: dict[str, list[int]] = {}
            for claim, used in zip(claims, windows.charges(record, claims), strict=True):
                actual.setdefault(claim.window.id, []).append(used)
            self._end_lost(record.id, actual)
        else:
            age_us = self.now_us - int(record.time * 1e6)
            for (window, _), used in zip(claims, windows.charges(record, claims), strict=True):
                self._set(window, windows.charge(window, self.states[window.id], used, age_us))
        self._count(record)

    def _defer(self, item: Defer) -> None:
        lease = item.record.id
        if lease in self.lost:
            self._end_lost(lease, {})
        self._open(Reserve(item.record, item.claims, item.text, is_forced=True))
        self.deferred[lease] = item

    def _void(self, item: Void) -> None:
        lease = item.lease
        if (opening := self.opened.get(lease)) is not None:
            self.void_open(lease, opening.claims)
        elif lease in self.drawn_us:
            self.void_open(lease, self.taken[lease])
        elif lease in self.lost:
            self._end_lost(lease, {})

    def _end_lease(self, lease: str) -> int:
        """Close an open lease; returns its age in microseconds."""
        if self.opened.pop(lease, None) is None:
            self.ended.append(lease)
            self.extended.pop(lease, None)
        return self.now_us - self.drawn_us.pop(lease)

    def _settle(
        self, record: Record, claims: Sequence[Claim], age_us: int, charged: Sequence[int] | None = None
    ) -> None:
        states, changed = self.states, self.changed
        if charged is None:
            charged = windows.charges(record, claims)
        for claim, actual in zip(claims, charged, strict=True):
            window = claim.window
            name = window.id
            state = windows.settle(claim, states[name], actual, age_us)
            states[name] = state if state.used else windows.leak(window, state, self.now_us)
            changed[name] = window

    def _end_lost(self, lease: str, actual: Mapping[str, list[int]]) -> None:
        """Replace the charges of a lost lease by the actual ones, by window in the order of its claims; or by 0."""
        lost = self.lost.pop(lease)
        self._take_back(lease, lost)
        age_us = self.now_us - lost.drawn_us
        for (window, _), charged in zip(lost.settlement.claims, windows.charges(*lost.settlement), strict=True):
            used = actual[window.id].pop(0) if actual.get(window.id) else 0
            self._set(window, windows.correct(window, self.states[window.id], charged, used, age_us))

    def _take_back(self, lease: str, lost: LostCalls) -> None:
        """Take back the record and the sums of a lost lease, not its windows."""
        self.replaced[lease] = lost
        self._sum_up(lost.settlement.record, -1)

    def _count(self, record: Record) -> None:
        self.records.append(record)
        hour = self._sum_up(record, 1)
        measures = self.measures
        for upstream, counter in measures_of(record):
            place = (hour, record.label_model, upstream, counter)
            measures[place] = measures.get(place, 0) + 1
        if record.user or record.tags:
            self._attribute(record, hour[:10])

    def _attribute(self, record: Record, day: str) -> None:
        numbers = sums_of(record)
        for name, value in attributions_of(record):
            place = (day, record.key, name, value, record.team or "", record.label_model)
            known = self.attributed.get(place)
            self.attributed[place] = numbers if known is None else tuple(map(add, known, numbers))

    def _sum_up(self, record: Record, sign: int) -> str:
        group, numbers = group_of(record), sums_of(record)
        known = self.sums.get(group) or [0] * len(numbers)
        self.sums[group] = list(map(add if sign > 0 else sub, known, numbers))
        return group[0]

    def _set(self, window: Window, state: WindowState) -> None:
        # An empty rate has nothing left to leak: what has leaked of the next unit is no credit for the next draw.
        self.states[window.id] = state if state.used else windows.leak(window, state, self.now_us)
        self.changed[window.id] = window
