"""What the gateway answers with, as JSON Schema: the shapes that its OpenAPI document names.

What an upstream says is passed on, so that of a completion only what every one has is promised. What is our own is told
exactly: all of its members are there, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from gateway.config import Limits
from gateway.records import Endpoint, Record, Unit, Usage, UsageSource
from gateway.store import USAGE_COLUMNS, USAGE_GROUPS

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_AMOUNT: Schema = {"type": "number", "description": "Money in USD, all else in units."}
_USD: Schema = {"type": ["number", "null"], "description": "In USD; null where nobody knows it."}


def _exact(optional: Mapping[str, Schema] | None = None, /, **members: Schema) -> Schema:
    """An object with all of these members, perhaps some of the optional ones, and no other."""
    return {
        "type": "object",
        "properties": {**members, **(optional or {})},
        "required": list(members),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _fields(kind: type[Any], *left_out: str) -> dict[str, Schema]:
    """The fields of a named tuple, by their types."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in left_out}
    return {name: TypeAdapter(hint).json_schema() for name, hint in hints.items()}


def _upstream_s(name: str, items: Schema) -> Schema:
    return {
        "type": "object",
        "description": "As the upstream says it.",
        "properties": {name: _list(items), "model": _TEXT, "usage": {"type": ["object", "null"]}},
        "required": [name],
    }


_PRICE = _exact(input=_USD, cached_input=_USD, output=_USD)
_QUOTA: Mapping[str, Schema] = {
    "scope": _TEXT, "unit": {"enum": get_args(Unit)}, "per": _TEXT_OR_NULL, "model": _TEXT_OR_NULL, "limit": _AMOUNT,
    "used": _AMOUNT, "reserved": _AMOUNT, "remaining": _AMOUNT, "reset_s": {"type": "number", "minimum": 0},
    "reset_at": {**_TEXT_OR_NULL, "format": "date-time"}, "enforced": {"type": "boolean"},
}  # fmt: skip

SCHEMAS: Mapping[str, Schema] = {
    "Error": _exact(error=_exact(message={**_TEXT, "minLength": 1}, type=_TEXT, param=_TEXT_OR_NULL,
                                 code=_TEXT_OR_NULL)),
    "Health": _exact(status={"enum": ["ok", "ready"]}),
    "Completed": _upstream_s("choices", {"type": "object"}),
    "ChatCompleted": _upstream_s("choices", {"type": "object"}),
    "Embedded": _upstream_s("data", {"type": "object"}),
    "Model": _exact(
        id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT,
        endpoints=_list({"enum": get_args(Endpoint)}), unsupported=_list(_TEXT),
    ),
    "Models": _exact(object={"const": "list"}, data=_list(_named("Model"))),
    "Quota": _exact(**_QUOTA),
    "Key": _exact(
        object={"const": "key"}, id=_TEXT, team=_TEXT_OR_NULL, models=_list(_TEXT),
        expires={**_TEXT_OR_NULL, "format": "date-time"}, limits=_exact({name: {} for name in Limits.model_fields}),
        on_exceeded={"enum": ["deny", "shadow"]}, quotas=_list(_named("Quota")),
    ),
    "Quotas": _exact(data=_list(_exact(key=_TEXT_OR_NULL, team=_TEXT_OR_NULL, **_QUOTA))),
    "Usage": _exact(data=_list(_exact(
        dict.fromkeys(USAGE_GROUPS, _TEXT),
        **{name: _COUNT for name in USAGE_COLUMNS if name not in ("cost_usd", "estimated_percent")},
        cost_usd=_USD, estimated_percent={"type": "number", "minimum": 0, "maximum": 100},
    ))),
    "Call": _exact(
        **_fields(Record, "usage", "label_model", "cost_nusd", "price"), **_fields(Usage, "source"),
        usage_source={"enum": get_args(UsageSource)}, cost_usd=_USD, client_gone={"type": "boolean"},
        price={"anyOf": [_PRICE, {"type": "null"}]},
    ),
    "Calls": _exact(data=_list(_named("Call"))),
}  # fmt: skip
"""By the names under which the document refers to them."""
