"""The past of the demo: its alerts were sent."""

from __future__ import annotations

from gateway.api import auth
from gateway.commands.simulate import WORKER, WingPast
from gateway.config import Config
from gateway.quota.windows import LimitTable
from gateway.store import Store

from . import policy
from .settings import AlertSettings
from .watcher import AFTER_END_S, LOG


async def claim_alerts(store: Store, config: Config, now: float) -> None:
    """Alerts of the past were sent in the past: the demo would begin with a line for each."""
    table = LimitTable(config.quotas, config.teams, {})
    terms = [term for key in config.keys for term in table.of(auth.read(key)) if term.is_calendar]
    windows = {window.id: window for window in (term.window(now) for term in terms)}  # those of a team occur often
    statuses = await store.window_statuses([*windows.values()], now)
    found = policy.reached(statuses, (), int(now * 1e6), config.section(AlertSettings).at)
    ends = {f"{LOG}|{alert.name}": alert.window_status.window.resets_us / 1e6 + AFTER_END_S for alert in found}
    await store.claim(WORKER, {name: end - now for name, end in ends.items()})


PAST = WingPast(claim_alerts)
