"""The sections of the file: each field with its type, its default and one sentence."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network
from itertools import pairwise
from os.path import realpath
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from .model_names import ModelTable, NamedModel, is_pattern
from .operations import Reference, TaskOperation, format_value, is_pointer, read_operation, read_reference
from .proxies import Proxy, read_proxy
from .quantities import (
    COUNT_EXAMPLES,
    DURATION_EXAMPLES,
    MAX_PER_S,
    PER_SECONDS,
    PERIODS,
    QUOTA_EXAMPLE,
    SIZE_EXAMPLES,
    is_duration,
    quota_values,
    read_amount,
    read_count,
    read_duration_s,
    read_moment,
    read_per,
    read_rate,
    read_size,
)
from .rates import Plan, plan_of
from .redis_url import FORMS, RedisURL, read_redis_url


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


_not_bool = BeforeValidator(_refuse_bool)


def _or_else(words: str) -> WrapValidator:
    """One fault in these words, where each arm of a union would have one of its own."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(words) from None

    return WrapValidator(check)


def _by(read: Callable[[str], float]) -> BeforeValidator:
    """Text is read by the grammar of `quantities`, unless it is a plain number."""

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return float(value) if read is read_duration_s else int(value)
        except ValueError:
            return read(value)

    return BeforeValidator(check)


MAX_COUNT = 2**53 - 1
_whole = f"expected a whole number such as {COUNT_EXAMPLES}"
_span = f"such as {DURATION_EXAMPLES}, or a number of seconds"
Count = Annotated[
    int, Field(ge=0, le=MAX_COUNT), _by(read_count), _or_else(f"{_whole}, from 0 to {MAX_COUNT}"), _not_bool
]
Positive = Annotated[
    int, Field(ge=1, le=MAX_COUNT), _by(read_count), _or_else(f"{_whole}, from 1 to {MAX_COUNT}"), _not_bool
]
Size = Annotated[
    int,
    Field(ge=1, le=MAX_COUNT),
    _by(read_size),
    _or_else(f"expected a size such as {SIZE_EXAMPLES}, or a number of bytes, from 1 to {MAX_COUNT}"),
    _not_bool,
]
Seconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    _by(read_duration_s),
    _or_else(f"expected a time of 0 or more {_span}"),
    _not_bool,
]
SomeSeconds = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    _by(read_duration_s),
    _or_else(f"expected a time greater than 0 {_span}"),
    _not_bool,
]
DAY_S = 86400


def _read_days(value: Any) -> Any:
    """A number of days, or a duration such as `90d` or `52w` that is a whole number of them."""
    if not isinstance(value, str) or not is_duration(value):
        return value
    days = read_duration_s(value) / DAY_S
    return int(days) if days.is_integer() else None


def _refuse_number(value: Any) -> Any:
    if isinstance(value, int | float):  # which ipaddress takes for an address, and false for 0.0.0.0
        raise ValueError("not a network")
    return value


Network = Annotated[
    IPv4Network | IPv6Network,
    BeforeValidator(_refuse_number),
    _or_else("expected a network such as 10.0.0.0/8, with nothing but zeros behind its prefix, or one address"),
]

NUSD = 10**9
"""Billionths in a US dollar: money is counted in them, in whole numbers."""
MAX_USD = Decimal(2**53 - 1) / NUSD
"""Largest count: Lua in Redis is exact for whole numbers below 2^53 only."""


def _read_usd(value: Any) -> Decimal:
    """The number as written in the file: `str` of a float is its shortest text, which is the text it was read from."""
    try:
        usd = Decimal("nan" if isinstance(value, bool) else str(value))
    except (InvalidOperation, ValueError):
        usd = read_amount(str(value)) or Decimal("nan")
    if not usd.is_finite():
        raise ValueError("expected a number of US dollars, such as 20 or 0.15")
    if not 0 <= usd <= MAX_USD:
        raise ValueError(f"expected a number of US dollars from 0 to {MAX_USD:.0f}")
    if usd != round(usd, 9):
        raise ValueError("expected a number of US dollars with at most 9 decimals")
    return usd


def _refuse_nothing(usd: Decimal) -> Decimal:
    if not usd:
        raise ValueError("expected a number of US dollars greater than 0")
    return usd


def _nusd(usd: Decimal) -> int:
    return int(round(usd, 9).scaleb(9))


Usd = Annotated[Decimal, BeforeValidator(_read_usd)]
SomeUsd = Annotated[Usd, AfterValidator(_refuse_nothing)]


def _visible_ascii(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None and not re.fullmatch(r"[\x21-\x7e]+", secret.get_secret_value()):
        raise ValueError("expected visible ASCII characters without spaces")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_visible_ascii)]
"""What is presented in a header, which can hold no other signs."""


def _read_off(value: Any) -> Any:
    return "off" if value is False else value  # as YAML reads the word


class Section(BaseModel):
    """A part of the file: frozen, unknown names refused, input never echoed in an error (it may be a secret)."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


# -------------------------------------------------------------------------------------------------------- sections


def _public_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    is_plain = host and parts.username is None and not parts.query and not parts.fragment
    if not is_plain or parts.scheme not in ("http", "https") or not (url.isascii() and url.isprintable()):
        raise ValueError("expected an address such as https://gateway.example.org, without user, query and fragment")
    return url.rstrip("/")


class ServerSettings(Section):
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, _not_bool, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes a free one and prints it."""
    workers: Annotated[int, _not_bool, Field(ge=1, le=64)] = 1
    """Worker processes that share the port; one per core is a good number."""
    max_request_bytes: Size = 26214400
    """A longer request body is refused with 413, on its announced length already."""
    max_response_bytes: Size = 67108864
    """A longer answer that is not streamed is refused with 502."""
    max_buffered_bytes: Size = 536870912
    """All request and non-streamed answer bytes held at once, split over the workers; beyond: 503."""
    client_head_timeout_s: SomeSeconds = 10
    """How long a request head may take, on a new connection from its beginning; then closed."""
    client_body_timeout_s: SomeSeconds = 60
    """How long a whole request body may take, however it trickles; then 408."""
    max_in_flight: Positive = 10000
    """Calls under way at once, split over the workers; beyond: 503 with Retry-After."""
    drain_delay_s: Seconds = 5
    """After SIGTERM: not ready, still serving, for this long. SIGINT does not wait."""
    drain_timeout_s: Seconds = 120
    """Then no new calls; running ones may end for this long."""
    keepalive_comment_s: Seconds = 0
    """Send a comment to streaming clients while the upstream is silent for this long; 0 is off."""
    trusted_proxies: tuple[Network, ...] = ()
    """Networks of the proxies whose X-Forwarded-For is trusted, for keys[].ips and the access log."""
    public_url: Annotated[str, AfterValidator(_public_url)] | None = None
    """The address of the gateway for clients, without /v1; the dashboard shows it. Null: that of the dashboard."""
    reload_on_change: bool = True
    """Whether a changed file is applied by itself; false: on SIGHUP and when the admin API or the dashboard asks."""
    access_log: Annotated[Literal["json", "text", "off"], BeforeValidator(_read_off)] = "json"
    """One line per call on standard output; never prompts, never secrets."""

    @field_validator("keepalive_comment_s")
    @classmethod
    def _no_flood(cls, seconds: float) -> float:
        if 0 < seconds < 0.01:
            raise ValueError("expected 0, which is off, or at least 0.01")
        return seconds


def _store_url(url: str) -> str:
    scheme, _, folder = url.partition(":")
    if scheme in FORMS:
        ca_file = read_redis_url(url).ca_file
        if ca_file is not None and not Path(ca_file).is_file():
            raise ValueError("the file that ca_file names is not there")
    elif scheme != "embedded" or not folder or folder.startswith("//"):
        raise ValueError("expected embedded:FOLDER, for instance embedded:./gateway-data, or redis://host:6379/0")
    return url


class UploadSettings(Section):
    """Multipart forms, such as the files of /v1/audio/transcriptions."""

    max_bytes: Size = 104857600
    """A longer form is refused with 413, on its announced length already."""
    max_file_bytes: Size = 52428800
    """A longer file in a form is refused with 413."""
    memory_bytes: Size = 1048576
    """A form up to this size is held in memory; a longer one is written to a temporary file."""
    max_stored_bytes: Size = 4294967296
    """Temporary files of forms at once, split over the workers; beyond: 503."""
    timeout_s: SomeSeconds = 300
    """How long a whole form may take to arrive; then 408."""
    folder: Annotated[str, Field(min_length=1)] | None = None
    """Folder of the temporary files; default: the system's (TMPDIR)."""

    @field_validator("folder")
    @classmethod
    def _is_folder(cls, folder: str | None) -> str | None:
        if folder is not None and not Path(folder).is_dir():
            raise ValueError("is no folder")
        return folder


class FileSettings(Section):
    """Files of /v1/files."""

    upstream: Annotated[str, Field(min_length=1)] | None = None
    """The upstream that keeps clients' files, with its first API key; without it /v1/files is not served."""
    max_per_key: Annotated[int, Field(ge=1, le=5000), _not_bool] = 1000
    """Files that one key may have at once."""


class StoreSettings(Section):
    url: Annotated[str, AfterValidator(_store_url), Field(repr=False)] = "embedded:./gateway-data"
    """Where keys, quotas and usage live: embedded:FOLDER, redis://, rediss://, redis+sentinel:// or redis+cluster://."""
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] = "gateway"
    """The name of the ledger; gateways that share it share quotas."""
    journal_dir: Annotated[str, Field(min_length=1, validate_default=True)] = "./gateway-journal"
    """Usage that is not yet delivered to the store; one folder per gateway, on a local disk that outlives it."""
    on_outage: Literal["deny", "allow"] = "deny"
    """deny: 503 while the store is away; allow: a share of each limit, journalled and settled later."""
    outage_share: Annotated[float, _not_bool, Field(gt=0, le=1)] = 0.1
    """With on_outage: allow, the share of each limit that each worker may spend alone."""
    outage_max_s: Seconds = 900
    """With on_outage: allow, for how long at most within an hour."""
    usage_records_max: Positive = 1000000
    """The newest usage records that are kept; daily sums stay for sums_days."""
    sums_days: Annotated[
        int,
        Field(ge=1, le=36500),
        BeforeValidator(_read_days),
        _or_else("expected whole days, from 1 to 36500, such as 800, 90d or 52w"),
        _not_bool,
    ] = 800
    """For how many days the daily sums are kept."""

    @field_validator("journal_dir")
    @classmethod
    def _is_a_folder_of_its_own(cls, folder: str, info: ValidationInfo) -> str:
        scheme, _, place = info.data.get("url", "").partition(":")
        if scheme == "embedded" and realpath(folder) == realpath(place):
            raise ValueError("must not be the store's own folder")
        return folder

    @property
    def is_embedded(self) -> bool:
        """Whether the store is a folder of this node, and no server."""
        return self.url.startswith("embedded:")

    @property
    def origin(self) -> str:
        """Which ledger this is, without credentials: a journal is only delivered where it belongs."""
        where = str(self.folder.resolve()) if self.is_embedded else self.shown_url
        return f"{where} {self.namespace}"

    @property
    def shown_url(self) -> str:
        """`url` without the credentials that it may hold: what people may see of it."""
        return self.url if self.is_embedded else str(self.redis)

    @cached_property
    def redis(self) -> RedisURL:
        """The address of a Redis store."""
        return read_redis_url(self.url)

    @property
    def folder(self) -> Path:
        """The embedded store's folder."""
        return Path(self.url.partition(":")[2])


_ADDRESS = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):"
    r"(?P<port>6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|\d{1,4})"
)


def _long_token(token: SecretStr) -> SecretStr:
    if len(token.get_secret_value()) < 16:
        raise ValueError("a token needs at least 16 characters")
    return token


class AdminToken(Section):
    token: Annotated[Secret, AfterValidator(_long_token)]
    """Bearer token; at least 16 characters."""
    role: Literal["operator", "lead", "viewer"]
    """operator may do everything, lead manages the keys of one team, viewer reads everything."""
    team: Annotated[str, Field(min_length=1)] | None = None
    """The team of a lead."""

    @model_validator(mode="after")
    def _a_lead_has_a_team(self) -> Self:
        if (self.role == "lead") != (self.team is not None):
            raise ValueError("a lead needs a team" if self.role == "lead" else "only a lead has a team; remove it")
        return self


class AdminSettings(Section):
    token: Secret | None = None
    """Bearer token of the admin API for operators."""
    viewer_token: Secret | None = None
    """May read the dashboard and reports, and nothing else."""
    tokens: dict[str, AdminToken] = {}
    """More tokens of the admin API, by the name that the audit log shows."""
    listen: str | None = None
    """host:port of its own for the admin API, the dashboard and the metrics; null: the same as for calls."""

    @field_validator("token", "viewer_token")
    @classmethod
    def _long_enough(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < 16:
            raise ValueError("a token needs at least 16 characters")
        return token

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str | None) -> str | None:
        if listen is not None and not _ADDRESS.fullmatch(listen):
            raise ValueError("expected host:port, such as 127.0.0.1:9090 or [::1]:9090")
        return listen

    @field_validator("tokens")
    @classmethod
    def _have_plain_names(cls, tokens: dict[str, AdminToken]) -> dict[str, AdminToken]:
        for name in tokens:
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(
                    f"{name[:64]!r} is no name of a token: expected small letters, digits, '_', '.' and '-', a letter "
                    "or digit first, 63 at most"
                )
        return tokens

    @model_validator(mode="after")
    def _all_differ(self) -> Self:
        first: dict[str, str] = {}
        for name, token in (("token", self.token), ("viewer_token", self.viewer_token)):
            if token is not None:
                first[token.get_secret_value()] = name
        for name, each in self.tokens.items():
            if (other := first.setdefault(each.token.get_secret_value(), f"tokens.{name}")) != f"tokens.{name}":
                raise ValueError(f"tokens.{name} is the same as {other}; each needs its own")
        return self

    @property
    def is_on(self) -> bool:
        """Whether there is an admin API."""
        return self.token is not None or bool(self.tokens)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of its own listener; None: it has none."""
        if self.listen is None or (found := _ADDRESS.fullmatch(self.listen)) is None:
            return None
        return found["host"].strip("[]"), int(found["port"])

    @field_validator("viewer_token")
    @classmethod
    def _lesser_than_another(cls, viewer: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if viewer is None or "token" not in info.data:  # which has a fault of its own
            return viewer
        if info.data["token"] is None:
            raise ValueError("needs admin.token beside it, without which there is no admin API")
        if info.data["token"].get_secret_value() == viewer.get_secret_value():
            raise ValueError("is the same as admin.token, so every viewer could change everything")
        return viewer


def _certificates(path: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path!r}")
    try:
        ssl.create_default_context(cafile=path)
    except OSError:
        raise ValueError(f"{path!r} holds no certificates in PEM that can be read") from None
    return path


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_safe_url(url: str) -> bool:
    """Whether secrets and keys may travel to or from this address: by https, or within this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    is_plain = parts.username is None and not parts.fragment and url.isascii() and url.isprintable() and " " not in url
    return is_plain and bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))


def _safe_url(url: str) -> str:
    if not is_safe_url(url):
        raise ValueError("expected an address with https://, without user and fragment; http:// on this machine alone")
    return url


SafeUrl = Annotated[str, AfterValidator(_safe_url)]


def _has_joserfc() -> bool:
    return find_spec("joserfc") is not None


class RoleRule(Section):
    group: Annotated[str, Field(min_length=1)] | None = None
    """All persons in this group."""
    person: Annotated[str, Field(min_length=1)] | None = None
    """This person alone."""
    role: Literal["operator", "lead", "member", "viewer"]
    """The role that she gets."""
    team: Annotated[str, Field(min_length=1)] | None = None
    """The team of a lead."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.group is None) == (self.person is None):
            raise ValueError("expected exactly one of group, person")
        if (self.role == "lead") != (self.team is not None):
            raise ValueError("a lead needs a team" if self.role == "lead" else "only a lead has a team; remove it")
        return self


class OidcSettings(Section):
    issuer: SafeUrl
    """The provider's issuer, exactly as it writes itself, such as https://login.example.org."""
    client_id: Annotated[str, Field(min_length=1)]
    """The client that is registered there for the gateway."""
    client_secret: SecretStr | None = None
    """Its secret; null for a public client."""
    redirect_url: SafeUrl
    """The gateway's address for people, with the path /admin/sign-in/callback; it is registered at the provider."""
    session_key: SecretStr
    """Signs sessions; at least 32 characters, the same for all gateways; another one ends every session."""
    session_s: Annotated[float, _not_bool, Field(ge=60, le=604800)] = 28800
    """After how long a person has to sign in again."""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    """What the provider is asked for."""
    person_claim: Annotated[str, Field(min_length=1)] = "email"
    """The claim that names a person; it is the owner of her keys."""
    groups_claim: Annotated[str, Field(min_length=1)] = "groups"
    """The claim that has her groups."""
    domains: tuple[str, ...] = ()
    """Domains of e-mail addresses that may sign in; default: all."""
    groups: tuple[str, ...] = ()
    """Groups of which one is needed to sign in; default: none is needed."""
    roles: tuple[RoleRule, ...] = ()
    """Who gets which role; the first rule that fits counts."""
    default_role: Literal["member", "viewer"] | None = "member"
    """The role of whom no rule fits; null: she may not sign in."""
    clock_skew_s: Annotated[float, _not_bool, Field(ge=0, le=600)] = 60
    """How far the clocks of the provider and the gateway may differ."""
    ca_file: str | None = None
    """Certificates in PEM that the provider's is checked with, in place of the system's."""

    @field_validator("issuer")
    @classmethod
    def _can_be_used(cls, issuer: str) -> str:
        if urlsplit(issuer).query:
            raise ValueError("expected an address without a query")
        if not _has_joserfc():
            raise ValueError("needs packages that are not installed: pip install 'completions-gateway[oidc]'")
        return issuer

    @field_validator("redirect_url")
    @classmethod
    def _leads_back(cls, url: str) -> str:
        if not urlsplit(url).path.endswith("/admin/sign-in/callback") or urlsplit(url).query:
            raise ValueError("expected an address that ends in /admin/sign-in/callback")
        return url

    @field_validator("session_key")
    @classmethod
    def _is_long(cls, key: SecretStr) -> SecretStr:
        if len(key.get_secret_value()) < 32:
            raise ValueError("expected at least 32 characters")
        return key

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in scopes:
            raise ValueError("expected openid among the scopes")
        return scopes

    @field_validator("ca_file")
    @classmethod
    def _is_readable(cls, path: str | None) -> str | None:
        return None if path is None else _certificates(path)

    @cached_property
    def rules(self) -> str:
        """A digest of everything that decides who may sign in as what."""
        names = ("issuer", "client_id", "person_claim", "groups_claim", "domains", "groups", "roles", "default_role")
        said = self.model_dump_json(include=set(names))
        return hashlib.sha256(said.encode()).hexdigest()[:16]


class JwtSettings(Section):
    issuer: Annotated[str, Field(min_length=1)]
    """The issuer of the tokens, exactly as they name it."""
    audiences: Annotated[tuple[str, ...], Field(min_length=1)]
    """Audiences of which a token must have one: the name of this gateway at the issuer."""
    jwks_url: SafeUrl
    """Where the issuer's public keys are."""
    person_claim: Annotated[str, Field(min_length=1)] = "email"
    """The claim that names a person; it is the owner of her record."""
    team_claim: Annotated[str, Field(min_length=1)] | None = None
    """The claim that names her team, which must exist; null: no claim does."""
    models_claim: Annotated[str, Field(min_length=1)] | None = None
    """The claim that lists the models that the token is for; null: those of her record."""
    clock_skew_s: Annotated[float, _not_bool, Field(ge=0, le=600)] = 60
    """How far the clocks of the issuer and the gateway may differ."""
    ca_file: str | None = None
    """Certificates in PEM that the issuer's is checked with, in place of the system's."""

    @field_validator("issuer")
    @classmethod
    def _can_be_used(cls, issuer: str) -> str:
        if not _has_joserfc():
            raise ValueError("needs packages that are not installed: pip install 'completions-gateway[oidc]'")
        return issuer

    @field_validator("ca_file")
    @classmethod
    def _is_readable(cls, path: str | None) -> str | None:
        return None if path is None else _certificates(path)


class MetricsSettings(Section):
    token: Secret | None = None
    """Bearer token for /metrics; null leaves it open."""
    max_keys: Count = 200
    """Keys with a label of their own in metrics; further keys share the label "other"."""
    max_models: Count = 200
    """Models with a label of their own in metrics; further models share the label "other". Reports name them all."""


class Timeouts(Section):
    connect_s: SomeSeconds = 5
    """Time limit for a new connection including TLS; also the longest wait for a free one."""
    head_s: SomeSeconds = 60
    """From sending the request until the whole head of the answer is there."""
    idle_s: SomeSeconds = 60
    """The longest silence inside an answer."""
    total_s: SomeSeconds = 600
    """The whole attempt."""


def _bool_or(other: str) -> BeforeValidator:
    """A setting that is true, false or this word."""

    def read(value: Any) -> Any:
        if value not in (True, False, "true", "false", other):
            raise ValueError(f"expected true, false or {other}")
        return value

    return BeforeValidator(read)


def _written(value: bool | str) -> str:
    """As in the file."""
    return value if isinstance(value, str) else str(value).lower()


class Capabilities(Section):
    """What an upstream does differently from OpenAI."""

    stream_usage: bool = True
    """Whether stream_options.include_usage may be sent."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"
    """The field for an output limit that the gateway adds to a chat request."""
    completions: Annotated[bool | Literal["via_chat"], _bool_or("via_chat")] = True
    """Whether it has /completions; via_chat: each prompt is sent as a chat of one message; its answer is the text."""
    chat: Annotated[bool | Literal["via_messages"], _bool_or("via_messages")] = True
    """Whether it has /chat/completions; via_messages: chats are translated to messages, and their answers back."""
    embeddings: bool = True
    """Whether it has /embeddings."""
    messages: Annotated[bool | Literal["via_chat"], _bool_or("via_chat")] = False
    """Whether it has Anthropic's /messages; via_chat: as chats; default: true for api.anthropic.com, else false."""
    count_tokens: bool = True
    """Whether it has /messages/count_tokens beside /messages."""
    responses: Annotated[bool | Literal["via_chat"], _bool_or("via_chat")] = True
    """Whether it has /responses; via_chat: responses are translated to chats, and their answers back."""
    generate_content: bool = False
    """Whether it has Gemini's /models/{model}:generateContent; default: true for Google's native API, else false."""
    realtime: bool = False
    """Whether it has OpenAI's /realtime, a WebSocket."""
    logprobs: bool = True
    """Whether completions may ask for logprobs, which some upstreams cannot read as a number."""
    best_of: bool = True
    """Whether completions may ask for best_of > 1."""
    echo: bool = True
    """Whether completions may ask for echo."""
    suffix: bool = True
    """Whether completions may have a suffix."""
    prompt_arrays: bool = True
    """Whether one completions call may have several prompts; false: it gets one call for each."""
    token_prompts: bool = True
    """Whether the prompt of completions may be tokens."""
    drops: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$")], ...] = ()
    """Parameters that it drops without an error, as clients name them; a dot leads into objects and lists."""

    @model_validator(mode="after")
    def _target_to_go_by(self) -> Self:
        for name in ("completions", "responses", "messages"):
            if getattr(self, name) == "via_chat" and self.chat is not True:
                raise ValueError(f"{name}: via_chat needs chat, which is {_written(self.chat)} here")
        if self.chat == "via_messages" and self.messages is not True:
            raise ValueError(f"chat: via_messages needs messages, which is {_written(self.messages)} here")
        return self

    @cached_property
    def is_all(self) -> bool:
        """Whether it accepts everything that OpenAI's completions, chat and embeddings accept."""
        able = (self.completions, self.chat, self.embeddings, self.logprobs, self.best_of, self.echo, self.suffix,
                self.prompt_arrays, self.token_prompts)  # fmt: skip
        return all(each is True for each in able) and not self.drops


# Names that would change how the message is framed, and that the gateway writes itself.
_FRAMING = frozenset({
    "host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding", "expect", "te",
    "trailer", "upgrade", "keep-alive", "proxy-authorization", "proxy-connection",
})  # fmt: skip
_OWN_HEADERS = _FRAMING | {"authorization"}


def _plain_headers(headers: dict[str, SecretStr], own: frozenset[str]) -> dict[str, SecretStr]:
    """Headers that can be sent as they are. Raises `ValueError`, also for those of our own."""
    for name, value in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ValueError(f"{name!r} is not a header name")
        if name.lower() in own:
            raise ValueError(f"{name!r} is written by the gateway itself and cannot be set here")
        if not re.fullmatch(r"[\x20-\x7e]*", value.get_secret_value()):
            raise ValueError(f"the value of {name!r} holds characters that no header may hold")
    return headers


def _proxy_address(address: SecretStr | None) -> SecretStr | None:
    if address is not None:
        read_proxy(address.get_secret_value())
    return address


def _is_http(url: str) -> bool:
    """Whether this is an http or https address with a host."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_good and re.fullmatch(r"[\x21-\x7e]+", url) is not None


def _read_rates(value: Any) -> Any:
    """One rate or several as a list of texts; each is checked by `_is_rate`."""
    return (value,) if isinstance(value, str) else value


def _is_rate(text: str) -> str:
    read_rate(text)
    return text


Rates = Annotated[tuple[Annotated[str, AfterValidator(_is_rate)], ...], BeforeValidator(_read_rates)]


class RateLimits(Section):
    """What one account at an upstream may be sent."""

    requests: Rates = ()
    """Requests, such as 500/min, or several rates: [10/s, 10000/day]. Each refills smoothly up to a burst of itself."""
    tokens: Rates = ()
    """Prompt and output tokens, such as 200000/min."""
    parallel: Positive | None = None
    """Requests under way at once."""
    reserved: Annotated[int, _not_bool, Field(ge=0)] = 0
    """Of parallel, so many places only interactive calls take."""

    @model_validator(mode="after")
    def _leaves_a_place(self) -> Self:
        if self.reserved and self.reserved >= (self.parallel or 0):
            raise ValueError("reserved needs a larger parallel: the others get parallel less reserved places")
        return self


class UpstreamLimits(RateLimits):
    """The limits of an upstream: of the whole, of each of its API keys, of some of its models."""

    learn: bool = True
    """Whether answers of the upstream (429, rate limit headers) lower what is assumed of these limits for a while."""
    adaptive: bool = False
    """Whether the limits named parallel fall and rise by the time to the first token of streams; they are the most."""
    per_key: RateLimits = RateLimits()
    """The same for each of api_keys."""
    per_model: dict[str, RateLimits] = {}
    """The same for the models at the upstream whose names match a pattern, all of them together."""

    @field_validator("per_model")
    @classmethod
    def _are_patterns(cls, limits: dict[str, RateLimits]) -> dict[str, RateLimits]:
        for pattern in limits:
            _refuse_signs(pattern)
        return limits

    @model_validator(mode="after")
    def _adapts_something(self) -> Self:
        limits: list[RateLimits] = [self, self.per_key, *self.per_model.values()]
        if self.adaptive and not any(each.parallel for each in limits):
            raise ValueError("adaptive needs parallel, the most requests that may ever be under way at once")
        return self

    @cached_property
    def is_any(self) -> bool:
        """Whether anything is limited."""
        return any(
            each.requests or each.tokens or each.parallel for each in (self, self.per_key, *self.per_model.values())
        )


ANTHROPIC_HOST = "api.anthropic.com"
GOOGLE_HOST = "generativelanguage.googleapis.com"
_OF_ANTHROPIC: dict[str, Any] = {"key_header": "x-api-key", "capabilities": {"messages": True}}
_OF_GOOGLE: dict[str, Any] = {
    "key_header": "x-goog-api-key",
    "capabilities": {
        "generate_content": True, "completions": False, "chat": False, "embeddings": False, "responses": False,
    },
}  # fmt: skip


def _defaults_of(url: str) -> dict[str, Any]:
    """Defaults of an upstream by its address. Google has its API in OpenAI's format below `/openai`."""
    parts = urlsplit(url)
    if parts.hostname == GOOGLE_HOST and not parts.path.rstrip("/").endswith("/openai"):
        return _OF_GOOGLE
    return _OF_ANTHROPIC if parts.hostname == ANTHROPIC_HOST else {}


def _with_defaults_of_host(settings: Any) -> Any:
    """The settings of an upstream as they stand in the file, with the defaults for Anthropic's and Google's APIs."""
    if not isinstance(settings, dict) or not isinstance(url := settings.get("base_url"), str):
        return settings
    try:
        defaults = _defaults_of(url)
    except ValueError:
        return settings
    capabilities = settings.get("capabilities", {})
    if not defaults or not isinstance(capabilities, dict):
        return settings
    return defaults | settings | {"capabilities": defaults["capabilities"] | capabilities}


class Discovery(Section):
    """Which of the models that an upstream lists are served."""

    include: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    """Patterns of the names that are served, of those that the upstream lists (GET /models)."""
    exclude: tuple[str, ...] = ()
    """Patterns of the names that are not."""
    every_s: SomeSeconds = 3600
    """How often the list is read, besides at the start."""

    @field_validator("every_s")
    @classmethod
    def _is_no_flood(cls, seconds: float) -> float:
        if seconds < 1:
            raise ValueError("expected at least 1")
        return seconds


def _read_discover(value: Any) -> Any:
    return {} if value is True else None if value is False else value


class Upstream(Section):
    base_url: str
    """Address of the API, version included: https://api.openai.com/v1."""
    api_key: Secret | None = None
    """Bearer key that the gateway presents; null sends none."""
    api_keys: tuple[Secret, ...] = ()
    """Several keys instead of api_key, used in turn; a refused one is not used during its cooldown."""
    key_header: Literal["authorization", "x-api-key", "api-key", "x-goog-api-key"] = "authorization"
    """Header with the key; default: x-api-key for api.anthropic.com, x-goog-api-key for Google's native API."""
    headers: dict[str, SecretStr] = {}
    """Added to every request, for instance OpenAI-Organization."""
    proxy: Annotated[SecretStr | None, AfterValidator(_proxy_address)] = None
    """http://user:password@proxy:3128, asked with CONNECT; "" is none; default: the environment's, as curl reads it."""
    ca_file: str | None = None
    """PEM file with the certificate authorities to trust, instead of the system's."""
    timeouts: Timeouts = Timeouts()
    """Time limits of an attempt, in seconds."""
    max_connections: Positive = 1000
    """Connections of the whole gateway, split over its workers; a call waits for one at most connect_s."""
    max_connection_age_s: SomeSeconds = 300
    """A connection older than this is not used again, so that changes of DNS count."""
    on_disconnect: Literal["cancel", "drain"] = "cancel"
    """When the client of a stream leaves: cancel the upstream request and estimate, or drain: read on for the usage."""
    drain_limit_s: Seconds = 30
    """With drain, for how long at most."""
    probe_s: Seconds = 0
    """Interval of each worker's GET /models, which finds an unhealthy upstream before a call does; 0 is off."""
    provider: Annotated[str, Field(pattern="^[a-z0-9_-]+$")] | None = None
    """Name of the provider in the price table; default: by the host of base_url; see gateway prices --providers."""
    capabilities: Capabilities = Capabilities()
    """Where this upstream differs from OpenAI."""
    discover: Annotated[Discovery | None, BeforeValidator(_read_discover)] = None
    """Serve the models that this upstream lists; true is every one of them."""
    limits: UpstreamLimits = UpstreamLimits()
    """What may be sent to it, counted exactly over all workers and gateways that share the store."""

    _of_host = model_validator(mode="before")(_with_defaults_of_host)

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        has_key = self.credentials != (None,) and self.key_header != "authorization"
        if has_key and any(name.lower() == self.key_header for name in self.headers):
            raise ValueError(f"the header {self.key_header} is written with api_key, and cannot be in headers too")
        return self

    @property
    def way(self) -> Proxy | None:
        """The proxy through which this upstream is reached; None: directly."""
        return read_proxy(self.proxy.get_secret_value()) if self.proxy is not None else None

    @property
    def credentials(self) -> tuple[SecretStr | None, ...]:
        """The keys that are presented in turn, at least one; None is no key at all."""
        return self.api_keys or (self.api_key,)

    @field_validator("api_keys")
    @classmethod
    def _all_differ(cls, keys: tuple[SecretStr, ...], info: ValidationInfo) -> tuple[SecretStr, ...]:
        if keys and info.data.get("api_key") is not None:
            raise ValueError("expected either api_key or api_keys; put all of them into api_keys")
        first: dict[str, int] = {}
        for place, key in enumerate(keys, 1):
            if (other := first.setdefault(key.get_secret_value(), place)) != place:
                raise ValueError(f"number {place} is the same key as number {other}; keep one")
        return keys

    @field_validator("probe_s")
    @classmethod
    def _is_no_flood(cls, seconds: float) -> float:
        if 0 < seconds < 0.1:
            raise ValueError("expected 0, which is off, or at least 0.1")
        return seconds

    @field_validator("base_url")
    @classmethod
    def _is_http_url(cls, url: str) -> str:
        if not _is_http(url):
            raise ValueError("expected an address like https://api.openai.com/v1")
        parts = urlsplit(url)
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("expected an address without user, query or fragment; the key belongs in api_key")
        return url.rstrip("/")

    @field_validator("headers")
    @classmethod
    def _are_plain_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        return _plain_headers(headers, _OWN_HEADERS)

    @field_validator("ca_file")
    @classmethod
    def _is_readable(cls, path: str | None) -> str | None:
        return None if path is None else _certificates(path)


class Limits(Section):
    """Stricter than the API's own limits, per key or per model."""

    n: Positive | None = None
    """Largest n."""
    best_of: Positive | None = None
    """Largest best_of."""
    logprobs: Count | None = None
    """Largest logprobs, and on chat the largest top_logprobs."""
    stop: Count | None = None
    """Largest number of stop sequences."""
    max_tokens: Positive | None = None
    """Largest max_tokens and max_completion_tokens; sent along where the client gave none."""
    max_audio_s: SomeSeconds | None = None
    """Longest audio of a transcription or translation; a file whose length cannot be read is refused then."""
    deny: tuple[str, ...] = ()
    """Parameters that are refused by name."""


class Route(Section):
    upstream: str
    """Name of an upstream."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """The model's name at that upstream; default: the name in the client's request."""
    priority: Annotated[int, _not_bool] = 1
    """Lower is tried first."""
    weight: Positive = 1
    """Share within one priority."""


EndpointName = Literal[
    "completions", "chat", "embeddings", "messages", "responses", "generate_content", "moderations", "rerank", "images",
    "image_edits", "image_variations", "speech", "transcriptions", "translations", "realtime",
]  # fmt: skip


class Rows(Section):
    """Prices in US dollars, by what they count. A row that is left out: cached_input and image_in cost as input,
    reasoning as output; a call that uses anything else without a row has an unknown cost."""

    input: Usd | None = None
    """USD per million prompt tokens."""
    output: Usd | None = None
    """USD per million completion tokens; only a model of embeddings alone can do without."""
    cached_input: Usd | None = None
    """USD per million prompt tokens that the upstream had in its cache; default: as input."""
    cache_write: Usd | None = None
    """USD per million prompt tokens written to the upstream's cache."""
    cache_write_1h: Usd | None = None
    """The same for caches that are kept for an hour or longer."""
    reasoning: Usd | None = None
    """USD per million reasoning tokens; default: as output."""
    audio_in: Usd | None = None
    """USD per million audio tokens of the prompt."""
    audio_out: Usd | None = None
    """USD per million audio tokens of the completion."""
    image_in: Usd | None = None
    """USD per million image tokens of the prompt; default: as input."""
    image_out: Usd | None = None
    """USD per million image tokens of the completion."""
    image_tool_in: Usd | None = None
    """USD per million prompt tokens of the image tool of a response."""
    image_tool_out: Usd | None = None
    """USD per million output tokens of the image tool of a response."""
    characters_per_million: Usd | None = None
    """USD per million characters that are spoken."""
    audio_per_hour: Usd | None = None
    """USD per hour of audio."""
    audio_per_minute: Usd | None = None
    """USD per minute of audio, in place of audio_per_hour."""
    web_searches_per_1000: Usd | None = None
    """USD per thousand web searches of the upstream."""
    file_searches_per_1000: Usd | None = None
    """USD per thousand file searches of the upstream."""
    search_units_per_1000: Usd | None = None
    """USD per thousand search units of a rerank."""
    container: Usd | None = None
    """USD per container that an answer names; providers bill them by minute, so the usage is estimated."""
    image: Usd | None = None
    """USD per generated image."""
    call: Usd | None = None
    """USD per call, besides all else."""
    task: Usd | None = None
    """USD per task of a passthrough row."""
    second: Usd | None = None
    """USD per second of a video or a sound that a task makes."""

    @model_validator(mode="after")
    def _has_one_price_of_audio(self) -> Self:
        if self.audio_per_hour is not None and self.audio_per_minute is not None:
            raise ValueError("has audio_per_hour and audio_per_minute; keep one")
        return self


class PriceTier(Rows):
    """Rows for long prompts: above its start they apply to the whole call; other rows stay as they are."""

    above: Positive
    """Prompts of more tokens than this."""


class TieredRows(Rows):
    """Prices with tiers for long prompts."""

    tiers: tuple[PriceTier, ...] = ()
    """Rows for long prompts."""

    @field_validator("tiers")
    @classmethod
    def _ascend(cls, tiers: tuple[PriceTier, ...]) -> tuple[PriceTier, ...]:
        if any(one.above >= other.above for one, other in pairwise(tiers)):
            raise ValueError("expected each tier to begin above the one before it")
        return tiers


TimeOfDay = Annotated[str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class PriceHours(TieredRows):
    """A whole price for some hours of each day, in UTC. `until` may be on the next day."""

    start: TimeOfDay
    """From this time, such as 16:30."""
    until: TimeOfDay
    """Until before this time."""


_PLAIN = frozenset({"input", "cached_input", "output"})


class FullRows(TieredRows):
    """A whole price."""

    variants: dict[Annotated[str, Field(pattern=r"^[^\s=]{1,40}$")], TieredRows] = {}
    """Rows for a service of another kind, by its name in the answer: flex, priority, batch, fast; others stay."""
    hours: tuple[PriceHours, ...] = ()
    """Whole prices for some hours of the day."""
    cache_write_on_request: bool = False
    """Whether the cache is written only where a request has a cache_control; then others reserve no writes."""


class LaterPrice(FullRows):
    """A whole price that replaces the others on a day."""

    starts: date
    """From this day on, in UTC."""

    def as_price(self, source: str | None) -> Price:
        """The price from that day on."""
        return Price.model_construct(**{name: getattr(self, name) for name in FullRows.model_fields}, source=source)


class Price(FullRows):
    """What calls cost."""

    later: tuple[LaterPrice, ...] = ()
    """Prices from a day on."""
    source: str | None = None
    """Not for files: the table that the price is from."""

    @model_validator(mode="after")
    def _cached_is_cheaper(self) -> Self:
        cached, whole = self.cached_input, self.input
        if self.source is None and cached is not None and whole is not None and cached > whole:
            raise ValueError("cached_input is more than input; the two are probably swapped")
        return self

    @cached_property
    def nusd_per_million(self) -> tuple[int, int, int] | None:
        """Billionths of a USD for a million tokens: prompt, cached prompt, completion; None where the price has other
        rows."""
        if self.input is None or self.model_fields_set - _PLAIN:
            return None
        cached = self.input if self.cached_input is None else self.cached_input
        return _nusd(self.input), _nusd(cached), _nusd(self.output or Decimal(0))

    @cached_property
    def plan(self) -> Plan:
        """All of its rates."""
        return plan_of(self)

    @cached_property
    def record_text(self) -> str | None:
        """Of a price with these three rows only: input, cached input and output in USD per million tokens, as each
        record of a call keeps them: `1.5 0.75 2`.

        Computed once, because a record is formatted twice per call.
        """
        if self.nusd_per_million is None:
            return None
        return " ".join([f"{Decimal(nusd) / NUSD:f}" for nusd in self.nusd_per_million])


class Sticky(Section):
    """Calls that belong together go to the same upstream and API key, whose prompt cache is warm."""

    by: Annotated[tuple[Literal["header", "prompt_cache_key", "prefix"], ...], Field(min_length=1)] = (
        "header", "prompt_cache_key", "prefix",
    )  # fmt: skip
    """What says that calls belong together: the first one of these that a call has."""
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] = "X-Gateway-Conversation"
    """Request header that names a conversation; it is not sent on."""
    prefix_bytes: Annotated[int, _not_bool, Field(ge=64, le=65536)] = 1024
    """Bytes of the prompt's beginning that count, to the end of the first message of the user at most."""


def _read_sticky(value: Any) -> Any:
    return {} if value is True else None if value is False else value


def _without_auto(price: Any) -> Any:
    # What the table has for it stands here already; a provider or model that it lacks has no price.
    return None if price == "auto" else price


def _read_hedge_after(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(_HEDGE_AFTER)
    if isinstance(value, str) and value.strip().lower() == "p95":
        return "p95"
    return value


_HEDGE_AFTER = f"expected p95, or a time greater than 0 {_span}"
HedgeAfter = Annotated[
    Literal["p95"] | Annotated[float, Field(gt=0, allow_inf_nan=False), _by(read_duration_s)],
    _or_else(_HEDGE_AFTER),
    BeforeValidator(_read_hedge_after),
]
"""`p95`, or seconds."""


class ModelSettings(Section):
    """What each model may have, and `defaults.models` for all of them."""

    endpoints: tuple[EndpointName, ...] = (
        "completions", "chat", "embeddings", "messages", "responses", "generate_content"
    )  # fmt: skip
    """The endpoints that serve this model; moderations, rerank, realtime and those of images and \
audio have to be named."""
    max_attempts: Annotated[int, _not_bool, Field(ge=1, le=10)] = 3
    """How often one call may be tried in all."""
    repeat_when_waiting: bool = False
    """Whether a call that was sent and not answered may be sent again."""
    hedge_after: HedgeAfter | None = None
    """Try a second route beside the first when no byte has come for so long: a time such as 2s, or p95 of the times \
lately. Both may be billed. Default: never."""
    max_output_tokens: Positive | None = None
    """Output tokens reserved for a chat call without a limit; required where a token or USD quota can apply."""
    min_output_tokens: Positive | None = None
    """Where a quota has no room for max_output_tokens, a chat call without a limit gets what is left, at least this \
number; default: it is refused."""
    store_responses: bool | None = None
    """What `store` is in a response whose request does not say; default: up to the upstream, and OpenAI keeps it."""
    max_wait_s: Seconds | None = None
    """How long its calls may wait for room at an upstream; default: as queue.max_wait_s."""
    limits: Limits = Limits()
    """Stricter limits for this model."""
    price: Annotated[Price | None, BeforeValidator(_without_auto)] = None
    """What its calls cost; auto, the default where the provider is known: as the price table says; null: unknown."""
    unpriced: Literal["deny", "allow"] = "deny"
    """Without a price under a USD quota: deny (403 model_not_priced), or allow, and nothing is drawn on that quota."""


class Model(ModelSettings):
    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    """Where calls for this model go."""
    strip_prefix: Annotated[str, Field(min_length=1)] | None = None
    """Beginning of the asked name that is not sent to a route without `model`: openai/ for the pattern openai/*."""
    sticky: Annotated[Sticky | None, BeforeValidator(_read_sticky)] = None
    """true, or settings: calls that belong together go to the same upstream and API key while it is healthy."""
    fallbacks: Annotated[tuple[str, ...], Field(max_length=5)] = ()
    """Models that serve a call where no route of this one can or its prompt is too long, the first that can."""
    table_prices: dict[str, Price] = {}
    """Not for files: of a pattern, the table's prices by the names of models."""

    @property
    def has_price(self) -> bool:
        """Whether there is a price, of a pattern at least for some names."""
        return self.price is not None or bool(self.table_prices)

    @field_validator("routes")
    @classmethod
    def _lead_to_different_places(cls, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        first: dict[tuple[str, str | None], int] = {}
        for index, route in enumerate(routes):
            if (other := first.setdefault((route.upstream, route.model), index)) != index:
                raise ValueError(f"number {index + 1} leads to the same place as number {other + 1}; keep one")
        return routes


BAD_SIGNS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What no name may hold: columns and lines of reports would shift, or it could not be written at all."""


def is_plain_name(name: str) -> bool:
    """Whether a name can stand in reports and metrics."""
    return BAD_SIGNS.search(name) is None


def _refuse_signs(pattern: Any) -> Any:
    if isinstance(pattern, str) and "|" in pattern:
        raise ValueError("expected a pattern without |, which no pattern of models needs")
    if isinstance(pattern, str) and BAD_SIGNS.search(pattern):
        raise ValueError("expected a pattern without control characters")
    return pattern


Per = Literal["second", "minute", "hour", "day", "week", "month"]


def _read_per(value: Any) -> Any:
    return read_per(value) if isinstance(value, str) else value


class Quota(Section):
    """How much of one unit may be spent in one window: `{tokens: 1M, per: day}` or `1M tokens/day`."""

    requests: Positive | None = None
    """Number of calls."""
    tokens: Positive | None = None
    """Number of prompt and completion tokens."""
    usd: SomeUsd | None = None
    """Money in US dollars, by the prices of the models."""
    per: Annotated[
        Per | Annotated[int, _not_bool, Field(ge=1, le=MAX_PER_S)],
        BeforeValidator(_read_per),
        _or_else(
            f"expected {', '.join(PERIODS)}, a time such as {DURATION_EXAMPLES}, or a number of seconds from 1 to "
            f"{MAX_PER_S}"
        ),
    ]
    """second, minute, hour, day, week, month, a time such as 90s, or a number of seconds; \
day, week and month are calendar windows in UTC."""
    model: Annotated[str, Field(min_length=1), BeforeValidator(_refuse_signs)] | None = None
    """Pattern of the models that this quota counts; default: all."""

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
        return _nusd(self.usd) if self.usd is not None else self.requests or self.tokens or 0

    @property
    def per_s(self) -> int | None:
        """Seconds over which a rate refills; None for a calendar window."""
        return PER_SECONDS.get(self.per) if isinstance(self.per, str) else self.per

    def covers(self, model: str) -> bool:
        """Whether calls for this model count."""
        return self.model is None or fnmatchcase(model, self.model)


class MemberKeys(Section):
    max_keys: Annotated[int, _not_bool, Field(ge=1, le=100)] = 3
    """Keys that one person may have in the team; a revoked one counts for a day."""
    models: tuple[str, ...] = ("*",)
    """What these keys may call at most."""
    by_key: tuple[Literal["pause", "rotate"], ...] = ()
    """What a key of the team may do to itself in the admin API, without a session or a token."""


class Team(Section):
    quotas: tuple[Quota, ...] = ()
    """What the whole team may spend."""
    members: MemberKeys | None = None
    """Keys that members of the team may make by themselves; null: none."""


def _read_moment(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if is_duration(value):
        raise ValueError("a time from now would change at each start; expected a day such as 2027-01-01")
    return read_moment(value)


NAME_PATTERN = "[a-z0-9][a-z0-9_.-]{0,62}"
"""Of keys; and of teams that are made while the gateway runs."""


MAX_PERSON = 256
"""Characters of a person's name: the owner of keys."""

MAX_LABELS = 16


def _one_line(text: str) -> str:
    if BAD_SIGNS.search(text):
        raise ValueError("expected text without control characters and line breaks")
    return text


def _few_labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise ValueError(f"expected at most {MAX_LABELS} labels")
    for name in labels:
        if not re.fullmatch(NAME_PATTERN, name):
            raise ValueError(
                "expected labels named with at most 63 small letters, digits, '_', '.' and '-', a letter or digit first"
            )
    return labels


LabelValue = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_one_line)]


class KeySettings(Section):
    """What a key may do; wherever it is kept."""

    id: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
    """Public name of the key, never used again once it was used: in logs, metrics, reports."""
    team: str | None = None
    """Name of a team."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the models that this key may use."""
    expires: Annotated[AwareDatetime | None, BeforeValidator(_read_moment)] = None
    """When the key ceases to work: 2027-01-01 or 2027-01-01T00:00:00Z; without a zone, in UTC."""
    ips: tuple[Network, ...] = ()
    """Networks from which the key may be used; default: everywhere."""
    max_parallel: Positive | None = None
    """Calls under way at once."""
    limits: Limits = Limits()
    """Stricter limits for this key."""
    quotas: tuple[Quota, ...] = ()
    """What this key may spend."""
    on_exceeded: Literal["deny", "shadow"] = "deny"
    """deny, or shadow: count and report, never block."""
    priority: Literal["interactive", "normal", "batch"] = "normal"
    """Class of its calls where calls wait: an interactive one has 16 times, a normal one 4 times the share of batch."""
    weight: Annotated[int, _not_bool, Field(ge=1, le=1000)] = 1
    """Share of the key where calls wait, beside other keys of its class."""
    max_wait_s: Seconds | None = None
    """How long its calls may wait for room at an upstream; default: as the model and queue.max_wait_s say."""
    owner: Annotated[str, Field(min_length=1, max_length=MAX_PERSON), AfterValidator(_one_line)] | None = None
    """The person whose key it is: the e-mail address or name that the sign-in gives."""
    note: Annotated[str, Field(max_length=1000), AfterValidator(_one_line)] | None = None
    """Text for people."""
    labels: Annotated[dict[str, LabelValue], AfterValidator(_few_labels)] = {}
    """Names and values for reports, such as cost-center: x; 16 at most."""


class FileKey(KeySettings):
    """A key in the file."""

    secret: Secret | None = None
    """What the client presents; at least 24 characters."""
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


class AlertSettings(Section):
    webhook: SecretStr | None = None
    """Address to POST to at 80 % and 100 % of a quota of a day, week or month; null: a log line and a metric alone."""
    proxy: Annotated[SecretStr | None, AfterValidator(_proxy_address)] = None
    """The proxy to it, as upstreams.NAME.proxy."""

    @property
    def way(self) -> Proxy | None:
        """The proxy through which the webhook is reached; None: directly."""
        return read_proxy(self.proxy.get_secret_value()) if self.proxy is not None else None

    @property
    def shown_webhook(self) -> str:
        """Its scheme and host, for all else of it may be a secret; empty where there is none."""
        if self.webhook is None:
            return ""
        parts = urlsplit(self.webhook.get_secret_value())
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @field_validator("webhook")
    @classmethod
    def _is_http_address(cls, webhook: SecretStr | None) -> SecretStr | None:
        if webhook is not None and not _is_http(webhook.get_secret_value()):
            raise ValueError("expected an address like https://hooks.example.com/services/..., http or https")
        return webhook


def _has_exporter() -> bool:
    """Whether the packages of the extra `otel` are there; none is loaded for this."""
    try:
        return all(find_spec(f"opentelemetry.{part}") is not None for part in ("sdk", "exporter.otlp.proto.http"))
    except ImportError:
        return False


class TracingSettings(Section):
    endpoint: str | None = None
    """Address of an OpenTelemetry collector that takes OTLP over HTTP, such as http://localhost:4318; null is off."""
    sample_ratio: Annotated[float, _not_bool, Field(ge=0, le=1)] = 1.0
    """Share of the calls that are traced, where the client does not say itself whether its call is."""
    headers: dict[str, SecretStr] = {}
    """Added to what is sent to the collector, for instance a token."""

    @field_validator("endpoint")
    @classmethod
    def _can_be_used(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        if not _is_http(endpoint) or urlsplit(endpoint).query or urlsplit(endpoint).username is not None:
            raise ValueError("expected an address like http://localhost:4318, without user or query")
        if not _has_exporter():
            raise ValueError("needs packages that are not installed: pip install 'completions-gateway[otel]'")
        return endpoint

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        return _plain_headers(headers, _FRAMING)

    @property
    def address(self) -> str:
        """Where traces go: the path that the protocol gives them, unless the endpoint has it already."""
        base = (self.endpoint or "").rstrip("/")
        return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


class KeyDefaults(Section):
    """What a key has that is made while the gateway runs, where its maker says nothing else."""

    models: tuple[str, ...] = ("*",)
    """Patterns of the models that a new key may use."""
    expires_after_s: SomeSeconds | None = None
    """For how many seconds a new key works; null: for ever."""
    max_parallel: Positive | None = None
    """Calls of a new key under way at once."""
    limits: Limits = Limits()
    """Stricter limits for a new key."""
    quotas: tuple[Quota, ...] = ()
    """What a new key may spend."""


class Defaults(Section):
    models: ModelSettings = ModelSettings()
    """Settings of every model that does not have them itself."""
    keys: KeyDefaults = KeyDefaults()
    """Settings of keys that are made by command or by the admin API; keys of the file have none of them."""


Priority = Literal["interactive", "normal", "batch"]
"""Classes of waiting calls, the most urgent first."""


class QueueSettings(Section):
    """Calls that wait for room at an upstream with limits, instead of being refused."""

    max_wait_s: Seconds = 0
    """How long a call may wait where no route has room; 0: it is refused at once."""
    max_calls: Positive = 1000
    """Calls of one worker that may wait at once; beyond, the flow with the most waiting work gives up its last one."""
    max_bytes: Positive = 67108864
    """Bytes of their requests that may wait at once in one worker."""
    by: Literal["key", "team"] = "key"
    """Who shares fairly: keys, or teams with all of their keys."""


def _is_option(name: str) -> str:
    if not (name.isidentifier() or is_pointer(name)):
        raise ValueError("expected a name in braces of the path, such as kind, or a JSON pointer, such as /mode")
    return name


def _is_pointer(name: str) -> str:
    if not is_pointer(name):
        raise ValueError("expected a JSON pointer, such as /data/task_id")
    return name


def _is_reference(text: str) -> str:
    read_reference(text)
    return text


def _is_operation(text: str) -> str:
    read_operation(text)
    return text


def _read_texts(value: Any) -> Any:
    values = value if isinstance(value, list | tuple) else [value]
    if not values or any(each is not None and not isinstance(each, str | int | float) for each in values):
        raise ValueError("expected a text, a number, true or false, or a list of them")
    return tuple([format_value(each) for each in values])


_WITHHELD = frozenset({
    "authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "host", "connection",
    "content-length", "content-encoding", "transfer-encoding", "te", "trailer", "upgrade", "expect",
})  # fmt: skip
"""Headers with the client's key, and those of one connection."""

Option = Annotated[str, AfterValidator(_is_option)]
Pointer = Annotated[str, AfterValidator(_is_pointer)]
ReferenceText = Annotated[str, AfterValidator(_is_reference)]
OperationText = Annotated[str, AfterValidator(_is_operation)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_read_texts)]


class TaskPrice(Section):
    """What a submission costs whose options are these: USD for each task, second or image."""

    when: dict[Option, Texts] = {}
    """The options and the texts that they may have, with * for any characters; '' is an option that is not there."""
    task: Usd | None = None
    """USD per task."""
    second: Usd | None = None
    """USD per second, of which `count` says how many."""
    image: Usd | None = None
    """USD per image, of which `count` says how many."""
    count: Option | None = None
    """The option with the number of seconds, images or tasks; default: one."""
    default: Positive | None = None
    """That number where the request does not say; default: then the price does not apply."""

    @model_validator(mode="after")
    def _has_one_unit(self) -> Self:
        if len(self.model_fields_set & {"task", "second", "image"}) != 1:
            raise ValueError("expected one of task, second and image")
        if self.count is None and (self.default is not None or self.second is not None):
            raise ValueError("count is required: the option with the number")
        return self

    @cached_property
    def unit(self) -> str:
        """What is counted, by its name in `units.UNITS`."""
        return "seconds" if self.second is not None else "images" if self.image is not None else "tasks"

    @cached_property
    def price(self) -> Price:
        """The price of that unit."""
        return Price.model_validate(
            {name: usd for name in ("task", "second", "image") if (usd := getattr(self, name)) is not None}
        )


class Passthrough(Section):
    """One API of tasks that is passed on by its row alone."""

    upstream: str
    """Name of an upstream; its base URL is without the prefix of the row."""
    prefix: Annotated[str, Field(pattern=r"^(/[\w.~-]+)*$")] = ""
    """Beginning of the paths that clients ask for."""
    upstream_prefix: Annotated[str, Field(pattern=r"^(/[\w.~-]+)*$")] | None = None
    """What stands in its place at the upstream; default: the same."""
    submit: Annotated[tuple[OperationText, ...], Field(min_length=1)]
    """Operations that are paid: POST /v1/videos/{kind}."""
    read: tuple[OperationText, ...] = ()
    """Operations on one task, which cost nothing: GET /v1/tasks/{task}; the first one is how the gateway polls."""
    headers: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")], ...] = ()
    """Further request headers that are sent on."""
    model: Option | None = None
    """The option that names the model; default: the row has one model, of the row's name."""
    default_model: Annotated[str, Field(min_length=1)] | None = None
    """The model where the request names none; default: the request is refused."""
    refers: tuple[ReferenceText, ...] = ()
    """Where a submission names earlier tasks, which have to be the same key's: /taskId, in a text /content={task} *."""
    accepted: dict[Pointer, Texts] = {}
    """What the answer to a submission says if it is paid; default: that it has an id, where the row has tasks."""
    task: Pointer | None = None
    """Where the answer to a submission has the id of the task; default: it is the whole result."""
    done: dict[Pointer, Texts] = {}
    """What the answer about a task says when it has ended and is paid."""
    failed: dict[Pointer, Texts] = {}
    """What it says when it has ended and is not paid."""
    also: tuple[Pointer, ...] = ()
    """Where the answer about a task has further ids, such as of files, that are read like tasks."""
    links: tuple[Pointer, ...] = ()
    """Where answers have addresses of the upstream; they become the gateway's own of a read, else null."""
    lists: tuple[OperationText, ...] = ()
    """Operations that list tasks: refused, because an upstream lists those of all keys."""
    callbacks: bool = False
    """Whether a submission may name an address that the upstream calls."""
    prices: tuple[TaskPrice, ...] = ()
    """What submissions cost: the first one whose options match."""
    unpriced: Literal["deny", "allow"] = "deny"
    """Without a price under a USD quota: deny (403 model_not_priced), or allow, and nothing is drawn on that quota."""

    @field_validator("headers")
    @classmethod
    def _no_secrets(cls, headers: tuple[str, ...]) -> tuple[str, ...]:
        if withheld := _WITHHELD.intersection(map(str.lower, headers)):
            raise ValueError(f"{min(withheld)} is never sent on")
        return headers

    @cached_property
    def forwarded(self) -> frozenset[str]:
        """The names of `headers` in lower case."""
        return frozenset(map(str.lower, self.headers))

    @cached_property
    def submissions(self) -> tuple[TaskOperation, ...]:
        """The operations of `submit`."""
        return tuple(map(read_operation, self.submit))

    @cached_property
    def reads(self) -> tuple[TaskOperation, ...]:
        """The operations of `read`."""
        return tuple(map(read_operation, self.read))

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """Those of `refers`."""
        return tuple(map(read_reference, self.refers))

    @cached_property
    def listings(self) -> tuple[TaskOperation, ...]:
        """The operations of `lists`."""
        return tuple(map(read_operation, self.lists))

    def at_upstream(self, path: str) -> str:
        """Where a path below the prefix is at the upstream."""
        return (self.prefix if self.upstream_prefix is None else self.upstream_prefix) + path


class PriceSettings(Section):
    file: Annotated[str, Field(min_length=1)] | None = None
    """File that gateway prices update writes; while it is there, its table is used instead of the package's."""


def _refuse_from(models: Any) -> Any:
    if isinstance(models, dict) and isinstance(names := models.get("from"), str | list):
        listed = names if isinstance(names, str) else ", ".join(map(str, names))
        raise ValueError(
            f"from is no model; to serve what {listed} lists, set discover: true beside base_url of that upstream"
        )
    return models


class RecordSettings(Section):
    user: bool = True
    """Whether records and reports contain the user that a client names; the upstream gets it either way."""
    tags: bool = True
    """Whether records and reports contain the tags of a client."""


class Config(Section):
    """The whole file."""

    server: ServerSettings = ServerSettings()
    """Where and how to serve."""
    uploads: UploadSettings = UploadSettings()
    """Multipart forms."""
    files: FileSettings = FileSettings()
    """Files that an upstream keeps for clients."""
    store: StoreSettings = StoreSettings()
    """What outlives a request."""
    admin: AdminSettings = AdminSettings()
    """The admin API."""
    oidc: OidcSettings | None = None
    """Sign-in of people by OpenID Connect."""
    jwt: JwtSettings | None = None
    """Signed tokens of an identity provider in place of API keys."""
    records: RecordSettings = RecordSettings()
    """What is kept of a call beside its numbers."""
    metrics: MetricsSettings = MetricsSettings()
    """/metrics."""
    upstreams: Annotated[dict[str, Upstream], Field(min_length=1)]
    """Where calls can go, by name."""
    defaults: Defaults = Defaults()
    """What models and new keys have where they say nothing."""
    models: Annotated[dict[str, Model], BeforeValidator(_refuse_from)] = {}
    """What clients may ask for, by name or by pattern: gpt-4o*; "*" is every other model."""
    prices: PriceSettings = PriceSettings()
    """The price table."""
    aliases: dict[str, str] = {}
    """Further names of models: {fast: gpt-4o-mini}."""
    passthrough: dict[str, Passthrough] = {}
    """APIs of tasks, by name."""
    queue: QueueSettings = QueueSettings()
    """Waiting for room at upstreams."""
    quotas: tuple[Quota, ...] = ()
    """What the whole gateway may spend."""
    teams: dict[str, Team] = {}
    """Teams, by name."""
    keys: tuple[FileKey, ...] = ()
    """Keys of clients."""
    alerts: AlertSettings = AlertSettings()
    """The receiver of alerts."""
    tracing: TracingSettings = TracingSettings()
    """Where traces of calls go."""

    @cached_property
    def model_table(self) -> ModelTable:
        """What serves each name that a client may ask for."""
        return ModelTable(self.models, self.aliases)

    @property
    def labelled_models(self) -> list[str]:
        """The models that have a label before they are used: all, or none where they are too many."""
        names = [name for name in self.models if not is_pattern(name)]
        return names if len(names) <= self.metrics.max_models else []

    @property
    def has_admin_api(self) -> bool:
        """Whether anybody can use the admin API."""
        return self.admin.is_on or self.oidc is not None

    def model(self, name: str) -> NamedModel | None:
        """What serves this model name, or None where it is not offered."""
        return self.model_table.find(name)


def is_expired(expires: datetime | None, now: float) -> bool:
    """Whether a key with this expiry is over at the Unix time `now`."""
    return expires is not None and now >= expires.timestamp()
