"""When dying workers end the gateway, and when they are just replaced."""

from __future__ import annotations

import pytest

from gateway.process.supervisor import DEATHS_WITHIN_S, MAX_DEATHS, SERVED_WELL_S, WorkerDeaths

SOON = SERVED_WELL_S - 0.1


@pytest.mark.parametrize(
    ("pause_s", "lived_s", "is_end"),
    [
        (1.0, None, True),  # it never came so far
        (1.0, 0.0, True),
        (DEATHS_WITHIN_S / MAX_DEATHS, SOON, True),
        (DEATHS_WITHIN_S / (MAX_DEATHS - 1) + 0.1, None, False),  # not within a minute
        (1.0, SERVED_WELL_S, False),  # it served well, whatever killed it
        (1.0, 3600.0, False),
    ],
)
def test_only_deaths_near_a_start_count(pause_s: float, lived_s: float | None, is_end: bool) -> None:
    deaths = WorkerDeaths()
    times = [5000.0 + number * pause_s for number in range(MAX_DEATHS)]
    received = [deaths.note(now, None if lived_s is None else now - lived_s) for now in times]
    assert received == [False] * (MAX_DEATHS - 1) + [is_end]


def test_those_that_served_well_do_not_count_between_the_others() -> None:
    deaths = WorkerDeaths()
    for number in range(MAX_DEATHS - 1):
        assert not deaths.note(100.0 + number, None)
        assert not deaths.note(100.0 + number, 100.0 + number - SERVED_WELL_S)
    assert deaths.note(110.0, None)
