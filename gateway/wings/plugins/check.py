"""The line of `gateway check` about plug-ins."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import loaded


def describe(config: Config) -> str:
    return "; ".join(map(str, loaded(config))) or "none"


LINE = WingLine("plug-ins", describe)
