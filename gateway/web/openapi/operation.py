"""One method of one path in the OpenAPI document, and the notation of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from gateway.api.schema import Part

JSON = "application/json"

Schema = Mapping[str, Any]
Caller = Literal["public", "key", "admin", "viewer", "metrics"]


WARNINGS: Mapping[str, Schema] = {
    "warnings": {
        "type": "array", "items": {"type": "string"}, "description": "In the answer to a change: what its author may "
        "have overlooked, and whether the store could still lose it.",
    },
}  # fmt: skip


def named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


class Operation(NamedTuple):
    """One method of one path."""

    summary: str
    caller: Caller
    """The required authorization: a name of `SECURITY`."""
    answers: Mapping[str, Schema]
    """The schema of a successful answer, by media type."""
    errors: tuple[int, ...] = ()
    """Error statuses besides 400 and 503, which every operation can be answered with."""
    body: type[Part] | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()
    status: int = 200
    """The status of a successful answer."""
    is_body_needed: bool = True
    body_type: str = JSON
    """The media type of `body`."""
    error: Schema = named("Error")
    """The schema of an answer with an error status."""
    error_type: str = JSON
    """The media type of `error`."""


SECURITY: Mapping[Caller, list[dict[str, list[str]]]] = {
    "public": [],
    "key": [{"key": []}],
    "admin": [{"admin": []}],
    "viewer": [{"admin": []}, {"viewer": []}],
    "metrics": [{}, {"metrics": []}],  # open, unless metrics.token is set
}
SCHEMES: Mapping[str, str] = {
    "key": "The key of a client.",
    "admin": "A token of the admin API; `x-roles` has the roles that an operation is for.",
    "viewer": "The token that may read reports, where the gateway has one.",
    "metrics": "The token of the metrics, where the gateway has one.",
}


def in_query(name: str, description: str, **schema: Any) -> Mapping[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def in_path(name: str, **schema: Any) -> Mapping[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1, **schema}}
