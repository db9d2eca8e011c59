"""The command of this wing."""

from gateway.cli import Command

ALERTS = Command(
    "alerts", "send a test alert to each receiver", takes_config=True, module="wings.alerts.try_receivers",
    reads_secrets=True,
)  # fmt: skip
