"""The operations of this wing that show bills, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.web.openapi.operation import JSON, Operation, Schema, in_query

from .bill import CLASSES
from .explain import CAUSES
from .statement import COLUMNS

PATH, STATEMENT = "/admin/api/bills", "/admin/api/statement"

_TEXT: Schema = {"type": "string"}
_USD: Schema = {"type": "number", "description": "In USD."}
_USD_OR_NULL: Schema = {"type": ["number", "null"], "description": "In USD; null: the provider does not state it."}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_RATES: dict[str, Schema] = {f"{kind}_usd_per_million": _USD_OR_NULL for kind in CLASSES[:3]}


def _exact(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def _list(**members: Schema) -> Schema:
    return {"type": "array", "items": _exact(**members)}


_CAUSES: Schema = {
    "type": "object", "propertyNames": {"enum": [*CAUSES]}, "additionalProperties": _USD,
}  # fmt: skip

_BILLS = _exact(
    object={"const": "bills"},
    causes={"type": "object", "additionalProperties": _TEXT, "description": "The meaning of each cause."},
    upstreams=_list(
        upstream=_TEXT, read_at={"type": ["string", "null"]}, since={"type": ["string", "null"]},
        open_from={"type": ["string", "null"], "description": "The first day that may not be billed wholly."},
        bill_usd=_USD, recorded_usd=_USD, difference_usd=_USD,
        causes=_CAUSES,
        account=_exact(left_usd=_USD_OR_NULL, limit_usd=_USD_OR_NULL),
        prices=_list(
            model=_TEXT, **_RATES,
            configured={"type": "object", "additionalProperties": _exact(**_RATES),
                        "description": "The prices that are configured, by the names of the model here."},
        ),
        failed={"type": ["string", "null"], "description": "Why the last reading failed; null: it did not."},
    ),
    data=_list(
        models={"type": "array", "items": _TEXT, "description": "The names of the model here."},
        **{
            name: _USD if name.endswith("_usd") else _TEXT if name in ("upstream", "day", "model") else _COUNT
            for name in COLUMNS
        },
    ),
)  # fmt: skip

_SPENT: dict[str, Schema] = {
    "requests": _COUNT, "total_tokens": _COUNT, "unpriced": {**_COUNT, "description": "Calls of unknown cost."},
    "cost_usd": _USD,
}  # fmt: skip
_DAY: Schema = {"type": "string", "format": "date"}

_STATEMENT = _exact(
    object={"const": "statement"}, month=_TEXT, since=_DAY, until=_DAY,
    spent=_list(
        person=_TEXT, key={**_TEXT, "description": "The id of a key without an owner; otherwise empty."}, team=_TEXT,
        **_SPENT,
    ),
    total=_exact(**_SPENT),
    causes={"type": "object", "additionalProperties": _TEXT, "description": "The meaning of each cause."},
    bills=_list(
        upstream=_TEXT, read_at=_TEXT, since=_DAY, open_from=_DAY, bill_usd=_USD, recorded_usd=_USD,
        difference_usd=_USD, causes=_CAUSES,
    ),
    notes={"type": "array", "items": _TEXT},
)  # fmt: skip

_FORMAT = in_query("format", "The format of the rows.", type="string", enum=["json", "csv"], default="json")

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", PATH): Operation(
        "The bills of providers beside the records, by upstream, day and model, with the causes of each difference.",
        "viewer",
        {JSON: _BILLS, "text/csv": {"type": "string", "description": "One line for each upstream, day and model."}},
        (401, 403, 429),
        parameters=(
            _FORMAT,
            in_query("since", "The first day (UTC).", type="string", format="date"),
            in_query("until", "The last day.", type="string", format="date"),
        ),
    ),
    ("GET", STATEMENT): Operation(
        "The statement of a month: who spent what, the bills of providers, their differences and the causes.",
        "viewer",
        {JSON: _STATEMENT, "text/csv": {"type": "string", "description": "One line for each amount."}},
        (401, 403, 429),
        parameters=(
            in_query("month", "Such as 2026-11; the running one by default.", type="string"),
            _FORMAT,
        ),
    ),
}
