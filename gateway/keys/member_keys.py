"""Keys that people make for themselves, within what their team allows. Pure.

A person belongs to the teams in which she has an active key. `members` of a team has the number of keys that she may
have there, and the models that they may call. All other settings come from `defaults.keys`; she may narrow those that
`defaults.keys` does not set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from gateway.config import Team
from gateway.config.sections.values import is_glob
from gateway.errors import Forbidden

EVERY_MODEL = ("*",)
"""The models of `members` by default; then those of `defaults.keys` count."""
_HERS = frozenset({"id", "team", "note"})
_NARROWING = frozenset({"models", "expires", "ips", "max_parallel", "limits", "quotas"})
_REVOKED_COUNTS_S = 86_400
"""Otherwise a person could make and revoke keys without an end, and each is kept."""


def with_member_settings(
    body: Mapping[str, Any],
    person: str,
    own_keys: Iterable[Mapping[str, Any]],
    teams: Mapping[str, Team],
    defaults: Mapping[str, Any],
    now: float,
) -> dict[str, Any]:
    """The settings of a key that a person makes for herself: hers, and in her team. `own_keys`: her keys, as they are
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


def role_refused(message: str, param: str | None) -> Forbidden:
    return Forbidden(message, param=param, code="role_not_allowed")
