"""Notes what the identity provider reports of a person."""

from __future__ import annotations

import logging
from contextlib import suppress

from gateway.config import Config
from gateway.errors import Conflict
from gateway.keys.registry import Registry
from gateway.web.callers import WingSignIn

from .access import Access
from .settings import LeaverSettings

ATTEMPTS = 3
log = logging.getLogger("gateway")


async def note(registry: Registry, config: Config, name: str, role: str | None) -> None:
    """Note a sign-in, or a call with a fresh token; end the access of a person without a group, where that is set."""
    settings = config.section(LeaverSettings)
    access: Access = registry.viewed_as(Access)
    if role is None:
        if settings.by_groups and await access.leave_groups(name):
            log.warning("the access of %s has ended: the identity provider names no group that gives her a role", name)
    elif settings.by_groups or settings.inactive_after is not None:
        for _ in range(ATTEMPTS):
            with suppress(Conflict):  # another sign-in, or the watcher
                await access.note_sign_in(name, "token" if role == "key" else "sign-in")
                return


NOTE = WingSignIn(note)
