"""Which receiver gets an alert, by whose it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from gateway.config.sections import folded_name
from gateway.quota.scopes import member_of

from .settings import OWNER, AlertReceiver

_WORD = r"[\w!#$%&'*+/=?^`{|}~-]+"
ADDRESS = re.compile(rf"(?!.*=\?){_WORD}(?:\.{_WORD})*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*", re.ASCII)
"""A name to which mail can be sent without quotes (RFC 5322, 3.4.1) by every server. Others chose the name of an owner;
as another address it would keep the mail from all of its receivers."""


class Subject(NamedTuple):
    """The owner of what an alert is about."""

    kind: str
    key: str | None = None
    team: str | None = None
    owner: str | None = None
    """The person whose quota it is, or the owner of the key."""


def subject_of(scope: str, keys: Mapping[str, tuple[str | None, str | None]]) -> Subject:
    """Whose a window of this scope is; `keys` has the team and the owner of keys."""
    kind, _, name = scope.partition(":")
    team, person = member_of(scope)
    match kind:
        case "key":
            return Subject("key", name, *keys.get(name, (None, None)))
        case "member" | "person":
            return Subject("person", None, team, person)
        case "upstream":
            return Subject("upstream_quota")
    return Subject(kind.removeprefix("team_"), None, team)


def takes(receiver: AlertReceiver, subject: Subject, known: Mapping[str, str]) -> bool:
    """Whether it gets alerts about this subject: its kind, each filter that it has, and whether there is an address."""
    if receiver.email and not addresses_of(receiver, subject, known):
        return False
    owners = [folded_name(pattern) for pattern in receiver.owners]
    filters = ((receiver.teams, subject.team), (owners, subject.owner), (receiver.keys, subject.key))
    return subject.kind in receiver.wanted and all(
        not patterns or (name is not None and any(fnmatchcase(name, pattern) for pattern in patterns))
        for patterns, name in filters
    )


def addresses_of(receiver: AlertReceiver, subject: Subject, known: Mapping[str, str]) -> list[str]:
    """The addresses to mail to; `known` are those of owners whose name is no address."""
    found = []
    for each in receiver.email:
        if each != OWNER:
            found.append(each)
        elif subject.owner is not None:
            if (own := known.get(folded_name(subject.owner))) is not None:
                found.append(own)
            elif ADDRESS.fullmatch(subject.owner) is not None:
                found.append(subject.owner)
    return list(dict.fromkeys(found))
