"""Capabilities of upstreams: which routes of a model can take a call, and the error if none can.

A parameter that an upstream would misread or ignore is refused by name before any quota is reserved or bytes are sent,
or the call uses another route of the model. No parameter is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from gateway.config import Capabilities, Model, Route, Upstream
from gateway.errors import GatewayError, InvalidRequest, NotFound
from gateway.records import Document, Endpoint, Params

_WRONG_ENDPOINT: Mapping[Endpoint, str] = {
    "completions": "This model is not supported in the v1/completions endpoint.",
    "chat": "This is not a chat model and thus not supported in the v1/chat/completions endpoint. Did you mean to use "
    "v1/completions?",
    "embeddings": "This model is not supported in the v1/embeddings endpoint.",
    "messages": "This model is not supported in the v1/messages endpoint.",
    "count_tokens": "No upstream of this model counts tokens (v1/messages/count_tokens).",
    "input_tokens": "No upstream of this model counts tokens (v1/responses/input_tokens).",
    "compact": "No upstream of this model compacts conversations (v1/responses/compact).",
    "generate_content": "This model is not supported for generateContent. Did you mean to use v1/chat/completions?",
    "count_content_tokens": "No upstream of this model counts tokens (countTokens).",
    "embed_content": "This model is not supported for embedContent.",
    "batch_embed_contents": "This model is not supported for batchEmbedContents.",
    "realtime": "This model is not supported in the v1/realtime endpoint.",
    "message_batches": "No upstream of this model runs batches (v1/messages/batches).",
    "responses": "This model is not supported in the v1/responses endpoint. Did you mean to use v1/chat/completions?",
}
PART_OF: Mapping[Endpoint, Endpoint] = {
    "count_tokens": "messages",
    "input_tokens": "responses",
    "compact": "responses",
    "count_content_tokens": "generate_content",
    "batch_embed_contents": "embed_content",
    "message_batches": "messages",
}
"""Endpoints that a model has with another one, by whose name its settings list them."""
_PLAIN_ENDPOINTS = frozenset({"completions", "chat", "embeddings"})
"""The endpoints that `Capabilities.is_all` covers."""
_NAMES_MODEL_INSIDE = frozenset({"message_batches", "batch_embed_contents"})
"""Endpoints whose body names the model in each of many requests."""
_NOT_SERVED = "This model is not supported in this endpoint."
_CHAT_ONLY = (
    "This is a chat model and not supported in the v1/completions endpoint. Did you mean to use v1/chat/completions?"
)


class Adaptation(Enum):
    """How a client's request is adapted for an upstream."""

    PLAIN = "plain"
    """The request is sent unchanged."""
    ONE_BY_ONE = "one by one"
    """Each prompt of a completions call by itself."""
    VIA_CHAT = "via chat"
    """Each prompt of a completions call as a chat."""
    TRANSLATED = "translated"
    """The request is translated into another format, which the upstream supports."""


SPLIT_WAYS = frozenset({Adaptation.ONE_BY_ONE, Adaptation.VIA_CHAT})
"""The ways in which each prompt of a call is a request of its own."""

PROMPTS_AT_ONCE = 8
"""Prompts of one call that are under way at the same time; the others wait for their turn. One call with 2048 prompts
must not take every connection to its upstream, nor spend the whole rate of our account there in a second."""


CannotAdapt = Callable[[Adaptation, Endpoint, Params, Capabilities], GatewayError | None]
"""Why a call cannot be adapted in this way for an upstream with these capabilities; None: it can be."""


def is_translated(endpoint: Endpoint, capabilities: Capabilities) -> bool:
    """Whether this upstream gets such calls in another format. Completions are adapted prompt by prompt instead."""
    return type(getattr(capabilities, endpoint, True)) is str


def adaptation(endpoint: Endpoint, params: Params, capabilities: Capabilities) -> Adaptation:
    """The way to this upstream for a call that it can take."""
    if endpoint != "completions":
        return Adaptation.TRANSLATED if is_translated(endpoint, capabilities) else Adaptation.PLAIN
    if capabilities.completions == "via_chat":
        return Adaptation.VIA_CHAT
    prompt = params.document.members["prompt"]
    is_array = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return Adaptation.ONE_BY_ONE if is_array and not capabilities.prompt_arrays else Adaptation.PLAIN


def routes_of_all(model: Model, endpoint: Endpoint, upstreams: Mapping[str, Upstream]) -> tuple[Route, ...] | None:
    """The routes that take every call of this endpoint, in their order; None: that depends on its parameters, or there
    is no such route."""
    if endpoint in _PLAIN_ENDPOINTS and all(upstreams[route.upstream].capabilities.is_all for route in model.routes):
        return model.routes
    if may_rewrite(model, endpoint, upstreams):
        return None
    fit = [route for route in model.routes if serves(endpoint, upstreams[route.upstream].capabilities)]
    return tuple(fit) or None


def fixed_adaptations(model: Model, endpoint: Endpoint, upstreams: Mapping[str, Upstream]) -> Mapping[str, Adaptation]:
    """The ways to a model's upstreams, as far as they do not depend on the parameters of a call."""
    able = {route.upstream: upstreams[route.upstream].capabilities for route in model.routes}
    if endpoint == "completions":
        return {name: Adaptation.PLAIN for name, each in able.items() if each.is_all}
    return {
        name: Adaptation.TRANSLATED if is_translated(endpoint, each) else Adaptation.PLAIN
        for name, each in able.items()
    }


def fitting(
    model: Model,
    endpoint: Endpoint,
    params: Params,
    upstreams: Mapping[str, Upstream],
    cannot_adapt: CannotAdapt = lambda way, endpoint, params, capabilities: None,
) -> tuple[Route, ...]:
    """The routes that can take this call, in their order.

    Raises `InvalidRequest` with `param` for what none of them can do; `NotFound` where none serves the endpoint.
    """
    refusals: list[GatewayError] = []
    fit: list[Route] = []
    for route in model.routes:
        capabilities = upstreams[route.upstream].capabilities
        if not serves(endpoint, capabilities):
            continue
        refusal: GatewayError | None = _dropped(params.document, capabilities)
        if refusal is None and endpoint == "completions":
            refusal = _refusal(params.document, capabilities)
        if refusal is None and (way := adaptation(endpoint, params, capabilities)) is not Adaptation.PLAIN:
            refusal = cannot_adapt(way, endpoint, params, capabilities)
        if refusal is None:
            fit.append(route)
        else:
            refusals.append(refusal)
    if not fit:
        raise refusals[0] if refusals else wrong_endpoint(endpoint, served(model, upstreams))
    return tuple(fit)


def may_rewrite(model: Model, endpoint: Endpoint, upstreams: Mapping[str, Upstream]) -> bool:
    """Whether a route of this model may need more of a call's values than to pass them on."""
    able = [upstreams[route.upstream].capabilities for route in model.routes]
    if any(each.drops for each in able):
        return True
    if endpoint in _NAMES_MODEL_INSIDE:
        return any(route.model is not None for route in model.routes)
    if endpoint == "completions":
        return not all(each.is_all for each in able)
    return any(is_translated(endpoint, each) for each in able)


def beside(routes: Sequence[Route], others: Iterable[tuple[str, Model]]) -> tuple[Route, ...]:
    """Those of these routes whose upstreams serve the other models of a call too. Raises `InvalidRequest` for the first
    of them that leaves no route."""
    fit = tuple(routes)
    for name, model in others:
        upstreams = {route.upstream for route in model.routes}
        fit = tuple([route for route in fit if route.upstream in upstreams])
        if not fit:
            raise InvalidRequest(
                f"The model '{name}' is not served by the same upstream as the model of the request. Name another one, "
                "or none.",
                code="unsupported_value",
            )
    return fit


def lists(model: Model, endpoint: Endpoint) -> bool:
    """Whether the settings of a model have the endpoint. Those of a batch are checked line by line."""
    if endpoint == "batches":
        return True
    return PART_OF.get(endpoint, endpoint) in model.endpoints


def serves(endpoint: Endpoint, capabilities: Capabilities) -> bool:
    """Whether this upstream has the endpoint, or another endpoint that a bridge can use instead."""
    if endpoint in PART_OF and getattr(capabilities, PART_OF[endpoint]) is not True:
        return False
    return getattr(capabilities, endpoint, True) is not False


def served(model: Model, upstreams: Mapping[str, Upstream]) -> tuple[Endpoint, ...]:
    """The endpoints on which a model can be asked for."""
    able = [upstreams[route.upstream].capabilities for route in model.routes]
    return tuple([endpoint for endpoint in model.endpoints if any(serves(endpoint, each) for each in able)])


def unsupported(model: Model, upstreams: Mapping[str, Upstream]) -> list[str]:
    """The names of the completions capabilities that no route of this model has."""
    able = [upstreams[route.upstream].capabilities for route in model.routes]
    able = [each for each in able if serves("completions", each)]
    if "completions" not in model.endpoints or not able:
        return []
    return [name for name, _, _, _ in _NEEDS if not any(_can(each, name) for each in able)]


def wrong_endpoint(endpoint: Endpoint, others: Iterable[Endpoint]) -> NotFound:
    """404 for a model that is served on these other endpoints only."""
    is_chat_only = endpoint == "completions" and "chat" in others
    return NotFound(_CHAT_ONLY if is_chat_only else _WRONG_ENDPOINT.get(endpoint, _NOT_SERVED), param="model")


# ------------------------------------------------------------------------------------------------- needs of a call


def _value(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported value: '{param}' does not support {what} with this model.", param=param, code="unsupported_value"
    )


def _parameter(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: '{param}' is not supported with this model.", param=param, code="unsupported_parameter"
    )


def _dropped(document: Document, capabilities: Capabilities) -> InvalidRequest | None:
    """The first parameter of a call that this upstream drops. A large body was looked through by its reader."""
    for path in capabilities.drops:
        is_there = (
            has_value(document.members, path.split(".")) if document.large is None else path in document.large.dropped
        )
        if is_there:
            return _parameter(path)
    return None


def all_drops(upstreams: Mapping[str, Upstream]) -> list[str]:
    """Every parameter that one of these upstreams drops."""
    return sorted({path for each in upstreams.values() for path in each.capabilities.drops})


def has_value(value: Any, path: Sequence[str]) -> bool:
    """Whether a value is at this path, through lists too; null asks for nothing."""
    if isinstance(value, list):
        return any(has_value(each, path) for each in value)
    if not path:
        return value is not None
    return isinstance(value, Mapping) and has_value(value.get(path[0]), path[1:])


def _is_of_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and not isinstance(prompt[0], str)


# Capability, parameter, whether a value of it needs the capability, and the refusal.
_NEEDS: tuple[tuple[str, str, Callable[[Any], bool], Callable[[str, Any], InvalidRequest]], ...] = (
    ("token_prompts", "prompt", _is_of_tokens, lambda p, _: _value(p, "arrays of tokens, only text,")),
    ("echo", "echo", bool, lambda p, _: _parameter(p)),
    ("suffix", "suffix", bool, lambda p, _: _parameter(p)),
    ("best_of", "best_of", lambda v: v is not None and v > 1, lambda p, v: _value(p, f"{v}, only the default (1),")),
    ("logprobs", "logprobs", lambda v: v is not None, lambda p, _: _parameter(p)),
)
_LONG = "a text"
"""Instead of one that is not kept of a large body."""
_NOT_BY_CHAT = frozenset({"token_prompts", "echo", "suffix", "best_of"})
"""Features of completions that chat lacks."""
_OF_CHAT_ALONE = frozenset({
    "messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "modalities", "audio",
    "top_logprobs", "web_search_options",
})  # fmt: skip
"""Chat parameters that would conflict with the bridge's own, or request an answer that is not text. On completions they
are unknown parameters and have no effect."""


def _can(capabilities: Capabilities, name: str) -> bool:
    can: bool = getattr(capabilities, name)
    return can and not (capabilities.completions == "via_chat" and name in _NOT_BY_CHAT)


def _refusal(document: Document, capabilities: Capabilities) -> InvalidRequest | None:
    """The refusal of a completions call that needs a capability that this upstream lacks; None: it has all."""
    members, large = document.members, document.large
    for name, param, is_needed, refusal in _NEEDS:
        value = members.get(param)
        if value == "" and large is not None and large.places[param][1] - large.places[param][0] > len('""'):
            value = _LONG
        if is_needed(value) and not _can(capabilities, name):
            return refusal(param, value)
    if capabilities.completions == "via_chat":
        for param in members:
            if param.casefold() in _OF_CHAT_ALONE:  # Go's JSON reader takes "Messages" for the parameter
                return _parameter(param)
    return None
