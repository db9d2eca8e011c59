"""Refusals in SCIM's form (RFC 7644, 3.12)."""

from __future__ import annotations

from typing import Any

from gateway.web.openapi.operation import Schema

ERROR = "urn:ietf:params:scim:api:messages:2.0:Error"


FAULT: Schema = {
    "type": "object",
    "properties": {
        "schemas": {"const": [ERROR]}, "status": {"type": "string"}, "detail": {"type": "string", "minLength": 1},
        "scimType": {"type": "string"},
    },
    "required": ["schemas", "status", "detail"],
    "additionalProperties": False,
}  # fmt: skip


class ScimFault(Exception):
    """A request that cannot be carried out."""

    def __init__(self, status: int, detail: str, kind: str | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind


def shown_fault(status: int, detail: str, kind: str | None = None) -> dict[str, Any]:
    """The body of a refusal; `kind` is its `scimType`."""
    found = {"schemas": [ERROR], "status": str(status), "detail": detail}
    return found if kind is None else {**found, "scimType": kind}
