"""How long an address waits that presents wrong tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.api.auth import place_of
from gateway.web.http_guard.login_throttle import FORGIVEN_S, FREE, LONGEST_S, WrongTokens, after_wrong, wait_s


def wrong(times: int, now: float = 100.0) -> WrongTokens:
    """So many at once, none of which waited."""
    tries = WrongTokens()
    for _ in range(times):
        tries = after_wrong(tries, now)
    return tries


def test_the_first_ones_cost_nothing_and_the_fifth_does() -> None:
    assert [wait_s(wrong(times), 100.0) for times in range(FREE + 2)] == [0, 0, 0, 0, 0, 1]


def test_each_wait_is_twice_the_last_up_to_a_minute() -> None:
    assert [wait_s(wrong(times), 100.0) for times in range(5, 14)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert wait_s(wrong(100_000), 100.0) == LONGEST_S


def test_a_wait_ends_when_it_was_said_to() -> None:
    tries = wrong(7)
    assert wait_s(tries, 103.5) == 0.5
    assert wait_s(tries, 104.0) == 0


def test_who_comes_back_at_once_and_is_wrong_again_waits_longer() -> None:
    tries, now, waits = wrong(5), 100.0, []
    for _ in range(6):
        waits.append(wait_s(tries, now))
        now += waits[-1]
        tries = after_wrong(tries, now)
    assert all(later == 2 * earlier for earlier, later in pairwise(waits))


def test_a_quiet_minute_is_forgiven_but_not_before() -> None:
    tries = wrong(9)
    over = 100.0 + wait_s(tries, 100.0)
    assert after_wrong(tries, over + FORGIVEN_S).wrong == 10
    assert after_wrong(tries, over + FORGIVEN_S + 0.1) == WrongTokens(1, over + FORGIVEN_S + 0.1)


def test_mistakes_that_are_far_apart_never_cost_anything() -> None:
    tries, now = WrongTokens(), 0.0
    for _ in range(50):
        now += FORGIVEN_S + 1
        tries = after_wrong(tries, now)
        assert wait_s(tries, now) == 0


def test_a_guesser_has_a_few_guesses_a_minute_however_it_times_them() -> None:
    """Coming back as soon as it may, or after being forgiven."""
    for pause_s in (0.0, FORGIVEN_S + 0.1):
        tries, now, guesses = WrongTokens(), 0.0, 0
        while now < 3600:
            tries = after_wrong(tries, now)
            guesses += 1
            wait = wait_s(tries, now)
            now += wait + pause_s if wait else 0.0
        assert guesses < 350


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("2001:db8::1%eth0", "2001:db8::2", True),
        (None, "", True),
        (None, "no address", True),
        (None, "192.0.2.1", False),
    ],
)
def test_what_is_one_address(one: str | None, other: str | None, is_same: bool) -> None:
    assert (place_of(one) == place_of(other)) is is_same
