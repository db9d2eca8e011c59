"""The line of `gateway check` about SCIM."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import ScimSettings


def describe(config: Config) -> str:
    """Whether there is SCIM, and how it names people."""
    settings = config.section(ScimSettings)
    if settings.token is None:
        return "off: scim.token is not set"
    return f"at /scim/v2 beside the admin API; {settings.person} names people"


LINE = WingLine("SCIM", describe)
