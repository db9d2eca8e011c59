"""The line of `gateway check` about cheaper models."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import CheaperSettings


def describe(config: Config) -> str:
    """How many lists of steps there are."""
    lists = [steps for _, steps in config.section(CheaperSettings).lists if steps]
    models = sorted({step.use for steps in lists for step in steps})
    given = "steps given at run time" if config.section(CheaperSettings).at_run_time else ""
    found = ", ".join([*models, given] if given else models)
    return f"{found} when money gets short" if found else "none: when_above is not set"


LINE = WingLine("cheaper", describe)
