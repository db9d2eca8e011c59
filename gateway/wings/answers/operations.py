"""The readings in the table of operations, which the OpenAPI document shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.store import NARROWING_GROUPS
from gateway.web.admin.operations import OF_PERSON, OWN
from gateway.web.openapi.operation import JSON, Operation, Schema, in_query

from .minutes import COLUMNS, GROUPS

_TEXT: Schema = {"type": "string"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_USD: Schema = {"type": "number", "description": "In USD."}
_USD_OR_NULL: Schema = {"type": ["number", "null"], "description": "In USD; null: there is none."}


def _exact(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def _list(**members: Schema) -> Schema:
    return {"type": "array", "items": _exact(**members)}


_SUMS: dict[str, Schema] = {
    name: {"type": "number", "description": text}
    for name, text in {
        "spent_usd": "Spent since the month began, in USD.",
        "end_usd": "Expected at the end of the month: spent, and for each day left the mean of the last 7 whole days.",
        "low_usd": "The same with the cheapest of the last four weeks.",
        "high_usd": "The same with the dearest of the last four weeks.",
        "compared_usd": "Spent on the whole days of this month.",
        "before_usd": "Spent on the same days of the month before.",
    }.items()
}

_MONEY = _exact(
    object={"const": "money"}, at=_TIME, month={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
    unpriced={**_COUNT, "description": "Calls of unknown cost, which are in no sum."},
    budget_usd=_USD_OR_NULL,
    budget_of={"enum": ["gateway", "teams", None], "description": "Whose quotas of money per month make the budget."},
    **_SUMS,
    days=_list(day={"type": "string", "format": "date"}, spent_usd=_USD_OR_NULL, before_usd=_USD_OR_NULL),
    teams=_list(team=_TEXT, unpriced=_COUNT, budget_usd=_USD_OR_NULL, **_SUMS),
)  # fmt: skip

_PROBLEMS = _exact(
    object={"const": "problems"}, at=_TIME,
    data=_list(
        kind={"enum": ["upstream", "store", "quota", "spend", "price", "bill", "reading", "account"]}, subject=_TEXT,
        since=_TIME, last=_TIME, count=_COUNT, what={**_TEXT, "description": "The counted things."}, text=_TEXT,
    ),
    upstreams=_list(
        upstream=_TEXT, failing={"type": "boolean"}, since=_TIME, last=_TIME, failures=_COUNT, attempts=_COUNT,
        kinds=_list(fault=_TEXT, status={"type": ["integer", "null"]}, count=_COUNT), detail=_TEXT,
        message={**_TEXT, "description": "The first line of the upstream's last message, without secrets; or empty."},
    ),
)  # fmt: skip

_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
_MINUTES: Schema = _exact(
    object={"const": "minutes"}, at=_TIME,
    since={**_TIME, "description": "From here on no call is missing: 3 hours ago, or later at a busy gateway."},
    data={
        "type": "array",
        "items": {
            "type": "object", "required": list(COLUMNS), "additionalProperties": False,
            "properties": {**dict.fromkeys(GROUPS, _TEXT), **dict.fromkeys(COLUMNS, _NUMBER_OR_NULL)},
        },
    },
)  # fmt: skip

_EVENTS = _exact(
    object={"const": "events"},
    data=_list(time=_TIME, kind={"enum": ["deploy", "reload"]}, version={**_TEXT, "description": "The gateway's."}),
)  # fmt: skip

_FORMAT: Any = in_query("format", "The format of the rows.", type="string", enum=["json", "csv"], default="json")

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/admin/api/money"): Operation(
        "The spend of this month by day and team, beside the month before and the budget, with a forecast.", "viewer",
        {JSON: _MONEY, "text/csv": {"type": "string", "description": "One line for each team, behind one for all."}},
        (401, 403, 429), parameters=(_FORMAT,),
    ),
    ("GET", "/admin/api/minutes"): Operation(
        "Usage, latency and failures by minute of the last 3 hours, from the newest calls.", "viewer",
        {JSON: _MINUTES, "text/csv": {"type": "string", "description": "One line for each row."}},
        (400, 401, 403, 404, 429),
        parameters=(
            in_query("group_by", f"Names with commas between: {', '.join(GROUPS)}.", type="string", default="minute"),
            in_query("since", "The first minute, such as 2026-11-20T14:05, in UTC.", type="string"),
            in_query("until", "The last minute.", type="string"),
            *[in_query(name, f"Only the calls of this {name}.", type="string") for name in NARROWING_GROUPS],
            OF_PERSON, OWN, _FORMAT,
        ),
    ),
    ("GET", "/admin/api/events"): Operation(
        "The deploys of another version and the reloads of another configuration in the last 35 days.", "viewer",
        {JSON: _EVENTS}, (401, 403, 429),
    ),
    ("GET", "/admin/api/problems"): Operation(
        "The present problems, the newest first; and the failures of upstreams within the last hour.", "viewer",
        {JSON: _PROBLEMS}, (401, 403, 429),
    ),
}  # fmt: skip
