"""The row of `gateway import` in the table of commands."""

from __future__ import annotations

from gateway.cli import Command

IMPORT = Command("import litellm", "LiteLLM's configuration, and rows of its database", module="wings.litellm.run")
