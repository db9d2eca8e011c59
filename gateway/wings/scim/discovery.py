"""The documents by which a provider learns what is supported (RFC 7644, 4; RFC 7643, 5 to 7)."""

from __future__ import annotations

from typing import Any

from .resources import SCHEMA, listed

MAX_RESULTS = 200
_CORE = "urn:ietf:params:scim:schemas:core:2.0:"


def provider_config() -> dict[str, Any]:
    no = {"supported": False}
    return {
        "schemas": [f"{_CORE}ServiceProviderConfig"],
        "patch": {"supported": True},
        "bulk": {**no, "maxOperations": 0, "maxPayloadSize": 0},
        "filter": {"supported": True, "maxResults": MAX_RESULTS},
        "changePassword": no,
        "sort": no,
        "etag": no,
        "authenticationSchemes": [
            {
                "type": "oauthbearertoken",
                "name": "Bearer token",
                "description": "The token scim.token.",
                "primary": True,
            }
        ],
        "meta": {"resourceType": "ServiceProviderConfig"},
    }


def resource_types() -> dict[str, Any]:
    rows = [
        {
            "schemas": [f"{_CORE}ResourceType"],
            "id": kind,
            "name": kind,
            "endpoint": f"/{kind}s",
            "schema": f"{SCHEMA}{kind}",
            "meta": {"resourceType": "ResourceType"},
        }
        for kind in ("User", "Group")
    ]
    return listed(rows, len(rows), 1)


def schemas() -> dict[str, Any]:
    name_parts = [_attribute(name) for name in ("formatted", "familyName", "givenName")]
    value = [_attribute("value"), _attribute("type"), _attribute("primary", "boolean")]
    member = [_attribute("value"), _attribute("display")]
    users = [
        _attribute("userName", required=True, uniqueness="server"),
        _attribute("externalId", caseExact=True),
        _attribute("displayName"),
        _attribute("active", "boolean"),
        _attribute("name", "complex", subAttributes=name_parts),
        _attribute("emails", "complex", multiValued=True, subAttributes=value),
        _attribute("groups", "complex", multiValued=True, mutability="readOnly", subAttributes=member),
    ]
    groups = [
        _attribute("displayName", required=True),
        _attribute("externalId", caseExact=True),
        _attribute("members", "complex", multiValued=True, subAttributes=member),
    ]
    rows = [
        {
            "schemas": [f"{_CORE}Schema"],
            "id": f"{SCHEMA}{kind}",
            "name": kind,
            "attributes": attributes,
            "meta": {"resourceType": "Schema"},
        }
        for kind, attributes in (("User", users), ("Group", groups))
    ]
    return listed(rows, len(rows), 1)


def _attribute(name: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "multiValued": False,
        "required": False,
        "caseExact": False,
        "mutability": "readWrite",
        "returned": "default",
        "uniqueness": "none",
        **more,
    }
