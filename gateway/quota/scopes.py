"""Whose a window is: the kinds of scopes in words, who may raise a limit of each, and the holder of its windows.

A scope is a kind, and the owner's name behind a colon: `key:ID`, `person:NAME`, `member:TEAM/NAME` (a person in one of
her teams), `team:NAME`, `label:NAME=VALUE` and `team_label:TEAM/NAME=VALUE` (a label of keys), `tag:NAME=VALUE` and
`team_tag:TEAM/NAME=VALUE` (a tag; without a value: all further ones), `upstream:NAME`, or `gateway` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.config.sections import folded_name
from gateway.records import Key

PERSON, MEMBER, LABEL, TEAM_LABEL, TAG, TEAM_TAG = "person", "member", "label", "team_label", "tag", "team_tag"


class ScopeKind(NamedTuple):
    """How the owner of a window is called in a message to its user, and who may raise its limits."""

    whose: str
    """`{name}` is the owner's name; of a member and of a team's label `{team}` and `{name}`."""
    raised_by: str
    """The roles that may raise the limit, for a header."""

    @property
    def raisers(self) -> str:
        """Returns the roles of `raised_by` as words for a message."""
        return "the operator of the gateway" + (" or the lead of your team" if "lead" in self.raised_by else "")


SCOPES: Mapping[str, ScopeKind] = {
    "key": ScopeKind("your key", "operator lead"),
    PERSON: ScopeKind("the person {name} over all her keys", "operator"),
    MEMBER: ScopeKind("the person {name} in the team {team}", "operator"),
    "team": ScopeKind("your team {name}", "operator"),
    LABEL: ScopeKind("the label {name}", "operator"),
    TEAM_LABEL: ScopeKind("the label {name} in your team {team}", "operator"),
    TAG: ScopeKind("the tag {name}", "operator"),
    TEAM_TAG: ScopeKind("the tag {name} in your team {team}", "operator"),
    "upstream": ScopeKind("the upstream {name}", "operator"),
    "gateway": ScopeKind("the whole gateway", "operator"),
}


def person_scope(person: str) -> str:
    """The scope of what a person uses with all her keys and tokens."""
    return f"{PERSON}:{folded_name(person)}"


def member_scope(team: str, person: str) -> str:
    """The scope of what a person uses with her keys in this team."""
    return f"{MEMBER}:{team}/{folded_name(person)}"


def folded_scope(scope: str) -> str:
    """The scope with the name of a person as it is compared, and that of her team as it is; before 0.3, stores had
    names of people as written."""
    kind, _, name = scope.partition(":")
    if kind == MEMBER:
        team, _, name = name.partition("/")
        return member_scope(team, name)
    return person_scope(name) if kind == PERSON else scope


def label_scope(team: str | None, name: str) -> str:
    """The scope of a label of the gateway or of a team, without a value."""
    return f"{LABEL}:{name}" if team is None else f"{TEAM_LABEL}:{team}/{name}"


def tag_scope(team: str | None, name: str) -> str:
    """The same of its values that tags bring; it is that of all values without windows of their own, too."""
    return f"{TAG}:{name}" if team is None else f"{TEAM_TAG}:{team}/{name}"


def value_scope(label: str, value: str) -> str:
    return f"{label}={value}"


def is_of_label(scope: str) -> bool:
    return scope.partition(":")[0] in (LABEL, TEAM_LABEL, TAG, TEAM_TAG)


def scope_kind(scope: str) -> ScopeKind:
    """The row of a scope."""
    return SCOPES[scope.partition(":")[0]]


def format_scope(scope: str) -> str:
    """A window's owner in the words of a message to its user."""
    team, person = member_of(scope)
    name = scope.partition(":")[2] if person is None else person
    if scope.startswith((f"{TEAM_LABEL}:", f"{TEAM_TAG}:")):
        name = name.partition("/")[2]
    return scope_kind(scope).whose.format(name=name, team=team)


def member_of(scope: str) -> tuple[str | None, str | None]:
    """The team and the person of a scope, as far as it is of one; the team of a key is not in its scope.

    A team with quotas for its members or of labels has no `/` in its name (`config/checks.py`).
    """
    kind, _, name = scope.partition(":")
    team, _, person = name.partition("/")
    if kind == MEMBER:
        return team, person
    if kind in (TEAM_LABEL, TEAM_TAG):
        return team, None
    return (name if kind == "team" else None), (name if kind == PERSON else None)


def holder(scope: str) -> Key:
    """Someone whom the windows of this scope bind, and no key of the file or the store."""
    team, person = member_of(scope)
    name, _, value = scope.partition(":")[2].removeprefix("" if team is None else f"{team}/").partition("=")
    return Key("", team=team, owner=person, labels=((name, value),) if is_of_label(scope) else ())
