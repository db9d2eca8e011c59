"""Settings of keys and teams that are handed out while the gateway runs: the same as in the file, checked the same way.

Paths in faults are those within the key or team: `quotas[0].per`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import ValidationError

from .checks import check_list, check_outputs, explain
from .faults import ConfigError, ConfigFault
from .model_names import with_targets
from .sections import Config, KeySettings, PersonLimits, Quota, Section, Team

S = TypeVar("S", bound=Section)


def read_key(values: Mapping[str, Any], config: Config, teams: Container[str]) -> KeySettings:
    """Check the settings of a key beside this configuration and these teams. Raises `ConfigError` with every fault."""

    def check(key: KeySettings) -> Iterator[ConfigFault]:
        quotas = dict(enumerate(key.quotas))
        if key.id == "other":
            yield ConfigFault(
                "id", "'other' is reserved: metrics use it for keys without a label of their own; choose another id"
            )
        if key.team is not None and key.team not in teams:
            yield ConfigFault("team", f"there is no team {key.team!r}; create it first")
        yield from check_list(("quotas",), quotas)
        yield from check_outputs(("quotas",), quotas, with_targets(key.models, config.aliases), config.models)

    return _read(KeySettings, values, check)


def read_team(values: Mapping[str, Any], config: Config) -> Team:
    """The same for a team."""

    def check(team: Team) -> Iterator[ConfigFault]:
        for name, each in (("quotas", team.quotas), ("member_quotas", team.member_quotas)):
            quotas = dict(enumerate(each))
            yield from check_list((name,), quotas, may_have_labels=name == "quotas")
            yield from check_outputs((name,), quotas, ("*",), config.models)

    return _read(Team, values, check)


def read_person(values: Mapping[str, Any], config: Config) -> PersonLimits:
    """The same for a person."""

    def check(person: PersonLimits) -> Iterator[ConfigFault]:
        quotas = dict(enumerate(person.quotas))
        yield from check_list(("quotas",), quotas)
        yield from check_outputs(("quotas",), quotas, ("*",), config.models)

    return _read(PersonLimits, values, check)


def read_quota(values: Mapping[str, Any]) -> Quota:
    """One quota by itself. Raises `ConfigError`."""
    return _read(Quota, values, lambda _: iter(()))


def _read(kind: type[S], values: Mapping[str, Any], check: Callable[[S], Iterator[ConfigFault]]) -> S:
    try:
        found = kind.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError([*dict.fromkeys(explain(detail, kind) for detail in details)]) from None
    if faults := list(check(found)):
        raise ConfigError(faults)
    return found


def shown_key(key: KeySettings) -> dict[str, Any]:
    """Every setting of a key as JSON; what `read_key` reads again. Never its secret."""
    return {
        "id": key.id,
        "team": key.team,
        "models": list(key.models),
        "expires": key.expires.isoformat() if key.expires else None,
        "ips": [str(network) for network in key.ips],
        "max_parallel": key.max_parallel,
        "limits": key.limits.model_dump(mode="json", exclude_defaults=True),
        "quotas": shown_quotas(key.quotas),
        "on_exceeded": key.on_exceeded,
        "priority": key.priority,
        "weight": key.weight,
        "max_wait_s": key.max_wait_s,
        "owner": key.owner,
        "note": key.note,
        "labels": dict(key.labels),
    }


def shown_team(team: Team) -> dict[str, Any]:
    """The settings of a team in the form of the configuration file."""
    members = None if team.members is None else team.members.model_dump(mode="json")
    return {
        "quotas": shown_quotas(team.quotas), "member_quotas": shown_quotas(team.member_quotas), "members": members,
    }  # fmt: skip


def shown_person(person: PersonLimits) -> dict[str, Any]:
    """The limits of a person in the form of the configuration file."""
    return {
        "quotas": shown_quotas(person.quotas), "max_parallel": person.max_parallel, "on_exceeded": person.on_exceeded,
    }  # fmt: skip


def shown_quotas(quotas: tuple[Quota, ...]) -> list[dict[str, Any]]:
    """Quotas in the form of the configuration file."""
    return [
        {name: _plain(value) for name, value in quota.model_dump().items() if value is not None} for quota in quotas
    ]


def _plain(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    number = float(value)
    if number.is_integer():
        return int(number)
    return number if Decimal(str(number)) == value else str(value)
