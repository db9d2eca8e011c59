"""The question of `gateway check --online` to the webhook."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.commands.online import Asked, WingQuestion
from gateway.config import Config, Upstream
from gateway.records import Failure
from gateway.upstream.pool import Pool

from .settings import AlertSettings


async def ask(config: Config) -> Sequence[Asked]:
    """A connection as for an event, TLS included; nothing is sent."""
    alerts = config.section(AlertSettings)
    if alerts.webhook is None:
        return []
    address = alerts.shown_webhook
    settings = Upstream.model_validate({"base_url": address, "proxy": alerts.proxy})
    pool = Pool("webhook", settings, 1)
    try:
        got = await pool.acquire()
        if isinstance(got, Failure):
            return [Asked(f"alerts.webhook, a connection to {address}", got.detail, is_good=False)]
        got.abort()
        tls = ", with a good certificate" if address.startswith("https") else ""
        return [Asked(f"alerts.webhook, a connection to {address}", f"connected{tls}; no event was sent")]
    finally:
        await pool.close()


QUESTION = WingQuestion(ask)
