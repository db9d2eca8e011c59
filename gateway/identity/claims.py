"""Derives the name and the role of a person from the claims, by the rules of the configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.config import OidcSettings
from gateway.config.sections import BAD_SIGNS, MAX_PERSON

from .permissions import Role


class NotAllowed(Exception):
    """A person may not sign in; the text is the reason, shown to her."""

    def __init__(self, text: str, lacking: str | None = None) -> None:
        super().__init__(text)
        self.lacking = lacking
        """The person, where she lacks a group or a role alone."""


class Person(NamedTuple):
    """A person who signed in."""

    name: str
    """The owner of her keys, and her name in the audit log."""
    role: Role
    team: str | None = None


def person_of(claims: Mapping[str, Any], settings: OidcSettings) -> Person:
    """The person of these claims. Raises `NotAllowed`."""
    name, groups = name_of(claims, settings.person_claim), groups_of(claims, settings.groups_claim)
    if settings.domains:
        domain = name.rpartition("@")[2].lower() if "@" in name else None
        if domain not in [each.lower() for each in settings.domains]:
            raise NotAllowed("Your e-mail address is of no domain that may sign in here.")
    if settings.groups and not groups & set(settings.groups):
        raise NotAllowed("You are in no group that may sign in here.", name)
    for rule in settings.roles:
        if rule.person == name or (rule.group is not None and rule.group in groups):
            return Person(name, rule.role, rule.team)
    if settings.default_role is None:
        raise NotAllowed("No role is given to you here. Ask an operator of the gateway.", name)
    return Person(name, settings.default_role)


def name_of(claims: Mapping[str, Any], claim: str) -> str:
    """The name of a person. Raises `NotAllowed`; an e-mail address that the provider has not verified is no name,
    because anyone can claim it."""
    name = claims.get(claim)
    if not isinstance(name, str) or not name or len(name) > MAX_PERSON or BAD_SIGNS.search(name):
        raise NotAllowed(f"Your identity provider does not name you (claim '{claim}').")
    if claim == "email" and claims.get("email_verified", True) not in (True, "true"):
        raise NotAllowed("Your e-mail address is not verified at your identity provider.")
    return name


def groups_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """The groups of a person: a list of names, or one name."""
    given = claims.get(claim)
    return frozenset(each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str))
