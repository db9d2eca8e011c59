"""The retry time of a refusal: with no call open, it is the first moment at which the call is admitted."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import QuotaSpent, RateLimited
from gateway.quota import limit_headers
from gateway.quota import windows as limits
from gateway.records import Claim, Refused, Unit, Window, WindowState

SECOND = 1_000_000
NOW_US = 1_795_226_400_123_457
"""Not a whole millisecond."""
ROUNDED_US = 1
"""A rate is read rounded to a whole microsecond, to the side on which it is never ahead."""
MIDNIGHT_US = 1_795_305_600 * SECOND


class Deed(NamedTuple):
    """Something that happens to the windows, so long after what was before it."""

    pause_us: int
    kind: str
    units: int
    """As estimated."""
    actual: int
    """As settled."""


def rate(name: str, unit: Unit, limit: int, period_s: int) -> Window:
    return Window(name, "key:k", unit, str(period_s), None, limit, period_s * SECOND)


def a_day(name: str, unit: Unit, limit: int) -> Window:
    return Window(name, "team:t", unit, "day", None, limit, starts="2026-11-20", resets_us=MIDNIGHT_US)


units: st.SearchStrategy[Unit] = st.sampled_from(("requests", "tokens", "usd"))
limits_ = st.integers(1, 20) | st.integers(1, 1000) | st.sampled_from((40_000, 10**6, 5 * 10**9, 10**12, 2**53 - 1))
periods_s = st.sampled_from((1, 60, 3600)) | st.integers(1, 100_000)
rates = st.lists(st.tuples(units, limits_, periods_s), min_size=1, max_size=4).map(
    lambda found: [rate(f"w{number}", *each) for number, each in enumerate(found)]
)
shares = st.integers(0, 1000)
deeds = st.lists(
    st.builds(
        Deed,
        st.integers(0, 1000) | st.integers(0, 90 * SECOND) | st.integers(0, 7200 * SECOND),
        st.sampled_from(("draw", "draw", "draw", "settle", "settle", "void", "correct", "forget")),
        shares,
        st.integers(0, 1500),
    ),
    max_size=30,
)


class Trial:
    """Windows under calls that claim so many thousandths of each limit. Every call has ended when it is `over`."""

    def __init__(self, windows: list[Window]) -> None:
        self.windows = windows
        self.states = [WindowState(0, 0, NOW_US) for _ in windows]
        self.now_us = NOW_US
        self.open: list[tuple[int, list[Claim]]] = []

    def claims(self, share: int) -> list[Claim]:
        return [Claim(window, max(1, window.limit * share // 1000)) for window in self.windows]

    def refusal(self, claims: list[Claim], at_us: int) -> Refused | None:
        """The refusal of a call at this time, None if it is admitted; nothing is changed."""
        states = [limits.leak(window, state, at_us) for window, state in zip(self.windows, self.states, strict=True)]
        return limits.refusal(list(zip(claims, states, strict=True)), at_us)

    def do(self, deed: Deed) -> None:
        self.now_us += deed.pause_us
        if deed.kind == "draw":
            claims = self.claims(deed.units)
            if self.refusal(claims, self.now_us) is None:
                self._change(claims, limits.draw)
                self.open.append((self.now_us, claims))
        elif self.open:
            drawn_us, claims = self.open.pop()
            self._end(deed, claims, self.now_us - drawn_us)

    def _end(self, deed: Deed, claims: list[Claim], age_us: int) -> None:
        def actual(claim: Claim) -> int:
            return claim.window.limit * deed.actual // 1000

        if deed.kind == "settle":
            self._change(claims, lambda claim, state: limits.settle(claim, state, actual(claim), age_us))
        elif deed.kind == "void":
            self._change(claims, lambda claim, state: limits.void(claim, state, age_us))
        elif deed.kind == "correct":  # it was lost first
            self._change(claims, lambda claim, state: limits.settle(claim, state, claim.amount, age_us))
            self._change(
                claims,
                lambda claim, state: limits.correct(claim.window, state, claim.amount, actual(claim), age_us),
            )
        else:  # the draw was never heard of
            self._change(claims, lambda claim, state: limits.void(claim, state, age_us))
            self._change(claims, lambda claim, state: limits.charge(claim.window, state, actual(claim), age_us))

    def _change(self, claims: list[Claim], change: Any) -> None:
        for place, claim in enumerate(claims):
            leaked = limits.leak(claim.window, self.states[place], self.now_us)
            changed = change(claim, leaked)
            # As the stores do: an empty rate has no part of a unit to its credit.
            self.states[place] = changed if changed.used else limits.leak(claim.window, changed, self.now_us)

    def over(self, actual: int) -> None:
        while self.open:
            self.do(Deed(0, "settle", 0, actual))


def received_ms(refused: Refused) -> int:
    error = limit_headers.refusal(refused)
    assert isinstance(error, RateLimited)
    return int(error.headers["Retry-After-Ms"])


@given(rates, deeds, st.integers(0, 1500), st.integers(0, 10 * SECOND), st.integers(1, 1000))
@example([rate("w0", "tokens", 40_000, 60)], [Deed(0, "draw", 1000, 0)], 1000, 0, 1)
@example([rate("w0", "requests", 7, 60)], [Deed(0, "draw", 1000, 0)], 1000, 333, 1)
def test_a_call_is_admitted_after_retry_after_and_not_before(
    windows: list[Window], before: list[Deed], actual: int, pause_us: int, asked: int
) -> None:
    trial = Trial(windows)
    for deed in before:
        trial.do(deed)
    trial.over(actual)
    trial.now_us += pause_us
    claims = trial.claims(asked)
    refused = trial.refusal(claims, trial.now_us)
    if refused is None:
        return
    exact_us = refused.retry_after_us
    assert exact_us is not None
    assert trial.refusal(claims, trial.now_us + exact_us) is None
    assert trial.refusal(claims, trial.now_us + exact_us - 1 - ROUNDED_US) is not None
    wait_us = received_ms(refused) * 1000
    assert wait_us - 1000 < exact_us <= wait_us  # the first whole millisecond
    assert trial.refusal(claims, trial.now_us + wait_us) is None
    early = trial.refusal(claims, trial.now_us + max(0, wait_us - 50_000))
    assert early is not None
    assert early.retry_after_us is not None  # the same moment for a repeated call
    assert abs(early.retry_after_us + max(0, wait_us - 50_000) - exact_us) <= ROUNDED_US


@given(rates, st.integers(1, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 3600 * SECOND))
def test_only_what_is_settled_makes_a_quota_spent(
    windows: list[Window], limit: int, used: int, reserved: int, pause_us: int
) -> None:
    """A day window that is full because of another call's reservation ends by itself, as do all rates beside it."""
    day = Claim(a_day("d", "tokens", limit), 1)
    trial = Trial(windows)
    trial.do(Deed(0, "draw", 1000, 0))
    flowing = [
        (claim, limits.leak(claim.window, state, NOW_US + pause_us))
        for claim, state in zip(trial.claims(1), trial.states, strict=True)
    ]
    refused = limits.refusal([*flowing, (day, WindowState(used, reserved))], NOW_US + pause_us)
    if used + 1 > limit:
        assert refused is not None
        assert refused.window_status.window == day.window
        error = limit_headers.refusal(refused)
        assert isinstance(error, QuotaSpent)
        assert error.headers["X-Should-Retry"] == "false"
        assert not {"Retry-After", "Retry-After-Ms"} & set(error.headers)
    elif refused is not None:
        in_the_way_ms = limits.IN_THE_WAY_US // 1000 if used + reserved + 1 > limit else 0
        assert received_ms(refused) >= in_the_way_ms
    else:
        assert used + reserved + 1 <= limit
    if refused is not None:
        assert [standing.window for standing in refused.window_statuses] == [*windows, day.window]
