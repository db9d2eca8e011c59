"""`models`: routes, prices and parameters of each model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, field_validator

from gateway.config.model_names import compiled, is_pattern, most_specific_first
from gateway.spelling import compatible

from .prices import Price, without_auto
from .values import NOT_BOOL, TRUE_IS_DEFAULTS, Count, Positive, Section, SomeSeconds


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
    priority: Annotated[int, NOT_BOOL] = 1
    """Lower is tried first."""
    weight: Positive = 1
    """Share within one priority."""


EndpointName = Literal[
    "completions", "chat", "embeddings", "messages", "responses", "generate_content", "embed_content", "moderations",
    "rerank", "realtime",
]  # fmt: skip
"""Names of endpoints in a file without those of wings (`config/wings.py`)."""


class Sticky(Section):
    """Calls that belong together go to the same upstream and API key, whose prompt cache is warm."""

    by: Annotated[tuple[Literal["header", "prompt_cache_key", "prefix"], ...], Field(min_length=1)] = (
        "header", "prompt_cache_key", "prefix",
    )  # fmt: skip
    """Properties of calls that belong together: the first one that a call has counts."""
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] = "X-Gateway-Conversation"
    """Request header that names a conversation; it is not sent on."""
    prefix_bytes: Annotated[int, NOT_BOOL, Field(ge=64, le=65536)] = 1024
    """Bytes of the prompt's beginning that count, to the end of the first message of the user at most."""


class ModelSettings(Section):
    """The settings of a model, and those of `defaults.models` for all of them."""

    endpoints: tuple[EndpointName, ...] = (
        "completions", "chat", "embeddings", "messages", "responses", "generate_content", "embed_content"
    )  # fmt: skip
    """The endpoints that serve this model; moderations, rerank, realtime and those of images and \
audio have to be named."""
    max_attempts: Annotated[int, NOT_BOOL, Field(ge=1, le=10)] = 3
    """How often one call may be tried in all."""
    repeat_when_waiting: bool = False
    """Whether a call that was sent and not answered may be sent again."""
    max_output_tokens: Positive | None = None
    """Output tokens reserved for a chat call without a limit; required where a token or USD quota can apply."""
    min_output_tokens: Positive | None = None
    """Where a quota has no room for max_output_tokens, a chat call without a limit gets what is left, at least this \
number; default: it is refused."""
    store_responses: bool | None = None
    """The value of `store` in a request without one; default: the upstream decides, and OpenAI keeps the response."""
    limits: Limits = Limits()
    """Stricter limits for this model."""
    price: Annotated[Price | None, BeforeValidator(without_auto)] = None
    """The price of its calls; auto, the default where the provider is known: that of the price table; null: unknown."""
    unpriced: Literal["deny", "allow"] = "deny"
    """Without a price under a USD quota: deny (403 model_not_priced), or allow, and nothing is drawn on that quota."""


class Model(ModelSettings):
    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    """Where calls for this model go."""
    strip_prefix: Annotated[str, Field(min_length=1)] | None = None
    """Beginning of the asked name that is not sent to a route without `model`: openai/ for the pattern openai/*."""
    sticky: Annotated[Sticky | None, TRUE_IS_DEFAULTS] = None
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


# ------------------------------------------------------------------------------------------------- names of clients


MAX_KEPT_NAMES = 1024
"""Names under patterns whose settings are kept ready."""


class NamedModel(NamedTuple):
    name: str
    """The model's real name."""
    model: Model
    """Its settings; routes have the name that is sent, where it is not this one."""
    is_configured: bool
    """The name is in the configuration. Any other one may have been invented by a client."""
    alias: str | None = None
    """The name that was asked for, where it is an alias; of a fallback, the name of the model that it replaces."""


class ModelTable:
    """The models of a configuration, by the names that clients ask for."""

    def __init__(self, models: Mapping[str, Model], aliases: Mapping[str, str] = {}) -> None:
        self._configured = {
            name: NamedModel(name, served_as(model, name), True)
            for name, model in models.items()
            if not is_pattern(name)
        }
        self._spelled = frozenset[str]()
        self._patterns = [(compiled(name), models[name]) for name in most_specific_first(models)]
        self._under_pattern = lru_cache(MAX_KEPT_NAMES)(self._look_up)
        self.instead = lru_cache(MAX_KEPT_NAMES)(self._look_up_instead)
        self._configured |= {
            alias: _by_alias(found, alias)
            for alias, name in aliases.items()
            if (found := self.find(name)) is not None and alias not in self._configured
        }
        self._spelled = frozenset([_plain(name) for name in self._configured])
        self._targets = frozenset(aliases.values())

    def find(self, name: str) -> NamedModel | None:
        """The model that serves this name; None: none does."""
        return self._configured.get(name) or self._under_pattern(name)

    def fallbacks(self, found: NamedModel) -> list[NamedModel]:
        """The models that serve a call instead of this one, in this order. Their own fallbacks do not count."""
        others = [self.instead(name, found.name) for name in found.model.fallbacks if name != found.name]
        return [other for other in others if other is not None]

    def _look_up_instead(self, name: str, instead_of: str) -> NamedModel | None:
        found = self.find(name)
        return None if found is None else _by_alias(found, instead_of)

    def _look_up(self, name: str) -> NamedModel | None:
        if "," in name:
            return None  # LiteLLM asks each of several models
        if _plain(name) in self._spelled and name not in self._targets:
            return None  # some upstreams take any case, width and blanks: it would be that model at another price
        for pattern, model in self._patterns:
            if pattern.match(name) and name != model.strip_prefix:
                return NamedModel(name, served_as(model, name), False)
        return None


def _plain(name: str) -> str:
    return compatible(name.strip(), 1024).casefold().strip()


def _by_alias(found: NamedModel, alias: str) -> NamedModel:
    return NamedModel(found.name, _with_sent_name(found.model, found.name), True, alias)


def served_as(model: Model, name: str) -> Model:
    """The settings for one name: `strip_prefix` is taken off what is sent to routes without a name of their own."""
    if model.price is None and (price := model.table_prices.get(name)) is not None:
        model = model.model_copy(update={"price": price})
    if model.strip_prefix is None:
        return model
    return _with_sent_name(model, name.removeprefix(model.strip_prefix))


def _with_sent_name(model: Model, sent: str) -> Model:
    """The same, where each route has a name."""
    routes = tuple(
        route if route.model is not None else route.model_copy(update={"model": sent}) for route in model.routes
    )
    return model.model_copy(update={"routes": routes})
