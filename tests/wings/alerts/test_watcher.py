"""Several workers watch the same quotas: one of them sends each level once, also after kills and outages."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from gateway.accounting.changed_windows import ChangedWindows
from gateway.observe.metrics import Telemetry
from gateway.records import Claim, Granted, Refused, Window, WindowStatus
from gateway.store import Ledger, Store, StoreUnavailable
from gateway.tasks import Tasks
from gateway.wings.alerts import watcher
from gateway.wings.alerts.channels import Channel
from gateway.wings.alerts.outbox import Outbox
from gateway.wings.alerts.settings import WEBHOOK, AlertReceiver
from gateway.wings.alerts.watcher import Watcher
from gateway.wings.alerts.webhook import PostResult
from tests.fakes.scripted import until
from tests.store.changes import Clock, daily, draw, money, settlement, slow, tokens
from tests.store.conftest import OpensStores
from tests.store.worker import Worker

HOUR_S = 3600.0


class Post:
    """A webhook: answers each message, or holds it."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.is_held = False

    async def __call__(self, body: bytes) -> PostResult:
        if self.is_held:
            await asyncio.sleep(3600)
        self.received.append(json.loads(body))
        return PostResult(200, "it answers 200")

    @property
    def levels(self) -> list[tuple[str, int]]:
        return sorted((each["scope"], each["level"]) for each in self.received)


async def turns() -> None:
    """Iterations of the event loop in which every message that is not held is posted, however long they take."""
    for _ in range(100):
        await asyncio.sleep(0)


class AlertWorker:
    """A worker: it calls, and watches. `die` is what `kill -9` would be."""

    def __init__(self, store: Store, clock: Clock, post: Post | None, name: str, every: Sequence[Window] = ()) -> None:
        self.worker = Worker(store)
        self.touched = ChangedWindows()
        self.telemetry = Telemetry(["k", "j"], 1, CollectorRegistry())
        self.outbox = Outbox(post) if post else None
        self.ledger = Away(store)
        self.swept: list[float] = []
        self.changed: dict[str, Window] = {}
        """Windows whose limits have changed since."""

        def windows(now: float) -> Iterator[list[Window]]:
            self.swept.append(now)
            return iter([[window] for window in every])

        receiver = AlertReceiver(webhook=SecretStr("http://hooks.example.com"))
        channels = {WEBHOOK: Channel(receiver, self.outbox, (80, 100), {})} if self.outbox else {}
        self.watcher = Watcher(
            cast(Ledger, self.ledger), self.touched, windows, self.present,
            lambda: {"k": ("red", None)}, self.telemetry, channels,
            namespace="acme", holder=name, clock=lambda: clock.now,
        )  # fmt: skip

    async def present(self, windows: Sequence[Window], now: float) -> list[Window]:
        return [self.changed.get(window.id, window) for window in windows]

    async def use(self, claim: Claim, used: int) -> None:
        """A call with this charge."""
        wish = draw(claim._replace(amount=1))
        assert isinstance(await self.worker.draw(wish, is_forced=True), Granted)
        more = {"cost_nusd": used} if claim.window.unit == "usd" else {}
        end = self.worker.closing(settlement(wish, used, key=claim.window.id, **more))
        applied = await self.worker.send(end)
        self.touched.note([end], applied.verdicts)

    async def be_refused(self, claim: Claim) -> None:
        refused = await self.worker.refused(claim)
        assert refused.retry_after_us is None
        self.touched.note([], [refused])

    async def look(self) -> None:
        await self.watcher.look()
        if self.outbox is not None:
            await turns()
        await self.watcher.look()  # stores which messages the webhook accepted

    async def die(self) -> None:
        if self.outbox is not None:
            await self.outbox.close(0)

    def counted(self) -> dict[tuple[str, str, str], float]:
        (family,) = [each for each in self.telemetry.registry.collect() if each.name == "gateway_quota_alerts"]
        return {
            (sample.labels["key"] or sample.labels["team"], sample.labels["unit"], sample.labels["level"]): sample.value
            for sample in family.samples
            if sample.name.endswith("_total")
        }


class Away:
    """A store with outages on demand."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = False
        self.claims = 0

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        if self.is_away:
            raise StoreUnavailable("away on request")
        return await self._store.window_statuses(windows, now)

    async def claim(self, holder: str, names: dict[str, float]) -> dict[str, float]:
        self.claims += 1
        if self.is_away:
            raise StoreUnavailable("away on request")
        return await self._store.claim(holder, names)


class Workers:
    """Opens workers on the same store."""

    def __init__(self, open_store: OpensStores, clock: Clock) -> None:
        self.post = Post()
        self.clock = clock
        self._open = open_store
        self.made_workers: list[AlertWorker] = []

    async def alert_worker(self, *every: Claim, is_quiet: bool = False) -> AlertWorker:
        name = f"holder-{len(self.made_workers)}"
        post = None if is_quiet else self.post
        made = AlertWorker(await self._open(), self.clock, post, name, [claim.window for claim in every])
        self.made_workers.append(made)
        return made


@pytest.fixture
async def workers(open_store: OpensStores, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    # Claims last hours here instead of minutes: the clock of a real server cannot be faked.
    monkeypatch.setattr(watcher, "CLAIM_S", HOUR_S)
    monkeypatch.setattr(watcher, "RENEW_EVERY_S", HOUR_S / 3)
    made = Workers(open_store, clock)
    yield made
    for alert_worker in made.made_workers:
        await alert_worker.die()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("quota alert: ")]


async def test_each_level_is_sent_once_on_every_channel(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    alert_worker = await workers.alert_worker()
    quota = tokens(100)
    for used, received in ((79, []), (1, [80]), (10, [80]), (10, [80, 100]), (50, [80, 100])):
        await alert_worker.use(quota, used)
        await alert_worker.look()
        await alert_worker.look()
        assert [each["level"] for each in workers.post.received] == received
        assert len(lines(caplog)) == len(received)
        assert alert_worker.counted() == {("k", "tokens", str(level)): 1 for level in received}
    assert workers.post.received[0]["text"] in lines(caplog)[0]
    assert (workers.post.received[0]["used"], workers.post.received[1]["used"]) == (80, 100)
    assert {each["team"] for each in workers.post.received} == {"red"}
    assert all(record.levelno == logging.WARNING for record in caplog.records)


async def test_reservations_raise_no_alert(workers: Workers) -> None:
    alert_worker = await workers.alert_worker(tokens(100))
    wish = await alert_worker.worker.granted(tokens(100, 100))
    await alert_worker.use(tokens(100), 79)
    await alert_worker.look()
    assert workers.post.received == []
    await alert_worker.worker.settle(wish, 21)
    alert_worker.touched.put_back([tokens(100).window], ())
    await alert_worker.look()
    assert workers.post.levels == [("key:k", 80), ("key:k", 100)]


async def test_a_call_that_is_refused_for_good(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    alert_worker = await workers.alert_worker()
    await alert_worker.use(tokens(100), 30)
    await alert_worker.be_refused(tokens(100, 71))
    await alert_worker.look()
    await alert_worker.be_refused(tokens(100, 71))
    await alert_worker.look()
    await alert_worker.use(tokens(100), 70)
    await alert_worker.look()
    assert workers.post.levels == [("key:k", 80), ("key:k", 100)]
    assert "because a call was refused" in lines(caplog)[0]


async def test_who_only_has_to_wait_is_no_alert(workers: Workers) -> None:
    alert_worker = await workers.alert_worker()
    await alert_worker.worker.granted(tokens(100, 100))
    refused = await alert_worker.worker.refused(tokens(100, 1))
    rate = await alert_worker.worker.granted(slow(60, 60))
    limited = await alert_worker.worker.refused(slow(60, 60))
    assert isinstance(refused, Refused)
    alert_worker.touched.note([alert_worker.worker.closing(settlement(rate, 60))], [refused, limited])
    await alert_worker.look()
    assert workers.post.received == []


async def test_windows_of_key_team_and_gateway_of_every_unit(workers: Workers) -> None:
    alert_worker = await workers.alert_worker()
    for quota in (daily(1), money(100), tokens(100), daily(1, scope="team:red"), tokens(100, scope="gateway"),
                  tokens(50, model="gpt-*"), daily(1, scope="key:j", is_enforced=False)):  # fmt: skip
        await alert_worker.use(quota, 100)
    await alert_worker.look()
    received = Counter((each["scope"], each["unit"], each["model"], each["enforced"]) for each in workers.post.received)
    assert received == dict.fromkeys([
        ("key:k", "requests", None, True), ("key:k", "usd", None, True), ("key:k", "tokens", None, True),
        ("team:red", "requests", None, True), ("gateway", "tokens", None, True), ("key:k", "tokens", "gpt-*", True),
        ("key:j", "requests", None, False),
    ], 2)  # fmt: skip
    assert alert_worker.counted() == {
        ("k", "requests", "80"): 1, ("k", "requests", "100"): 1, ("k", "usd", "80"): 1, ("k", "usd", "100"): 1,
        ("k", "tokens", "80"): 2, ("k", "tokens", "100"): 2, ("red", "requests", "80"): 1,
        ("red", "requests", "100"): 1, ("", "tokens", "80"): 1, ("", "tokens", "100"): 1,
        ("other", "requests", "80"): 1, ("other", "requests", "100"): 1,
    }  # fmt: skip


async def test_one_of_many_workers_sends_the_alert(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    made_workers = [await workers.alert_worker() for _ in range(5)]
    for alert_worker in made_workers:
        await alert_worker.use(tokens(100), 20)
    await asyncio.gather(*[alert_worker.look() for alert_worker in made_workers])
    for alert_worker in made_workers:
        await alert_worker.use(tokens(100), 20)
    await asyncio.gather(*[alert_worker.look() for alert_worker in made_workers])
    assert workers.post.levels == [("key:k", 80), ("key:k", 100)]
    assert len(lines(caplog)) == 2
    assert sum(sum(alert_worker.counted().values()) for alert_worker in made_workers) == 2


async def test_a_new_day_raises_new_alerts_and_an_old_one_none(workers: Workers, clock: Clock) -> None:
    alert_worker = await workers.alert_worker()
    await alert_worker.use(daily(1), 1)
    await alert_worker.look()
    clock.advance(24 * HOUR_S)
    await alert_worker.use(daily(1), 1)  # a call that began before midnight
    await alert_worker.look()
    assert len(workers.post.received) == 2
    tomorrow = daily(1, starts="2026-11-21", resets_us=daily(1).window.resets_us + 86_400_000_000)
    await alert_worker.use(tomorrow, 1)
    await alert_worker.look()
    assert [(each["window"], each["level"]) for each in workers.post.received[2:]] == [
        ("2026-11-21", 80),
        ("2026-11-21", 100),
    ]
    assert len(alert_worker.watcher._claimed) == 4  # the day before is forgotten


async def test_a_raised_limit_raises_new_alerts(workers: Workers) -> None:
    alert_worker = await workers.alert_worker()
    await alert_worker.use(tokens(100), 100)
    await alert_worker.look()
    await alert_worker.use(tokens(200), 20)
    await alert_worker.look()
    assert len(workers.post.received) == 2
    await alert_worker.use(tokens(200), 40)
    await alert_worker.look()
    assert [(each["limit"], each["level"]) for each in workers.post.received] == [(100, 80), (100, 100), (200, 80)]


@pytest.mark.parametrize(
    ("limit", "levels"),
    [(1000, []), (80, [("key:k", 80), ("key:k", 100)]), (100, [("key:k", 80)])],
    ids=["raised", "lowered", "same"],
)
async def test_what_counts_is_the_limit_of_now_and_not_of_when_a_call_began(
    workers: Workers, caplog: pytest.LogCaptureFixture, limit: int, levels: list[tuple[str, int]]
) -> None:
    alert_worker, window = await workers.alert_worker(), tokens(100).window
    alert_worker.changed[window.id] = window._replace(limit=limit)
    await alert_worker.use(tokens(100), 85)
    await alert_worker.look()
    assert workers.post.levels == levels
    assert {each["limit"] for each in workers.post.received} <= {limit}
    assert caplog.text.count("used 85 of") == caplog.text.count(f"used 85 of {limit:,} ") == len(levels)


@pytest.mark.parametrize(("limit", "is_received"), [(1000, False), (90, True)], ids=["raised", "lowered"])
async def test_what_was_refused_under_another_limit(workers: Workers, limit: int, is_received: bool) -> None:
    alert_worker, window = await workers.alert_worker(), tokens(100).window
    await alert_worker.use(tokens(100), 30)
    await alert_worker.be_refused(tokens(100, 80))
    alert_worker.changed[window.id] = window._replace(limit=limit)
    await alert_worker.look()
    assert workers.post.levels == ([("key:k", 80), ("key:k", 100)] if is_received else [])


async def test_what_others_left_behind_is_found_without_a_call(workers: Workers, clock: Clock) -> None:
    """Of a worker that was killed after its last call: at the first look of any worker, and of each within a minute."""
    dead = await workers.alert_worker()
    await dead.use(tokens(100), 85)
    await dead.die()
    alert_worker = await workers.alert_worker(tokens(100), slow(60))
    await alert_worker.look()
    assert workers.post.levels == [("key:k", 80)]
    await dead.use(tokens(100), 15)
    await alert_worker.look()
    assert len(workers.post.received) == 1
    clock.advance(watcher.SWEEP_EVERY_S)
    await alert_worker.look()
    assert workers.post.levels == [("key:k", 80), ("key:k", 100)]
    assert len(alert_worker.swept) == 2


async def test_a_worker_killed_before_the_webhook_answers_is_replaced(
    workers: Workers, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, other = await workers.alert_worker(), await workers.alert_worker()
    workers.post.is_held = True
    await first.use(tokens(100), 85)
    await other.use(tokens(100), 1)
    await first.look()
    await first.die()
    workers.post.is_held = False
    await other.look()
    assert workers.post.received == []  # an attempt is still under way
    clock.advance(watcher.CLAIM_S - 60)
    await other.look()
    assert workers.post.received == []
    clock.advance(120)
    await other.look()
    await other.look()
    assert workers.post.levels == [("key:k", 80)]
    assert len(lines(caplog)) == 1  # already logged
    assert (first.counted(), other.counted()) == ({("k", "tokens", "80"): 1}, {})
    restarted = await workers.alert_worker(tokens(100))
    await restarted.look()
    assert len(workers.post.received) == 1


async def test_a_refusal_is_sent_by_another_worker_if_its_first_is_killed(workers: Workers, clock: Clock) -> None:
    first, other = await workers.alert_worker(), await workers.alert_worker()
    await first.use(tokens(100), 30)
    workers.post.is_held = True
    await first.be_refused(tokens(100, 80))
    await other.be_refused(tokens(100, 80))
    await first.look()
    await other.look()
    await first.die()
    workers.post.is_held = False
    clock.advance(watcher.CLAIM_S + 60)
    await other.look()
    await other.look()
    assert workers.post.levels == [("key:k", 80), ("key:k", 100)]


async def test_a_slow_webhook_gets_no_message_twice(workers: Workers, clock: Clock) -> None:
    slow_one, other = await workers.alert_worker(), await workers.alert_worker(tokens(100))
    workers.post.is_held = True
    await slow_one.use(tokens(100), 85)
    await slow_one.look()
    for _ in range(8):
        clock.advance(watcher.CLAIM_S / 2)
        await slow_one.look()
        await other.look()
    assert other.outbox is not None
    assert slow_one.outbox is not None
    assert (len(slow_one.outbox.waiting), other.outbox.waiting) == (1, ())


async def test_who_was_stopped_for_long_leaves_it_to_who_took_over(workers: Workers, clock: Clock) -> None:
    stopped, other = await workers.alert_worker(), await workers.alert_worker(tokens(100))
    workers.post.is_held = True
    await stopped.use(tokens(100), 85)
    await stopped.look()
    clock.advance(watcher.CLAIM_S + 60)
    workers.post.is_held = False
    await other.look()
    assert workers.post.levels == [("key:k", 80)]
    await stopped.look()
    assert stopped.outbox is not None
    assert stopped.outbox.waiting == ()
    assert len(workers.post.received) == 1


async def test_during_an_outage_nothing_is_sent_and_nothing_lost(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    alert_worker = await workers.alert_worker(daily(1))
    await alert_worker.use(daily(1), 1)
    await alert_worker.use(tokens(100), 30)
    await alert_worker.be_refused(tokens(100, 90))
    alert_worker.ledger.is_away = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await alert_worker.look()
    assert (workers.post.received, lines(caplog)) == ([], [])
    alert_worker.ledger.is_away = False
    await alert_worker.look()
    assert len(workers.post.received) == len(lines(caplog)) == 4


async def test_an_outage_after_sending(workers: Workers) -> None:
    """Sent levels are stored after the outage; no worker sends them again."""
    alert_worker = await workers.alert_worker()
    await alert_worker.use(daily(1), 1)
    keep = alert_worker.watcher._keep

    async def away(now: float) -> None:
        alert_worker.ledger.is_away = True
        await keep(now)

    alert_worker.watcher._keep = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await alert_worker.watcher.look()
    alert_worker.watcher._keep = keep  # type: ignore[method-assign]
    alert_worker.ledger.is_away = False
    await until(lambda: len(workers.post.received) == 2)
    await alert_worker.look()
    assert alert_worker.watcher._kept == {}
    workers.clock.advance(2 * watcher.CLAIM_S)
    restarted = await workers.alert_worker(daily(1))
    await restarted.look()
    assert len(workers.post.received) == 2


async def test_sent_levels_are_not_looked_up_again(workers: Workers) -> None:
    alert_worker, other = await workers.alert_worker(), await workers.alert_worker()
    await alert_worker.use(daily(1), 1)
    await alert_worker.look()
    await other.use(daily(1), 1)
    await other.look()
    asked = alert_worker.ledger.claims, other.ledger.claims
    for _ in range(5):
        for each in (alert_worker, other):
            await each.use(daily(1), 1)
            await each.look()
    assert (alert_worker.ledger.claims, other.ledger.claims) == asked


async def test_a_webhook_added_later_gets_current_levels(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    quiet = await workers.alert_worker(is_quiet=True)
    await quiet.use(daily(1), 1)
    await quiet.look()
    assert len(lines(caplog)) == 2
    alert_worker = await workers.alert_worker(daily(1))
    await alert_worker.look()
    assert len(workers.post.received) == 2
    assert len(lines(caplog)) == 2


async def test_a_look_is_bounded(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "LOOKED_AT_ONCE", 3)
    monkeypatch.setattr(watcher, "SWEPT_AT_ONCE", 2)
    monkeypatch.setattr(watcher, "CLAIMED_AT_ONCE", 4)
    every = [daily(1, scope=f"team:{number}") for number in range(5)]
    dead, alert_worker = await workers.alert_worker(), await workers.alert_worker(*every)
    for quota in every:
        await dead.use(quota, 1)
    for number in range(7):
        await alert_worker.use(daily(1, scope=f"key:{number}"), 1)
    expected = [(2 + 3), (4 + 6), (5 + 7)]
    for number in expected:
        await alert_worker.watcher.look()
        await turns()
        assert len(workers.post.received) == 2 * number
    for _ in range(20):
        await alert_worker.watcher.look()
    assert alert_worker.watcher._kept == {}


async def test_the_end_looks_once_more_and_releases_unsent_levels(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = await workers.alert_worker()
    await ending.use(daily(1), 1)
    await ending.watcher.close(60)
    assert len(workers.post.received) == 2
    workers.post.is_held = True
    await ending.use(daily(1, scope="team:red"), 1)
    held = await workers.alert_worker()
    await held.use(daily(1, scope="team:red"), 1)
    assert held.outbox is not None
    close = held.outbox.close
    monkeypatch.setattr(held.outbox, "close", lambda _: close(0.01))  # the webhook never answers
    await held.watcher.close(60)
    workers.post.is_held = False
    next_one = await workers.alert_worker(daily(1), daily(1, scope="team:red"))
    await next_one.look()
    assert sorted(each["scope"] for each in workers.post.received) == ["key:k", "key:k", "team:red", "team:red"]


async def test_a_fault_of_ours_does_not_end_the_watch(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(watcher, "LOOK_WHILE_AWAY_S", 0.001)
    monkeypatch.setattr("gateway.tasks.AGAIN_S", 0.001)
    alert_worker, tasks = await workers.alert_worker(daily(1)), Tasks()
    await alert_worker.use(daily(1), 1)
    look, faults = alert_worker.watcher.look, [ZeroDivisionError(), StoreUnavailable("away")]

    async def fails_at_first() -> None:
        if faults:
            raise faults.pop()
        await look()

    alert_worker.watcher.look = fails_at_first  # type: ignore[method-assign]
    tasks.keep(alert_worker.watcher.run, "watch-quotas")
    await until(lambda: len(workers.post.received) == 2)
    await tasks.cancel_all()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "background task watch-quotas failed, and begins again in 0.001 s"
    ]
