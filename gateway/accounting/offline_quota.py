"""The share of each limit that one worker may admit while the store is unavailable (`on_outage: allow`). Pure: no
clock, no I/O.

1. A worker admits at most `outage_share` of each limit by itself, at least one unit, and all of `max_parallel`.
2. Admitted amounts are remembered over outages: of a calendar window until the window ends, of a rate until it has
   leaked at the rate of the share. So the total of a window is at most limit + workers x share x limit, however often
   the store becomes unavailable.
3. The store's last answer counts too: a window that was nearly full then admits no more than its rest.
4. `TimeAway` (outage.py): the outages of a sliding hour together last at most `outage_max_s`; then calls are refused.

Limits: calls of other workers are unknown here, and a worker that restarts has its share anew. A token or USD window
may exceed the bound by what calls use beyond their reservations, as at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from gateway.quota import windows
from gateway.records import Claim, Granted, Record, Refused, Window, WindowState, WindowStatus
from gateway.store import RateDraw, Reserve

RETRY_US = 1_000_000
"""The least time for which a refused client should wait: the end of the outage is not known."""

MAX_KNOWN = 20_000
"""Windows of which the store's last answer is kept."""


class OfflineQuota:
    """The windows of all outages, as one worker sees them. Private to the worker."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._admitted: dict[str, tuple[Window, WindowState]] = {}
        """Usage that this worker admitted during outages; each window with its share as the limit."""
        self._running: dict[str, tuple[Window, WindowState]] = {}
        self._known: dict[str, WindowState] = {}
        """The store's last answer, and what this worker admitted since. Calendar windows: settled usage alone, because
        reservations of other workers may have ended."""
        self._drawn_us: dict[str, int] = {}
        """Calls that were admitted here and are not settled."""

    def begin(self, running: Iterable[Reserve], now_us: int) -> None:
        """An outage begins; `running` are the open calls of this worker."""
        self._forget(now_us)
        self._running.clear()
        for draw in running:
            for claim in draw.claims:
                if claim.window.unit == "parallel":
                    self._reserve(self._running, claim, now_us)

    def note(self, statuses: Iterable[WindowStatus], now_us: int) -> None:
        """The store's answer about these windows."""
        known = self._known
        for status in statuses:
            if status.window.unit != "parallel":
                known[status.window.id] = WindowState(status.used, 0, now_us)
        if len(known) > MAX_KNOWN:
            for name in list(islice(known, len(known) - MAX_KNOWN)):
                del known[name]

    def draw(self, draw: Reserve | RateDraw, now_us: int) -> Granted | Refused:
        """Reserve on the share of every window, or on none."""
        shares = [Claim(self._shared(claim.window), claim.amount) for claim in draw.claims]
        states = [self._state(self._place(claim.window), claim.window, now_us) for claim in shares]
        rests = [(claim, self._known_state(claim.window, now_us)) for claim in draw.claims]
        if (refused := windows.refusal([*zip(shares, states, strict=True)], now_us)) is not None:
            return refused._replace(retry_after_us=max(RETRY_US, refused.retry_after_us or 0))
        if (refused := windows.refusal(rests, now_us)) is not None:
            wait_us = refused.retry_after_us
            return refused._replace(retry_after_us=None if wait_us is None else max(RETRY_US, wait_us))
        for claim in shares:
            self._reserve(self._place(claim.window), claim, now_us)
        for claim, state in rests:
            if claim.window.id in self._known:
                self._known[claim.window.id] = windows.draw(claim, state)
        if isinstance(draw, Reserve):
            self._drawn_us[draw.record.id] = now_us
        return Granted(tuple(
            windows.window_status(each.window, self._state(self._place(each.window), each.window, now_us), now_us)
            for each in shares
        ))  # fmt: skip

    def settle(self, record: Record, claims: Sequence[Claim], now_us: int, *, is_void: bool = False) -> None:
        """Replace a reservation by the usage; of one that the store granted, only its parallel slots are known here.

        `is_void`: the call never began; nothing is used, not even a request.
        """
        charges = windows.charges(record, claims)
        drawn_us = self._drawn_us.pop(record.id, None)
        for claim, charge in zip(claims, charges, strict=True):
            window = claim.window
            used = 0 if is_void else charge
            if window.unit == "parallel":
                self._settle(self._running, claim, used, now_us, now_us)
            elif drawn_us is not None:
                self._settle(self._admitted, Claim(self._shared(window), claim.amount), used, drawn_us, now_us)
            if (state := self._known.get(window.id)) is None:
                continue
            state = windows.leak(window, state, now_us)
            if drawn_us is not None:
                self._known[window.id] = windows.settle(claim, state, used, now_us - drawn_us)
            elif window.starts:
                self._known[window.id] = windows.charge(window, state, used, 0)

    def _shared(self, window: Window) -> Window:
        if window.unit == "parallel" and not windows.is_of_upstream(window):
            return window
        return window._replace(limit=max(1, int(window.limit * self._share)))

    def _place(self, window: Window) -> dict[str, tuple[Window, WindowState]]:
        return self._running if window.unit == "parallel" else self._admitted

    def _state(self, place: dict[str, tuple[Window, WindowState]], window: Window, now_us: int) -> WindowState:
        kept = place.get(window.id)
        return WindowState(0, 0, now_us) if kept is None else windows.leak(window, kept[1], now_us)

    def _known_state(self, window: Window, now_us: int) -> WindowState:
        return windows.leak(window, self._known.get(window.id, WindowState(0, 0, now_us)), now_us)

    def _reserve(self, place: dict[str, tuple[Window, WindowState]], claim: Claim, now_us: int) -> None:
        place[claim.window.id] = (claim.window, windows.draw(claim, self._state(place, claim.window, now_us)))

    def _settle(
        self, place: dict[str, tuple[Window, WindowState]], claim: Claim, used: int, drawn_us: int, now_us: int
    ) -> None:
        if claim.window.id in place:
            state = self._state(place, claim.window, now_us)
            place[claim.window.id] = (claim.window, windows.settle(claim, state, used, now_us - drawn_us))

    def _forget(self, now_us: int) -> None:
        """Remove what can no longer refuse a call: calendar windows that have ended, and empty rates."""
        for name, (window, state) in list(self._admitted.items()):
            is_over = window.resets_us <= now_us if window.starts else not windows.leak(window, state, now_us).used
            if is_over:
                del self._admitted[name]
