"""Request bodies of the admin API: the schema of each body; faults are reported in OpenAI's words.

Only types and plain ranges are checked here, as strictly as for calls: "20" is not a number. The values of settings,
and whether they fit other keys, teams and models, are checked in `keys/`, with the same messages as on the command
line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag, ValidationError

from gateway.api import validation_errors
from gateway.api.json_document import MAX_SHOWN_NAME, parse
from gateway.api.schema import Part, one_of
from gateway.config.sections import MAX_LABELS, MAX_PER_S, NAME_PATTERN, Per
from gateway.errors import InvalidRequest

MAX_BYTES = 65_536
"""Of a body. A key with a hundred quotas has 5 KiB."""

_CLOSED: dict[str, Any] = {"additionalProperties": False}
_PER_ARMS: dict[type, str] = {str: "<text>", int: "<number>", type(None): "<null>"}


def _by_type(value: Any) -> str | None:
    return _PER_ARMS.get(type(value))


_SPAN = one_of("a string or integer", _by_type)

Positive = Annotated[int, Field(ge=1, le=2**53 - 1)]
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Usd = Annotated[float, Field(json_schema_extra={"exclusiveMinimum": 0, "description": "US dollars."})]
Name = Annotated[str, Field(json_schema_extra={"pattern": f"^{NAME_PATTERN}$"})]
Word = Annotated[Per, Tag("<text>")]
Number = Annotated[int, Field(ge=1, le=MAX_PER_S), Tag("<number>")]
Span = Annotated[Word | Number, _SPAN]
SpanOrNull = Annotated[Word | Number | Annotated[None, Tag("<null>")], _SPAN]
Names = Annotated[list[str], Field(max_length=1000, fail_fast=True)]
Owner = Annotated[str, Field(min_length=1, max_length=256)]
Note = Annotated[str, Field(max_length=1000)]
Labels = Annotated[dict[str, Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=MAX_LABELS)]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class RequestBody(Part):
    """A body of the admin API. Its names are all there are."""

    model_config = ConfigDict(json_schema_extra=_CLOSED)


class QuotaBody(RequestBody):
    """Exactly one of requests, tokens, usd."""

    requests: Positive | None = None
    tokens: Positive | None = None
    usd: Usd | None = None
    per: Span
    model: str | None = None


Quotas = Annotated[list[QuotaBody], Field(max_length=100, fail_fast=True)]


class LimitsBody(RequestBody):
    n: Positive | None = None
    best_of: Positive | None = None
    logprobs: Count | None = None
    stop: Count | None = None
    max_tokens: Positive | None = None
    deny: Names = Field(default_factory=list)


class CreateKey(RequestBody):
    """A new key: settings as in the file, but for its secret, which the gateway makes."""

    id: Name
    team: str | None = None
    models: Names = Field(default_factory=list)
    expires: Moment | None = None
    ips: Names = Field(default_factory=list)
    max_parallel: Positive | None = None
    limits: LimitsBody = LimitsBody()
    quotas: Quotas = Field(default_factory=list)
    on_exceeded: Literal["deny", "shadow"] = "deny"
    owner: Owner | None = None
    note: Note | None = None
    labels: Labels = Field(default_factory=dict)


class UpdateKey(RequestBody):
    """Settings that are replaced; null takes one back to its default."""

    team: str | None = None
    models: Names | None = None
    expires: Moment | None = None
    ips: Names | None = None
    max_parallel: Positive | None = None
    limits: LimitsBody | None = None
    quotas: Quotas | None = None
    on_exceeded: Literal["deny", "shadow"] | None = None
    owner: Owner | None = None
    note: Note | None = None
    labels: Labels | None = None


class CreateTeam(RequestBody):
    """A new team."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    quotas: Quotas = Field(default_factory=list)


class UpdateTeam(RequestBody):
    """Settings that are replaced."""

    quotas: Quotas | None = None


class RotateKey(RequestBody):
    """For how long the secret before works beside the new one."""

    overlap_s: Annotated[float, Field(ge=0)] = 0


class ResetQuotas(RequestBody):
    """Which windows; all of them without a word."""

    unit: Literal["requests", "tokens", "usd"] | None = None
    per: SpanOrNull = None
    model: str | None = None


class GrantTopUp(RequestBody):
    """Exactly one of requests, tokens, usd: more in the running day or month."""

    requests: Positive | None = None
    tokens: Positive | None = None
    usd: Usd | None = None
    per: Literal["day", "month"]
    model: str | None = None


def read(raw: bytes, kind: type[RequestBody]) -> dict[str, Any]:
    """The members of a body of this kind, as they were sent; none for no body at all. Raises `InvalidRequest`."""
    members = parse(raw).members if raw.strip() else {}
    for name in members:
        if name not in kind.model_fields:
            raise unknown(name, kind.model_fields, "parameter")
    try:
        kind.model_validate(members)
    except ValidationError as error:
        raise validation_errors.explain(error) from None
    return members


def unknown(name: str, known: Iterable[str], what: str) -> InvalidRequest:
    """The refusal of a name that is none of the known ones."""
    names = list(known)
    hint = f"There are: {', '.join(names)}." if names else "There are none here."
    if len(name) > MAX_SHOWN_NAME or not name.isprintable():
        return InvalidRequest(f"Unknown {what}. {hint}", code="unknown_parameter")
    if close := difflib.get_close_matches(name, names, n=1):
        hint = f"Did you mean '{close[0]}'?"
    return InvalidRequest(f"Unknown {what}: '{name}'. {hint}", param=name, code="unknown_parameter")
