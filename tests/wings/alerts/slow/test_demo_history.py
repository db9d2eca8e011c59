"""The demo: its alerts of the past were sent."""

from __future__ import annotations

import time

from gateway.api import auth
from gateway.commands.demo_history import write_history
from gateway.config import Config
from gateway.quota.windows import LimitTable
from gateway.store import Store
from gateway.store.opening import open_store
from gateway.wings.alerts import policy
from gateway.wings.alerts.watcher import LOG
from tests.flows.slow.test_demo import config

__all__ = ["config"]


async def test_no_alert_of_the_past_is_sent_when_the_demo_starts(config: Config) -> None:
    now = time.time()
    await write_history(config, now)
    store: Store = await open_store(config.store)
    try:
        table = LimitTable(config.quotas, config.teams, {})
        limits = [limit for key in config.keys for limit in table.of(auth.read(key)) if limit.is_calendar]
        statuses = await store.window_statuses([limit.window(now) for limit in limits], now)
        names = {f"{LOG}|{alert.name}" for alert in policy.reached(statuses, (), int(now * 1e6))}
        held = await store.claim("another worker", dict.fromkeys(names, 60.0))
        assert len(held) == len(names)
        assert all(left_s > 0 for left_s in held.values())
        assert names or time.gmtime().tm_mday < 30  # some quotas of a month are nearly spent by its end
    finally:
        await store.close()
