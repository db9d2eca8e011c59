"""A wall clock that is wrong for a while, with the embedded store: no running call is closed, no day is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartsGateways
from tests.fakes.preloaded import MOVES_CLOCK, library
from tests.flows.books import ACCOUNTS
from tests.flows.house import COMPLETIONS, Gateway, eventually, key, model, settings
from tests.flows.scene import Scene

DAY_S = 86_400


class WallClock:
    """That of the gateways that are started with `env`."""

    def __init__(self, folder: Path) -> None:
        self._ahead = folder / "ahead"
        self.set_ahead(0)
        self.env = {"LD_PRELOAD": str(library(MOVES_CLOCK, folder)), "CLOCK_AHEAD": str(self._ahead)}

    def set_ahead(self, seconds: int) -> None:
        """From now on, in one step."""
        new = self._ahead.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._ahead)


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


@pytest.mark.parametrize("step_s", [120, -120])
def test_no_running_call_is_closed_when_the_clock_is_set(
    gateway: StartsGateways, clock: WallClock, step_s: int
) -> None:
    """Two minutes are more than the silence after which the calls of a worker are closed as lost."""
    with Scene() as scene:
        house = gateway(settings(scene.url, server={"workers": 2}, **ACCOUNTS), env=clock.env)
        running = scene.begin(house, 6)
        clock.set_ahead(step_s)
        assert all(told.is_served for told in scene.burst(house, 20))
        scene.end()
        assert all(told.is_served for told in running)
        assert {house.call(told.id)["ended"] for told in running} == {"done"}
        assert "calls of a silent worker" not in house.stderr


def windows(house: Gateway) -> dict[str, int]:
    """What is used of each quota."""
    return {quota["per"]: quota["used"] for quota in house.get("/v1/key").json["quotas"]}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_clock_that_was_years_ahead_deletes_nothing_of_today(
    gateway: StartsGateways, clock: WallClock, workers: int
) -> None:
    with Scene() as scene:
        quotas = [{"requests": 100, "per": "day"}, {"requests": 100, "per": "month"}]
        config = settings(
            scene.url,
            server={"workers": workers},
            models={COMPLETIONS: model("completions")},
            keys=[key("alice", quotas=quotas)],
        )
        house = gateway(config, env=clock.env)
        assert all(told.is_served for told in scene.burst(house, 5))
        assert windows(house) == {"day": 5, "month": 5}
        days = house.usage(group_by="day")
        for years in (1, 40):
            clock.set_ahead(years * 365 * DAY_S)
            assert all(told.is_served for told in scene.burst(house, 5))
            eventually(lambda: any(row not in days for row in house.usage(group_by="day")))
        clock.set_ahead(0)
        assert all(told.is_served for told in scene.burst(house, 5))
        assert windows(house) == {"day": 10, "month": 10}
        (today,) = days
        (now,) = [row for row in house.usage(group_by="day") if row["day"] == today["day"]]
        assert now["requests"] == 10
        assert len(house.calls(limit=1000)) == 20
