"""A receiver with its way of delivery and the alerts that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .forms import Notice, body_of
from .mail import Mail
from .outbox import Outbox
from .routing import Subject, takes
from .settings import WEBHOOK, AlertReceiver, AlertSettings
from .webhook import Webhook

Sender = Webhook | Mail


class Channel(NamedTuple):
    """One receiver for one kind of watcher."""

    receiver: AlertReceiver
    outbox: Outbox
    levels: tuple[int, ...]
    """The shares of a quota at which it gets an alert."""
    addresses: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Channel to {self.receiver.shown}, {self.outbox}>"

    def takes(self, subject: Subject, level: int | None = None) -> bool:
        """Whether it gets alerts about this subject, at this share of a quota."""
        return (level is None or level in self.levels) and takes(self.receiver, subject, self.addresses)

    def put(self, name: str, notice: Notice) -> None:
        """Add a notice to what is delivered."""
        self.outbox.put(name, body_of(notice, self.receiver, self.addresses))


def senders_of(settings: AlertSettings) -> dict[str, Sender]:
    """The way to each receiver by its name; receivers with e-mail have none where no server is set."""
    found: dict[str, Sender] = {}
    for name, receiver in settings.all_receivers.items():
        if not receiver.email:
            found[name] = Webhook(receiver)
        elif settings.smtp is not None:
            found[name] = Mail(settings.smtp)
    return found


def channels_of(settings: AlertSettings, senders: Mapping[str, Sender]) -> dict[str, Channel]:
    """The receivers by their way of delivery, which begins the name of what the store knows of an alert."""
    found = {}
    for name, sender in senders.items():
        is_first = name == WEBHOOK and settings.webhook is not None
        receiver = settings.all_receivers[name]
        outbox = Outbox(sender.post, "the alert webhook" if is_first else f"the alert receiver {name}")
        levels = settings.at if receiver.at is None else receiver.at
        found[WEBHOOK if is_first else f"to {name}"] = Channel(receiver, outbox, levels, settings.addresses)
    return found
