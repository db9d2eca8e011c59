"""Which people are no longer here, by the time of their last sign-in. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from gateway.config.sections import folded_name

from .settings import LeaverSettings

INACTIVE, NO_GROUP = "inactive", "no group"
"""Causes for which access ends here. They cease when the person signs in with a role."""

NOTED_EVERY_S = 86400.0
"""A second sign-in within this time is not noted, so that the store has one change of a person a day."""

Due = Literal["begin", "warn", "end"]


class Seen(NamedTuple):
    """When a person was here."""

    at: float | None
    """Unix time of about the last sign-in, or of when this began to be watched; None: never."""
    warned_at: float | None = None
    """When the end of her access was announced, since then."""


def due(seen: Seen, settings: LeaverSettings, now: float) -> Due | None:
    """The step that is due for a person whose access has not ended; None: there is none."""
    if settings.inactive_after is None:
        return None
    if seen.at is None:
        return "begin"  # the time of a person begins when the gateway first looks
    ends_at = seen.at + settings.inactive_after
    if now >= ends_at and seen.warned_at is not None and now >= seen.warned_at + settings.warn_before / 2:
        return "end"
    return "warn" if now >= ends_at - settings.warn_before and seen.warned_at is None else None


def is_exempt(name: str, settings: LeaverSettings) -> bool:
    """Whether an owner of keys is no person who signs in."""
    return any(fnmatchcase(folded_name(name), folded_name(pattern)) for pattern in settings.exempt)
