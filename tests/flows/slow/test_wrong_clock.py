"""A wall clock that is wrong for a while, with the embedded store: no running call is closed, no day is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartsGateways
from tests.fakes.preloaded import MOVES_CLOCK, library
from tests.flows.books import ACCOUNTS
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, model, settings
from tests.flows.scenario import Scenario

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
    start_gateway: StartsGateways, clock: WallClock, step_s: int
) -> None:
    """Two minutes are more than the silence after which the calls of a worker are closed as lost."""
    with Scenario() as scenario:
        gateway = start_gateway(settings(scenario.url, server={"workers": 2}, **ACCOUNTS), env=clock.env)
        running = scenario.begin(gateway, 6)
        clock.set_ahead(step_s)
        assert all(received.is_served for received in scenario.burst(gateway, 20))
        scenario.end()
        assert all(received.is_served for received in running)
        assert {gateway.call(received.id)["ended"] for received in running} == {"done"}
        assert "calls of a silent worker" not in gateway.stderr


def windows(gateway: Gateway) -> dict[str, int]:
    """What is used of each quota."""
    return {quota["per"]: quota["used"] for quota in gateway.get("/v1/key").json["quotas"]}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_clock_that_was_years_ahead_deletes_nothing_of_today(
    start_gateway: StartsGateways, clock: WallClock, workers: int
) -> None:
    with Scenario() as scenario:
        quotas = [{"requests": 100, "per": "day"}, {"requests": 100, "per": "month"}]
        config = settings(
            scenario.url,
            server={"workers": workers},
            models={COMPLETIONS: model("completions")},
            keys=[key("alice", quotas=quotas)],
        )
        gateway = start_gateway(config, env=clock.env)
        assert all(received.is_served for received in scenario.burst(gateway, 5))
        assert windows(gateway) == {"day": 5, "month": 5}
        days = gateway.usage(group_by="day")
        for years in (1, 40):
            clock.set_ahead(years * 365 * DAY_S)
            assert all(received.is_served for received in scenario.burst(gateway, 5))
            eventually(lambda: any(row not in days for row in gateway.usage(group_by="day")))
        clock.set_ahead(0)
        assert all(received.is_served for received in scenario.burst(gateway, 5))
        assert windows(gateway) == {"day": 10, "month": 10}
        (today,) = days
        (now,) = [row for row in gateway.usage(group_by="day") if row["day"] == today["day"]]
        assert now["requests"] == 10
        assert len(gateway.calls(limit=1000)) == 20
