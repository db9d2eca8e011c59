"""The gateway's answers as JSON Schema, for its OpenAPI document.

Upstream answers are passed on, so the schema of a completion has only the members that every upstream sends. Schemas of
the gateway's own answers are exact: all members are present, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from gateway.config import Limits, Priority
from gateway.config.rates import ROWS
from gateway.config.wings import endpoint_names
from gateway.quota.issued import SECRET_PATTERN
from gateway.quota.scopes import SCOPES
from gateway.records import Endpoint, Record, Unit, Usage, UsageSource
from gateway.reports import latency
from gateway.store import MEASURE_GROUPS, USAGE_COLUMNS, USAGE_GROUPS, RefusalEntry
from gateway.units import UNITS
from gateway.upstream.status import STATES
from gateway.web.admin.permissions import ROLES

from .operation import WARNINGS, Schema, named

_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_TIME: Schema = {**_TEXT, "format": "date-time"}
_TIME_OR_NULL: Schema = {**_TEXT_OR_NULL, "format": "date-time"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_AMOUNT: Schema = {"type": "number", "description": "Money in USD, all else in units."}
_USD: Schema = {"type": ["number", "null"], "description": "In USD; null if unknown."}


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


def _fields(kind: type[Any], *left_out: str) -> dict[str, Schema]:
    """The fields of a named tuple, by their types."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in left_out}
    return {name: TypeAdapter(hint).json_schema() for name, hint in hints.items()}


def _upstream_s(name: str, items: Schema) -> Schema:
    return {
        "type": "object",
        "description": "As the upstream sends it.",
        "properties": {name: _list(items), "model": _TEXT, "usage": {"type": ["object", "null"]}},
        "required": [name],
    }


def _counts(what: str) -> Schema:
    return {"type": "object", "description": what, "additionalProperties": _COUNT}


_BUCKETS = _exact(
    le={"type": "array", "items": {"type": "number"}, "description": "Bounds in seconds, but for the infinite one."},
    counts={"type": "array", "items": _COUNT, "description": "Calls up to each bound; the last is all."},
)
_PRICE = {
    "type": "object",
    "description": "In USD, by the names of the configuration; per million tokens if the name has no other unit.",
    "properties": dict.fromkeys(ROWS, _USD),
    "additionalProperties": False,
}
_SETTINGS: Schema = {
    "type": "object", "description": "Differences from the defaults, by the names of the configuration.",
}  # fmt: skip
_SECONDS: Schema = {"type": "number", "minimum": 0}
_TAGS: Schema = {"type": "object", "additionalProperties": _TEXT}
_QUOTA: Mapping[str, Schema] = {
    "scope": _TEXT, "unit": {"enum": get_args(Unit)}, "per": _TEXT_OR_NULL, "model": _TEXT_OR_NULL, "limit": _AMOUNT,
    "used": _AMOUNT, "reserved": _AMOUNT, "remaining": _AMOUNT, "reset_s": {"type": "number", "minimum": 0},
    "reset_at": _TIME_OR_NULL, "enforced": {"type": "boolean"},
}  # fmt: skip

_KEPT: Mapping[str, Schema] = {
    "managed_by": {"enum": ["file", "store"]}, "created_at": _TIME_OR_NULL, "updated_at": _TIME_OR_NULL,
}  # fmt: skip
_ISSUED_KEY: Mapping[str, Schema] = {
    "object": {"const": "key"}, "id": _TEXT, "team": _TEXT_OR_NULL, "models": _list(_TEXT), "expires": _TIME_OR_NULL,
    "ips": _list(_TEXT), "max_parallel": {"type": ["integer", "null"]},
    "limits": _exact({name: {} for name in Limits.model_fields}), "quotas": _list(named("QuotaOf")),
    "on_exceeded": {"enum": ["deny", "shadow"]}, "priority": {"enum": get_args(Priority)},
    "weight": {"type": "integer"}, "max_wait_s": {"type": ["number", "null"]}, "owner": _TEXT_OR_NULL,
    "note": _TEXT_OR_NULL, "labels": {"type": "object", "additionalProperties": _TEXT}, **_KEPT,
    "status": {"enum": ["active", "expired", "paused", "revoked"]},
    "revoked_at": _TIME_OR_NULL, "paused_at": _TIME_OR_NULL,
    "secrets": _list(_exact(created_at=_TIME_OR_NULL, expires_at=_TIME_OR_NULL)),
}  # fmt: skip

SCHEMAS: Mapping[str, Schema] = {
    "Error": _exact(error=_exact(message={**_TEXT, "minLength": 1}, type=_TEXT, param=_TEXT_OR_NULL,
                                 code=_TEXT_OR_NULL)),
    "AnthropicError": _exact(
        type={"const": "error"}, request_id=_TEXT,
        error=_exact({"details": _exact(error_code=_TEXT)}, type=_TEXT, message={**_TEXT, "minLength": 1}),
    ),
    "GoogleError": _exact(error=_exact(
        code=_COUNT, message={**_TEXT, "minLength": 1}, status=_TEXT, details=_list({"type": "object"}),
    )),
    "ContentGenerated": _upstream_s("candidates", {"type": "object"}),
    "ContentTokens": {"type": "object", "properties": {"totalTokens": _COUNT}, "required": ["totalTokens"]},
    "ContentEmbedded": {"type": "object", "properties": {"embedding": {"type": "object"}}},
    "ContentsEmbedded": _upstream_s("embeddings", {"type": "object"}),
    "GoogleModel": _exact(name=_TEXT, displayName=_TEXT, supportedGenerationMethods=_list(_TEXT)),
    "GoogleModels": _exact({"nextPageToken": _TEXT}, models=_list(named("GoogleModel"))),
    "MessageCreated": _upstream_s("content", {"type": "object"}),
    "TokenCount": {"type": "object", "properties": {"input_tokens": _COUNT}, "required": ["input_tokens"]},
    "Health": {
        "type": "object",
        "description": "Further members are facts of optional features.",
        "properties": {"status": {"enum": ["ok", "ready"]}, "warnings": _list({"type": "string"})},
        "required": ["status"],
    },
    "Completed": _upstream_s("choices", {"type": "object"}),
    "ChatCompleted": _upstream_s("choices", {"type": "object"}),
    "Embedded": _upstream_s("data", {"type": "object"}),
    "InputTokens": {"type": "object", "properties": {"input_tokens": _COUNT}, "required": ["input_tokens"]},
    "Responded": _upstream_s("output", {"type": "object"}),
    "Ranked": _upstream_s("results", {"type": "object"}),
    "Model": _exact(
        id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT,
        endpoints=_list({"enum": get_args(Endpoint)}), unsupported=_list(_TEXT),
        price={"anyOf": [_PRICE, {"type": "null"}]},
    ),
    "Models": _exact(object={"const": "list"}, data=_list(named("Model"))),
    "Quota": _exact(**_QUOTA),
    "Key": _exact(
        object={"const": "key"}, id=_TEXT, team=_TEXT_OR_NULL, models=_list(_TEXT),
        expires=_TIME_OR_NULL, limits=_exact({name: {} for name in Limits.model_fields}),
        on_exceeded={"enum": ["deny", "shadow"]}, quotas=_list(named("Quota")),
    ),
    "Quotas": _exact(
        data=_list(_exact(key=_TEXT_OR_NULL, team=_TEXT_OR_NULL, person=_TEXT_OR_NULL, **_QUOTA)), next=_TEXT_OR_NULL,
    ),
    "Windows": _exact(WARNINGS, data=_list(named("Quota"))),
    "IssuedKey": _exact({"top_ups": _list(named("TopUpOf")), **WARNINGS}, **_ISSUED_KEY),
    "IssuedKeys": _exact(data=_list(named("IssuedKey")), next=_TEXT_OR_NULL),
    "NewKey": _exact(
        WARNINGS,
        **_ISSUED_KEY, top_ups=_list(named("TopUpOf")),
        secret={**_TEXT, "pattern": f"^{SECRET_PATTERN}$"},
    ),
    "QuotaOf": _exact(
        dict.fromkeys(("requests", "tokens", "usd"), _AMOUNT) | {"model": _TEXT, "label": _TEXT},
        per={"type": ["string", "integer"]},
    ),
    "TopUpOf": _exact(
        unit={"enum": get_args(Unit)}, per=_TEXT, model=_TEXT_OR_NULL, window=_TEXT, amount=_AMOUNT,
    ),
    "Team": _exact({"top_ups": _list(named("TopUpOf")), **WARNINGS}, object={"const": "team"}, name=_TEXT,
                   quotas=_list(named("QuotaOf")), member_quotas=_list(named("QuotaOf")),
                   members={"anyOf": [named("MemberKeys"), {"type": "null"}]}, **_KEPT),
    "MemberKeys": _exact(max_keys=_COUNT, models=_list(_TEXT), by_key=_list(_TEXT)),
    "Teams": _exact(data=_list(named("Team")), next=_TEXT_OR_NULL),
    "KeyGone": _exact(WARNINGS, object={"const": "key"}, id=_TEXT, deleted={"const": True}),
    "TeamGone": _exact(WARNINGS, object={"const": "team"}, name=_TEXT, deleted={"const": True}),
    "Changes": _exact(
        data=_list(_exact(
            id=_TEXT, kind={"enum": ["key", *SCOPES]}, name=_TEXT, time=_TIME,
            actor=_TEXT, action=_TEXT, before={}, after={},
        )),
        next=_TEXT_OR_NULL,
    ),
    "Usage": _exact(data=_list({"patternProperties": {"^(tag|label):": _TEXT}, **_exact(
        dict.fromkeys((*USAGE_GROUPS, "user", "person"), _TEXT),
        **{name: _COUNT for name in USAGE_COLUMNS if name not in ("cost_usd", "estimated_percent")},
        cost_usd=_USD, estimated_percent={"type": "number", "minimum": 0, "maximum": 100},
    )}), next=_TEXT_OR_NULL),
    "Latency": _exact(data=_list(_exact(
        dict.fromkeys(MEASURE_GROUPS, _TEXT),
        **dict.fromkeys(("requests", "errors", "failed_attempts", *latency.COUNTS), _COUNT),
        **{name: {"type": ["number", "null"], "minimum": 0} for name in latency.PERCENTILES},
    ))),
    "Call": _exact(
        **_fields(Record, "usage", "label_model", "cost_nusd", "price", "failed", "tags", "timeline"),
        tags=_TAGS,
        failed=_list(_exact(upstream=_TEXT, fault=_TEXT)),
        timeline={
            **_list(_exact(upstream=_TEXT_OR_NULL, fault=_TEXT_OR_NULL, began_s=_SECONDS, ended_s=_SECONDS)),
            "description": "Attempts, and waits for room (without an upstream), in seconds since the call arrived. "
            "Empty for a call with one attempt, and where the times are not known.",
        },
        cost_parts={
            **_list(_exact(
                unit=_TEXT, amount=_COUNT, per=_COUNT, price_usd={"type": "number", "minimum": 0},
                cost_usd={"type": "number", "minimum": 0},
            )),
            "description": "The cost as a sum: `amount` of `unit` at `price_usd` for `per`. Empty where the cost is "
            "unknown, or made at several prices.",
        },
        **_fields(Usage, "source", "more", "variant", "parts", "model"),
        served_model=_TEXT, usage_source={"enum": get_args(UsageSource)}, cost_usd=_USD,
        client_gone={"type": "boolean"},
        units=_counts("Further units that were used, by name, without zeros: " + ", ".join(UNITS) + "."),
        price={"anyOf": [_PRICE, {"type": "null"}]}, price_source=_TEXT_OR_NULL,
        price_tier={"type": ["integer", "null"], "description": "The rows for prompts of more tokens than this."},
        price_variant=_TEXT_OR_NULL,
    ),
    "Refusal": _exact(**_fields(RefusalEntry, "tags"), tags=_TAGS, at=_TIME),
    "Refusals": _exact(data=_list(named("Refusal")), next=_TEXT_OR_NULL),
    "FoundRequest": _exact(
        call={"anyOf": [named("Call"), {"type": "null"}]}, refusal={"anyOf": [named("Refusal"), {"type": "null"}]},
    ),
    "Calls": _exact(data=_list(named("Call")), next=_TEXT_OR_NULL),
    "Upstreams": _exact(data=_list(_exact(
        name=_TEXT, base_url=_TEXT, state={"enum": STATES}, state_s=_SECONDS, in_flight=_COUNT, waiting=_COUNT,
        connections=_COUNT, workers=_COUNT, limits=_list(_exact(configured=_COUNT, **_QUOTA)),
        credentials=_list(_exact(number=_COUNT, resting_s=_SECONDS, model=_TEXT_OR_NULL, fault=_TEXT_OR_NULL)),
        models=_list(_exact(model=_TEXT, state={"enum": STATES}, state_s=_SECONDS)),
        last_failure={"anyOf": [_exact(fault=_TEXT, seconds_ago=_SECONDS), {"type": "null"}]},
        settings=_SETTINGS,
    ))),
    "ServedModels": _exact(data=_list(_exact(
        name=_TEXT, is_pattern={"type": "boolean"}, aliases=_list(_TEXT),
        endpoints=_list({"enum": endpoint_names()}),
        routes=_list(_exact(upstream=_TEXT, model=_TEXT_OR_NULL, priority={"type": "integer"}, weight=_COUNT)),
        price={"anyOf": [_PRICE, {"type": "null"}]}, price_source=_TEXT_OR_NULL, priced_names=_COUNT,
        settings=_SETTINGS,
    ))),
    "ReloadPreview": _exact(
        object={"const": "reload_preview"}, generation=_COUNT,
        changes=_list(_exact(setting=_TEXT, what=_TEXT, needs_restart={"type": "boolean"})),
        code=_TEXT_OR_NULL, faults=_list(_TEXT), applies_by_itself={"type": "boolean"},
    ),
    "Reload": _exact(object={"const": "reload"}, generation=_COUNT, changed=_list(_TEXT)),
    "Session": _exact(
        role={"enum": ["admin", *ROLES[1:]]}, name=_TEXT, team=_TEXT_OR_NULL, operations=_list(_TEXT),
        csrf=_TEXT_OR_NULL, version=_TEXT, public_url=_TEXT_OR_NULL,
    ),
    "Live": _exact(
        time={"type": "number", "description": "When the sample was made, in Unix seconds."},
        instance={**_TEXT, "description": "Samples of one gateway have the same."},
        version=_TEXT, generation=_COUNT, requests=_COUNT, by_status=_counts("Requests by their status."),
        tokens=_exact(prompt=_COUNT, completion=_COUNT, cached=_COUNT, reasoning=_COUNT),
        cost_usd={"type": "number", "minimum": 0}, in_flight=_COUNT, journal_pending=_COUNT, store_errors=_COUNT,
        usage_unknown=_COUNT, client_disconnects=_COUNT, first_token=_BUCKETS,
        upstreams={
            "type": "object",
            "additionalProperties": _exact(
                state={"enum": [0, 1, 2], "description": "0 closed, 1 half-open, 2 open."},
                attempts=_counts("Attempts by their outcome."), first_token=_BUCKETS,
            ),
        },
        rejections=_counts("Refusals by their reason."),
        refused=_list(_exact(key=_TEXT, model=_TEXT, status=_COUNT, requests=_COUNT)),
    ),
}  # fmt: skip
"""Schemas by the names under which the document refers to them."""
