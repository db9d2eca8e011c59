"""Requests of Okta and Entra, as their documents have them, and what becomes of a resource.

Okta: developer.okta.com, "Okta and SCIM Version 2.0". Entra: learn.microsoft.com, "Tutorial: Develop and plan
provisioning for a SCIM endpoint in Microsoft Entra ID"; scimmyjs/scimmy#86 (a boolean as text),
MicrosoftDocs/azure-docs#30826 (members removed by a value), ssoready/ssoready#182.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wings.scim.faults import ScimFault
from gateway.wings.scim.patch import patched
from gateway.wings.scim.resources import checked

CORE = "urn:ietf:params:scim:schemas:core:2.0:User:"
ENTERPRISE = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
USER = {"userName": "ann", "active": True, "name": {"givenName": "A"}, "emails": [{"type": "work", "value": "a@x"}]}
GROUP = {"displayName": "g", "members": [{"value": "1"}, {"value": "2"}]}


def operation(op: str, value: Any = None, path: str | None = None) -> dict[str, Any]:
    given = {"op": op, "path": path, "value": value}
    return {name: each for name, each in given.items() if each is not None}


@pytest.mark.parametrize(
    ("resource", "operations", "expected"),
    [
        # Okta deactivates.
        (USER, [operation("replace", {"active": False})], {"active": False}),
        # Entra deactivates.
        (USER, [operation("Replace", "False", "active")], {"active": False}),
        (USER, [operation("Replace", "True", "active")], {"active": True}),
        (USER, [operation("Add", "False", "active")], {"active": False}),
        # Entra changes attributes, with and without a path.
        (USER, [operation("Replace", "b@x", 'emails[type eq "work"].value')],
         {"emails": [{"type": "work", "value": "b@x"}]}),
        (USER, [operation("Add", "h@x", 'emails[type eq "home"].value')],
         {"emails": [*USER["emails"], {"type": "home", "value": "h@x"}]}),  # type: ignore[misc]
        (USER, [operation("Replace", "B", "name.familyName")], {"name": {"givenName": "A", "familyName": "B"}}),
        (USER, [operation("replace", {"name.familyName": "B", "displayName": "AB"})],
         {"name": {"givenName": "A", "familyName": "B"}, "displayName": "AB"}),
        (USER, [operation("Add", "IT", f"{ENTERPRISE}:department")], {ENTERPRISE: {"department": "IT"}}),
        (USER, [operation("Replace", "eve", f"{CORE}userName")], {"userName": "eve"}),
        (USER, [operation("remove", path="name.givenName")], {"name": {}}),
        (USER, [operation("remove", path='emails[type eq "work"]')], {"emails": []}),
        # Members of groups.
        (GROUP, [operation("Add", [{"$ref": None, "value": "3"}], "members")],
         {"members": [{"value": "1"}, {"value": "2"}, {"$ref": None, "value": "3"}]}),
        (GROUP, [operation("add", [{"value": "2", "display": "b"}], "members")],
         {"members": [{"value": "1"}, {"value": "2", "display": "b"}]}),
        (GROUP, [operation("Remove", [{"$ref": None, "value": "1"}], "members")], {"members": [{"value": "2"}]}),
        (GROUP, [operation("remove", path='members[value eq "1"]')], {"members": [{"value": "2"}]}),
        (GROUP, [operation("remove", path="members")], {"members": []}),
        (GROUP, [operation("replace", [{"value": "9"}], "members")], {"members": [{"value": "9"}]}),
        (GROUP, [operation("Replace", "h", "displayName")], {"displayName": "h"}),
        (GROUP, [operation("replace", {"id": "x", "displayName": "h"})], {"displayName": "h"}),
    ],
)  # fmt: skip
def test_what_providers_send(resource: dict[str, Any], operations: list[Any], expected: dict[str, Any]) -> None:
    body = {"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": operations}
    kind = "User" if resource is USER else "Group"
    assert checked(kind, patched(resource, body)) == {**resource, **expected}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operations", "kind"),
    [
        ([], "invalidSyntax"),
        ({}, "invalidSyntax"),
        (["replace"], "invalidSyntax"),
        ([operation("move", 1, "active")], "invalidSyntax"),
        ([operation("remove")], "noTarget"),
        ([operation("replace", False)], "noTarget"),
        ([operation("replace", 1, "emails[type")], "invalidPath"),
        ([operation("replace", 1, "emails[type gt 5].value")], "invalidFilter"),
        ([operation("replace", "perhaps", "active")], "invalidValue"),
        ([operation("remove", path="userName")], "invalidValue"),
        ([operation("replace", "x", "emails")], None),
    ],
)
def test_bad_requests(operations: Any, kind: str | None) -> None:
    before = str(USER)
    if kind is None:
        assert checked("User", patched(USER, {"Operations": operations}))["emails"] == [{"value": "x"}]
    else:
        with pytest.raises(ScimFault) as raised:
            checked("User", patched(USER, {"Operations": operations}))
        assert (raised.value.status, raised.value.kind) == (400, kind)
    assert str(USER) == before


MANY_NAMES = {f"a{number}": 1 for number in range(2000)}
SPELLED = CORE.replace("User", "Group")
CONDITIONS = " and ".join(['type eq "User"'] * 30)
LARGE = {"displayName": "g", "members": [{"value": str(number), "type": "User"} for number in range(20_000)]}


@pytest.mark.parametrize(
    ("resource", "given"),
    [
        (USER, operation("add", MANY_NAMES)),
        (USER, operation("add", {ENTERPRISE: MANY_NAMES})),
        ({**USER, "name": MANY_NAMES}, [operation("add", 1, f"name.b{number}") for number in range(500)]),
        ({**USER, **MANY_NAMES}, [operation("replace", 1, f"a{number}") for number in range(500)]),
        (LARGE, operation("replace", "x", f"members[{CONDITIONS}].display")),
        (LARGE, operation("add", {SPELLED[:at].upper() + SPELLED[at:] + "members": [] for at in range(30)})),
        (LARGE, [operation("add", [], "members")] * 30),
    ],
    ids=["names", "extension", "parts", "wide", "conditions", "spellings", "operations"],
)
def test_a_request_looks_at_a_bounded_number_of_values(resource: dict[str, Any], given: Any) -> None:
    """Whatever is done for each of something else: a thread does it beside all calls of the worker."""
    with pytest.raises(ScimFault) as raised:
        patched(resource, {"Operations": given if isinstance(given, list) else [given]})
    assert raised.value.status == 413
