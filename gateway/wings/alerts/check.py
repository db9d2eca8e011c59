"""The line of `gateway check` about alerts."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.commands.serve import count
from gateway.config import Config

from .policy import LEVELS, count_alerted
from .settings import AlertSettings


def describe(config: Config) -> str:
    """The alerts that are sent, and their targets."""
    if not (number := count_alerted(config)):
        return "none: no quota is per day, week or month"
    levels = " and ".join(f"{level} %" for level in LEVELS)
    settings = config.section(AlertSettings)
    webhook = settings.shown_webhook
    where = f"log, metrics and {webhook}" if webhook else "log and metrics alone: alerts.webhook is not set"
    if webhook and settings.way is not None:
        where += f" through the proxy {settings.way}"
    return f"at {levels} of {count(number, 'quota')} per day, week or month, to {where}"


LINE = WingLine("alerts", describe)
