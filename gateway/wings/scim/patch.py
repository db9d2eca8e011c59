"""PATCH of a resource (RFC 7644, 3.5.2), and what providers send beside it. Pure.

Entra writes `Add`, `Replace` and `Remove`, booleans as the texts "True" and "False", removes members by a `value`
beside the path `members`, and names new values by a filter (`emails[type eq "work"].value`): Microsoft's tutorial
"Develop and plan provisioning for a SCIM endpoint"; scimmyjs/scimmy#86, MicrosoftDocs/azure-docs#30826. Okta replaces
by a `value` without a path (Okta's reference of SCIM 2.0, "Update a specific User (PATCH)").
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from .faults import ScimFault
from .filters import Path, matches, read_path

MANY = frozenset({
    "emails", "members", "phonenumbers", "addresses", "photos", "ims", "entitlements", "roles", "x509certificates",
})  # fmt: skip
"""Attributes with several values, in small letters."""

MAX_OPERATIONS = 1000
MAX_LOOKED_AT = 500_000
"""Values that the operations of one request look at: 25 operations on 20,000 members."""
MEMBERS_OF_A_VALUE = 8
"""A value with more members than a group's counts as several."""
EXTENSION = "urn:ietf:params:scim:schemas:extension:"


class _Looks:
    """The values that a request has looked at."""

    def __init__(self) -> None:
        self._left = MAX_LOOKED_AT

    def at(self, number: int) -> None:
        """Count that many more. Raises `ScimFault`."""
        self._left -= number
        if self._left < 0:
            raise ScimFault(
                413, "These are too many operations for a resource with this number of values. Send fewer at once."
            )


def patched(resource: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """The resource after the operations of this body. Raises `ScimFault`; then none of them counts."""
    operations = next((value for name, value in body.items() if name.lower() == "operations"), None)
    if not isinstance(operations, list) or not 0 < len(operations) <= MAX_OPERATIONS:
        raise ScimFault(400, f"Expected Operations, a list of 1 to {MAX_OPERATIONS}.", "invalidSyntax")
    result, looks = copy.deepcopy(dict(resource)), _Looks()
    for each in operations:
        if not isinstance(each, dict) or not isinstance(each.get("op"), str):
            raise ScimFault(400, "Each operation needs an op.", "invalidSyntax")
        verb = each["op"].lower()
        if verb not in ("add", "replace", "remove"):
            raise ScimFault(400, "Expected the op add, replace or remove.", "invalidSyntax")
        path, value = each.get("path"), each.get("value")
        if path:
            _apply(result, verb, str(path), value, looks)
        elif verb == "remove" or not isinstance(value, dict):
            raise ScimFault(400, "An operation without a path needs an object as its value.", "noTarget")
        else:
            for name, one in value.items():
                _apply(result, verb, name, one, looks)
    return result


def _apply(resource: dict[str, Any], verb: str, text: str, value: Any, looks: _Looks) -> None:
    looks.at(len(resource))
    if text.lower().startswith(EXTENSION):
        urn, _, rest = text.rpartition(":") if not isinstance(value, dict) else (text, "", "")
        extension = resource.setdefault(urn, {})
        if not isinstance(extension, dict):
            raise ScimFault(400, f"{urn[:100]} is no object.", "invalidValue")
        for name, one in value.items() if isinstance(value, dict) else [(rest, value)]:
            _apply(extension, verb, name, one, looks)
        return
    path = read_path(text)
    name = next((key for key in resource if key.lower() == path.name.lower()), path.name)
    if name.lower() in MANY:
        _change_several(resource, verb, path._replace(name=name), value, looks)
    elif path.part is None:
        _set(resource, verb, name, value)
    else:
        inner = resource.get(name)
        inner = resource[name] = inner if isinstance(inner, dict) else {}
        looks.at(len(inner))
        _set(inner, verb, path.part, value)


def _set(values: dict[str, Any], verb: str, name: str, value: Any) -> None:
    found = next((key for key in values if key.lower() == name.lower()), name)
    if verb == "remove":
        values.pop(found, None)
    elif isinstance(values.get(found), dict) and isinstance(value, dict):
        values[found] = {**values[found], **value}
    else:
        values[found] = value


def _change_several(resource: dict[str, Any], verb: str, path: Path, value: Any, looks: _Looks) -> None:
    present = [each for each in resource.get(path.name) or [] if isinstance(each, dict)]
    looks.at(sum([1 + len(each) // MEMBERS_OF_A_VALUE for each in present]) * max(1, len(path.where)))
    if path.where:
        resource[path.name] = _at_filter(present, verb, path, value)
        return
    given = [each if isinstance(each, dict) else {"value": each} for each in _listed(value)]
    if not all(isinstance(each.get("value"), str | None) for each in given):
        raise ScimFault(400, f"The values of {path.name} are texts.", "invalidValue")
    names = {each.get("value") for each in given}
    if verb == "replace":
        resource[path.name] = given
    elif verb == "add":
        resource[path.name] = [*[each for each in present if each.get("value") not in names], *given]
    else:  # without a value, all of them
        resource[path.name] = [each for each in present if names and each.get("value") not in names]


def _at_filter(present: list[dict[str, Any]], verb: str, path: Path, value: Any) -> list[dict[str, Any]]:
    found = [each for each in present if matches(each, path.where)]
    if verb == "remove" and path.part is None:
        gone = {id(each) for each in found}
        return [each for each in present if id(each) not in gone]
    if not found and verb != "remove":
        found = [{term.path.name: term.value for term in path.where}]
        present = [*present, *found]
    for each in found:
        if path.part is not None:
            _set(each, verb, path.part, value)
        elif isinstance(value, dict):
            each.update(value)
    return present


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
