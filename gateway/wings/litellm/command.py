"""The row of `gateway import` in the table of commands."""

from __future__ import annotations

from gateway.cli import Command

IMPORT = Command("import", "convert the configuration of another gateway: LiteLLM's", module="wings.litellm.run")
