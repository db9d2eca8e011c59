"""The line of `gateway check` about people who leave."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import DAY_S, LeaverSettings


def describe(config: Config) -> str:
    """When the access of people ends."""
    settings = config.section(LeaverSettings)
    reasons = []
    if settings.inactive_after is not None:
        reasons.append(f"after {settings.inactive_after / DAY_S:g} days without a sign-in")
    if settings.by_groups:
        reasons.append("at a sign-in without a group that gives a role")
    return f"access ends {', and '.join(reasons)}" if reasons else "access ends by operators alone"


LINE = WingLine("leavers", describe)
