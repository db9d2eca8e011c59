"""Request bodies of the admin API: the schema of each body; faults are reported in OpenAI's words.

Only types and plain ranges are checked here. A quantity is a number or text such as "1M/day" (`config/quantities.py`);
what is read as text is passed on as it was sent. The values of settings, and whether they fit other keys, teams and
models, are checked in `keys/`, with the same messages as on the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from gateway.api import validate
from gateway.api.json_document import MAX_SHOWN_NAME, parse
from gateway.api.schema import Part
from gateway.config.quantities import (
    MAX_PER_S,
    PERIODS,
    quota_values,
    read_amount,
    read_count,
    read_duration_s,
    read_per,
)
from gateway.config.sections import MAX_LABELS, NAME_PATTERN, Priority
from gateway.errors import InvalidRequest

MAX_BYTES = 65_536
"""The maximum size of a body. A key with a hundred quotas has 5 KiB."""

_CLOSED: dict[str, Any] = {"additionalProperties": False}


def _written(read: Callable[[str], object], number: dict[str, Any], *examples: str) -> tuple[Any, ...]:
    """A number, or text in the grammar of `config/quantities.py`."""

    def check(value: Any) -> Any:
        return read(value) if isinstance(value, str) else value

    schema = {"anyOf": [number, {"type": "string", "examples": list(examples)}]}
    return BeforeValidator(check), WithJsonSchema(schema)


def _read_usd(text: str) -> float:
    if (amount := read_amount(text)) is None:
        raise ValueError("expected a number of US dollars, such as 20 or 0.5")
    return float(amount)


MAX_COUNT = 2**53 - 1
_ONE = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
_NONE = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
_USD = {"type": "number", "exclusiveMinimum": 0, "description": "US dollars."}
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT), *_written(read_count, _ONE, "4k", "1M")]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT), *_written(read_count, _NONE, "4")]
Usd = Annotated[float, *_written(_read_usd, _USD, "20")]
SomeSeconds = Annotated[
    float, Field(gt=0), *_written(read_duration_s, {"type": "number", "exclusiveMinimum": 0}, "1h", "90s")
]
Seconds = Annotated[float, Field(ge=0), *_written(read_duration_s, {"type": "number", "minimum": 0}, "1h", "90s")]
Name = Annotated[str, Field(json_schema_extra={"pattern": f"^{NAME_PATTERN}$"})]
_PERIODS = {"enum": [*PERIODS]}
Span = Annotated[
    int,
    Field(ge=1, le=MAX_PER_S),
    BeforeValidator(lambda value: 1 if isinstance(value, str) and read_per(value) else value),
    WithJsonSchema({
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_PER_S}, _PERIODS, {"type": "string", "examples": ["90s"]},
        ],
    }),
]  # fmt: skip
"""A period: one of `PERIODS`, a duration, or a number of seconds."""
Names = Annotated[list[str], Field(max_length=1000, fail_fast=True)]
Weight = Annotated[int, Field(ge=1, le=1000)]
Owner = Annotated[str, Field(min_length=1, max_length=256)]
Note = Annotated[str, Field(max_length=1000)]
Labels = Annotated[dict[str, Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=MAX_LABELS)]
Moment = Annotated[str, Field(json_schema_extra={"examples": ["2027-01-01T00:00:00Z", "2027-01-01", "30d"]})]
"""A moment, a day, or a time from now."""


class RequestBody(Part):
    """A body of the admin API. Its names are all there are."""

    model_config = ConfigDict(json_schema_extra=_CLOSED)


def _per_may_be_in_the_amount(schema: dict[str, Any]) -> None:
    schema["additionalProperties"] = False
    schema["required"].remove("per")


class OneQuota(RequestBody):
    """Exactly one of requests, tokens, usd: a number beside `per`, or text that has both, such as "1M/day"."""

    model_config = ConfigDict(json_schema_extra=_per_may_be_in_the_amount)

    requests: Positive | None = None
    tokens: Positive | None = None
    usd: Usd | None = None
    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        return quota_values(value)


class QuotaBody(OneQuota):
    per: Span
    label: str | None = None


QuotaOrText = Annotated[QuotaBody, BeforeValidator(lambda value: value, json_schema_input_type=QuotaBody | str)]
"""Settings, or one text: `1M tokens/day`."""
Quotas = Annotated[list[QuotaOrText], Field(max_length=100, fail_fast=True)]


class LimitsBody(RequestBody):
    n: Positive | None = None
    best_of: Positive | None = None
    logprobs: Count | None = None
    stop: Count | None = None
    max_tokens: Positive | None = None
    max_audio_s: SomeSeconds | None = None
    deny: Names = Field(default_factory=list)


class QuotaChanges(RequestBody):
    """Texts by unit: `{"requests": ["5/day"], "usd": ["none/month"]}`."""

    requests: Names = Field(default_factory=list)
    tokens: Names = Field(default_factory=list)
    usd: Names = Field(default_factory=list)


class CreateKey(RequestBody):
    """A new key: settings as in the file, but for its secret, which the gateway makes. `quotas` are in place of those
    of `defaults.keys`; `quota_changes` are beside them or in place of one of the same unit, time and models, and `none`
    takes one away."""

    id: Name
    team: str | None = None
    models: Names = Field(default_factory=list)
    expires: Moment | None = None
    ips: Names = Field(default_factory=list)
    max_parallel: Positive | None = None
    limits: LimitsBody = LimitsBody()
    quotas: Quotas = Field(default_factory=list)
    quota_changes: QuotaChanges = QuotaChanges()
    on_exceeded: Literal["deny", "shadow"] = "deny"
    priority: Priority = "normal"
    weight: Weight = 1
    max_wait_s: Seconds | None = None
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
    priority: Priority | None = None
    weight: Weight | None = None
    max_wait_s: Seconds | None = None
    owner: Owner | None = None
    note: Note | None = None
    labels: Labels | None = None


class MembersBody(RequestBody):
    """Keys that members of a team may make by themselves."""

    max_keys: Annotated[int, Field(ge=1, le=100)] = 3
    models: Names = Field(default_factory=lambda: ["*"])
    by_key: list[Literal["pause", "rotate"]] = Field(default_factory=list, max_length=2)


class CreateTeam(RequestBody):
    """Creates a team with these quotas and members."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    quotas: Quotas = Field(default_factory=list)
    member_quotas: Quotas = Field(default_factory=list)
    members: MembersBody | None = None


class UpdateTeam(RequestBody):
    """Replaces the settings that the body contains."""

    quotas: Quotas | None = None
    member_quotas: Quotas | None = None
    members: MembersBody | None = None


class RotateKey(RequestBody):
    """The previous secret works beside the new one for `overlap_s`."""

    overlap_s: Seconds = 0


class ResetQuotas(RequestBody):
    """Which windows; all of them without a word."""

    unit: Literal["requests", "tokens", "usd"] | None = None
    per: Span | None = None
    model: str | None = None


class GrantTopUp(OneQuota):
    """More in the running day, week or month."""

    per: Literal["day", "week", "month"]


class ResetAnyQuotas(ResetQuotas):
    """Which windows of which scope, such as `upstream:openai`."""

    scope: str = "gateway"


class GrantAnyTopUp(GrantTopUp):
    """More for a scope, such as `upstream:openai`."""

    scope: str = "gateway"


def read(raw: bytes, kind: type[RequestBody]) -> dict[str, Any]:
    """The members of a body of this kind, as they were sent; none for no body at all. Raises `InvalidRequest`."""
    members = parse(raw).members if raw.strip() else {}
    for name in members:
        if name not in kind.model_fields:
            raise unknown(name, kind.model_fields, "parameter")
    validate.checked(kind, members)
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
