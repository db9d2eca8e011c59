"""The section `scim`: the token of the identity provider, and which attribute names a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.config.faults import ConfigFault, format_faults
from gateway.config.sections import Config, Section
from gateway.config.sections.values import Secret
from gateway.config.wings import WingSection


def _long(token: SecretStr) -> SecretStr:
    if len(token.get_secret_value()) < 24:
        raise ValueError("a token needs at least 24 characters")
    return token


LongToken = Annotated[Secret, AfterValidator(_long)]


class GroupTeam(Section):
    """A group of the directory whose members have their keys in a team."""

    group: Annotated[str, Field(min_length=1)]
    """The `displayName` of the group."""
    team: Annotated[str, Field(min_length=1)]
    """The team of its members' keys."""


class ScimSettings(Section):
    token: LongToken | None = None
    """Bearer token of the identity provider, at least 24 characters; null: there is no SCIM."""
    previous_token: LongToken | None = None
    """The token before, while the provider is given the new one."""
    person: Literal["userName", "externalId", "email"] = "userName"
    """The attribute that names a person as oidc.person_claim does, and so the owner of her keys."""
    groups_give_roles: bool = False
    """Whether groups count as those of a sign-in for oidc.groups and oidc.roles, from the moment that they change."""
    teams: tuple[GroupTeam, ...] = ()
    """Groups whose members have their keys in a team; the first one that a person is in counts."""


def _faults(config: Config) -> Iterator[ConfigFault]:
    settings = config.section(ScimSettings)
    if settings.groups_give_roles and config.sign_in is None:
        yield ConfigFault("scim.groups_give_roles", "there are no roles to give: oidc is not set")
    for number, each in enumerate(settings.teams):
        if each.team not in config.teams:
            yield ConfigFault(format_faults(("scim", "teams", number, "team")), "there is no such team in the file")


SECTION = WingSection("scim", ScimSettings, faults=_faults)
