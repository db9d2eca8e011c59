"""Documents of people who sign in or call with tokens: their roles, ends of sessions, keys and records.

The role and the end are in the overlay `person:NAME`, which has the limits and the access of a person, too. The record
of a person who calls with tokens is a key without a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from gateway.config import Team, shown_key, with_key_defaults
from gateway.config.sections import ROLE_PREFIX, folded_name
from gateway.config.sections.values import is_glob
from gateway.keys.documents import AuditEvent, exists
from gateway.keys.registry import Registry
from gateway.quota.issued import IssuedKey, SecretOf, person_digest, person_id
from gateway.quota.scopes import person_scope
from gateway.web.admin.operations import MAX_ROWS
from gateway.web.admin.permissions import Principal, Scope, role_refused

EVERY_MODEL = ("*",)
"""The models of `members` by default; then those of `defaults.keys` count."""
_HERS = frozenset({"id", "team", "note"})
_NARROWING = frozenset({"models", "expires", "ips", "max_parallel", "limits", "quotas"})
_REVOKED_COUNTS_S = 86_400
"""Otherwise a person could make and revoke keys without an end, and each is kept."""


class PeopleRecords(Registry):
    """Changes those documents, and raises as `Registry`."""

    async def create_person(self, issuer: str, name: str, team: str | None) -> None:
        """Make the record of a person who calls with tokens of this issuer, with the settings of `defaults.keys` but
        for an expiry: her tokens have one. Raises `Conflict` if it is there already."""
        compared = folded_name(name)  # one record for her, however her provider writes it
        now, digest = self._clock(), person_digest(issuer, compared).hex()
        body = {**with_key_defaults({"id": person_id(compared), "owner": name, "team": team}, self._config(), now)}
        settings = await self._read_settings({**body, "expires": None})
        if self._file_key(settings.id) is not None:
            raise exists("key", settings.id)
        made = IssuedKey(settings, (SecretOf(digest, now),), created_at=now, updated_at=now)
        doing = AuditEvent(f"person {name}, first token", "create", after=shown_key(settings))
        await self._write("key", settings.id, None, made.encode(), doing, added=[digest])

    async def with_member_settings(self, principal: Principal, body: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a key that a person makes for herself. Raises `Forbidden`."""
        scope = Scope("own", principal)
        own = (await self.list_keys("", MAX_ROWS, None, scope.covers, scope.groups)).rows
        defaults = self._config().defaults.keys.model_dump(mode="json", exclude_unset=True)
        if "expires_after_s" in defaults:
            defaults["expires"] = None
        assert principal.owner is not None  # of a session
        return with_member_settings(body, principal.owner, own, await self.teams(), defaults, self._clock())

    async def note_role(self, name: str, role: str) -> None:
        """Keep the role of a person who signs in, where a role has limits."""
        if not any(each.startswith(ROLE_PREFIX) for each in self._config().people):
            return
        text, overlay = await self._overlay(person_scope(name))
        if overlay.role != role:
            doing = AuditEvent(f"person {name}, sign-in", "update", {"role": overlay.role}, {"role": role})
            await self._write("overlay", person_scope(name), text, overlay._replace(role=role).encode(), doing)

    async def are_sessions_ended(self, person: str, begun: float) -> bool:
        """Whether a session of this person that began at this Unix time was ended."""
        _, overlay = await self._overlay(person_scope(person))
        return overlay.paused is not None or (overlay.revoked_at is not None and begun <= overlay.revoked_at)


def with_member_settings(
    body: Mapping[str, Any],
    person: str,
    own_keys: Iterable[Mapping[str, Any]],
    teams: Mapping[str, Team],
    defaults: Mapping[str, Any],
    now: float,
) -> dict[str, Any]:
    """The settings of a key that a person makes for herself: hers, and in her team, one with `members` where she has an
    active key. She may narrow settings that `defaults.keys` does not set. `own_keys`: her keys, as they are
    shown; `defaults`: the settings of `defaults.keys`; `now`: a Unix time. Raises `Forbidden`."""
    keys = list(own_keys)
    team = _team_of(body, keys, teams)
    allowed = teams[team].members
    assert allowed is not None
    for name in body:
        if name not in _HERS and (name not in _NARROWING or name in defaults) and name != "models":
            raise role_refused(f"'{name}' of your keys is set by the gateway. Leave it out.", name)
    if sum(key["team"] == team and _counts(key, now) for key in keys) >= allowed.max_keys:
        raise role_refused(
            f"You have as many keys in the team '{team}' as it allows ({allowed.max_keys}; one that is revoked counts "
            "for a day). Use or rotate one of them, or ask an operator.",
            None,
        )
    models = defaults.get("models", allowed.models) if allowed.models == EVERY_MODEL else allowed.models
    return {**body, "team": team, "owner": person, "models": _models(body, models)}


def _team_of(body: Mapping[str, Any], keys: Iterable[Mapping[str, Any]], teams: Mapping[str, Team]) -> str:
    mine: set[str] = {key["team"] for key in keys if key["status"] == "active" and key["team"] is not None}
    open_to_her = sorted(name for name in mine if name in teams and teams[name].members is not None)
    if not open_to_her:
        raise role_refused("No team of yours lets its members make keys. Ask its lead or an operator for a key.", None)
    if (team := body.get("team")) is None and len(open_to_her) == 1:
        return open_to_her[0]
    if not isinstance(team, str) or team not in open_to_her:
        raise role_refused(f"Name a team that lets you make keys: {', '.join(open_to_her)}.", "team")
    return team


def _counts(key: Mapping[str, Any], now: float) -> bool:
    if key["status"] != "revoked":
        return True
    revoked_at = key["revoked_at"]
    return revoked_at is not None and now - datetime.fromisoformat(revoked_at).timestamp() < _REVOKED_COUNTS_S


def _models(body: Mapping[str, Any], allowed: Sequence[str]) -> list[str]:
    wanted = list(body.get("models") or allowed)
    for place, model in enumerate(wanted):
        if model not in allowed and (is_glob(model) or not any(fnmatchcase(model, each) for each in allowed)):
            raise role_refused(
                f"Your keys may call {', '.join(allowed)}. Name one of these, or a model that they match.",
                f"models[{place}]",
            )
    return wanted
