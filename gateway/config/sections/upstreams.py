"""`upstreams`: addresses, credentials, limits and abilities of the servers that the gateway forwards to."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from gateway.config.proxies import Proxy, read_proxy
from gateway.config.quantities import read_rate

from .keys import Quota
from .values import (
    CAUSES,
    NOT_BOOL,
    ONE_OR_SEVERAL,
    OWN_HEADERS,
    TRUE_IS_DEFAULTS,
    Positive,
    Seconds,
    Secret,
    Section,
    SomeSeconds,
    certificates,
    is_http,
    plain_headers,
    proxy_address,
    refuse_signs,
)


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
    """The differences of an upstream from OpenAI."""

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
    """Whether it has Gemini's /models/{model}:generateContent, and beside it countTokens and embeddings; default: \
true for Google's native API, else false."""
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

    @property
    def embed_content(self) -> bool:
        """Whether it has Gemini's embedContent: where the rest of that API is."""
        return self.generate_content

    @cached_property
    def is_all(self) -> bool:
        """Whether it accepts everything that OpenAI's completions, chat and embeddings accept."""
        able = (self.completions, self.chat, self.embeddings, self.logprobs, self.best_of, self.echo, self.suffix,
                self.prompt_arrays, self.token_prompts)  # fmt: skip
        return all(each is True for each in able) and not self.drops


def _is_rate(text: str) -> str:
    read_rate(text)
    return text


Rates = Annotated[tuple[Annotated[str, AfterValidator(_is_rate)], ...], ONE_OR_SEVERAL]


class RateLimits(Section):
    """The limits of one account at an upstream."""

    requests: Rates = ()
    """Requests, such as 500/min, or several rates: [10/s, 10000/day]. Each refills smoothly up to a burst of itself."""
    tokens: Rates = ()
    """Prompt and output tokens, such as 200000/min."""
    parallel: Positive | None = None
    """Requests under way at once."""
    reserved: Annotated[int, NOT_BOOL, Field(ge=0)] = 0
    """Places of parallel that only interactive calls take."""

    @model_validator(mode="after")
    def _leaves_a_place(self) -> Self:
        if self.reserved and self.reserved >= (self.parallel or 0):
            raise ValueError("reserved needs a larger parallel: the others get parallel less reserved places")
        return self


class UpstreamLimits(RateLimits):
    """The limits of an upstream: of the whole, of each of its API keys, of some of its models."""

    counts: Literal["used", "output_limit"] | None = None
    """Output in tokens: the one that was used, or the limit of each call; default: as its vendor does, else used."""
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
            refuse_signs(pattern)
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
OPENAI_HOST = "api.openai.com"
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
    """The settings of an upstream as in the file, with the defaults for Anthropic's and Google's APIs."""
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


class Upstream(Section):
    base_url: str
    """Address of the API, version included: https://api.openai.com/v1."""
    api_key: Secret | None = None
    """Bearer key that the gateway presents; null sends none."""
    api_keys: tuple[Secret, ...] = ()
    """Several keys instead of api_key, used in turn; a refused one is not used during its cooldown."""
    key_header: Literal["authorization", "x-api-key", "api-key", "x-goog-api-key", "x-key", "mj-api-secret"] = (
        "authorization"
    )
    """Header with the key; default: x-api-key for api.anthropic.com, x-goog-api-key for Google's native API."""
    headers: dict[str, SecretStr] = {}
    """Added to every request, for instance OpenAI-Organization."""
    proxy: Annotated[SecretStr | None, AfterValidator(proxy_address)] = None
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
    discover: Annotated[Discovery | None, TRUE_IS_DEFAULTS] = None
    """Serve the models that this upstream lists; true is every one of them."""
    quotas: tuple[Quota, ...] = ()
    """The most that the gateway spends here: usd or tokens per day, week or month, such as [100 USD/day]."""
    limits: UpstreamLimits = UpstreamLimits()
    """Its limits, counted exactly over all workers and gateways that share the store."""

    _of_host = model_validator(mode="before")(_with_defaults_of_host)

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        has_key = self.credentials != (None,) and self.key_header != "authorization"
        if has_key and any(name.lower() == self.key_header for name in self.headers):
            raise ValueError(f"the header {self.key_header} is written with api_key, and cannot be in headers too")
        return self

    @property
    def counts_output_limits(self) -> bool:
        """Whether its limits of tokens count the output limit of a call, however much it uses.

        As OpenAI's do ("Your rate limit is calculated as the maximum of max_tokens and the estimated number of
        tokens", guide "Rate limits"); Anthropic's count actual tokens
        ("OTPM rate limits are evaluated in real time as output tokens are produced", API reference "Rate limits").
        """
        if self.limits.counts is not None:
            return self.limits.counts == "output_limit"
        return urlsplit(self.base_url).hostname == OPENAI_HOST

    @property
    def lists_models(self) -> bool:
        """Whether it has a list of models at /models."""
        return True

    @property
    def way(self) -> Proxy | None:
        """The proxy through which this upstream is reached; None: directly."""
        return read_proxy(self.proxy.get_secret_value()) if self.proxy is not None else None

    @property
    def credentials(self) -> tuple[SecretStr | None, ...]:
        """The keys that are presented in turn, at least one; None is no key at all."""
        return self.api_keys or (self.api_key,)

    @field_validator("quotas")
    @classmethod
    def _are_budgets(cls, quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
        if any(quota.per_s is not None or quota.unit == "requests" for quota in quotas):
            raise ValueError("expected usd or tokens per day, week or month; rates and requests are limits: {...}")
        return quotas

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
        if not is_http(url):
            if cause := next((cause for form, cause in CAUSES[4:] if form.fullmatch(url)), ""):
                raise ValueError(f"{cause}; expected an address like https://api.openai.com/v1")
            raise ValueError("expected an address like https://api.openai.com/v1")
        parts = urlsplit(url)
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("expected an address without user, query or fragment; the key belongs in api_key")
        return url.rstrip("/")

    @field_validator("headers")
    @classmethod
    def _are_plain_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        return plain_headers(headers, OWN_HEADERS)

    @field_validator("ca_file")
    @classmethod
    def _is_readable(cls, path: str | None) -> str | None:
        return None if path is None else certificates(path)
