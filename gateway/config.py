"""Settings: text and environment in, a frozen `Config` or every fault at once out.

This module only parses. `resolve` turns YAML and its `${...}` references into plain values, `build` checks them; the
two are apart because the supervisor resolves once and hands the plain values to its workers, who build the same
`Config` without looking at the file or the environment again.

Unknown names are faults, because a misspelt limit is not "no limit"; so is a setting that does not work yet, unless it
is given the value that asks for nothing. Each field carries its default and one sentence (`description`).
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, cast
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

# ---------------------------------------------------------------------------------------------------------- faults


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One mistake: where it stands in the file, and what to do about it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """The configuration cannot be used. `faults` holds every mistake that was found, not only the first."""

    def __init__(self, faults: list[ConfigFault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


# ----------------------------------------------------------------------------------------------------- field types


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


_not_bool = BeforeValidator(_refuse_bool)
Count = Annotated[int, _not_bool, Field(ge=0, le=2**53 - 1)]
Positive = Annotated[int, _not_bool, Field(ge=1, le=2**53 - 1)]
Seconds = Annotated[float, _not_bool, Field(ge=0, allow_inf_nan=False)]
SomeSeconds = Annotated[float, _not_bool, Field(gt=0, allow_inf_nan=False)]


def pending(what: str, *off: Any) -> AfterValidator:
    """Refuse a setting that does not work yet, unless it has a value that asks for nothing."""

    def refuse(value: Any) -> Any:
        if value not in off:
            raise ValueError(f"{what} does not work yet; leave this setting out")
        return value

    return AfterValidator(refuse)


class Section(BaseModel):
    """A part of the file: frozen, unknown names refused, input never echoed in an error (it may be a secret)."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


# -------------------------------------------------------------------------------------------------------- sections


class Server(Section):
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, _not_bool, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes a free one and prints it."""
    workers: Annotated[int, _not_bool, Field(ge=1, le=64)] = 1
    """Worker processes that share the port; one per core is a good number."""
    max_request_bytes: Positive = 26214400
    """A longer request body is refused with 413, on its announced length already."""
    max_response_bytes: Positive = 67108864
    """A longer answer that is not streamed is refused with 502."""
    max_buffered_bytes: Annotated[Positive, pending("a budget of buffered bytes", 536870912)] = 536870912
    """All request and non-streamed answer bytes held at once."""
    client_head_timeout_s: Annotated[SomeSeconds, pending("a time limit on request heads", 10)] = 10
    """How long a request head may take."""
    client_body_timeout_s: SomeSeconds = 60
    """How long a whole request body may take, however it trickles; then 408."""
    max_in_flight: Annotated[Positive, pending("a limit of calls in flight", 10000)] = 10000
    """Calls under way at once, all workers together."""
    drain_delay_s: Seconds = 5
    """After SIGTERM: not ready, still serving, for this long. SIGINT does not wait."""
    drain_timeout_s: Seconds = 120
    """Then no new calls; running ones may end for this long."""
    keepalive_comment_s: Annotated[Seconds, pending("keep-alive comments", 0)] = 0
    """Send a comment to streaming clients after this much silence; 0 is off."""
    trusted_proxies: Annotated[tuple[str, ...], pending("X-Forwarded-For", ())] = ()
    """Whose X-Forwarded-For counts."""
    access_log: Literal["json", "text", "off"] = "json"
    """One line per call on standard output; never prompts, never secrets."""


def _embedded_only(url: str) -> str:
    scheme, _, folder = url.partition(":")
    if scheme in ("redis", "rediss", "redis+sentinel", "redis+cluster"):
        raise ValueError("the Redis store does not work yet; use embedded:FOLDER")
    if scheme != "embedded" or not folder or folder.startswith("//"):
        raise ValueError("expected embedded:FOLDER, for instance embedded:./gateway-data")
    return url


class Store(Section):
    url: Annotated[str, AfterValidator(_embedded_only)] = "embedded:./gateway-data"
    """Where keys, quotas and usage live: embedded:FOLDER."""
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] = "gateway"
    """The name of the ledger; gateways that share it share quotas."""
    journal_dir: Annotated[str, pending("the usage journal", "./gateway-journal")] = "./gateway-journal"
    """Usage that is not yet delivered to the store."""
    on_outage: Annotated[Literal["deny", "allow"], pending("serving while the store is away", "deny")] = "deny"
    """deny: 503 while the store is away."""
    outage_share: Annotated[float, _not_bool, pending("outage_share", 0.1)] = 0.1
    """With on_outage: allow, the share of each limit that each worker may spend alone."""
    outage_max_s: Annotated[Seconds, pending("outage_max_s", 900)] = 900
    """With on_outage: allow, for how long at most."""
    usage_records_max: Positive = 1000000
    """The newest usage records that are kept; daily sums stay for sums_days."""
    sums_days: Annotated[int, _not_bool, Field(ge=1, le=36500)] = 800
    """For how many days the daily sums are kept."""

    @property
    def folder(self) -> Path:
        """The embedded store's folder."""
        return Path(self.url.partition(":")[2])


class Admin(Section):
    token: SecretStr | None = None
    """Bearer token of the admin API; without one there is no admin API."""
    viewer_token: Annotated[SecretStr | None, pending("a viewer token", None)] = None
    """May read reports, nothing else."""
    listen: Annotated[str | None, pending("a listener of its own for admin and metrics", None)] = None
    """host:port of its own for admin and metrics."""

    @field_validator("token")
    @classmethod
    def _long_enough(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < 16:
            raise ValueError("a token needs at least 16 characters")
        return token


class Metrics(Section):
    token: SecretStr | None = None
    """Bearer token for /metrics; null leaves it open."""
    max_keys: Count = 200
    """Keys with a label of their own in metrics; the rest is "other"."""


class Timeouts(Section):
    connect_s: SomeSeconds = 5
    """Until a connection stands, TLS included; also the longest wait for a free one."""
    head_s: SomeSeconds = 60
    """From sending the request until the whole head of the answer is there."""
    idle_s: SomeSeconds = 60
    """The longest silence inside an answer."""
    total_s: SomeSeconds = 600
    """The whole attempt."""


class Capabilities(Section):
    """What an upstream does differently from OpenAI."""

    stream_usage: bool = True
    """Whether stream_options.include_usage may be sent."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"
    """The field in which this upstream knows a chat output limit that the gateway adds."""
    completions: Annotated[bool | Literal["via_chat"], pending("capabilities.completions", True)] = True
    chat: Annotated[bool, pending("capabilities.chat", True)] = True
    embeddings: Annotated[bool, pending("capabilities.embeddings", True)] = True
    logprobs: Annotated[bool, pending("capabilities.logprobs", True)] = True
    best_of: Annotated[bool, pending("capabilities.best_of", True)] = True
    echo: Annotated[bool, pending("capabilities.echo", True)] = True
    suffix: Annotated[bool, pending("capabilities.suffix", True)] = True
    prompt_arrays: Annotated[bool, pending("capabilities.prompt_arrays", True)] = True
    token_prompts: Annotated[bool, pending("capabilities.token_prompts", True)] = True


def _visible_ascii(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None and not re.fullmatch(r"[\x21-\x7e]+", secret.get_secret_value()):
        raise ValueError("expected visible ASCII characters without spaces")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_visible_ascii)]

# Names that the gateway writes itself, or that would change how the message is framed.
_OWN_HEADERS = frozenset({
    "authorization", "host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding",
    "expect", "te", "trailer", "upgrade", "keep-alive", "proxy-authorization", "proxy-connection",
})  # fmt: skip


class Upstream(Section):
    base_url: str
    """Address of the API, version included: https://api.openai.com/v1."""
    api_key: Secret | None = None
    """Bearer key that the gateway presents; null sends none."""
    api_keys: Annotated[tuple[Secret, ...], pending("several API keys for one upstream", ())] = ()
    """Several keys, used in turn."""
    headers: dict[str, SecretStr] = {}
    """Added to every request, for instance OpenAI-Organization."""
    proxy: Annotated[SecretStr | None, pending("a proxy", None)] = None
    """http://user:pw@proxy:3128, by CONNECT."""
    ca_file: str | None = None
    """PEM file with the certificate authorities to trust, instead of the system's."""
    timeouts: Timeouts = Timeouts()
    """Time limits of an attempt, in seconds."""
    max_connections: Positive = 1000
    """Connections of the whole gateway, split over its workers; a call waits for one at most connect_s."""
    max_connection_age_s: SomeSeconds = 300
    """A connection older than this is not used again, so that changes of DNS count."""
    on_disconnect: Annotated[Literal["cancel", "drain"], pending("on_disconnect: drain", "cancel")] = "cancel"
    """Streams whose client left: cancel the upstream."""
    drain_limit_s: Annotated[Seconds, pending("drain_limit_s", 30)] = 30
    """With drain, for how long at most."""
    probe_s: Annotated[Seconds, pending("active probing", 0)] = 0
    """Interval of active probes; 0 is off."""
    capabilities: Capabilities = Capabilities()
    """Where this upstream differs from OpenAI."""

    @field_validator("base_url")
    @classmethod
    def _is_http_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good or re.search(r"[^\x21-\x7e]", url):
            raise ValueError("expected an address like https://api.openai.com/v1")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("expected an address without user, query or fragment; the key belongs in api_key")
        return url.rstrip("/")

    @field_validator("headers")
    @classmethod
    def _are_plain_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
                raise ValueError(f"{name!r} is not a header name")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"{name!r} is written by the gateway itself and cannot be set here")
            if not re.fullmatch(r"[\x20-\x7e]*", value.get_secret_value()):
                raise ValueError(f"the value of {name!r} holds characters that no header may hold")
        return headers

    @field_validator("ca_file")
    @classmethod
    def _is_readable(cls, path: str | None) -> str | None:
        if path is not None and not Path(path).is_file():
            raise ValueError(f"there is no file {path!r}")
        return path


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
    deny: tuple[str, ...] = ()
    """Parameters that are refused by name."""


class Route(Section):
    upstream: str
    """Name of an upstream."""
    model: str | None = None
    """Name under which that upstream knows the model; default: the name the client used."""
    priority: Annotated[int, _not_bool] = 1
    """Lower is tried first."""
    weight: Positive = 1
    """Share within one priority."""


EndpointName = Literal["completions", "chat", "embeddings"]


class Model(Section):
    endpoints: tuple[EndpointName, ...] = ("completions", "chat", "embeddings")
    """The endpoints that serve this model; default: whatever the upstream takes."""
    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    """Where calls for this model go."""
    max_attempts: Annotated[int, _not_bool, Field(ge=1, le=10)] = 3
    """How often one call may be tried in all."""
    repeat_when_waiting: bool = False
    """Whether a call that was sent and not answered may be sent again."""
    max_output_tokens: Positive | None = None
    """What a chat call without a limit is taken to want; needed where a token quota can apply."""
    limits: Limits = Limits()
    """Stricter limits for this model."""
    price: Annotated[dict[str, float] | None, pending("a price", None)] = None
    """USD per million tokens."""
    unpriced: Annotated[Literal["deny", "allow"], pending("unpriced", "deny")] = "deny"
    """What happens without a price under a USD quota."""

    @field_validator("routes")
    @classmethod
    def _one_route(cls, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        if len(routes) > 1:
            raise ValueError("several routes for one model do not work yet; keep one")
        return routes


Per = Literal["second", "minute", "hour", "day", "month"]
PER_SECONDS: Mapping[str, int] = {"second": 1, "minute": 60, "hour": 3600}


class Quota(Section):
    """How much of one unit may be spent in one window."""

    requests: Positive | None = None
    """Number of calls."""
    tokens: Positive | None = None
    """Number of prompt and completion tokens."""
    usd: Annotated[float | None, pending("a quota in USD", None)] = None
    """Money in US dollars."""
    per: Per | Positive
    """second, minute, hour, day, month, or a number of seconds; day and month are calendar windows in UTC."""
    model: str | None = None
    """Pattern of the models that this quota counts; default: all."""

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if (self.requests is None) == (self.tokens is None):
            raise ValueError("expected exactly one of requests, tokens")
        return self

    @property
    def unit(self) -> Literal["requests", "tokens"]:
        return "tokens" if self.requests is None else "requests"

    @property
    def limit(self) -> int:
        """In units: requests or tokens."""
        return self.requests or self.tokens or 0

    @property
    def per_s(self) -> int | None:
        """Seconds over which a rate refills; None for a calendar window."""
        return PER_SECONDS.get(self.per) if isinstance(self.per, str) else self.per

    def covers(self, model: str) -> bool:
        """Whether calls for this model count."""
        return self.model is None or fnmatchcase(model, self.model)


class Team(Section):
    quotas: tuple[Quota, ...] = ()
    """What the whole team may spend."""


class FileKey(Section):
    """A key in the file."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
    """Public name of the key, never used again for another: in logs, metrics, reports."""
    secret: Secret | None = None
    """What the client presents; at least 24 characters."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    """SHA-256 of the secret in hex, instead of the secret."""
    team: str | None = None
    """Name of a team."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the models that this key may use."""
    expires: AwareDatetime | None = None
    """When the key ceases to work, with a time zone: 2027-01-01T00:00:00Z."""
    ips: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks from which the key may be used; default: everywhere."""
    max_parallel: Positive | None = None
    """Calls under way at once."""
    limits: Limits = Limits()
    """Stricter limits for this key."""
    quotas: tuple[Quota, ...] = ()
    """What this key may spend."""
    on_exceeded: Literal["deny", "shadow"] = "deny"
    """deny, or shadow: count and report, never block."""

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if (self.secret is None) == (self.sha256 is None):
            raise ValueError("expected exactly one of secret, sha256")
        if self.secret is not None and len(self.secret.get_secret_value()) < 24:
            raise ValueError("a secret needs at least 24 characters")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the secret: all that is needed to recognise it."""
        if self.secret is not None:
            return hashlib.sha256(self.secret.get_secret_value().encode()).digest()
        return bytes.fromhex(self.sha256 or "")


class Alerts(Section):
    webhook: Annotated[SecretStr | None, pending("an alert webhook", None)] = None
    """Address to POST to at 80 % and 100 % of a quota."""


class Config(Section):
    """The whole file."""

    server: Server = Server()
    """Where and how to serve."""
    store: Store = Store()
    """What outlives a request."""
    admin: Admin = Admin()
    """The admin API."""
    metrics: Metrics = Metrics()
    """/metrics."""
    upstreams: Annotated[dict[str, Upstream], Field(min_length=1)]
    """Where calls can go, by name."""
    models: Annotated[dict[str, Model], Field(min_length=1)]
    """What clients may ask for, by name; "*" is every other model."""
    quotas: tuple[Quota, ...] = ()
    """What the whole gateway may spend."""
    teams: dict[str, Team] = {}
    """Teams, by name."""
    keys: tuple[FileKey, ...] = ()
    """Keys of clients."""
    alerts: Alerts = Alerts()
    """Who is told."""

    def model(self, name: str) -> Model | None:
        """The settings that serve this model name, or None where it is not offered."""
        return self.models.get(name) or self.models.get("*")


# --------------------------------------------------------------------------------------------------------- parsing


class _Loader(yaml.SafeLoader):
    """YAML in which a name given twice is a fault, and a date stays text until its field is known."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for name_node, _ in node.value:
        if name_node.tag == "tag:yaml.org,2002:merge":
            continue
        name = loader.construct_object(name_node)
        if not isinstance(name, str | int | float | bool):
            continue
        if name in seen:
            problem = f"{name!r} is given twice, the second time"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=name_node.start_mark)
        seen.add(name)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)

_REFERENCE = re.compile(
    r"\$\{(?:file:(?P<file>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?)\}|(?P<broken>\$\{)"
)


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").rstrip("\r\n")


def resolve(text: str, env: Mapping[str, str], read_file: Callable[[str], str] = _read_text) -> dict[str, Any]:
    """Turn the file's text into plain values, each `${...}` replaced.

    Raises `ConfigError` with every reference that leads nowhere, or with the place where the YAML is broken.
    """
    references = _References(env, read_file)
    resolved = references.replace_in(_load(text), ())
    if references.faults:
        # A missing reference leaves an empty string, whose own fault would only repeat this one.
        known = {fault.path for fault in references.faults}
        try:
            build(resolved)
        except ConfigError as error:
            references.faults += [fault for fault in error.faults if fault.path not in known]
        raise ConfigError(references.faults)
    return cast("dict[str, Any]", resolved)


def _load(text: str) -> dict[Any, Any]:
    try:
        values = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        problem = str(error.problem or error.context)
        if problem.startswith(("found undefined alias", "could not determine a constructor")):
            problem = "text that begins with * or ! has to be in quotes"  # the parser would show it: it may be a secret
        raise ConfigError([ConfigFault("", f"not valid YAML at {where}: {problem}")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([ConfigFault("", f"not valid YAML: {type(error).__name__}")]) from None
    if not isinstance(values, dict):
        raise ConfigError([ConfigFault("", "expected settings as 'name: value' lines, such as 'upstreams:'")])
    return values


class _References:
    """Replaces `${...}` in plain values, and keeps the faults of those that lead nowhere."""

    def __init__(self, env: Mapping[str, str], read_file: Callable[[str], str]) -> None:
        self._env = env
        self._read_file = read_file
        self.faults: list[ConfigFault] = []

    def replace_in(self, value: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, dict):
            for name in value:
                if not isinstance(name, str):
                    self.faults.append(ConfigFault(spell(path), f"the name {name!r} has to be text: put it in quotes"))
            return {str(name): self.replace_in(item, (*path, str(name))) for name, item in value.items()}
        if isinstance(value, list):
            return [self.replace_in(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, str):
            return _REFERENCE.sub(lambda match: self._value_of(match, spell(path)), value)
        if value is not None and not isinstance(value, int | float):  # !!binary, !!timestamp and the like
            self.faults.append(ConfigFault(spell(path), "expected text or a number; put the value in quotes"))
            return ""
        return value

    def _value_of(self, match: re.Match[str], path: str) -> str:
        if match["broken"]:
            forms = "${NAME}, ${NAME:-default} or ${file:/path}"
            self.faults.append(ConfigFault(path, f"'${{' begins none of {forms}"))
        elif match["file"]:
            try:
                return self._read_file(match["file"])
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
                self.faults.append(ConfigFault(path, f"cannot read {match['file']!r}: {reason}"))
        elif match["default"] is not None:
            return self._env.get(match["name"]) or match["default"]  # as in a shell: also where it is empty
        elif (value := self._env.get(match["name"])) is not None:
            return value
        else:
            self.faults.append(ConfigFault(path, f"the environment variable {match['name']} is not set"))
        return ""


def build(values: Mapping[str, Any]) -> Config:
    """Check plain values. Raises `ConfigError` with every fault."""
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        found = dict.fromkeys(_explain(detail) for detail in error.errors(include_url=False))
        paths = {fault.path for fault in found}
        between = [fault for fault in _cross_check(_Parts.sound_in(values)) if fault.path not in paths]
        raise ConfigError([*found, *between]) from None
    if faults := list(_cross_check(_Parts.of(config))):
        raise ConfigError(faults)
    return config


def parse(text: str, env: Mapping[str, str]) -> Config:
    """`resolve` and `build` in one step. Raises `ConfigError` with every fault."""
    return build(resolve(text, env))


def spell(path: tuple[str | int, ...]) -> str:
    """A path as a person would point at it: keys[0].limits.n, models."gpt-4.1".routes[0]."""
    spelt = ""
    for part in path:
        if isinstance(part, int):
            spelt += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w-]+", part) else f'"{part}"'
            spelt += f".{name}" if spelt else name
    return spelt


def _names_at(path: tuple[str | int, ...]) -> list[str]:
    """The settings that exist at this place of the file."""
    at: Any = Config
    for part in path:
        if not (isinstance(at, type) and issubclass(at, BaseModel)) or part not in at.model_fields:
            continue  # an index, or a name that the operator chose
        found = re.search(r"\.([A-Z]\w+)", str(at.model_fields[str(part)].annotation))
        at = globals().get(found[1]) if found else None
        if at is None:
            return []
    return list(at.model_fields) if isinstance(at, type) and issubclass(at, BaseModel) else []


def _explain(detail: Any) -> ConfigFault:
    """One pydantic error in an operator's words. Never shows the value, which may be a secret."""
    # pydantic names the arm of a union in the path ("int", "literal[...]"); the file has no such level.
    is_arm = re.compile(r"^(?:constrained-|literal\[|function-|lax-or-strict|int$|float$|str$|bool$|ipv[46]network$)")
    path = tuple(p for p in detail["loc"] if isinstance(p, int) or not is_arm.match(p))
    match detail["type"]:
        case "extra_forbidden":
            close = difflib.get_close_matches(str(path[-1]), _names_at(path[:-1]), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            message = f"there is no such setting{hint}"
        case "missing":
            message = "is required"
        case "string_type":
            message = "expected text; put the value in quotes"
        case "value_error":
            message = str(detail["ctx"]["error"])
        case "dict_type" | "model_type" | "model_attributes_type":
            message = "expected settings as 'name: value' lines"
        case "timezone_aware":
            message = "expected a time with its zone, such as 2027-01-01T00:00:00Z"
        case _:
            message = detail["msg"].replace("Input should be", "expected").replace("String should", "expected to")
    return ConfigFault(spell(path), message)


S = TypeVar("S", bound=Section)
K = TypeVar("K")
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is checked against each other. Lists are by index, because some of their items may be missing."""

    upstreams: Sequence[str]
    models: Mapping[str, Model]
    teams: Mapping[str, Mapping[int, Quota]]
    keys: Mapping[int, FileKey]
    quotas: Mapping[int, Quota]

    @classmethod
    def of(cls, config: Config) -> _Parts:
        return cls(
            upstreams=list(config.upstreams),
            models=config.models,
            teams={name: dict(enumerate(team.quotas)) for name, team in config.teams.items()},
            keys=dict(enumerate(config.keys)),
            quotas=dict(enumerate(config.quotas)),
        )

    @classmethod
    def sound_in(cls, values: Mapping[str, Any]) -> _Parts:
        """Those of plain values that are sound by themselves, so that all faults are told at once.

        Of an upstream and a team the name is enough: what refers to one is right, whatever is wrong inside.
        """
        teams = _named(values, "teams")
        return cls(
            upstreams=list(_named(values, "upstreams")),
            models=_sound(Model, _named(values, "models")),
            teams={name: _sound(Quota, _listed(team, "quotas")) for name, team in teams.items()},
            keys=_sound(FileKey, _listed(values, "keys")),
            quotas=_sound(Quota, _listed(values, "quotas")),
        )


def _named(values: Any, name: str) -> dict[str, Any]:
    found = values.get(name) if isinstance(values, Mapping) else None
    return found if isinstance(found, dict) else {}


def _listed(values: Any, name: str) -> dict[int, Any]:
    found = values.get(name) if isinstance(values, Mapping) else None
    return dict(enumerate(found)) if isinstance(found, list) else {}


def _sound(kind: type[S], parts: Mapping[K, Any]) -> dict[K, S]:
    sound = {}
    for place, part in parts.items():
        try:
            sound[place] = kind.model_validate(part)
        except ValidationError:
            continue
    return sound


def _quota_lists(parts: _Parts) -> Iterator[tuple[Place, Mapping[int, Quota], tuple[str, ...]]]:
    """Every list of quotas with its path and the model patterns of whoever it binds."""
    yield ("quotas",), parts.quotas, ("*",)
    for name, quotas in parts.teams.items():
        yield ("teams", name, "quotas"), quotas, ("*",)
    for number, key in parts.keys.items():
        yield ("keys", number, "quotas"), dict(enumerate(key.quotas)), key.models


def _cross_check(parts: _Parts) -> Iterator[ConfigFault]:
    """What no single field can know."""
    yield from _check_models(parts)
    yield from _check_keys(parts)
    yield from _check_quotas(parts)


def _check_models(parts: _Parts) -> Iterator[ConfigFault]:
    for name, model in parts.models.items():
        for index, route in enumerate(model.routes):
            if route.upstream not in parts.upstreams:
                known = ", ".join(parts.upstreams) or "none"
                yield ConfigFault(
                    spell(("models", name, "routes", index, "upstream")),
                    f"there is no upstream {route.upstream!r}; there are: {known}",
                )
        if "chat" in model.endpoints and model.max_output_tokens is None and (path := _token_quota(parts, name)):
            yield ConfigFault(
                spell(("models", name, "max_output_tokens")),
                f"is required, because {spell(path)} counts the tokens of this model's chat calls",
            )


def _token_quota(parts: _Parts, model: str) -> Place | None:
    """The first quota that counts this model's tokens."""
    for path, quotas, patterns in _quota_lists(parts):
        for index, quota in quotas.items():
            is_bound = model == "*" or (quota.covers(model) and any(fnmatchcase(model, p) for p in patterns))
            if quota.unit == "tokens" and is_bound:
                return (*path, index)
    return None


def _check_keys(parts: _Parts) -> Iterator[ConfigFault]:
    ids = Counter(key.id for key in parts.keys.values())
    secrets: dict[bytes, int] = {}
    for number, key in parts.keys.items():
        if ids[key.id] > 1:
            yield ConfigFault(spell(("keys", number, "id")), f"{key.id!r} is the id of {ids[key.id]} keys")
        if key.id == "other":
            yield ConfigFault(spell(("keys", number, "id")), "'other' is what metrics call the rest; choose another id")
        if key.team is not None and key.team not in parts.teams:
            yield ConfigFault(spell(("keys", number, "team")), f"there is no team {key.team!r} under teams")
        if (first := secrets.setdefault(key.digest, number)) != number:
            yield ConfigFault(spell(("keys", number)), f"has the same secret as {spell(('keys', first))}")


def _check_quotas(parts: _Parts) -> Iterator[ConfigFault]:
    """A window is told by owner, unit, length and models, not by its limit: two such quotas would both count in it."""
    for path, quotas, _ in _quota_lists(parts):
        seen: dict[tuple[object, ...], int] = {}
        for index, quota in quotas.items():
            if (first := seen.setdefault((quota.unit, quota.per, quota.model), index)) != index:
                yield ConfigFault(spell((*path, index)), f"counts the same as {spell((*path, first))}; keep one")


def is_expired(expires: datetime | None, now: float) -> bool:
    """Whether a key with this expiry is over at the Unix time `now`."""
    return expires is not None and now >= expires.timestamp()
