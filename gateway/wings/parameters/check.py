"""The line of `gateway check` about parameters."""

from __future__ import annotations

import json

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import ParameterRule, ParameterSettings


def describe(config: Config) -> str:
    """Each name with what its rules do."""
    models = config.section(ParameterSettings).models
    lines = [f"{name}: {'; '.join(map(_line, rules))}" for name, rules in models.items() if rules]
    return " | ".join(lines) or "none: parameters is not set"


def _line(rule: ParameterRule) -> str:
    parts = [f"set {path}={json.dumps(value)}" for path, value in rule.set.items()]
    parts += [f"default {path}={json.dumps(value)}" for path, value in rule.default.items()]
    parts += [f"remove {path}" for path in rule.remove]
    parts += [f"header {name}" for name in rule.headers]
    return ", ".join(parts) + (f" ({', '.join(rule.endpoints)})" if rule.endpoints else "")


LINE = WingLine("parameters", describe)
