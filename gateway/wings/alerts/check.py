"""The line of `gateway check` about alerts."""

from __future__ import annotations

from gateway.commands.check import WingLine
from gateway.commands.serve import count
from gateway.config import Config

from .policy import count_alerted
from .settings import AlertReceiver, AlertSettings

NO_QUOTA = "none: no quota is per day, week or month"


def describe(config: Config) -> str:
    """The alerts that are sent, and their targets."""
    settings = config.section(AlertSettings)
    receivers = "".join([f"; {name}: {_receiver(each)}" for name, each in settings.receivers.items()])
    if not (number := count_alerted(config)):
        return f"none of quotas: no quota is per day, week or month{receivers}" if receivers else NO_QUOTA
    *lower, last = [f"{level} %" for level in settings.at]
    levels = f"{', '.join(lower)} and {last}" if lower else last
    webhook = settings.shown_webhook
    where = f"log, metrics and {webhook}" if webhook else "log and metrics"
    if not webhook and not receivers:
        where += " alone: alerts.webhook is not set"
    if webhook and settings.way is not None:
        where += f" through the proxy {settings.way}"
    return f"at {levels} of {count(number, 'quota')} per day, week or month, to {where}{receivers}"


def _receiver(receiver: AlertReceiver) -> str:
    """A receiver, and which alerts it takes."""
    only = [f"{name} {', '.join(each)}" for name in ("teams", "owners", "keys") if (each := getattr(receiver, name))]
    if receiver.kinds is not None or receiver.form == "pagerduty":
        only.insert(0, ", ".join(receiver.wanted))
    if receiver.at is not None:
        only.append(f"at {', '.join([f'{level} %' for level in receiver.at])}")
    way = f" through the proxy {receiver.way}" if receiver.way is not None else ""
    return f"{receiver.shown}{way}" + (f" for {'; '.join(only)}" if only else "")


LINE = WingLine("alerts", describe)
