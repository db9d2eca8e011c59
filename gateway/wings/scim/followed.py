"""Roles and teams of people by the groups that the directory has them in."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from gateway.config import Config
from gateway.config.sections import GivenRole
from gateway.errors import NotFound
from gateway.keys.documents import AuditEvent
from gateway.keys.registry import Registry
from gateway.quota.scopes import person_scope
from gateway.store import KeyStore

from .settings import ScimSettings


def role_by(config: Config, name: str, groups: Collection[str]) -> GivenRole | None:
    """The role of a person in these groups, and her team as a lead; None: she may not sign in."""
    return None if config.sign_in is None else config.sign_in.role_of(name, groups)


def team_by(config: Config, groups: Collection[str]) -> str | None:
    """The team of a person in these groups; None: no group gives her one."""
    return next((each.team for each in config.section(ScimSettings).teams if each.group in groups), None)


class Followed(Registry):
    """Lets roles and teams follow groups. Raises `StoreUnavailable` and `Conflict`."""

    @property
    def store(self) -> KeyStore:
        """The store, which has the directory, too."""
        return self._store

    @staticmethod
    def is_wanted(config: Config) -> bool:
        settings = config.section(ScimSettings)
        return settings.groups_give_roles or bool(settings.teams)

    async def follow(
        self, config: Config, name: str, was: Collection[str], groups: Collection[str], actor: str
    ) -> None:
        """A person is in these groups now, and was in others."""
        if config.section(ScimSettings).groups_give_roles:
            await self._give_role(name, role_by(config, name, was), role_by(config, name, groups), actor)
        await self.move(config, name, groups, actor)

    async def _give_role(self, name: str, was: GivenRole | None, given: GivenRole | None, actor: str) -> None:
        """Note her role, by which she has quotas, and end her sessions, which have the role before."""
        text, overlay = await self._overlay(person_scope(name))
        role = None if given is None else given.role
        if was == given and (overlay.role == role or text is None):
            return
        changed = overlay._replace(role=role, revoked_at=self._clock())
        doing = AuditEvent(actor, "update", {"role": overlay.role}, {"role": role})
        await self._write("overlay", person_scope(name), text, changed.encode(), doing)

    async def move(self, config: Config, name: str, groups: Collection[str], actor: str) -> None:
        """Move her keys of the store to the team that these groups give, out of none and out of the others of such
        teams. Without one they stay: a key outside of a team would be without its limits."""
        if (team := team_by(config, groups)) is None:
            return
        given = {each.team for each in config.section(ScimSettings).teams} - {team}
        of_file = {key.id for key in config.keys}
        for key in (await self._everyone([("owner", name)])).get(name, ()):
            if key.id not in of_file and (key.team is None or key.team in given):
                with suppress(NotFound):  # it has just been deleted
                    await self.update_key(key.id, {"team": team}, actor)
