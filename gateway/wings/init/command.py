"""The row of `gateway init` in the table of commands."""

from __future__ import annotations

from gateway.cli import Command

INIT = Command("init", "call an upstream, find its models and write a configuration", module="wings.init.run")
