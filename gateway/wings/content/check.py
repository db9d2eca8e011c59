"""The line of `gateway check` about kept content."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import ContentSettings


def describe(config: Config) -> str:
    """Whether prompts and answers are kept, and where."""
    settings = config.section(ContentSettings)
    if not settings.keep:
        return "prompts and answers are not kept"
    never = f"; never of {', '.join(settings.never)}" if settings.never else ""
    return f"prompts and answers of some calls go to {' and '.join(settings.places)}{never}"


LINE = WingLine("content", describe)
