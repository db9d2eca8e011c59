"""The line of `gateway check` about hooks."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import HookSettings


def describe(config: Config) -> str:
    """Each hook with its address, what it sees, and what happens without its answer."""
    settings = config.section(HookSettings)
    lines = [
        f"{name} before calls ({hook.shown}, sees {hook.sees}, else {hook.on_failure})"
        for name, hook in settings.before_call.items()
    ]
    for name, hook in settings.after_call.items():
        shown = f", with answers of {', '.join(hook.answers_of)}" if hook.answers_of else ""
        lines.append(f"{name} after calls ({hook.shown}{shown})")
    return ", ".join(lines) or "none: hooks is not set"


LINE = WingLine("hooks", describe)
