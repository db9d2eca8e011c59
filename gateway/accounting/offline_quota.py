"""What a worker may spend on its own while the store is away: a share of each limit, and all of `max_parallel`.

Nobody else's calls are known here, so `n` workers may together admit `n` times the share. What was used before the
outage is not known either: the share is of the limit, not of what is left of it. The windows themselves are charged in
full when the store is back.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.quota import windows
from gateway.records import Claim, Draw, Granted, Refused, Settlement, Window, WindowState

RETRY_US = 1_000_000
"""What a refused caller is told to wait at least: nobody knows when the store will be back."""


class OfflineQuota:
    """The windows of one outage, as one worker sees them. Private to the worker."""

    def __init__(self, share: float, open_draws: Iterable[Draw]) -> None:
        self._share = share
        self._states: dict[str, WindowState] = {}
        self._drawn_us: dict[str, int] = {}
        for draw in open_draws:
            for claim in draw.claims:
                if claim.window.unit == "parallel":
                    self._change(windows.drawn(claim, self._state(claim.window, 0)), claim.window)

    def draw(self, draw: Draw, now_us: int) -> Granted | Refused:
        """Draw on the share of every window, or on none."""
        claims = [Claim(self._shared(claim.window), claim.amount) for claim in draw.claims]
        refused = windows.refusal([(claim, self._state(claim.window, now_us)) for claim in claims], now_us)
        if refused is not None:
            return refused._replace(retry_after_us=max(RETRY_US, refused.retry_after_us or 0))
        for claim in claims:
            self._change(windows.drawn(claim, self._state(claim.window, now_us)), claim.window)
        self._drawn_us[draw.record.id] = now_us
        return Granted(tuple(windows.standing(c.window, self._state(c.window, now_us), now_us) for c in claims))

    def settle(self, settlement: Settlement, now_us: int) -> None:
        """Replace a draw by the truth; of a call that began before the outage only its place is freed."""
        actual = windows.actuals(settlement.record)
        drawn_us = self._drawn_us.pop(settlement.record.id, None)
        for claim in settlement.claims:
            if drawn_us is None and claim.window.unit != "parallel":
                continue
            shared = Claim(self._shared(claim.window), claim.amount)
            state, age_us = self._state(shared.window, now_us), now_us - (drawn_us or now_us)
            self._change(windows.settled(shared, state, actual[claim.window.unit], age_us), shared.window)

    def _shared(self, window: Window) -> Window:
        if window.unit == "parallel":
            return window
        return window._replace(limit=max(1, int(window.limit * self._share)))

    def _state(self, window: Window, now_us: int) -> WindowState:
        return windows.leaked(window, self._states.get(window.id, WindowState(0, 0, now_us)), now_us)

    def _change(self, state: WindowState, window: Window) -> None:
        self._states[window.id] = state
