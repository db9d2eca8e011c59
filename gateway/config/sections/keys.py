"""`keys`, `teams` and `quotas`: which keys may call which models, and how much."""

from __future__ import annotations

import hashlib
import re
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self, TypeVar
from unicodedata import normalize

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator

from gateway.config.quantities import (
    DURATION_EXAMPLES,
    MAX_PER_S,
    PER_SECONDS,
    PERIODS,
    QUOTA_EXAMPLE,
    quota_values,
    read_per,
)

from .models import Limits
from .values import (
    NOT_BOOL,
    Moment,
    Network,
    Positive,
    Seconds,
    Secret,
    Section,
    SomeSeconds,
    SomeUsd,
    nusd_of,
    one_line,
    or_else,
    refuse_signs,
)

Per = Literal["second", "minute", "hour", "day", "week", "month"]


class Quota(Section):
    """How much of one unit may be spent in one window: `{tokens: 1M, per: day}` or `1M tokens/day`."""

    requests: Positive | None = None
    """Number of calls."""
    tokens: Positive | None = None
    """Number of prompt and completion tokens."""
    usd: SomeUsd | None = None
    """Money in US dollars, by the prices of the models."""
    per: Annotated[
        Per | Annotated[int, NOT_BOOL, Field(ge=1, le=MAX_PER_S)],
        BeforeValidator(lambda value: read_per(value) if isinstance(value, str) else value),
        or_else(
            f"expected {', '.join(PERIODS)}, a time such as {DURATION_EXAMPLES}, or a number of seconds from 1 to "
            f"{MAX_PER_S}"
        ),
    ]
    """second, minute, hour, day, week, month, a time such as 90s, or a number of seconds; \
day, week and month are calendar windows in UTC."""
    model: Annotated[str, Field(min_length=1), BeforeValidator(refuse_signs)] | None = None
    """Pattern of the models that this quota counts; default: all."""
    label: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}$")] | None = None
    """Label of keys or tag of calls, each value of which has this quota; of the gateway and of teams only."""

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        return quota_values(value)

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if [self.requests, self.tokens, self.usd].count(None) != 2:
            raise ValueError(f"expected exactly one of requests, tokens, usd, such as {QUOTA_EXAMPLE}")
        return self

    @property
    def unit(self) -> Literal["requests", "tokens", "usd"]:
        if self.usd is not None:
            return "usd"
        return "tokens" if self.requests is None else "requests"

    @property
    def limit(self) -> int:
        """In units: requests, tokens, or billionths of a USD."""
        return nusd_of(self.usd) if self.usd is not None else self.requests or self.tokens or 0

    @property
    def per_s(self) -> int | None:
        """Seconds over which a rate refills; None for a calendar window."""
        return PER_SECONDS.get(self.per) if isinstance(self.per, str) else self.per

    def covers(self, model: str) -> bool:
        """Whether calls for this model count."""
        return self.model is None or fnmatchcase(model, self.model)


class MemberKeys(Section):
    max_keys: Annotated[int, NOT_BOOL, Field(ge=1, le=100)] = 3
    """Keys that one person may have in the team; a revoked one counts for a day."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the models that these keys may use at most."""
    by_key: tuple[Literal["pause", "rotate"], ...] = ()
    """The changes that a key of the team may make to itself in the admin API, without a session or a token."""


class Team(Section):
    quotas: tuple[Quota, ...] = ()
    """Limits of the usage of the whole team."""
    member_quotas: tuple[Quota, ...] = ()
    """Limits of the usage of each person with her keys in the team."""
    members: MemberKeys | None = None
    """Keys that members of the team may make by themselves; null: none."""


class PersonLimits(Section):
    """Limits over all keys that have a person as owner, and all her tokens."""

    quotas: tuple[Quota, ...] = ()
    """Limits of the usage of the person."""
    max_parallel: Positive | None = None
    """Calls of the person under way at once."""
    on_exceeded: Literal["deny", "shadow"] = "deny"
    """deny, or shadow: count and report, never block."""


PERSON_DEFAULTS = "defaults"
"""In place of a person's name under `people`: everyone who has no settings of her own."""

ROLE_PREFIX = "role:"
"""The same for everyone with a role: `role:lead`."""

PERSON_ROLES = ("operator", "lead", "member", "viewer")


T = TypeVar("T")


def known_groups(people: Any) -> Any:
    """`people` without a name that was meant for a group of them and is none."""
    for name in people if isinstance(people, dict) else ():
        if isinstance(name, str) and name.startswith(ROLE_PREFIX):
            if name.removeprefix(ROLE_PREFIX) not in PERSON_ROLES:
                raise ValueError(f"expected one of {', '.join(ROLE_PREFIX + role for role in PERSON_ROLES)}")
        elif name in ("default", "roles", *PERSON_ROLES):
            raise ValueError(f"{name} is no person; expected a person's name, {PERSON_DEFAULTS}, or {ROLE_PREFIX}lead")
    return people


def folded_people(people: dict[str, T]) -> dict[str, T]:
    """The same settings, by the names of people as they are compared."""
    if len(found := {folded_name(name): each for name, each in people.items()}) < len(people):
        raise ValueError("two names differ in case or Unicode form only: they are one person")
    return found


NAME_PATTERN = "[a-z0-9][a-z0-9_.-]{0,62}"
"""Of keys; and of teams that are made while the gateway runs."""


def folded_name(name: str) -> str:
    """The form in which names of people are compared: neither case nor Unicode form counts (RFC 7643, 4.1.1; RFC 8265,
    3.3)."""
    return name.lower() if name.isascii() else normalize("NFC", normalize("NFC", name).lower())


MAX_PERSON = 256
"""Characters of a person's name: the owner of keys."""

MAX_LABELS = 16


def _few_labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise ValueError(f"expected at most {MAX_LABELS} labels")
    for name in labels:
        if not re.fullmatch(NAME_PATTERN, name):
            raise ValueError(
                "expected labels named with at most 63 small letters, digits, '_', '.' and '-', a letter or digit first"
            )
    return labels


LabelValue = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(one_line)]


class KeySettings(Section):
    """The settings of a key of the file or of the store."""

    id: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
    """Public name of the key, never used again once it was used: in logs, metrics, reports."""
    team: str | None = None
    """Name of a team."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the models that this key may use."""
    expires: Moment | None = None
    """When the key ceases to work: 2027-01-01 or 2027-01-01T00:00:00Z; without a zone, in UTC."""
    ips: tuple[Network, ...] = ()
    """Networks from which the key may be used; default: everywhere."""
    max_parallel: Positive | None = None
    """Calls under way at once."""
    limits: Limits = Limits()
    """Stricter limits for this key."""
    quotas: tuple[Quota, ...] = ()
    """Limits of the usage of this key."""
    on_exceeded: Literal["deny", "shadow"] = "deny"
    """deny, or shadow: count and report, never block."""
    priority: Literal["interactive", "normal", "batch"] = "normal"
    """Class of its calls where calls wait: an interactive one has 16 times, a normal one 4 times the share of batch."""
    weight: Annotated[int, NOT_BOOL, Field(ge=1, le=1000)] = 1
    """Share of the key where calls wait, beside other keys of its class."""
    max_wait_s: Seconds | None = None
    """How long its calls may wait for room at an upstream; default: as of the model, else queue.max_wait_s."""
    owner: Annotated[str, Field(min_length=1, max_length=MAX_PERSON), AfterValidator(one_line)] | None = None
    """The person whose key it is: the e-mail address or name that the sign-in gives."""
    note: Annotated[str, Field(max_length=1000), AfterValidator(one_line)] | None = None
    """Text for people."""
    labels: Annotated[dict[str, LabelValue], AfterValidator(_few_labels)] = {}
    """Names and values for reports, such as cost-center: x; 16 at most."""


class FileKey(KeySettings):
    """A key in the file."""

    secret: Secret | None = None
    """The secret that the client presents; at least 24 characters."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    """SHA-256 of the secret in hex, instead of the secret."""

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value()) < 24:
            raise ValueError("a secret needs at least 24 characters")
        return secret

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if (self.secret is None) == (self.sha256 is None):
            raise ValueError("expected exactly one of secret, sha256")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the secret: all that is needed to recognise it."""
        if self.secret is not None:
            return hashlib.sha256(self.secret.get_secret_value().encode()).digest()
        return bytes.fromhex(self.sha256 or "")


class KeyDefaults(Section):
    """The default settings of keys that are made while the gateway runs."""

    models: tuple[str, ...] = ("*",)
    """Patterns of the models that a new key may use."""
    expires_after_s: SomeSeconds | None = None
    """For how many seconds a new key works; null: for ever."""
    max_parallel: Positive | None = None
    """Calls of a new key under way at once."""
    limits: Limits = Limits()
    """Stricter limits for a new key."""
    quotas: tuple[Quota, ...] = ()
    """Limits of the usage of a new key."""
