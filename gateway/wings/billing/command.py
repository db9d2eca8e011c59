"""The row of `gateway bill` in the table of commands."""

from __future__ import annotations

from gateway.cli import Command

BILL = Command(
    "bill", "the provider's bill beside the records", takes_config=True, module="wings.billing.run", reads_secrets=True
)
