"""Finds quotas that reached an alert level, and sends each alert once among all workers on one store.

Once a second each worker checks the windows that its calls have changed, and a portion of all windows: this finds
changes of killed workers, and limits that were lowered while no gateway ran. A reached level is claimed in the store.
The worker with the claim sends the alert, then extends the claim to the end of the window; other workers skip it. A
claim first lasts a minute, so that another worker takes over from one that was killed before it sent. The log line
(with the metric) and each receiver have separate claims, so that a slow receiver does not repeat the others.

A kill between sending and extending sends twice; no alert is lost. While the store is unavailable nothing is claimed,
and all windows are checked again later.

Calls have priority: long lists are processed in portions, with a turn of the event loop in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from gateway.accounting.changed_windows import ChangedWindows
from gateway.chunked import portions
from gateway.observe.metrics import Telemetry
from gateway.quota.scopes import member_of
from gateway.records import Window
from gateway.store import Ledger, StoreUnavailable

from . import policy
from .channels import Channel
from .forms import Notice
from .metrics import count_alert
from .policy import Alert
from .routing import Subject, subject_of

log = logging.getLogger("gateway")

SWEEP_EVERY_S = 60.0

SWEPT_AT_ONCE = 200
"""Owners in one look: all are gone through once a minute, or as long as that takes."""

OWNERS_IN_A_TURN = 20
"""The maximum number of owners in one turn of the event loop."""


class Sweep:
    """Scans all windows repeatedly, to find changes that no call of this worker made.

    `windows` begins to go through all windows at a Unix time, those of one owner after another. They have to be
    computed, and many owners have none: portions are therefore counted in owners.
    """

    def __init__(self, windows: Callable[[float], Iterator[Sequence[Window]]]) -> None:
        self._windows = windows
        self._rest: Iterator[Sequence[Window]] | None = None
        self._next_at = 0.0

    def portion(self, now: float) -> Iterator[list[Window]]:
        """The calendar windows of the next owners, those of a few at a time."""
        if self._rest is None:
            if now < self._next_at:
                return
            self._rest, self._next_at = self._windows(now), now + SWEEP_EVERY_S
        left = SWEPT_AT_ONCE
        while left and self._rest is not None:
            most = min(left, OWNERS_IN_A_TURN)
            owned = list(islice(self._rest, most))
            left -= most
            if len(owned) < most:
                self._rest = None
            yield [window for some in owned for window in some if window.starts]


LOOK_EVERY_S = 1.0
LOOK_WHILE_AWAY_S = 5.0

LOOKED_AT_ONCE = 500
"""Windows that calls have changed, in one look."""

CLAIM_S = 60.0
"""How long a claim without a sent alert lasts."""

RENEW_EVERY_S = 20.0

CLAIMED_AT_ONCE = 100

IN_A_TURN = 100
"""Windows in one turn of the event loop, which takes well under a millisecond."""

AFTER_END_S = 3600.0
"""How long a sent alert's claim outlives its window; clocks differ."""

UNWANTED_S = 60.0
"""The time after which an alert that a receiver did not take is decided again: keys change their teams."""

LOG = "log"
"""The way of delivery that there always is. Each way has its own claim."""


class _ClaimedAlert(NamedTuple):
    """An alert that the store need not be asked about for now."""

    alert: Alert
    until: float
    """Unix time until which the store is not asked again."""


class _Delivery(NamedTuple):
    """An alert to be delivered in one way."""

    name: str
    """The name of its claim."""
    way: str
    alert: Alert
    subject: Subject | None = None
    """Whose it is, once that was looked up."""


class Watcher:
    """One worker's alert watcher; call `run`. `holder` is its unique name in the store.

    `windows` goes through all windows there are at a Unix time, those of one owner after another; `present` are the
    same windows with the limits valid at that time; `owners` returns the team and the owner of each known key.
    `channels` are the receivers by their way of delivery.
    """

    def __init__(
        self, ledger: Ledger, changed_windows: ChangedWindows, windows: Callable[[float], Iterator[Sequence[Window]]],
        present: Callable[[Sequence[Window], float], Awaitable[Sequence[Window]]],
        owners: Callable[[], Mapping[str, tuple[str | None, str | None]]],
        telemetry: Telemetry, channels: Mapping[str, Channel], *, levels: Sequence[int] = policy.LEVELS,
        log_levels: Sequence[int] = policy.LEVELS, namespace: str, holder: str, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._changed_windows = changed_windows
        changed_windows.is_watched = True
        self._sweep = Sweep(windows)
        self._present = present
        self._owners = owners
        self._telemetry = telemetry
        self._channels = channels
        self._ways = (LOG, *channels)
        self._levels = levels
        self._log_levels = log_levels
        self._namespace = namespace
        self._holder = holder
        self._clock = clock
        self._claimed: dict[str, _ClaimedAlert] = {}
        """Alerts that are sent, or claimed by a worker that will send them. Bounded by the current windows."""
        self._kept: dict[str, float] = {}
        """Alerts that this worker has sent and has not yet noted in the store, with their end (Unix time)."""
        self._renew_at = 0.0

    def __repr__(self) -> str:
        return f"<Watcher {len(self._claimed)} claimed, {[*self._channels.values()]}>"

    async def run(self) -> None:
        """Look again and again, until cancelled. To be kept (`Tasks.keep`)."""
        while True:
            pause_s = LOOK_EVERY_S
            try:
                await self.look()
            except StoreUnavailable:
                pause_s = LOOK_WHILE_AWAY_S
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Check once, and send due alerts. Raises `StoreUnavailable`; unchecked windows are checked again."""
        now = self._clock()
        await self._expire(now)
        while self._changed_windows.gather(IN_A_TURN):  # noqa: ASYNC110 - it waits for nothing
            await asyncio.sleep(0)
        changed, refused = self._changed_windows.take(LOOKED_AT_ONCE)
        windows: dict[str, Window] = {}
        try:
            for swept in self._sweep.portion(now):
                windows.update({window.id: window for window in swept})
                await asyncio.sleep(0)
            windows.update({window.id: window for window in changed})
            for some in portions([*windows.values()], IN_A_TURN):
                statuses = await self._ledger.window_statuses(some, now)
                await self._deliver(policy.reached(statuses, refused, int(now * 1e6), self._levels), refused, now)
            await self._keep(now)
        except BaseException:
            self._changed_windows.put_back([*changed, *windows.values()], refused)
            raise

    async def close(self, timeout_s: float) -> None:
        """A last check, and a last attempt for the waiting webhooks; claims of failed ones are released, so that
        another worker sends them."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(timeout_s / 3):
                await self.look()
        await asyncio.gather(*[each.outbox.close(timeout_s / 3) for each in self._channels.values()])
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(timeout_s / 3):
                await self._keep(self._clock())
                await self._claim(dict.fromkeys(self._waiting, 0.0))

    async def _expire(self, now: float) -> None:
        """Remove ended windows, and check again the claims of other workers: a killed one did not send."""
        for some in portions([name for name, claimed in self._claimed.items() if claimed.until <= now], IN_A_TURN):
            for name in some:
                alert = self._claimed.pop(name).alert
                window = alert.window_status.window
                self._changed_windows.put_back([window], [window.id] if alert.is_refused else ())
            await asyncio.sleep(0)

    # -------------------------------------------------------------------------------------------------------- delivery

    async def _deliver(self, found: Sequence[Alert], refused: Container[str], now: float) -> None:
        deliveries = self._unclaimed(found)
        if deliveries:
            deliveries = self._unclaimed(await self._by_limits_of_now(deliveries, refused, now))
            deliveries = await self._wanted(deliveries, now)
        for claimed in portions(deliveries, CLAIMED_AT_ONCE):
            held = await self._claim({delivery.name: CLAIM_S for delivery in claimed})
            for delivery in claimed:
                self._note_claim(delivery, held[delivery.name], now)
                await asyncio.sleep(0)

    def _unclaimed(self, found: Sequence[Alert]) -> list[_Delivery]:
        deliveries = [
            _Delivery(f"{way}|{name}", way, alert) for alert in found for name in [alert.name] for way in self._ways
        ]
        return [delivery for delivery in deliveries if delivery.name not in self._claimed]

    async def _wanted(self, deliveries: Sequence[_Delivery], now: float) -> list[_Delivery]:
        """Those whose receivers take such an alert."""
        keys, found = self._owners(), []
        for some in portions(deliveries, IN_A_TURN):
            for delivery in some:
                level, channel = delivery.alert.level, self._channels.get(delivery.way)
                subject = subject_of(delivery.alert.window_status.window.scope, keys)
                if level in self._log_levels if channel is None else channel.takes(subject, level):
                    found.append(delivery._replace(subject=subject))
                else:
                    self._claimed[delivery.name] = _ClaimedAlert(delivery.alert, now + UNWANTED_S)
            await asyncio.sleep(0)
        return found

    async def _by_limits_of_now(
        self, deliveries: Sequence[_Delivery], refused: Container[str], now: float
    ) -> list[Alert]:
        """The levels that are reached all the same: a call has brought its windows as they were when it began, and
        where a limit was raised since, what was refused is no longer."""
        known = [
            *{delivery.alert.window_status.window.id: delivery.alert.window_status for delivery in deliveries}.values()
        ]
        windows = await self._present([status.window for status in known], now)
        statuses = [status._replace(window=window) for status, window in zip(known, windows, strict=True)]
        still_refused = {
            window.id
            for status, window in zip(known, windows, strict=True)
            if window.id in refused and window.limit <= status.window.limit
        }
        return policy.reached(statuses, still_refused, int(now * 1e6), self._levels)

    def _note_claim(self, delivery: _Delivery, held_s: float, now: float) -> None:
        """The result of a claim: this worker holds it and delivers (0), or another one holds it for `held_s`."""
        until = now + held_s
        if not held_s:
            until = delivery.alert.window_status.window.resets_us / 1e6 + AFTER_END_S
            self._deliver_one(delivery, now)
        self._claimed[delivery.name] = _ClaimedAlert(delivery.alert, until)

    def _deliver_one(self, delivery: _Delivery, now: float) -> None:
        alert = delivery.alert
        window = alert.window_status.window
        kind, _, name = window.scope.partition(":")
        if delivery.way == LOG:
            log.warning("quota alert: %s", policy.sentence(alert))
            count_alert(
                self._telemetry, scope=kind, key=name if kind == "key" else "", team=member_of(window.scope)[0] or "",
                unit=window.unit, per=window.per, level=alert.level,
            )  # fmt: skip
            self._kept[delivery.name] = window.resets_us / 1e6 + AFTER_END_S
        else:
            subject = delivery.subject
            assert subject is not None
            facts = policy.message(alert, now, self._namespace, subject.team)
            notice = Notice(subject, policy.sentence(alert), facts, alert.name)
            self._channels[delivery.way].put(delivery.name, notice)

    async def _keep(self, now: float) -> None:
        """Note sent alerts in the store, and renew the claims on the others."""
        for channel in self._channels.values():
            for name in channel.outbox.take_done():
                if (claimed := self._claimed.get(name)) is not None:
                    self._kept[name] = claimed.until
        if kept := {name: until - now for name, until in islice(self._kept.items(), CLAIMED_AT_ONCE)}:
            await self._claim(kept)
            for name in kept:
                del self._kept[name]
        if (waiting := self._waiting) and now >= self._renew_at:
            held = await self._claim(dict.fromkeys(waiting, CLAIM_S))
            self._renew_at = now + RENEW_EVERY_S
            for name in waiting:
                if held[name]:
                    for channel in self._channels.values():
                        channel.outbox.drop(name)
                    self._claimed[name] = self._claimed[name]._replace(until=now + held[name])

    @property
    def _waiting(self) -> list[str]:
        """The alerts that no receiver has taken yet."""
        return [name for channel in self._channels.values() for name in channel.outbox.waiting]

    async def _claim(self, names: Mapping[str, float]) -> dict[str, float]:
        return await self._ledger.claim(self._holder, names) if names else {}
