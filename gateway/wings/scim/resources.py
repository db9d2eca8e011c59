"""Users and groups as they are kept and shown. Pure.

A resource is kept as its provider wrote it, but for what the gateway decides (`id`, `meta`, `schemas`, `groups`) and
passwords, which no document ever holds. A library of models would check attributes that nothing here reads: the few
members that count are checked below.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from gateway import untrusted_json
from gateway.config.sections import BAD_SIGNS, MAX_PERSON, folded_name
from gateway.quota.issued import format_time

from .faults import ScimFault
from .filters import HALF, member

Kind = Literal["User", "Group"]
SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:"
LIST = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
MAX_BYTES = 1_048_576
"""Longest document of a resource: a group of some ten thousand members."""
MAX_PARTS = 60_000
"""Most objects and lists of a body."""

OURS = frozenset({"id", "meta", "schemas", "groups", "password"})
NAMES = {
    each.lower(): each for each in ("userName", "externalId", "displayName", "active", "emails", "members", "name")
}
NAMING: Mapping[Kind, str] = {"User": "userName", "Group": "displayName"}
"""The attribute that every resource has."""


class Resource(NamedTuple):
    """A user or a group as the store has it."""

    kind: Kind
    id: str
    values: Mapping[str, Any]
    created_at: float
    updated_at: float

    @property
    def name(self) -> str:
        return str(self.values[NAMING[self.kind]])

    @property
    def is_active(self) -> bool:
        return self.values.get("active", True) is not False

    @property
    def members(self) -> frozenset[str]:
        """The ids of a group's members."""
        return frozenset(str(member(each, "value")) for each in self.values.get("members", ()))

    def encode(self) -> str:
        return json.dumps([self.values, self.created_at, self.updated_at], separators=(",", ":"))

    @classmethod
    def decode(cls, place: str, text: str) -> Resource:
        kind, _, resource_id = place.partition(":")
        return cls("User" if kind == "User" else "Group", resource_id, *json.loads(text))

    def person(self, attribute: str) -> str | None:
        """The person of a user; None: the attribute that names her is missing."""
        if attribute == "email":
            emails = [each for each in self.values.get("emails", ()) if isinstance(each, dict)]
            emails.sort(key=lambda each: each.get("primary") is not True)
            found = member(emails[0], "value") if emails else None
        else:
            found = self.values.get(attribute)
        is_name = isinstance(found, str) and 0 < len(found) <= MAX_PERSON and not BAD_SIGNS.search(found)
        return str(found) if is_name else None

    def shown(
        self, address: str, groups: Collection[Mapping[str, str]] = (), without: Collection[str] = ()
    ) -> dict[str, Any]:
        """The resource as its provider reads it, at this address of the API; a user with these groups."""
        found: dict[str, Any] = {"schemas": self._schemas(), "id": self.id, **self.values}
        if self.kind == "User":
            found["active"] = self.is_active
            found["groups"] = [*groups]
        found["meta"] = {
            "resourceType": self.kind,
            "created": format_time(self.created_at),
            "lastModified": format_time(self.updated_at),
            "location": f"{address}/{self.kind}s/{self.id}",
        }
        return {name: value for name, value in found.items() if name.lower() not in without}

    def _schemas(self) -> list[str]:
        return [f"{SCHEMA}{self.kind}", *[name for name in self.values if name.startswith("urn:")]]


def first_id(kind: Kind, name: str) -> str:
    """The id of the first resource of this name, by which it is found without a search."""
    return str(uuid.UUID(hashlib.sha256(f"{kind}\0{folded_name(name)}".encode()).hexdigest()[:32]))


def is_too_much(text: bytes) -> bool:
    """Whether a body would take too long to be read."""
    return len(text) > MAX_BYTES or untrusted_json.openings(text) > MAX_PARTS


MAX_DEPTH = 32
"""Objects and lists inside each other; those of the standard are five. Copies of much deeper ones fail."""
MAX_NAME = 1000
"""Characters of the name of an attribute: each is compared with others."""


def is_readable(body: Any) -> bool:
    """Whether a body is nested no deeper than `MAX_DEPTH`, and has only whole characters and no longer name."""
    for depth, level in enumerate(untrusted_json.levels(body)):
        if depth == MAX_DEPTH or not all(map(_is_whole, level)):
            return False
    return True


def _is_whole(value: Any) -> bool:
    if isinstance(value, dict):
        return not any(len(name) > MAX_NAME or HALF.search(name) for name in value)
    return not isinstance(value, str) or HALF.search(value) is None


def checked(kind: Kind, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are kept of a resource. Raises `ScimFault`."""
    found = {NAMES.get(name.lower(), name): value for name, value in values.items() if name.lower() not in OURS}
    if not isinstance(name := found.get(NAMING[kind]), str) or not name.strip():
        raise ScimFault(400, f"Expected {NAMING[kind]}, a text.", "invalidValue")
    if found.get("active") is not None:
        found["active"] = _read_bool(found["active"])
    for several in ("emails", "members"):
        given = found.get(several) or []
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise ScimFault(400, f"Expected {several} as a list of objects.", "invalidValue")
        if several in found:
            found[several] = given
    if any(not isinstance(member(each, "value"), str) for each in found.get("members", ())):
        raise ScimFault(400, "Each member needs a value, its id.", "invalidValue")
    if len(json.dumps(found)) > MAX_BYTES:
        raise ScimFault(413, f"A resource has at most {MAX_BYTES} bytes.")
    return found


def with_state(values: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The new values of a user, who stays deactivated until a provider activates her: a PUT may leave `active` out
    (RFC 7644, 3.5.1), and a PATCH may remove it."""
    is_left_out = values.get("active") is None and before.get("active") is False
    return {**values, "active": False} if is_left_out else values


def _read_bool(value: Any) -> bool:
    text = str(value).lower() if isinstance(value, bool | str) else ""
    if text not in ("true", "false"):
        raise ScimFault(400, "Expected active as true or false.", "invalidValue")
    return text == "true"


def listed(shown: list[dict[str, Any]], total: int, start: int) -> dict[str, Any]:
    """One page of a list."""
    return {
        "schemas": [LIST], "totalResults": total, "startIndex": start, "itemsPerPage": len(shown), "Resources": shown,
    }  # fmt: skip
