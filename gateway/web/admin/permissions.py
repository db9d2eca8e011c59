"""The one table of roles and operations of the admin API, and the scopes that it grants. Pure.

A role that has no entry in an operation's row may not use it. `web/admin/common.py` enforces the table, the OpenAPI
document and docs/people.md show it, and tests/wings/people/test_roles.py tries every operation with every role.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, get_args

from pydantic import SecretStr

from gateway.config import AdminSettings, KeySettings, Priority, is_expired
from gateway.config.sections import folded_name
from gateway.errors import Forbidden, Unauthorized

Role = Literal["operator", "lead", "member", "viewer", "key"]
"""`key`: a request that presents an API key of the data plane instead of a token or a session."""

ROLES: Sequence[Role] = ("operator", "lead", "member", "viewer", "key")
"""The order of the columns of the table."""

Reach = Literal["all", "team", "own", "self"]
"""Everything; one team and its keys; a person's own keys, or the presented key and those of the same owner and team;
the presented key alone, where its team allows it (`members.by_key`)."""

_REACHES: Mapping[str, Reach] = {"all": "all", "team": "team", "own": "own", "self": "self"}

PRIORITIES: Sequence[Priority] = get_args(Priority)
"""Priorities in order of urgency, the most urgent first."""

_TABLE = """
                                           operator  lead  member  viewer  key
GET    /admin/api/usage                    all       team  own     all     own
GET    /admin/api/latency                  all       team  own     all     own
GET    /admin/api/calls                    all       team  own     all     own
GET    /admin/api/refusals                 all       team  own     all     own
GET    /admin/api/requests/{request}       all       team  own     all     own
GET    /admin/api/quotas                   all       team  own     all     own
GET    /admin/api/upstreams                all       -     -       all     -
GET    /admin/api/models                   all       -     -       all     -
GET    /admin/api/reload                   all       -     -       -       -
POST   /admin/api/reload                   all       -     -       -       -
GET    /admin/api/session                  all       team  own     all     own
GET    /admin/api/live                     all       -     -       all     -
GET    /admin/api/keys                     all       team  own     all     own
POST   /admin/api/keys                     all       team  own     -       -
GET    /admin/api/keys/{id}                all       team  own     all     own
PATCH  /admin/api/keys/{id}                all       team  -       -       -
DELETE /admin/api/keys/{id}                all       team  own     -       -
POST   /admin/api/keys/{id}/rotate         all       team  own     -       self
POST   /admin/api/keys/{id}/pause          all       team  own     -       self
POST   /admin/api/keys/{id}/resume         all       team  own     -       -
POST   /admin/api/keys/{id}/delete         all       team  -       -       -
POST   /admin/api/keys/{id}/reset          all       team  -       -       -
POST   /admin/api/keys/{id}/top_up         all       team  -       -       -
GET    /admin/api/teams                    all       team  -       all     -
POST   /admin/api/teams                    all       -     -       -       -
GET    /admin/api/teams/{name}             all       team  -       all     -
PATCH  /admin/api/teams/{name}             all       -     -       -       -
DELETE /admin/api/teams/{name}             all       -     -       -       -
POST   /admin/api/teams/{name}/reset       all       -     -       -       -
POST   /admin/api/teams/{name}/top_up      all       -     -       -       -
POST   /admin/api/quotas/reset             all       -     -       -       -
POST   /admin/api/quotas/top_up            all       -     -       -       -
POST   /admin/api/teams/{name}/members/{person}/reset all - -      -       -
POST   /admin/api/teams/{name}/members/{person}/top_up all - -     -       -
POST   /admin/api/people/{person}/reset    all       -     -       -       -
POST   /admin/api/people/{person}/top_up   all       -     -       -       -
GET    /admin/api/audit                    all       -     -       -       -
"""


def read_permissions(table: str) -> Mapping[tuple[str, str], Mapping[Role, Reach]]:
    """The roles of each operation, with their reach, by method and path. The first line has the roles."""
    head, *rows = [line.split() for line in table.strip().splitlines()]
    assert head == list(ROLES)
    return {
        (method, path): {role: _REACHES[cell] for role, cell in zip(ROLES, cells, strict=True) if cell != "-"}
        for method, path, *cells in rows
    }


PERMISSIONS = read_permissions(_TABLE)
"""Roles that may use an operation, each with its reach, by method and path of the operation."""


class Principal(NamedTuple):
    """The author of a request."""

    name: str
    """Name in the audit log: `admin.token`, `token ci`, `person alice@example.org`, `key alice`."""
    role: Role
    team: str | None = None
    """The team of a lead, or of the presented key."""
    owner: str | None = None
    """The person: keys with this owner are her own."""
    key: str | None = None
    """The id of the presented key."""
    is_replaced: bool = False
    """Whether the presented secret of the key was replaced, and works until its overlap ends."""


OPERATOR, VIEWER = "admin.token", "admin.viewer_token"
"""The two tokens without a name of their own, in the audit log: their settings."""

PREVIOUS = ", previous"
"""It follows the name of a token that was rotated, in the audit log: who still has the one before."""


def tokens_of(admin: AdminSettings) -> dict[str, SecretStr | None]:
    """Every token of the admin API, by its name in the audit log."""
    found = {OPERATOR: admin.token, VIEWER: admin.viewer_token}
    for name, each in admin.tokens.items():
        found |= {f"token {name}": each.token, f"token {name}{PREVIOUS}": each.previous_token}
    return found


def holder_of(name: str, admin: AdminSettings, now: float) -> Principal | None:
    """The author of a request with the token of this name; None: it is no token's. Raises `Unauthorized` for a token
    that has ended."""
    if name in (OPERATOR, VIEWER):
        return Principal(name, "operator" if name == OPERATOR else "viewer")
    token = admin.tokens.get(name.removeprefix("token ").removesuffix(PREVIOUS)) if name.startswith("token ") else None
    if token is not None and is_expired(token.previous_until if name.endswith(PREVIOUS) else token.expires, now):
        raise Unauthorized("This token has expired. Ask an operator for a new one.", code="invalid_api_key")
    return None if token is None else Principal(name, token.role, token.team)


class KeyFacts(Protocol):
    """The settings that decide whether a key is within a scope."""

    @property
    def id(self) -> str: ...
    @property
    def team(self) -> str | None: ...
    @property
    def owner(self) -> str | None: ...


class Scope(NamedTuple):
    """The keys, teams and numbers that a request may reach."""

    reach: Reach
    principal: Principal

    @property
    def is_all(self) -> bool:
        """Whether nothing is out of reach."""
        return self.reach == "all"

    def covers(self, key: KeyFacts) -> bool:
        """Whether a key is within reach."""
        principal = self.principal
        if self.reach == "self":
            return key.id == principal.key
        if self.reach == "team":
            return principal.team is not None and key.team == principal.team
        if self.reach == "own":
            # The owner of a key is text that the lead of any team can write: together with the team it is a fact.
            own = None if principal.owner is None else folded_name(principal.owner)
            is_same_owner = own is not None and key.owner is not None and folded_name(key.owner) == own
            is_same_team = principal.key is None or key.team == principal.team
            return (principal.key is not None and key.id == principal.key) or (is_same_owner and is_same_team)
        return True

    @property
    def groups(self) -> Collection[tuple[Literal["owner", "team", "id"], str]] | None:
        """Groups that contain all keys within reach (`keys/key_index.py`); None: all keys."""
        principal = self.principal
        if self.reach == "all":
            return None
        if self.reach == "team":
            return [] if principal.team is None else [("team", principal.team)]
        found: list[tuple[Literal["owner", "team", "id"], str]] = []
        if principal.owner is not None and self.reach == "own":
            found.append(("owner", folded_name(principal.owner)))
        if principal.key is not None:
            found.append(("id", principal.key))
        return found

    def covers_team(self, name: str) -> bool:
        """Whether a team is within reach."""
        return self.is_all or (self.reach == "team" and name == self.principal.team)


def owned_by(person: str) -> Scope:
    """The keys whose owner this person is, of every team."""
    return Scope("own", Principal(person, "key", owner=person))


def scope_of(principal: Principal, roles: Mapping[Role, Reach]) -> Scope | None:
    """The scope of an operation for these roles; None: the role may not use it."""
    reach = roles.get(principal.role)
    return None if reach is None else Scope(reach, principal)


def is_left_to_keys(path: str, roles: Mapping[Role, Reach], by_key: Collection[str]) -> bool:
    """Whether a key may use an operation of the role `key`, where its team leaves these actions to its keys."""
    return roles.get("key") != "self" or path.rpartition("/")[2] in by_key


def may_resume(role: Role, paused_by: str) -> bool:
    """Whether a role may resume a key that another one paused: not what a greater one has decided."""
    greater = ROLES[: ROLES.index(role)]
    return paused_by not in greater


def raised(before: KeySettings, after: KeySettings, usual_s: float, longest_s: float) -> str | None:
    """The first setting by which a key would be served before keys of other teams more than now; None: there is none.
    Leads lower these settings, operators raise them. Calls of a key without `max_wait_s` may wait for
    `usual_s`, and `longest_s` for the model for which they wait longest."""
    if PRIORITIES.index(after.priority) < PRIORITIES.index(before.priority):
        return "priority"
    if after.weight > before.weight:
        return "weight"
    if after.max_wait_s != before.max_wait_s:
        now_s = usual_s if before.max_wait_s is None else before.max_wait_s
        if (longest_s if after.max_wait_s is None else after.max_wait_s) > now_s:
            return "max_wait_s"
    return None


def not_allowed(principal: Principal) -> str:
    """The message of a refusal."""
    if principal.role == "viewer":
        return (
            "This token may read usage, calls, quotas, upstreams, keys and teams, and nothing else. Use the admin "
            "token (admin.token) for what you wanted."
        )
    what = {
        "lead": "leads read and change the keys of their team, and read its reports",
        "member": "members make keys within what their team allows, and read, rotate, pause and revoke their own",
        "key": "an API key reads its own usage, windows and settings, and does to itself what its team allows",
    }.get(principal.role, principal.role)
    return f"Your role does not allow this: {what}. Ask an operator of the gateway."


def role_refused(message: str, param: str | None) -> Forbidden:
    return Forbidden(message, param=param, code="role_not_allowed")
