"""The line of `gateway check` about bills."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import BillingSettings


def describe(config: Config) -> str:
    """Whose bills are read, and how often."""
    settings = config.section(BillingSettings)
    if not settings.upstreams:
        return "no bill of a provider is read: billing.upstreams is empty"
    names = ", ".join([f"{name} ({source.provider})" for name, source in settings.upstreams.items()])
    return f"the bill of {names} is read every {settings.every:g} s, {settings.days} days back"


LINE = WingLine("billing", describe)
