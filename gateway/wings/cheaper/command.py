"""The row of `gateway when-above` in the table of commands."""

from __future__ import annotations

from gateway.cli import Command

WHEN_ABOVE = Command(
    "when-above", "a cheaper model for a key, team or person when money gets short", takes_config=True,
    module="wings.cheaper.run",
)  # fmt: skip
