"""The question of `gateway check --online` to the receivers of alerts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.commands.online import Asked, WingQuestion
from gateway.config import Config, Upstream
from gateway.records import Failure
from gateway.upstream.pool import Pool

from .mail import Mail
from .settings import WEBHOOK, AlertReceiver, AlertSettings, Smtp


async def ask(config: Config) -> Sequence[Asked]:
    """A connection to each as for an event, TLS and signing in included; nothing is sent."""
    alerts = config.section(AlertSettings)
    asking = [
        _webhook("alerts.webhook" if name == WEBHOOK and alerts.webhook else f"alerts.receivers.{name}", receiver)
        for name, receiver in alerts.all_receivers.items()
        if not receiver.email
    ]
    return await asyncio.gather(*asking, *([_smtp(alerts.smtp)] if alerts.smtp is not None else []))


async def _webhook(place: str, receiver: AlertReceiver) -> Asked:
    settings = Upstream.model_validate({"base_url": receiver.shown_address, "proxy": receiver.proxy})
    what = f"{place}, a connection to {receiver.shown_address}"
    pool = Pool("webhook", settings, 1)
    try:
        got = await pool.acquire()
        if isinstance(got, Failure):
            return Asked(what, got.detail, is_good=False)
        got.abort()
        tls = ", with a good certificate" if receiver.shown_address.startswith("https") else ""
        return Asked(what, f"connected{tls}; no event was sent")
    finally:
        await pool.close()


async def _smtp(settings: Smtp) -> Asked:
    result = await Mail(settings).connect()
    signed_in = " and signed in" if settings.username is not None else ""
    came = f"connected{signed_in}; no mail was sent" if result.is_taken else result.detail
    return Asked(f"alerts.smtp, a connection to {settings.host}:{settings.port}", came, is_good=result.is_taken)


QUESTION = WingQuestion(ask)
