"""Incidents: several workers on one store report each and its end once, through restarts, kills and outages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from gateway.config import build
from gateway.observe.metrics import Telemetry
from gateway.store import Ledger, Store, StoreUnavailable
from gateway.upstream.status import UpstreamReport
from gateway.wings.alerts import incidents, policy
from gateway.wings.alerts.channels import Channel
from gateway.wings.alerts.incident_watcher import KEPT_S, IncidentWatcher
from gateway.wings.alerts.incidents import CALM_S, Cause
from gateway.wings.alerts.outbox import Outbox
from gateway.wings.alerts.settings import AlertReceiver
from gateway.wings.alerts.webhook import PostResult
from tests.store.changes import Clock
from tests.store.conftest import OpensStores

STEP_S = 20.0
PAGER = AlertReceiver(form="pagerduty", routing_key=SecretStr("r"))


class Away:
    """A store with outages on demand."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = False

    async def exchange(self, *given: Any) -> dict[str, str]:
        if self.is_away:
            raise StoreUnavailable("away on request")
        return await self._store.exchange(*given)

    async def claim(self, *given: Any) -> dict[str, float]:
        if self.is_away:
            raise StoreUnavailable("away on request")
        return await self._store.claim(*given)


class Duty:
    """PagerDuty, and a time that the tests set. Each event is (worker's gateway, action, key)."""

    def __init__(self, open_store: OpensStores, clock: Clock, folder: Path) -> None:
        self.events: list[tuple[str, str]] = []
        self.clock = clock
        self.is_refusing = False
        self._open = open_store
        self._folder = folder
        self._workers: list[DutyWorker] = []

    async def post(self, body: bytes) -> PostResult:
        if self.is_refusing:
            return PostResult(503, "it answers 503")
        event = json.loads(body)
        self.events.append((event["event_action"], event["dedup_key"].split("/", 2)[2]))
        return PostResult(202, "it answers 202")

    async def worker(self, name: str, gateway: str = "one") -> DutyWorker:
        made = DutyWorker(await self._open(), self, name, self._folder / gateway)
        self._workers.append(made)
        return made

    async def look(self, *workers: DutyWorker, after_s: float = 0.0) -> None:
        """All these look for some time, and then twice, so that the store knows what was taken."""
        steps = int(after_s // STEP_S)
        for step_s in [*[STEP_S] * steps, after_s - steps * STEP_S, 0.0]:
            self.clock.advance(step_s)
            for worker in workers:
                await worker.look()


class DutyWorker:
    def __init__(self, store: Store, duty: Duty, name: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        config = build({
            "upstreams": {"up": {"base_url": "https://a.example/v1"}, "other": {"base_url": "https://b.example/v1"}},
            "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 1}},
            "store": {"namespace": "acme", "url": f"embedded:{folder}/data", "journal_dir": str(folder)},
        })  # fmt: skip
        self.ledger = Away(store)
        self.telemetry = Telemetry([], 0, CollectorRegistry())
        self.failing: dict[str, float] = {}
        """Upstreams with a circuit that is not closed, and for how many seconds."""
        self.outbox = Outbox(duty.post)
        self.watcher = IncidentWatcher(
            cast(Ledger, self.ledger), config, self._reports, self.telemetry,
            {"to pager": Channel(PAGER, self.outbox, (), {})}, holder=name, clock=lambda: duty.clock.now,
        )  # fmt: skip

    def _reports(self) -> Iterator[UpstreamReport]:
        for name in ("up", "other"):
            yield UpstreamReport(name, 2 if name in self.failing else 0, 0, 0, (), {}, "timeout", 0.0, 0,
                                 self.failing.get(name, 0.0))  # fmt: skip

    async def look(self) -> None:
        try:
            await self.watcher.look()
        except StoreUnavailable:
            pass
        for _ in range(100):
            await asyncio.sleep(0)


@pytest.fixture
async def duty(open_store: OpensStores, clock: Clock, tmp_path: Path) -> Any:
    made = Duty(open_store, clock, tmp_path)
    yield made
    for worker in made._workers:
        await worker.watcher.close(0.1)


OPEN, OVER = ("trigger", "upstream/up"), ("resolve", "upstream/up")


async def test_a_failing_upstream_and_its_end_are_reported_once_by_one_of_two(duty: Duty) -> None:
    one, two = await duty.worker("one"), await duty.worker("two", "two")
    one.failing["up"] = two.failing["up"] = 59
    await duty.look(one, two)
    assert duty.events == []
    one.failing["up"] = two.failing["up"] = 60
    await duty.look(one, two)
    await duty.look(one, two, after_s=5)
    assert duty.events == [OPEN]
    one.failing.clear()
    await duty.look(one, two, after_s=CALM_S)
    assert duty.events == [OPEN]  # for the other worker it fails
    two.failing.clear()
    await duty.look(one, two, after_s=1)
    await duty.look(one, two, after_s=CALM_S - 1)
    await duty.look(one, two, after_s=1)
    await duty.look(one, two, after_s=5)
    assert duty.events == [OPEN, OVER]


async def test_what_comes_back_soon_is_one_incident(duty: Duty) -> None:
    one = await duty.worker("one")
    one.failing["up"] = 60
    await duty.look(one)
    one.failing.clear()
    await duty.look(one, after_s=CALM_S / 2)
    one.failing["up"] = 1
    await duty.look(one, after_s=CALM_S / 2)
    one.failing.clear()
    await duty.look(one, after_s=CALM_S / 2)
    assert duty.events == [OPEN]


async def test_a_restart_repeats_nothing_and_reports_the_end(duty: Duty) -> None:
    one = await duty.worker("one")
    one.failing["up"] = 60
    await duty.look(one)
    await one.watcher.close(1)
    again = await duty.worker("again")
    again.failing["up"] = 90
    await duty.look(again)
    assert duty.events == [OPEN]
    again.failing.clear()
    await duty.look(again, after_s=KEPT_S + 1)  # what the ended worker saw is kept for so long
    await duty.look(again, after_s=CALM_S)
    assert duty.events == [OPEN, OVER]


async def test_another_worker_follows_one_that_was_killed_before_it_was_taken(
    duty: Duty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "PAUSES_S", (600.0,) * 3)
    one, two = await duty.worker("one"), await duty.worker("two")
    one.failing["up"] = two.failing["up"] = 60
    duty.is_refusing = True
    await duty.look(one)
    await one.outbox.close(0)  # killed
    duty.is_refusing = False
    await duty.look(two)
    assert duty.events == []
    await duty.look(two, after_s=KEPT_S + 1)
    assert duty.events == [OPEN]


async def test_the_ledger_is_in_doubt_for_an_hour_after_changes_were_lost(duty: Duty) -> None:
    one = await duty.worker("one")
    await duty.look(one)
    one.telemetry.change_restored("restored", 1)
    await duty.look(one)
    assert duty.events == []
    one.telemetry.change_restored("failed", 1)
    await duty.look(one)
    name = f"ledger/{incidents.LOST}"
    assert duty.events == [("trigger", name)]
    await duty.look(one, after_s=incidents.DOUBT_S)
    await duty.look(one, after_s=CALM_S)
    assert duty.events == [("trigger", name), ("resolve", name)]


STORE_OPEN, STORE_OVER = ("trigger", "store/acme"), ("resolve", "store/acme")


async def test_a_store_that_is_away_is_reported_by_one_worker_of_each_gateway(duty: Duty) -> None:
    one, two, other = await duty.worker("one"), await duty.worker("two"), await duty.worker("other", "two")
    for worker in (one, two, other):
        worker.ledger.is_away = True
    await duty.look(one, two, other)
    await duty.look(one, two, other, after_s=59)
    assert duty.events == []
    await duty.look(one, two, other, after_s=1)
    await duty.look(one, two, other, after_s=5)
    assert duty.events == [STORE_OPEN, STORE_OPEN]
    for worker in (one, two, other):
        worker.ledger.is_away = False
    await duty.look(one, two, other)
    await duty.look(one, two, other, after_s=5)
    assert duty.events == [STORE_OPEN] * 2 + [STORE_OVER] * 2


async def test_the_end_of_an_outage_is_reported_after_a_restart(duty: Duty) -> None:
    one = await duty.worker("one")
    one.ledger.is_away = True
    await duty.look(one)
    await duty.look(one, after_s=60)
    await one.watcher.close(0.1)
    again = await duty.worker("again")
    await duty.look(again)
    assert duty.events == [STORE_OPEN, STORE_OVER]


async def test_a_short_outage_is_none(duty: Duty) -> None:
    one = await duty.worker("one")
    one.ledger.is_away = True
    await duty.look(one)
    one.ledger.is_away = False
    await duty.look(one, after_s=30)
    one.ledger.is_away = True
    await duty.look(one, after_s=31)
    assert duty.events == []


def test_the_earliest_time_of_a_cause_counts() -> None:
    first, later = Cause("upstream", "up", 1.0, "a"), Cause("upstream", "up", 2.0, "b")
    assert incidents.merged([later, first]) == incidents.merged([first, later]) == {"upstream/up": first}
