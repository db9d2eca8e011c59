"""The section `leavers`: when the access of people ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import Field

from gateway.config.faults import ConfigFault, format_faults
from gateway.config.sections import Config, IdentityProvider, Section
from gateway.config.sections.values import SomeSeconds
from gateway.config.wings import WingSection

DAY_S = 86400.0


class LeaverSettings(Section):
    inactive_after: Annotated[SomeSeconds, Field(ge=DAY_S)] | None = None
    """After how long without a sign-in a person's keys and tokens are refused, a day at least; null: never."""
    warn_before: SomeSeconds = 7 * DAY_S
    """How long before that it is announced in the log and the metrics."""
    by_groups: bool = False
    """Whether a sign-in that is refused for want of a group or a role ends her keys and tokens."""
    exempt: tuple[str, ...] = ()
    """Patterns of owners of keys that are no people, or never sign in."""


ENDS_SOON = timedelta(days=14)


def _ends(config: Config) -> Iterator[ConfigFault]:
    """Warns of absences that are not noted, and of named admin tokens that have ended or soon will."""
    settings = config.section(LeaverSettings)
    if not config.sections(IdentityProvider):
        for name in ("inactive_after", "by_groups"):
            if getattr(settings, name):
                yield _warning(("leavers", name), "no person can sign in: neither oidc nor jwt is set")
    if settings.inactive_after is not None and settings.warn_before >= settings.inactive_after:
        yield _warning(("leavers", "warn_before"), "is not shorter than inactive_after: everyone is warned at once")
    now = datetime.now(UTC)
    for name, token in config.admin.tokens.items():
        for setting, end in (("expires", token.expires), ("previous_until", token.previous_until)):
            if end is not None and end - now < ENDS_SOON:
                left = f"is in {(end - now).days} days" if end > now else "is in the past, and this token is refused"
                yield _warning(("admin", "tokens", name, setting), f"{left}; docs/people.md has how to rotate it")


def _warning(place: tuple[str, ...], message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


SECTION = WingSection("leavers", LeaverSettings, warnings=_ends)
