"""Groups of the directory at a sign-in, and the team of a record that a token has just made."""

from __future__ import annotations

import time
from contextlib import suppress

from gateway.config import Config
from gateway.errors import Conflict, Unavailable
from gateway.keys.registry import Registry
from gateway.store import StoreUnavailable
from gateway.web.callers import WingSignIn

from .directory import Directory
from .followed import Followed
from .settings import ScimSettings

ACTOR = "gateway, SCIM"


async def groups(registry: Registry, config: Config, name: str) -> frozenset[str]:
    """The groups that the directory has this person in, where they give roles. Raises `Unavailable`."""
    settings = config.section(ScimSettings)
    if settings.token is None or not settings.groups_give_roles:
        return frozenset()
    try:
        return await _directory(registry, settings).names_of_groups(name)
    except StoreUnavailable:
        raise Unavailable("The store does not answer.", code=StoreUnavailable.code) from None


async def note(registry: Registry, config: Config, name: str, role: str | None) -> None:
    """Move the keys of a person who calls to the team that her groups give: they may be newer than her groups."""
    settings = config.section(ScimSettings)
    if settings.token is None or not settings.teams or role is None:
        return
    found = await _directory(registry, settings).names_of_groups(name)
    followed: Followed = registry.viewed_as(Followed)
    with suppress(Conflict):  # another worker moves them
        await followed.move(config, name, found, ACTOR)


def _directory(registry: Registry, settings: ScimSettings) -> Directory:
    followed: Followed = registry.viewed_as(Followed)
    return Directory(followed.store, registry, ACTOR, settings.person, time.time)


NOTE = WingSignIn(note, groups)
